"""Take, change or restore one savepoint in a process that may be killed.

Run it by `python -m tests.chaos.savepoints.action_process`.

Standard input: JSON with the `stream`, and what to do. The answer is the last line of the log, as JSON.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import closing, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from airflow_ft.protocol.errors import AirflowFtError
from airflow_ft.protocol.from_savepoint import Later
from airflow_ft.protocol.lease import Worker
from airflow_ft.spark.savepoints.converting import Backend, convert
from airflow_ft.spark.savepoints.rescaling import rescale
from airflow_ft.spark.savepoints.restoring import restore
from airflow_ft.spark.savepoints.taking import take
from tools.stream_task import S3A, Stream, say, start_module

WHY = "make chaos"
SPARK = {"spark.driver.memory": "700m"}


class ActionProcess:
    """One such process: it takes a savepoint into `folder`; or restores `uri` ("beginning": all is read anew), as
    `later` says; or makes another one
    of `uri` in `folder`: with its state in so many `partitions`, or in another `backend`."""

    def __init__(self, stream: Stream, log: Path, **what: str | int) -> None:
        self.log = log
        given = {"folder": "", "uri": "", "later": "", "partitions": 0, "backend": "", **what}
        given["stream"] = asdict(stream)
        self.process: subprocess.Popen[str] = start_module(
            "tests.chaos.savepoints.action_process", json.dumps(given), log
        )

    def answer(self, seconds: float = 600.0) -> Mapping[str, Any]:
        """What it has answered; empty when it was killed."""
        if self.process.wait(seconds) < 0:
            return {}
        found: Mapping[str, Any] = json.loads(self.log.read_text().splitlines()[-1])
        return found

    def close(self) -> None:
        """Ends what is left of it: who is killed leaves Spark at work on a copy that nobody wants any more."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def main() -> None:
    given = json.load(sys.stdin)
    stream = Stream(**given["stream"])
    spark = SPARK | ({"spark.jars": ",".join(map(str, S3A.glob("*.jar")))} if stream.lake else {})
    answer: dict[str, Any]
    try:
        with closing(stream.context().store) as store:  # its server may be away
            if folder := given["folder"]:
                if given["partitions"]:
                    uri, savepoint = rescale(given["uri"], given["partitions"], folder, WHY, spark, say)
                elif given["backend"]:
                    uri, savepoint = convert(given["uri"], Backend(given["backend"]), folder, WHY, spark, say)
                else:
                    uri, savepoint = take(store, stream.pipeline, folder, WHY)
                answer = {"uri": uri, "number": savepoint.number}
            else:
                restored = restore(
                    store,
                    given["uri"],
                    stream.participants,
                    Worker(WHY),
                    WHY,
                    pipeline=stream.pipeline,
                    wal_root=stream.log_root,
                    later=Later(given["later"]),
                    lease_seconds=stream.lease_seconds,
                )
                number = 0 if restored.savepoint is None else restored.savepoint.number
                answer = {"restored": number, "later": list(restored.later)}
    except AirflowFtError as error:
        answer = {"error": type(error).__name__, "message": str(error)}
    sys.stdout.write(f"{json.dumps(answer)}\n")


if __name__ == "__main__":
    main()
