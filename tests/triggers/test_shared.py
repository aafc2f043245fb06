"""Triggers of one decision log share one open reader: it is opened once, asked seldom, and closed behind the last."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_ft.pipeline import decision_log as hooks
from airflow_ft.pipeline.checkpoints import Gate
from airflow_ft.protocol.errors import StoreUnavailableError
from airflow_ft.triggers import shared
from airflow_ft.triggers.checkpoint import CheckpointTrigger
from tests.protocol.world import PIPELINE, World
from tests.triggers.test_triggers import first_event, url
from tests.waiting import wait_for

pytestmark = pytest.mark.airflow


class Opened:
    """Records opening, asking and closing."""

    def __init__(self) -> None:
        self.opened = self.closed = self.asked = 0
        self.away = False


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[Opened]:
    opened, original = Opened(), hooks.open_configured_store

    def opening(*args: Any) -> Any:
        if opened.away:
            raise StoreUnavailableError("down.")
        found = original(args[0])
        opened.opened += 1
        close, asking, marks = found.close, found.latest_confirmed, found.marks

        def closing() -> None:
            opened.closed += 1
            close()

        def ask(pipeline: str) -> Any:
            opened.asked += 1
            return asking(pipeline)

        def versions() -> Any:
            if opened.away:
                raise StoreUnavailableError("down.")
            return marks()

        found.close, found.latest_confirmed, found.marks = closing, ask, versions  # type: ignore[method-assign]
        return found

    monkeypatch.setattr(hooks, "open_configured_store", opening)
    monkeypatch.setattr(hooks, "find_configured_store", opening)
    yield opened
    assert not shared._readers, "every reader is given back"


def gate(folder: Path, number: int = 1, store: str = "") -> CheckpointTrigger:
    return CheckpointTrigger(
        pipeline=PIPELINE, gate=Gate(number=number).to_json(), store=store or url(folder), poll_interval=0.01
    )


def test_many_gates_open_the_log_once_and_query_it_after_changes(tmp_path: Path, counted: Opened) -> None:
    world = World(tmp_path)
    world.stage(1)
    gates = [gate(tmp_path) for _ in range(20)]
    looks = 0

    def watched(trigger: CheckpointTrigger) -> None:
        look = trigger.look

        def counting() -> Any:
            nonlocal looks
            looks += 1
            return look()

        trigger.look = counting  # type: ignore[method-assign]

    async def main() -> list[Any]:
        tasks = [asyncio.create_task(first_event(each)) for each in gates]
        while looks < 200:
            await asyncio.sleep(0.01)
        assert counted.asked == 20, "each has asked once, since nothing has changed"
        await asyncio.to_thread(world.steps, world.context())
        return await asyncio.gather(*tasks)

    for each in gates:
        watched(each)
    assert asyncio.run(main()) == [{"pipeline": PIPELINE, "number": 1}] * 20
    assert counted.opened == 1
    wait_for(lambda: counted.closed == 1, 10, "the log is closed", 0.01)


def test_a_cancelled_gate_leaves_the_others_their_log(tmp_path: Path, counted: Opened) -> None:
    world = World(tmp_path)
    world.stage(1)

    async def main() -> Any:
        one, other = (asyncio.create_task(first_event(gate(tmp_path))) for _ in range(2))
        while counted.asked < 2:
            await asyncio.sleep(0.01)
        one.cancel()
        await asyncio.gather(one, return_exceptions=True)
        assert not counted.closed
        await asyncio.to_thread(world.steps, world.context())
        return await other

    assert asyncio.run(main())["number"] == 1
    wait_for(lambda: counted.closed == 1, 10, "the log is closed", 0.01)


def test_a_log_that_is_away_is_opened_again_when_it_is_back(
    tmp_path: Path, counted: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared, "MOST_SECONDS", 0.01)
    world = World(tmp_path)
    world.stage(1)

    async def main() -> Any:
        task = asyncio.create_task(first_event(gate(tmp_path)))
        while not counted.asked:
            await asyncio.sleep(0.01)
        counted.away = True
        while not counted.closed:
            await asyncio.sleep(0.01)
        await asyncio.to_thread(world.steps, world.context())
        assert not task.done()
        counted.away = False
        return await task

    assert asyncio.run(main())["number"] == 1
    assert counted.opened == 2


def test_a_gate_in_another_event_loop_uses_the_log_of_its_time(tmp_path: Path, counted: Opened) -> None:
    world = World(tmp_path)
    world.stage(1)
    world.steps(world.context())
    for number in (1, 2):
        assert asyncio.run(first_event(gate(tmp_path)))["number"] == 1
        assert counted.opened == number


def test_closing_under_queries_is_an_outage_and_nothing_else(tmp_path: Path) -> None:
    World(tmp_path).stage(1)
    found: set[type[BaseException]] = set()
    outages = threading.Event()

    def ask(reader: shared.Reader) -> None:
        for _ in range(300):
            try:
                reader.store().latest_confirmed(PIPELINE)
            except StoreUnavailableError:
                outages.set()
            except BaseException as error:
                found.add(type(error))

    with shared.reading(url(tmp_path)) as reader:
        threads = [threading.Thread(target=ask, args=(reader,)) for _ in range(4)]
        for each in threads:
            each.start()
        while any(each.is_alive() for each in threads):
            reader._close_store()
            reader._read_at = None
    assert not found
    assert outages.is_set(), "it was closed between two steps of a look"


def test_a_log_that_hangs_holds_up_no_gate_of_another_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original, released, hanging = hooks.open_configured_store, threading.Event(), url(tmp_path / "hanging")

    def opening(setting: str) -> Any:
        if setting == hanging:
            assert released.wait(60)
        return original(setting)

    monkeypatch.setattr(hooks, "open_configured_store", opening)
    for name in ("hanging", "other"):
        world = World(tmp_path / name)
        world.stage(1)
        world.steps(world.context())

    async def main() -> None:
        stuck = [asyncio.create_task(first_event(gate(tmp_path / "hanging"))) for _ in range(40)]
        await asyncio.sleep(0)
        assert (await asyncio.wait_for(first_event(gate(tmp_path / "other")), 30))["number"] == 1
        assert not any(each.done() for each in stuck)
        released.set()
        await asyncio.gather(*stuck)

    asyncio.run(main())


def test_a_gate_follows_its_connection_to_another_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared, "MOST_SECONDS", 0.01)
    monkeypatch.setattr(shared, "ANYWAY_SECONDS", 0.05)
    old, new = World(tmp_path / "old"), World(tmp_path / "new")
    for world in (old, new):
        world.stage(1)
    named = [url(tmp_path / "old")]
    monkeypatch.setattr(hooks, "store_url", lambda *_: named[0])

    async def main() -> Any:
        task = asyncio.create_task(first_event(gate(tmp_path, store="conn:log")))
        await asyncio.to_thread(new.steps, new.context())
        await asyncio.sleep(0.2)
        assert not task.done()
        named[0] = url(tmp_path / "new")
        return await asyncio.wait_for(task, 30)

    assert asyncio.run(main())["number"] == 1


def test_a_log_that_vanished_is_not_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared, "MOST_SECONDS", 0.0)
    world = World(tmp_path)
    world.stage(1)
    world.steps(world.context())
    path, aside = tmp_path / "ft.db", tmp_path / "aside.db"
    with shared.reading(url(tmp_path)) as reader:
        reader.token((), 0.0)
        path.rename(aside)
        for _ in range(3):
            with pytest.raises(StoreUnavailableError):
                reader.token((), 0.0)
        assert not path.exists()
        aside.rename(path)
        assert reader.token((PIPELINE,), 0.0)[0]
