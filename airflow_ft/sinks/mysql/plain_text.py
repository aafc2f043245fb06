"""Values that verification compares: rows as digests that the server computes, with ENUM and SET as plain text.

They are plain text so that nothing is converted on the log's side. Else the server would convert a text in the log as
it did in the target ('1' into the first label), and a changed value would look right. The labels of a SET are put into
the column's order first, as the target has them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import pyarrow as pa

from airflow_ft.protocol.write_ahead_log import SegmentReader, WalFile
from airflow_ft.sinks.mysql.catalog import VALID_DATE, Column
from airflow_ft.sinks.mysql.column_fit import BYTES
from airflow_ft.sinks.mysql.labels import LABELLED, Labels
from airflow_ft.sinks.mysql.naming import quote
from airflow_ft.sinks.mysql.vote import Target
from airflow_ft.sinks.view import SegmentView


def without_labels(target: Target) -> Target:
    """The target with text in the place of ENUM and SET."""
    columns = {
        name: replace(column, type="longtext", full_type="longtext") if column.type in LABELLED else column
        for name, column in target.table.columns.items()
    }
    return replace(target, table=replace(target.table, columns=columns))


def definitions(target: Target, columns: Sequence[str], keys: Sequence[str] = ()) -> list[str]:
    """Columns that CREATE TABLE ... (here) SELECT must not copy: ENUM and SET, which become text, and zero defaults.

    `keys` are as long as a label can be, since a key cannot be of any length.
    """
    short = {key.lower() for key in keys}
    found = []
    for name in columns:
        column = target.table.column(name)
        if column is not None and column.has_zero_default:
            default = "NULL" if column.nullable else f"NOT NULL DEFAULT '{VALID_DATE}'"
            found.append(f"{quote(column.name)} {column.full_type} {default}")
        if column is not None and column.type in LABELLED:
            kind = "VARCHAR(255)" if name.lower() in short else "LONGTEXT"
            found.append(f"{quote(column.name)} {kind} CHARACTER SET {column.charset} COLLATE {column.collation}")
    return found


class InOrder(SegmentView):
    """Texts for SET columns have their labels in the column's order."""

    def __init__(self, reader: SegmentReader, sets: Mapping[str, Labels]) -> None:
        super().__init__(reader)
        self._sets = sets  # by the names that the rows have for the columns

    def batches(self, sink: str, file: WalFile) -> Iterator[pa.RecordBatch]:
        for batch in self._reader.batches(sink, file):
            columns = [
                self._sets[name].in_order(array) if name in self._sets else array
                for name, array in zip(batch.schema.names, batch.columns, strict=True)
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=batch.schema)


def in_order(reader: SegmentReader, target: Target) -> SegmentReader:
    """The segment's rows as the target would give them back."""
    if target.sink not in reader.sinks():
        return reader
    written = target.written(reader.schema(target.sink))
    sets = {column.source: column.labels for column in written if column.labels is not None and column.labels.several}
    return InOrder(reader, sets) if sets else reader


def digest(alias: str, columns: Sequence[Column]) -> str:
    """SHA-256 over the columns' own digests: unambiguous, and no value is ever copied into a longer one."""
    each = ", ".join(
        f"COALESCE(SHA2({_exact(f'{alias}.{quote(column.name)}', column)}, 256), '-')" for column in columns
    )
    return f"UNHEX(SHA2(CONCAT_WS(',', {each}), 256))"


def _exact(name: str, column: Column) -> str:
    """The value as text that is equal only for equal values."""
    if column.type in BYTES:
        return name
    if column.type == "float":
        return f"CAST({name} + 0E0 AS CHAR)"  # as text a FLOAT shows six digits only
    if column.type == "bit":
        return f"CAST({name} + 0 AS CHAR)"
    return f"CAST({name} AS CHAR CHARACTER SET utf8mb4)"
