"""Columns of the rows and of a Delta table: do they fit, and how do rows become the table's?"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from airflow_ft.protocol.errors import AirflowFtError
from airflow_ft.sinks.arrow import positions
from airflow_ft.sinks.base import table_columns
from airflow_ft.sinks.base.table_columns import Format, other_partitions, type_of
from airflow_ft.sinks.delta.spec import DeltaSink
from airflow_ft.sinks.files.partitions import problems

PLACEHOLDER = "_airflow_ft"
"""The only column of a table that had to be made before any columns were known."""
_ODD = re.compile(r"[ ,;{}()\n\t=]")  # https://docs.delta.io/latest/delta-column-mapping.html
FORMAT = Format("Delta", DeltaSink.__name__, type_of, _ODD, PLACEHOLDER, odd_within=_ODD)
_PLAIN = {
    "byte": "tinyint",
    "short": "smallint",
    "integer": "int",
    "long": "bigint",
}  # as the log of a table has them, else the same


@dataclass(frozen=True, slots=True)
class Column(table_columns.Column):
    """A column of the table.

    `characters`: how long a text may be, by Spark's mark for varchar(n) and char(n) (0: any); `padded`: it is char(n).
    """

    characters: int = 0
    padded: bool = False


def of_table(schema: Mapping[str, Any]) -> list[Column]:
    """From a schema as the log has it."""
    return [_column(field) for field in schema["fields"]]


def _column(field: Mapping[str, Any]) -> Column:
    """One from the log. Spark keeps varchar(n) and char(n) as a mark: to the log they are texts of any length."""
    mark = re.fullmatch(r"(varchar|char|character)\((\d+)\)", _mark(field))
    return Column(
        field["name"],
        _of_log(field["type"]),
        field["nullable"],
        _oddity(field),
        int(mark[2]) if mark else 0,
        mark is not None and mark[1] != "varchar",
    )


def _mark(field: Mapping[str, Any]) -> str:
    return str(field.get("metadata", {}).get("__CHAR_VARCHAR_TYPE_STRING", "")).replace(" ", "").lower()


def is_placeholder(columns: Sequence[Column]) -> bool:
    """Return whether the table has no columns of rows yet."""
    return [column.name for column in columns] == [PLACEHOLDER]


def _of_log(kind: Any) -> str:
    if isinstance(kind, str):
        return _PLAIN.get(kind, kind)
    if kind["type"] == "array":
        return f"array<{_of_log(kind['elementType'])}>"
    if kind["type"] == "map":
        return f"map<{_of_log(kind['keyType'])},{_of_log(kind['valueType'])}>"
    return "struct<" + ",".join(f"{field['name']}:{_of_log(field['type'])}" for field in kind["fields"]) + ">"


def _oddity(field: Mapping[str, Any]) -> str:
    for part in (field, *_parts(field["type"])):
        for key, what in (
            ("delta.generationExpression", "is generated"),
            ("delta.identity.start", "is an identity column"),
            ("delta.invariants", "has an invariant"),
            ("CURRENT_DEFAULT", "has a default"),
            ("delta.typeChanges", "has had another type (type widening)"),
        ):
            if key in part.get("metadata", {}):
                return what if part is field else f"has a part that {what}"
        if "char" in _mark(part) and (part is not field or not isinstance(field["type"], str)):
            return "has parts that are varchar or char"
    return "" if isinstance(field["type"], str) or not _has_required(field["type"]) else "has parts that are NOT NULL"


def _parts(kind: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the fields of all structs in a type, at any depth."""
    if isinstance(kind, str):
        return
    for inner in ("elementType", "keyType", "valueType"):
        yield from _parts(kind.get(inner, ""))
    for field in kind.get("fields", ()):
        yield field
        yield from _parts(field["type"])


def _has_required(kind: Any) -> bool:
    if isinstance(kind, str):
        return False
    if kind["type"] == "array":
        return not kind["containsNull"] or _has_required(kind["elementType"])
    if kind["type"] == "map":
        return not kind["valueContainsNull"] or _has_required(kind["keyType"]) or _has_required(kind["valueType"])
    return any(not field["nullable"] or _has_required(field["type"]) for field in kind["fields"])


# --- do they fit? ----------------------------------------------------------------------------------------------------


def schema_problems(
    sink: DeltaSink, schema: pa.Schema, columns: Sequence[Column] | None, partitions: Sequence[str], name: str
) -> Iterator[AirflowFtError]:
    """All that speaks against such rows. `columns`: of the table; None: it is made of the rows."""
    yield from FORMAT.unholdable(sink.table, schema, name)
    missing = [column for column in sink.partition_by if column not in schema.names]
    yield from problems(schema, sink.partition_by if columns is None else partitions, missing, name)
    if columns is None:
        return
    if sink.partition_by and list(sink.partition_by) != list(partitions):
        yield other_partitions(partitions, sink.partition_by, name)
    yield from FORMAT.unfit(sink.table, schema, columns, name, evolves=sink.schema_evolution)


# --- how rows become the table's -------------------------------------------------------------------------------------


def too_long(column: Column, values: pa.Array) -> dict[int, str]:
    """Return the rows whose text a varchar(n) or char(n) of Spark would not keep, and why; by position."""
    kind = f"{'char' if column.padded else 'varchar'}({column.characters})"
    length = pc.greater(pc.utf8_length(values), column.characters)
    found = dict.fromkeys(positions(length), f"column {column.name!r}: longer than {kind}")
    if column.padded:  # readers fill char(n) with spaces, which look like the value's own
        ends = pc.ends_with(values, " ")
        why = f"column {column.name!r}: a space at the end, which {kind} does not preserve"
        found = dict.fromkeys(positions(ends), why) | found
    return found
