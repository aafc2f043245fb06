"""Columns of an Iceberg table: their types by Spark's names, and parts that are NOT NULL."""

from __future__ import annotations

import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import (
    DecimalType,
    FixedType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from airflow_ft.sinks.iceberg.columns import of_table

LONG = LongType()


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (IntegerType(), "int"),
        (DecimalType(10, 2), "decimal(10,2)"),
        (TimestampType(), "timestamp_ntz"),
        (TimestamptzType(), "timestamp"),
        (TimeType(), "time"),
        (UUIDType(), "uuid"),
        (FixedType(3), "fixed[3]"),
        (ListType(2, StringType(), element_required=False), "array<string>"),
        (MapType(2, StringType(), 3, LONG, value_required=False), "map<string,bigint>"),
        (StructType(NestedField(2, "a", LONG, required=False)), "struct<a:bigint>"),
    ],
    ids=str,
)
@pytest.mark.parametrize("required", [True, False])
def test_types_have_the_names_of_spark(kind: IcebergType, name: str, required: bool) -> None:
    [column] = of_table(Schema(NestedField(1, "some", kind, required=required)))
    assert (column.name, column.type, column.must, column.oddity) == ("some", name, required, "")


@pytest.mark.parametrize(
    "kind",
    [
        ListType(2, LONG, element_required=True),
        MapType(2, StringType(), 3, LONG, value_required=True),
        MapType(2, ListType(4, LONG, element_required=True), 3, LONG, value_required=False),
        StructType(NestedField(2, "a", LONG, required=True)),
    ],
    ids=str,
)
def test_parts_that_are_not_null_are_odd(kind: IcebergType) -> None:
    [column] = of_table(Schema(NestedField(1, "some", kind, required=False)))
    assert column.oddity
