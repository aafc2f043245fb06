"""A run that goes on for days: what a checkpoint costs, and what is kept of it, does not grow with those before it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from airflow_ft.pipeline.checkpoints import Gate
from airflow_ft.protocol import numbers, overlap, retention
from airflow_ft.protocol.config import CheckpointConfig
from airflow_ft.protocol.errors import SinkUnavailableError
from airflow_ft.protocol.lease import Worker, new_epoch
from airflow_ft.protocol.model import Checkpoint, Segment, SparkPosition
from airflow_ft.protocol.overlap import Overlap
from airflow_ft.protocol.steps import confirm_step
from airflow_ft.wal.retention import WalArchive
from tests.protocol.world import PIPELINE, RUN, World

pytestmark = pytest.mark.slow

KEPT_EVENTS = 100


class Counted:
    """A database or a transaction of one, whose statements and rows are counted."""

    def __init__(self, target: Any, counts: dict[str, int]) -> None:
        self._target, self._counts = target, counts

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target, name)

    def _rows(self, name: str, *given: Any) -> Any:
        found = getattr(self._target, name)(*given)
        self._counts["statements"] += 1
        self._counts["rows"] += len(found)
        return found

    def read(self, *given: Any) -> Any:
        return self._rows("read", *given)

    def rows(self, *given: Any) -> Any:
        return self._rows("rows", *given)

    def change(self, *given: Any) -> int:
        self._counts["statements"] += 1
        changed: int = self._target.change(*given)
        self._counts["rows"] += changed
        return changed

    @contextmanager
    def write(self) -> Iterator[Any]:
        with self._target.write() as tx:
            yield Counted(tx, self._counts)


class Stream:
    """One run with one epoch: it publishes segments that have folders, and delivers them beside that."""

    def __init__(self, world: World, epoch: int, kept_events: int) -> None:
        self.world, self.epoch = world, epoch
        self.counts = {"statements": 0, "rows": 0}
        store: Any = world.store
        store._database = Counted(store._database, self.counts)
        self.root = world.folder / "wal"
        self.attempt = self.root / PIPELINE / f"{epoch}-1"
        self.progress: list[int] = []
        self.accepts_progress = True
        self.config = replace(world.config, num_retained_events=kept_events)
        self.archive = WalArchive(str(self.root))
        self.overlap = Overlap(world.context(), epoch, world.delivery, self.config, self._progress, self.archive)

    def _progress(self, checkpoint: Checkpoint) -> None:
        if not self.accepts_progress:
            raise SinkUnavailableError("the source's cluster is away.")
        self.progress.append(checkpoint.number)

    def publish(self) -> int:
        store = self.world.store
        number = store.trigger(PIPELINE, self.epoch, RUN)
        folder = self.attempt / str(number)
        folder.mkdir(parents=True)
        (folder / "part-00000.parquet").touch()
        segment = Segment(number, f"{number:064x}", folder.as_uri(), {"rows": 10, "copies": 10}, 100)
        position = SparkPosition((self.root / "spark").as_uri(), number)
        before = store.pipeline(PIPELINE).last_published
        store.publish(PIPELINE, self.epoch, number, before, segment, position, {})
        return number

    def taken(self) -> tuple[int, int]:
        """Statements and rows since it was last asked."""
        found = self.counts["statements"], self.counts["rows"]
        self.counts.update(statements=0, rows=0)
        return found

    def kept(self) -> dict[str, int]:
        """What there is now of all that it has published."""
        store: Any = self.world.store
        [events] = store._database.read("SELECT count(*) AS count FROM event WHERE number > 0")
        return {
            "open": len(store.open_checkpoints(PIPELINE)),
            "folders": len(list(self.attempt.iterdir())),
            "referenced": len(store.referenced_locations(PIPELINE)),
            "markers": len(self.world.systems["db"].markers),
            "events": events["count"],
        }


@contextmanager
def streaming(folder: Path, max_rows: int = 0, kept_events: int = KEPT_EVENTS) -> Iterator[Stream]:
    world = World(folder, max_rows=max_rows)
    world.store.register(PIPELINE)
    world.store.enter_turn(PIPELINE, RUN, None)
    with new_epoch(world.store, PIPELINE, Worker(f"{RUN}/step", 1), "stage", 3600.0) as (epoch, _):
        world.store.begin_stage(PIPELINE, epoch, RUN)
        stream = Stream(world, epoch, kept_events)
        yield stream
        stream.overlap._coordinator.close()
        world.store.end_stage(PIPELINE, epoch, RUN, None)


def test_each_checkpoint_costs_what_the_first_ones_did(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    window, windows = 2 * overlap.RETAINED_TOGETHER, 3
    monkeypatch.setattr(numbers, "MOST_LISTED", window)
    costs, kept = [], []
    with streaming(tmp_path, kept_events=window) as stream:
        for _ in range(windows):
            stream.taken()
            for _ in range(window):
                stream.publish()
                stream.overlap.deliver()
            costs.append(stream.taken())
            kept.append(stream.kept())
    stream.taken()
    confirmation = confirm_step(stream.world.context(), stream.config, stream.archive)
    _, rows = stream.taken()
    assert costs[1:] == [costs[1]] * (windows - 1)  # the first window has nothing to prune and to forget at its start
    assert kept == [kept[0]] * windows
    assert kept[0]["folders"] <= overlap.RETAINED_TOGETHER + stream.config.num_retained
    assert kept[0]["markers"] <= 2 * overlap.RETAINED_TOGETHER
    summary = confirmation.confirmed.to_json()
    assert summary["numbers"] is None and (summary["count"], summary["first"], summary["last"]) == (
        windows * window,
        1,
        windows * window,
    )
    assert summary["rows"] == 20 * windows * window
    assert rows < 2 * windows * window, "read once, in parts"
    assert len(list(stream.attempt.iterdir())) == stream.config.num_retained
    stream.world.check_exactly_once(list(range(1, windows * window + 1)))


def test_pruning_keeps_up_with_deliveries_of_many_checkpoints(tmp_path: Path) -> None:
    """A stage that is faster than its sinks: each delivery has fifty numbers, and pruning has to follow."""
    kept = []
    with streaming(tmp_path, max_rows=1000) as stream:
        for _ in range(20):
            for _ in range(50):
                stream.publish()
            stream.overlap.deliver()
            kept.append(stream.kept())
    assert max(each["folders"] for each in kept) <= 100
    assert max(each["open"] for each in kept) <= 2
    assert max(each["markers"] for each in kept) <= 2 * overlap.RETAINED_TOGETHER
    assert kept[-1]["events"] == kept[-5]["events"]


def test_a_source_that_cannot_be_told_keeps_one_checkpoint_open(tmp_path: Path) -> None:
    """R19: the newest one says it all, so those before it neither stay open nor keep their place on disk."""
    with streaming(tmp_path) as stream:
        stream.accepts_progress = False
        for _ in range(5 * overlap.RETAINED_TOGETHER):
            stream.publish()
            stream.overlap.deliver()
        kept = stream.kept()
        assert not stream.progress and kept["open"] == 1
        assert kept["folders"] <= overlap.RETAINED_TOGETHER
        stream.accepts_progress = True
        retention.finalise(stream.world.store, PIPELINE, stream._progress)
        assert stream.progress == [5 * overlap.RETAINED_TOGETHER] and stream.kept()["open"] == 0


def test_what_waits_is_not_read_once_for_each_of_it(tmp_path: Path) -> None:
    costs = []
    for waiting in (25, 50, 100):
        folder = tmp_path / f"{waiting}"
        folder.mkdir()
        with streaming(folder) as stream:
            stream.publish()
            stream.overlap.deliver()
            stream.world.systems["db"].away = True
            for _ in range(waiting):
                stream.publish()
            with pytest.raises(SinkUnavailableError):
                stream.overlap.deliver()
            stream.taken()
            store = stream.world.store
            assert Gate(number=1).is_open(store, PIPELINE) and not Gate(number=2).is_open(store, PIPELINE)
            assert len(stream.world.context().unsettled()) == 1
            assert store.undelivered(PIPELINE) == waiting and store.last_published(PIPELINE, RUN) == 1 + waiting
            assert stream.taken()[1] < 30, "a look"
            stream.world.systems["db"].away = False
            stream.overlap.deliver()
            costs.append(stream.taken()[1] / waiting)
        stream.world.check_exactly_once(list(range(1, waiting + 2)))
    assert all(later <= 1.2 * one for one, later in pairwise(costs)), costs


def test_the_files_of_a_stream_that_ended_go_with_their_folders(tmp_path: Path) -> None:
    with streaming(tmp_path) as stream:
        for _ in range(30):
            stream.publish()
            stream.overlap.deliver()
    world = stream.world
    confirm_step(world.context(), replace(stream.config, num_retained=1), stream.archive)
    assert [folder.name for folder in stream.attempt.iterdir()] == ["30"]
    with new_epoch(world.store, PIPELINE, Worker("later", 1), "stage", 3600.0) as (epoch, _):
        world.store.begin_stage(PIPELINE, epoch, RUN)
        later = Stream(world, epoch, KEPT_EVENTS)
        for _ in range(2):
            later.publish()
            later.overlap.deliver()
        later.overlap._coordinator.close()
        world.store.end_stage(PIPELINE, epoch, RUN, None)
    confirm_step(world.context(), CheckpointConfig(num_retained=1), stream.archive)
    assert not stream.attempt.exists() and [folder.name for folder in later.attempt.iterdir()] == ["32"]
