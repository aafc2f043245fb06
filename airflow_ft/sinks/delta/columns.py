"""Columns of the rows and of a Delta table: do they fit, and how do rows become the table's?"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from airflow_ft.protocol.errors import AirflowFtError
from airflow_ft.sinks.arrow import positions
from airflow_ft.sinks.base import table_columns
from airflow_ft.sinks.base.table_columns import Format, fields_within, other_partitions, required_parts, type_of
from airflow_ft.sinks.delta.spec import DeltaSink
from airflow_ft.sinks.files.partitions import problems

PLACEHOLDER = "_airflow_ft"
"""The only column of a table that had to be made before any columns were known."""
_ODD = re.compile(r"[ ,;{}()\n\t=]")  # https://docs.delta.io/latest/delta-column-mapping.html
FORMAT = Format("Delta", DeltaSink.__name__, type_of, _ODD, PLACEHOLDER, odd_within=_ODD)


@dataclass(frozen=True, slots=True)
class Column(table_columns.Column):
    """A column of the table.

    `characters`: how long a text may be, by Spark's mark for varchar(n) and char(n) (0: any); `padded`: it is char(n).
    """

    characters: int = 0
    padded: bool = False


def of_table(schema: pa.Schema) -> list[Column]:
    """Return the columns of a table. Fields keep the metadata that its log has."""
    return [_column(field) for field in schema]


def _column(field: pa.Field) -> Column:
    """One from the log. Spark keeps varchar(n) and char(n) as a mark: to the log they are texts of any length."""
    mark = re.fullmatch(r"(varchar|char|character)\((\d+)\)", _mark(field))
    return Column(
        field.name,
        type_of(field.type) or str(field.type),
        field.nullable,
        _oddity(field),
        int(mark[2]) if mark else 0,
        mark is not None and mark[1] != "varchar",
    )


def _mark(field: pa.Field) -> str:
    mark: bytes = (field.metadata or {}).get(b"__CHAR_VARCHAR_TYPE_STRING", b"")
    return mark.decode().replace(" ", "").lower()


def is_placeholder(columns: Sequence[Column]) -> bool:
    """Return whether the table has no columns of rows yet."""
    return [column.name for column in columns] == [PLACEHOLDER]


def _oddity(field: pa.Field) -> str:
    for part in (field, *fields_within(field.type)):
        for key, what in (
            (b"delta.generationExpression", "is generated"),
            (b"delta.identity.start", "is an identity column"),
            (b"delta.invariants", "has an invariant"),
            (b"CURRENT_DEFAULT", "has a default"),
            (b"delta.typeChanges", "has had another type (type widening)"),
        ):
            if key in (part.metadata or {}):
                return what if part is field else f"has a part that {what}"
        if "char" in _mark(part) and (part is not field or pa.types.is_nested(field.type)):
            return "has parts that are varchar or char"
    return required_parts(field.type)


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
