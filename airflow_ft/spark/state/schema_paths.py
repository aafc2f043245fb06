"""`transformWithState` names the files of its schemas by absolute paths, in `state/<operator>/_metadata/v2/<batch>`.

    {"stateStoreInfo":[{"stateSchemaFilePaths":["file:/wal/p/spark/1-1/state/0/_stateSchema/default/0_c4d7..."]}], ...}

A copy of a location would read the files of its original, and fail when that is swept; and each later batch passes the
paths on. So a copy gets such files of its own, with paths into itself. They are never links: linked files must not be
edited, and a link's checksum file would not fit.

After a crash such a copy may lack some of them. It is the folder of an attempt that is never continued (see
`locations`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

from airflow_ft.protocol.errors import WalCorruptError
from airflow_ft.wal.checksums import RESTORE_STATE, read_checked
from airflow_ft.wal.filesystem import FileSystem, filesystem

_PATHS = "stateSchemaFilePaths"
_VERSIONS = ("_metadata", "v2")
_SCHEMA = re.compile(r"^.*/(state/\d+/_stateSchema/.+)$", re.DOTALL)


def names_schemas(name: PurePosixPath) -> bool:
    """Return whether a file of a location, by its relative name, holds such paths (or the checksum of such a file)."""
    return len(name.parts) == 5 and name.parts[0] == "state" and name.parts[2:4] == _VERSIONS


def are_own(files: FileSystem, location: str) -> bool:
    """Return whether the newest file of each operator, which the next one is made from, names schemas in this
    location.
    """
    for folder in _folders(files, location):
        batches = [int(name) for name in files.names(folder) if name.isdigit()]
        if batches:
            text = read_checked(files, files.uri(folder, str(max(batches)))).decode()
            if rewritten(files, text, location) != text:
                return False
    return True


def copy(source: str, target: str, batch: int) -> None:
    """Writes into a copy what the files of the source say up to `batch`, with paths into the copy.

    WalCorruptError when a schema is not in the copy.
    """
    files, others = filesystem(source), filesystem(target)
    for folder in _folders(files, source):
        operator = PurePosixPath(folder).parts[-3]
        for name in files.names(folder):
            if name.isdigit() and int(name) <= batch:
                text = rewritten(others, read_checked(files, files.uri(folder, name)).decode(), target)
                others.write(others.uri(target, "state", operator, *_VERSIONS, name), text.encode())


def _folders(files: FileSystem, location: str) -> list[str]:
    operators = files.names(files.uri(location, "state"))
    return [files.uri(location, "state", operator, *_VERSIONS) for operator in operators if operator.isdigit()]


def rewritten(files: FileSystem, text: str, location: str) -> str:
    """The same with all paths into `location`; the very text when they are. Line 1 is the format, line 2 JSON.

    WalCorruptError when a schema is not there.
    """
    version, _, data = text.partition("\n")
    found = json.loads(data)
    changed = False
    for store in found.get("stateStoreInfo", ()):
        if paths := store.get(_PATHS):
            store[_PATHS] = [_own_path(files, path, location) for path in paths]
            changed |= store[_PATHS] != paths
    return f"{version}\n{json.dumps(found, separators=(',', ':'), ensure_ascii=False)}" if changed else text


def schema_file(files: FileSystem, location: str, operator: str, store: Mapping[str, Any]) -> str:
    """Return where the types of a store lie, which an operator's metadata describe; the newest of several versions."""
    if paths := store.get(_PATHS):
        return _within(files, paths[-1], location)
    return files.uri(store_folder(files, location, operator, 0, str(store["storeName"])), "_metadata", "schema")


def store_folder(files: FileSystem, location: str, operator: str, partition: int, store: str) -> str:
    """Return the folder of a state store."""
    return files.uri(location, "state", operator, str(partition), *([] if store == "default" else [store]))


def _within(files: FileSystem, path: str, location: str) -> str:
    """The URI in `location` of a schema that is named by a path in some location."""
    match = _SCHEMA.match(path)
    if match is None:
        raise WalCorruptError(
            f"a state operator in {location} names the schema file {path}, which is in no checkpoint location of"
            " Spark.",
            code="state_damaged",
            remedy="Report it, with the version of Spark. `airflow ft reset-state PIPELINE` drops the state.",
            path=path,
        )
    return files.uri(location, *match[1].split("/"))


def _own_path(files: FileSystem, path: str, location: str) -> str:
    uri = _within(files, path, location)
    if not files.exists(uri):
        raise WalCorruptError(
            f"the schema {uri} of Spark's state is missing.",
            code="state_files_missing",
            remedy=RESTORE_STATE,
            path=uri,
        )
    return re.sub("^file:/+", "file:/", files.hadoop_path(uri))  # as Hadoop prints a path
