"""Folders that only this user can read, in the system's temporary folder; those of killed processes are swept."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

STAGE, SESSION, GIVEN = "airflow-ft-stage-", "airflow-ft-session-", "airflow-ft-given-"
PROPERTIES = "spark.properties"  # in either of them, until a JVM has read it
_HIDDEN = "."  # before the name of a folder that is not locked yet


def airflow_home() -> Path:
    """$AIRFLOW_HOME, or Airflow's own default."""
    return Path(os.path.expandvars(os.environ.get("AIRFLOW_HOME") or "~/airflow")).expanduser().absolute()


def own_folder() -> Path:
    """Return the package's folder in Airflow's home, which only its user can open; the first use creates it."""
    folder = airflow_home() / "airflow_ft"
    with suppress(OSError):  # the first write raises the reason
        folder.mkdir(mode=0o700, exist_ok=True)
    return folder


@contextmanager
def private_folder() -> Iterator[Path]:
    """Make a private folder for one driver (staging, or changing a savepoint); remove it in the end."""
    folder, lock = make(STAGE)
    try:
        yield folder
    finally:
        _end(folder, lock)


class KeptFolder:
    """A private folder that is removed with this object, or at the end of the process."""

    def __init__(self, prefix: str) -> None:
        self.path, lock = make(prefix)
        weakref.finalize(self, _end, self.path, lock)


def _end(folder: Path, lock: int) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    os.close(lock)


def make(prefix: str) -> tuple[Path, int]:
    """Return a new folder, and an open file whose lock shows that its owner is alive.

    The lock ends with the last process that has the file. It is on the folder itself, which `systemd-tmpfiles` then
    leaves alone.
    """
    for dead in folders(prefix):
        sweep(dead)
    hidden = Path(tempfile.mkdtemp(prefix=f"{_HIDDEN}{prefix}"))
    lock = os.open(hidden, os.O_RDONLY | os.O_DIRECTORY)
    fcntl.flock(lock, fcntl.LOCK_SH)
    folder = hidden.with_name(hidden.name.removeprefix(_HIDDEN))
    hidden.rename(folder)  # it must not be found before it is locked
    return folder, lock


def folders(prefix: str) -> list[Path]:
    """Return the folders of this user, of living and dead processes."""
    found = []
    for folder in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        with suppress(OSError):
            if folder.lstat().st_uid == os.getuid() and folder.is_dir() and not folder.is_symlink():
                found.append(folder)
    return found


def sweep(folder: Path) -> bool:
    """Removes a folder whose owner has died; whether it did."""
    with suppress(OSError):
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
            return True
        finally:
            os.close(lock)
    return False


def write(path: Path, text: str) -> None:
    """Write a file for this user alone, atomically: readers find all of it or nothing."""
    temporary = path.with_suffix(".new")
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
        file.write(text)
    temporary.replace(path)
