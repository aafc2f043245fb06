"""Triggers look again and again, change nothing, and can be rebuilt from what they say of themselves."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from dataclasses import replace
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowRuntimeError, ErrorType
from airflow.sdk.execution_time.comms import ErrorResponse
from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance
from airflow.triggers.base import BaseTrigger

from airflow_ft.pipeline.barriers import BarrierGate
from airflow_ft.pipeline.checkpoints import Gate
from airflow_ft.pipeline.runs import run_is_idle, run_is_over
from airflow_ft.protocol.errors import StoreUnavailableError, TurnHeldError
from airflow_ft.protocol.lease import Worker
from airflow_ft.protocol.model import RunKey
from airflow_ft.protocol.pipelines import HaltReason
from airflow_ft.protocol.steps import take_turn
from airflow_ft.triggers.barrier import BarrierTrigger
from airflow_ft.triggers.checkpoint import CheckpointTrigger
from airflow_ft.triggers.polling import poll
from airflow_ft.triggers.turn import TurnTrigger
from tests.protocol.world import PIPELINE, World
from tests.waiting import wait_for

pytestmark = pytest.mark.airflow


BARRIER = BarrierGate((PIPELINE,), at=datetime(2020, 1, 1, tzinfo=UTC)).to_json()


class Log:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def warning(self, msg: str, /, *args: Any) -> None:
        self.lines.append(msg % args)

    info = warning


def url(folder: Path) -> str:
    return f"sqlite:///{folder}/ft.db"


async def first_event(trigger: BaseTrigger) -> Any:
    async for event in trigger.run():
        return event.payload
    raise AssertionError("no event")


def again(trigger: BaseTrigger) -> BaseTrigger:
    path, arguments = trigger.serialize()
    module, _, name = path.rpartition(".")
    made: BaseTrigger = getattr(import_module(module), name)(**arguments)
    return made


def test_polling_outlives_an_outage_and_logs_both_ends() -> None:
    answers: list[Any] = [None, StoreUnavailableError("down."), StoreUnavailableError("down."), None, 7]
    log = Log()

    def question() -> Any:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    assert asyncio.run(poll(question, 0.0, log)) == 7
    assert ["down." in each for each in log.lines] == [True, False]


def test_polling_does_not_hide_what_waiting_cannot_mend() -> None:
    def question() -> Any:
        raise KeyError("x")

    with pytest.raises(KeyError):
        asyncio.run(poll(question, 0.0, Log()))


def test_the_gate_is_watched_until_it_opens(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.stage(1)
    trigger = again(
        CheckpointTrigger(pipeline=PIPELINE, gate=Gate(number=1).to_json(), store=url(tmp_path), poll_interval=0.01)
    )
    before = len(world.store.events(PIPELINE))
    assert isinstance(trigger, CheckpointTrigger)
    looks: list[Any] = []
    look = trigger.look

    def counted() -> Any:
        looks.append(look())
        if len(looks) == 3:
            assert len(world.store.events(PIPELINE)) == before, "it changes nothing"
            world.steps(world.context())
        return looks[-1]

    trigger.look = counted  # type: ignore[method-assign]
    assert asyncio.run(first_event(trigger)) == {"pipeline": PIPELINE, "number": 1}
    assert looks[:3] == [None] * 3


def test_a_barrier_is_watched_until_it_has_passed(tmp_path: Path) -> None:
    world = World(tmp_path)
    gate = BarrierGate((PIPELINE,), at=datetime(2020, 1, 1, tzinfo=UTC))
    trigger = again(BarrierTrigger(gate=gate.to_json(), store=url(tmp_path), poll_interval=0.01))
    assert isinstance(trigger, BarrierTrigger)
    look, looks = trigger.look, 0

    def counted() -> Any:
        nonlocal looks
        looks += 1
        if looks == 2:
            world.stage(1)
        if looks == 3:
            world.steps(world.context())
        return look()

    trigger.look = counted  # type: ignore[method-assign]
    found = asyncio.run(first_event(trigger))
    assert looks == 3 and (found[PIPELINE]["number"], found[PIPELINE]["covered"]) == (1, True)


@pytest.mark.parametrize("kind", [CheckpointTrigger, BarrierTrigger])
def test_a_closed_gate_logs_that_its_pipeline_halts(kind: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world, log = World(tmp_path), Log()
    world.stage(1)
    trigger = kind(
        store=url(tmp_path),
        poll_interval=0.01,
        **(
            {"pipeline": PIPELINE, "gate": Gate(number=1).to_json()} if kind is CheckpointTrigger else {"gate": BARRIER}
        ),
    )
    monkeypatch.setattr(kind, "log", log)
    assert trigger.look() is None and not log.lines
    world.store.halt(PIPELINE, HaltReason.TOKEN_LOST, "it is gone.")
    wait_for(lambda: trigger.look() or log.lines, 10, "it is logged", 0.01)
    assert len(log.lines) == 1 and "pipeline orders is HALTED" in log.lines[0]
    assert trigger.look() is None and len(log.lines) == 1


def turn_trigger(folder: Path, run_id: str = "waiting", lease_seconds: float = 0.2) -> TurnTrigger:
    trigger = again(
        TurnTrigger(
            pipeline=PIPELINE,
            dag_id="dag",
            run_id=run_id,
            store=url(folder),
            lease_seconds=lease_seconds,
            poll_interval=0.01,
        )
    )
    assert isinstance(trigger, TurnTrigger)
    return trigger


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> set[RunKey]:
    """The DAG runs that can go on, as Airflow would say."""
    alive: set[RunKey] = set()
    monkeypatch.setattr("airflow_ft.pipeline.runs.run_is_idle", lambda run: run not in alive)
    return alive


def test_a_turn_is_free_when_nobody_has_it_or_its_run_is_over(tmp_path: Path, runs: set[RunKey]) -> None:
    world = World(tmp_path)
    world.store.register(PIPELINE)
    assert turn_trigger(tmp_path).is_free()
    holder = RunKey("dag", "holder")
    world.store.enter_turn(PIPELINE, holder, None)
    runs.add(holder)
    assert not turn_trigger(tmp_path).is_free()
    assert turn_trigger(tmp_path, "holder").is_free(), "it is its own"
    runs.clear()
    assert turn_trigger(tmp_path).is_free()


@pytest.mark.parametrize("state", ["queued", "running", "failed"])
def test_a_run_that_waits_to_be_started_gives_up_its_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    """The run was cleared. With max_active_runs=1 Airflow starts it after the run that waits for the turn."""
    world = World(tmp_path)
    world.store.register(PIPELINE)
    world.store.enter_turn(PIPELINE, RunKey("dag", "holder"), None)
    monkeypatch.setattr(RuntimeTaskInstance, "get_dr_count", lambda *, states, **_: int(state in states))
    assert turn_trigger(tmp_path).is_free() is (state != "running")
    context = replace(world.context(run=RunKey("dag", "waiting")), run_is_over=run_is_idle)
    with nullcontext() if state != "running" else pytest.raises(TurnHeldError):
        assert take_turn(context)
    assert run_is_over(RunKey("dag", "holder")) is (state == "failed")


@pytest.mark.parametrize(
    "error", [AirflowRuntimeError(ErrorResponse(error=ErrorType.API_SERVER_ERROR)), OSError("pipe")]
)
def test_a_task_waits_for_its_turn_while_airflow_cannot_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """Airflow's API server restarts: the task that waits would fail, with each of its retries."""
    world = World(tmp_path)
    world.store.register(PIPELINE)
    world.store.enter_turn(PIPELINE, RunKey("dag", "holder"), None)
    answers: list[Any] = [error, error, 0]

    def count(**_: Any) -> int:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return int(answer)

    monkeypatch.setattr(RuntimeTaskInstance, "get_dr_count", count)
    assert asyncio.run(first_event(turn_trigger(tmp_path))) == {"pipeline": PIPELINE}
    assert not answers


def test_the_turn_of_one_map_index_is_not_that_of_another(tmp_path: Path, runs: set[RunKey]) -> None:
    world = World(tmp_path)
    world.store.register(PIPELINE)
    holder = RunKey("dag", "holder", 1)
    world.store.enter_turn(PIPELINE, holder, None)
    runs.add(holder)
    assert [
        TurnTrigger(pipeline=PIPELINE, dag_id="dag", run_id="holder", store=url(tmp_path), **given).is_free()
        for given in ({"map_index": 1}, {"map_index": 0}, {})
    ] == [True, False, False]


def test_a_turn_is_not_free_while_a_lease_is_alive(
    tmp_path: Path, runs: set[RunKey], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr("airflow_ft.triggers.turn.time", SimpleNamespace(monotonic=lambda: clock.now))
    world = World(tmp_path)
    world.store.register(PIPELINE)
    lease = Worker("dag/holder/step").lease()
    epoch = world.store.take_epoch(PIPELINE, 0, {}, lease, "test")
    trigger = turn_trigger(tmp_path, lease_seconds=30)
    for _ in range(5):  # a living holder renews, for longer than a lease
        assert not trigger.is_free()
        clock.now += 10
        world.store.renew_lease(PIPELINE, epoch, lease.holder)
    assert not trigger.is_free()
    clock.now += 14.9
    assert not trigger.is_free()
    clock.now += 0.2
    assert trigger.is_free(), "it has stood still for half a lease"
    world.store.release_lease(PIPELINE, lease.holder)
    assert turn_trigger(tmp_path).is_free()
