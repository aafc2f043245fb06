"""Conditions on values, by the column that they go into: numbers, text and bytes, dates and times. Pure.

Numbers must be in range and keep all digits, texts must be whole and in characters that the column has, times must be
in range and keep their fractions.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pyarrow.compute as pc

from airflow_ft.protocol.write_ahead_log import ColumnStatistics
from airflow_ft.sinks.arrow import scalar
from airflow_ft.sinks.base import json_columns
from airflow_ft.sinks.base.columns import Check, Objection, Rows
from airflow_ft.sinks.base.json_texts import with_repeated_keys
from airflow_ft.sinks.mysql.catalog import Column
from airflow_ft.sinks.mysql.server_texts import Repertoire


def null_checks(column: Column) -> Sequence[Check]:
    """No nulls where the column takes none."""
    if column.nullable and not column.automatic:
        return ()
    why = "it would become the next AUTO_INCREMENT number" if column.automatic else "the column is NOT NULL"
    remedy = "leave the column out of the job's result" if column.automatic else "make the column nullable"
    return (
        Check(
            found="NULL", allowed=f"no NULL ({why})", remedy=f"Fill the values in the job, or {remedy}.",
            offends=pc.is_null, by_statistics=lambda s: s.nulls > 0, by_table=False, problem="null",
            code="null_refused",
        ),
    )  # fmt: skip


NULL_IN_A_DELETE = Check(
    "NULL in the key of a delete", "no NULL, because it is in the key", "Remove such rows in the job.",
    pc.is_null, lambda s: s.nulls > 0, by_table=False, problem="null", code="null_refused",
)  # fmt: skip


# --- numbers ---

INTEGERS = {"tinyint": 8, "smallint": 16, "mediumint": 24, "int": 32, "integer": 32, "bigint": 64}

_WIDEN = "Correct the values in the job, or widen the column."
_DROP_UNSIGNED = "Correct the values in the job, or drop UNSIGNED of the column."


def _integer_range(column: Column) -> tuple[int, int]:
    if column.type == "year":
        return 1901, 2155
    if column.type == "bit":
        return 0, (1 << (column.precision or 1)) - 1
    bits = INTEGERS[column.type]
    return (0, (1 << bits) - 1) if column.unsigned else (-(1 << (bits - 1)), (1 << (bits - 1)) - 1)


def into_integer(kind: pa.DataType, column: Column) -> Sequence[Check]:
    """Integers, BIT and YEAR."""
    if pa.types.is_boolean(kind):
        return ()
    low, high = _integer_range(column)
    return (_range(Decimal(low), Decimal(high), column),)


def _range(low: Decimal, high: Decimal, column: Column) -> Check:
    def offends(array: pa.Array) -> pa.Array:
        wide = _wide(array)
        return pc.or_(pc.less(wide, pa.scalar(low, wide.type)), pc.greater(wide, pa.scalar(high, wide.type)))

    return Check(
        "a number out of range", f"{low} to {high} ({column.full_type})", _WIDEN,
        offends, lambda s: any(not low <= value <= high for value in _extremes(s)), problem="range",
    )  # fmt: skip


def _extremes(statistics: ColumnStatistics) -> list[Decimal]:
    return [Decimal(text) for text in (statistics.minimum, statistics.maximum) if text is not None]


def into_decimal(kind: pa.DataType, column: Column) -> Sequence[Check]:
    """DECIMAL: neither digits before the point nor behind it may be lost."""
    precision, scale = column.precision or 10, column.scale or 0
    checks: list[Check] = []
    limit = Decimal(10) ** (precision - scale)
    if pa.types.is_boolean(kind):
        return () if limit > 1 else (_refuse_true(column),)
    if pa.types.is_integer(kind) or kind.precision - kind.scale > precision - scale:
        checks.append(
            Check(
                "a number with too many digits before the point", f"less than {limit:f} ({column.full_type})", _WIDEN,
                lambda a: _magnitude_reaches(a, limit), lambda s: any(abs(v) >= limit for v in _extremes(s)),
                problem="digits",
            )
        )  # fmt: skip
    if column.unsigned:
        checks.append(
            Check(
                "a negative number", column.full_type, _DROP_UNSIGNED,
                lambda a: pc.less(_wide(a), pa.scalar(Decimal(0), _wide(a).type)),
                lambda s: any(v < 0 for v in _extremes(s)), problem="sign",
            )
        )  # fmt: skip
    if pa.types.is_decimal(kind) and kind.scale > scale:
        checks.append(
            Check(
                "digits after the point that the column would cut off",
                f"{scale} digits after the point ({column.full_type})",
                "Round in the job, or widen the column's scale.",
                lambda a: pc.not_equal(pc.round(_wide(a), ndigits=scale), _wide(a)), None, problem="scale",
            )
        )  # fmt: skip
    return checks


def _wide(array: pa.Array) -> pa.Array:
    """Integers and decimals as decimals that are wide enough to compare with."""
    return array.cast(pa.decimal256(76, max(0, array.type.scale) if pa.types.is_decimal(array.type) else 0))


def _refuse_true(column: Column) -> Check:
    """DECIMAL(2,2) and the like end below 1."""
    return Check(
        "true, which is stored as 1", column.full_type, "Widen the column.", lambda a: a,
        lambda s: s.maximum == "True", problem="range",
    )  # fmt: skip


def _magnitude_reaches(array: pa.Array, limit: Decimal) -> pa.Array:
    wide = _wide(array)
    return pc.or_(
        pc.greater_equal(wide, pa.scalar(limit, wide.type)), pc.less_equal(wide, pa.scalar(-limit, wide.type))
    )


def into_float(kind: pa.DataType, column: Column) -> Objection | Sequence[Check]:
    """FLOAT and DOUBLE: every value must be one of theirs."""
    single = column.type == "float"
    if column.scale is not None:
        return Objection(f"{column.full_type} rounds", "Use FLOAT or DOUBLE without digits, or DECIMAL.")
    if pa.types.is_boolean(kind):
        return ()
    checks: list[Check] = []
    if pa.types.is_integer(kind):
        limit = Decimal(2) ** (24 if single else 53)
        checks.append(_range(Decimal(0) if column.unsigned else -limit, limit, column))
        return checks
    checks.append(
        Check(
            "NaN or infinity", "finite numbers", "Make such values null in the job.",
            lambda a: pc.invert(pc.is_finite(a)), lambda s: s.nans > 0 or s.infinities > 0, by_table=False,
            problem="nan",
        )
    )  # fmt: skip
    if column.unsigned:
        checks.append(
            Check(
                "a negative number", f"{column.full_type}", _DROP_UNSIGNED,
                lambda a: pc.less(a, 0.0), lambda s: s.minimum is not None and float(s.minimum) < 0,
                problem="sign",
            )
        )  # fmt: skip
    return checks


# --- text, bytes and nested values ---

BLOBS = {"tinyblob", "blob", "mediumblob", "longblob"}
TEXTS = {"tinytext", "text", "mediumtext", "longtext"}
_WHOLE_MEMORY = 1 << 30  # bytes: no value is as large, so that nothing needs to be measured
_WIDER = {"utf16": 2, "utf16le": 2, "ucs2": 2, "utf32": 4, "gb18030": 2, "ujis": 2, "eucjpms": 2}
"""Most bytes that one byte of UTF-8 can become; in all other character sets it is one."""


def into_text(column: Column, repertoire: Repertoire | None) -> Sequence[Check]:
    """CHAR, VARCHAR and the TEXTs; `repertoire` when the column's character set does not hold every character."""
    checks: list[Check] = []
    if column.type in ("char", "varchar") and column.characters is not None:
        checks.append(_characters(column.characters, column))
    elif column.type in TEXTS and column.octets is not None:
        checks.append(_text_octets(column.octets, column))
    if repertoire is not None:
        checks.append(_repertoire(repertoire, column))
    if column.type == "char":
        checks.append(
            Check(
                "a text that ends in blanks, which CHAR drops", "no blanks at the end",
                "Use VARCHAR for the column, or trim in the job.",
                lambda a: pc.ends_with(a, " "), None, problem="blanks",
            )
        )  # fmt: skip
    if column.type == "json":
        checks.append(_REPEATED)
    return checks


_REPEATED = Check(
    "a key twice in an object", "each key once, because JSON keeps the last one",
    "Correct the values in the job, or use LONGTEXT for the column.", with_repeated_keys, None, problem="repeated",
)  # fmt: skip


def into_labels(column: Column) -> Sequence[Check]:
    """ENUM and SET: never the number of a label."""
    labels = column.labels
    assert labels is not None
    what = "a text with a part that is none of the labels" if labels.several else "a text that is none of the labels"
    return (
        Check(
            what, f"{labels} (letter by letter, under every collation)",
            "Correct the values in the job, or add the label to the column.", labels.unknown, None, named=True,
            problem="label",
        ),
    )  # fmt: skip


def into_json(kind: pa.DataType, column: Column, repertoire: Repertoire | None) -> Sequence[Check]:
    """Nested values, which become JSON text."""
    checks: list[Check] = []
    if json_columns.has_floats(kind):
        checks.append(
            Check(
                "a nested value with NaN or infinity, which JSON cannot hold", "finite numbers",
                "Make such values null in the job.", json_columns.not_finite, None, by_table=False,
                problem="nan",
            )
        )  # fmt: skip
    if json_columns.has_times(kind):
        checks.append(
            Check(
                "a nested date or time outside of the years 1 to 9999, whose text no other program reads",
                "years of four digits", "Make such values null in the job.", json_columns.beyond_years, None,
                by_table=False, problem="year",
            )
        )  # fmt: skip
    if json_columns.has_maps(kind):
        checks.append(
            Check(
                "a nested map with a repeated key, of which JSON keeps one value", "each key once",
                "Correct the source of such maps.", json_columns.repeated_keys, None, by_table=False, problem="key",
            )
        )  # fmt: skip
    if column.type in TEXTS and column.octets is not None and column.octets < _WHOLE_MEMORY:
        checks.append(_of_json(_text_octets(column.octets, column)))
    if repertoire is not None:
        checks.append(_of_json(_repertoire(repertoire, column)))
    return checks


def into_bytes(column: Column) -> Sequence[Check]:
    """BINARY, VARBINARY and the BLOBs; text goes there as UTF-8."""
    limit = column.octets or 0
    checks = [_octets(limit, column)]
    if column.type == "binary":
        checks.append(
            Check(
                f"a value shorter than {limit} bytes, which BINARY pads", column.full_type,
                "Use VARBINARY for the column.",
                lambda a: pc.less(pc.binary_length(a), scalar(limit, pa.int64())), None, problem="padding",
            )
        )  # fmt: skip
    return checks


def _characters(limit: int, column: Column) -> Check:
    return Check(
        f"a text longer than {limit} characters", column.full_type, "Cut it in the job, or widen the column.",
        lambda a: pc.greater(pc.utf8_length(a), limit), lambda s: (s.max_characters or 0) > limit,
        problem="length",
    )  # fmt: skip


def _text_octets(limit: int, column: Column) -> Check:
    """The column counts the bytes of its own character set."""
    charset = column.charset or ""
    if column.character_bytes == 1:
        return _characters(limit, column)
    return _octets(limit // _WIDER.get(charset, 1), column, f" in {charset}" if charset in _WIDER else "")


def _octets(limit: int, column: Column, where: str = "") -> Check:
    return Check(
        f"a value longer than {limit} bytes{where and ' of UTF-8'}", f"{column.full_type}{where}",
        "Cut it in the job, or use a larger type for the column.",
        lambda a: pc.greater(pc.binary_length(a), limit), lambda s: (s.max_bytes or 0) > limit,
        problem="length",
    )  # fmt: skip


def _repertoire(repertoire: Repertoire, column: Column) -> Check:
    return Check(
        f"a character that {column.charset} does not have", f"{column.full_type} in {column.charset}",
        "Make the column utf8mb4, or replace the character in the job.", repertoire.lacks, None,
        problem="charset",
    )  # fmt: skip


def _of_json(check: Check) -> Check:
    """The check of the JSON text that the values become. What has none is looked for before."""
    offends: Rows = lambda values: check.offends(json_columns.encode(values, null=None))  # noqa: E731
    return replace(check, found=f"a nested value that becomes {check.found}", offends=offends, by_statistics=None)


# --- dates and times ---

# All in UTC, without a zone, as the columns hold them.
_FIRST = datetime.fromisoformat("1000-01-01")
_LAST = datetime.fromisoformat("9999-12-31T23:59:59.999999")
_STAMP_FIRST = datetime.fromisoformat("1970-01-01T00:00:01")
_STAMP_LAST = datetime.fromisoformat("2038-01-19T03:14:07.999999")
_STAMP_LAST_64 = datetime.fromisoformat("2106-02-07T06:28:15.999999")
_YEAR_IN_USE = re.compile(r"[1-9]\d{3}-")
MOST_DIGITS = 6  # of a second, in any column
_UNITS = {"s": 0, "ms": 3, "us": 6, "ns": 9}


def into_time(kind: pa.DataType, column: Column, timestamps_to_2106: bool) -> Sequence[Check]:
    """DATE, DATETIME, TIMESTAMP and TIME."""
    if pa.types.is_time(kind):
        return _fraction_checks(kind, column)
    first, last = _FIRST, _LAST
    if column.type == "timestamp":
        first, last = _STAMP_FIRST, _STAMP_LAST_64 if timestamps_to_2106 else _STAMP_LAST
    allowed = f"{first} to {last} ({column.full_type})"
    checks = [_between(kind, _FIRST, _LAST, allowed, by_table=False)]
    if column.type == "timestamp":
        checks.append(_between(kind, first, last, allowed, by_table=True))
    return (*checks, *(_fraction_checks(kind, column) if pa.types.is_timestamp(kind) else ()))


def _between(kind: pa.DataType, first: datetime, last: datetime, allowed: str, *, by_table: bool) -> Check:
    def offends(array: pa.Array) -> pa.Array:
        if pa.types.is_timestamp(kind):
            unit = pa.timestamp(kind.unit)
            array = array.cast(unit)
            bounds = [pa.scalar(bound, pa.timestamp("us")).cast(unit, safe=False) for bound in (first, last)]
        else:
            array = array.cast(pa.date32())
            bounds = [pa.scalar(bound.date(), pa.date32()) for bound in (first, last)]
            if first == _STAMP_FIRST:  # midnight of the first day lies before the first second
                bounds[0] = pa.scalar(date(1970, 1, 2), pa.date32())
        return pc.or_(pc.less(array, bounds[0]), pc.greater(array, bounds[1]))

    def by_statistics(statistics: ColumnStatistics) -> bool:
        known = [text for text in (statistics.minimum, statistics.maximum) if text is not None]
        if any(not _YEAR_IN_USE.match(text) for text in known):  # Python may not have it, and no column does
            return True
        return any(not first <= parse_time(text) <= last for text in known)

    return Check(
        "a date out of range", allowed,
        "Correct the values in the job" + (", or use DATETIME (years 1000 to 9999)." if by_table else "."),
        offends, by_statistics, by_table=by_table, problem="range",
    )  # fmt: skip


def parse_time(text: str) -> datetime:
    """A minimum or maximum of dates or timestamps as UTC without a zone."""
    # Nanoseconds are more digits than datetime takes; for a range they do not matter.
    value = datetime.fromisoformat(text)
    return value.astimezone(UTC).replace(tzinfo=None) if value.tzinfo else value


def _fraction_checks(kind: pa.DataType, column: Column) -> Sequence[Check]:
    digits = column.fraction or 0
    if _UNITS[kind.unit] <= digits:
        return ()
    unit = 10 ** (_UNITS[kind.unit] - digits)

    def offends(array: pa.Array) -> pa.Array:
        width = pa.int32() if pa.types.is_time32(kind) else pa.int64()
        ticks = array.cast(width).cast(pa.int64())
        return pc.not_equal(pc.multiply(pc.divide(ticks, unit), unit), ticks)

    return (
        Check(
            "fractions of a second that the column would round", f"{digits} digits ({column.full_type})",
            "Truncate in the job (date_trunc), or widen the column to DATETIME(6).", offends, None,
            by_table=digits < MOST_DIGITS, problem="fraction",
        ),
    )  # fmt: skip
