"""Only the failed tasks of a run are cleared, as in Airflow's UI: the run must end correctly, in any order."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG, BaseOperator
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSkipException, TaskDeferred

from airflow_ft import CheckpointedPipeline, KafkaSink, MySqlSink
from airflow_ft.operators.commit import CommitOperator
from airflow_ft.operators.prepare import PrepareOperator
from airflow_ft.pipeline import steps as pipeline_steps
from airflow_ft.protocol import steps
from airflow_ft.protocol.errors import DeclinedError
from airflow_ft.protocol.model import RunKey
from airflow_ft.protocol.overview import Condition
from airflow_ft.triggers.turn import TurnTrigger
from tests.operators.declared import spec
from tests.operators.test_base import airflow_context, do
from tests.protocol.systems import NoArchive
from tests.protocol.world import PIPELINE, RUN, World

pytestmark = pytest.mark.airflow

SINKS = {"rows": MySqlSink(table="t", conn_id="db"), "copies": KafkaSink(topic="t", conn_id="log")}
XA = {**SINKS, "rows": MySqlSink(table="t", conn_id="db", strategy="xa", branches=2)}
TASKS = ("recover", "stage", "prepare.db", "prepare.log", "commit.db", "commit.log", "confirmed")
LOADED = ("prepare.db-announce", "prepare.db-load")
BAD = {"failed", "upstream_failed"}


class Run:
    """One DAG run over the model world. It starts the last task of the DAG that may start."""

    def __init__(self, world: World, patch: pytest.MonkeyPatch, sinks: Mapping[str, Any], delivery: str) -> None:
        self.world, self.states = world, dict[str, str]()
        self.is_over: Callable[[RunKey], bool] = lambda other: other != RUN
        with DAG("dag", schedule=None) as self.dag:
            CheckpointedPipeline(spec(PIPELINE, sinks=sinks), delivery=delivery)
        for task in self.dag.tasks:
            if type(task) is PrepareOperator:
                task.announced = None
        patch.setattr("airflow_ft.operators.base.were_skipped", lambda *_: False)
        patch.setattr(pipeline_steps, "recover", lambda run, *_, **__: steps.recover_step(run))
        patch.setattr(pipeline_steps, "stage", self._stage)
        patch.setattr(pipeline_steps, "announce", lambda *_: None)
        patch.setattr(pipeline_steps, "prepare", self._prepare)
        patch.setattr(pipeline_steps, "confirm", self._confirm)

    def _stage(self, _: Any, run: Any, *__: Any) -> None:
        row = run.store.run(PIPELINE, run.run)
        if not row.staged:
            steps.take_turn(run)
            self.world.stage(2)

    def _prepare(self, run: Any, _: Any, __: Any, participant: str, ___: Any) -> Any:
        return steps.prepare_step(run, self.world.delivery, self.world.config, participant)

    def _confirm(self, run: Any, *_: Any) -> Any:
        return steps.confirm_step(run, self.world.config, NoArchive())  # type: ignore[arg-type]

    def play(self, broken: Collection[str] = (), dies: str = "before") -> dict[str, str]:
        """Run tasks that have no state yet, by Airflow's rules. `broken` tasks die before or after their work."""
        order = [task.task_id for task in self.dag.topological_sort()]
        while waiting := [name for name in order if name not in self.states]:
            name = [each for each in waiting if self._upstream(each) <= self.states.keys()][-1]
            self.states[name] = self._decided(name) or self._do(name, broken, dies)
        return {name.removeprefix(f"{PIPELINE}."): state for name, state in self.states.items()}

    def clear_failed(self) -> None:
        self.states = {name: state for name, state in self.states.items() if state not in BAD}

    def _upstream(self, name: str) -> set[str]:
        return set(self.dag.get_task(name).upstream_task_ids)

    def _decided(self, name: str) -> str:
        states, rule = {self.states[each] for each in self._upstream(name)}, self.dag.get_task(name).trigger_rule
        if rule == "all_done" or (rule == "all_done_min_one_success" and "success" in states):
            return ""
        return "upstream_failed" if states & BAD else "skipped" if "skipped" in states else ""

    def _do(self, name: str, broken: Collection[str], dies: str) -> str:
        task, is_broken = self.dag.get_task(name), name.removeprefix(f"{PIPELINE}.") in broken
        try:
            if isinstance(task, BaseOperator) and not (is_broken and dies == "before"):
                context = airflow_context()
                context["ti"].task_id, context["ti"].map_index = name, -1
                context["ti"].dag_id, context["ti"].run_id = RUN.dag_id, RUN.run_id
                do(task, replace(self.world.context(try_number=2), run_is_over=self.is_over), context)  # type: ignore[arg-type]
        except AirflowSkipException:
            return "failed" if is_broken else "skipped"
        except AirflowException as error:
            assert not isinstance(task, CommitOperator) or isinstance(error, AirflowFailException), "no retries"
            return "failed"
        return "failed" if is_broken else "success"


BROKEN = [(each,) for each in TASKS] + list(combinations(TASKS, 2))


@pytest.mark.parametrize("dies", ["before", "after"])
@pytest.mark.parametrize("broken", BROKEN, ids=lambda names: "+".join(names))
def test_clearing_failed_tasks_repairs_the_run(
    broken: tuple[str, ...], dies: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _check_repaired(Run(World(tmp_path, max_rows=10), monkeypatch, SINKS, "tasks"), broken, dies)


@pytest.mark.parametrize("broken", [*TASKS, *LOADED])
def test_clearing_failed_tasks_repairs_mapped_delivery(
    broken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _check_repaired(Run(World(tmp_path), monkeypatch, XA, "mapped"), [broken], "before")


def _check_repaired(run: Run, broken: Collection[str], dies: str) -> None:
    run.play(broken, dies)
    run.clear_failed()
    states = run.play()
    assert set(states.values()) == {"success"}, states
    run.world.check_exactly_once([1, 2])
    assert run.world.store.pipeline(PIPELINE).turn is None


def test_a_run_without_rows_skips_its_commits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(World(tmp_path), monkeypatch, SINKS, "tasks")
    monkeypatch.setattr(pipeline_steps, "stage", lambda *_: run.world.stage(0) and None)
    assert {name for name, state in run.play().items() if state == "skipped"} == {"commit.db", "commit.log"}


def test_refused_rows_need_the_stage_cleared_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sink's refusal has rewound the pipeline, so no task that failed can compute the rows again."""
    run = Run(World(tmp_path), monkeypatch, SINKS, "tasks")
    run.world.systems["db"].declines_in_prepare = True
    run.play()
    run.world.systems["db"].declines_in_prepare = False
    run.clear_failed()
    assert run.play()["confirmed"] == "failed"
    found = run.world.store.overview(PIPELINE).failure
    assert found is not None and found.remedy == steps.CLEAR_STAGE
    run.states = {f"{PIPELINE}.recover": "success"}
    assert set(run.play().values()) == {"success"}
    run.world.check_exactly_once([3, 4])


def test_cleared_tasks_wait_for_another_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`recover` succeeded and is not cleared, so the first cleared task waits instead."""
    for broken in TASKS[1:-1]:
        (folder := tmp_path / broken).mkdir()
        run = Run(World(folder), monkeypatch, SINKS, "tasks")
        run.play([broken])
        run.clear_failed()
        other = RunKey("dag", "run-2")
        run.world.store.enter_turn(PIPELINE, other, None)
        run.is_over = lambda _: False
        with pytest.raises(TaskDeferred) as caught:
            run.play()
        trigger = caught.value.trigger
        assert isinstance(trigger, TurnTrigger) and (trigger.pipeline, trigger.run_id) == (PIPELINE, "run-1")
        run.world.store.leave_turn(PIPELINE, other)
        assert set(run.play().values()) == {"success"}
        run.world.check_exactly_once([1, 2])


def test_a_commit_without_a_stage_waits_for_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`recover` failed because it waited too long for that run."""
    run = Run(World(tmp_path), monkeypatch, SINKS, "tasks")
    run.world.store.register(PIPELINE)
    run.world.store.enter_turn(PIPELINE, RunKey("dag", "run-2"), None)
    run.is_over = lambda _: False
    assert run.play(["recover"])["commit.db"] == "failed"


def test_only_the_first_failure_is_shown_and_alerts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[str] = []
    run = Run(World(tmp_path), monkeypatch, SINKS, "tasks")

    def refuse(*_: Any) -> None:
        raise DeclinedError("it refuses the rows.", remedy="Correct the job.")

    monkeypatch.setattr(pipeline_steps, "prepare", refuse)
    for task in run.dag.tasks:
        task.on_failure_callback = [called.append]
    run.play()
    assert [len(task.on_failure_callback) for task in run.dag.tasks if "commit" in task.task_id] == [0, 0]
    found = run.world.store.overview(PIPELINE)
    assert found.condition is Condition.FAILED and found.failure is not None and found.failure.code == "declined"
