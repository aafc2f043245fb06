"""What a job of a group does to its process: with real Spark, into a file of SQLite."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from airflow_ft.protocol.errors import RestartsExhaustedError
from airflow_ft.protocol.overview import Condition
from airflow_ft.protocol.pipelines import RequestKind
from airflow_ft.store import open_store
from airflow_ft.store.decision_log import DecisionLog
from tools.stream_group_task import start_group
from tools.stream_task import Stream, newest_driver

pytestmark = [
    pytest.mark.sampled(among="Spark drivers"),
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.timeout(600),
]

NO_RESTART = {"type": "none"}


class Group:
    """Streams that count, each into a table of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file, self.task_log = folder / "sink.db", folder / "task.log"
        self.store: DecisionLog = open_store(f"sqlite:///{folder / 'ft.db'}")
        self.process: subprocess.Popen[str] | None = None

    def start(self, restart: Mapping[str, Any] | None = None, /, **streams: dict[str, Any]) -> None:
        """`restart`: the strategy of the driver."""
        with closing(sqlite3.connect(self.file)) as file:
            for name in streams:
                file.execute(f"CREATE TABLE IF NOT EXISTS {name} (n INTEGER)")
        for name in streams:
            self.store.register(name)
        self.process = start_group(
            [self._stream(name, **changes) for name, changes in streams.items()], self.task_log, restart
        )

    def _stream(self, name: str, **changes: Any) -> Stream:
        settings: dict[str, Any] = {"job": "stream_jobs:Counting", "job_args": {"rows": 2}, **changes}
        return Stream(
            folder=str(self.folder),
            pipeline=name,
            sources={},
            sqlite=str(self.file),
            files={"numbers": name},
            checkpointing={"interval": 0.5},
            **settings,
        )

    def log(self) -> str:
        return self.task_log.read_text()

    def drivers(self) -> int:
        return sum(line.startswith("driver ") for line in self.log().splitlines())

    def rows(self, name: str) -> list[int]:
        with closing(sqlite3.connect(self.file, timeout=30)) as file:
            return [row[0] for row in file.execute(f"SELECT n FROM {name} ORDER BY n")]

    def until(self, condition: Callable[[], Any], seconds: float = 240.0) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert self.process is not None and self.process.poll() is None, self.log()[-10_000:]
            assert time.monotonic() < deadline, self.log()[-10_000:]
            time.sleep(0.2)

    def more(self, *names: str) -> None:
        """Wait until each of the streams has delivered more."""
        before = {name: len(self.rows(name)) for name in names}
        self.until(lambda: all(len(self.rows(name)) > before[name] for name in names))

    def condition(self, name: str) -> Condition:
        return self.store.overview(name).condition

    def stop(self, *names: str) -> int:
        for name in names:
            self.store.ask(name, RequestKind.STOP, {}, "a test")
        assert self.process is not None
        code = self.process.wait(120)
        for name in names:
            assert self.rows(name) == list(range(len(self.rows(name)))), f"each row of {name} once"
        return code


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Group]:
    made = Group(tmp_path)
    yield made
    if made.process is not None and made.process.poll() is None:
        made.process.kill()
        made.process.wait()
    made.store.close()
    print(made.log()[-20_000:])


def test_a_job_that_stops_spark_restarts_alone(group: Group) -> None:
    stops = group.folder / "stops"
    job = {"job": "stream_jobs:StopsSpark", "job_args": {"rows": 2, "once": str(stops), "how": "pyspark"}}
    group.start(a=job, b={"restart": NO_RESTART})
    group.more("a", "b")
    stops.touch()
    group.until(lambda: "the job is restarted" in group.log())
    assert "[job_stops_spark]" in group.log()
    group.more("a", "b")
    assert group.drivers() == 1
    assert group.stop("a", "b") == 0


def test_deaths_of_the_driver_count_for_no_stream(group: Group) -> None:
    """By Spark's end in the JVM, and by a kill."""
    stops = group.folder / "stops"
    job = {"job": "stream_jobs:StopsSpark", "job_args": {"rows": 2, "once": str(stops), "how": "jvm"}}
    group.start(a={**job, "restart": NO_RESTART}, b={"restart": NO_RESTART})
    group.more("a", "b")
    stops.touch()
    group.until(lambda: group.drivers() == 2)
    group.more("a", "b")
    os.kill(newest_driver(group.task_log), signal.SIGKILL)
    group.until(lambda: group.drivers() == 3)
    group.more("a", "b")
    assert group.stop("a", "b") == 0


def test_a_group_whose_driver_has_died_too_often_fails(group: Group) -> None:
    group.start({"type": "none"}, a={}, b={})
    group.more("a", "b")
    os.kill(newest_driver(group.task_log), signal.SIGKILL)
    assert group.process is not None and group.process.wait(120) != 0
    for name in ("a", "b"):
        failure = group.store.overview(name).failure
        assert group.condition(name) is Condition.FAILED
        assert failure is not None and failure.code == RestartsExhaustedError.code
    assert group.drivers() == 1


def test_a_stream_ends_even_if_its_job_printed_a_partial_line(group: Group) -> None:
    group.start(a={"job": "stream_jobs:Nothing", "restart": NO_RESTART}, b={})
    group.until(lambda: group.condition("a") is Condition.FAILED)
    group.more("b")
    assert group.stop("b") != 0, "one has failed"


def test_each_stream_has_its_own_settings_even_custom_ones(group: Group) -> None:
    """Such as catalogs. And its state stores, which it unloads at its end."""
    name = "spark.sql.catalog.own"
    for_each = {"job": "stream_jobs:Setting", "restart": NO_RESTART}
    group.start(**{of: {**for_each, "job_args": {"name": name, "value": of}, "conf": {name: of}} for of in ("a", "b")})
    group.more("a", "b")
    assert group.stop("a", "b") == 0
    assert "no full snapshot" not in group.log()
