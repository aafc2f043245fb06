"""Arrow columns as JSON text, column by column: no Python loop over rows, except for binary.

The text is exact: it reads back as the same value.

| Arrow | JSON |
|---|---|
| boolean, integers | true, false; a number with all its digits (also beyond 2**53) |
| float16, float32, float64 | the shortest number that reads back as the same, 1.0 for 1; NaN and infinity are refused |
| decimal | a *string* with all digits of its scale, "1.50": readers that take numbers for doubles would lose digits |
| string | a string, UTF-8 as it is; only what JSON demands is escaped |
| binary | a string, base64 (RFC 4648, with padding) |
| date | "2024-02-29" |
| timestamp with zone | "2024-02-29T12:00:00.000000Z": ISO 8601 in UTC, the column's digits of a second |
| timestamp without zone | "2024-02-29T12:00:00.000000" |
| list, struct | array, object; nested nulls are null |
| map with string or integer keys | object in the map's order; integer keys as strings |
| null | null |
"""

from __future__ import annotations

import binascii
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from airflow_ft.sinks.arrow import scalar

_SPECIAL = r'["\\\x00-\x1f]'
_SHORT_ESCAPES = {"\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r"}
_ESCAPES = [("\\", "\\\\"), ('"', '\\"')] + [
    (chr(code), _SHORT_ESCAPES.get(chr(code), f"\\u{code:04x}")) for code in range(0x20)
]  # the backslash first: the others bring new ones


class NotJsonError(ValueError):
    """A type or value that JSON cannot hold; the text says why, without the value."""


def unsupported(kind: pa.DataType) -> str | None:
    """Why columns of this type cannot be written as JSON; None when they can."""
    types = pa.types
    if types.is_struct(kind):
        return next((why for field in kind if (why := unsupported(field.type))), None)
    if types.is_list(kind) or types.is_large_list(kind):
        return unsupported(kind.value_type)
    if types.is_map(kind):
        if not (_is_string(kind.key_type) or types.is_integer(kind.key_type)):
            return f"map keys of type {kind.key_type} (strings and integers can be keys of a JSON object)"
        return unsupported(kind.item_type)
    if types.is_dictionary(kind):
        return unsupported(kind.value_type)
    scalar = (
        types.is_boolean(kind) or types.is_integer(kind) or types.is_floating(kind) or types.is_decimal128(kind)
        or types.is_decimal256(kind) or types.is_date(kind) or types.is_timestamp(kind) or types.is_null(kind)
        or _is_string(kind) or is_binary(kind)
    )  # fmt: skip
    return None if scalar else f"type {kind}"


def has_floats(kind: pa.DataType) -> bool:
    """Whether a NaN or an infinity can hide in a value of this type."""
    if pa.types.is_nested(kind):
        return any(has_floats(kind.field(i).type) for i in range(kind.num_fields))
    return bool(pa.types.is_floating(kind))


def objects(names: list[str], columns: list[pa.Array], rows: int) -> pa.Array:
    """One JSON object a row, as a large_string array without nulls; keys in the order of `names`."""
    parts: list[Any] = []
    lead = "{"
    for name, column in zip(names, columns, strict=True):
        parts.append(scalar(lead + _quoted_key(name), pa.large_string()))
        parts.append(encode(column))
        lead = ","
    if not parts:
        return pa.repeat(scalar("{}", pa.large_string()), rows)
    parts.append(scalar("}", pa.large_string()))
    return pc.binary_join_element_wise(*parts, scalar("", pa.large_string()))


def encode(column: pa.Array) -> pa.Array:
    """The JSON text of each value, "null" for null: a large_string array of the same length without nulls.

    Raises:
        NotJsonError: NaN, infinity, or text that is not UTF-8.
    """
    return pc.fill_null(_encode(column), scalar("null", pa.large_string()))


def _encode(column: pa.Array) -> pa.Array:
    kind, types = column.type, pa.types
    if types.is_null(kind):
        return pa.nulls(len(column), pa.large_string())
    if types.is_dictionary(kind):
        return _encode(column.dictionary_decode())
    if types.is_boolean(kind) or types.is_integer(kind):
        return _text(column)
    if types.is_floating(kind):
        if pc.any(pc.invert(pc.is_finite(column))).as_py():
            raise NotJsonError("NaN or infinity, which JSON cannot hold")
        # With a fraction or an exponent, so that readers take it for a float, and -0.0 keeps its sign.
        return pc.replace_substring_regex(_text(column), r"^(-?\d+)$", r"\1.0")
    if types.is_decimal128(kind) or types.is_decimal256(kind):
        return _quoted(decimal_text(column))
    if _is_string(kind):
        return _quoted(_escaped(column))
    if is_binary(kind):
        return _quoted(_base64(column))
    if types.is_date(kind):
        return _quoted(_text(pc.cast(column, pa.date32())))
    if types.is_timestamp(kind):
        # An instant is stored as UTC whatever its zone: seen as a local time it is written ten times as fast.
        text = pc.replace_substring(_text(column.view(pa.timestamp(kind.unit))), " ", "T", max_replacements=1)
        return _wrapped(text, '"', '"' if kind.tz is None else 'Z"')
    return _encode_nested(column)


def _encode_nested(column: pa.Array) -> pa.Array:
    kind, types = column.type, pa.types
    if types.is_struct(kind):
        names = [field.name for field in kind]
        return _masked(objects(names, column.flatten(), len(column)), column)
    if types.is_map(kind):
        offsets, keys, items = column.offsets, column.keys, column.items
        # `keys` and `items` are whole children, whatever slice the column is: its offsets point into them.
        text = _quoted(_escaped(keys)) if _is_string(kind.key_type) else _quoted(_text(keys))
        values = pc.binary_join_element_wise(text, encode(items), scalar(":", pa.large_string()))
        return _joined(column, offsets, values, "{", "}")
    if types.is_list(kind) or types.is_large_list(kind):
        return _joined(column, column.offsets, encode(column.values), "[", "]")
    raise NotJsonError(f"type {kind}")


def _joined(column: pa.Array, offsets: pa.Array, values: pa.Array, before: str, after: str) -> pa.Array:
    lists = pa.LargeListArray.from_arrays(pc.cast(offsets, pa.int64()), values)
    text = pc.binary_join(lists, scalar(",", pa.large_string()))
    return _masked(_wrapped(text, before, after), column)


def _masked(text: pa.Array, column: pa.Array) -> pa.Array:
    if column.null_count == 0:
        return text
    return pc.if_else(column.is_valid(), text, scalar(None, pa.large_string()))


def _is_string(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def is_binary(kind: pa.DataType) -> bool:
    """Whether it is a type of bytes."""
    return bool(
        pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind)
        or pa.types.is_binary_view(kind)
    )  # fmt: skip


def _text(column: pa.Array) -> pa.Array:
    return pc.cast(column, pa.large_string())


def _quoted(text: pa.Array) -> pa.Array:
    return _wrapped(text, '"', '"')


def _wrapped(text: pa.Array, before: str, after: str) -> pa.Array:
    large = pa.large_string()
    return pc.binary_join_element_wise(scalar(before, large), text, scalar(after, large), scalar("", large))


def _quoted_key(name: str) -> str:
    return str(_quoted(_escaped(pa.repeat(scalar(name, pa.large_string()), 1)))[0].as_py()) + ":"


def _escaped(column: pa.Array) -> pa.Array:
    text = _text(column)
    try:
        text.validate(full=True)  # Spark's strings may hold any bytes
    except pa.ArrowInvalid as error:
        raise NotJsonError("text that is not UTF-8, which JSON cannot hold") from error
    if pc.any(pc.match_substring_regex(text, _SPECIAL)).as_py():
        for raw, escape in _ESCAPES:
            if pc.any(pc.match_substring(text, raw)).as_py():
                text = pc.replace_substring(text, raw, escape)
    return text


def decimal_text(column: pa.Array) -> pa.Array:
    """All digits, never an exponent: Arrow itself writes a zero of scale 18 as 0E-18."""
    kind = column.type
    scale = kind.scale
    if scale < 0:
        column, scale = pc.cast(column, type(kind)(kind.precision - scale, 0)), 0
        kind = column.type
    whole = pa.decimal256(kind.precision, 0) if pa.types.is_decimal256(kind) else pa.decimal128(kind.precision, 0)
    unscaled = pa.Array.from_buffers(whole, len(column), column.buffers(), -1, column.offset)
    digits = _text(unscaled)
    if scale == 0:
        return digits
    negative = pc.starts_with(digits, "-")
    digits = pc.utf8_lpad(pc.utf8_ltrim(digits, "-"), scale + 1, "0")
    large = pa.large_string()
    sign = pc.if_else(negative, scalar("-", large), scalar("", large))
    point, nothing = scalar(".", large), scalar("", large)
    front, back = pc.utf8_slice_codeunits(digits, 0, -scale), pc.utf8_slice_codeunits(digits, -scale)
    return pc.binary_join_element_wise(sign, front, point, back, nothing)


def _base64(column: pa.Array) -> pa.Array:
    texts = [
        None if value is None else binascii.b2a_base64(value, newline=False).decode() for value in column.to_pylist()
    ]
    return pa.array(texts, pa.large_string())
