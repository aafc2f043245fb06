"""Keys of rows by a template (`airflow_ft.sinks.base.key_template`), as Arrow columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from airflow_ft.protocol.errors import AirflowFtError, UnfitTargetError
from airflow_ft.sinks.arrow import booleans, decoded_type, flags, masked
from airflow_ft.sinks.base.changes import missing_in_rows
from airflow_ft.sinks.base.json_columns import has_floats, plain, without_text
from airflow_ft.sinks.base.key_template import Parts


def can_be_key(kind: pa.DataType) -> bool:
    """Return whether values of this type have exactly one text each. The text of a decimal changes with its scale."""
    kind = decoded_type(kind)
    return not (pa.types.is_nested(kind) or has_floats(kind) or pa.types.is_decimal(kind))


def named_problems(
    schema: pa.Schema, argument: str, keys: Iterable[str], change_column: str | None, system: str
) -> Iterator[AirflowFtError]:
    """Yield why the columns that `argument` and change_column of a sink name do not fit."""
    for column in keys:
        if column not in schema.names:
            yield missing_in_rows(column, argument, schema.names)
        elif not can_be_key(schema.field(column).type):
            yield unfit_type(schema.field(column), f"part of a key in {system}")
    if change_column is not None and change_column not in schema.names:
        yield missing_in_rows(change_column, "change_column", schema.names)


def unfit_type(field: pa.Field, what: str) -> UnfitTargetError:
    """Return the error for a column whose type cannot be `what`."""
    return UnfitTargetError(
        f"column {field.name} has the type {field.type}, which cannot be a {what}.",
        code="type_unsupported",
        remedy="Cast it in the job, to STRING for example.",
        column=field.name,
        type=str(field.type),
    )


def keys(parts: Parts, rows: pa.RecordBatch) -> pa.Array:
    """Return the key of each row, as large_string. NULL, and a value without a text, counts as an empty text."""
    pieces: list[Any] = [_large(parts[0][0])] if parts[0][0] else []
    for _, text, behind in _texts(parts, rows):
        pieces += [text, _large(behind)] if behind else [text]
    return pc.binary_join_element_wise(*pieces, _large(""))


def ambiguous(parts: Parts, rows: pa.RecordBatch) -> dict[int, str]:
    """Return by place, with the reason, the rows that have no key text, or one that another row could have."""
    found: dict[int, str] = {}
    for column, text, behind in _texts(parts, rows):
        for wrong, why in without_text(rows.column(column)):
            found |= where(wrong, f"column {column} of the key {why}")
        if behind and _varies(rows.column(column).type):
            text = _without_sign(rows.column(column).type, text)
            whole = pc.binary_join_element_wise(text, _large(behind), _large(""))
            early = pc.less(pc.find_substring(whole, pattern=behind), pc.binary_length(text))
            found |= where(booleans(pc.fill_null(early, False)), f"column {column} of the key contains {behind!r}")
    return found


def where(mask: npt.NDArray[np.bool_], why: str) -> dict[int, str]:
    """Return the places where the mask is set, each with the reason."""
    return dict.fromkeys(np.flatnonzero(mask).tolist(), why) if mask.any() else {}


def _large(text: str) -> pa.Scalar:
    return pa.scalar(text, pa.large_string())


def _varies(kind: pa.DataType) -> bool:
    """Return whether a value's text may contain the text that follows it in the key."""
    return not (pa.types.is_temporal(kind) or pa.types.is_boolean(kind))


def _without_sign(kind: pa.DataType, text: pa.Array) -> pa.Array:
    """Return whole numbers without their sign: a '-' that begins a number does not end it."""
    return pc.utf8_ltrim(text, "-") if pa.types.is_integer(decoded_type(kind)) else text


def _texts(parts: Parts, rows: pa.RecordBatch) -> Iterator[tuple[str, pa.Array, str]]:
    """Yield each column of the key, its texts, and the text behind it in the template."""
    for index, (_, column) in enumerate(parts):
        if column:
            behind = parts[index + 1][0] if index + 1 < len(parts) else ""
            values = rows.column(column)
            for wrong, _ in without_text(values):
                values = masked(values, flags(~wrong)) if wrong.any() else values
            yield column, pc.fill_null(plain(values, binary="hex"), _large("")), behind
