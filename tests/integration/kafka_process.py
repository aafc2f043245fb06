"""Delivers a plan in a process of its own, to be stopped and killed: `python -m tests.integration.kafka_process JOB`.

The job is a JSON file: connection extra, plan, fence, step ("prepare", "commit"), and `stop_before_batch`: the process
stops itself (SIGSTOP) before it reads that batch of the log (0: never), with its transaction open. It prints
"working" when it begins and the outcome, or the name of the error, at its end.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from airflow_ft.core.errors import AirflowFtError
from airflow_ft.core.model import Fence, Plan, Segment
from airflow_ft.core.ports import ConnectionInfo, WalFile
from airflow_ft.sinks.kafka.participant import open_participant
from airflow_ft.wal import open_wal


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


def main(job: dict[str, Any]) -> None:
    plan = Plan.from_json(job["plan"])
    connection = ConnectionInfo(plan.participants[0].name, "kafka", extra=job["extra"])
    wal = StoppingWal(job["stop_before_batch"])
    participant = open_participant(plan.participants[0], connection, wal)
    fence = Fence(plan.pipeline, plan.installation, job["epoch"], job["attempt"])
    print("working", flush=True)
    try:
        if job["step"] == "prepare":
            participant.prepare(plan, fence)
            print("prepared", flush=True)
        else:
            print(participant.commit(plan, fence).outcome, flush=True)
    except AirflowFtError as error:
        print(type(error).__name__, flush=True)


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
