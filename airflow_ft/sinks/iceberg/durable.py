"""Files of a table on a local disk survive a power cut before anything is reported. Object stores see to that alone."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import unquote, urlsplit


def local(location: str) -> Path | None:
    """Return the path of a location; None: it is not on a disk."""
    parts = urlsplit(location)
    return Path(unquote(parts.path) if parts.scheme else location) if parts.scheme in ("", "file") else None


def sync(locations: Iterable[str], table: str) -> None:
    """Return when these files, and the folders up to that of the table, are on disk. Passes what is elsewhere."""
    paths = [path for path in map(local, locations) if path is not None and path.exists()]
    top = local(table)
    folders: set[Path] = set()
    for path in paths:
        _sync(path)
        folders.add(path.parent)
        if top is not None and top in path.parents:
            folders |= {each for each in path.parents if top.parent in (each, *each.parents)}
    for folder in folders:
        _sync(folder)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
