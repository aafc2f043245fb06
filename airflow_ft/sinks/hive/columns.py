"""Columns of a table of Hive, and its partitions: do rows fit?"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import pyarrow as pa

from airflow_ft.protocol.errors import AirflowFtError, UnfitTargetError
from airflow_ft.sinks.base import table_columns
from airflow_ft.sinks.base.table_columns import WHOLE, Column, Format, declined, other_partitions, unsupported
from airflow_ft.sinks.files.partitions import problems
from airflow_ft.sinks.hive.formats import format_of
from airflow_ft.sinks.hive.spec import FORMATS, KEY, HiveSink
from airflow_ft.sinks.hive.thrift import API

_LOCAL = re.compile(r"(?<![^:<,])timestamp_ntz(?=[,>]|$)")  # a type, and no name of a field

_ARROW = {
    **{name: kind for name, (_, kind) in WHOLE.items()}, "boolean": pa.bool_(), "float": pa.float32(),
    "double": pa.float64(), "string": pa.string(), "varchar": pa.string(), "char": pa.string(), "binary": pa.binary(),
    "date": pa.date32(), "timestamp": pa.timestamp("us", "UTC"),
    "timestampwithlocaltimezone": pa.timestamp("us", "UTC"),
}  # fmt: skip

_NUMBERED = "_col"  # so Hive once named columns in files of ORC


def type_of(kind: pa.DataType) -> str:
    """Return what Hive calls the type; "": Hive, as Spark reads it, has no such type."""
    name = table_columns.type_of(kind)
    return "" if _LOCAL.search(name) else name.lower()


_ODD = re.compile(r"[^A-Za-z0-9_]")
_ODD_WITHIN = re.compile(r"[^\w.$]|^$")  # an empty name too: readers parse names from the text of the type
FORMAT = Format("Hive", HiveSink.__name__, type_of, _ODD, KEY, evolves=False, odd_within=_ODD_WITHIN)


def of_table(table: Any) -> list[Column]:
    """Return the columns of a table, those of its partitions last."""
    fields = [*(table.sd.cols or ()), *(key for key in table.partitionKeys or () if key.name != KEY)]
    return [Column(field.name, field.type.replace(" ", "").lower(), True) for field in fields]


def keys_of(table: Any) -> list[str]:
    """Return the columns that the table is partitioned by, without the sink's own."""
    return [key.name for key in table.partitionKeys or () if key.name != KEY]


def in_files(table: Any, given: Collection[str]) -> list[Column]:
    """Return the columns of files with such rows: those of the table, in its order, up to the last one that is given.

    Trino and Hive read ORC by the order of columns, and Impala does so with Parquet.
    """
    keys, names = keys_of(table), {name.lower() for name in given}
    plain = [column for column in of_table(table) if column.name not in keys]
    last = max((place for place, column in enumerate(plain) if column.name in names), default=-1)
    return plain[: last + 1]


def arrow_of(kind: str) -> pa.DataType:
    """Return the type of Arrow for a type of Hive. KeyError: there is none that files could have."""
    if match := re.fullmatch(r"decimal\((\d+),(\d+)\)", kind):
        return pa.decimal128(int(match[1]), int(match[2]))
    name, _, within = kind.removesuffix(">").partition("<")
    if name == "array":
        return pa.list_(arrow_of(within))
    if name == "map":
        return pa.map_(*map(arrow_of, _divided(within)))
    if name == "struct":
        return pa.struct([(field, arrow_of(of)) for field, _, of in (part.partition(":") for part in _divided(within))])
    return _ARROW[name.partition("(")[0]]


def _divided(parts: str) -> list[str]:
    """Divide a list of types at the commas that are in no brackets."""
    found, depth = [""], 0
    for letter in parts:
        depth += (letter in "<(") - (letter in ">)")
        if letter == "," and not depth:
            found.append("")
        else:
            found[-1] += letter
    return found


def fields_of(schema: pa.Schema | None, by: Sequence[str]) -> tuple[list[Any], list[Any]]:
    """Return columns and partition columns of a table that is made for such rows. None: it has no columns yet.

    The metastore refuses to change the type of a column, so the table has none until they are known.
    """
    types = {field.name.lower(): type_of(field.type) for field in schema} if schema is not None else {}
    divided = [name.lower() for name in by]
    plain = [API.FieldSchema(name=name, type=kind) for name, kind in types.items() if name not in divided]
    keys = [API.FieldSchema(name=name, type=types.get(name) or "string") for name in divided]
    return plain, [*keys, API.FieldSchema(name=KEY, type="string", comment="checkpoint of airflow-ft")]


def schema_problems(sink: HiveSink, schema: pa.Schema, there: Any | None, name: str) -> Iterator[AirflowFtError]:
    """All that speaks against such rows. `there`: the table; None, or without columns: it is made of the rows."""
    yield from FORMAT.unholdable(sink.table, schema, name)
    format = (sink.format or FORMATS[0]) if there is None else format_of(there)
    if format == "orc" and all(field.name.lower().startswith(_NUMBERED) for field in schema):
        what = f"all columns begin with {_NUMBERED}, and readers of ORC then go by the order of columns."
        yield declined(what, "name_invalid", "Rename one of them in the job.", name, schema.names[0])
    if sink.format and sink.format != format:
        yield UnfitTargetError(
            f"the table has files of the format {format!r}, and format is {sink.format!r}.",
            code="layout_changed",
            remedy="Leave format= out, or deliver into another table.",
            sink=name,
            setting="format",
        )
    made = there is None or lacks_columns(there)
    by = [each.lower() for each in sink.partition_by] if made else keys_of(there)
    given = {column.lower() for column in schema.names}
    yield from problems(schema, by, [one for one in by if one not in given], name)
    if made:
        return
    if sink.partition_by and [each.lower() for each in sink.partition_by] != by:
        yield other_partitions(by, sink.partition_by, name)
    yield from FORMAT.unfit(sink.table, schema, of_table(there), name, evolves=False)
    for column in in_files(there, schema.names):
        if column.name not in given:
            try:
                arrow_of(column.type)
            except KeyError:
                what = f"column {column.name!r} has the type {column.type} and is before columns of the rows"
                remedy = "Move the column to the end of the table, or deliver into another table."
                yield unsupported(what, remedy, column=column.name).located(sink=name)


def lacks_columns(table: Any) -> bool:
    """Return whether the table has no columns of rows yet."""
    return not table.sd.cols
