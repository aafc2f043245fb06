"""The driver's process: it cannot outlive the process that started it, and says nothing into inherited streams.

The task starts a shim, which asks the kernel for SIGKILL on its parent's death and becomes spark-submit, which becomes
the JVM. That one starts the Python driver, which asks for the same (`airflow_ft.spark.driver.runner`). The setting
survives `exec`, but not `fork`. It fires when the *thread* that started the child ends: start from one that lives on.
"""

from __future__ import annotations

import ctypes
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow_ft.protocol.errors import CheckpointExpiredError

_PR_SET_PDEATHSIG = 1
_LINE_BYTES = 64 * 1024
# What a driver that has reported its result may take to end, and a killed one to obey SIGTERM (Airflow sends SIGKILL
# to the task 5 seconds after SIGTERM). Seconds.
LINGER_SECONDS = 30.0
TERM_SECONDS = 3.0

_LAST_WORDS_SECONDS = 2.0

_SHIM = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 9)
if os.getppid() != int(sys.argv[1]):
    os._exit(1)  # the parent died before it could be watched
os.execv(sys.argv[2], sys.argv[2:])
"""


def die_with_parent() -> None:
    """This process gets SIGKILL when its parent dies (Linux; elsewhere nothing happens)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def spawn(
    command: Sequence[str],
    environment: Mapping[str, str],
    *,
    stdin: int = subprocess.DEVNULL,
    stdout: int = subprocess.PIPE,
    pass_fds: Sequence[int] = (),
) -> subprocess.Popen[bytes]:
    """Starts a process in a group of its own, that dies with the thread that calls this (Linux)."""
    if sys.platform == "linux":
        command = [sys.executable, "-I", "-S", "-c", _SHIM, str(os.getpid()), *command]
    return subprocess.Popen(
        command,
        env=dict(environment),
        stdin=stdin,
        stdout=stdout,
        stderr=subprocess.STDOUT,
        process_group=0,
        pass_fds=pass_fds,
    )


def signal_group(pid: int, number: signal.Signals) -> None:
    """To a process of `spawn`, and to all that it has started, while there are any."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


class Driver:
    """A running driver. `pid` is also its process group."""

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        *,
        pass_fds: Sequence[int] = (),
        share: Callable[[int], None] | None = None,
        end: Callable[[bool], None] = lambda _: None,
    ) -> None:
        """`share` gets the file that the output goes to, for another process that writes into it as well; `end` asks a
        stream to end.
        """
        reader, writer = os.pipe()
        self._output = os.fdopen(reader, "rb", buffering=0)
        self._rest = b""  # of a line that is not whole yet
        self._quiet = 0.5 if share is None else 0.05  # seconds without output, after which it may have ended
        try:
            if share is not None:
                share(writer)
            self._process = spawn(command, environment, stdout=writer, pass_fds=pass_fds)
        except BaseException:
            self._output.close()
            raise
        finally:
            os.close(writer)
        self.pid = self._process.pid
        self.killed = False
        self._end = end

    def end(self, *, drain: bool = False) -> None:
        """Asks a stream to end after the checkpoint under way, or after one more of what is open. Any thread."""
        self._end(drain)

    def kill(self, grace: float = TERM_SECONDS) -> None:
        """Ends the driver: SIGTERM to its group, SIGKILL after `grace` seconds. For a task's `on_kill`; any thread."""
        self.killed = True
        if self._process.poll() is not None:
            return
        signal_group(self.pid, signal.SIGTERM)
        deadline = time.monotonic() + grace
        while self._process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        signal_group(self.pid, signal.SIGKILL)

    def kill_hung(self, error: CheckpointExpiredError) -> None:
        """End its process, also if others work there. `error`: why it counts as hung. Any thread."""
        self.kill()

    def read(self, log: Callable[[str], None]) -> bool:
        """Hand what it has said so far to `log`, without waiting. Returns whether it is alive."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._output, selectors.EVENT_READ)
            while selector.select(0) and (data := os.read(self._output.fileno(), _LINE_BYTES)):
                self._hand_on(data, log)
        return self._process.poll() is None

    def wait(self, log: Callable[[str], None], result: Path) -> int:
        """Hands each line of output to `log` and returns the exit code (negative: the signal).

        A driver that has written `result` but does not end within 30 s is killed. When this is left by an exception
        (a time-out of the task, an error of `log`) the driver is killed too.
        """
        try:
            self._pump(log, result)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(LINGER_SECONDS)
        finally:
            signal_group(self.pid, signal.SIGKILL)
            code = self._process.wait()
            self._output.close()
        return code

    def _hand_on(self, data: bytes, log: Callable[[str], None]) -> None:
        """Hand whole lines to `log`, and keep the rest."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > _LINE_BYTES or (self._rest and not data):
            lines, self._rest = [*lines, self._rest], b""
        for line in lines:
            log(line.decode(errors="replace").rstrip("\r"))

    def _pump(self, log: Callable[[str], None], result: Path) -> None:
        descriptor = self._output.fileno()
        reported: float | None = None
        ended: float | None = None
        with selectors.DefaultSelector() as selector:
            selector.register(descriptor, selectors.EVENT_READ)
            while True:
                if selector.select(self._quiet):
                    data = os.read(descriptor, _LINE_BYTES)
                    self._hand_on(data, log)
                    if not data:
                        return
                elif self._process.poll() is not None:
                    return  # something that it started still holds the pipe
                if self._process.poll() is not None:  # others may continue writing
                    ended = ended or time.monotonic()
                    if time.monotonic() - ended > _LAST_WORDS_SECONDS:
                        return
                if result.exists():
                    reported = reported or time.monotonic()
                    if time.monotonic() - reported > LINGER_SECONDS:
                        return
