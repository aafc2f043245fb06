"""Manifests of a Paimon table: which files a snapshot consists of (Avro).

A snapshot names two lists of manifests: one of what was there before, and one of what it adds. A manifest has an entry
for each file that was added or deleted. The entries of files without statistics are read by all writers since 0.9.
"""

from __future__ import annotations

import io
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import fastavro
from backports.zstd import ZstdError

from airflow_ft.protocol.errors import SinkAccessError, WalCorruptError
from airflow_ft.sinks.paimon.binary_row import EMPTY, Value, decoded, encoded
from airflow_ft.wal.filesystem import FileSystem

FOLDER = "manifest"
ADDED, DELETED = 0, 1
_VERSION = 2
_MERGED_FROM = 30
"""Small manifests that are put together (Paimon's default of manifest.merge-min-count)."""
_SMALL = 8 << 20
"""Bytes of a manifest that is not put together with others (Paimon's default of manifest.target-file-size)."""
_CODEC = "zstandard"
_FROM_FILE = 0
"""The source of files that a writer has appended, not made of others."""


def _stats(name: str) -> dict[str, Any]:
    counts = ["null", {"type": "array", "items": ["null", "long"]}]
    fields = [
        {"name": "_MIN_VALUES", "type": "bytes"},
        {"name": "_MAX_VALUES", "type": "bytes"},
        {"name": "_NULL_COUNTS", "type": counts, "default": None},
    ]
    return {"type": "record", "name": name, "fields": fields}


def _optional(**kinds: Any) -> list[dict[str, Any]]:
    return [{"name": f"_{name}", "type": ["null", kind], "default": None} for name, kind in kinds.items()]


def _plain(**kinds: Any) -> list[dict[str, Any]]:
    return [{"name": f"_{name}", "type": kind} for name, kind in kinds.items()]


_TEXTS = {"type": "array", "items": "string"}
_FILE = {
    "type": "record",
    "name": "DataFileMeta",
    "fields": [
        *_plain(FILE_NAME="string", FILE_SIZE="long", ROW_COUNT="long", MIN_KEY="bytes", MAX_KEY="bytes"),
        *_plain(KEY_STATS=_stats("record_KEY_STATS"), VALUE_STATS=_stats("record_VALUE_STATS")),
        *_plain(MIN_SEQUENCE_NUMBER="long", MAX_SEQUENCE_NUMBER="long", SCHEMA_ID="long", LEVEL="int"),
        *_plain(EXTRA_FILES=_TEXTS),
        *_optional(CREATION_TIME={"type": "long", "logicalType": "timestamp-millis"}, DELETE_ROW_COUNT="long"),
        *_optional(EMBEDDED_FILE_INDEX="bytes", FILE_SOURCE="int", VALUE_STATS_COLS=_TEXTS, EXTERNAL_PATH="string"),
        *_optional(FIRST_ROW_ID="long", WRITE_COLS=_TEXTS, WRITE_COLS_SEQUENCES={"type": "array", "items": "long"}),
    ],
}
_ENTRY = fastavro.parse_schema(
    {
        "type": "record",
        "name": "ManifestEntry",
        "fields": [
            *_plain(VERSION="int", KIND="int", PARTITION="bytes", BUCKET="int", TOTAL_BUCKETS="int"),
            *_plain(FILE=_FILE),
        ],
    }
)
_LISTED = fastavro.parse_schema(
    {
        "type": "record",
        "name": "ManifestFileMeta",
        "fields": [
            *_plain(VERSION="int", FILE_NAME="string", FILE_SIZE="long", NUM_ADDED_FILES="long"),
            *_plain(NUM_DELETED_FILES="long", PARTITION_STATS=_stats("record_PARTITION_STATS"), SCHEMA_ID="long"),
            *_optional(MIN_BUCKET="int", MAX_BUCKET="int", MIN_LEVEL="int", MAX_LEVEL="int", MIN_ROW_ID="long"),
            *_optional(MAX_ROW_ID="long", TOTAL_BUCKETS="int", EXTRA_FILES=_TEXTS),
        ],
    }
)
_NO_STATS = {"_MIN_VALUES": EMPTY, "_MAX_VALUES": EMPTY, "_NULL_COUNTS": []}

_DAMAGED = (ValueError, EOFError, LookupError, TypeError, ZstdError)
"""What fastavro raises for bytes that are no Avro file."""

Record = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Slot:
    """A bucket of a partition, and how many buckets it is one of; -1: the table has none."""

    partition: bytes
    bucket: int = 0
    buckets: int = -1


def entry(
    slot: Slot, name: str, size: int, rows: int, schema_id: int, first: int = 0, more: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return the entry of a file that is added.

    `first` is the sequence number of its first row. `more` are other fields of the file, such as those of its keys.
    """
    file = {
        "_FILE_NAME": name, "_FILE_SIZE": size, "_ROW_COUNT": rows, "_MIN_KEY": EMPTY, "_MAX_KEY": EMPTY,
        "_KEY_STATS": _NO_STATS, "_VALUE_STATS": _NO_STATS, "_VALUE_STATS_COLS": [], "_EXTRA_FILES": [],
        "_MIN_SEQUENCE_NUMBER": first, "_MAX_SEQUENCE_NUMBER": first + rows - 1, "_SCHEMA_ID": schema_id, "_LEVEL": 0,
        "_CREATION_TIME": int(time.time() * 1000), "_DELETE_ROW_COUNT": 0, "_FILE_SOURCE": _FROM_FILE,
        **(more or {}),
    }  # fmt: skip
    return {
        "_VERSION": _VERSION, "_KIND": ADDED, "_PARTITION": slot.partition, "_BUCKET": slot.bucket,
        "_TOTAL_BUCKETS": slot.buckets, "_FILE": file,
    }  # fmt: skip


def identity(record: Record) -> tuple[Any, ...]:
    """Return what makes two entries entries of one file."""
    file = record["_FILE"]
    others = (file.get("_EXTERNAL_PATH"), file.get("_EMBEDDED_FILE_INDEX"), *file["_EXTRA_FILES"])
    return (record["_PARTITION"], record["_BUCKET"], file["_LEVEL"], file["_FILE_NAME"], *others)


@dataclass
class Manifests:
    """The manifests in a table's folder. `written` are the files that were written through this one."""

    files: FileSystem
    root: str

    def __post_init__(self) -> None:
        self.written: list[str] = []

    def uri(self, name: str) -> str:
        """Return where a manifest, or a list of them, lies."""
        return self.files.uri(self.root, FOLDER, name)

    def listed(self, snapshot: Record | None) -> list[Record]:
        """Return what a snapshot lists, the oldest first."""
        if snapshot is None:
            return []
        names = (snapshot["baseManifestList"], snapshot["deltaManifestList"])
        return [record for name in names for record in self._read(name)]

    def entries(self, listed: Iterable[Record]) -> Iterator[Record]:
        """Yield the entries of such manifests, one manifest after the other."""
        for record in listed:
            yield from self._read(record["_FILE_NAME"])

    def live(self, listed: Sequence[Record]) -> list[Record]:
        """Return the entries of the files that are there, in their order."""
        return [record for record in _net(self.entries(listed)) if record["_KIND"] == ADDED]

    def write(self, entries: Sequence[Record], kinds: Sequence[str], schema_id: int) -> Record:
        """Write a manifest, durably, and return what a list says of it. `kinds` are those of partition columns."""
        name = f"manifest-{uuid.uuid4()}-0"
        size = self._write(name, _ENTRY, entries)
        deleted = sum(record["_KIND"] == DELETED for record in entries)
        return {
            "_VERSION": _VERSION, "_FILE_NAME": name, "_FILE_SIZE": size, "_NUM_ADDED_FILES": len(entries) - deleted,
            "_NUM_DELETED_FILES": deleted, "_PARTITION_STATS": _bounds(entries, kinds), "_SCHEMA_ID": schema_id,
        }  # fmt: skip

    def write_list(self, listed: Sequence[Record]) -> tuple[str, int]:
        """Write a list of manifests, durably, and return its name and size."""
        name = f"manifest-list-{uuid.uuid4()}-0"
        return name, self._write(name, _LISTED, listed)

    def merged(self, listed: Sequence[Record], kinds: Sequence[str], schema_id: int) -> list[Record]:
        """Return the list with small manifests put together, if they are many: each commit adds one."""
        small = [record for record in listed if record["_FILE_SIZE"] < _SMALL]
        if len(small) < _MERGED_FROM:
            return list(listed)
        runs: list[list[Record]] = []
        for record in listed:  # only neighbours: an entry that deletes a file stays behind the one that added it
            size = record["_FILE_SIZE"]
            if not runs or size >= _SMALL or sum(each["_FILE_SIZE"] for each in runs[-1]) + size > _SMALL:
                runs.append([])
            runs[-1].append(record)
        found: list[Record] = []
        for run in runs:
            entries = _net(self.entries(run)) if len(run) > 1 else []
            if entries:
                found.append(self.write(entries, kinds, schema_id))
            elif len(run) == 1:
                found += run
        return found

    def discard(self) -> None:
        """Remove what was written: no snapshot names it."""
        for uri in self.written:
            self.files.remove(uri)
        self.written.clear()

    def _read(self, name: str) -> Iterator[Record]:
        try:
            data = self.files.read(self.uri(name))
            yield from fastavro.reader(io.BytesIO(data))  # type: ignore[misc]  # no unions of records here
        except (WalCorruptError, *_DAMAGED) as error:
            raise unreadable(self.uri(name), error) from error

    def _write(self, name: str, schema: Any, records: Sequence[Record]) -> int:
        out = io.BytesIO()
        fastavro.writer(out, schema, records, codec=_CODEC)
        data = out.getvalue()
        self.files.write(self.uri(name), data)
        self.written.append(self.uri(name))
        return len(data)


def unreadable(uri: str, error: Exception) -> SinkAccessError:
    """Return the error for a file of the table's that is damaged or gone."""
    what = f"a file of the table's metadata cannot be read: {uri} ({type(error).__name__})."
    remedy = f"Check {uri}, and restore damaged or missing files from a backup."
    return SinkAccessError(what, code="log_unreadable", remedy=remedy, path=uri)


def _net(entries: Iterable[Record]) -> list[Record]:
    """Return the entries without pairs of a file that was added and deleted."""
    found: dict[tuple[Any, ...], Record] = {}
    for record in entries:
        key = identity(record)
        if record["_KIND"] == DELETED and key in found and found[key]["_KIND"] == ADDED:
            del found[key]
        else:
            found[key] = record
    return list(found.values())


def _bounds(entries: Sequence[Record], kinds: Sequence[str]) -> Record:
    """Return the bounds of each partition column, by which readers pass a manifest."""
    rows = [decoded(data, kinds) for data in dict.fromkeys(record["_PARTITION"] for record in entries)]
    columns = list(zip(*rows, strict=True))
    least: list[Value] = []
    most: list[Value] = []
    for column in columns:
        there: list[Any] = [value for value in column if value is not None]
        least.append(min(there, default=None))
        most.append(max(there, default=None))
    nulls = [sum(value is None for value in column) for column in columns]
    return {"_MIN_VALUES": encoded(least, kinds), "_MAX_VALUES": encoded(most, kinds), "_NULL_COUNTS": nulls}
