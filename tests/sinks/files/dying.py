"""A process that acts on a folder, and is killed, or stopped, before the n-th change that it makes there."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.model import Fence, Plan
from airflow_ft.protocol.votes import Vote
from airflow_ft.sinks import open_participant
from airflow_ft.testing import nursery
from airflow_ft.wal import open_wal

_CHANGES = {"os.rename", "os.link", "os.remove", "os.mkdir", "os.rmdir", "airflow_ft.commit"}
_WRITING = os.O_WRONLY | os.O_RDWR


@dataclass
class Acting:
    """`action` is prepare, commit, abort or forget. It dies (or stands still) before change `at`, from 0; -1: never."""

    plan: Plan
    action: str
    attempt: int
    vote: Vote | None = None
    at: int = -1
    stop: str = "kill"
    connection: ConnectionInfo | None = None

    def __post_init__(self) -> None:
        given = {
            "plan": self.plan.to_json(),
            "action": self.action,
            "attempt": self.attempt,
            "prepared": self.vote.prepared if self.vote else 0,
            "notes": dict(self.vote.notes) if self.vote else None,
            "at": self.at,
            "stop": self.stop,
            "connection": asdict(self.connection) if self.connection else None,
        }
        self._output = tempfile.TemporaryFile("w+")  # noqa: SIM115  it is read when the process has ended
        [planned] = self.plan.participants
        self.process = nursery.fork(__name__, given, planned.kind, self._output.fileno())

    def wait(self) -> str:
        """What came of it: "done", an error's name, "" when it was killed."""
        with self._output as output:
            if self.process.wait(240) < 0:
                return ""
            output.seek(0)
            return output.read().splitlines()[-1]

    def wait_until_stopped(self) -> bool:
        """False: it has ended without."""
        deadline = time.monotonic() + 60
        while self.process.poll() is None and time.monotonic() < deadline:
            if Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T":
                return True
            time.sleep(0.005)
        return False

    def wake(self) -> str:
        self.process.send_signal(signal.SIGCONT)
        return self.wait()


def _stop_before(at: int, stop: str, root: str) -> None:
    seen = 0
    kind = signal.SIGKILL if stop == "kill" else signal.SIGSTOP

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal seen
        changes = event in _CHANGES or (event == "open" and bool((arguments[2] or 0) & _WRITING))
        if changes and any(root in str(each) for each in arguments):
            if seen == at:
                os.kill(os.getpid(), kind)
            seen += 1

    sys.addaudithook(hook)


def around_commits(reached: Callable[[], None]) -> None:
    """delta-rs changes files without telling Python: so before and behind each call."""
    from deltalake import DeltaTable

    for name in ("create", "create_write_transaction"):
        call = getattr(DeltaTable, name)

        def stopping(*of: Any, _call: Any = call, **more: Any) -> Any:
            reached()
            found = _call(*of, **more)
            reached()
            return found

        setattr(DeltaTable, name, staticmethod(stopping) if name == "create" else stopping)


def _rebase_at_will() -> None:
    """delta-rs may do so as often as it likes."""
    from deltalake import CommitProperties

    from airflow_ft.sinks.delta import table

    table._properties = lambda transactions, says=None: CommitProperties(says, 15, transactions)


def _before_requests(root: str) -> None:
    """Nor do the clients of object stores and of HDFS tell."""
    import obstore

    from airflow_ft.sinks.files.objects import _Upload
    from airflow_ft.wal.hdfs import HdfsFileSystem, _Writer

    of_hdfs: list[tuple[Any, str]] = [(HdfsFileSystem, name) for name in ("create", "_rename", "remove", "remove_tree")]
    of_s3: list[tuple[Any, str]] = [(obstore, name) for name in ("put", "copy", "delete")]
    for place, name in (*of_hdfs, (_Writer, "close"), *of_s3, (_Upload, "close")):
        call = getattr(place, name)

        def stopping(*of: Any, _call: Any = call, **more: Any) -> Any:
            sys.audit("airflow_ft.commit", root)
            return _call(*of, **more)

        setattr(place, name, stopping)


def run(given: Mapping[str, Any]) -> None:
    """In the process."""
    plan = Plan.from_json(given["plan"])
    [planned] = plan.participants
    connection = ConnectionInfo(**given["connection"]) if given["connection"] else ConnectionInfo("", "")
    participant: Any = open_participant(planned, lambda _: connection, open_wal())
    fence = Fence(plan.pipeline, plan.installation, 1, given["attempt"])
    vote = Vote(planned.name, given["prepared"], given["prepared"], None, given["notes"] or {})
    settings = next(iter(planned.sinks.values()))
    folder = Path(settings.get("folder") or settings["table"])
    if planned.kind == "delta":
        around_commits(lambda: sys.audit("airflow_ft.commit", str(folder.parent)))
        if os.environ.get("REBASE"):
            _rebase_at_will()
    if "://" in str(settings.get("folder") or settings["table"]):
        _before_requests(str(folder.parent))
    _stop_before(given["at"], given["stop"], str(folder.parent))
    try:
        if given["action"] == "prepare":
            participant.prepare(plan, fence)
        elif given["action"] == "commit":
            participant.commit(plan, fence, vote)
        elif given["action"] == "abort":
            participant.abort(plan, fence, {"message": "a test"})
        else:
            participant.forget(fence, plan.number)
        print("done")
    except Exception as error:
        print(type(error).__name__)
