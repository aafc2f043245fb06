"""A process that takes one step of a plan's delivery, to be killed, or stopped at a named place and woken up later.

It prints "ready", then one line of JSON with what became of it. A stop is one of `STOPS`, or "before REGEX" and "after
REGEX" for the first statement whose beginning matches.
"""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa

from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.errors import AirflowFtError
from airflow_ft.protocol.model import Fence, Plan, Segment
from airflow_ft.protocol.participant import Branching
from airflow_ft.protocol.votes import Vote
from airflow_ft.protocol.write_ahead_log import SegmentReader, WalFile, WalReader
from airflow_ft.sinks.base import slices
from airflow_ft.sinks.mysql.limits import Limits
from airflow_ft.sinks.mysql.participant import open_participant
from airflow_ft.sinks.mysql.session import Session, Statement
from airflow_ft.testing import nursery
from airflow_ft.wal import open_wal

STOPS = ("announced", "loading", "before commit", "after commit")


class StoppingSegment:
    """A segment that stops the process after its first batch: in the middle of its rows."""

    def __init__(self, reader: SegmentReader, stop: Callable[[], None]) -> None:
        self._reader = reader
        self._stop = stop

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reader, name)

    def batches(self, sink: str, file: WalFile) -> Iterator[pa.RecordBatch]:
        for index, batch in enumerate(self._reader.batches(sink, file)):
            if index == 1:
                self._stop()
            yield batch


class StoppingWal:
    def __init__(self, wal: WalReader, stop: Callable[[], None]) -> None:
        self._wal = wal
        self._stop = stop

    def open(self, segment: Segment) -> Any:
        return StoppingSegment(self._wal.open(segment), self._stop)


def stopping_at(run: Callable[..., Statement], when: str, statement: str, stop: Callable[[], None]) -> Any:
    """`Session.run`, which stops the process at the first statement that matches."""

    def call(session: Session, sql: str, args: Any = None) -> Statement:
        fits = re.match(statement, sql) is not None
        if fits and when == "before":
            stop()
        result = run(session, sql, args)
        if fits and when == "after":
            stop()
        return result

    return call


def run(order: Mapping[str, Any]) -> None:
    """In the process of `Committer`."""
    stopped = False

    def stop() -> None:
        nonlocal stopped
        if not stopped:  # once: the next try goes through
            stopped = True
            os.kill(os.getpid(), signal.SIGSTOP)

    wal: Any = open_wal()
    commit, begin = Session.commit, Session.begin

    def stopping(before: bool, method: Callable[[Session], None]) -> Callable[[Session], None]:
        def call(session: Session) -> None:
            if before:
                stop()
            method(session)
            if not before:
                stop()

        return call

    match order["stop"]:
        case "announced":
            setattr(Session, "begin", stopping(True, begin))  # noqa: B010
        case "before commit":
            setattr(Session, "commit", stopping(True, commit))  # noqa: B010
        case "after commit":
            setattr(Session, "commit", stopping(False, commit))  # noqa: B010
        case "loading":
            wal = StoppingWal(wal, stop)
        case other if other:
            setattr(Session, "run", stopping_at(Session.run, *other.split(" ", 1), stop))  # noqa: B010

    plan = Plan.from_json(order["plan"])
    participant = open_participant(
        plan.participants[0], ConnectionInfo(**order["connection"]), wal, Limits(**order["limits"])
    )
    fence = Fence(**order["fence"])
    vote = None if order["notes"] is None else Vote("shop", fence.attempt, order["voted"], None, order["notes"])
    slices.MIN_ROWS = 2
    print("ready", flush=True)
    try:
        answer: dict[str, Any]
        if order["action"] == "prepare":
            answer = {"notes": dict(participant.prepare(plan, fence))}
        elif order["action"] == "announce":
            assert isinstance(participant, Branching)
            answer = {"notes": dict(participant.announce(plan, fence))}
        elif order["action"] == "load":
            assert isinstance(participant, Branching)
            answer = {"loaded": participant.load(plan, fence, order["notes"], order["branch"])}
        elif order["action"] == "conclude":
            assert isinstance(participant, Branching)
            answer = {"notes": participant.conclude(plan, fence, order["notes"])}
        else:
            commits = order["action"] == "commit"
            proof = participant.commit(plan, fence, vote) if commits else participant.abort(plan, fence, {})
            answer = {"outcome": proof.outcome.value, "detail": dict(proof.detail)}
    except AirflowFtError as error:
        answer = {"error": type(error).__name__, "message": str(error)}
    peak = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    print(json.dumps(answer | {"peak_mib": int(peak.split()[1]) >> 10}), flush=True)


class Committer:
    """The parent's side. Ends the process when it leaves the `with`."""

    def __init__(
        self,
        plan: Plan,
        connection: ConnectionInfo,
        fence: Fence,
        limits: Limits,
        *,
        stop: str = "",
        action: str = "commit",
        notes: Mapping[str, Any] | None = None,
        voted: int = 0,
        branch: str = "",
    ) -> None:
        self._order = {
            "plan": plan.to_json(),
            "connection": asdict(connection),
            "fence": asdict(fence),
            "limits": asdict(limits),
            "stop": stop,
            "action": action,
            "notes": notes,
            "voted": voted,
            "branch": branch,
        }

    def __enter__(self) -> Committer:
        ours, theirs = os.pipe()
        try:
            self._process = nursery.fork(__name__, self._order, "mysql", theirs)
        finally:
            os.close(theirs)
        self._output = os.fdopen(ours)
        assert (line := self._output.readline()) == "ready\n", line + self._output.read()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self._output.close()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def wait_until_stopped(self, seconds: float = 120) -> None:
        deadline = time.monotonic() + seconds
        stat = Path(f"/proc/{self._process.pid}/stat")
        while stat.read_text().rpartition(")")[2].split()[0] != "T":
            assert time.monotonic() < deadline and self._process.poll() is None, "it did not reach its stop"
            time.sleep(0.01)

    def wake(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def answer(self, seconds: float = 180) -> dict[str, Any]:
        self._process.wait(seconds)
        answer: dict[str, Any] = json.loads(self._output.read().splitlines()[-1])
        return answer
