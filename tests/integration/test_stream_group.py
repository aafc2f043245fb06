"""A group of streams in one task and one driver, with real Spark, Kafka and MariaDB: each ends alone, and each row of
each stream is there once.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import sqlite3
import subprocess
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]
import pytest
from confluent_kafka import Producer

from airflow_ft.protocol.lease import Worker, new_epoch
from airflow_ft.protocol.overview import Condition
from airflow_ft.protocol.pipelines import RequestKind
from airflow_ft.sources import KafkaSource
from airflow_ft.store import open_store
from airflow_ft.store.decision_log import DecisionLog
from tests.conftest import TopicFactory
from tests.integration.kafka_world import read, value
from tests.waiting import wait_for
from tools.servers import Database, Kafka
from tools.stream_group_task import start_group
from tools.stream_task import Stream, newest_driver

pytestmark = [
    pytest.mark.sampled(among="Spark drivers"),
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.timeout(900),
]

NAMES = ("a", "b", "c")
NO_RESTART = {"type": "none"}


class Group:
    """Three streams that copy a topic each into a table and a topic, and what is in them.

    `log`: URL of the decision log; "": a file of SQLite. `given`: changes of all streams.
    """

    def __init__(
        self, folder: Path, kafka: Kafka, database: Database, topics: TopicFactory, *, log: str = "", **given: Any
    ) -> None:
        self.folder, self.kafka, self.database = folder, kafka, database
        self.is_sqlite, self._given = not log, {"store": log, **given}
        server: Any = database.server
        self._mysql = {
            "host": server.host,
            "port": server.port,
            "login": server.user,
            "password": server.password,
            "schema": database.name,
        }
        self.store: DecisionLog = open_store(log or f"sqlite:///{folder / 'ft.db'}")
        unique = uuid.uuid4().hex[:6]
        self.pipelines = {name: f"g{unique}-{name}" for name in NAMES}
        self.topics = {name: (topics(partitions=2), topics(partitions=2)) for name in NAMES}
        self.tables = {name: f"numbers_{name}" for name in NAMES}
        self.sent = dict.fromkeys(NAMES, 0)
        for name in NAMES:
            database.sql(f"CREATE TABLE {self.tables[name]} (n BIGINT, at DOUBLE) ENGINE=InnoDB")
            self.store.register(self.pipelines[name])
        self._tries = itertools.count(1)
        self._log = folder / "task-0.log"
        self.process: subprocess.Popen[str] | None = None

    def stream(self, name: str, try_number: int, job: str = "Copy", **changes: Any) -> Stream:
        source = KafkaSource(topics=[self.topics[name][0]], conn_id="kafka", starting_offsets="earliest")
        settings: dict[str, Any] = {
            "sources": {"numbers": source.to_json()},
            "topics": {"copies": self.topics[name][1]},
            "tables": {"numbers": self.tables[name]},
            "checkpointing": {"interval": 0.3},
        }
        return Stream(
            folder=str(self.folder),
            pipeline=self.pipelines[name],
            job=f"stream_jobs:{job}",
            kafka=self.kafka.bootstrap,
            mysql=self._mysql,
            try_number=try_number,
            lease_seconds=5.0,
            **{**settings, **self._given, **changes},
        )

    @contextmanager
    def task(self, run: str = "run-1", **changes: Mapping[str, Any]) -> Iterator[subprocess.Popen[str]]:
        """The task of the group; killed at the end of the block if it is still there. `changes`: by stream."""
        number = next(self._tries)
        streams = [self.stream(name, number, run=run, **changes.get(name, {})) for name in self.pipelines]
        self._log = self.folder / f"task-{number}.log"
        process = self.process = start_group(streams, self._log)
        try:
            yield process
        finally:
            process.kill()
            process.wait()

    def send(self, name: str, count: int = 10) -> None:
        producer = Producer({"bootstrap.servers": self.kafka.bootstrap})
        for number in range(self.sent[name], self.sent[name] + count):
            record = json.dumps({"n": number, "at": time.time()}).encode()
            producer.produce(self.topics[name][0], record, partition=number % 2)
        assert producer.flush(120) == 0
        self.sent[name] += count

    def log(self) -> str:
        return self._log.read_text()

    def drivers(self) -> int:
        """How many the task has started."""
        return sum(line.startswith("driver ") for line in self.log().splitlines())

    def driver(self) -> int:
        return newest_driver(self._log)

    def until(self, condition: Callable[[], Any], seconds: float = 240.0) -> Any:
        """Waits for it, while the task runs; what it gives."""
        deadline = time.monotonic() + seconds
        while not (found := condition()):
            assert self.process is not None and self.process.poll() is None, self.log()[-10_000:]
            assert time.monotonic() < deadline, self.log()[-10_000:]
            time.sleep(0.05)
        return found

    def rows(self, name: str) -> list[int]:
        return [row[0] for row in self.database.sql(f"SELECT n FROM {self.tables[name]}")]

    def deliver(self, *names: str) -> None:
        """Sends more to these streams, and waits until it is in their tables."""
        for name in names:
            self.send(name)
        for name in names:
            self.until(lambda name=name: len(self.rows(name)) >= self.sent[name])

    def condition(self, name: str) -> Condition:
        """As page and commands show it."""
        return self.store.overview(self.pipelines[name]).condition

    def fence(self, name: str) -> None:
        """As a command does: takes an epoch once the owner's lease has expired, and ends."""
        with new_epoch(self.store, self.pipelines[name], Worker(), "a test", 5.0):
            pass

    def ask(self, name: str, **arguments: Any) -> int:
        return self.store.ask(self.pipelines[name], RequestKind.STOP, arguments, "a test")

    def answer(self, name: str, request: int) -> str:
        """Waits for the answer to a request."""
        outcome: str = wait_for(lambda: self.store.request(self.pipelines[name], request).outcome, 120, "the answer")
        return outcome

    def stop(self, *names: str) -> None:
        """Stops these streams, and waits for their answers."""
        asked = {name: self.ask(name) for name in names}
        for name, number in asked.items():
            assert self.answer(name, number).startswith("stopped; ")

    def check_exactly_once(self) -> None:
        for name in NAMES:
            expected = Counter(range(self.sent[name]))
            assert Counter(self.rows(name)) == expected, name
            records = [value(message)["n"] for message in read(self.kafka.bootstrap, self.topics[name][1])]
            assert Counter(records) == expected, name


@pytest.fixture
def group(tmp_path: Path, kafka: Kafka, mariadb_database: Database, topic_factory: TopicFactory) -> Iterator[Group]:
    made = Group(tmp_path, kafka, mariadb_database, topic_factory)
    yield made
    made.store.close()
    print(made.log()[-20_000:])


def test_each_stream_fails_restarts_and_stops_alone(group: Group) -> None:
    """One raises and restarts, one gives up, one is stopped."""
    mended = group.folder / "mended"
    restarts = {
        "job": "FailsAt",
        "job_args": {"bad": 15, "unless": str(mended)},
        "restart": {"type": "fixed-delay", "attempts": 500, "delay": 0.2},
    }
    gives_up = {"job": "FailsAt", "job_args": {"bad": 15}, "restart": NO_RESTART}
    with group.task(a=restarts, b=gives_up) as process:
        group.deliver(*NAMES)
        driver = group.driver()
        group.send("a")
        group.send("b")
        group.until(lambda: group.condition("b") is Condition.FAILED)
        group.until(lambda: group.log().count("the job is restarted") >= 2)
        assert (group.condition("a"), group.condition("c")) == (Condition.RUNNING, Condition.RUNNING)
        group.deliver("c")
        group.stop("c")
        assert group.condition("c") is Condition.IDLE, "as a pipeline that was stopped"
        mended.touch()
        group.until(lambda: len(group.rows("a")) >= group.sent["a"])
        found = sorted(group.rows("b"))
        assert found == list(range(len(found))) and 10 <= len(found) <= 15, "nothing of the failing checkpoint"
        assert group.drivers() == 1 and group.driver() == driver
        assert process.poll() is None, "the task ends with its last stream"
        group.stop("a")
        assert process.wait(120) != 0, "one has failed"
    with group.task("run-2") as process:
        group.deliver(*NAMES)
        group.stop(*NAMES)
        assert process.wait(120) == 0
    group.check_exactly_once()


@pytest.mark.chaos
@pytest.mark.parametrize("victim", ["driver", "task"])
def test_rows_arrive_once_after_the_driver_or_task_is_killed(group: Group, victim: str) -> None:
    with group.task() as process:
        group.deliver(*NAMES)
        for name in NAMES:
            group.send(name)
        if victim == "task":
            process.kill()
            process.wait()
        else:
            before = group.driver()
            os.kill(before, signal.SIGKILL)
            group.until(lambda: group.driver() != before)
            group.deliver(*NAMES)
    with group.task() as process:
        group.deliver(*NAMES)
        group.stop(*NAMES)
        assert process.wait(120) == 0
    group.check_exactly_once()


def test_a_stream_that_is_stopped_at_once_ends_alone(group: Group) -> None:
    with group.task(a={"job": "Slow"}) as process:
        group.deliver(*NAMES)
        group.send("a")
        asked = group.ask("a", at_once=True)
        group.until(lambda: group.store.request(group.pipelines["a"], asked).outcome)
        group.deliver("b", "c")
        assert group.drivers() == 1, "in the same driver"
        group.stop("b", "c")
        assert process.wait(120) == 0
    with group.task("run-2"):
        group.deliver(*NAMES)
        group.stop(*NAMES)
    group.check_exactly_once()


def test_other_streams_survive_a_driver_ended_by_a_hung_job(group: Group) -> None:
    """They are not restarted at all by their own strategies."""
    hung = group.folder / "hung"
    hangs = {"job": "Hangs", "job_args": {"at": 15, "marker": str(hung)}}
    with group.task(a=hangs, b={"restart": NO_RESTART}, c={"restart": NO_RESTART}) as process:
        group.deliver(*NAMES)
        group.send("a")
        group.until(hung.exists)
        asked, before = group.ask("a", at_once=True), group.driver()
        group.until(lambda: group.driver() != before)
        group.until(lambda: group.store.request(group.pipelines["a"], asked).outcome)
        group.deliver("b", "c")
        group.stop("b", "c")
        assert process.wait(120) == 0
    with group.task("run-2"):
        group.deliver(*NAMES)
        group.stop(*NAMES)
    group.check_exactly_once()


@contextmanager
def asleep(group: Group, task: subprocess.Popen[str]) -> Iterator[Callable[[], None]]:
    """The task and its driver sleep, until the end of the block or what it gives is called.

    Not within a write to a file of SQLite: its lock would keep out others, as no server's does.
    """
    sleeping = [psutil.Process(task.pid), *psutil.Process(task.pid).children(recursive=True)]

    def wake() -> None:
        for process in sleeping:
            with suppress(psutil.NoSuchProcess):
                process.resume()

    try:
        while True:
            for process in sleeping:
                process.suspend()
            if not group.is_sqlite:
                break
            with closing(sqlite3.connect(group.folder / "ft.db", timeout=0)) as log, suppress(sqlite3.OperationalError):
                log.execute("BEGIN IMMEDIATE")
                log.rollback()
                break
            wake()
            time.sleep(0.05)
        yield wake
    finally:
        wake()


@pytest.mark.chaos
def test_a_stream_fenced_by_a_command_restarts_in_its_driver(group: Group) -> None:
    with group.task() as process:
        group.deliver(*NAMES)
        driver = group.driver()
        for name in NAMES:
            group.send(name)
        with asleep(group, process):
            group.fence("a")
        group.until(lambda: "the stream is tried again" in group.log())
        group.deliver(*NAMES)
        assert group.driver() == driver, "in the same driver"
        assert group.condition("a") is Condition.RUNNING
        group.stop(*NAMES)
        assert process.wait(120) == 0
    group.check_exactly_once()


@pytest.mark.chaos
def test_a_group_that_slept_does_no_harm_beside_its_successor(group: Group) -> None:
    with group.task() as first:
        group.deliver(*NAMES)
        for name in NAMES:
            group.send(name)
        with asleep(group, first) as wake, group.task():
            group.deliver(*NAMES)
            wake()
            for _ in range(5):
                group.deliver(*NAMES)
            group.stop(*NAMES)
            assert group.process is not None and group.process.wait(120) == 0
        assert first.wait(120) != 0, "it was fenced"
    group.check_exactly_once()
