"""Delivering processes of the Kafka tests: started, stopped at a point, woken up, killed."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from airflow_ft.core.model import Fence, Plan
from tests.integration.kafka_world import World

REPOSITORY = Path(__file__).resolve().parents[2]
Child = subprocess.Popen[str]


class Children:
    """Starts `tests.integration.kafka_process`; see there for what a job may say."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._started: list[Child] = []

    def __call__(
        self,
        world: World,
        plan: Plan,
        fence: Fence,
        step: str = "commit",
        stop_before_batch: int = 0,
        stop_at: str = "",
    ) -> Child:
        vote = world.votes.get(plan.number)
        job = self._folder / f"job-{uuid.uuid4().hex}.json"
        job.write_text(
            json.dumps(
                {
                    "extra": dict(world.connection.extra),
                    "plan": plan.to_json(),
                    "epoch": fence.epoch,
                    "attempt": fence.attempt,
                    "step": step,
                    "notes": dict(vote.notes) if vote is not None else {},
                    "stop_before_batch": stop_before_batch,
                    "stop_at": stop_at,
                }
            )
        )
        process = subprocess.Popen(
            [sys.executable, "-X", "faulthandler", "-m", "tests.integration.kafka_process", str(job)],
            cwd=REPOSITORY,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,  # an unexpected end must say why
            text=True,
        )
        self._started.append(process)
        return process

    def close(self) -> None:
        for process in self._started:
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()


@contextmanager
def children(folder: Path) -> Iterator[Children]:
    """All are killed at the end."""
    started = Children(folder)
    try:
        yield started
    finally:
        started.close()


def await_stopped(process: Child, seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
        assert process.poll() is None, "it ended instead of stopping"
        assert time.monotonic() < deadline, "it did not stop"
        time.sleep(0.01)


def wake(process: Child) -> None:
    process.send_signal(signal.SIGCONT)


def kill(process: Child) -> None:
    process.kill()
    process.wait()


def await_working(process: Child) -> None:
    assert process.stdout is not None
    assert process.stdout.readline() == "working\n"


def lines(process: Child) -> list[str]:
    """What a process that ended well has printed."""
    text, _ = process.communicate(timeout=180)
    assert process.returncode == 0, f"ended with status {process.returncode}:\n{text}"
    return text.splitlines()


def outcome(process: Child) -> str:
    return lines(process)[-1]


def notes(process: Child) -> Mapping[str, Any]:
    """The notes of a process that prepared."""
    *_, found, last = lines(process)
    assert last == "prepared"
    return dict(json.loads(found))
