"""Column statistics taken by Spark in the pass that writes the rows (`DataFrame.observe`): no second look at them."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F
from pyspark.sql import types as T

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
    """Rows, and the statistics of each column, from what was observed."""
    statistics = {}
    for index, column in enumerate(schema.fields):
        values = {name.partition("_")[2]: text for name, text in metrics.items() if name.startswith(f"{index}_")}
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
