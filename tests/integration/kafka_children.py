"""Delivering processes of the Kafka tests: started, stopped at a point, woken up, killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from airflow_ft.protocol.model import Fence, Plan
from airflow_ft.testing import nursery
from tests.integration.kafka_world import World


class Child:
    """A process that acts as `tests.integration.kafka_process` does; see there for what a job may say."""

    def __init__(self, job: Mapping[str, Any]) -> None:
        ours, theirs = os.pipe()
        try:
            self.process = nursery.fork("tests.integration.kafka_process", job, "kafka", theirs)
        finally:
            os.close(theirs)
        self.output = os.fdopen(ours)


class Children:
    """Starts them."""

    def __init__(self) -> None:
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
        child = Child(
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
        self._started.append(child)
        return child

    def close(self) -> None:
        for child in self._started:
            kill(child)
            child.output.close()


@contextmanager
def children() -> Iterator[Children]:
    """All are killed at the end."""
    started = Children()
    try:
        yield started
    finally:
        started.close()


def await_stopped(process: Child | subprocess.Popen[str], seconds: float = 120) -> None:
    acting = process.process if isinstance(process, Child) else process
    deadline = time.monotonic() + seconds
    while Path(f"/proc/{acting.pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
        assert acting.poll() is None, "it ended instead of stopping"
        assert time.monotonic() < deadline, "it did not stop"
        time.sleep(0.01)


def wake(process: Child | subprocess.Popen[str]) -> None:
    (process.process if isinstance(process, Child) else process).send_signal(signal.SIGCONT)


def kill(child: Child) -> None:
    child.process.kill()
    child.process.wait()


def await_working(child: Child) -> None:
    assert (line := child.output.readline()) == "working\n", line + child.output.read()


def lines(child: Child) -> list[str]:
    """What a process that ended well has printed."""
    status = child.process.wait(180)
    text = child.output.read()
    assert status == 0, f"ended with status {status}:\n{text}"
    return text.splitlines()


def outcome(child: Child) -> str:
    return lines(child)[-1]


def notes(child: Child) -> Mapping[str, Any]:
    """The notes of a process that prepared."""
    *_, found, last = lines(child)
    assert last == "prepared"
    return dict(json.loads(found))
