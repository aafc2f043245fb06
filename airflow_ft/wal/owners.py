"""Which decision logs use a pipeline's folder. Where several do, nothing is swept.

    <root>/<pipeline>/.airflow-ft-log-<installation>      {"format": 1, "log": "<URL without secrets>"}

A sweep deletes what its own decision log does not name. So where two logs have a pipeline of one name in one root, each
would delete what the other one has published. Each log registers before it writes. If the process dies before that, it
has written nothing; registering once more changes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import suppress

from airflow_ft.protocol.decision_log import QueryLog
from airflow_ft.protocol.model import canonical_json
from airflow_ft.wal.filesystem import FileSystem, filesystem

PREFIX = ".airflow-ft-log-"
REMEDY = (
    "Give each decision log its own `wal_root`, or its pipeline another name. If one of the logs is gone for good,"
    " delete its file."
)
FORMAT = 1


def register(store: QueryLog, root: str, pipeline: str) -> str:
    """Note that this decision log uses the pipeline's folder; which others do (as `shared`)."""
    files = filesystem(root)
    folder = files.uri(root, pipeline)
    where = files.uri(folder, f"{PREFIX}{store.installation}")
    if not files.exists(where):
        with suppress(FileExistsError):  # another process of this log was faster
            files.write(where, canonical_json({"format": FORMAT, "log": store.url}).encode())
    return shared(files, folder, files.names(folder))


def shared(files: FileSystem, folder: str, names: Iterable[str]) -> str:
    """Say which decision logs use a pipeline's folder that has these names in it; "": one at most."""
    found = sorted(name for name in names if name.startswith(PREFIX))
    if len(found) < 2:
        return ""
    owners_text = ", ".join(f"{name} ({_log(files, files.uri(folder, name))})" for name in found)
    return f"{len(found)} decision logs use {folder}: {owners_text}. So files of ended attempts stay there."


def _log(files: FileSystem, where: str) -> str:
    with suppress(OSError, ValueError, KeyError, TypeError), files.open_plain(where) as file:
        return str(json.loads(file.read())["log"])
    return "not readable"
