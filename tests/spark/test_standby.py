"""Who gets a request: the driver that waits, or a new one. A small program stands in for Spark's driver."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]
import pytest

from airflow_ft.protocol.errors import ConfigurationError, StageError
from airflow_ft.protocol.model import RunKey
from airflow_ft.spark.request import StageRequest, StageResult
from airflow_ft.spark.session.submit import READY, REQUEST, RESULT, write_request
from airflow_ft.spark.task import launcher, standby
from airflow_ft.spark.task.standby import Standby
from airflow_ft.store import open_store
from tests.raising import raises
from tests.waiting import wait_for

PROGRAM = f"""
import pathlib, sys, time
folder = pathlib.Path(sys.argv[1])
print({READY!r}, flush=True)
while not (folder / {REQUEST!r}).exists():
    time.sleep(0.01)
(folder / {REQUEST!r}).unlink()
print("checkpoint 1 published", flush=True)
(folder / {RESULT!r}).write_text({json.dumps({"result": StageResult((1,), {}, None).to_json()})!r})
"""


def program(folder: Path) -> list[str]:
    return [sys.executable, "-I", "-S", "-c", PROGRAM, str(folder)]


def start(folder: Path, request: StageRequest) -> list[str]:
    write_request(folder, request)
    return program(folder)


class Attempts:
    """Attempts of one stream, and the process of each."""

    def __init__(self, folder: Path) -> None:
        self.standby, self.drivers = Standby(), list[int]()
        self._folder, self._store = folder, open_store(f"sqlite:///{folder / 'ft.db'}")
        self._store.register("orders")

    def request(self, **more: Any) -> StageRequest:
        given: dict[str, Any] = {
            "pipeline": "orders",
            "run": RunKey("d", "r"),
            "epoch": len(self.drivers) + 1,
            "attempt": len(self.drivers) + 1,
            "store_url": f"sqlite:///{self._folder / 'ft.db'}",
            "wal_root": str(self._folder / "wal"),
            "job": "jobs.orders",
            "sinks": ("orders",),
            "streaming": True,
            "standby": True,
        }
        return StageRequest(**{**given, **more})

    def run(self, **more: Any) -> int:
        """One attempt; the process that did it."""
        launcher.run_stage(
            self.request(**more),
            self._store,
            log=lambda _: None,
            on_start=lambda driver: self.drivers.append(driver.pid),
            standby=self.standby,
        )
        return self.drivers[-1]

    @property
    def waiting(self) -> int:
        """The process that waits; 0: none."""
        return 0 if self.standby._waiting is None else self.standby._waiting.driver.pid

    def close(self) -> None:
        self.standby.end()
        self._store.close()


@pytest.fixture
def attempts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Attempts]:
    monkeypatch.setattr(launcher, "prepare", start)
    monkeypatch.setattr(standby, "prepare_standby", lambda folder, _: program(folder))
    made = Attempts(tmp_path)
    yield made
    made.close()


def test_the_driver_that_waits_gets_the_next_request(attempts: Attempts) -> None:
    first = attempts.run()
    waiting = attempts.waiting
    assert waiting not in (0, first)
    assert attempts.run() == waiting
    assert attempts.waiting not in (0, waiting), "and another one waits"


def test_without_standby_none_is_started(attempts: Attempts) -> None:
    attempts.run(standby=False)
    assert not attempts.waiting


def test_a_dead_one_gets_no_request(attempts: Attempts) -> None:
    attempts.run()
    os.kill(waiting := attempts.waiting, signal.SIGKILL)
    wait_for(lambda: psutil.Process(waiting).status() == psutil.STATUS_ZOMBIE, 60, "it is dead")
    assert attempts.run() != waiting


@pytest.mark.parametrize(
    "changed", [{"conf": {"spark.sql.ansi.enabled": "false"}}, {"master": "local[3]"}, {"python_path": ("/elsewhere",)}]
)
def test_one_that_was_started_with_other_settings_is_ended(attempts: Attempts, changed: dict[str, Any]) -> None:
    attempts.run()
    waiting = attempts.waiting
    assert attempts.run(**changed) != waiting
    assert not psutil.pid_exists(waiting)


def test_one_that_does_not_take_its_request_is_killed(attempts: Attempts, monkeypatch: pytest.MonkeyPatch) -> None:
    attempts.run()
    os.killpg(waiting := attempts.waiting, signal.SIGSTOP)
    monkeypatch.setattr(standby, "TAKEN_SECONDS", 0.2)
    with raises(StageError, "driver_ended", signal="SIGKILL"):
        attempts.run()
    assert attempts.drivers[-1] == waiting and not psutil.pid_exists(waiting)


def test_a_request_that_cannot_be_written_leaves_no_process(attempts: Attempts) -> None:
    attempts.run()
    waiting = attempts.waiting
    with raises(ConfigurationError, "argument_invalid"):
        attempts.run(job_arguments={"limit": object()})
    assert not attempts.waiting and not psutil.pid_exists(waiting)


def test_one_that_dies_is_replaced_after_a_while(attempts: Attempts, monkeypatch: pytest.MonkeyPatch) -> None:
    request = attempts.request()
    attempts.standby.keep(request)
    os.kill(dead := attempts.waiting, signal.SIGKILL)
    wait_for(lambda: psutil.Process(dead).status() == psutil.STATUS_ZOMBIE, 60, "it is dead")
    attempts.standby.keep(request)
    assert not attempts.waiting
    monkeypatch.setattr(standby, "AGAIN_SECONDS", 0.0)
    attempts.standby.keep(request)
    assert attempts.waiting not in (0, dead)


def test_it_leaves_no_process_and_no_folder(attempts: Attempts) -> None:
    attempts.run()
    waiting = attempts.standby._waiting
    assert waiting is not None and waiting.folder.is_dir()
    attempts.standby.end()
    assert not psutil.pid_exists(waiting.driver.pid) and not waiting.folder.exists()
