"""Which tests are unit tests, and what keeps them so: `make unit` runs pytest with `--unit`.

A unit test needs no server, no Spark session, no Airflow process and no browser. A test is a unit test unless one of
its folders is named in `ELSEWHERE`, or it is marked `slow` or `release`. `--unit` imports nothing from other folders,
and takes of matrices what the fixed set has (`tests/tiers.py`).

With `--unit` a test that starts a server, a JVM or a process of Airflow fails, and names what it started.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Generator, Iterable, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, NoReturn

import pytest

from tests.tiers import fixed_set, not_fixed
from tools.servers import Server

TESTS = Path(__file__).parent
ELSEWHERE = {
    "servers": "tests of one part that need a database, Kafka, HDFS, S3 or a process of Airflow",
    "hdfs": "tests of the write-ahead log on HDFS",
    "s3": "tests of the write-ahead log in a bucket",
    "session": "tests inside a Spark session, whose JVM takes tens of seconds",
    "integration": "several parts with real servers, and the whole in Airflow",
    "browser": "the page in Chromium",
    "conformance": "the kit, which kills each sink at hundreds of places",
    "simulation": "thousands of schedules of crashes",
    "model": "every schedule of the formal models",
}
"""Name of a folder -> its tests, which are no unit tests."""
MARKS = ("slow", "release")
"""Tests in other folders with one of these marks are no unit tests either."""
SERVERS = frozenset(
    {
        "mariadb",
        "mysql",
        "postgres",
        "kafka",
        "hdfs",
        "hive",
        "hbase",
        "s3",
        "iceberg_rest",
        "any_mysql",
        "cassandra_server",
        "redis_server",
        "versitygw",
        "own_server",
        "yarn",
        "paimon",
    }
)
"""Fixtures that start a server."""
NEEDS = SERVERS | {"servers_folder", "spark", "chromium"}
"""Fixtures that no unit test uses."""
MISPLACED = pytest.StashKey[list[str]]()
"""Collected tests in folders of unit tests that use one of `NEEDS`."""
_PROGRAMS = ("java", "airflow", "chromium", "google-chrome", "mariadbd", "mysqld", "postgres")
_STARTED = "started"
_STUB = """#!/bin/sh
[ "${0##*/} $*" = "java -version" ] && { echo 'openjdk version "17.0.0"' >&2; exit 0; }
echo "${0##*/} $*" >>"${0%/*}/started"
echo "A unit test started ${0##*/}. Fix: move the test to a folder named servers." >&2
exit 1
"""


def add_options(parser: pytest.Parser) -> None:
    """`--unit`."""
    parser.getgroup("airflow-ft").addoption("--unit", action="store_true", help="only unit tests, which need no server")


def in_unit_folder(path: Path) -> bool:
    """Return whether tests of this file or folder, below `tests`, are unit tests."""
    return not ELSEWHERE.keys() & set(path.relative_to(TESTS).parts)


def misplaced(items: Iterable[pytest.Item]) -> list[str]:
    """Return the tests that need a server, though their folder is one of unit tests."""
    return [item.nodeid for item in items if in_unit_folder(item.path) and _needs(item)]


def _needs(item: pytest.Item) -> bool:
    return bool(NEEDS.intersection(getattr(item, "fixturenames", ()))) or item.get_closest_marker("server") is not None


class Placed:
    """Plugin of every run: remembers misplaced tests for `tests/test_units.py`."""

    @pytest.hookimpl(tryfirst=True)  # before any test is left out
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        config.stash[MISPLACED] = misplaced(items)


class UnitTests:
    """Plugin of `--unit`: leaves other tests out, and fails those that start a server.

    Args:
        folder: an empty folder for programs that take the place of servers.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def pytest_sessionstart(self) -> None:
        forbid_programs(self._folder, os.environ)
        forbid_servers()

    def pytest_report_header(self) -> str:
        return "unit tests: without a server, a Spark session, a process of Airflow and a browser"

    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        return True if collection_path.is_relative_to(TESTS) and not in_unit_folder(collection_path) else None

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        left_out = set(not_fixed(items, fixed_set()))
        left_out.update(item for item in items if any(item.get_closest_marker(mark) for mark in MARKS))
        if left_out:
            config.hook.pytest_deselected(items=list(left_out))
            items[:] = [item for item in items if item not in left_out]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self) -> Generator[None, object, object]:
        result = yield
        if started := started_in(self._folder):
            pytest.fail(f"a unit test started {', '.join(started)}. Fix: move it to a folder named servers.")
        return result


def forbid_programs(folder: Path, environment: Any) -> None:
    """Put programs into `folder` that fail and leave a note, and let `environment` find them first."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "home").mkdir(exist_ok=True)
    (folder / "home" / "bin").symlink_to(folder)
    for name in _PROGRAMS:
        (folder / name).write_text(_STUB)
        (folder / name).chmod(0o755)
    environment["PATH"] = f"{folder}{os.pathsep}{environment.get('PATH', '')}"
    environment["JAVA_HOME"] = str(folder / "home")


def started_in(folder: Path) -> list[str]:
    """Return the forbidden command lines since the last call."""
    notes = folder / _STARTED
    if not notes.is_file():  # tests replace `exists`
        return []
    started = notes.read_text().splitlines()
    notes.unlink()
    return started


def forbid_servers() -> None:
    """Let servers of tests and processes of Airflow raise for the rest of this process."""

    def start(server: Server) -> NoReturn:
        raise RuntimeError(f"a unit test started {server.name}. Fix: move it to a folder named servers.")

    Server.start = start  # type: ignore[method-assign, assignment]
    subprocess.Popen.__init__ = _refusing_airflow(subprocess.Popen.__init__)  # type: ignore[method-assign]


def _refusing_airflow(begin: Callable[..., None]) -> Callable[..., None]:
    """Return a beginning of processes that refuses Airflow. An audit hook would slow every import and every `open`."""

    @wraps(begin)
    def refusing(process: object, args: object, *more: Any, **named: Any) -> None:
        if is_airflow([args] if isinstance(args, str | os.PathLike) else args):
            raise RuntimeError("a unit test started a process of Airflow. Fix: move it to a folder named servers.")
        begin(process, args, *more, **named)

    return refusing


def is_airflow(command: object) -> bool:
    """Return whether a command line is one of Airflow."""
    if isinstance(command, str | bytes) or not isinstance(command, Sequence):
        return False
    words = [str(word) for word in command]
    return words[1:3] == ["-m", "airflow"] or Path(words[0]).name == "airflow"
