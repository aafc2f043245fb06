"""The guard: whatever was started by it ends with its starter."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tools.servers import processes

# A child that leaves its group and session, and is an orphan: what a process group does not reach.
FAMILY = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    parent = os.getpid()
    if os.fork() == 0:
        while os.getppid() == parent:
            time.sleep(0.01)
        open(sys.argv[1], "w").write(str(os.getpid()))
        time.sleep(600)
    os._exit(0)
os.wait()
time.sleep(600)
"""


def guarded(path: Path) -> tuple["subprocess.Popen[bytes]", list[int]]:
    """A guard with a family; its processes, the orphan among them."""
    command = [sys.executable, "-m", "tools.demo.guard", sys.executable, "-c", FAMILY, str(path)]
    guard = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
    deadline = time.monotonic() + 120
    while not (path.exists() and path.read_text()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    family = processes.tree(guard.pid)
    return guard, sorted({*family, int(path.read_text())})


@pytest.mark.parametrize("signals", [[], [signal.SIGTERM], [signal.SIGTERM, signal.SIGINT, signal.SIGTERM]])
def test_nothing_survives_the_end_of_the_starter(signals: list[signal.Signals], tmp_path: Path) -> None:
    guard, family = guarded(tmp_path / "orphan")
    assert len(family) == 3
    for number in signals:
        os.kill(guard.pid, number)
    assert guard.stdin is not None
    guard.stdin.close()
    assert guard.wait(120) == 128 + signal.SIGTERM
    assert processes.await_end(family, 60)


def test_orphans_end_with_the_command(tmp_path: Path) -> None:
    guard, family = guarded(tmp_path / "orphan")
    command = next(pid for pid in processes.tree(guard.pid)[1:] if pid != int((tmp_path / "orphan").read_text()))
    os.kill(command, signal.SIGKILL)
    assert guard.stdin is not None
    with guard.stdin:
        assert guard.wait(120) == 128 + signal.SIGKILL
    assert processes.await_end(family, 60)
