"""Arrow columns as exact text for the server: fields of LOAD DATA, or literals of SQL. No Python loop over rows.

Integers and decimals as digits. Floats as the shortest text that reads back as the same double (a 4-byte float first
becomes the double of the same value). Dates and times in ISO form, zoned timestamps as UTC, which the session's time
zone is; text escaped; bytes as hex digits; nested values as JSON.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

import pyarrow as pa
import pyarrow.compute as pc

from airflow_ft.sinks.arrow import decoded, decoded_type, hexadecimal, is_binary, is_text, octets, replaced, scalar
from airflow_ft.sinks.base import json_columns
from airflow_ft.sinks.mysql.labels import Labels
from airflow_ft.sinks.mysql.naming import quote

_LARGE = pa.large_string()


class Form(Enum):
    """Form in which the server must read a column's text."""

    PLAIN = "plain"  # digits, dates: no character that needs care
    # An exponent would make a literal a double, and MariaDB compares a quoted one with a column as doubles.
    DECIMAL = "decimal"  # all digits
    QUOTED = "quoted"  # like PLAIN, but a literal is quoted: dates, times
    TEXT = "text"  # any character
    HEX = "hex"  # bytes as hex digits
    BITS = "bits"  # an integer for a BIT column


@dataclass(frozen=True, slots=True)
class TargetColumn:
    """One written column: its source, its name in the table, and the form of its text.

    `labels` of an ENUM or SET: no other text is sent there, even if the column was changed since it was judged.
    """

    source: str
    name: str
    form: Form
    labels: Labels | None = None

    def values(self, batch: pa.RecordBatch) -> pa.Array:
        """Return what it is sent of these rows. DeclinedError for a text that is not of its labels."""
        array = batch.column(batch.schema.get_field_index(self.source))
        if self.labels is not None:
            self.labels.refuse(array, self.source)
        return array


def form_of(kind: pa.DataType, *, bits: bool = False) -> Form:
    """The form for an Arrow type; `bits` when the target is a BIT column."""
    kind, types = decoded_type(kind), pa.types
    if bits:
        return Form.BITS
    if is_binary(kind):
        return Form.HEX
    if is_text(kind) or types.is_nested(kind):
        return Form.TEXT
    if types.is_decimal(kind):
        return Form.DECIMAL
    if types.is_temporal(kind):
        return Form.QUOTED
    return Form.PLAIN


def slices(batch: pa.RecordBatch, size: int) -> Iterator[pa.RecordBatch]:
    """Cuts a batch into pieces of about `size` bytes, at least one row each."""
    rows = batch.num_rows
    if rows == 0:
        return
    step = max(1, min(rows, int(rows * size / max(1, batch.nbytes))))
    for start in range(0, rows, step):
        yield batch.slice(start, step)


def load_lines(batch: pa.RecordBatch, columns: Sequence[TargetColumn]) -> memoryview:
    r"""The rows as lines for `load_statement`: fields separated by tabs, NULL as \N."""
    fields = []
    for column in columns:
        text = _text(column.values(batch), column.form)
        fields.append(_escape_field(text) if column.form is Form.TEXT else text)
    *before, last = fields
    last = _join([last, _empty()], "\n", null="\\N")
    return octets(_join([*before, last], "\t", null="\\N"))


def load_statement(table: str, columns: Sequence[TargetColumn]) -> str:
    """LOAD DATA LOCAL for `load_lines`; `table` is quoted. The file's name means nothing."""
    targets, settings = [], []
    for index, column in enumerate(columns):
        if column.form is Form.HEX:
            targets.append(f"@airflow_ft_{index}")
            settings.append(f"{quote(column.name)} = UNHEX(@airflow_ft_{index})")
        elif column.form is Form.BITS:
            targets.append(f"@airflow_ft_{index}")
            settings.append(f"{quote(column.name)} = CAST(@airflow_ft_{index} AS UNSIGNED)")
        else:
            targets.append(quote(column.name))
    statement = (
        f"LOAD DATA LOCAL INFILE 'airflow_ft' INTO TABLE {table} CHARACTER SET utf8mb4"
        " FIELDS TERMINATED BY '\\t' ESCAPED BY '\\\\' LINES TERMINATED BY '\\n'"
        f" ({', '.join(targets)})"
    )
    return statement + (f" SET {', '.join(settings)}" if settings else "")


def delete_statements(
    table: str, batch: pa.RecordBatch, keys: Sequence[TargetColumn], guard: str, size: int, rows: int = 500
) -> Iterator[tuple[bytes, int]]:
    """DELETE by key, where `guard` allows it, of at most `rows` rows and about `size` bytes; no key may be NULL."""
    # AND and OR, not lists of tuples: every release finds the rows by their index.
    equal = [_wrap(f"{quote(key.name)} = ", text, "") for key, text in zip(keys, _literals(batch, keys), strict=True)]
    conditions = _wrap("(", _join(equal, " AND "), ")")
    before, after = f"DELETE FROM {table} WHERE (".encode(), f") AND {guard}".encode()
    room = size - len(before) - len(after)
    for start in range(0, len(conditions), rows):
        found = [condition.encode() for condition in conditions.slice(start, rows).to_pylist()]
        while found:
            count, length = 1, len(found[0])
            while count < len(found) and length + len(found[count]) + 4 <= room:
                length += len(found[count]) + 4
                count += 1
            yield before + b" OR ".join(found[:count]) + after, count
            del found[:count]


def _literals(batch: pa.RecordBatch, columns: Sequence[TargetColumn]) -> list[pa.Array]:
    """The columns as SQL literals; null stays null."""
    literals = []
    for column in columns:
        values = column.values(batch)
        text = json_columns.decimal_text(decoded(values)) if column.form is Form.DECIMAL else _text(values, column.form)
        if column.form is Form.TEXT:
            text = _wrap("'", _escape_literal(text), "'")
        elif column.form is Form.QUOTED:
            text = _wrap("'", text, "'")
        elif column.form is Form.HEX:
            text = _wrap("x'", text, "'")
        literals.append(text)
    return literals


# --- one column ------------------------------------------------------------------------------------------------------


def _text(array: pa.Array, form: Form) -> pa.Array:
    """The column as large_string, unescaped; null stays null."""
    array = decoded(array)
    kind, types = array.type, pa.types
    if form is Form.HEX:
        return hexadecimal(array)
    if types.is_nested(kind):
        return json_columns.encode(array, null=None)
    if types.is_boolean(kind):
        array = array.cast(pa.int8())
    elif types.is_floating(kind):
        array = array.cast(pa.float64())
    elif types.is_timestamp(kind):
        # A zoned timestamp counts from the epoch in UTC, so dropping the zone leaves the UTC wall clock.
        array = array.cast(pa.timestamp("us"))
    elif types.is_time(kind):
        array = array.cast(pa.time64("us"))
    return array.cast(_LARGE)


def _escape_field(text: pa.Array) -> pa.Array:
    return replaced(text, (("\\", "\\\\"), ("\t", "\\t"), ("\n", "\\n"), ("\0", "\\0")))


def _escape_literal(text: pa.Array) -> pa.Array:
    return replaced(text, (("\\", "\\\\"), ("'", "\\'"), ("\0", "\\0")))


# --- rows ------------------------------------------------------------------------------------------------------------


def _empty() -> pa.Scalar:
    return scalar("", _LARGE)


def _join(parts: Sequence[pa.Array | pa.Scalar], separator: str, null: str = "") -> pa.Array:
    joined = pc.binary_join_element_wise(
        *parts, scalar(separator, _LARGE), null_handling="replace", null_replacement=null
    )
    return joined


def _wrap(before: str, text: pa.Array, after: str) -> pa.Array:
    """`before` + text + `after`; null stays null."""
    return pc.binary_join_element_wise(
        scalar(before, _LARGE), text, scalar(after, _LARGE), _empty(), null_handling="emit_null"
    )
