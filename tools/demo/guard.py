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

from tools.servers import processes

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


def main() -> int:
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    ended = threading.Event()
    signals: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        # Raises nothing: no second signal interrupts the killing. Sets no event: this thread may hold its lock.
        signal.signal(number, lambda received, _: signals.append(received))
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}  # that was for the guard
    command = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL, env=environment)

    def watch_starter() -> None:
        while os.read(0, 1):  # not sys.stdin: its lock would be in the way of the interpreter's end
            pass
        ended.set()

    threading.Thread(target=watch_starter, daemon=True).start()
    while command.poll() is None and not signals and not ended.wait(0.1):
        pass
    status = command.poll()
    kill_descendants()
    if status is None:
        return 128 + signal.SIGTERM
    return status if status >= 0 else 128 - status  # as a shell says it


if __name__ == "__main__":
    sys.exit(main())
