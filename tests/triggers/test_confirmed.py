"""A DAG elsewhere is started by each confirmed checkpoint: at least once, and the newest one is never left out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import Asset, AssetWatcher
from airflow.triggers.shared_stream import SharedStreamManager

from airflow_ft.protocol.errors import ConfigurationError
from airflow_ft.store import open_store
from airflow_ft.triggers.confirmed import STATE_KEY, ConfirmedTrigger
from tests.raising import raises
from tests.store.scene import PIPELINE, Scene
from tests.store.test_renaming import NEW, renamed

pytestmark = pytest.mark.airflow
SECONDS = 10.0


class State(dict[str, Any]):
    """What Airflow keeps for the watched asset, over restarts of the triggerer."""

    async def aget(self, key: str) -> Any:
        return self.get(key)

    async def aset(self, key: str, value: Any) -> None:
        self[key] = value


class Triggerer:
    """Runs a trigger as Airflow's triggerer does, over its own manager of streams."""

    def __init__(self, manager: SharedStreamManager, trigger: ConfirmedTrigger) -> None:
        self._manager, self._key, self._trigger = manager, trigger.shared_stream_key(), trigger
        stream = manager.subscribe(trigger_id=1, trigger=trigger, key=self._key)
        self._events = trigger.filter_shared_stream(stream)
        self._next: asyncio.Future[Any] | None = None

    async def event(self) -> tuple[dict[str, Any], int]:
        """The next event, and what has to be said when it is in the database."""
        self._next = self._next or asyncio.ensure_future(anext(self._events))
        event = await asyncio.wait_for(asyncio.shield(self._next), SECONDS)
        seq = self._manager.bind_pending_event(trigger_id=1, key=self._key)
        assert seq is not None, "whoever is not asked for an acknowledgement loses the event"
        self._next = asyncio.ensure_future(anext(self._events))
        return event.payload, seq

    async def nothing(self) -> None:
        """Goes on for some looks at the decision log, in which there is no event."""
        self._next = self._next or asyncio.ensure_future(anext(self._events))
        done, _ = await asyncio.wait((self._next,), timeout=0.3)
        assert not done

    def persisted(self, seq: int) -> None:
        self._manager.confirm_persisted([seq])

    async def stop(self) -> None:
        if self._next is not None:
            self._next.cancel()
            await asyncio.wait((self._next,))
        await self._manager.unsubscribe(1, self._key)


def kept(state: State) -> list[int]:
    assert all(key.startswith(STATE_KEY) for key in state)
    return list(state.values())


@asynccontextmanager
async def triggerer(url: str, state: State, pipeline: str = PIPELINE) -> AsyncIterator[Triggerer]:
    trigger = ConfirmedTrigger(pipeline=pipeline, store=url, poll_interval=0.02)
    trigger.asset_state_store = state  # type: ignore[assignment]
    running = Triggerer(SharedStreamManager(), trigger)
    try:
        yield running
    finally:
        await running.stop()


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(SECONDS):
        while not true():
            await asyncio.sleep(0.01)


def test_each_batch_is_one_event_and_is_kept_when_airflow_has_it(tmp_path: Path) -> None:
    url, state = f"sqlite:///{tmp_path}/ft.db", State()

    async def play(scene: Scene) -> None:
        async with triggerer(url, state) as running:
            await running.nothing()
            assert kept(state) == [1], "what was confirmed before it came is not told"
            scene.complete(2)
            event, seq = await running.event()
            assert event == {"pipeline": PIPELINE, "number": 2, "after": 1}
            await running.nothing()
            assert kept(state) == [1], "it is not in Airflow's database yet"
            scene.complete(4, [3, 4])
            event, later = await running.event()
            assert event == {"pipeline": PIPELINE, "number": 4, "after": 2}
            running.persisted(seq)
            running.persisted(later)
            await until(lambda: kept(state) == [4])
            await running.nothing()

    with closing(open_store(url)) as store:
        scene = Scene(store)
        scene.stage(4)
        scene.complete(1)
        asyncio.run(play(scene))


def test_a_killed_triggerer_sends_an_unsaved_event_again(tmp_path: Path) -> None:
    url, state = f"sqlite:///{tmp_path}/ft.db", State()

    async def play(scene: Scene) -> None:
        async with triggerer(url, state) as running:
            await running.nothing()
            scene.complete(1)
            event, _ = await running.event()
            assert event["number"] == 1
        assert kept(state) == [0]
        scene.complete(2)  # while there is no triggerer
        async with triggerer(url, state) as running:
            event, seq = await running.event()
            assert event == {"pipeline": PIPELINE, "number": 2, "after": 0}
            running.persisted(seq)
            await until(lambda: kept(state) == [2])
        async with triggerer(url, state) as running:
            await running.nothing()

    with closing(open_store(url)) as store:
        scene = Scene(store)
        scene.stage(2)
        asyncio.run(play(scene))


@pytest.mark.parametrize("other", ["pipeline", "log"])
def test_watchers_of_one_asset_keep_numbers_of_their_own(tmp_path: Path, other: str) -> None:
    """Also one after the other, when the watched pipeline or its decision log has changed."""
    url, state = f"sqlite:///{tmp_path}/ft.db", State()
    second_url = f"sqlite:///{tmp_path}/other.db" if other == "log" else url
    name = PIPELINE if other == "log" else "clicks"

    async def play(scene: Scene, second: Scene) -> None:
        async with triggerer(url, state) as running:
            await running.nothing()
        async with triggerer(second_url, state, name) as running:
            await running.nothing()
            assert kept(state) == [3, 0]
            second.complete(1)
            event, _ = await running.event()
            assert event == {"pipeline": name, "number": 1, "after": 0}

    with closing(open_store(url)) as store, closing(open_store(second_url)) as second_store:
        scene, second = Scene(store), Scene(second_store, name)
        scene.stage(3)
        scene.complete(3, [1, 2, 3])
        second.stage(1)
        asyncio.run(play(scene, second))


def test_a_renamed_pipeline_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    url = f"sqlite:///{tmp_path}/ft.db"

    async def play(scene: Scene) -> None:
        async with triggerer(url, State()) as running:
            await running.nothing()
            renamed(scene, 1)
            await until(lambda: f"continues as {NEW}" in caplog.text)
            await running.nothing()
            assert caplog.text.count(NEW) == 1 and "did not answer" not in caplog.text

    with closing(open_store(url)) as store:
        scene = Scene(store)
        scene.stage(1)
        scene.complete(1)
        asyncio.run(play(scene))


def test_a_decision_log_that_is_away_ends_no_watch(tmp_path: Path) -> None:
    url, state = f"sqlite:///{tmp_path}/later/ft.db", State()
    (tmp_path / "later").write_text("a file where the folder should be")

    async def play() -> None:
        async with triggerer(url, state) as running:
            await running.nothing()
            (tmp_path / "later").unlink()
            (tmp_path / "later").mkdir(exist_ok=True)  # unless a look has made it
            with closing(open_store(url)) as store:
                scene = Scene(store)
                scene.stage(2)
                await until(lambda: kept(state) == [0])
                scene.complete(1)
                event, _ = await running.event()
                assert event["number"] == 1

    asyncio.run(play())


def test_it_is_what_an_asset_can_be_watched_with() -> None:
    trigger = ConfirmedTrigger(pipeline="orders", poll_interval=5)
    asset = Asset("orders-confirmed", watchers=[AssetWatcher(name="orders", trigger=trigger)])
    path, arguments = asset.watchers[0].trigger.serialize()  # type: ignore[union-attr]
    assert path == f"{ConfirmedTrigger.__module__}.{ConfirmedTrigger.__qualname__}"
    assert ConfirmedTrigger(**arguments).serialize() == (path, arguments)
    with pytest.raises(ConfigurationError) as caught:
        ConfirmedTrigger(pipeline="No Such")
    assert "'No Such'" in caught.value.headline


def test_two_assets_that_watch_alike_are_told(tmp_path: Path) -> None:
    from airflow.sdk.execution_time.context import AssetStateStoreAccessors

    trigger = ConfirmedTrigger(pipeline="orders")
    trigger.asset_state_store = AssetStateStoreAccessors([Asset("one"), Asset("two")])

    async def found() -> AsyncIterator[Any]:
        yield {"log": "one", "number": 0, "acknowledged": False}

    with raises(ConfigurationError, "arguments_conflict", pipeline="orders"):
        asyncio.run(anext(trigger.filter_shared_stream(found())))  # type: ignore[arg-type]
