"""Columns of the rows, and of a table of a table format: do they fit, and how do rows become the table's?

Types are compared by the names that Spark has for them: `array<bigint>`. Names are compared without case, as in Spark.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from airflow_ft.protocol.errors import AirflowFtError, DeclinedError, UnfitTargetError
from airflow_ft.sinks.arrow import with_plain
from airflow_ft.sinks.base.columns import Misfits, TableColumn

WHOLE = {"tinyint": (8, pa.int8()), "smallint": (16, pa.int16()), "int": (32, pa.int32()), "bigint": (64, pa.int64())}
"""Whole numbers: their bits, and what Arrow calls them."""


@dataclass(frozen=True, slots=True)
class Column(TableColumn):
    """A column of the table. `oddity` says why rows cannot be added beside it; "": they can."""

    type: str
    nullable: bool
    oddity: str = ""

    @property
    def must(self) -> bool:
        return not self.nullable


@dataclass(frozen=True, slots=True)
class Format:
    """Demands of a table format on columns. `type_of` returns its name for a type of Arrow; "": it has none.

    `odd` finds characters that no column name may have, and `odd_within` those that no name inside a struct may have.
    `reserved` is a name that the sink needs itself. `evolves`: the sink can add columns.
    """

    title: str
    sink: str
    type_of: Callable[[pa.DataType], str]
    odd: re.Pattern[str]
    reserved: str = ""
    evolves: bool = True
    odd_within: re.Pattern[str] = re.compile("(?!)")  # finds nothing

    def holds(self, column: Column, kind: pa.DataType) -> bool:
        """Return whether the column holds all values of a type of the log as they are."""
        given = self.type_of(kind)
        return given == column.type or _wider(given, column.type)

    def unholdable(self, table: str, schema: pa.Schema, name: str) -> Iterator[AirflowFtError]:
        """Yield what no table of the format can hold of such rows."""
        seen: dict[str, str] = {}
        for field in schema:
            if not self.type_of(field.type):
                remedy = "Cast it in the job, to a string or a timestamp."
                yield declined(
                    f"{self.title} has no type for {field.type}.", "type_unsupported", remedy, name, field.name
                )
            if field.name.lower() in seen:
                what = Misfits(table).ambiguous(seen[field.name.lower()], field.name)
                yield declined(what, "column_ambiguous", "Rename one of them in the job.", name, field.name)
            for what in self._misnamed(field):
                remedy = "Rename it in the job: use letters, digits and '_'."
                yield declined(what, "name_invalid", remedy, name, field.name)
            seen.setdefault(field.name.lower(), field.name)

    def _misnamed(self, field: pa.Field) -> Iterator[str]:
        if self.odd.search(field.name) or field.name.lower() == self.reserved:
            yield f"{self.title} allows no column name {field.name!r}."
        for within in fields_within(field.type):
            if self.odd_within.search(within.name):
                yield f"{self.title} allows no name {within.name!r} inside a struct."

    def unfit(
        self, table: str, schema: pa.Schema, columns: Sequence[Column], name: str, *, evolves: bool
    ) -> Iterator[AirflowFtError]:
        """Yield why such rows do not fit into a table with these columns. `evolves`: lacking ones are added."""
        there, misfits = matched(schema, columns), Misfits(table, name)
        for field in schema:
            yield from self._unfit(misfits, field, columns, there.get(field.name), evolves)
        given = {column.name for column in there.values()}
        for column in columns:
            if column.name not in given and column.must:
                what = f"column {column.name!r} of the table is NOT NULL, and the rows do not have it."
                yield declined(what, "column_required", "Return the column in the job.", name, column.name)
            if column.oddity:
                yield UnfitTargetError(
                    f"column {column.name!r} of the table {column.oddity}, which this sink does not support.",
                    code="table_unsupported",
                    remedy="Deliver into another table, and copy the rows from there with Spark, which supports this.",
                    sink=name,
                    column=column.name,
                )

    def _unfit(
        self, misfits: Misfits, field: pa.Field, columns: Sequence[Column], column: Column | None, evolves: bool
    ) -> Iterator[AirflowFtError]:
        kind = self.type_of(field.type)
        if column is None and not evolves:
            added = f"ALTER TABLE ... ADD COLUMNS (`{field.name}` {kind or field.type})"
            remedy = f"Add it in Spark ({added}), or drop it in the job."
            if self.evolves:
                remedy = f"Add it in Spark ({added}), drop it in the job, or set {self.sink}(schema_evolution=True)."
            yield misfits.missing(field.name, field.name, (each.name for each in columns), remedy)
        several = [each.name for each in columns if each.name.lower() == field.name.lower()]
        if len(several) > 1 and field.name not in several:
            what = f"column {field.name!r} of the rows could be any of {several} of table {misfits.table}."
            yield misfits.of_table(what, "column_ambiguous", "Name it in the job as in the table.", column=field.name)
        if column is not None and kind and not self.holds(column, field.type):
            remedy = f"Cast it to {column.type} in the job, or deliver into another table."
            yield misfits.unfit(field.name, column.type, kind, remedy)

    def as_it_is(self, schema: pa.Schema, columns: Sequence[Column]) -> bool:
        """Return whether a file with these columns can become a file of the table. UnfitTargetError as below."""
        there = _still_there(schema, columns)
        return all(
            there[field.name].name == field.name
            and there[field.name].type == self.type_of(field.type)
            and in_micros(field.type) == field.type
            for field in schema
        )

    def cast(self, rows: pa.RecordBatch, columns: Sequence[Column]) -> pa.RecordBatch:
        """The rows with the table's names and types. UnfitTargetError: a column was removed meanwhile."""
        there = _still_there(rows.schema, columns)
        names, arrays = [], []
        for field, values in zip(rows.schema, rows.columns, strict=True):
            column = there[field.name]
            names.append(column.name)
            arrays.append(values.cast(self._arrow(field.type, column.type)))
        return pa.RecordBatch.from_arrays(arrays, names=names)

    def _arrow(self, kind: pa.DataType, wanted: str) -> pa.DataType:
        if self.type_of(kind) == wanted:
            return in_micros(kind)
        if wanted in WHOLE:
            return WHOLE[wanted][1]
        if match := re.fullmatch(r"decimal\((\d+),(\d+)\)", wanted):
            return pa.decimal128(int(match[1]), int(match[2]))
        return pa.float64()


def type_of(kind: pa.DataType) -> str:
    """Return the name that Spark has for a type of Arrow; "": it has no such type."""
    types = pa.types
    for name, (bits, _) in WHOLE.items():
        if types.is_signed_integer(kind) and kind.bit_width == bits:
            return name
    for is_one, name in (
        (types.is_boolean, "boolean"), (types.is_float32, "float"), (types.is_float64, "double"),
        (types.is_date32, "date"), (types.is_string, "string"), (types.is_large_string, "string"),
        (types.is_binary, "binary"), (types.is_large_binary, "binary"),
    ):  # fmt: skip
        if is_one(kind):
            return name
    if types.is_timestamp(kind) and kind.unit != "ns":
        return "timestamp" if kind.tz else "timestamp_ntz"
    if types.is_decimal(kind) and kind.precision <= 38 and 0 <= kind.scale <= kind.precision:
        return f"decimal({kind.precision},{kind.scale})"
    if types.is_list(kind) or types.is_large_list(kind):
        return f"array<{item}>" if (item := type_of(kind.value_type)) else ""
    if types.is_map(kind):
        key, item = type_of(kind.key_type), type_of(kind.item_type)
        return f"map<{key},{item}>" if key and item else ""
    if types.is_struct(kind) and kind.num_fields:
        parts = [(field.name, type_of(field.type)) for field in kind]
        return "struct<" + ",".join(f"{name}:{part}" for name, part in parts) + ">" if all(p for _, p in parts) else ""
    return ""


def new_schema(schema: pa.Schema) -> pa.Schema:
    """As a table is made of it: every column may be NULL, and so may its parts, since the log does not say more."""
    return pa.schema([pa.field(field.name, in_micros(nullable(field.type))) for field in schema])


def nullable(kind: pa.DataType) -> pa.DataType:
    """Return the type with parts that may be NULL, but for the keys of maps themselves."""
    return with_plain(kind, lambda plain: plain)


def required_parts(kind: pa.DataType) -> str:
    """Return the oddity of a column with parts that are NOT NULL; "": it has none."""
    return "" if nullable(kind) == kind else "has parts that are NOT NULL"


def fields_within(kind: pa.DataType) -> Iterator[pa.Field]:
    """Yield the fields of all structs in a type, at any depth."""
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        yield from fields_within(kind.value_type)
    elif pa.types.is_map(kind):
        yield from fields_within(kind.key_type)
        yield from fields_within(kind.item_type)
    elif pa.types.is_struct(kind):
        for field in kind:
            yield field
            yield from fields_within(field.type)


def in_micros(kind: pa.DataType) -> pa.DataType:
    """Return the type with microseconds, if it is a timestamp."""
    return pa.timestamp("us", kind.tz) if pa.types.is_timestamp(kind) else kind


def matched(schema: pa.Schema, columns: Sequence[Column]) -> dict[str, Column]:
    """Return the table's column for each one of the rows that it has: by the exact name, else by any case."""
    exact = {column.name: column for column in columns}
    folded = {column.name.lower(): column for column in columns}
    found = {name: exact.get(name) or folded.get(name.lower()) for name in schema.names}
    return {name: column for name, column in found.items() if column is not None}


def _still_there(schema: pa.Schema, columns: Sequence[Column]) -> dict[str, Column]:
    there = matched(schema, columns)
    for name in schema.names:
        if name not in there:
            what = f"the table no longer has the column {name!r}."
            remedy = f"Add the column {name!r} to the table again. The staged rows wait for it."
            raise UnfitTargetError(what, code="column_missing", remedy=remedy, column=name)
    return there


def lacking(schema: pa.Schema, columns: Sequence[Column]) -> pa.Schema:
    """The columns of the rows that the table does not have."""
    there = {column.name.lower() for column in columns}
    return pa.schema([field for field in schema if field.name.lower() not in there])


def declined(what: str, code: str, remedy: str, sink: str, column: str = "", **fields: Any) -> DeclinedError:
    """Return the error for rows that only a change of the job makes fit."""
    return DeclinedError(what, code=code, remedy=remedy, sink=sink, column=column, **fields)


def unsupported(what: str, remedy: str, **fields: Any) -> UnfitTargetError:
    """Return the error for a table to which this sink cannot add rows."""
    what = f"{what}, which this sink does not support."
    return UnfitTargetError(what, code="table_unsupported", remedy=remedy, **fields)


def other_partitions(found: Sequence[str], wanted: Sequence[str], sink: str) -> UnfitTargetError:
    """Return the error for a table that is partitioned by others than `partition_by` names."""
    what = f"the table is partitioned by {list(found)}, and partition_by is {list(wanted)}."
    remedy = "Leave partition_by= out, or deliver into another table."
    return UnfitTargetError(
        what, code="partition_unfit", remedy=remedy, sink=sink, partitions=list(found), partition_by=list(wanted)
    )


def _wider(given: str, wanted: str) -> bool:
    """Return whether every value of the one is one of the other, and Arrow changes it into that."""
    if given in WHOLE and wanted in WHOLE:
        return WHOLE[given][0] < WHOLE[wanted][0]
    if (one := re.fullmatch(r"decimal\((\d+),(\d+)\)", given)) and (
        two := re.fullmatch(r"decimal\((\d+),(\d+)\)", wanted)
    ):
        whole, digits = int(two[1]) - int(two[2]), int(two[2])
        return digits >= int(one[2]) and whole >= int(one[1]) - int(one[2])
    return (given, wanted) == ("float", "double")
