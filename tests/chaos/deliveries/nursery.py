"""A process that has imported everything and opened nothing, and forks children that begin at once.

librdkafka, database connections and threads do not survive a fork: the nursery has none of them, the children make
their own. It runs as `python -m tests.chaos.deliveries.nursery`, and dies with whoever started it; so do its children.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

PROJECT = Path(__file__).resolve().parents[3]
PR_SET_PDEATHSIG = 1
READY = 180.0


class ChildError(RuntimeError):
    """A child did not do what processes do."""


class Child:
    """A forked process; `order` sets it to work. Ended by `close`, whatever it does."""

    def __init__(self, pid: int, connection: socket.socket, log: Path) -> None:
        self.pid, self.log = pid, log
        self._handle = os.pidfd_open(pid)  # a number may be given to another process, a handle may not
        self._connection = connection
        self._buffer = b""
        self._ended = False

    def order(self, **order: Any) -> None:
        """What it is to do; also the answer to a message that asks for one."""
        try:
            self._connection.sendall(json.dumps(order).encode() + b"\n")
        except OSError:
            self._ended = True

    def receive(self, seconds: float) -> Mapping[str, Any] | None:
        """Its next message. None: it has ended, stands still, or said nothing for so long (see the properties)."""
        deadline = time.monotonic() + seconds
        while b"\n" not in self._buffer:
            if not select.select([self._connection], [], [], 0.005)[0]:
                if self.is_stopped or time.monotonic() > deadline:
                    return None
                continue
            try:
                chunk = self._connection.recv(1 << 20)
            except ConnectionError:
                chunk = b""
            if not chunk:
                self._ended = True
                return None
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        message: dict[str, Any] = json.loads(line)
        return message

    @property
    def has_ended(self) -> bool:
        """Its end of the line is closed, as it is when a process ends in any way."""
        return self._ended

    @property
    def is_stopped(self) -> bool:
        """Whether SIGSTOP has stopped it."""
        try:
            state = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return False
        return state == "T"

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal; it may have ended already."""
        try:
            signal.pidfd_send_signal(self._handle, number)
        except ProcessLookupError:
            self._ended = True

    def kill(self) -> None:
        """Kills what is left of it; returns when it is gone."""
        self.signal(signal.SIGKILL)
        if not select.select([self._handle], [], [], 60)[0]:
            raise ChildError(f"process {self.pid} is still there 60 s after SIGKILL")

    def close(self) -> None:
        """Kills it, and closes the line to it."""
        self.kill()
        self._connection.close()
        os.close(self._handle)


class Nursery:
    """The forking process, seen from who uses it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._count = 0

    def __enter__(self) -> Self:
        self._line, theirs = socket.socketpair()
        environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
        with theirs, (self._folder / "nursery.log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-X", "faulthandler", "-m", "tests.chaos.deliveries.nursery", str(theirs.fileno())],
                cwd=PROJECT,
                env=environment,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # an interrupt of the terminal is not for the children
            )
        self._line.settimeout(READY)
        if self._line.recv(5) != b"ready":
            raise ChildError(f"the nursery has not begun, see {self._folder / 'nursery.log'}")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._line.close()  # it ends, and its children with it
        self._process.kill()
        self._process.wait()

    def fork(self) -> Child:
        """A new process, which waits for its order."""
        self._count += 1
        log = self._folder / f"{self._count}.log"
        ours, theirs = socket.socketpair()
        with theirs:
            socket.send_fds(self._line, [json.dumps({"log": str(log)}).encode()], [theirs.fileno()])
            answer = self._line.recv(64)
        if not answer:
            raise ChildError(f"the nursery has ended, see {self._folder / 'nursery.log'}")
        return Child(int(answer), ours, log)


def _die_with_parent() -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


def _begin_child(connection: socket.socket, log: str) -> None:
    from tests.chaos.deliveries.child import live

    os.setsid()
    _die_with_parent()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(output, 1)
    os.dup2(output, 2)
    live(connection)


def main() -> None:
    """Forks whenever it is told to, until the line is closed."""
    _die_with_parent()
    import tests.chaos.deliveries.child  # noqa: F401  (everything that a child needs)

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for children here: the kernel buries them
    line = socket.socket(fileno=int(sys.argv[1]))
    line.sendall(b"ready")
    while True:
        message, descriptors, _, _ = socket.recv_fds(line, 4096, 1)
        if not message:
            return
        with socket.socket(fileno=descriptors[0]) as connection:
            pid = os.fork()
            if pid == 0:
                try:
                    line.close()
                    _begin_child(connection, json.loads(message)["log"])
                finally:
                    os._exit(1)
        line.sendall(str(pid).encode())


if __name__ == "__main__":
    main()
