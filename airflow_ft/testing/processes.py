"""Processes that work on a target, and are frozen or killed on the way."""

from __future__ import annotations

import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.model import Fence, Plan, Segment
from airflow_ft.protocol.votes import Vote
from airflow_ft.protocol.write_ahead_log import DeadLetters, SegmentReader, WalFile
from airflow_ft.sinks import open_participant
from airflow_ft.sinks.view import SegmentView
from airflow_ft.testing import nursery
from airflow_ft.testing.calls import kill_before
from airflow_ft.wal import open_wal

if TYPE_CHECKING:
    import pyarrow as pa


def free_port() -> int:
    """Return a port of the loopback interface without a listener."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


class Acting:
    """A process that prepares, commits or aborts."""

    def __init__(self, given: Mapping[str, Any], kind: str, log: Path) -> None:
        self.log = log
        with log.open("w", encoding="utf-8") as out:
            self.process = nursery.fork(__name__, given, kind, out.fileno())

    def wait(self, seconds: float = 60.0) -> str:
        """Returns its last line when it has ended: "done: ...", or an error's name; "" when it was killed."""
        if self.process.wait(seconds) < 0:
            return ""
        return self.log.read_text(encoding="utf-8").splitlines()[-1]

    def megabytes(self) -> float:
        """Its memory at most; when it has ended."""
        return int(self.log.read_text(encoding="utf-8").splitlines()[-2]) / 1024

    def wait_until_frozen(self, seconds: float = 60.0) -> None:
        """Return when it is suspended, or has ended; TimeoutError."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and self.process.poll() is None:
            if Path(f"/proc/{self.process.pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] == "T":
                return
            time.sleep(0.01)
        if self.process.poll() is None:
            raise TimeoutError(f"the process did not stop within {seconds:g} s; see {self.log}")

    def wait_until(self, is_so: Callable[[], bool], seconds: float = 120.0) -> None:
        """Return when the condition is true or the process has ended; otherwise raise TimeoutError."""
        deadline = time.monotonic() + seconds
        while not is_so() and self.process.poll() is None:
            if time.monotonic() > deadline:
                raise TimeoutError(f"the process did not get that far within {seconds:g} s; see {self.log}")
            time.sleep(0.005)

    def resume(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


class _Stopping(SegmentView):
    """A segment in small batches, before one of which something happens to this process."""

    def __init__(self, reader: SegmentReader, wal: _StoppingWal) -> None:
        super().__init__(reader)
        self._wal = wal

    def batches(self, sink: str, file: WalFile) -> Iterator[pa.RecordBatch]:
        if self._wal.sink not in ("", sink):
            yield from super().batches(sink, file)
            return
        for batch in self._reader.batches(sink, file):
            for start in range(0, batch.num_rows, self._wal.per_batch):
                part = batch.slice(start, self._wal.per_batch)
                self._wal.reach(part.num_rows)
                yield part
        self._wal.reach(1, is_last=True)


@dataclass
class _StoppingWal:
    """The log of a process that stops before its row `at`, counted from 0 over all segments, sinks and passes.

    If `at` is the number of rows that it has read when a file ends, it stops there. With `sink`, only rows of this sink
    count.
    """

    stop: signal.Signals | None
    at: int
    per_batch: int
    sink: str = ""
    seen: int = 0

    def open(self, segment: Segment) -> SegmentReader:
        return _Stopping(open_wal().open(segment), self)

    def reach(self, rows: int, *, is_last: bool = False) -> None:
        """Stop if row `at` is among the next rows; `is_last`: a file has ended."""
        if self.stop is not None and self.seen <= self.at < self.seen + rows:
            stop, self.stop = self.stop, None  # once
            os.kill(os.getpid(), stop)
        if not is_last:
            self.seen += rows

    def dead_letters(self, plan: Plan) -> DeadLetters:
        return open_wal().dead_letters(plan)


def run(given: Mapping[str, Any]) -> None:
    """In the process of `Acting`."""
    if flaw := given.get("flaw"):
        module, _, name = flaw.partition(":")
        getattr(import_module(module), name)()
    plan = Plan.from_json(given["plan"])
    stop = {"kill": signal.SIGKILL, "freeze": signal.SIGSTOP}.get(given["stop"])
    connection = ConnectionInfo(**given["connection"])
    wal = _StoppingWal(stop, given["at"], given["per_batch"], given["sink"]) if stop is not None else open_wal()
    participant = open_participant(plan.participants[0], lambda _: connection, wal)
    if given["stop"] == "kill at a call":
        kill_before(given["at"], given["below"], given["calls"])
    fence = Fence(plan.pipeline, plan.installation, 1, given["attempt"])
    prepared = given["prepared"]
    vote = Vote(plan.participants[0].name, prepared, prepared, None, given["notes"])
    try:
        if given["step"] == "prepare":
            participant.prepare(plan, fence)
            outcome = "done"
        elif given["step"] == "abort":
            outcome = f"done: {participant.abort(plan, fence, {'message': 'a test of conformance'}).outcome.name}"
        else:
            outcome = f"done: {participant.commit(plan, fence, vote).outcome.name}"
        participant.close()
    except Exception as error:
        outcome = f"{type(error).__name__}: {error}"
    kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    sys.stdout.write(f"\n{kilobytes}\n{outcome.splitlines()[0]}\n")
