"""Columns of an Iceberg table, and its partitions: do rows fit?"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import TypeVar

import pyarrow as pa
from pyiceberg.io.pyarrow import _pyarrow_to_schema_without_ids, schema_to_pyarrow
from pyiceberg.partitioning import PARTITION_FIELD_ID_START, PartitionField, PartitionSpec
from pyiceberg.schema import Schema, assign_fresh_schema_ids
from pyiceberg.transforms import IdentityTransform, Transform, parse_transform
from pyiceberg.types import DoubleType, FloatType, IcebergType, PrimitiveType

from airflow_ft.protocol.errors import AirflowFtError, DeclinedError, UnfitTargetError
from airflow_ft.sinks.base import table_columns
from airflow_ft.sinks.base.changes import missing_in_rows
from airflow_ft.sinks.base.table_columns import Column, Format, declined, lacking, other_partitions, required_parts
from airflow_ft.sinks.iceberg.spec import PARTITION, IcebergSink

T = TypeVar("T")
_SMALL = re.compile(r"(?<![^:<,])(tinyint|smallint)(?=[,>]|$)")  # a type, and no name of a field


def type_of(kind: pa.DataType) -> str:
    """Return what Spark calls the type of Iceberg; "": Iceberg has no such type. Small numbers are `int` to it."""
    if pa.types.is_time64(kind) and kind.unit == "us":
        return "time"
    return _SMALL.sub("int", table_columns.type_of(kind))


FORMAT = Format("Iceberg", IcebergSink.__name__, type_of, re.compile(r"[\x00-\x1f.]"))


def of_table(schema: Schema) -> list[Column]:
    """Return the columns of a table. A type that Arrow or Spark does not have keeps Iceberg's name."""
    return [
        Column(field.name, type_of(field.type) or str(there.field_type), field.nullable, required_parts(field.type))
        for field, there in zip(schema_to_pyarrow(schema, include_field_ids=False), schema.fields, strict=True)
    ]


def new_schema(schema: pa.Schema) -> Schema:
    """Return the schema of a table that is made for such rows."""
    made = table_columns.new_schema(schema)
    return assign_fresh_schema_ids(_pyarrow_to_schema_without_ids(utc(made)))


def partition(schema: Schema, by: Sequence[str]) -> PartitionSpec:
    """Return the partitions that `partition_by` asks for."""
    fields = []
    for index, one in enumerate(by):
        column, transform = _parsed(one)
        source = schema.find_field(column, case_sensitive=False)
        name = _field_name(column, transform)
        fields.append(PartitionField(source.field_id, PARTITION_FIELD_ID_START + index, transform, name))
    return PartitionSpec(*fields)


def _field_name(column: str, transform: Transform[object, object]) -> str:
    """Return the name of a partition, as Spark gives it."""
    return column if isinstance(transform, IdentityTransform) else f"{column}_{str(transform).partition('[')[0]}"


def _parsed(one: str) -> tuple[str, Transform[object, object]]:
    found = PARTITION.fullmatch(one)
    assert found is not None  # the specification was checked
    if found["counted"]:
        return found["column"], parse_transform(f"{found['counted']}[{found['count']}]")
    return found["plain"] or found["source"], parse_transform(found["transform"] or "identity")


def sources(schema: Schema, spec: PartitionSpec) -> dict[str, pa.DataType]:
    """Return the columns that partitions are made of, with their types. A part of a struct is not among them."""
    types = schema_to_pyarrow(schema, include_field_ids=False)
    names = {schema.find_column_name(field.source_id) for field in spec.fields}
    return {field.name: field.type for field in types if field.name in names}


def schema_problems(
    sink: IcebergSink,
    schema: pa.Schema,
    there: Schema | None,
    spec: PartitionSpec | None,
    name: str,
    partitions: Collection[str] = (),
) -> Iterator[AirflowFtError]:
    """All that speaks against such rows. `there`: of the table; None, or without columns: it is made of the rows.

    `partitions` are the names of the table's partitions, also of former ones.
    """
    unholdable = list(FORMAT.unholdable(sink.table, schema, name))
    yield from unholdable
    if there is None or not there.fields:
        if not unholdable:
            yield from _unpartitionable(sink, schema, name)
        return
    yield from FORMAT.unfit(sink.table, schema, of_table(there), name, evolves=sink.schema_evolution)
    assert spec is not None
    if sink.schema_evolution:
        yield from (_taken(each, name) for each in lacking(schema, of_table(there)).names if each in partitions)
    for source in _repeated([field.source_id for field in spec.fields]):
        twice = there.find_column_name(source)
        yield _partitions_unfit(f"column {twice!r} more than once, which pyiceberg cannot write", spec, name)
    for field in spec.fields:
        column = there.find_column_name(field.source_id)
        kind = there.find_type(field.source_id)
        if column is None or "." in column or not _divides(field.transform, kind):
            yield _partitions_unfit(f"{field.transform} of {column}, which this sink does not support", spec, name)
    if sink.partition_by:
        wanted = [_described(*_parsed(one)) for one in sink.partition_by]
        found = [_described(str(there.find_column_name(each.source_id)), each.transform) for each in spec.fields]
        if [each.lower() for each in wanted] != [each.lower() for each in found]:
            yield other_partitions(found, wanted, name)


def _partitions_unfit(what: str, spec: PartitionSpec, name: str) -> UnfitTargetError:
    return UnfitTargetError(
        f"the table is partitioned by {what}.",
        code="partition_unfit",
        remedy="Deliver into another table.",
        sink=name,
        partitions=[each.name for each in spec.fields],
    )


def _unpartitionable(sink: IcebergSink, schema: pa.Schema, name: str) -> Iterator[AirflowFtError]:
    names = {field.name.lower(): field for field in schema}
    made = new_schema(schema)
    wanted = [_parsed(one) for one in sink.partition_by]
    for twice in _repeated([column.lower() for column, _ in wanted]):
        what = f"partition_by has column {twice!r} more than once, which pyiceberg cannot write."
        yield declined(what, "partition_unfit", "Keep one partition of each column.", name, twice)
    for column, transform in wanted:
        if column.lower() not in names:
            yield missing_in_rows(column, "partition_by", schema.names).located(sink=name)
            continue
        if not _divides(transform, made.find_type(column, case_sensitive=False)):
            what = f"a column of type {names[column.lower()].type} cannot be partitioned by {transform}."
            yield declined(what, "partition_unfit", "Partition by another column or transform.", name, column)
        elif not isinstance(transform, IdentityTransform) and (taken := _field_name(column, transform)) in schema.names:
            yield _taken(taken, name)


def _taken(column: str, name: str) -> DeclinedError:
    what = f"a partition of the table has the name {column!r}, so no column can have it."
    return declined(what, "partition_unfit", f"Rename column {column!r} in the job.", name, column)


def _repeated(columns: Iterable[T]) -> list[T]:
    """Return the columns of several partitions: pyiceberg writes no rows into such a table."""
    return [column for column, count in Counter(columns).items() if count > 1]


def _divides(transform: Transform[object, object], kind: IcebergType) -> bool:
    """Return whether rows are divided by values of this type: pyiceberg would lose NaN, which equals nothing."""
    plain = isinstance(kind, PrimitiveType) and transform.can_transform(kind)
    return plain and not isinstance(kind, FloatType | DoubleType)


def _described(column: str, transform: Transform[object, object]) -> str:
    if isinstance(transform, IdentityTransform):
        return column
    kind, _, count = str(transform).removesuffix("]").partition("[")
    return f"{kind}({count}, {column})" if count else f"{kind}({column})"


def utc(schema: pa.Schema) -> pa.Schema:
    """Return the columns with `in_utc` types."""
    return pa.schema([pa.field(field.name, in_utc(field.type)) for field in schema])


def in_utc(kind: pa.DataType) -> pa.DataType:
    """Return the type of the same instants in UTC, the only zone that pyiceberg takes."""
    return pa.timestamp(kind.unit, "UTC") if pa.types.is_timestamp(kind) and kind.tz else kind
