"""Column statistics taken by Spark in the pass that writes the rows (`DataFrame.observe`): no second look at them."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from decimal import Decimal
from functools import reduce
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F
from pyspark.sql import types as T

from airflow_ft.core.errors import JobError
from airflow_ft.core.ports import ColumnStatistics
from airflow_ft.wal.statistics import date_text, instant_text

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Observation

_INTEGERS = (T.ByteType, T.ShortType, T.IntegerType, T.LongType)
_FLOATS = (T.FloatType, T.DoubleType)


def observed(frame: DataFrame, observation: Observation) -> DataFrame:
    """The same rows; `observation` has their statistics once an action has passed over them all."""
    expressions: list[Column] = [F.count(F.lit(1)).alias("rows")]
    for index, column in enumerate(frame.schema.fields):
        for name, expression in _metrics(F.col(_quoted(column.name)), column.dataType).items():
            expressions.append(expression.cast("string").alias(f"{index}_{name}"))
    return frame.observe(observation, *expressions)


def collected(schema: T.StructType, metrics: Mapping[str, Any]) -> tuple[int, dict[str, ColumnStatistics]]:
    """Rows, and the statistics of each column, from what was observed.

    JobError for text that is not UTF-8, which Parquet demands and no sink takes: found here, nothing is published yet,
    while a sink might find it when another one has committed already.
    """
    statistics = {}
    for index, column in enumerate(schema.fields):
        values = {name.partition("_")[2]: text for name, text in metrics.items() if name.startswith(f"{index}_")}
        if malformed := int(values.get("malformed") or 0):
            raise JobError(
                f"{malformed:,} of its values hold text that is not UTF-8 (bytes that were cast to string, perhaps).",
                remedy="replace what is wrong in them with F.make_valid_utf8(column), find them with"
                " F.is_valid_utf8(column), or keep the column binary.",
                column=column.name,
            )
        statistics[column.name] = ColumnStatistics(
            nulls=int(values["nulls"] or 0),
            minimum=_text(values.get("min"), column.dataType),
            maximum=_text(values.get("max"), column.dataType),
            max_characters=_number(values.get("characters")),
            max_bytes=_number(values.get("bytes")),
            nans=int(values.get("nans") or 0),
            infinities=int(values.get("infinities") or 0),
        )
    return int(metrics["rows"]), statistics


def _metrics(column: Column, kind: T.DataType) -> dict[str, Column]:
    metrics = {"nulls": F.sum(column.isNull().cast("long"))}
    if (malformed := _malformed(column, kind)) is not None:
        metrics["malformed"] = F.sum(malformed.cast("long"))
    if isinstance(kind, (T.StringType, T.CharType, T.VarcharType)):
        metrics["characters"] = F.max(F.length(column))
        metrics["bytes"] = F.max(F.octet_length(column))
    elif isinstance(kind, T.BinaryType):
        metrics["bytes"] = F.max(F.octet_length(column))
    elif isinstance(kind, _FLOATS):
        is_nan = F.isnan(column)
        number = F.when(~is_nan, column.cast("double"))  # else a 32-bit value is written with its own, fewer digits
        metrics["nans"] = F.sum(is_nan.cast("long"))
        metrics["infinities"] = F.sum(column.isin(float("inf"), float("-inf")).cast("long"))
        metrics["min"], metrics["max"] = F.min(number), F.max(number)
    elif isinstance(kind, T.DateType):
        metrics["min"], metrics["max"] = F.unix_date(F.min(column)), F.unix_date(F.max(column))
    elif isinstance(kind, T.TimestampType):
        metrics["min"], metrics["max"] = F.unix_micros(F.min(column)), F.unix_micros(F.max(column))
    elif isinstance(kind, (*_INTEGERS, T.DecimalType, T.BooleanType, T.TimestampNTZType)):
        metrics["min"], metrics["max"] = F.min(column), F.max(column)
    return metrics


def _malformed(column: Column, kind: T.DataType) -> Column | None:
    """Whether a text that is not UTF-8 is in the value, however deep; None for types that hold no text."""
    if isinstance(kind, (T.StringType, T.CharType, T.VarcharType)):
        return ~F.is_valid_utf8(column)
    if isinstance(kind, T.ArrayType):
        if _malformed(column, kind.elementType) is None:
            return None
        return F.exists(column, lambda element: _or_false(_malformed(element, kind.elementType)))
    if isinstance(kind, T.MapType):
        parts = [
            _malformed(F.map_keys(column), T.ArrayType(kind.keyType)),
            _malformed(F.map_values(column), T.ArrayType(kind.valueType)),
        ]
    elif isinstance(kind, T.StructType):
        parts = [_malformed(column.getField(field.name), field.dataType) for field in kind.fields]
    else:
        return None
    found = [_or_false(part) for part in parts if part is not None]
    return reduce(operator.or_, found) if found else None


def _or_false(condition: Column | None) -> Column:
    return F.lit(False) if condition is None else F.coalesce(condition, F.lit(False))


def _text(value: str | None, kind: T.DataType) -> str | None:
    if value is None:
        return None
    if isinstance(kind, _FLOATS):
        return str(float(value))
    if isinstance(kind, T.DecimalType):
        return str(Decimal(value))
    if isinstance(kind, T.BooleanType):
        return str(value == "true")
    if isinstance(kind, T.DateType):
        return date_text(int(value))
    if isinstance(kind, T.TimestampType):
        return instant_text(int(value), utc=True)
    return value


def _number(value: str | None) -> int | None:
    return None if value is None else int(value)


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
