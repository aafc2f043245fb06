"""Deleting what nobody needs any more (I10). Who calls it has asked the store, and has written PRUNING before.

Each function may be repeated, and may die in the middle.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from airflow_ft.core.errors import ConfigurationError
from airflow_ft.core.model import Segment
from airflow_ft.wal.filesystem import FileSystem, filesystem

_ATTEMPT = re.compile(r"^\.?(\d+)-(\d+)(\.removed)?$")  # the second form: a removal that was interrupted
SPARK = "spark"


def delete_segment(segment: Segment) -> None:
    """Deletes the folder of a segment; that of its attempt goes with a later `sweep`."""
    files = filesystem(segment.location)
    location = files.uri(segment.location)
    attempt, _, batch = location.rpartition("/")
    if not batch.isdigit() or not _ATTEMPT.match(attempt.rpartition("/")[2]):
        raise ConfigurationError(f"{location} is not the folder of a segment; nothing was deleted")
    files.remove_tree(location)


def sweep(root: str, pipeline: str, epoch: int, needed: Collection[str]) -> list[str]:
    """Deletes what attempts of epochs older than `epoch` left and nobody needs; returns the URIs deleted.

    Call it as the holder of `epoch`, with `needed` read from the store *after* the epoch was taken: from then on no
    older attempt can publish (I5), so what is not named now never will be. `needed` holds the locations of the
    segments that are not pruned, and the Spark locations of: the pipeline's base, every undelivered or retained
    number, and savepoints. Folders of this epoch are left alone: another task of the same run may be writing there.
    """
    files = filesystem(root)
    kept = {files.uri(uri) for uri in needed}
    deleted = []
    for folder in _old(files, files.uri(root, pipeline), epoch):
        batches = files.names(folder)
        unneeded = [uri for name in batches if (uri := files.uri(folder, name)) not in kept]
        for uri in [folder] if len(unneeded) == len(batches) else unneeded:
            files.remove_tree(uri)
            deleted.append(uri)
    for location in _old(files, files.uri(root, pipeline, SPARK), epoch):
        if location not in kept:
            files.remove_tree(location)
            deleted.append(location)
    return deleted


def _old(files: FileSystem, folder: str, epoch: int) -> list[str]:
    names = sorted(files.names(folder))
    return [files.uri(folder, name) for name in names if (match := _ATTEMPT.match(name)) and int(match[1]) < epoch]
