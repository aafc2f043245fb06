"""Delivery beside a stage: the stage publishes between any two calls of a delivery, and the process dies at any."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from airflow_ft.protocol import overlap
from airflow_ft.protocol.errors import (
    CheckpointExpiredError,
    DeclinedError,
    FencedError,
    SinkUnavailableError,
    StateConflictError,
    StoreCorruptError,
    StoreUnavailableError,
    TransientError,
)
from airflow_ft.protocol.lease import Worker, new_epoch
from airflow_ft.protocol.model import Checkpoint, CheckpointingMode, RunKey, Segment, SparkPosition
from airflow_ft.protocol.overlap import Overlap
from airflow_ft.protocol.reasons import AbortReason
from airflow_ft.protocol.steps import prepare_step
from tests.density import stride
from tests.protocol.systems import NoArchive
from tests.protocol.test_every_crash_point import MIXES, finish, systems
from tests.protocol.world import LEASE_SECONDS, PIPELINE, RUN, Crash, Fault, World, crash
from tests.raising import raises
from tests.waiting import wait_for


class Archive(NoArchive):
    """Remembers whose files were deleted, and below which epochs."""

    def __init__(self) -> None:
        self.deleted: list[int] = []
        self.swept: list[int] = []
        self.has_backlog = False

    def delete(self, segment: Any) -> None:
        self.deleted.append(segment.number)

    def sweep(self, pipeline: str, keep: Any, below_epoch: int, must_stop: Any) -> bool:
        self.swept.append(below_epoch)
        return not (self.has_backlog and must_stop())


class Stage:
    """A stage under way: publishes numbers, and delivers beside that, with one epoch."""

    def __init__(self, world: World, epoch: int, run: RunKey, fault: Fault | None = None) -> None:
        self.world, self.epoch, self.run = world, epoch, run
        self.progress: list[int] = []
        context = world.context(fault=fault, run=run)
        self.archive = Archive()
        self.overlap = Overlap(
            context,
            epoch,
            world.delivery,
            world.config,
            lambda checkpoint: self.progress.append(checkpoint.number),
            self.archive,
        )
        self.seen = world.store.pipeline(PIPELINE).last_published  # what this attempt stands on
        self.numbers: list[int] = []

    def publish(self) -> None:
        store = self.world.store
        number = store.trigger(PIPELINE, self.epoch, self.run)
        rows = {"rows": 10, "copies": 10}
        segment = Segment(number, f"{number:064x}", f"file:///wal/{number}", rows, 100)
        store.publish(
            PIPELINE, self.epoch, number, self.seen, segment, SparkPosition(f"file:///{self.epoch}", number), {}
        )
        self.seen = number
        self.numbers.append(number)


@contextmanager
def staging(world: World, fault: Fault | None = None, try_number: int = 1) -> Iterator[Stage]:
    world.store.register(PIPELINE)
    world.store.enter_turn(PIPELINE, RUN, None)
    worker = Worker(f"{RUN}/step", try_number)
    with new_epoch(world.store, PIPELINE, worker, "stage", LEASE_SECONDS[RUN]) as (epoch, _):
        world.store.begin_stage(PIPELINE, epoch, RUN)
        stage = Stage(world, epoch, RUN, fault)
        yield stage
        world.store.end_stage(PIPELINE, epoch, RUN, None)


@pytest.fixture
def retaining_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that there are few calls to die at."""
    monkeypatch.setattr(overlap, "RETAINED_TOGETHER", 1)


@pytest.mark.slow
@pytest.mark.sampled
@pytest.mark.parametrize("max_rows", [0, 1000])
@pytest.mark.parametrize("mix", MIXES)
def test_checkpoints_published_between_two_calls_are_delivered(tmp_path: Path, mix: str, max_rows: int) -> None:
    at = list(MIXES).index(mix)  # beginning elsewhere in each mix
    while True:
        at += stride(3)
        world = World(tmp_path / f"{at}", max_rows=max_rows, systems=systems(mix))
        fault = Fault(at, "before", lambda: stage.publish())
        with staging(world, fault) as stage:
            stage.publish()
            stage.overlap.deliver()
            stage.overlap.deliver()
            delivered = list(stage.numbers)
            stage.publish()  # left to the tasks
        for system in world.systems.values():
            assert system.rows == delivered, fault.struck
        finish(world, 1)
        world.check_exactly_once(stage.numbers)
        if not fault.struck:
            break
    assert at > 20


@pytest.mark.slow
@pytest.mark.sampled
@pytest.mark.usefixtures("retaining_each")
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("mix", MIXES)
def test_a_death_at_any_call_is_made_good(tmp_path: Path, mix: str, when: str) -> None:
    at = list(MIXES).index(mix)  # beginning elsewhere in each mix
    while True:
        at += stride(3)
        world = World(tmp_path / f"{at}", systems=systems(mix))
        fault = Fault(at, when, crash)
        with suppress(Crash), staging(world, fault) as stage:
            stage.publish()
            stage.publish()
            stage.overlap.deliver()
        numbers = stage.numbers
        if not fault.struck:
            break
        with staging(world, try_number=2) as stage:  # the stage is tried again, and goes on where it had published
            stage.publish()
            stage.overlap.deliver()
        finish(world, 3)
        world.check_exactly_once(numbers + stage.numbers)
    assert at > 20


@pytest.mark.slow
@pytest.mark.sampled
@pytest.mark.usefixtures("retaining_each")
@pytest.mark.parametrize("mix", MIXES)
def test_a_stage_that_was_replaced_delivers_nothing_more(tmp_path: Path, mix: str) -> None:
    """I5: it sleeps at any call, another try stages and delivers everything, then it goes on."""
    at = list(MIXES).index(mix)  # beginning elsewhere in each mix
    while True:
        at += stride(3)
        world = World(tmp_path / f"{at}", systems=systems(mix))
        numbers: list[int] = []

        def successor(world: World = world, numbers: list[int] = numbers) -> None:
            with staging(world, try_number=2) as other:
                other.publish()
                other.overlap.deliver()
            finish(world, 3)
            numbers += other.numbers

        fault = Fault(at, "before", successor)
        with suppress(TransientError), staging(world, fault) as stage:
            stage.publish()
            stage.overlap.deliver()
        if not fault.struck:
            break
        finish(world, 9)
        world.check_exactly_once(stage.numbers + numbers)
    assert at > 10


@pytest.mark.slow
def test_a_long_stage_keeps_few_delivered_checkpoints_open(tmp_path: Path) -> None:
    """Else each checkpoint would cost more than the one before it."""
    world = World(tmp_path, max_rows=1)
    opened = []
    with staging(world) as stage:
        for _ in range(3 * overlap.RETAINED_TOGETHER + 1):
            stage.publish()
            stage.overlap.deliver()
            opened.append(len(world.store.open_checkpoints(PIPELINE)))
    assert max(opened) < 2 * overlap.RETAINED_TOGETHER
    assert stage.progress == [stage.numbers[overlap.RETAINED_TOGETHER * n - 1] for n in (1, 2, 3)], "sources follow"
    kept = world.config.num_retained
    assert stage.archive.deleted == stage.numbers[: 3 * overlap.RETAINED_TOGETHER - kept], "the log does not grow"
    finish(world, 3)
    world.check_exactly_once(stage.numbers)


def test_refused_rows_rewind_the_pipeline_and_end_the_stage(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.systems["db"].declines_in_commit = True
    with pytest.raises(StateConflictError), staging(world) as stage:
        stage.publish()
        with pytest.raises(DeclinedError):
            stage.overlap.deliver()
        stage.publish()
    assert world.store.checkpoint(PIPELINE, 1).reason is AbortReason.DECLINED
    assert [system.rows for system in world.systems.values()] == [[], []]
    world.systems["db"].declines_in_commit = False
    with staging(world, try_number=2) as again:
        again.publish()
        again.overlap.deliver()
    finish(world, 3)
    world.check_exactly_once(again.numbers)


def test_rows_of_a_superseded_plan_are_renumbered_before_a_stage(tmp_path: Path) -> None:
    """A plan that gives way while the stage goes on would publish a number between two of the stage's."""
    world = World(tmp_path)
    numbers = world.stage(1)
    prepare_step(world.context(), world.delivery, world.config, "db")
    world.delivery = world.deliver_into({"rows": "db", "copies": "log"}, table="other")
    with new_epoch(world.store, PIPELINE, Worker(f"{RUN}/step", 4), "stage", 3600.0) as (epoch, _):
        stage = Stage(world, epoch, RUN)
        stage.overlap.settle_plans()
        world.store.begin_stage(PIPELINE, epoch, RUN)
        stage.seen = world.store.pipeline(PIPELINE).last_published
        stage.publish()
        stage.overlap.deliver()
        stage.publish()
        stage.overlap.deliver()
        world.store.end_stage(PIPELINE, epoch, RUN, None)
    assert world.store.checkpoint(PIPELINE, numbers[0]).reason is AbortReason.SUPERSEDED
    finish(world, 5)
    world.check_exactly_once(numbers + stage.numbers)


def test_a_stream_finalises_often_and_prunes_now_and_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overlap, "RETAINED_TOGETHER", 2)
    world = World(tmp_path, max_rows=0, systems=systems(next(iter(MIXES))))
    with staging(world) as stage:
        context = world.context(run=RUN)
        archive = Archive()
        rest = (world.delivery, world.config, lambda checkpoint: stage.progress.append(checkpoint.number), archive)
        beside = Overlap(context, stage.epoch, *rest, streaming=True)
        for _ in range(10):
            stage.publish()
            beside.deliver()
        assert stage.progress == [2, 4, 6, 8, 10], "so the open ones stay few"
        assert archive.deleted == []
        monkeypatch.setattr(overlap, "PRUNED_EACH", 0.0)
        for _ in range(2):
            stage.publish()
            beside.deliver()
        pruned = len(archive.deleted)
        assert pruned >= 12 - world.config.num_retained - 1
        monkeypatch.setattr(overlap, "PRUNED_EACH", 60.0)
        monkeypatch.setattr(overlap, "PRUNED_BYTES", 250)
        for _ in range(4):  # 100 bytes each
            stage.publish()
            beside.deliver()
        assert len(archive.deleted) == pruned + 4


def test_a_stream_soon_tells_its_sources_of_a_single_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever watches the lag of a consumer group does not wait until so many more have come."""
    monkeypatch.setattr(overlap, "FOLLOWED_EACH", 0.0)
    monkeypatch.setattr(overlap, "PRUNED_EACH", 0.0)
    world = World(tmp_path, systems=systems(next(iter(MIXES))))
    seen_requests: list[int] = []
    tries = iter([SinkUnavailableError("the source's cluster is away."), None])

    def progress(checkpoint: Checkpoint) -> None:
        if (error := next(tries)) is not None:
            raise error
        seen_requests.append(checkpoint.number)

    with staging(world) as stage:
        context = world.context(run=RUN)
        rest = (world.delivery, world.config, progress, NoArchive())
        with Overlap(context, stage.epoch, *rest, interval=0.01, streaming=True) as beside:
            stage.publish()
            beside.wake()
            wait_for(lambda: seen_requests, 30.0, "the source hears of the only checkpoint")
            beside.check()
    assert seen_requests == stage.numbers


def beside(world: World, stage: Stage, **more: Any) -> Overlap:
    """The delivery of a stream."""
    rest = (world.delivery, world.config, lambda checkpoint: stage.progress.append(checkpoint.number), stage.archive)
    return Overlap(world.context(run=RUN), stage.epoch, *rest, streaming=True, **more)


def test_a_stream_that_restarts_often_prunes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its drivers never deliver RETAINED_TOGETHER checkpoints."""
    world = World(tmp_path, systems=systems(next(iter(MIXES))))
    for driver in (1, 2, 3):
        with staging(world, try_number=driver) as stage:
            stream = beside(world, stage)
            for _ in range(2):
                stage.publish()
                stream._look()
            assert stage.archive.swept == [stage.epoch], "once, at the first look"
            if driver == 3:
                kept = world.config.num_retained
                assert stage.archive.deleted == list(range(1, 5 - kept + 1)), "at the first look five were delivered"
                monkeypatch.setattr(overlap, "PRUNED_EACH", 0.0)
                stream._look()
                assert stage.archive.deleted == list(range(1, 6 - kept + 1))
                stream._look()
                assert len(stage.archive.swept) == 2, "nothing was delivered since"


@pytest.mark.parametrize("ends", ["nothing", "time", "stage"])
def test_a_sweep_of_a_large_backlog_ends_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: str) -> None:
    """Else the checkpoint that waits for it expires. It continues later, although nothing was delivered since."""
    monkeypatch.setattr(overlap, "PRUNED_EACH", 0.0)
    world = World(tmp_path, systems=systems(next(iter(MIXES))))
    with staging(world) as stage:
        stage.archive.has_backlog = True
        stream = beside(world, stage)
        if ends == "time":
            stream._longest_retention = 0.0
        elif ends == "stage":
            stream._stop.set()
        for _ in range(3):
            stream._look()
    assert len(stage.archive.swept) == (1 if ends == "nothing" else 3)


@pytest.mark.slow
def test_sources_hear_what_is_confirmed_while_a_sink_is_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The consumer group would stand still for as long, although rows behind it are delivered."""
    world = World(tmp_path, max_rows=1)
    with staging(world) as stage:
        stream = beside(world, stage, interval=0.01)
        deliver = stream._coordinator.deliver

        def away_from_the_second_on(number: int) -> Checkpoint:
            if number > 1:
                raise SinkUnavailableError("nobody answers.")
            return deliver(number)

        monkeypatch.setattr(stream._coordinator, "deliver", away_from_the_second_on)
        stage.publish()
        stage.publish()
        with stream:
            wait_for(lambda: stage.progress, 30.0, "the source hears of the first checkpoint")
            stream.check()
    assert stage.progress == [1]


@pytest.mark.parametrize(("timeout", "longest"), [(20, 5.0), (600, 30.0)])
def test_an_absent_sink_is_retried_before_new_checkpoints_expire(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, timeout: int, longest: float
) -> None:
    """A pause that is longer than the time-out would let each checkpoint expire, though the sink is back."""
    world = World(tmp_path)
    world.config = replace(world.config, timeout=timedelta(seconds=timeout))
    world.systems["db"].away = True
    pauses: list[float] = []
    with staging(world) as stage:
        stream = beside(world, stage, interval=0.01)

        def wait(pause: float) -> None:
            pauses.append(pause)
            if len(pauses) == 15:
                stream._stop.set()

        monkeypatch.setattr(stream._stop, "wait", wait)
        stage.publish()
        with stream:
            wait_for(lambda: len(pauses) == 15, 30.0, "it was tried so often")
            stream.check()
    assert max(pauses) == pauses[-1] == longest


def test_what_a_stream_left_does_not_expire_at_its_next_start(tmp_path: Path) -> None:
    world = World(tmp_path, max_rows=1)
    numbers = world.stage(2)
    hour = timedelta(hours=1) // timedelta(microseconds=1)
    with world.store._database.write() as tx:  # type: ignore[attr-defined]
        tx.change("UPDATE checkpoint SET triggered_at = triggered_at - ?", hour)
    with staging(world) as stage:
        beside(world, stage).deliver()
    world.check_exactly_once(numbers)


def test_at_least_once_delivers_to_others_while_a_sink_is_away(tmp_path: Path) -> None:
    world = World(tmp_path, max_rows=1)
    world.delivery = world.deliver_into({"rows": "db", "copies": "log"}, mode=CheckpointingMode.AT_LEAST_ONCE)
    world.systems["db"].away = True
    delivered = world.systems["log"].rows
    with staging(world) as stage, beside(world, stage, interval=60.0) as stream:
        for number in (1, 2, 3):
            stage.publish()
            stream.wake()
            wait_for(lambda number=number: delivered == list(range(1, number + 1)), 20.0, "the log has its rows")
        stream.check()
        world.systems["db"].away = False
        stream.wake()
        wait_for(lambda: world.systems["db"].rows == [1, 2, 3], 20.0, "the other sink has them, too")


class Panic(BaseException):
    """What pyo3 raises for a panic of a library in Rust (obstore, hdfs_native) is no Exception either."""


@pytest.mark.parametrize(
    ("met", "raised", "code"),
    [
        (StoreUnavailableError("nobody answers."), CheckpointExpiredError, "checkpoint_expired"),
        (StoreCorruptError("a row is not what was written"), StoreCorruptError, "store_corrupt"),
        (Panic("index out of bounds"), TransientError, "delivery_crashed"),
    ],
)
def test_whatever_ends_the_delivery_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, met: BaseException, raised: type[Exception], code: str
) -> None:
    """Also what the counting of a failure meets: the stream would go on, and deliver nothing."""
    world = World(tmp_path)
    world.config = replace(world.config, tolerable_failures=3)

    def expires() -> None:
        raise CheckpointExpiredError("it was not decided in time.")

    def meets(_: str) -> int:
        raise met

    with staging(world) as stage:
        stream = beside(world, stage, interval=0.01)
        monkeypatch.setattr(stream._coordinator, "expire", expires)
        monkeypatch.setattr(stream._context.store, "failed_in_a_row", meets)
        stage.publish()
        with stream:
            wait_for(lambda: stream._error, 30.0, "the delivery has ended")
            with raises(raised, code) as caught:
                stream.check()
    if isinstance(met, Panic):
        assert caught.error and "index out of bounds" in caught.error.headline
        assert caught.error.fields == {"cause": "Panic"}


def test_sources_hear_of_a_checkpoint_despite_a_failed_summary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A decision log that is away for that moment: else they would wait for the next checkpoint, which may be far."""
    monkeypatch.setattr(overlap, "FOLLOWED_EACH", 0.0)
    world = World(tmp_path)
    away = iter([StoreUnavailableError("nobody answers.")])

    def beat(_: Checkpoint) -> None:
        for error in away:
            raise error

    with staging(world) as stage:
        stream = beside(world, stage, interval=0.01)
        monkeypatch.setattr(stream._heartbeat, "beat", beat)
        stage.publish()
        with stream:
            wait_for(lambda: stage.progress, 20.0, "the source hears of the only checkpoint")
            stream.check()
    assert stage.progress == stage.numbers


def test_the_sources_hear_of_what_was_confirmed_before_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process died before it told them, and nothing new comes: the group's lag would stay for ever."""
    monkeypatch.setattr(overlap, "FOLLOWED_EACH", 0.0)
    world = World(tmp_path)
    with staging(world) as stage:
        stage.publish()
        beside(world, stage).deliver()
        assert world.store.checkpoint(PIPELINE, 1).is_confirmed
        assert stage.progress == []
    with staging(world, try_number=2) as stage, beside(world, stage, interval=0.01) as stream:
        wait_for(lambda: stage.progress, 20.0, "the source hears of it")
        stream.check()
    assert stage.progress == [1]


def test_a_delivery_fenced_by_no_newer_owner_is_retried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when somebody else takes Kafka's transactional id again and again: no lease tells of it, so the stream would
    go on, and deliver nothing.
    """
    world = World(tmp_path)
    with staging(world) as stage:
        stream = beside(world, stage, interval=0.01)
        deliver = stream._coordinator.deliver
        fenced = iter([FencedError("another process keeps taking the transactional id."), None])

        def taken_away_once(number: int) -> Checkpoint:
            for error in fenced:
                if error is not None:
                    raise error
            return deliver(number)

        monkeypatch.setattr(stream._coordinator, "deliver", taken_away_once)
        monkeypatch.setattr(stream._context.store, "pipeline", away_once(stream._context.store.pipeline))
        stage.publish()
        with stream:
            wait_for(lambda: world.systems["log"].rows == [1], 20.0, "it is delivered all the same")
            stream.check()


def away_once(call: Callable[[str], Any]) -> Callable[[str], Any]:
    """The same, but the first time nobody answers."""
    away = iter([StoreUnavailableError("nobody answers.")])

    def answer(name: str) -> Any:
        for error in away:
            raise error
        return call(name)

    return answer


def test_a_delivery_that_is_fenced_by_a_newer_owner_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stage hears of it by its lease."""
    world = World(tmp_path)
    with suppress(FencedError), staging(world) as stage:
        stream = beside(world, stage, interval=0.01)

        def replaced() -> None:
            with new_epoch(world.store, PIPELINE, Worker(f"{RUN}/step", 2), "another try", 0.03):
                raise FencedError("a newer owner has the head.")

        monkeypatch.setattr(stream, "deliver", replaced)
        with stream:
            wait_for(lambda: not stream._thread.is_alive(), 20.0, "it has ended")
            stream.check()
