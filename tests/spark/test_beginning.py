"""The task's log while Spark starts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from airflow_ft.protocol.model import RunKey
from airflow_ft.spark.process import Driver
from airflow_ft.spark.request import StageRequest
from airflow_ft.spark.session import session_leases
from airflow_ft.spark.session.submit import STARTED
from airflow_ft.spark.task import launcher, shared
from airflow_ft.spark.task.beginning import Beginning


def request(**more: Any) -> StageRequest:
    given: dict[str, Any] = {
        "pipeline": "orders",
        "run": RunKey("d", "r"),
        "epoch": 1,
        "attempt": 1,
        "store_url": "sqlite:////ft.db",
        "wal_root": "/wal",
        "job": "jobs.orders",
        "sinks": ("orders",),
    }
    return StageRequest(**{**given, **more})


@pytest.fixture(autouse=True)
def version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("airflow_ft.spark.task.beginning.installed_version", lambda: "4.2.0")


def said(starts: bool = True, **more: Any) -> list[str]:
    lines: list[str] = []
    given = request(**more)
    with launcher._jvm(given, Beginning(given, lines.append), starts=starts):
        pass
    return lines


@pytest.mark.parametrize(
    ("more", "line"),
    [
        ({}, "Starting Spark 4.2.0 (local[*]) ..."),
        ({"master": "local[2]"}, "Starting Spark 4.2.0 (local[2]) ..."),
        ({"conf": {"spark.master": "local[1]"}}, "Starting Spark 4.2.0 (local[1]) ..."),
        ({"master": "yarn"}, "Starting Spark 4.2.0 (yarn) ... It may wait until the cluster has room."),
        (
            {"master": "spark://host:7077"},
            "Starting Spark 4.2.0 (spark://host:7077) ... It may wait until the cluster has room.",
        ),
    ],
)
def test_the_log_says_at_once_what_starts(more: dict[str, Any], line: str) -> None:
    assert said(**more) == [line]


def test_a_driver_that_waits_or_is_shared_starts_nothing() -> None:
    assert said(starts=False) == []


@pytest.mark.parametrize("is_there", [True, False])
def test_a_kept_session_is_named(is_there: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    class Lease:
        def end(self, *, keep: bool) -> None: ...

    class Kept:
        key, pipeline = "key", "orders"

        def borrow(self) -> Lease:
            return Lease()

    monkeypatch.setattr(session_leases, "_key", lambda *_: "key")
    monkeypatch.setattr(session_leases, "kept", lambda: [Kept()] if is_there else [])
    monkeypatch.setattr(session_leases, "_start", lambda *_: Lease())
    [line] = said(master="local[2]", keep_session=60.0)
    if is_there:
        assert line == "Using the Spark session (local[2]) that an earlier run has kept ..."
    else:
        assert line == "Starting Spark 4.2.0 (local[2]) ...", "it may fail to start"


def test_the_log_says_when_spark_is_up() -> None:
    beginning = Beginning(request(), lambda _: None)
    up = beginning.shown(STARTED % ("4.2.0", 8.6, ""))
    assert re.fullmatch(r"Spark 4\.2\.0 is up after 0\.\d s\. The job begins\.", up)
    assert "s, as application_17_1. The" in beginning.shown(STARTED % ("4.2.0", 21.0, " (application_17_1)"))
    kept = Beginning(request(keep_session=60.0), lambda _: None)
    assert "s. It stays for later runs (keep_session). The job" in kept.shown(STARTED % ("4.2.0", 8.6, ""))
    assert beginning.shown("Spark 4.2.0 started in anger") == "Spark 4.2.0 started in anger"


def test_a_group_says_it_once_for_its_driver(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Process(Driver):
        def __init__(self) -> None:
            self.pid = 0

        def wait(self, log: Any, result: Path) -> int:
            log(STARTED % ("4.2.0", 8.6, ""))
            return 0

    @contextmanager
    def folder() -> Iterator[Path]:
        yield tmp_path

    monkeypatch.setattr(shared, "Driver", lambda *_: Process())
    monkeypatch.setattr(shared, "private_folder", folder)
    monkeypatch.setattr(shared, "settings", lambda *_: {})
    monkeypatch.setattr(shared, "submit", lambda *_: [])
    monkeypatch.setattr(StageRequest, "redactor", lambda _: lambda line: line.replace("local[2]", "***"))
    lines: list[str] = []
    host = shared.SharedDriver("group", on_line=lines.append)
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    host.start(tmp_path / "one", request(master="local[2]"))
    host.close()
    assert lines[0] == "Starting Spark 4.2.0 (***) ..." and "is up after" in lines[1] and len(lines) == 2
