"""Which Arrow type may go into which column: one table. What of its values is checked for that, the families say. Pure.

A type that is not in a column's list is refused, with the cast that helps, even if the server would convert it. The
server converts in silence, and LOAD DATA differs from INSERT: false into YEAR is 2000 by one, and 0 by the other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import pyarrow as pa

from airflow_ft.sinks.arrow import decoded_type, first_fit, is_binary, is_text
from airflow_ft.sinks.base import json_columns
from airflow_ft.sinks.base.columns import Check, Objection
from airflow_ft.sinks.mysql.catalog import Column
from airflow_ft.sinks.mysql.labels import LABELLED
from airflow_ft.sinks.mysql.server_texts import Repertoire
from airflow_ft.sinks.mysql.value_checks import (
    BLOBS,
    INTEGERS,
    TEXTS,
    into_bytes,
    into_decimal,
    into_float,
    into_integer,
    into_json,
    into_labels,
    into_text,
    into_time,
)

BYTES = {"binary", "varbinary", *BLOBS}
_VARIANT = {"value": "binary", "metadata": "binary"}
SERVER_JUDGES = {"json", "uuid", "inet4", "inet6"}
"""Types whose texts only the server can check; it refuses what does not fit in the delivering transaction."""

_NUMBERS = "boolean, integer, whole decimal"
_TAKES: Final[Mapping[str, str]] = {
    **dict.fromkeys(INTEGERS, _NUMBERS),
    "bit": "boolean, integer",
    "year": "integer, whole decimal",
    **dict.fromkeys(("decimal", "numeric"), f"{_NUMBERS}, decimal"),
    "float": "boolean, integer, float",
    **dict.fromkeys(("double", "real"), "boolean, integer, float, double"),
    "date": "date",
    **dict.fromkeys(("datetime", "timestamp"), "date, timestamp"),
    "time": "time",
    **dict.fromkeys(("char", "varchar", "tinytext", *LABELLED, "uuid", "inet4", "inet6"), "text"),
    **dict.fromkeys(("text", "mediumtext", "longtext", "json"), "text, nested"),
    **dict.fromkeys(BYTES, "text, bytes"),
}
"""The families of values (`_family`) that a column takes, by its type; NULL goes into each. See docs/mysql.md."""

_CASTS: Final[Mapping[str, str]] = {
    **dict.fromkeys(INTEGERS, "CAST({} AS BIGINT)"),
    "bit": "CAST({} AS BIGINT)",
    "year": "CAST({} AS INT)",
    "float": "CAST({} AS FLOAT)",
    "double": "CAST({} AS DOUBLE)",
    "real": "CAST({} AS DOUBLE)",
    "date": "CAST({} AS DATE)",
    "datetime": "CAST({} AS TIMESTAMP)",
    "timestamp": "CAST({} AS TIMESTAMP)",
    "time": "CAST({} AS TIME)",
    **dict.fromkeys(("char", "varchar", *TEXTS, *LABELLED, *SERVER_JUDGES), "CAST({} AS STRING)"),
    **dict.fromkeys(BYTES, "CAST({} AS BINARY)"),
}
"""Spark's expression that makes values of any kind ready for a column, by its type."""


def judge(
    kind: pa.DataType,
    column: Column,
    *,
    source: str = "",
    timestamps_to_2106: bool = False,
    repertoires: Mapping[str, Repertoire] | None = None,
) -> Objection | Sequence[Check]:
    """Return whether values of Arrow type `kind` may go into `column`, and which conditions they must meet.

    `source` is what the rows call them, for the remedy; `repertoires` are of the character sets that lack characters.
    """
    kind = decoded_type(kind)
    family, target = _family(kind), column.type
    if family == "null":
        return ()
    if _is_variant(kind):
        return Objection(
            f"values of type {kind} are a VARIANT, whose bytes mean nothing elsewhere",
            f"Write to_json({source}) in the job, into a column of type JSON or LONGTEXT.",
            by_table=False,
        )
    if family == "nested" and (why := json_columns.unsupported(kind)) is not None:
        return Objection(f"{why} inside {kind} has no JSON text", "Cast it to a string in the job.", by_table=False)
    if not family or family not in _TAKES.get(target, "").split(", "):
        return _mismatch(kind, family, column, source)
    repertoire = (repertoires or {}).get(column.charset or "")
    if target in INTEGERS or target in ("bit", "year"):
        return into_integer(kind, column)
    if target in ("decimal", "numeric"):
        return into_decimal(kind, column)
    if target in ("float", "double", "real"):
        return into_float(kind, column)
    if target in ("date", "datetime", "timestamp", "time"):
        return into_time(kind, column, timestamps_to_2106)
    if target in BYTES:
        return into_bytes(column)
    if family == "nested":
        return into_json(kind, column, repertoire)
    return into_labels(column) if target in LABELLED else into_text(column, repertoire)


def _is_variant(kind: pa.DataType) -> bool:
    """Spark's VARIANT as Parquet holds it, whose bytes mean nothing to others."""
    return bool(pa.types.is_struct(kind)) and {field.name: str(field.type) for field in kind} == _VARIANT


def _family(kind: pa.DataType) -> str:
    """Return the family of a type's values; "" for unsupported types (durations, lists of a fixed size, unions)."""
    types = pa.types
    if types.is_decimal(kind):
        return "decimal" if kind.scale > 0 else "whole decimal"
    if types.is_fixed_size_list(kind):
        return ""
    return first_fit(kind, _FAMILIES)


_FAMILIES = (
    (pa.types.is_null, "null"),
    (pa.types.is_boolean, "boolean"),
    (pa.types.is_integer, "integer"),
    (pa.types.is_float64, "double"),
    (pa.types.is_floating, "float"),
    (pa.types.is_date, "date"),
    (pa.types.is_timestamp, "timestamp"),
    (pa.types.is_time, "time"),
    (is_text, "text"),
    (is_binary, "bytes"),
    (pa.types.is_nested, "nested"),
)


def _mismatch(kind: pa.DataType, family: str, column: Column, source: str) -> Objection:
    name = source or "it"
    found = f"values of type {kind} do not go into {column.full_type}"
    cast = _CASTS.get(column.type, "").format(name)
    if column.type in ("decimal", "numeric"):
        cast = f"CAST({name} AS DECIMAL({column.precision or 10},{column.scale or 0}))"
    if pa.types.is_duration(kind) or pa.types.is_interval(kind):
        return Objection(
            f"{found} (a length of time)",
            f"Write its seconds, days or months as a number: CAST({name} AS BIGINT).",
            by_table=False,
        )
    if pa.types.is_fixed_size_list(kind):
        return Objection(found, f"Cast it to a list in the job: CAST({name} AS ARRAY<...>).", by_table=False)
    if not family:
        return Objection(found, f"Cast {name} in the job: no column takes its type.", by_table=False)
    if column.type not in _TAKES:
        return Objection(found, "Choose another column type: BLOB or TEXT, for example.")
    if family == "nested" and cast.endswith("STRING)"):
        return Objection(
            f"{found}, because nested values become JSON text", f"Use JSON, TEXT or LONGTEXT, or write to_json({name})."
        )
    in_job = "in the job"
    if column.type == "time":
        in_job = "in the job, with spark.sql.timeType.enabled=true in spark_conf"
    if column.type == "year" and family in ("date", "timestamp"):
        cast = f"year({name})"
    if column.type == "time" and family == "timestamp":
        return Objection(found, f"Use DATETIME for timestamps, or write {cast} {in_job}.")
    if family == "double" and column.type == "float":
        return Objection(f"{found}, where they lose digits", f"Make the column DOUBLE, or write {cast} in the job.")
    return Objection(found, f"Use a column of the values' type, or write {cast} {in_job}.")
