"""`make demo-stop` says by its status whether it ended what was kept running."""

from __future__ import annotations

import fcntl
import subprocess
import sys
from pathlib import Path


def stopped(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tools.demo", "--stop", "--folder", str(folder)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def test_nothing_to_stop_is_a_success(tmp_path: Path) -> None:
    assert stopped(tmp_path).returncode == 0


def test_a_running_demonstration_is_not_stopped(tmp_path: Path) -> None:
    with (tmp_path / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = stopped(tmp_path)
    assert done.returncode == 1 and "let it finish first" in done.stdout
