"""Arrow columns as JSON text, column by column: no Python loop over rows, except for binary.

The text is exact: it reads back as the same value, and is the same in every sink.

| Arrow | JSON |
|---|---|
| boolean, integers | true, false; a number with all its digits (also beyond 2**53) |
| float16, float32, float64 | the shortest number that reads back as the same, 1.0 for 1; NaN and infinity are refused |
| decimal | a *string* with all digits of its scale, "1.50": readers that take numbers for doubles would lose digits |
| string | a string, UTF-8 as it is; only what JSON demands is escaped |
| binary | a string, base64 (RFC 4648, with padding) |
| date | "2024-02-29"; outside of the years 1 to 9999 it is refused, and so is a timestamp |
| timestamp with zone | "2024-02-29T12:00:00.000000Z": ISO 8601 in UTC, the column's digits of a second |
| timestamp without zone | "2024-02-29T12:00:00.000000" |
| time | "12:00:00.000000" |
| list, struct | array, object; nested nulls are null |
| map | object in the map's order; keys that are no strings as the string of their text; a repeated key is refused |
| null | null |
"""

from __future__ import annotations

import binascii
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from airflow_ft.protocol.errors import DeclinedError
from airflow_ft.sinks.arrow import (
    beyond,
    booleans,
    decoded,
    decoded_type,
    finite,
    flags,
    hexadecimal,
    is_beyond,
    is_binary,
    is_text,
    numbers,
    replaced,
    scalar,
)

_SHORT_ESCAPES = {"\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r"}
_ESCAPES = [("\\", "\\\\"), ('"', '\\"')] + [
    (chr(code), _SHORT_ESCAPES.get(chr(code), f"\\u{code:04x}")) for code in range(0x20)
]  # the backslash first: the others bring new ones
_Found = npt.NDArray[np.bool_]
_REMEDY = "Replace such values in the job, by null for example."


class NotJsonError(DeclinedError):
    """A type or value that JSON cannot hold; the text says why, without the value."""

    code = "value_unfit"


def unsupported(kind: pa.DataType) -> str | None:
    """Why columns of this type cannot be written as JSON; None when they can."""
    kind, types = decoded_type(kind), pa.types
    if types.is_struct(kind):
        if len({field.name for field in kind}) < kind.num_fields:
            return "a struct with a field twice"
        return next((why for field in kind if (why := unsupported(field.type))), None)
    if types.is_list(kind) or types.is_large_list(kind):
        return unsupported(kind.value_type)
    if types.is_map(kind):
        if types.is_nested(kind.key_type):
            return "a map with nested keys"
        return unsupported(kind.key_type) or unsupported(kind.item_type)
    has_text = (
        types.is_boolean(kind) or types.is_integer(kind) or types.is_floating(kind) or types.is_decimal128(kind)
        or types.is_decimal256(kind) or types.is_date(kind) or types.is_timestamp(kind) or types.is_time(kind)
        or types.is_null(kind) or is_text(kind) or is_binary(kind)
    )  # fmt: skip
    return None if has_text else f"type {kind}"


def has_floats(kind: pa.DataType) -> bool:
    """Return whether it is a type of floating-point numbers, or has some inside."""
    return _has(kind, pa.types.is_floating)


def has_times(kind: pa.DataType) -> bool:
    """Return whether it is a type of dates or timestamps, or has some inside."""
    return _has(kind, lambda leaf: pa.types.is_date(leaf) or pa.types.is_timestamp(leaf))


def has_maps(kind: pa.DataType) -> bool:
    """Return whether it is a type of maps, or has some inside."""
    return _has(kind, pa.types.is_map)


def _has(kind: pa.DataType, is_one: Callable[[pa.DataType], bool]) -> bool:
    kind = decoded_type(kind)
    if is_one(kind):
        return True
    return pa.types.is_nested(kind) and any(_has(kind.field(index).type, is_one) for index in range(kind.num_fields))


def not_finite(column: pa.Array) -> pa.Array:
    """Return which values are, or hold, NaN or infinity, which JSON does not have; nulls do not."""
    return flags(holding(column, has_floats, _is_not_finite))


def beyond_years(column: pa.Array) -> pa.Array:
    """Which values are, or hold, a date or a time outside of the years 1 to 9999: it has no text that others read."""
    return flags(holding(column, has_times, _is_beyond))


def repeated_keys(column: pa.Array) -> pa.Array:
    """Return which values are, or hold, a map with a repeated key, of which readers of JSON keep one value."""
    return flags(holding(column, has_maps, of_map=_is_repeated))


def without_text(column: pa.Array) -> Iterator[tuple[_Found, str]]:
    """Yield which values have no text, with the reason."""
    yield booleans(not_finite(column)), "is NaN or infinity"
    yield booleans(beyond_years(column)), "is outside of the years 1 to 9999"
    yield booleans(repeated_keys(column)), "has a map with a repeated key"


def _is_not_finite(column: pa.Array) -> _Found:
    return ~booleans(pc.fill_null(finite(column), scalar(1, pa.bool_())))


def _is_beyond(column: pa.Array) -> _Found:
    found = np.zeros(len(column), np.bool_)
    found[beyond(column)] = True
    return found


def _is_repeated(pairs: pa.Array, parents: npt.NDArray[np.int64]) -> _Found:
    """Return of each pair of maps whether its map has the key more than once; `parents` are the places of the maps."""
    keys = pc.dictionary_encode(decoded(pairs.flatten()[0]))
    places = parents * (len(keys.dictionary) + 1) + numbers(keys.indices)
    _, which, counts = np.unique(places, return_inverse=True, return_counts=True)
    return np.asarray(counts[which] > 1)


def holding(
    column: pa.Array,
    has: Callable[[pa.DataType], bool],
    leaf: Callable[[pa.Array], _Found] | None = None,
    of_map: Callable[[pa.Array, npt.NDArray[np.int64]], _Found] | None = None,
) -> _Found:
    """Return which values are, or hold, what `leaf` finds in columns that are not nested, or `of_map` in pairs."""
    column = decoded(column)
    kind, types = column.type, pa.types
    found = np.zeros(len(column), np.bool_)
    if not has(kind):
        return found
    if types.is_struct(kind):
        for child in column.flatten():  # carries the nulls of the struct itself
            found |= holding(child, has, leaf, of_map)
        return found
    if not types.is_nested(kind):
        return found if leaf is None else leaf(column)
    parents, items = _items(column)
    if types.is_map(kind) and of_map is not None:
        found[parents[of_map(items, parents)]] = True
    found[parents[holding(items, has, leaf, of_map)]] = True
    return found


def _items(column: pa.Array) -> tuple[npt.NDArray[np.int64], pa.Array]:
    """Return of each item of lists its place in the column, and the items; of maps pairs of key and value."""
    kind, lists = column.type, column
    if pa.types.is_map(kind):
        lists = column.cast(pa.list_(pa.struct([("key", kind.key_type), ("value", kind.item_type)])))
    return numbers(pc.list_parent_indices(lists).cast(pa.int64())), lists.flatten()


def objects(names: list[str], columns: list[pa.Array], rows: int, end: str = "") -> pa.Array:
    """One JSON object a row, as a large_string array without nulls; keys in the order of `names`, then `end`."""
    parts: list[Any] = []
    lead = "{"
    for name, column in zip(names, columns, strict=True):
        before, text, after = _parts(column)
        if text.null_count:
            before, text, after = "", _filled(before, text, after), ""
        parts += [scalar(lead + _quoted_key(name) + before, pa.large_string()), text]
        lead = after + ","
    if not parts:
        return pa.repeat(scalar("{}" + end, pa.large_string()), rows)
    parts.append(scalar(lead[:-1] + "}" + end, pa.large_string()))
    return pc.binary_join_element_wise(*parts, scalar("", pa.large_string()))


def encode(column: pa.Array, null: str | None = "null") -> pa.Array:
    """The JSON text of each value: a large_string array of the same length, with `null` for null.

    Raises:
        NotJsonError: NaN, infinity, a year without four digits, a map with a repeated key, or text that is not UTF-8.
    """
    return _filled(*_parts(column), null)


def _filled(before: str, text: pa.Array, after: str, null: str | None = "null") -> pa.Array:
    if before or after:
        text = _wrapped(text, before, after)
    return text if null is None else pc.fill_null(text, scalar(null, pa.large_string()))


def _parts(column: pa.Array) -> tuple[str, pa.Array, str]:
    """Text, and what belongs before and behind each of its values; of nulls it is null."""
    kind, types = column.type, pa.types
    if types.is_null(kind):
        return "", pa.nulls(len(column), pa.large_string()), ""
    if types.is_dictionary(kind):
        return _parts(column.dictionary_decode())
    if types.is_boolean(kind) or types.is_integer(kind):
        return "", _text(column), ""
    if types.is_floating(kind):
        if pc.any(pc.invert(finite(column))).as_py():
            raise NotJsonError("a value is NaN or infinity, which JSON cannot hold.", remedy=_REMEDY, found="nan")
        # With a fraction or an exponent, so that readers take it for a float, and -0.0 keeps its sign.
        return "", pc.replace_substring_regex(_text(column), r"^(-?\d+)$", r"\1.0"), ""
    if types.is_decimal128(kind) or types.is_decimal256(kind):
        return '"', decimal_text(column), '"'
    if is_text(kind):
        return '"', _escaped(column), '"'
    if is_binary(kind):
        return '"', _base64(column), '"'
    if is_beyond(column):
        what = "a date or a time lies outside of the years 1 to 9999, so no other program reads its text."
        raise NotJsonError(what, remedy=_REMEDY, found="year")
    if types.is_date(kind):
        return '"', _text(pc.cast(column, pa.date32())), '"'
    if types.is_time(kind):
        return '"', _text(column), '"'
    if types.is_timestamp(kind):
        # An instant is stored as UTC whatever its zone: seen as a local time it is written ten times as fast.
        text = pc.replace_substring(_text(column.view(pa.timestamp(kind.unit))), " ", "T", max_replacements=1)
        return '"', text, '"' if kind.tz is None else 'Z"'
    return "", _encode_nested(column), ""


def _encode_nested(column: pa.Array) -> pa.Array:
    kind, types = column.type, pa.types
    if types.is_struct(kind):
        names = [field.name for field in kind]
        return _masked(objects(names, column.flatten(), len(column)), column)
    if types.is_map(kind):
        if pc.any(repeated_keys(column)).as_py():
            raise NotJsonError(
                "a map has a repeated key, of which readers of JSON keep one value.",
                remedy="Correct the source. In the job, `map_entries(column)` has all pairs as an array.",
                found="key",
            )
        offsets, (keys, items) = _own(column, column.keys, column.items)
        before, text, after = _parts(keys)
        text = _wrapped(text, before or '"', after or '"')  # a key of JSON is always text
        values = pc.binary_join_element_wise(text, encode(items), scalar(":", pa.large_string()))
        return _joined(column, offsets, values, "{", "}")
    if types.is_list(kind) or types.is_large_list(kind):
        offsets, (items,) = _own(column, column.values)
        return _joined(column, offsets, encode(items), "[", "]")
    what = f"values of type {kind} have no JSON text."
    remedy = "Cast the column in the job, to STRING for example."
    raise NotJsonError(what, code="type_unsupported", remedy=remedy, type=str(kind))


def _own(column: pa.Array, *children: pa.Array) -> tuple[pa.Array, list[pa.Array]]:
    """Offsets into the children of a list or a map, and of these what is the column's own.

    Arrow has whole children, whatever slice the column is: others' values would be judged, and written, with each.
    """
    offsets = pc.cast(column.offsets, pa.int64())
    ends = numbers(offsets)
    first, last = (int(ends[0]), int(ends[-1])) if len(ends) else (0, 0)
    offsets = pc.subtract(offsets, scalar(first, pa.int64())) if first else offsets
    return offsets, [child.slice(first, last - first) for child in children]


def _joined(column: pa.Array, offsets: pa.Array, values: pa.Array, before: str, after: str) -> pa.Array:
    lists = pa.LargeListArray.from_arrays(offsets, values)
    text = pc.binary_join(lists, scalar(",", pa.large_string()))
    return _masked(_wrapped(text, before, after), column)


def _masked(text: pa.Array, column: pa.Array) -> pa.Array:
    if column.null_count == 0:
        return text
    return pc.if_else(column.is_valid(), text, scalar(None, pa.large_string()))


def _text(column: pa.Array) -> pa.Array:
    return pc.cast(column, pa.large_string())


def _wrapped(text: pa.Array, before: str, after: str) -> pa.Array:
    large = pa.large_string()
    return pc.binary_join_element_wise(scalar(before, large), text, scalar(after, large), scalar("", large))


def _quoted_key(name: str) -> str:
    return f'"{_escaped(pa.repeat(scalar(name, pa.large_string()), 1))[0].as_py()}":'


def _escaped(column: pa.Array) -> pa.Array:
    text = _text(column)
    try:
        text.validate(full=True)
    except pa.ArrowInvalid as error:
        raise NotJsonError(
            "a value is text that is not UTF-8, which JSON cannot hold.", remedy=_REMEDY, found="encoding"
        ) from error
    return replaced(text, _ESCAPES)


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


def plain(column: pa.Array, binary: str = "base64") -> pa.Array:
    """The text of each value as in JSON, without quotes and escapes; null stays null.

    Args:
        column: values without NaN, infinity and years beyond 1 to 9999.
        binary: "base64" or "hex".
    """
    column = decoded(column)
    if is_text(column.type):
        return column.cast(pa.large_string())
    if is_binary(column.type) and binary == "hex":
        return hexadecimal(column)
    before, text, after = _parts(column)
    return _filled(before.strip('"'), text, after.strip('"'), None)
