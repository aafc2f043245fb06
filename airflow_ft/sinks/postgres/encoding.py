"""Rows as the lines that COPY reads, and which types go into which columns.

PyArrow writes CSV as COPY reads it: NULL is nothing at all, an empty text is `""`, and every text is in quotes. What it
has no form for is made a text before: bytes (in hexadecimal digits), lists (as array literals), times in UTC.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from airflow_ft.sinks.arrow import flags, hexadecimal, is_text, numbers, replaced, scalar
from airflow_ft.sinks.base.json_texts import with_repeated_keys
from airflow_ft.sinks.postgres.catalog import Column

INTEGERS = {"int2": pa.int16(), "int4": pa.int32(), "int8": pa.int64()}
TEXTS = {"text", "varchar", "bpchar", "citext"}
PARSED = {
    "uuid", "json", "jsonb", "xml", "inet", "cidr", "macaddr", "macaddr8", "bit", "varbit", "interval", "tsvector",
    "tsquery", "hstore", "ltree",
}  # fmt: skip
"""Types whose values go as texts, which the server reads."""

_OPTIONS = pyarrow.csv.WriteOptions(include_header=False)
_FIRST_DAY, _FIRST_MICROSECOND = -719162, -719162 * 86_400_000_000  # of the year 1: what is before has no digits
_UNITS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_NO = flags(np.zeros(1, np.bool_))[0]


def fits(type: pa.DataType, column: Column) -> bool:
    """Return whether values of this type go into the column as they are; or are refused one by one."""
    if column.element and is_list(type):
        return not is_list(type.value_type) and _fits(type.value_type, column)
    return not column.element and _fits(type, column)


def is_list(type: pa.DataType) -> bool:
    """Return whether its values are lists."""
    return bool(pa.types.is_list(type) or pa.types.is_large_list(type))


def _fits(type: pa.DataType, column: Column) -> bool:
    kind, is_ = column.kind, pa.types
    if is_.is_boolean(type):
        return kind == "bool"
    if is_.is_integer(type):
        whole = kind == "numeric" and (column.scale is None or column.scale >= 0)
        return kind in INTEGERS or whole or (kind == "float8" and type.bit_width <= 32)
    if is_.is_decimal(type):
        return kind == "numeric" or (kind in INTEGERS and type.scale == 0)
    if is_.is_floating(type):
        return kind == "float8" or (kind == "float4" and type.bit_width <= 32)
    if is_text(type):
        # A modifier of an interval drops parts of it without a word.
        parsed = kind in PARSED and (kind != "interval" or column.modifier == -1)
        return kind in TEXTS or parsed or (column.sort in "erm" and not column.element)
    if is_.is_binary(type) or is_.is_large_binary(type):
        return kind == "bytea"
    if is_.is_date(type):
        return kind == "date"
    if is_.is_time(type):
        return kind == "time"
    if is_.is_timestamp(type):
        return kind == "timestamp" or (kind == "timestamptz" and type.tz is not None)
    return False


def encode(batch: pa.RecordBatch, columns: Sequence[Column]) -> memoryview:
    """The rows as CSV; `columns` are those of the table, in the batch's order."""
    written = [_plain(array, column) for array, column in zip(batch.columns, columns, strict=True)]
    data = io.BytesIO()
    names = [str(place) for place in range(len(written))]
    pyarrow.csv.write_csv(pa.RecordBatch.from_arrays(written, names), data, _OPTIONS)
    return data.getbuffer()


def _plain(array: pa.Array, column: Column) -> pa.Array:
    """Values that PyArrow writes as PostgreSQL reads them."""
    type = array.type
    if pa.types.is_timestamp(type):
        return array.cast(pa.timestamp("us", type.tz), safe=False).cast(pa.timestamp("us"))
    if pa.types.is_date(type):
        return array.cast(pa.date32())
    if pa.types.is_floating(type) and column.kind == "float8":
        return array.cast(pa.float64())  # the digits of a single number would become another double
    if pa.types.is_binary(type) or pa.types.is_large_binary(type):
        text = pa.large_string()
        return pc.binary_join_element_wise(scalar(r"\x", text), hexadecimal(array), scalar("", text))
    if is_list(type):
        return _literals(array, column)
    return array


def _literals(array: pa.Array, column: Column) -> pa.Array:
    """Lists as `{"a",NULL}`."""
    text, whole = pa.large_string(), array.cast(pa.large_list(array.type.value_type))
    values = _plain(whole.flatten(), column).cast(text)
    values = replaced(values, (("\\", "\\\\"), ('"', '\\"')))
    quote, nothing = scalar('"', text), scalar("", text)
    values = pc.fill_null(pc.binary_join_element_wise(quote, values, quote, nothing), scalar("NULL", text))
    lengths = pc.fill_null(pc.list_value_length(whole), scalar(0, pa.int64()))
    ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(numbers(lengths))])
    bounds = pa.Array.from_buffers(pa.int64(), len(ends), [None, pa.py_buffer(ends)])
    lists = pa.LargeListArray.from_arrays(bounds, values)
    joined = pc.binary_join_element_wise(
        scalar("{", text), pc.binary_join(lists, scalar(",", text)), scalar("}", text), nothing
    )
    return pc.if_else(array.is_valid(), joined, scalar(None, text))


def changed(batch: pa.RecordBatch, columns: Sequence[Column]) -> dict[int, str]:
    """Rows that PostgreSQL would change without a word, or read as something else, and why; by place in the batch."""
    found: dict[int, str] = {}
    for name, array, column in zip(batch.schema.names, batch.columns, columns, strict=True):
        if not is_list(array.type):
            values, row_of = array, None
        else:
            values, row_of = array.flatten(), pc.list_parent_indices(array)
        for offends, why in _checks(values.type, column):
            for place in pc.indices_nonzero(pc.fill_null(offends(values), _NO)).to_pylist():
                found.setdefault(place if row_of is None else row_of[place].as_py(), f"{name}: {why}")
    return found


_Check = tuple[Callable[[pa.Array], pa.Array], str]


def _checks(type: pa.DataType, column: Column) -> list[_Check]:
    is_, scale, length = pa.types, column.scale, column.length
    if is_.is_decimal(type) and scale is not None and type.scale > scale:
        return [
            (
                lambda values: _finer(values, scale),
                f"more digits after the point than the {scale} of {column.declared}",
            )
        ]
    if is_text(type) and column.kind == "jsonb":
        return [(with_repeated_keys, "a key twice in an object, of which jsonb keeps the last one")]
    if is_text(type) and column.kind == "interval":
        finer = "more than six digits after the point, which interval rounds"
        return [(lambda values: pc.match_substring_regex(values, r"\.\d{6}\d*[1-9]"), finer)]
    if is_text(type) and column.kind == "bpchar":
        return [(lambda values: pc.ends_with(values, " "), "blanks at the end, which char drops")]
    if is_text(type) and length is not None:
        return [
            (
                lambda values: pc.and_(_longer(values, length), pc.invert(_longer(pc.utf8_rtrim(values, " "), length))),
                f"longer than {column.declared}, with blanks at the end, which the server drops",
            )
        ]
    if is_.is_date(type):
        return [(lambda values: _below(values.cast(pa.date32()).cast(pa.int32()), _FIRST_DAY), "before the year 1")]
    if is_.is_timestamp(type) or is_.is_time(type):
        lost = _UNITS[type.unit] // 10**column.fraction
        checks: list[_Check] = []
        if lost > 1:
            finer = f"more digits of a second than the {column.fraction} of {column.declared}"
            checks.append((lambda values: _not_divisible(_whole(values), lost), finer))
        if is_.is_timestamp(type):
            first = _FIRST_MICROSECOND * _UNITS[type.unit] // 10**6
            checks.append((lambda values: _below(_whole(values), first), "before the year 1"))
        return checks
    return []


def _finer(values: pa.Array, scale: int) -> pa.Array:
    """Mark decimals that lose digits at that scale. PyArrow rounds within the precision of the type, so widen it."""
    wide = values.cast(pa.decimal256(76, values.type.scale))
    return pc.not_equal(wide, pc.round(wide, max(scale, values.type.scale - 75), "towards_zero"))


def _whole(values: pa.Array) -> pa.Array:
    return values.cast(pa.int32() if values.type.bit_width == 32 else pa.int64())


def _below(values: pa.Array, first: int) -> pa.Array:
    return pc.less(values, scalar(first, values.type))


def _not_divisible(values: pa.Array, by: int) -> pa.Array:
    """False for nulls."""
    return pc.and_(flags(numbers(values) % by != 0), values.is_valid())


def _longer(values: pa.Array, length: int) -> pa.Array:
    return pc.greater(pc.utf8_length(values).cast(pa.int64()), scalar(length, pa.int64()))
