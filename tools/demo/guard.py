"""Runs a command and leaves nothing of it behind: `python -m tools.demo.guard COMMAND...`

The command and all its descendants, orphans included, are killed when the command ends, when this process gets SIGTERM
or SIGINT, or when its standard input ends: whoever started it keeps the other end of that pipe open, so nothing
survives its starter either, however that died.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
from types import FrameType

from tools.servers import processes

ENDING = (signal.SIGTERM, signal.SIGINT)
_PR_SET_CHILD_SUBREAPER = 36


def kill_descendants() -> None:
    """Kills all descendants of this process, until none is left.

    A descendant whose parent died becomes a child of this process (it is their subreaper), so none can hide. Each is
    stopped before any is killed: a stopped process forks no more.
    """
    while children := processes.tree(os.getpid())[1:]:
        processes.send(children, signal.SIGSTOP)
        processes.send(processes.tree(os.getpid())[1:], signal.SIGKILL)
        processes.await_end(children, 5)


def _ignore_signals() -> None:
    for number in ENDING:  # a second one must not interrupt the killing
        signal.signal(number, signal.SIG_IGN)


def main() -> int:
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}  # that was for the guard
    command = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL, env=environment)

    def end(number: int, _: FrameType | None) -> None:
        _ignore_signals()
        raise SystemExit(128 + number)

    def watch_starter() -> None:
        while sys.stdin.buffer.read(1):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    for number in ENDING:
        signal.signal(number, end)
    threading.Thread(target=watch_starter, daemon=True).start()
    try:
        return command.wait()
    finally:
        _ignore_signals()
        kill_descendants()


if __name__ == "__main__":
    sys.exit(main())
