"""The rows of a number as files in the table's folder, which no reader sees before a commit adds them.

    <table>/checkpoint-0000000042.3-17-1a2b3c4d/part-00000.parquet     or country=DE/part-00000.parquet in it

Files of the log become files of the table by a second name if their columns fit; otherwise the rows are written again.
If the process dies before the commit, a folder is left that no commit names, and VACUUM removes it.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import time
import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_ft.protocol.model import Plan
from airflow_ft.protocol.write_ahead_log import SegmentReader
from airflow_ft.sinks.base.table_columns import matched
from airflow_ft.sinks.delta.columns import FORMAT, Column, too_long
from airflow_ft.sinks.delta.table import Snapshot
from airflow_ft.sinks.files import partitions
from airflow_ft.sinks.files.table_rows import TableRows
from airflow_ft.sinks.files.writing import Files
from airflow_ft.sinks.refused import Refused

if TYPE_CHECKING:
    from deltalake.transaction import AddAction

_INDEXED = 32  # columns with statistics, as Spark has it by default (delta.dataSkippingNumIndexedCols)
_LONGEST = 32  # characters of a text in them
_DEEPEST = 255  # bytes of a partition's folders, one in the other
_SAFE = re.compile(r"[A-Za-z0-9_=/.+-]*")


@dataclass
class Rows(TableRows):
    """Files that one step adds to a version of the table."""

    form = FORMAT
    results = ("adds", "folders")

    version: Snapshot
    rank: tuple[int, int]
    adds: list[AddAction] = field(default_factory=list)
    folders: list[str] = field(default_factory=list)

    def _write(self, plan: Plan, readers: Sequence[SegmentReader], dead_letters: Refused | None) -> int:
        epoch, attempt = self.rank
        place, name = self.version.place, f"checkpoint-{plan.number:010}.{epoch}-{attempt}-{uuid.uuid4().hex[:8]}"
        folder, files = place.uri(name), place.files
        self.folders.append(folder)
        out = Files(files, folder, "parquet", "", self.file_bytes, checksums=False)
        by = self.version.partition_by
        finite = set.intersection(*map(self._finite, readers))
        places: dict[str, str] = {}

        def put(rows: pa.RecordBatch) -> None:
            for partition, part in partitions.split(rows, by):
                out.put(places.setdefault(partition, _folder(partition)), part)

        written = self._filled(out, readers, dead_letters, put)
        now = time.time()
        for each in written:
            place.renew(place.uri(name, each.path))
        if written:
            files.sync_tree(folder, place.root, {})
        values = {each: partitions.values_of(partition, by) for partition, each in places.items()}
        for each in written:
            with files.open(place.uri(name, each.path)) as footer:
                stats = statistics(pq.read_metadata(footer), finite)
            of = values.get(each.path.rpartition("/")[0], {})
            self.adds.append(_add(f"{name}/{each.path}", each.bytes, of, int(now * 1000), stats))
        return sum(each.rows for each in written)

    def _made_for(self) -> object:
        return self.version.table.metadata().id, self.version.columns, self.version.partition_by

    def _remove(self) -> None:
        for folder in self.folders:
            self.version.place.files.remove_tree(folder)

    def _judged(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, Mapping[int, str]]:
        rows = FORMAT.cast(batch, self.version.columns)
        for name in self.version.partition_by:
            if name not in rows.schema.names:  # NULL, as in any other column that rows lack
                rows = rows.append_column(name, pa.nulls(rows.num_rows, pa.string()))
        return rows, self._refused(rows)

    def _refused(self, rows: pa.RecordBatch) -> Mapping[int, str]:
        found = {**partitions.refused(rows, self.version.partition_by), **self._empty(rows)}
        for column in self._limited(rows.schema.names):
            found |= too_long(column, rows.column(column.name))
        return found

    def _limited(self, names: Collection[str]) -> list[Column]:
        """The columns among these that hold texts of a certain length alone."""
        written = {name.lower() for name in names}
        return [each for each in self.version.columns if each.characters and each.name.lower() in written]

    def _fits(self, reader: SegmentReader) -> bool:
        limited = self._limited(reader.schema(self.sink).names)
        return super()._fits(reader) and not self.version.partition_by and not limited

    def _finite(self, reader: SegmentReader) -> set[str]:
        """Columns without NaN: Parquet leaves it out of its bounds, and to Spark it is above all numbers."""
        there = matched(reader.schema(self.sink), self.version.columns)
        known = reader.statistics(self.sink)
        return {column.name for name, column in there.items() if name in known and not known[name].nans}


def _add(path: str, size: int, values: Mapping[str, str | None], now: int, stats: str) -> AddAction:
    from deltalake.transaction import AddAction

    return AddAction(path, size, values, now, True, stats)


def _folder(place: str) -> str:
    """Return the folder of a partition's rows.

    Readers use the log, so the folder gets another name where some readers would misread it, or the path is too long.
    """
    plain = _SAFE.fullmatch(place) and len(place) <= _DEEPEST
    return place if plain else f"partition-{hashlib.sha256(place.encode()).hexdigest()[:16]}"


def statistics(footer: pq.FileMetaData, finite: set[str]) -> str:
    """Return what the log says of a file, so that readers can pass it: taken from the file's own footer.

    Bounds of columns that are not certain to be bounds are left out (texts that are long; numbers that may be NaN).
    """
    schema = footer.schema.to_arrow_schema()
    plain = {item.name for item in list(schema)[:_INDEXED] if not pa.types.is_nested(item.type)}
    found: dict[str, list[Any]] = {}
    for group in map(footer.row_group, range(footer.num_row_groups)):
        for index, chunk in enumerate(map(group.column, range(group.num_columns))):
            name = footer.schema.column(index).name  # of a nested column only the last part of its path
            if name == chunk.path_in_schema and name in plain:
                found.setdefault(name, []).append((chunk.statistics, group.num_rows))
    least, most, nulls = {}, {}, {}
    for name, groups in found.items():
        if all(known is not None and known.has_null_count for known, _ in groups):
            nulls[name] = str(sum(known.null_count for known, _ in groups))
            bounded = [known for known, rows in groups if known.null_count < rows]
            if bounded and all(known.has_min_max for known in bounded):
                try:
                    low, high = min(known.min for known in bounded), max(known.max for known in bounded)
                except (OverflowError, ValueError):  # dates and times that Python does not have
                    continue
                zoned = pa.types.is_timestamp(kind := schema.field(name).type) and kind.tz is not None
                if not pa.types.is_floating(kind) or name in finite:
                    texts = _bound(low, zoned, up=False), _bound(high, zoned, up=True)
                    if texts[0] and texts[1]:
                        least[name], most[name] = texts
    parts = {"minValues": least, "maxValues": most, "nullCount": nulls}
    inner = ",".join(f'"{key}":{{{_members(values)}}}' for key, values in parts.items())
    return f'{{"numRecords":{footer.num_rows},{inner}}}'


def _members(values: Mapping[str, str]) -> str:
    return ",".join(f"{json.dumps(name)}:{text}" for name, text in values.items())


def _bound(value: Any, zoned: bool, *, up: bool) -> str:
    """As JSON; times in milliseconds, as Spark writes and reads them, rounded away from the values. "": none."""
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal | str | date | datetime):
        return ""
    if isinstance(value, datetime):
        value = value.astimezone(UTC) if value.tzinfo else value
        below = value.replace(microsecond=value.microsecond // 1000 * 1000)
        try:
            rounded = below + timedelta(milliseconds=1) if up and below != value else below
        except OverflowError:  # in the last millisecond of the year 9999
            return ""
        return json.dumps(rounded.replace(tzinfo=None).isoformat(timespec="milliseconds") + ("Z" if zoned else ""))
    if isinstance(value, float):
        return json.dumps(value) if math.isfinite(value) else ""
    if isinstance(value, str):
        return json.dumps(value) if len(value) <= _LONGEST else ""
    return (
        format(value, "f")
        if isinstance(value, Decimal)
        else json.dumps(str(value) if isinstance(value, date) else value)
    )
