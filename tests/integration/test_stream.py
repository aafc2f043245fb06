"""A stream with real Spark, Kafka and MariaDB: killed, failing, stopped, gone on with; every row once in each sink."""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from airflow_ft.pipeline.checkpoints import Gate
from airflow_ft.protocol.lease import Worker
from airflow_ft.protocol.model import Checkpoint, CheckpointState
from airflow_ft.protocol.overlap import RETAINED_TOGETHER
from airflow_ft.protocol.pipelines import RequestKind
from airflow_ft.protocol.reasons import AbortReason
from airflow_ft.sources import KafkaSource
from airflow_ft.spark.driver.staging import FEW_ROWS
from airflow_ft.spark.savepoints.metadata import verify
from airflow_ft.spark.savepoints.restoring import restore
from airflow_ft.spark.savepoints.taking import take
from airflow_ft.spark.task.cleanup import DELETED
from airflow_ft.store import open_store
from airflow_ft.store.decision_log import DecisionLog
from airflow_ft.wal.local import local_path
from tests.conftest import TopicFactory
from tests.integration.kafka_world import read, value
from tools.servers import Database, Kafka
from tools.stream_task import Stream, newest_driver

pytestmark = [
    pytest.mark.sampled(among="Spark drivers"),
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.timeout(600),
]

PROJECT = Path(__file__).parents[2]


class World:
    """A topic that grows, a stream that copies it into a topic and a table, and what is in them."""

    def __init__(self, folder: Path, kafka: Kafka, database: Database, topics: TopicFactory) -> None:
        self.folder, self.kafka, self.database = folder, kafka, database
        self.input, self.output = topics(partitions=2), topics(partitions=2)
        server: Any = database.server
        self._mysql = {
            "host": server.host,
            "port": server.port,
            "login": server.user,
            "password": server.password,
            "schema": database.name,
        }
        database.sql("CREATE TABLE numbers (n BIGINT, at DOUBLE) ENGINE=InnoDB")
        self.store: DecisionLog = open_store(f"sqlite:///{folder / 'ft.db'}")
        self.pipeline = f"s{uuid.uuid4().hex[:8]}"  # the broker remembers those of other tests
        self.store.register(self.pipeline)
        self._sent = itertools.count()
        self.sent = 0
        self._tries = itertools.count(1)
        self._processes: list[subprocess.Popen[str]] = []

    def stream(self, job: str = "Copy", **changes: Any) -> Stream:
        more = {"starting_offsets": "earliest", **changes.pop("source", {})}
        source = KafkaSource(topics=[self.input], conn_id="kafka", **more)
        settings: dict[str, Any] = {
            "sources": {"numbers": source.to_json()},
            "topics": {"copies": self.output},
            "tables": {"numbers": "numbers"},
            "checkpointing": {"interval": 0.3},
        }
        return Stream(
            folder=str(self.folder),
            pipeline=self.pipeline,
            job=f"stream_jobs:{job}",
            kafka=self.kafka.bootstrap,
            mysql=self._mysql,
            try_number=next(self._tries),
            **{**settings, **changes},
        )

    def send(self, count: int, *, in_order: bool = False) -> None:
        """So many more numbers. `in_order`: into one partition, so that none is read before the one before it."""
        producer = Producer({"bootstrap.servers": self.kafka.bootstrap})
        for number in itertools.islice(self._sent, count):
            value = json.dumps({"n": number, "at": time.time()}).encode()
            producer.produce(self.input, value, partition=0 if in_order else number % 2)
        assert producer.flush(120) == 0
        self.sent += count

    @contextmanager
    def sending(self) -> Iterator[None]:
        """Numbers come all the time."""
        done = threading.Event()

        def send() -> None:
            while not done.wait(0.1):
                self.send(7)

        thread = threading.Thread(target=send)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    @contextmanager
    def task(self, stream: Stream) -> Iterator[subprocess.Popen[str]]:
        """The stream's task; killed at the end of the block if it is still there."""
        process = stream.start(self._log(stream))
        self._running = stream, process
        try:
            yield process
        finally:
            process.kill()
            process.wait()

    def _log(self, stream: Stream) -> Path:
        return self.folder / f"task-{stream.try_number}.log"

    def log(self) -> str:
        """Of the newest task."""
        return self._log(self._running[0]).read_text()

    def driver(self) -> int:
        """The newest driver's process."""
        return newest_driver(self._log(self._running[0]))

    def kill_driver(self) -> None:
        """Kills it, and waits for another one, which confirms something."""
        before = self.driver()
        os.kill(before, signal.SIGKILL)
        self.until(lambda: self.driver() != before)
        self.until_confirmed(3)

    def until(self, condition: Callable[[], Any], seconds: float = 240.0) -> Any:
        """Waits for it, while the task runs; what it gives."""
        deadline = time.monotonic() + seconds
        while not (found := condition()):
            assert self._running[1].poll() is None, self.log()
            assert time.monotonic() < deadline, self.log()
            time.sleep(0.02)
        return found

    def confirmed(self) -> int:
        """The newest confirmed number."""
        latest = self.store.latest_confirmed(self.pipeline)
        return latest.number if latest else 0

    def until_confirmed(self, more: int = 1) -> None:
        """So many more checkpoints are confirmed."""
        before = self.confirmed()
        self.until(lambda: self.confirmed() >= before + more)

    def until_all_is_there(self) -> None:
        """All that was sent by now is in the table."""
        self.until(lambda: len(self.rows()) >= self.sent)

    def stop(self, **arguments: Any) -> str:
        """Asks it to stop, as `airflow ft stop` does, and waits for its end; the outcome."""
        asked = self.store.ask(self.pipeline, RequestKind.STOP, arguments, "a test")
        assert self._running[1].wait(240) == 0, self.log()
        return self.store.request(self.pipeline, asked).outcome

    @contextmanager
    def away(self) -> Iterator[None]:
        """The table is not there, for the duration of the block."""
        self.database.sql("RENAME TABLE numbers TO elsewhere")
        try:
            yield
        finally:
            self.database.sql("RENAME TABLE elsewhere TO numbers")

    def expired(self) -> list[Checkpoint]:
        return [c for c in self.aborted() if c.reason is AbortReason.EXPIRED]

    def committed(self, group: str) -> int:
        """How many numbers a consumer group has behind it."""
        places = [TopicPartition(self.input, partition) for partition in range(2)]
        with closing(Consumer({"bootstrap.servers": self.kafka.bootstrap, "group.id": group})) as consumer:
            return sum(max(0, place.offset) for place in consumer.committed(places, 30))

    def aborted(self) -> list[Checkpoint]:
        return [c for c in self.store.checkpoints(self.pipeline, 1000) if c.reason is not None]

    def rows(self) -> list[int]:
        return [row[0] for row in self.database.sql("SELECT n FROM numbers")]

    def records(self) -> list[int]:
        """What a reader of committed records finds in the output."""
        return [value(message)["n"] for message in read(self.kafka.bootstrap, self.output)]

    def check_exactly_once(self) -> None:
        expected = Counter(range(self.sent))
        assert Counter(self.rows()) == expected
        assert Counter(self.records()) == expected


@pytest.fixture
def world(tmp_path: Path, kafka: Kafka, mariadb_database: Database, topic_factory: TopicFactory) -> Iterator[World]:
    made = World(tmp_path, kafka, mariadb_database, topic_factory)
    yield made
    made.store.close()
    sys.stdout.write(made.log()[-20_000:])


def _python_driver(pid: int) -> int:
    """The Python of a driver; 0: it is not there."""
    with suppress(psutil.Error):
        for child in psutil.Process(pid).children(recursive=True):
            with suppress(psutil.Error):  # one that has just ended
                if "main.py" in " ".join(child.cmdline()):
                    return int(child.pid)
    return 0


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


@pytest.mark.chaos
@pytest.mark.parametrize("victim", ["driver", "task", "python"])
def test_whatever_is_killed_each_row_is_there_once(world: World, victim: str) -> None:
    with world.sending():
        with world.task(world.stream()) as process:
            for _ in range(2):
                world.until_confirmed(3)
                driver = world.driver()
                if victim == "task":
                    break
                pid = world.until(lambda driver=driver: _python_driver(driver)) if victim == "python" else driver
                os.kill(pid, signal.SIGKILL)
                world.until(lambda driver=driver: world.driver() != driver)
            else:
                world.until_confirmed(3)
            process.kill()
        with world.task(world.stream()):
            world.until_confirmed(3)
            # What was confirmed may have been recovered: between that and the stage nobody has a lease.
            held = world.until(lambda: world.store.leases(world.pipeline))
            assert len(held) == 1, "one owner"
            if victim == "task":
                world.until_confirmed(3)
    with world.task(world.stream()):
        world.until_all_is_there()
        assert world.stop().startswith("stopped; ")
    world.check_exactly_once()


@pytest.mark.chaos
def test_at_least_once_loses_no_rows_and_markers_stop_repeats(world: World) -> None:
    settings = {"checkpointing": {"interval": 0.3, "mode": "AT_LEAST_ONCE"}}
    with world.sending():
        for _ in range(3):
            with world.task(world.stream(**settings)) as process:
                world.until_confirmed(4)
                process.kill()
        with world.task(world.stream(**settings)):
            world.until_confirmed(3)
            world.stop()
    assert not {"PREPARED"} & {event.kind for event in world.store.events(world.pipeline, None, 1000)}
    with world.task(world.stream(run="run-2")):  # exactly once again
        world.send(20)
        world.until_all_is_there()
        world.stop()
    assert Counter(world.rows()) == Counter(range(world.sent)), "a marker is a marker"
    assert set(world.records()) == set(range(world.sent))
    last = range(world.sent - 20, world.sent)
    assert Counter(n for n in world.records() if n in last) == Counter(last), "under tokens again"


def test_a_job_that_raises_is_restarted_in_the_same_driver(
    world: World,
) -> None:
    """Rows of the failing checkpoint stay invisible in every sink."""
    marker = world.folder / "mended"
    world.send(10)
    restart = {"type": "fixed-delay", "attempts": 200, "delay": 0.05}
    with world.task(world.stream("FailsAt", job_args={"bad": 10, "unless": str(marker)}, restart=restart)):
        world.until_all_is_there()
        world.send(10, in_order=True)  # no checkpoint ends before the bad one, which is the first of them
        world.until(lambda: world.log().count("the job is restarted") >= 3)
        assert sorted(world.rows()) == list(range(10)) and sorted(world.records()) == list(range(10))
        world.until(lambda: world.log().count("the job is restarted") >= 6)
        log = world.folder / "wal" / world.pipeline
        # That of the base, of the attempt at work, and of one that begins or ends just now.
        world.until(lambda: all(len(list(each.glob("[0-9]*"))) <= 3 for each in (log, log / "spark")))
        marker.touch()
        world.until_all_is_there()
        assert world.log().count("driver ") == 1, "in the same driver"
        world.stop()
    assert {c.reason for c in world.aborted()} == {AbortReason.JOB_FAILED}
    assert "the value 10 is bad" in world.aborted()[0].message
    world.check_exactly_once()


def test_a_stopping_stream_ends_without_delay_if_its_job_raises(world: World) -> None:
    raise_now = world.folder / "raise"
    world.send(10)
    with world.task(world.stream("FailsAt", job_args={"bad": 10, "after": str(raise_now)})) as process:
        world.until_all_is_there()
        world.send(10, in_order=True)
        world.until(lambda: any(c.state is CheckpointState.TRIGGERED for c in world.store.checkpoints(world.pipeline)))
        world.store.ask(world.pipeline, RequestKind.STOP, {}, "a test")
        world.until(lambda: "stopping the stream" in world.log())
        time.sleep(2.0)  # the driver has heard of it, and waits for the micro-batch under way
        raise_now.touch()
        assert process.wait(240) == 0, world.log()
    assert [c.reason for c in world.aborted()] == [AbortReason.JOB_FAILED]
    with world.task(world.stream(run="run-2")):
        world.until_all_is_there()
        world.stop()
    world.check_exactly_once()


def test_rows_of_a_recomputed_large_checkpoint_arrive_once(world: World) -> None:
    many = 2 * FEW_ROWS
    restart = {"type": "none"}
    world.send(20)
    with world.task(world.stream("Explodes", job_args={"number": 40, "rows": many}, tables={}, restart=restart)):
        world.until(lambda: len(world.records()) >= world.sent)
        for more in (0, 0, many, many):  # the third is expected to be small
            world.send(10)
            world.until(lambda more=more: len(world.records()) >= world.sent + max(0, more - 1))
        world.stop()
    assert world.log().count("Spark computes it again at once") == 1
    assert {c.reason for c in world.aborted()} == {AbortReason.ATTEMPT_ENDED}
    found = Counter(world.records())
    assert found.pop(40) == many
    assert found == Counter(set(range(world.sent)) - {40})


def test_the_next_run_continues_a_task_that_ran_out_of_restarts(world: World) -> None:
    world.send(20)
    restart = {"type": "fixed-delay", "attempts": 2, "delay": 0.05}
    with world.task(world.stream("FailsAt", job_args={"bad": 15}, restart=restart)) as process:
        assert process.wait(240) != 0
    log = world.log()
    assert log.count("the job is restarted") == 2 and "not restarted any more (2 times" in log
    assert "the value 15 is bad" in log
    with world.task(world.stream(run="run-2")):
        world.until_all_is_there()
        world.stop()
    world.check_exactly_once()


def test_a_gate_opens_on_what_a_running_stream_has_confirmed(world: World) -> None:
    world.send(5)
    with world.task(world.stream()):
        world.until_all_is_there()
        at = world.store.now()
        world.until(lambda: Gate(as_of=at).is_open(world.store, world.pipeline))  # nothing is new
        with world.sending():
            world.until(lambda before=world.sent: world.sent > before)
            sent, at = world.sent, world.store.now()
            world.until(lambda: Gate(as_of=at).is_open(world.store, world.pipeline))
            assert set(range(sent)) <= set(world.rows())
            world.until_confirmed(2)
            assert Gate(number=world.confirmed()).is_open(world.store, world.pipeline)
        world.stop()


def test_the_consumer_group_holds_the_newest_confirmed_offsets(world: World) -> None:
    """Whoever watches its lag sees that all is read, though little comes and nobody stops the stream."""
    group = f"{world.pipeline}-readers"
    world.send(10)
    with world.task(world.stream(source={"group_id": group})):
        world.until_all_is_there()
        world.until(lambda: world.committed(group) == world.sent)
        world.send(1)
        world.until(lambda: world.committed(group) == world.sent)
        assert world.confirmed() < RETAINED_TOGETHER, "few checkpoints"
        world.stop()


def test_an_unaligned_stream_survives_a_kill_in_a_sink_outage(world: World) -> None:
    """It waits for the sink up to the time-out of each alignment, and goes back to waiting when the sink is there."""
    checkpointing = {"interval": 0.3, "unaligned": True, "aligned_timeout": 1}
    with world.task(world.stream(checkpointing=checkpointing)):
        with world.sending():
            world.until_confirmed(2)
            with world.away():
                world.until(lambda: world.store.undelivered(world.pipeline) >= 3)
                before, waiting = world.driver(), world.store.undelivered(world.pipeline)
                os.kill(before, signal.SIGKILL)
                world.until(lambda: world.store.undelivered(world.pipeline) >= waiting + 2)
                assert world.driver() != before
            world.until_confirmed(3)
        world.until_all_is_there()
        world.stop()
    world.check_exactly_once()


@pytest.mark.parametrize("tolerable", [-1, 1])
def test_later_checkpoints_deliver_the_rows_of_expired_ones(world: World, tolerable: int) -> None:
    """What is not tolerated any more takes a new driver: the strategy's, not Airflow's."""
    restart = {"type": "fixed-delay", "attempts": 20, "delay": 0.1}
    checkpointing = {"interval": 0.3, "timeout": 2, "tolerable_failures": tolerable}
    with world.task(world.stream(checkpointing=checkpointing, restart=restart)):
        world.send(10)
        world.until_confirmed()
        with world.away():
            shown = len(world.records())
            world.send(10)
            world.until(lambda: len(world.expired()) > 2)
            assert len(world.records()) == shown, "nothing of them, in any sink"
        world.until_all_is_there()
        assert (re.search("the stream (is restarted|restarts)", world.log()) is not None) == (tolerable == 1)
        world.stop()
    world.check_exactly_once()


def test_at_least_once_a_sink_outage_delays_only_new_checkpoints(world: World) -> None:
    checkpointing = {"interval": 0.3, "mode": "AT_LEAST_ONCE", "max_concurrent": 2}
    with world.task(world.stream(checkpointing=checkpointing)):
        world.send(10)
        world.until_all_is_there()
        world.until(lambda: not world.store.undelivered(world.pipeline))
        with world.away():
            for more in (1, 2):
                world.send(10)
                world.until(lambda more=more: world.store.undelivered(world.pipeline) >= more)
            world.until(lambda: len(set(world.records())) == world.sent)
            world.send(10)
            world.until(lambda: re.search(r"no checkpoint is triggered .*TOO_MANY_QUEUED", world.log()))
            assert len(set(world.records())) == world.sent - 10, "nothing more is read"
        world.until_all_is_there()
        world.stop()
    assert Counter(world.rows()) == Counter(range(world.sent)), "a marker is a marker"
    assert set(world.records()) == set(range(world.sent))


@pytest.mark.parametrize("bounded", [False, True])
def test_a_stream_stops_after_the_checkpoint_in_progress(world: World, bounded: bool) -> None:
    """Bounded: 5000 records wait, in slices of 50, for 50 s or more; it stops between two of them."""
    changes: Mapping[str, Any] = {"source": {"max_offsets_per_trigger": 50}} if bounded else {}
    world.send(5000 if bounded else 500)
    with world.task(world.stream("Slow" if bounded else "Copy", **changes)):
        world.until_confirmed(2 if bounded else 1)
        assert world.stop().startswith("stopped; ")
    left = world.sent - len(world.rows())
    assert (left > 0) == bounded
    assert all(c.is_settled for c in world.store.open_checkpoints(world.pipeline))
    assert not world.aborted() or bounded
    with world.task(world.stream(run="run-2")):
        world.send(20)
        world.until_all_is_there()
        assert bounded or "(in place)" in world.log()
        world.stop()
    world.check_exactly_once()


def test_at_once_means_what_is_published_and_no_more(world: World) -> None:
    with world.sending(), world.task(world.stream()):
        world.until_confirmed(2)
        assert world.stop(at_once=True).startswith("stopped; ")
    assert all(c.is_settled for c in world.store.open_checkpoints(world.pipeline))
    assert {c.reason for c in world.aborted()} <= {AbortReason.STOPPED}
    with world.task(world.stream(run="run-2")):
        world.until_all_is_there()
        world.stop()
    world.check_exactly_once()


def test_deleting_checkpoints_at_a_stop_resets_only_the_state(
    world: World,
) -> None:
    """Two stops, the second at once: each number is delivered once, with its place since the stop before."""
    world.database.sql("CREATE TABLE totals (n BIGINT, k BIGINT, place BIGINT, random DOUBLE) ENGINE=InnoDB")
    checkpointing = {"interval": 0.3, "externalized_retention": "DELETE_ON_CANCELLATION"}
    places: Counter[tuple[int, int]] = Counter()
    for run in (1, 2, 3):
        world.send(70)
        stream = world.stream("Totals", run=f"run-{run}", tables={"totals": "totals"}, checkpointing=checkpointing)
        with world.task(stream):
            world.until(lambda: len(world.database.sql("SELECT n FROM totals")) >= world.sent)
            said = world.stop(at_once=run == 2)
        assert said.endswith(f"is the newest confirmed checkpoint; {DELETED}")
        folder = world.folder / "wal" / world.pipeline
        [fresh] = (folder / "spark").glob("[0-9]*")
        assert not [path.name for path in fresh.iterdir() if path.name in ("state", "offsets", "commits")]
        assert not list(folder.glob("[0-9]*")), "nor rows"
        places.update((k, place) for k in range(7) for place in range(1, 11))
    rows = world.database.sql("SELECT n, k, place FROM totals")
    assert Counter(row[0] for row in rows) == Counter(range(world.sent)) == Counter(world.records())
    assert Counter((row[1], row[2]) for row in rows) == places


def test_a_new_run_continues_a_failed_stream_that_kept_nothing(world: World) -> None:
    settings = {"checkpointing": {"interval": 0.3, "externalized_retention": "NO_EXTERNALIZED_CHECKPOINTS"}}
    world.send(10)
    with world.task(world.stream("FailsAt", job_args={"bad": 10}, restart={"type": "none"}, **settings)) as process:
        world.until_all_is_there()
        world.send(10, in_order=True)  # no checkpoint ends before the bad one
        assert process.wait(240) != 0
    folder = world.folder / "wal" / world.pipeline
    assert not list(folder.glob("[0-9]*")) and len(list((folder / "spark").glob("[0-9]*"))) == 1, world.log()
    assert sorted(world.rows()) == list(range(10))
    with world.task(world.stream(run="run-2", **settings)):
        world.until_all_is_there()
        world.stop()
    world.check_exactly_once()


def test_only_a_stop_request_made_since_the_run_began_stops_it(world: World) -> None:
    old = world.store.ask(world.pipeline, RequestKind.STOP, {}, "a test")
    world.send(5)
    with world.task(world.stream()) as process:
        world.until_all_is_there()
        assert world.store.request(world.pipeline, old).outcome == "nothing was running"
        process.kill()
        process.wait()
        asked = world.store.ask(world.pipeline, RequestKind.STOP, {}, "a test")
    with world.task(world.stream()) as process:
        assert process.wait(240) == 0
        assert "driver " not in world.log(), "nothing was computed any more"
    assert world.store.request(world.pipeline, asked).outcome.startswith("stopped; ")
    world.check_exactly_once()


def test_a_stop_waits_neither_for_the_interval_nor_for_a_pause(world: World) -> None:
    world.send(5)
    with world.task(world.stream(checkpointing={"interval": 3600, "min_pause": 3600})):
        world.until_confirmed()
        world.send(5)
        assert world.stop().startswith("stopped; 1 "), "long before that"
    assert sorted(world.rows()) == sorted(world.records()) == list(range(5)), "the others are for the next run"


@pytest.mark.parametrize("dies", ["", "task", "driver"])
def test_a_drained_stream_delivers_its_open_windows_once(world: World, dies: str) -> None:
    """Whether who is to drain it lives to do so, or dies with the request open."""
    world.send(25)
    with world.task(world.stream("Windows")) as process:
        world.until_confirmed()
        assert world.rows() == [], "nothing is late enough"
        if dies == "task":
            asked = world.store.ask(world.pipeline, RequestKind.STOP, {"drain": True}, "a test")
            process.kill()
            process.wait()
        else:
            if dies == "driver":
                threading.Timer(1.5, _kill, [world.driver()]).start()
            outcome = world.stop(drain=True)
    if dies == "task":
        with world.task(world.stream("Windows")) as process:
            assert process.wait(240) == 0, world.log()
            outcome = world.store.request(world.pipeline, asked).outcome
    last = world.confirmed()
    assert outcome.endswith(f"; checkpoint {last} has drained the state"), outcome
    windows = world.database.sql("SELECT n, at FROM numbers ORDER BY n")
    assert [tuple(row) for row in windows] == [(0, 10.0), (10, 10.0), (20, 5.0)]
    assert sorted(world.records()) == [0, 10, 20]
    with world.task(world.stream("Windows", run="run-2")) as process:
        assert process.wait(240) != 0
        assert "[pipeline_drained]" in world.log() and "driver " not in world.log()
    assert world.confirmed() == last


def test_a_drained_stream_that_kept_nothing_reads_only_new_rows(world: World) -> None:
    """The drain's rows are delivered, its state is gone, so that nothing can come twice and the next run may go on."""
    stream = {"checkpointing": {"interval": 0.3, "externalized_retention": "DELETE_ON_CANCELLATION"}}
    world.send(25)
    with world.task(world.stream("Windows", **stream)):
        world.until_confirmed()
        assert f"; {DELETED}; checkpoint " in world.stop(drain=True)
    assert not list((world.folder / "wal" / world.pipeline).glob("[0-9]*"))
    world.send(10)
    with world.task(world.stream("Windows", run="run-2", **stream)):
        world.until_confirmed()
        world.stop(drain=True)
    windows = world.database.sql("SELECT n, at FROM numbers ORDER BY n, at")
    assert [tuple(row) for row in windows] == [(0, 10.0), (10, 10.0), (20, 5.0), (20, 5.0), (30, 5.0)]
    assert sorted(world.records()) == [0, 10, 20, 20, 30]


@pytest.mark.chaos
def test_savepoints_are_whole_when_a_stream_is_killed_or_stopped(world: World) -> None:
    """Each is whole. The stream keeps nothing when it stops, but for the savepoint with which it was asked to stop."""
    world.database.sql("CREATE TABLE totals (n BIGINT, k BIGINT, place BIGINT, random DOUBLE) ENGINE=InnoDB")
    checkpointing = {"interval": 0.3, "externalized_retention": "DELETE_ON_CANCELLATION"}
    stream = {"tables": {"totals": "totals"}, "checkpointing": checkpointing}
    folder = world.folder / "savepoints"
    with world.sending(), world.task(world.stream("Totals", **stream)):
        world.until_confirmed(3)
        killer = threading.Timer(0.5, _kill, [world.driver()])
        killer.start()
        for _ in range(20):
            uri, taken = take(world.store, world.pipeline, str(folder), "a test")
            verify(uri, taken)
            assert [operator.name for operator in taken.operators] == ["applyInPandasWithState"]
            time.sleep(0.1)
        killer.join()
        world.until_confirmed(3)
        outcome = world.stop(savepoint=str(folder))
    found = re.search(r"; savepoint of checkpoint (\d+): (\S+); its checkpoints are deleted", outcome)
    assert found is not None and int(found[1]) == world.confirmed(), outcome
    elsewhere = shutil.move(local_path(found[2]), world.folder / "elsewhere")
    shutil.rmtree(folder)

    def no_participant(_: Any) -> Any:
        raise AssertionError("no sink is asked")

    restore(world.store, str(elsewhere), no_participant, Worker("", 1), "a test", lease_seconds=1.0)
    with world.task(world.stream("Totals", run="run-2", **stream)):
        world.send(70)
        world.until(lambda: len(world.database.sql("SELECT n FROM totals")) >= world.sent)
        world.stop()
    rows = world.database.sql("SELECT n, k, place FROM totals")
    assert Counter(row[0] for row in rows) == Counter(range(world.sent)) == Counter(world.records())
    places = sorted((row[1], row[2]) for row in rows)
    counts = Counter(n % 7 for n in range(world.sent))
    assert places == [(k, place) for k in range(7) for place in range(1, counts[k] + 1)], "as if it had never stopped"


def test_a_stream_keeps_its_checkpoints_when_a_savepoint_fails(world: World) -> None:
    world.send(10)
    (world.folder / "file").write_text("no folder")
    checkpointing = {"interval": 0.3, "externalized_retention": "DELETE_ON_CANCELLATION"}
    with world.task(world.stream(checkpointing=checkpointing)):
        world.until_all_is_there()
        outcome = world.stop(savepoint=str(world.folder / "file" / "savepoints"))
    assert "the savepoint in" in outcome and "deleted" not in outcome, outcome
    assert list((world.folder / "wal" / world.pipeline).glob("[0-9]*")), "its rows"
