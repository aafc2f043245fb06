"""Delivers a plan in a process of its own, to be stopped and killed; `tests.integration.kafka_children` starts it.

The job has connection extra, plan, fence, step ("prepare", "commit"), the notes of the vote that "commit" counts on,
and where the process stops itself (SIGSTOP) with its transaction open: `stop_before_batch` of the log (0: never), or
`stop_at` one of `POINTS` ("": never). It prints "working" when it begins, the notes of "prepare" as JSON, and the
outcome, or the name of the error, at its end.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pyarrow as pa

from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.errors import AirflowFtError
from airflow_ft.protocol.model import Fence, Plan, Segment
from airflow_ft.protocol.votes import Vote
from airflow_ft.protocol.write_ahead_log import WalFile
from airflow_ft.sinks.kafka.content import PlanContent
from airflow_ft.sinks.kafka.participant import open_participant
from airflow_ft.sinks.kafka.tokens import Tokens
from airflow_ft.sinks.kafka.transaction import Transaction
from airflow_ft.sinks.kafka.transaction_coordinator import TransactionCoordinator
from airflow_ft.wal import open_wal

POINTS = {
    "before the token": (PlanContent, "send", True),
    "after the token": (Transaction, "identity", False),
    "before the head": (Tokens, "take_over", False),
    "after the head": (Tokens, "take_over", True),
    "before the note": (TransactionCoordinator, "leave_note", False),
    "after the note": (TransactionCoordinator, "leave_note", True),
    "before EndTxn": (TransactionCoordinator, "end", False),
    "after EndTxn": (TransactionCoordinator, "end", True),
}


class StoppingWal:
    """The log; stops this process before a batch, when everything before it was sent and acknowledged or not."""

    def __init__(self, stop_before: int) -> None:
        self.left = stop_before

    def open(self, segment: Segment) -> Any:
        return StoppingSegment(open_wal().open(segment), self)


class StoppingSegment:
    def __init__(self, reader: Any, wal: StoppingWal) -> None:
        self._reader, self._wal = reader, wal

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reader, name)

    def batches(self, sink: str, file: WalFile) -> Iterator[pa.RecordBatch]:
        for batch in self._reader.batches(sink, file):
            for row in range(0, batch.num_rows, 1000):
                self._wal.left -= 1
                if self._wal.left == 0:
                    os.kill(os.getpid(), signal.SIGSTOP)
                yield batch.slice(row, 1000)


def stop_at(point: str) -> None:
    """Makes the process stop itself before or after a method."""
    owner, name, after = POINTS[point]
    method: Callable[..., Any] = getattr(owner, name)

    def stopping(*arguments: Any, **named: Any) -> Any:
        if not after:
            os.kill(os.getpid(), signal.SIGSTOP)
        answer = method(*arguments, **named)
        if after:
            os.kill(os.getpid(), signal.SIGSTOP)
        return answer

    setattr(owner, name, stopping)


def run(job: Mapping[str, Any]) -> None:
    faulthandler.enable()  # an unexpected end must say why
    if job.get("stop_at"):
        stop_at(job["stop_at"])
    plan = Plan.from_json(job["plan"])
    connection = ConnectionInfo(plan.participants[0].name, "kafka", extra=job["extra"])
    wal = StoppingWal(job["stop_before_batch"])
    participant = open_participant(plan.participants[0], connection, wal)
    fence = Fence(plan.pipeline, plan.installation, job["epoch"], job["attempt"])
    print("working", flush=True)
    try:
        if job["step"] == "prepare":
            print(json.dumps(participant.prepare(plan, fence)), flush=True)
            print("prepared", flush=True)
        else:
            notes = job.get("notes")
            vote = Vote(plan.participants[0].name, fence.attempt, fence.attempt, None, notes) if notes else None
            print(participant.commit(plan, fence, vote).outcome, flush=True)
    except AirflowFtError as error:
        print(type(error).__name__, flush=True)
