"""Read the column of the kind of change, and show the rows without the deletes among them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from airflow_ft.protocol.errors import DeclinedError, UnfitTargetError
from airflow_ft.protocol.lookup import did_you_mean
from airflow_ft.protocol.write_ahead_log import ColumnStatistics, SegmentReader, WalFile
from airflow_ft.sinks.arrow import decoded
from airflow_ft.sinks.base.memory import Marker
from airflow_ft.sinks.view import SegmentView

DELETES = ("d", "delete", "-d")
UPSERTS = ("c", "r", "u", "i", "insert", "update", "upsert", "+i", "+u")
"""As Debezium, Flink and plain words say it, in any case of letters."""
VERSIONS = "versions"
"""The detail of a marker that lists the version columns which this delivery wrote, each as "table.column"."""


def deletes_and_known(kinds: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Return which rows are deletes, and which have a known kind of change; NULL is not known."""
    words = pc.utf8_lower(decoded(kinds).cast(pa.large_string()))
    deletes = pc.is_in(words, value_set=pa.array(DELETES, pa.large_string()))
    return deletes, pc.or_(deletes, pc.is_in(words, value_set=pa.array(UPSERTS, pa.large_string())))


def is_delete(kinds: pa.Array, column: str) -> pa.Array:
    """Return which rows are deletes. DeclinedError for a kind that means neither."""
    deletes, known = deletes_and_known(kinds)
    if (index := pc.index(known, False).as_py()) >= 0:
        value = kinds[index].as_py()
        what = f"the value {value!r} is not a kind of change."
        remedy = (
            f"Write {', '.join(DELETES)} for a delete, or {', '.join(UPSERTS)} for an upsert, in upper or lower case."
        )
        raise DeclinedError(what, code="change_kind_unknown", remedy=remedy, column=column, value=value)
    return deletes


def missing_kind(column: str, known: Sequence[str]) -> DeclinedError:
    """Return the error for rows without the column of the kind of change; `known`: those that they have."""
    return missing_in_rows(column, "change_column", known)


def missing_in_rows(column: str, argument: str, known: Sequence[str]) -> DeclinedError:
    """Return the error for rows without a column that an argument of the sink names; `known`: those that they have."""
    return DeclinedError(
        f"the rows have no column {column!r}, which {argument}= of the sink names. They have: {', '.join(known)}.",
        code="job_column_missing",
        remedy=f"{did_you_mean(column, known)}Correct {argument}= of the sink, or add {column} to the job's result.",
        column=column,
        argument=argument,
        columns=list(known),
    )


def written_versions(newest: Marker | None) -> Collection[str]:
    """Return the version columns that the newest delivery wrote. Rows there have lower versions than the next one."""
    return newest.detail.get(VERSIONS, ()) if newest is not None else ()


def versions_ahead(table: str, column: str, number: int, sink: str) -> UnfitTargetError:
    """The error for a table whose rows have versions of `number` or later before this pipeline has written any.

    The versions are of another pipeline, or from before its log was lost. Changes of those rows would have no effect.
    """
    return UnfitTargetError(
        f"{table} has rows with a {column} of {number} or more, which this pipeline has not written. Changes of these"
        " rows would have no effect, since its checkpoints have lower numbers.",
        code="versions_ahead",
        remedy=f"If no other pipeline writes to it any more: UPDATE {table} SET {column} = 0. Else use another table.",
        sink=sink,
        table=table,
        column=column,
    )


def versions_unread(table: str, column: str, sink: str, words: str, index: str) -> UnfitTargetError:
    """Return the error for a table in which the search for higher versions takes too long.

    `index`: the end of CREATE INDEX.
    """
    return UnfitTargetError(
        f"the search for the highest {column} in {table}, before the first delivery, took too long: {words}",
        code="versions_unread",
        remedy=f"Run CREATE INDEX {index}. You may drop it after the first delivery.",
        sink=sink,
        table=table,
        column=column,
    )


class _ByKind(SegmentView):
    """Some of the rows, by their kind of change. Its statistics are unknown, so that the rows are looked at."""

    def __init__(self, reader: SegmentReader, column: str) -> None:
        super().__init__(reader)
        self._column = column

    def statistics(self, sink: str) -> Mapping[str, ColumnStatistics]:
        return {}

    def _deletes(self, batch: pa.RecordBatch) -> pa.Array:
        return is_delete(batch.column(batch.schema.get_field_index(self._column)), self._column)


class LiveRows(_ByKind):
    """Without the deletes, whose other columns than the key are often empty and are not judged."""

    def batches(self, sink: str, file: WalFile) -> Iterator[pa.RecordBatch]:
        for batch in self._reader.batches(sink, file):
            yield batch.filter(pc.invert(self._deletes(batch)))


class DeletedKeys(_ByKind):
    """The deletes, and of their columns those in `keys`, as the rows name them."""

    def __init__(self, reader: SegmentReader, column: str, keys: Sequence[str]) -> None:
        super().__init__(reader, column)
        self._keys = list(keys)

    def schema(self, sink: str) -> pa.Schema:
        schema = super().schema(sink)
        return pa.schema([schema.field(key) for key in self._keys])

    def batches(self, sink: str, file: WalFile) -> Iterator[pa.RecordBatch]:
        for batch in self._reader.batches(sink, file):
            yield batch.filter(self._deletes(batch)).select(self._keys)
