"""Folders in memory, disks that can be filled to the last byte, and processes that permissions hold for."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from unittest import mock

import pytest

TMPFS, LIMIT = "a small tmpfs", "RLIMIT_FSIZE in the process"
_MEMORY = Path("/dev/shm")
_ROOM = 2 << 30  # bytes


@contextmanager
def in_memory() -> Iterator[Path]:
    """An empty folder, in memory if there is room. For tests that cut no power: they need not wait for a disk."""
    has_room = _MEMORY.is_dir() and shutil.disk_usage(_MEMORY).free >= _ROOM
    memory = _MEMORY if has_room else None
    with tempfile.TemporaryDirectory(prefix="airflow-ft-", dir=memory, ignore_cleanup_errors=True) as folder:
        yield Path(folder)


@contextmanager
def synced(before: Path | None = None) -> Iterator[set[int]]:
    """Yield the inodes of files and folders that this process syncs, until `before` exists."""
    sync, seen = os.fsync, set[int]()

    def recorded(file: int) -> None:
        if before is None or not before.exists():
            seen.add(os.fstat(file).st_ino)
        sync(file)

    with mock.patch.object(os, "fsync", recorded):
        yield seen


class Disk:
    """A folder of its own size. Where nothing may be mounted (see `kind`) it is a plain one, for processes that bound
    their files themselves.
    """

    def __init__(self, folder: Path, size: str, *, mount: bool = True, owner: tuple[int, int] | None = None) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        while folder.is_mount():  # of a run that was killed
            subprocess.run(["umount", "--lazy", str(folder)], check=True)
        options = f"size={size},mode=0700" + (f",uid={owner[0]},gid={owner[1]}" if owner else "")
        command = ["mount", "-t", "tmpfs", "-o", options, "airflow-ft-test", str(folder)]
        self.kind = LIMIT
        if mount and os.geteuid() == 0 and subprocess.run(command, capture_output=True).returncode == 0:
            self.kind = TMPFS

    @contextmanager
    def full(self) -> Iterator[None]:
        """Not a byte is left, if it is a disk."""
        ballast = self.folder / "ballast"
        if self.kind == LIMIT:
            yield
            return
        try:
            with suppress(OSError), ballast.open("wb", buffering=0) as file:
                while True:
                    file.write(b"\0" * 65536)
            with suppress(OSError), ballast.open("ab", buffering=0) as file:
                while True:
                    file.write(b"\0")
            yield
        finally:
            ballast.unlink(missing_ok=True)

    def close(self) -> None:
        """Unmounts it, with what lies there."""
        if self.kind == TMPFS:
            subprocess.run(["umount", "--lazy", str(self.folder)], check=True)


def obeying() -> Sequence[str]:
    """What a command begins with, so that modes of files hold for it: root passes them by."""
    if os.geteuid() == 0 and shutil.which("setpriv") is None:
        pytest.skip("without setpriv (util-linux) root passes modes of files by")
    return ["setpriv", "--bounding-set", "-dac_override,-dac_read_search"] if os.geteuid() == 0 else []
