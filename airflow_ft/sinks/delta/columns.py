"""Columns of rows and of a Delta table: do they fit, and how do rows become the table's?

Types are compared by the names that Spark has for them: `array<bigint>`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from airflow_ft.protocol.errors import AirflowFtError, DeclinedError, UnfitTargetError
from airflow_ft.sinks.base.changes import missing_in_rows
from airflow_ft.sinks.base.columns import Misfits, TableColumn
from airflow_ft.sinks.delta.spec import DeltaSink
from airflow_ft.sinks.files.partitions import can_partition

PLACEHOLDER = "_airflow_ft"
"""The only column of a table that had to be made before any columns were known."""
_ODD = re.compile(r"[ ,;{}()\n\t=]")  # https://docs.delta.io/latest/delta-column-mapping.html
_WHOLE = {"tinyint": (8, pa.int8()), "smallint": (16, pa.int16()), "int": (32, pa.int32()), "bigint": (64, pa.int64())}
_PLAIN = {
    "byte": "tinyint",
    "short": "smallint",
    "integer": "int",
    "long": "bigint",
}  # as the log of a table has them, else the same


@dataclass(frozen=True, slots=True)
class Column(TableColumn):
    """A column of the table. `oddity` says why rows cannot be added beside it; "": they can.

    `characters`: how long a text may be, by Spark's mark for varchar(n) and char(n) (0: any); `padded`: it is char(n).
    """

    type: str
    nullable: bool
    oddity: str = ""
    characters: int = 0
    padded: bool = False

    @property
    def must(self) -> bool:
        return not self.nullable


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


def type_of(kind: pa.DataType) -> str:
    """Return what Delta calls it; "": it has no such type."""
    types = pa.types
    for name, (bits, _) in _WHOLE.items():
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
    """As a table is made of it: every column may be NULL, since the log does not say more."""
    return pa.schema([pa.field(field.name, _in_micros(field.type)) for field in schema])


def _in_micros(kind: pa.DataType) -> pa.DataType:
    return pa.timestamp("us", kind.tz) if pa.types.is_timestamp(kind) else kind


def holds(column: Column, kind: pa.DataType) -> bool:
    """Return whether the column holds all values of a type of the log as they are."""
    given = type_of(kind)
    return given == column.type or _wider(given, column.type)


def _wider(given: str, wanted: str) -> bool:
    """Return whether every value of the one is one of the other, and Arrow changes it into that."""
    if given in _WHOLE and wanted in _WHOLE:
        return _WHOLE[given][0] < _WHOLE[wanted][0]
    if (one := re.fullmatch(r"decimal\((\d+),(\d+)\)", given)) and (
        two := re.fullmatch(r"decimal\((\d+),(\d+)\)", wanted)
    ):
        whole, digits = int(two[1]) - int(two[2]), int(two[2])
        return digits >= int(one[2]) and whole >= int(one[1]) - int(one[2])
    return (given, wanted) == ("float", "double")


# --- do they fit? ----------------------------------------------------------------------------------------------------


def unholdable(sink: DeltaSink, schema: pa.Schema, name: str) -> Iterator[AirflowFtError]:
    """Yield what no Delta table can hold of such rows."""
    seen: dict[str, str] = {}
    for field in schema:
        if not type_of(field.type):
            remedy = "Cast it in the job, to a string or a timestamp."
            yield _declined(f"Delta has no type for {field.type}.", "type_unsupported", remedy, name, field.name)
        if field.name.lower() in seen:
            what = Misfits(sink.table).ambiguous(seen[field.name.lower()], field.name)
            yield _declined(what, "column_ambiguous", "Rename one of them in the job.", name, field.name)
        if _ODD.search(field.name) or field.name == PLACEHOLDER:
            what = f"Delta allows no column name {field.name!r}."
            remedy = "Rename it in the job: use letters, digits and '_'."
            yield _declined(what, "name_invalid", remedy, name, field.name)
        seen.setdefault(field.name.lower(), field.name)
    for column in sink.partition_by:
        if len(schema) and column not in schema.names:
            yield missing_in_rows(column, "partition_by", schema.names).located(sink=name)


def schema_problems(
    sink: DeltaSink, schema: pa.Schema, columns: Sequence[Column] | None, partitions: Sequence[str], name: str
) -> Iterator[AirflowFtError]:
    """All that speaks against such rows. `columns`: of the table; None: it is made of the rows."""
    if len(schema) == 0:
        return
    yield from unholdable(sink, schema, name)
    by = sink.partition_by if columns is None else partitions
    kinds = {field.name.lower(): field.type for field in schema}
    for one in by:
        if one.lower() in kinds and not can_partition(kinds[one.lower()]):
            remedy = "Partition by columns of text, whole numbers, booleans or dates."
            what = f"a column of type {kinds[one.lower()]} cannot be a partition column."
            yield _declined(what, "partition_unfit", remedy, name, one)
    if set(map(str.lower, schema.names)) <= set(map(str.lower, by)):
        what = "all columns are partition columns, so no column is left for the files."
        yield _declined(what, "partition_unfit", "Set partition_by= to fewer columns.", name)
    if columns is None:
        return
    if sink.partition_by and list(sink.partition_by) != list(partitions):
        yield UnfitTargetError(
            f"the table is partitioned by {list(partitions)}, and partition_by is {list(sink.partition_by)}.",
            code="partition_unfit",
            remedy="Leave partition_by= out, or deliver into another table.",
            sink=name,
            partitions=list(partitions),
            partition_by=list(sink.partition_by),
        )
    there = {column.name.lower(): column for column in columns}
    for field in schema:
        yield from _schema_problem(sink, field, columns, there.get(field.name.lower()), name)
    for column in columns:
        if column.name.lower() not in kinds and column.must:
            what = f"column {column.name!r} of the table is NOT NULL, and the rows do not have it."
            yield _declined(what, "column_required", "Return the column in the job.", name, column.name)
        if column.oddity:
            yield UnfitTargetError(
                f"column {column.name!r} of the table {column.oddity}, which this sink does not support.",
                code="table_unsupported",
                remedy="Deliver into another table, and copy the rows from there with Spark, which supports this.",
                sink=name,
                column=column.name,
            )


def _schema_problem(
    sink: DeltaSink, field: pa.Field, columns: Sequence[Column], column: Column | None, name: str
) -> Iterator[AirflowFtError]:
    kind, misfits = type_of(field.type), Misfits(sink.table, name)
    if column is None and not sink.schema_evolution:
        added = f"ALTER TABLE ... ADD COLUMNS (`{field.name}` {kind or field.type})"
        remedy = f"Add it in Spark ({added}), drop it in the job, or set DeltaSink(schema_evolution=True)."
        yield misfits.missing(field.name, field.name, (each.name for each in columns), remedy)
    if column is not None and kind and not holds(column, field.type):
        remedy = f"Cast it to {column.type} in the job, or deliver into another table."
        yield misfits.unfit(field.name, column.type, kind, remedy)


def lacking(schema: pa.Schema, columns: Sequence[Column]) -> pa.Schema:
    """The columns of the rows that the table does not have."""
    there = {column.name.lower() for column in columns}
    return pa.schema([field for field in schema if field.name.lower() not in there])


def _declined(what: str, code: str, remedy: str, sink: str, column: str = "") -> DeclinedError:
    return DeclinedError(what, code=code, remedy=remedy, sink=sink, column=column)


# --- how rows become the table's -------------------------------------------------------------------------------------


def as_it_is(schema: pa.Schema, columns: Sequence[Column]) -> bool:
    """Return whether a file with these columns can become a file of the table.

    Raises:
        UnfitTargetError: a column was removed meanwhile.
    """
    there = {column.name.lower(): column for column in columns}
    for field in schema:
        if field.name.lower() not in there:
            raise UnfitTargetError(
                f"the table no longer has the column {field.name!r}.",
                code="column_missing",
                remedy=f"Add the column {field.name!r} to the table again. The staged rows wait for it.",
                column=field.name,
            )
    return all(
        there[field.name.lower()].name == field.name
        and there[field.name.lower()].type == type_of(field.type)
        and _in_micros(field.type) == field.type
        for field in schema
    )


def cast(rows: pa.RecordBatch, columns: Sequence[Column]) -> pa.RecordBatch:
    """The rows with the table's names and types."""
    there = {column.name.lower(): column for column in columns}
    names, arrays = [], []
    for field, values in zip(rows.schema, rows.columns, strict=True):
        column = there[field.name.lower()]
        names.append(column.name)
        arrays.append(values.cast(_arrow(field.type, column.type)))
    return pa.RecordBatch.from_arrays(arrays, names=names)


def _arrow(kind: pa.DataType, wanted: str) -> pa.DataType:
    if type_of(kind) == wanted:
        return _in_micros(kind)
    if wanted in _WHOLE:
        return _WHOLE[wanted][1]
    if match := re.fullmatch(r"decimal\((\d+),(\d+)\)", wanted):
        return pa.decimal128(int(match[1]), int(match[2]))
    return pa.float64()


def too_long(column: Column, values: pa.Array) -> dict[int, str]:
    """Return the rows whose text a varchar(n) or char(n) of Spark would not keep, and why; by position."""
    kind = f"{'char' if column.padded else 'varchar'}({column.characters})"
    length = pc.greater(pc.utf8_length(values), column.characters)
    found = dict.fromkeys(_positions(length), f"column {column.name!r}: longer than {kind}")
    if column.padded:  # readers fill char(n) with spaces, which look like the value's own
        ends = pc.ends_with(values, " ")
        why = f"column {column.name!r}: a space at the end, which {kind} does not preserve"
        found = dict.fromkeys(_positions(ends), why) | found
    return found


def _positions(flags: pa.Array) -> list[int]:
    found: list[int] = pc.indices_nonzero(pc.fill_null(flags, False)).to_pylist()
    return found
