"""Columns of the rows and of a Paimon table: do they fit, and what does a schema of the table call them?"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from airflow_ft.protocol.errors import AirflowFtError, UnfitTargetError
from airflow_ft.protocol.numbers import count_text
from airflow_ft.sinks.base.changes import missing_in_rows, missing_kind
from airflow_ft.sinks.base.table_columns import Column, Format, declined, nullable, other_partitions, type_of
from airflow_ft.sinks.files.partitions import problems
from airflow_ft.sinks.paimon.buckets import KINDS, Layout
from airflow_ft.sinks.paimon.spec import PaimonSink

FORMAT = Format("Paimon", PaimonSink.__name__, type_of, re.compile(r"[\x00-\x1f`]"))
_SYSTEM = re.compile(r"_KEY_.*|_SEQUENCE_NUMBER|_VALUE_KIND|_LEVEL|_ROW_ID|rowkind", re.IGNORECASE)
"""Names that Paimon keeps for its own columns (SpecialFields)."""
_LONGEST = 2**31 - 1
REQUIRED = " NOT NULL"
_PLAIN = {
    "INT": "int", "INTEGER": "int", "BYTES": "binary", f"VARCHAR({_LONGEST})": "string",
    f"VARBINARY({_LONGEST})": "binary", "TIMESTAMP": "timestamp_ntz", "TIMESTAMP(6)": "timestamp_ntz",
    "TIMESTAMP_LTZ": "timestamp", "TIMESTAMP_LTZ(6)": "timestamp", "TIMESTAMP WITH LOCAL TIME ZONE": "timestamp",
    "TIMESTAMP(6) WITH LOCAL TIME ZONE": "timestamp", "TIMESTAMP(6) WITHOUT TIME ZONE": "timestamp_ntz",
}  # fmt: skip
_NAMED = {
    "string": "STRING", "binary": "BYTES", "timestamp": "TIMESTAMP(6) WITH LOCAL TIME ZONE",
    "timestamp_ntz": "TIMESTAMP(6)",
}  # fmt: skip


# --- the columns of a table ------------------------------------------------------------------------------------------


def of_table(schema: Mapping[str, Any]) -> list[Column]:
    """From a schema as its file has it."""
    return [_column(field) for field in schema["fields"]]


def _column(field: Mapping[str, Any]) -> Column:
    oddity = "has parts that are NOT NULL" if _has_required(field["type"], top=True) else ""
    if field.get("defaultValue") is not None:
        oddity = "has a default"
    return Column(field["name"], name_of(field["type"]), not _is_required(field["type"]), oddity)


def name_of(kind: Any) -> str:
    """Return what Spark calls a type of a schema. A type that Spark does not have keeps its name."""
    if isinstance(kind, str):
        text = kind.removesuffix(REQUIRED).strip()
        if match := re.fullmatch(r"DECIMAL\((\d+)(?:, *(\d+))?\)", text):
            return f"decimal({match[1]},{match[2] or 0})"
        return _PLAIN.get(text, text.lower())
    what = str(kind["type"]).removesuffix(REQUIRED).strip()
    if what == "ARRAY":
        return f"array<{name_of(kind['element'])}>"
    if what == "MAP":
        return f"map<{name_of(kind['key'])},{name_of(kind['value'])}>"
    if what == "ROW":
        return "struct<" + ",".join(f"{part['name']}:{name_of(part['type'])}" for part in kind["fields"]) + ">"
    return what.lower()


def _is_required(kind: Any) -> bool:
    name = kind if isinstance(kind, str) else str(kind["type"])
    return name.endswith(REQUIRED) or (not isinstance(kind, str) and kind.get("nullable") is False)


def _has_required(kind: Any, *, top: bool = False) -> bool:
    """Return whether a part is NOT NULL. The keys of maps always are."""
    if not top and _is_required(kind):
        return True
    if isinstance(kind, str):
        return False
    parts = [kind[name] for name in ("element", "value") if name in kind]
    parts += [part["type"] for part in kind.get("fields", ())]
    return any(_has_required(part) for part in parts)


# --- a schema that is made here --------------------------------------------------------------------------------------


def fields_of(schema: pa.Schema, first: int) -> tuple[list[dict[str, Any]], int]:
    """Return the columns as a schema's file has them, and the highest id; ids begin at `first`."""
    ids = itertools.count(first)
    found = [{"id": next(ids), "name": field.name, "type": _made(nullable(field.type), ids)} for field in schema]
    return found, next(ids) - 1


def _made(kind: pa.DataType, ids: Iterator[int]) -> Any:
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return {"type": "ARRAY", "element": _made(kind.value_type, ids)}
    if pa.types.is_map(kind):
        key = _made(kind.key_type, ids)
        key = f"{key}{REQUIRED}" if isinstance(key, str) else {**key, "type": f"{key['type']}{REQUIRED}"}
        return {"type": "MAP", "key": key, "value": _made(kind.item_type, ids)}
    if pa.types.is_struct(kind):
        parts = [(next(ids), part) for part in kind]
        return {
            "type": "ROW",
            "fields": [{"id": number, "name": part.name, "type": _made(part.type, ids)} for number, part in parts],
        }
    name = type_of(kind)
    if match := re.fullmatch(r"decimal\((\d+),(\d+)\)", name):
        return f"DECIMAL({match[1]}, {match[2]})"
    return _NAMED.get(name, name.upper())


# --- do they fit? ----------------------------------------------------------------------------------------------------


def schema_problems(
    sink: PaimonSink, schema: pa.Schema, columns: Sequence[Column] | None, layout: Layout, name: str
) -> Iterator[AirflowFtError]:
    """All that speaks against such rows. `columns`: of the table; None: it is made of the rows."""
    yield from _written_problems(sink, written(sink, schema), columns, layout, name)
    yield from _key_problems(sink, schema, layout.primary_key if columns is not None else None, name)


def _written_problems(
    sink: PaimonSink, schema: pa.Schema, columns: Sequence[Column] | None, layout: Layout, name: str
) -> Iterator[AirflowFtError]:
    partitions, buckets = layout.partition_by, layout.buckets
    yield from FORMAT.unholdable(sink.table, schema, name)
    for field in schema:
        if _SYSTEM.fullmatch(field.name):
            what = f"Paimon keeps the column name {field.name!r} for itself."
            yield declined(what, "name_invalid", "Rename it in the job.", name, field.name)
    by = sink.partition_by if columns is None else partitions
    missing = [one for one in by if one not in schema.names] if columns is None else []
    yield from problems(schema, by, missing, name, in_files=True)
    if columns is None:
        yield from _unfit_in_key(schema, sink.bucket_key, "bucket_key", name)
        return
    if sink.partition_by and list(sink.partition_by) != list(partitions):
        yield other_partitions(partitions, sink.partition_by, name)
    other_key = sink.bucket_key and list(sink.bucket_key) != list(buckets.key)
    if sink.buckets and (sink.buckets != buckets.count or other_key):
        yield UnfitTargetError(
            f"the table has {count_text(buckets.count, 'bucket')} by {list(buckets.key)}, and the sink declares"
            f" {sink.buckets} by {list(sink.bucket_key)}.",
            code="key_unfit",
            remedy="Leave buckets= and bucket_key= out, or deliver into another table.",
            sink=name,
            buckets=buckets.count,
            bucket_key=list(buckets.key),
        )
    for column in columns:
        if column.name in partitions and column.type not in KINDS:
            yield UnfitTargetError(
                f"partition column {column.name!r} of the table is {column.type}, which this sink does not support.",
                code="partition_unfit",
                remedy="Deliver into another table.",
                sink=name,
                partitions=list(partitions),
            )
    yield from FORMAT.unfit(sink.table, schema, columns, name, evolves=sink.schema_evolution)


def written(sink: PaimonSink, schema: pa.Schema) -> pa.Schema:
    """Return the columns that are written: all but the kind of change."""
    return pa.schema([field for field in schema if field.name != sink.change_column])


def _key_problems(
    sink: PaimonSink, schema: pa.Schema, key: Sequence[str] | None, name: str
) -> Iterator[AirflowFtError]:
    """Yield why rows do not go by key. `key`: the table's; None: it is made of the rows."""
    if sink.change_column is not None and sink.change_column not in schema.names:
        yield missing_kind(sink.change_column, schema.names).located(sink=name)
    yield from _unfit_in_key(schema, sink.primary_key, "primary_key", name, made=key is None)
    if key is not None and list(sink.primary_key) != list(key):
        yield UnfitTargetError(
            f"the table has the primary key {list(key)}, and primary_key of the sink is {list(sink.primary_key)}.",
            code="key_unfit",
            remedy=f"Set PaimonSink(primary_key={list(key)}), or deliver into another table.",
            sink=name,
            primary_key=list(key),
        )


def _unfit_in_key(
    schema: pa.Schema, key: Sequence[str], argument: str, name: str, *, made: bool = True
) -> Iterator[AirflowFtError]:
    """Yield why columns that an argument names cannot be in a key. `made`: the table is made of the rows."""
    kinds = {field.name: field.type for field in schema}
    for one in key:
        if one not in kinds:
            yield missing_in_rows(one, argument, schema.names).located(sink=name)
        elif made and type_of(kinds[one]) not in KINDS:
            what = f"a column of type {kinds[one]} cannot be in a {argument.replace('_', ' ')}."
            yield declined(what, "key_unfit", "Use columns of text, whole numbers, booleans or dates.", name, one)
