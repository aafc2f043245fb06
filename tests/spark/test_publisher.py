"""Publication comes after Spark's commit, once, in order, and ends the attempt when it is refused."""

import errno
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_ft.protocol.config import CheckpointConfig
from airflow_ft.protocol.errors import (
    CheckpointExpiredError,
    DataLossError,
    FencedError,
    JobError,
    PipelineHaltedError,
    SealError,
    StageError,
    StateConflictError,
    StoreUnavailableError,
)
from airflow_ft.protocol.lease import Worker, take_epoch
from airflow_ft.protocol.model import CheckpointState, RunKey, Segment, SparkPosition
from airflow_ft.protocol.numbers import Numbers
from airflow_ft.protocol.pipelines import HaltReason
from airflow_ft.protocol.reasons import AbortReason
from airflow_ft.spark.driver import moments
from airflow_ft.spark.driver import publisher as publishing
from airflow_ft.spark.driver.moments import Moment
from airflow_ft.spark.driver.publisher import Publisher
from airflow_ft.spark.request import StageRequest
from airflow_ft.store import open_store
from airflow_ft.store.decision_log import DecisionLog
from tests.raising import raises

RUN = RunKey("d", "r")


class Rounds:
    """The publisher's thread reads the clock each time it looks what to do."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._looked = threading.Semaphore(0)
        monkeypatch.setattr(publishing, "time", SimpleNamespace(monotonic=self._monotonic, sleep=time.sleep))

    def _monotonic(self) -> float:
        if threading.current_thread().name == "publisher":
            self._looked.release()
        return time.monotonic()

    def await_some(self) -> None:
        """Wait until it has looked three more times. After a publication it stops looking."""
        while self._looked.acquire(blocking=False):
            pass
        for _ in range(3):
            assert self._looked.acquire(timeout=10)


class World:
    """A store, and what Spark has committed."""

    def __init__(self, folder: Path) -> None:
        self.store: DecisionLog = open_store(f"sqlite:///{folder / 'ft.db'}")
        self.store.register("p")
        self.commits: set[int] = set()
        self.stopped: list[BaseException] = []
        self.durable = 0

    def publisher(
        self,
        timeout: float = 60.0,
        durable: Exception | None = None,
        committed: Callable[[int], bool] | None = None,
        remote: bool = False,
        ahead: Callable[[], None] | None = None,
        check: Callable[[], None] = lambda: None,
    ) -> Publisher:
        """`durable`: what comes of making Spark's location durable."""
        epoch = take_epoch(self.store, "p", Worker().lease(), "test", lease_seconds=0.0)
        before = self.store.pipeline("p")
        attempt = self.store.begin_stage("p", epoch, RUN)
        request = StageRequest(
            pipeline="p",
            run=RUN,
            epoch=epoch,
            attempt=attempt,
            last_published=before.last_published,
            store_url="postgresql://u:hunter2@host/ft",
            wal_root="/wal",
            job="jobs.p",
            sinks=("s",),
            checkpointing=CheckpointConfig(timeout=timedelta(seconds=timeout)),
        )

        def make_durable() -> None:
            self.durable += 1
            if durable is not None:
                raise durable

        return Publisher(
            self.store,
            request,
            committed=committed or self.commits.__contains__,
            durable=make_durable,
            ahead=ahead,
            check=check,
            position=lambda batch: SparkPosition("file:///loc", batch),
            stop=self.stopped.append,
            remote=remote,
        )

    def states(self) -> dict[int, CheckpointState]:
        return {c.number: c.state for c in self.store.checkpoints("p")}


@pytest.fixture
def rounds(monkeypatch: pytest.MonkeyPatch) -> Rounds:
    return Rounds(monkeypatch)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.store.close()


def require(happened: bool) -> None:
    assert happened


def _segment(number: int) -> Segment:
    return Segment(number, "d" * 64, "file:///wal/p/1-1/0", {"s": 1}, 10)


def _sealing(number: int) -> Callable[[], Segment]:
    return lambda: _segment(number)


def test_nothing_is_published_before_spark_has_committed(world: World, rounds: Rounds) -> None:
    publisher = world.publisher()
    assert publisher.begin(0) == 1
    publisher.written(_sealing(1), {"k": 1})
    rounds.await_some()
    assert world.states() == {1: CheckpointState.TRIGGERED} and world.durable == 0
    world.commits.add(0)
    publisher.settle()
    assert world.states() == {1: CheckpointState.STAGED} and world.durable == 1
    checkpoint = world.store.checkpoint("p", 1)
    assert checkpoint.position == SparkPosition("file:///loc", 0) and checkpoint.positions == {"k": 1}
    publisher.close()
    [staged] = [event for event in world.store.events("p", 1) if event.kind == "STAGED"]
    assert list(staged.detail["parts"]) == ["compute", "seal"] and min(staged.detail["parts"].values()) >= 0
    assert publisher.last_batch == 0 and publisher.counts.result(None).rows == {"s": 1}
    assert publisher.counts.numbers == Numbers.of([1])


def test_a_server_is_asked_for_the_commit_now_and_then(world: World) -> None:
    looks: list[float] = []

    def committed(_: int) -> bool:
        looks.append(time.monotonic())
        return looks[-1] - looks[0] > 0.8

    publisher = world.publisher(committed=committed, remote=True)
    publisher.begin(0)
    publisher.written(_sealing(1), {})
    publisher.settle()
    publisher.close()
    assert 3 <= len(looks) <= 12 and looks[1] - looks[0] < 0.8, "soon at first, then less often"


def test_a_batch_waits_until_the_one_before_is_published(world: World) -> None:
    publisher = world.publisher()
    for batch in range(3):
        assert publisher.begin(batch) == batch + 1
        assert all(state is CheckpointState.STAGED for n, state in world.states().items() if n <= batch)
        publisher.written(_sealing(batch + 1), {})
        world.commits.add(batch)
    publisher.settle()
    publisher.close()
    assert set(world.states().values()) == {CheckpointState.STAGED} and world.store.pipeline("p").last_published == 3


def test_a_fenced_publication_ends_the_attempt(world: World) -> None:
    publisher = world.publisher()
    publisher.begin(0)
    take_epoch(world.store, "p", Worker().lease(), "successor", lease_seconds=0.0)
    publisher.written(_sealing(1), {})
    world.commits.add(0)
    with pytest.raises(FencedError):
        publisher.settle()
    publisher.close()
    assert isinstance(publisher.failure, FencedError) and world.stopped == [publisher.failure]
    assert world.states() == {1: CheckpointState.ABORTED} and publisher.counts.numbers == Numbers()
    with pytest.raises(FencedError):
        publisher.begin(1)


def test_a_segment_is_sealed_while_spark_commits(world: World, rounds: Rounds) -> None:
    publisher, sealing, sealed = world.publisher(), threading.Event(), threading.Event()

    def seal() -> Segment:
        sealing.set()
        assert sealed.wait(30)
        return _segment(1)

    publisher.begin(0)
    publisher.written(seal, {})
    assert sealing.wait(30)
    world.commits.add(0)
    rounds.await_some()
    assert world.states() == {1: CheckpointState.TRIGGERED} and world.durable == 0
    sealed.set()
    publisher.settle()
    assert world.states() == {1: CheckpointState.STAGED}
    publisher.close()


@pytest.mark.parametrize("committed", [True, False])
def test_a_segment_that_cannot_be_sealed_is_never_published(world: World, committed: bool) -> None:
    publisher = world.publisher()
    publisher.begin(0)
    if committed:
        world.commits.add(0)

    def seal() -> Segment:
        raise JobError("text that is not UTF-8", code="value_unfit")

    publisher.written(seal, {})
    with raises(JobError, "value_unfit"):
        publisher.settle()
    publisher.close()
    (checkpoint,) = world.store.checkpoints("p")
    assert checkpoint.state is CheckpointState.ABORTED
    assert checkpoint.reason is AbortReason.JOB_FAILED, "its rows are wrong, and not the disk"
    assert world.store.pipeline("p").last_published == 0 and len(world.stopped) == 1


def test_what_is_not_staged_in_time_expires(world: World) -> None:
    publisher = world.publisher(timeout=1.0)
    publisher.begin(0)
    with raises(CheckpointExpiredError, "checkpoint_expired", checkpoint=1, timeout=1.0):
        publisher.settle()
    with pytest.raises(CheckpointExpiredError):
        publisher.written(_sealing(1), {})
    publisher.close()
    checkpoint = world.store.checkpoint("p", 1)
    assert checkpoint.reason is AbortReason.EXPIRED and checkpoint.message == "not staged within 1 s"


def test_a_batch_whose_job_raised_is_aborted_at_once(world: World) -> None:
    publisher = world.publisher()
    publisher.begin(0)
    publisher.close(JobError("job jobs.p raised KeyError: 'hunter2'", pipeline="p"))
    checkpoint = world.store.checkpoint("p", 1)
    assert checkpoint.reason is AbortReason.JOB_FAILED
    assert checkpoint.message == "job jobs.p raised KeyError: '***'", "what happened, without secrets"
    assert world.store.pipeline("p").last_published == 0


def test_a_batch_that_spark_failed_on_is_aborted_at_once(world: World) -> None:
    publisher = world.publisher()
    publisher.begin(0)
    publisher.close(StageError("the Spark query failed: no space left"))
    assert world.store.checkpoint("p", 1).reason is AbortReason.STAGE_FAILED


@pytest.mark.parametrize("sealed", [True, False])
def test_a_batch_is_not_published_if_a_source_has_lost_records(world: World, sealed: bool) -> None:
    may_end = threading.Event()

    def seal() -> Segment:
        require(sealed or may_end.wait(10))
        return _segment(1)

    def check() -> None:
        raise DataLossError("topic orders was recreated")

    publisher = world.publisher(check=check)
    publisher.begin(0)
    world.commits.add(0)
    publisher.written(seal, {})
    with pytest.raises(DataLossError):
        publisher.settle()
    publisher.close(publisher.failure)  # type: ignore[arg-type]
    may_end.set()
    assert world.store.checkpoint("p", 1).reason is AbortReason.DATA_LOSS
    assert world.store.pipeline("p").last_published == 0


def test_sources_are_checked_while_spark_commits(world: World, rounds: Rounds) -> None:
    """Not before the rows are written: until then they are being read. A batch is not published without the check."""
    checked, may_end = threading.Event(), threading.Event()

    def check() -> None:
        checked.set()
        require(may_end.wait(10))

    publisher = world.publisher(check=check)
    publisher.begin(0)
    rounds.await_some()
    assert not checked.is_set(), "its rows are still being read"
    publisher.written(_sealing(1), {})
    assert checked.wait(10), "before Spark has committed"
    world.commits.add(0)
    assert not publisher.settled(0.2) and world.states() == {1: CheckpointState.TRIGGERED}, "the check has not ended"
    may_end.set()
    publisher.settle()
    assert world.states() == {1: CheckpointState.STAGED}
    publisher.close()


@pytest.mark.parametrize("where", ["seal", "location", "ahead"])
def test_what_the_disk_does_not_take_is_not_sealed(world: World, where: str) -> None:
    full = OSError(errno.ENOSPC, "No space left on device")

    def fail() -> None:
        raise full

    def seal() -> Segment:
        if where == "seal":
            fail()
        return _segment(1)

    publisher = world.publisher(durable=full if where == "location" else None, ahead=fail if where == "ahead" else None)

    publisher.begin(0)
    world.commits.add(0)
    publisher.written(seal, {})
    with raises(SealError, "seal_failed", checkpoint=1):
        publisher.settle()
    publisher.close()
    checkpoint = world.store.checkpoint("p", 1)
    assert checkpoint.reason is AbortReason.SEAL_FAILED and "No space left" in checkpoint.message
    assert world.store.pipeline("p").last_published == 0


def _syncing_late(world: World) -> tuple[Publisher, threading.Event]:
    """Spark has committed the batch, and its sync ahead ends when the event is set."""
    may_end = threading.Event()
    publisher = world.publisher(ahead=lambda: require(may_end.wait(10)))
    publisher.begin(0)
    world.commits.add(0)
    publisher.written(_sealing(1), {})
    return publisher, may_end


def test_a_batch_is_not_published_before_its_logs_are_durable(world: World, rounds: Rounds) -> None:
    """Spark logs a batch before it is computed. That part is made durable meanwhile, and may take longer."""
    publisher, may_end = _syncing_late(world)
    rounds.await_some()
    assert world.states() == {1: CheckpointState.TRIGGERED} and world.durable == 0
    may_end.set()
    publisher.settle()
    assert world.states() == {1: CheckpointState.STAGED}
    publisher.close()


def test_a_committed_batch_is_published_when_its_sync_is_late(world: World, rounds: Rounds) -> None:
    """The query fails, and is closed, while the sync ahead of a batch that Spark has committed is under way."""
    publisher, may_end = _syncing_late(world)
    closing = threading.Thread(target=publisher.close, args=(StageError("the next batch failed."),))
    closing.start()
    rounds.await_some()
    may_end.set()
    closing.join(10)
    assert world.states() == {1: CheckpointState.STAGED}


def test_a_disk_that_hangs_ahead_does_not_stop_the_clock(world: World) -> None:
    may_end = threading.Event()
    publisher = world.publisher(timeout=1.0, ahead=lambda: require(may_end.wait(10)))
    publisher.begin(0)
    world.commits.add(0)
    publisher.written(_sealing(1), {})
    with pytest.raises(CheckpointExpiredError):
        publisher.settle()
    may_end.set()
    publisher.close()
    assert world.store.checkpoint("p", 1).reason is AbortReason.EXPIRED


def test_a_pipeline_that_is_halted_meanwhile_gets_nothing_more(world: World) -> None:
    publisher = world.publisher()
    publisher.begin(0)
    world.store.halt("p", HaltReason.TOKEN_LOST, "it is gone")
    publisher.written(_sealing(1), {})
    world.commits.add(0)
    with pytest.raises(PipelineHaltedError):
        publisher.settle()
    publisher.close()
    checkpoint = world.store.checkpoint("p", 1)
    assert checkpoint.reason is AbortReason.HALTED and "TOKEN_LOST" in checkpoint.message


def test_a_trigger_that_fails_leaves_no_checkpoint(world: World) -> None:
    publisher = world.publisher()
    world.store.halt("p", HaltReason.TOKEN_LOST, "it is gone")
    with pytest.raises(PipelineHaltedError):
        publisher.begin(0)
    publisher.close()
    assert world.states() == {}


@pytest.mark.parametrize("unanswered", [False, True])
def test_a_publication_in_an_outage_is_left_to_the_next_attempt(
    world: World, monkeypatch: Any, unanswered: bool
) -> None:
    """An abort would wait for the log until the process is ended. An unanswered publication may have succeeded."""
    publisher = world.publisher()
    publisher.begin(0)

    def lost(*_: Any, **__: Any) -> None:
        raise StoreUnavailableError("no answer.", unanswered=unanswered)

    monkeypatch.setattr(world.store, "publish", lost)
    publisher.written(_sealing(1), {})
    world.commits.add(0)
    with pytest.raises(StoreUnavailableError):
        publisher.settle()
    publisher.close()
    assert world.states() == {1: CheckpointState.TRIGGERED}


def test_an_outage_that_ends_the_query_leaves_its_checkpoint(world: World) -> None:
    publisher = world.publisher()
    publisher.begin(0)
    publisher.close(StoreUnavailableError("no answer."))
    assert world.states() == {1: CheckpointState.TRIGGERED}


def test_a_committed_batch_is_published_even_if_the_query_fails(world: World) -> None:
    publisher = world.publisher()
    publisher.begin(0)
    publisher.written(_sealing(1), {})
    world.commits.add(0)
    publisher.close()
    assert world.states() == {1: CheckpointState.STAGED}


def test_an_attempt_cannot_publish_behind_what_it_did_not_see(world: World) -> None:
    """Of the same epoch as another: a log restored while tasks were alive gives epochs out again."""
    asleep = world.publisher()
    asleep.begin(0)
    world.store.publish("p", 1, world.store.trigger("p", 1, RUN), 0, _segment(2), SparkPosition("file:///else", 0), {})
    asleep.written(_sealing(1), {})
    world.commits.add(0)
    with pytest.raises(StateConflictError):
        asleep.settle()
    asleep.close()
    assert world.store.checkpoint("p", 1).reason is AbortReason.PUBLISH_FAILED


@pytest.mark.parametrize("put_back", [0, 40])
def test_a_batch_says_less_once_the_logs_clock_was_put_back(world: World, monkeypatch: Any, put_back: int) -> None:
    """A row that arrives while Spark computes may get an earlier time than the batch's (I9)."""
    monkeypatch.setattr(moments, "time", SimpleNamespace(monotonic=lambda: 7.0))
    clock = time.time_ns()
    monkeypatch.setattr(time, "time_ns", lambda: clock)
    moment = Moment.now(world.store)
    monkeypatch.setattr(time, "time_ns", lambda: clock - put_back * 10**9)
    monkeypatch.setattr(world.store, "now", pytest.fail)  # the publication itself says what the time is
    publisher = world.publisher()
    publisher.begin(0)
    publisher.written(_sealing(1), {}, moment)
    world.commits.add(0)
    publisher.settle()
    publisher.close()
    assert world.store.read_as_of("p", 1) == moment.at - timedelta(seconds=put_back)
