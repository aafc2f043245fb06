"""Kills the Spark driver (or its worker), and later a commit task, with SIGKILL, and checks that it hit them at work.

It only reads the decision log: states, votes and leases. A lease's holder is "host:pid:random", its task
"dag/run/task id", so a lease leads to the process at work. A kill counts when, after the process is gone, the
checkpoint that it worked on is still unfinished; else the next checkpoint is tried.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from airflow_ft.protocol.model import Checkpoint, CheckpointState
from airflow_ft.protocol.pipelines import Lease
from airflow_ft.store.decision_log import DecisionLog
from tools.servers import processes

S = CheckpointState
DRIVER = "org.apache.spark.deploy.SparkSubmit"


@dataclass(frozen=True)
class Kill:
    """A process that was killed: which one, in which step, and the state of its checkpoint right before and after."""

    process: str
    pid: int
    step: str
    checkpoint: int
    before: str
    after: str
    counts: bool
    note: str = ""

    def __str__(self) -> str:
        text = f"kill -9 of the {self.process} (pid {self.pid}) in {self.step}: checkpoint {self.checkpoint} was"
        text += f" {self.before}, and is {self.after}" + (f"; {self.note}" if self.note else "")
        return text if self.counts else f"{text}: not counted, it hit nothing unfinished"


class DriverKiller:
    """Kills the Spark driver in the middle of a checkpoint, once at least one was published before.

    `worker` kills what it runs in instead, with all that is at work there, and returns the process id.
    """

    def __init__(
        self,
        store: DecisionLog,
        pipeline: str,
        pauses: random.Random,
        step: str = "stage",
        worker: Callable[[], int] | None = None,
    ) -> None:
        self._store, self._pipeline, self._pauses, self._step = store, pipeline, pauses, step
        self._worker = worker

    def look(self, checkpoints: list[Checkpoint]) -> Kill | None:
        """Kills if now is the time; `checkpoints` are the open ones."""
        triggered = [c for c in checkpoints if c.state is S.TRIGGERED]
        if not triggered or not any(c.segment is not None for c in checkpoints):
            return None
        number = triggered[-1].number
        for lease, pid in _workers(self._store, self._pipeline, self._step):
            for child in processes.tree(pid):
                if DRIVER not in processes.command_line(child):
                    continue
                time.sleep(self._pauses.uniform(0.05, 0.6))  # somewhere in the batch
                before = self._store.checkpoint(self._pipeline, number).state
                if before is not S.TRIGGERED:
                    return None
                process = "Spark driver"
                if self._worker is None:
                    _kill(child)
                else:
                    process, child = "worker with all that it ran", self._worker()
                after = self._store.checkpoint(self._pipeline, number)
                # ABORTED when the next attempt was quick: it was not published.
                return Kill(process, child, _step(lease), number, before, after.state, counts=after.segment is None)
        return None


class CommitKiller:
    """Kills a commit task between the begin of its attempt at a sink and the proof of the outcome.

    It waits until the sink executes something for the task: `statement` returns what a participant executes now, "" if
    nothing.
    """

    def __init__(
        self, store: DecisionLog, pipeline: str, statement: Callable[[str], str], step: str = "commit.{}"
    ) -> None:
        """`step`: the task that commits, with {} for the participant."""
        self._store, self._pipeline, self._statement, self._step = store, pipeline, statement, step

    def look(self, checkpoints: list[Checkpoint]) -> Kill | None:
        """Kills if now is the time; `checkpoints` are the open ones."""
        for checkpoint in checkpoints:
            for participant in _being_committed(checkpoint):
                for lease, pid in _workers(self._store, self._pipeline, self._step.format(participant)):
                    if not (statement := self._statement(participant)):
                        continue
                    before = self._store.checkpoint(self._pipeline, checkpoint.number)
                    if participant not in _being_committed(before):
                        return None
                    _kill(pid)
                    after = self._store.checkpoint(self._pipeline, checkpoint.number)
                    return Kill(
                        "commit task",
                        pid,
                        _step(lease),
                        checkpoint.number,
                        before.state,
                        after.state,
                        counts=participant in _being_committed(after),
                        note=f"in the middle of {statement}",
                    )
        return None


def _being_committed(checkpoint: Checkpoint) -> list[str]:
    """Participants with an attempt that is newer than their vote, and no proof yet."""
    if checkpoint.state not in (S.PREPARED, S.COMMITTING):
        return []
    return [name for name, v in checkpoint.votes.items() if v.attempt > v.prepared > 0 and v.proof is None]


def _workers(store: DecisionLog, pipeline: str, step: str) -> Iterator[tuple[Lease, int]]:
    """Leases of a step's tasks on this machine, with the process id of each."""
    for lease in store.leases(pipeline):
        task_id = lease.task.rpartition("/")[2]
        pid = int(lease.holder.split(":")[1])
        if task_id.removeprefix(f"{pipeline}.") == step and processes.tree(pid):
            yield lease, pid


def _step(lease: Lease) -> str:
    return f"{lease.task.rpartition('/')[2]}, try {lease.try_number}"


def _kill(pid: int) -> None:
    """SIGKILL, and wait until the process is gone: what is read afterwards is not its work any more."""
    os.kill(pid, signal.SIGKILL)
    processes.await_end([pid], 10)
