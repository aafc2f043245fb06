"""Fork processes from one that has imported what they need: most of their time would go into imports.

Tasks of Airflow are forked likewise, with `[airflow_ft] preload`: modules that a system names in `preload` open
nothing and start no thread. A process gets the current environment and working directory of its requester.
The nursery ends when its requester dies, and the kernel then kills its processes, also those that SIGSTOP has stopped.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Mapping
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from airflow_ft.sinks.registry import system
from airflow_ft.spark.process import die_with_parent

_LENGTH = 8


class Forked:
    """A process that acts; as much of a `subprocess.Popen` as tests ask of one."""

    def __init__(self, nursery: Nursery, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._nursery, self._handle = nursery, os.pidfd_open(pid)

    def poll(self) -> int | None:
        """Its exit code, or minus the signal that has ended it; None while it is there."""
        with suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, seconds: float | None = None) -> int:
        """The same when it has ended; subprocess.TimeoutExpired."""
        if self.returncode is None:
            ended = select.poll()
            ended.register(self._handle, select.POLLIN)
            if not ended.poll(None if seconds is None else seconds * 1000):
                raise subprocess.TimeoutExpired(f"process {self.pid}", seconds or 0.0)
            try:
                self.returncode = self._nursery.ask({"ended": self.pid})
            except (OSError, EOFError):  # the nursery has ended, and so the kernel has killed its processes
                self.returncode = -signal.SIGKILL
            os.close(self._handle)
        return self.returncode

    def send_signal(self, number: signal.Signals) -> None:
        """Nothing happens when it has ended."""
        if self.returncode is None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._handle, number)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)


class Nursery:
    """The process that forks; it ends when its line is closed."""

    def __init__(self) -> None:
        self.path = os.environ.get("PYTHONPATH")
        self._line, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-m", __name__, str(theirs.fileno())]
            self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)

    def ask(self, order: Mapping[str, Any], *files: int) -> int:
        """Its answer to an order: a number."""
        data = json.dumps(order).encode()
        socket.send_fds(self._line, [len(data).to_bytes(_LENGTH)], files)
        self._line.sendall(data)
        return int.from_bytes(_read(self._line, _LENGTH), signed=True)

    def fork(self, module: str, given: Mapping[str, Any], kind: str, output: int) -> Forked:
        """Calls the module's `run(given)` in a new process, for a system of this kind; `output` is an open file."""
        order = {
            "module": module,
            "given": given,
            "kind": kind,
            "environment": {**os.environ},
            "folder": str(Path.cwd()),
        }
        return Forked(self, self.ask(order, output))

    def close(self) -> None:
        """End the nursery, and with it its processes."""
        self._line.close()
        self._process.wait()


_nursery: Nursery | None = None


def fork(module: str, given: Mapping[str, Any], kind: str, output: int) -> Forked:
    """See `Nursery.fork`: by one for all tests, as long as they find the same packages."""
    global _nursery
    if _nursery is not None and _nursery.path != os.environ.get("PYTHONPATH"):
        forget()
    _nursery = _nursery or Nursery()
    return _nursery.fork(module, given, kind, output)


@atexit.register
def forget() -> None:
    """Import everything again, for a caller that changes a module."""
    global _nursery
    if _nursery is not None:
        _nursery.close()
        _nursery = None


# --- in the nursery ---------------------------------------------------------------------------------------------------


def _read(line: socket.socket, length: int) -> bytes:
    data = b""
    while len(data) < length:
        data += line.recv(length - len(data)) or _ended()
    return data


def _ended() -> bytes:
    raise EOFError("the other end has gone")


def _live(order: Mapping[str, Any], output: int, parent: int) -> None:
    """All that the forked process does."""
    code = 1
    try:
        die_with_parent()
        if os.getppid() != parent:
            return  # the parent died before it could be watched
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.chdir(order["folder"])
        os.environ.clear()
        os.environ.update(order["environment"])
        signal.signal(signal.SIGINT, signal.default_int_handler)
        import_module(order["module"]).run(order["given"])
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def main() -> None:
    """Fork on each request, until the line is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of the terminal: the requester ends it
    line, parent = socket.socket(fileno=int(sys.argv[1])), os.getpid()
    while True:
        header, files, _, _ = socket.recv_fds(line, _LENGTH, 1)
        if not header:
            return
        order = json.loads(_read(line, int.from_bytes(header)))
        if "ended" in order:
            answer = os.waitstatus_to_exitcode(os.waitpid(order["ended"], 0)[1])
        else:
            with suppress(Exception):  # the forked process reports it if needed
                for module in (
                    "pyarrow.parquet",
                    "airflow_ft.wal.reader",
                    order["module"],
                    *system(order["kind"]).preload,
                ):
                    import_module(module)
            if not (answer := os.fork()):
                line.close()
                _live(order, files[0], parent)
            os.close(files[0])
        line.sendall(answer.to_bytes(_LENGTH, signed=True))


if __name__ == "__main__":
    main()
