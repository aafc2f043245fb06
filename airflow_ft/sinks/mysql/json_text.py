"""Nested Arrow values as JSON text, by Arrow's compute functions: no Python loop over rows.

Integers, booleans and floats become JSON numbers and literals; decimals become strings, since a JSON number is read
as a double and would lose digits; dates and times become ISO strings, zoned timestamps in UTC with 'Z'. A struct
becomes an object with all its fields, a map an object with its keys as text, a list an array.
"""

from __future__ import annotations

import json

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from airflow_ft.core.errors import DeclinedError
from airflow_ft.sinks.arrow import booleans, flags, numbers, scalar

_CONTROL = {chr(code): json.dumps(chr(code))[1:-1] for code in (*range(0x20), 0x7F)}

_VARIANT = {"value": "binary", "metadata": "binary"}


def is_nested(kind: pa.DataType) -> bool:
    """A struct, list or map."""
    return bool(pa.types.is_nested(kind))


def unsupported(kind: pa.DataType) -> str | None:
    """The innermost type that has no JSON text (binary, durations ...), or None when all have one."""
    if pa.types.is_dictionary(kind):
        return unsupported(kind.value_type)
    if pa.types.is_struct(kind):
        return next((found for field in kind if (found := unsupported(field.type))), None)
    if pa.types.is_map(kind):
        return (
            "a map with nested keys"
            if is_nested(kind.key_type)
            else (unsupported(kind.key_type) or unsupported(kind.item_type))
        )
    if _is_list(kind):
        return unsupported(kind.value_type)
    types = pa.types
    simple = (
        types.is_boolean, types.is_integer, types.is_floating, types.is_decimal, types.is_date, types.is_time,
        types.is_timestamp, types.is_string, types.is_large_string, types.is_null,
    )  # fmt: skip
    return None if any(test(kind) for test in simple) else str(kind)


def is_variant(kind: pa.DataType) -> bool:
    """Spark's VARIANT as Parquet holds it, whose bytes mean nothing to others."""
    return bool(pa.types.is_struct(kind)) and {field.name: str(field.type) for field in kind} == _VARIANT


def holds_floats(kind: pa.DataType) -> bool:
    """Whether there are floating-point numbers somewhere in it."""
    if pa.types.is_dictionary(kind):
        return holds_floats(kind.value_type)
    if is_nested(kind):
        return any(holds_floats(kind.field(index).type) for index in range(kind.num_fields))
    return bool(pa.types.is_floating(kind))


def is_not_finite(array: pa.Array) -> pa.Array:
    """Which values are, or hold, NaN or infinity; nulls are not."""
    return flags(_not_finite(array))


def _not_finite(array: pa.Array) -> npt.NDArray[np.bool_]:
    kind = array.type
    if pa.types.is_dictionary(kind):
        return _not_finite(array.dictionary_decode())
    none = np.zeros(len(array), np.bool_)
    if not holds_floats(kind):
        return none
    if pa.types.is_struct(kind):
        for child in array.flatten():  # carries the nulls of the struct itself
            none |= _not_finite(child)
        return none
    if not is_nested(kind):
        return booleans(pc.fill_null(pc.invert(pc.is_finite(array)), scalar(0, pa.bool_())))
    lists = _entries(array) if pa.types.is_map(kind) else array
    parents = numbers(pc.list_parent_indices(lists).cast(pa.int64()))
    none[parents[_not_finite(lists.flatten())]] = True
    return none


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def to_json(array: pa.Array) -> pa.Array:
    """JSON text (large_string) of each value; null stays null. DeclinedError for NaN and infinity."""
    text = _encode(array)
    return pc.if_else(pc.is_valid(array), text, scalar(None, pa.large_string()))


def _encode(array: pa.Array) -> pa.Array:
    """JSON text without nulls: a null value is the text 'null'."""
    kind = array.type
    if pa.types.is_dictionary(kind):
        return _encode(array.dictionary_decode())
    if pa.types.is_null(kind):
        return _constant("null", len(array))
    if pa.types.is_struct(kind):
        text = _object(array)
    elif pa.types.is_map(kind):
        text = _map(array)
    elif _is_list(kind):
        text = _list(array)
    else:
        text = _scalar(array)
    return pc.if_else(pc.is_valid(array), text, scalar("null", pa.large_string()))


def _constant(text: str, length: int) -> pa.Array:
    return pa.repeat(scalar(text, pa.large_string()), length)


def _wrap(before: str, middle: pa.Array, after: str) -> pa.Array:
    large = pa.large_string()
    return pc.binary_join_element_wise(
        scalar(before, large), middle, scalar(after, large), scalar("", large), null_handling="replace"
    )


def _object(array: pa.Array) -> pa.Array:
    if array.type.num_fields == 0:
        return _constant("{}", len(array))
    members = []
    for index, child in enumerate(array.flatten()):  # `flatten` carries the struct's own nulls and offset down
        name = json.dumps(array.type.field(index).name, ensure_ascii=False)
        members.append(_wrap(f"{name}:", _encode(child), ""))
    comma = scalar(",", pa.large_string())
    return _wrap("{", pc.binary_join_element_wise(*members, comma), "}")


def _joined(lists: pa.Array, texts: pa.Array) -> pa.Array:
    """The texts of each list joined by commas; `lists` gives lengths, `texts` one text for each flattened value."""
    lengths = pc.fill_null(pc.list_value_length(lists).cast(pa.int64()), scalar(0, pa.int64()))
    offsets = pa.concat_arrays([pa.repeat(scalar(0, pa.int64()), 1), pc.cumulative_sum(lengths)])
    grouped = pa.LargeListArray.from_arrays(offsets, texts)
    return pc.binary_join(grouped, scalar(",", pa.large_string()))


def _list(array: pa.Array) -> pa.Array:
    return _wrap("[", _joined(array, _encode(array.flatten())), "]")


def _entries(array: pa.Array) -> pa.Array:
    """A map as a list of its pairs."""
    return array.cast(pa.list_(pa.struct([("key", array.type.key_type), ("value", array.type.item_type)])))


def _map(array: pa.Array) -> pa.Array:
    entries = _entries(array)
    pairs = entries.flatten()
    keys, values = pairs.flatten()
    names = _scalar(keys)
    if not _is_text(keys.type):  # a key of JSON is always text
        names = pc.if_else(pc.starts_with(names, '"'), names, _wrap('"', names, '"'))
    colon = scalar(":", pa.large_string())
    return _wrap("{", _joined(entries, pc.binary_join_element_wise(names, _encode(values), colon)), "}")


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _scalar(array: pa.Array) -> pa.Array:
    kind = array.type
    large = pa.large_string()
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind):
        return array.cast(large)
    if pa.types.is_floating(kind):
        if pc.any(pc.invert(pc.is_finite(array)), min_count=0).as_py():
            raise DeclinedError("a nested value is NaN or infinite, which JSON cannot hold.", remedy="make it null.")
        return array.cast(pa.float64()).cast(large)
    if _is_text(kind):
        return _wrap('"', _escape(array.cast(large)), '"')
    if pa.types.is_decimal(kind):
        return _wrap('"', array.cast(large), '"')
    if pa.types.is_timestamp(kind):
        text = array.cast(pa.timestamp(kind.unit)).cast(large)
        return _wrap('"', pc.replace_substring(text, " ", "T"), '"' if kind.tz is None else 'Z"')
    if pa.types.is_date(kind) or pa.types.is_time(kind):
        return _wrap('"', array.cast(large), '"')
    raise DeclinedError(f"a nested value of type {kind} has no JSON text.", remedy="cast it to a string in the job.")


def _escape(texts: pa.Array) -> pa.Array:
    texts = pc.replace_substring(pc.replace_substring(texts, "\\", "\\\\"), '"', '\\"')
    if pc.any(pc.match_substring_regex(texts, r"[\x00-\x1f\x7f]"), min_count=0).as_py():
        for character, escaped in _CONTROL.items():
            texts = pc.replace_substring(texts, character, escaped)
    return texts
