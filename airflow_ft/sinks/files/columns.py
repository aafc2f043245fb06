"""Check whether a folder takes rows with these columns, and whether readers can read them beside earlier rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa

from airflow_ft.protocol.errors import AirflowFtError, UnfitTargetError
from airflow_ft.sinks.base.changes import missing_in_rows
from airflow_ft.sinks.base.table_columns import declined
from airflow_ft.sinks.files.markers import LABEL
from airflow_ft.sinks.files.partitions import can_partition
from airflow_ft.sinks.files.spec import FilesSink
from airflow_ft.sinks.files.writing import unwritable


def layout(sink: FilesSink, schema: pa.Schema, before: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the layout of rows in a folder, as its manifest stores it for later rows.

    `before`: the layout of earlier rows. Its columns stay known, even if these rows lack some.
    """
    columns = dict(before["columns"]) if before is not None else {}
    return {
        "format": sink.format,
        "partition_by": list(sink.partition_by),
        "columns": [[*each] for each in (columns | {field.name: str(field.type) for field in schema}).items()],
    }


def judged(
    sink: FilesSink, schemas: Iterable[pa.Schema], before: Mapping[str, Any] | None, name: str
) -> Iterator[AirflowFtError]:
    """Yield all that speaks against rows of these schemas, one behind the other."""
    for schema in schemas:
        yield from schema_problems(sink, schema, before, name)
        if len(schema):
            before = layout(sink, schema, before)


def schema_problems(
    sink: FilesSink, schema: pa.Schema, before: Mapping[str, Any] | None, name: str
) -> Iterator[AirflowFtError]:
    """All that speaks against such rows. `before`: the layout of the newest rows in the folder."""
    if len(schema) == 0:
        return
    for field in schema:
        kind = str(field.type)
        if field.name.lower() == LABEL:
            what = f"rows have a column {field.name!r}, but readers take that name from the folders of checkpoints."
            yield declined(what, "column_reserved", "Rename it in the job.", name, field.name)
        elif field.name not in sink.partition_by and (why := unwritable(sink.format, field.type)):
            what = f"{sink.format} cannot hold {kind}: {why}."
            remedy = "Cast or drop the column in the job, or use another format."
            yield declined(what, "type_unsupported", remedy, name, field.name, type=kind)
    for column in sink.partition_by:
        if column not in schema.names:
            yield missing_in_rows(column, "partition_by", schema.names).located(sink=name)
        elif not can_partition(kind := schema.field(column).type):
            what = f"values of type {kind} do not read back from the name of a folder."
            remedy = "Partition by text, whole numbers, booleans or dates."
            yield declined(what, "column_unfit", remedy, name, column, type=str(kind))
    if set(schema.names) <= set(sink.partition_by):
        yield declined("no column is left for the files.", "no_column_left", "Partition by fewer columns.", name)
    if before is not None:
        yield from _changes(layout(sink, schema), before, name)


def _changes(now: Mapping[str, Any], before: Mapping[str, Any], name: str) -> Iterator[AirflowFtError]:
    for setting in ("format", "partition_by"):
        if now[setting] != before[setting]:
            what = f"the folder has {setting} {before[setting]!r}, the sink has {now[setting]!r}: no reader reads both."
            yield _changed(what, name, setting=setting)
            return
    known, columns = dict(before["columns"]), dict(now["columns"])
    for column, kind in columns.items():
        if column in known and _plain(kind) != _plain(known[column]):
            what = f"its type is {kind}, but {known[column]} in the existing files: no reader reads both."
            yield _changed(what, name, column=column, type=kind, before=known[column])
    if now["format"] == "csv" and list(columns) != list(known):
        different = [column for column in [*columns, *known] if (column in known) != (column in columns)]
        what = (
            f"the columns are {', '.join(columns)}, but {', '.join(known)} in the existing files. Readers of CSV go by"
            " the order of columns."
        )
        column = different[0] if different else ""
        yield _changed(what, name, column=column, columns=list(columns), before=list(known))


def _plain(kind: str) -> str:
    """Return a type without "not null" of the values in it: readers read both."""
    return kind.replace(" not null", "")


def _changed(what: str, sink: str, **fields: Any) -> UnfitTargetError:
    remedy = "Deliver into another folder, and have readers read both. Or undo the change."
    return UnfitTargetError(what, code="layout_changed", remedy=remedy, sink=sink, **fields)
