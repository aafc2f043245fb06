"""Files of a table on a local disk survive a power cut before anything is reported. Object stores see to that alone."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

from airflow_ft.wal.local import folders_above


def local(location: str) -> Path | None:
    """Return the path of a location, as pyiceberg reads it: a % is a %. None: it is not on a disk."""
    parts = urlsplit(location)
    return Path(parts.path if parts.scheme else location) if parts.scheme in ("", "file") else None


def sync(locations: Iterable[str], *, missing_ok: bool = False) -> None:
    """Return when these files, and the folders above them, are on disk. Passes what is elsewhere.

    FileNotFoundError: a file is gone. `missing_ok`: a server may have written it to a disk of its own.
    """
    folders: set[Path] = set()
    for path in filter(None, map(local, locations)):
        try:
            _sync(path)
        except FileNotFoundError:
            if not missing_ok:
                raise
        else:
            folders |= set(folders_above(path))
    for folder in folders:
        with suppress(PermissionError):  # a folder that may not be read is none that this process has made
            _sync(folder)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
