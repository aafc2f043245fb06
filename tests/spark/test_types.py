"""Types that the log cannot hold are refused by Spark's schema, with the cast that helps."""

import pytest
from pyspark.ml.linalg import VectorUDT
from pyspark.sql import types as t

from airflow_ft.protocol.errors import JobError
from airflow_ft.spark.driver.types import check_types, refused
from tests.raising import raises


def _schema(**columns: t.DataType) -> t.StructType:
    return t.StructType([t.StructField(name, kind) for name, kind in columns.items()])


@pytest.mark.parametrize(
    ("kind", "cast"),
    [
        (t.VariantType(), "to_json(c)"),
        (t.DayTimeIntervalType(), "extract(day from c)"),
        (t.YearMonthIntervalType(), "extract(month from c)"),
        (t.CalendarIntervalType(), "cast(c as string)"),
        (t.NullType(), "cast(c as string)"),
        (VectorUDT(), "vector_to_array(c)"),
    ],
    ids=lambda value: value.typeName() if isinstance(value, t.DataType) else "",
)
def test_each_is_refused_with_its_cast(kind: t.DataType, cast: str) -> None:
    fields = {"sink": "alerts", "column": "c", "types": {"c": kind.simpleString()}}
    with raises(JobError, "type_unsupported", **fields) as caught:
        check_types(_schema(id=t.LongType(), c=kind), "alerts")
    assert caught.error and cast in caught.error.remedy and kind.simpleString() in caught.error.what


def test_all_are_named_at_once_however_deep() -> None:
    inner = t.StructType([t.StructField("when", t.DayTimeIntervalType()), t.StructField("x", t.LongType())])
    deep = _schema(a=t.ArrayType(inner), m=t.MapType(t.StringType(), t.VariantType()), ok=t.DateType())
    assert [path for path, _, _ in refused(deep)] == ["a[].when", "m[]"]
    types = {"a[].when": "interval day to second", "m[]": "variant"}
    with raises(JobError, "type_unsupported", types=types, column=""):
        check_types(deep)


def test_what_the_log_holds_is_let_through() -> None:
    plain = [
        t.StringType(),
        t.BinaryType(),
        t.BooleanType(),
        t.ByteType(),
        t.ShortType(),
        t.IntegerType(),
        t.LongType(),
    ]
    plain += [
        t.FloatType(),
        t.DoubleType(),
        t.DecimalType(38, 10),
        t.DateType(),
        t.TimestampType(),
        t.TimestampNTZType(),
    ]
    plain += [t.CharType(3), t.VarcharType(3), t.ArrayType(t.LongType()), t.MapType(t.StringType(), t.DateType())]
    check_types(_schema(**{f"c{index}": kind for index, kind in enumerate(plain)}))
