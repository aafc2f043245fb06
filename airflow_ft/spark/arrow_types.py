"""Spark's types as Arrow's: as the Parquet files of the write-ahead log and of exported state have them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

_DECIMAL = re.compile(r"decimal\((\d+), *(\d+)\)")
_TIME = re.compile(r"time\(\d\)")
_TEXT = re.compile(r"string( collate \w+)?|(var)?char\(\d+\)")


def arrow_schema(schema: Mapping[str, Any]) -> pa.Schema | None:
    """The schema that Spark's `StructType.jsonValue` describes; None when it holds a type that is not known here."""
    import pyarrow as pa

    try:
        return pa.schema(_fields(schema))
    except _UnknownTypeError:
        return None


class _UnknownTypeError(Exception):
    pass


def _fields(schema: Mapping[str, Any]) -> list[pa.Field]:
    import pyarrow as pa

    return [pa.field(field["name"], _type(field["type"]), field["nullable"]) for field in schema["fields"]]


def _type(given: str | Mapping[str, Any]) -> pa.DataType:
    import pyarrow as pa

    if isinstance(given, str):
        if known := simple_type(given):
            return known
        raise _UnknownTypeError(given)
    match given["type"]:
        case "struct":
            return pa.struct(_fields(given))
        case "array":
            return pa.list_(pa.field("element", _type(given["elementType"]), given["containsNull"]))
        case "map":
            items = pa.field("value", _type(given["valueType"]), given["valueContainsNull"])
            return pa.map_(_type(given["keyType"]), items)
    raise _UnknownTypeError(given["type"])


def simple_type(name: str) -> pa.DataType | None:
    """The type that Spark's schemas name by a text; None if it is not known here."""
    import pyarrow as pa

    known = {
        "boolean": pa.bool_(),
        "byte": pa.int8(),
        "short": pa.int16(),
        "integer": pa.int32(),
        "long": pa.int64(),
        "float": pa.float32(),
        "double": pa.float64(),
        "binary": pa.binary(),
        "date": pa.date32(),
        "timestamp": pa.timestamp("us", "UTC"),
        "timestamp_ntz": pa.timestamp("us"),
    }
    if name in known:
        return known[name]
    if decimal := _DECIMAL.fullmatch(name):
        return pa.decimal128(int(decimal[1]), int(decimal[2]))
    if _TIME.fullmatch(name):
        return pa.time64("us")
    if _TEXT.fullmatch(name):
        return pa.string()
    return None
