"""Which Arrow type may go into which column, and what of its values has to be checked for that. Pure.

`judge` answers with an `Objection` when the types do not go together at all, else with the `Check`s that the values
must pass. A check is decided from the statistics of the staging pass where they suffice (`Check.by_statistics`), and
otherwise by looking at the rows (`Check.by_rows`): whether digits would be cut off cannot be told from a minimum.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pyarrow.compute as pc

from airflow_ft.core.ports import ColumnStatistics
from airflow_ft.sinks.mysql.catalog import Column
from airflow_ft.sinks.mysql.encoding import is_binary, is_text
from airflow_ft.sinks.mysql.json_text import is_nested, unsupported

INTEGERS = {"tinyint": 8, "smallint": 16, "mediumint": 24, "int": 32, "integer": 32, "bigint": 64}
TEXTS = {"char", "varchar", "tinytext", "text", "mediumtext", "longtext"}
BYTES = {"binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob"}
BLOB_LIKE = {"tinytext", "text", "mediumtext", "longtext", "tinyblob", "blob", "mediumblob", "longblob"}
SERVER_JUDGES = {"enum", "set", "json", "uuid", "inet4", "inet6"}
"""Types whose values only the server can check; it refuses what does not fit in the delivering transaction."""

Statistics = Callable[[ColumnStatistics], bool]
Rows = Callable[[pa.Array], pa.Array]


def _has_values(statistics: ColumnStatistics) -> bool:
    """False when all are null, so that nothing can offend."""
    return statistics.minimum is not None or bool(statistics.max_bytes)


@dataclass(frozen=True, slots=True)
class Objection:
    """Why a type cannot go into a column, and what would help: another column, unless `by_table` is False."""

    found: str
    remedy: str
    by_table: bool = True


@dataclass(frozen=True, slots=True)
class Check:
    """One condition on the values. `offends` marks offending rows (nulls may be null in it).

    `by_statistics` tells whether any value offends, or is None when only the rows can tell. `by_table`: another column
    would take the offending values as they are (a wider one, say), so that the rows need not be computed again.
    """

    found: str
    allowed: str
    remedy: str
    offends: Rows
    by_statistics: Statistics | None
    by_table: bool = True


def judge(kind: pa.DataType, column: Column, *, timestamps_to_2106: bool = False) -> Objection | Sequence[Check]:
    """Whether values of Arrow type `kind` may go into `column`, and which conditions they must meet."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    target = column.type
    if target in INTEGERS or target in ("bit", "year"):
        return _into_integer(kind, column)
    if target in ("decimal", "numeric"):
        return _into_decimal(kind, column)
    if target in ("float", "double", "real"):
        return _into_float(kind, column)
    if target in ("date", "datetime", "timestamp", "time"):
        return _into_time(kind, column, timestamps_to_2106)
    if target in TEXTS or target in SERVER_JUDGES:
        return _into_text(kind, column)
    if target in BYTES:
        return _into_bytes(kind, column)
    return _mismatch(kind, column, "choose another column type")


def null_checks(column: Column) -> Sequence[Check]:
    """No nulls where the column takes none."""
    if column.nullable and not column.automatic:
        return ()
    why = "NULL would become the next AUTO_INCREMENT number" if column.automatic else "the column is NOT NULL"
    remedy = "leave the column out of the job's result" if column.automatic else "make the column nullable"
    return (
        Check(
            found="NULL", allowed=why, remedy=f"fill the values in the job, or {remedy}.",
            offends=pc.is_null, by_statistics=lambda s: s.nulls > 0, by_table=False,
        ),
    )  # fmt: skip


# --- families --------------------------------------------------------------------------------------------------------


def _mismatch(kind: pa.DataType, column: Column, remedy: str) -> Objection:
    return Objection(f"values of type {kind} do not go into {column.full_type}", f"{remedy}, or cast in the job.")


def _integer_range(column: Column) -> tuple[int, int]:
    if column.type == "year":
        return 1901, 2155
    if column.type == "bit":
        return 0, (1 << (column.precision or 1)) - 1
    bits = INTEGERS[column.type]
    return (0, (1 << bits) - 1) if column.unsigned else (-(1 << (bits - 1)), (1 << (bits - 1)) - 1)


def _into_integer(kind: pa.DataType, column: Column) -> Objection | Sequence[Check]:
    if pa.types.is_null(kind) or pa.types.is_boolean(kind):
        return ()
    whole_decimal = pa.types.is_decimal(kind) and kind.scale <= 0 and column.type != "bit"
    if not (pa.types.is_integer(kind) or whole_decimal):
        return _mismatch(kind, column, "use DECIMAL, DOUBLE or what the values are")
    low, high = _integer_range(column)
    return (_range(Decimal(low), Decimal(high), column),)


def _range(low: Decimal, high: Decimal, column: Column) -> Check:
    def offends(array: pa.Array) -> pa.Array:
        wide = _wide(array)
        return pc.or_(pc.less(wide, pa.scalar(low, wide.type)), pc.greater(wide, pa.scalar(high, wide.type)))

    return Check(
        "a number out of range", f"{low} to {high} ({column.full_type})", "mend the values, or widen the column.",
        offends, lambda s: _outside(s, low, high),
    )  # fmt: skip


def _outside(statistics: ColumnStatistics, low: Decimal, high: Decimal) -> bool:
    return any(value < low or value > high for value in _extremes(statistics))


def _extremes(statistics: ColumnStatistics) -> list[Decimal]:
    return [Decimal(text) for text in (statistics.minimum, statistics.maximum) if text is not None]


def _into_decimal(kind: pa.DataType, column: Column) -> Objection | Sequence[Check]:
    if pa.types.is_null(kind) or pa.types.is_boolean(kind):
        return ()
    if not (pa.types.is_integer(kind) or pa.types.is_decimal(kind)):
        return _mismatch(kind, column, "use DOUBLE for floating-point numbers")
    precision, scale = column.precision or 10, column.scale or 0
    checks: list[Check] = []
    limit = Decimal(10) ** (precision - scale)
    if pa.types.is_integer(kind) or kind.precision - kind.scale > precision - scale:
        checks.append(
            Check(
                "a number with too many digits before the point", f"less than {limit:f} ({column.full_type})",
                "mend the values, or widen the column.",
                lambda a: _magnitude_reaches(a, limit), lambda s: any(abs(v) >= limit for v in _extremes(s)),
            )
        )  # fmt: skip
    if column.unsigned:
        checks.append(
            Check(
                "a negative number", column.full_type, "mend the values, or drop UNSIGNED.",
                lambda a: pc.less(_wide(a), pa.scalar(Decimal(0), _wide(a).type)),
                lambda s: any(v < 0 for v in _extremes(s)),
            )
        )  # fmt: skip
    if pa.types.is_decimal(kind) and kind.scale > scale:
        checks.append(
            Check(
                "digits after the point that the column would cut off",
                f"{scale} digits after the point ({column.full_type})",
                "round in the job, or widen the column's scale.",
                lambda a: pc.not_equal(pc.round(a, ndigits=scale), a), None,
            )
        )  # fmt: skip
    return checks


def _wide(array: pa.Array) -> pa.Array:
    """Integers and decimals as decimals that are wide enough to compare with."""
    return array.cast(pa.decimal256(76, max(0, array.type.scale) if pa.types.is_decimal(array.type) else 0))


def _magnitude_reaches(array: pa.Array, limit: Decimal) -> pa.Array:
    wide = _wide(array)
    return pc.or_(
        pc.greater_equal(wide, pa.scalar(limit, wide.type)), pc.less_equal(wide, pa.scalar(-limit, wide.type))
    )


def _into_float(kind: pa.DataType, column: Column) -> Objection | Sequence[Check]:
    single = column.type == "float"
    if column.scale is not None:
        return Objection(f"{column.full_type} rounds", "use FLOAT or DOUBLE without digits, or DECIMAL.")
    if pa.types.is_null(kind) or pa.types.is_boolean(kind):
        return ()
    checks: list[Check] = []
    if pa.types.is_integer(kind):
        limit = Decimal(2) ** (24 if single else 53)
        checks.append(_range(Decimal(0) if column.unsigned else -limit, limit, column))
        return checks
    if not pa.types.is_floating(kind):
        return _mismatch(kind, column, "use DECIMAL for decimals")
    if single and pa.types.is_float64(kind):
        return Objection("values of type double lose digits in FLOAT", "make the column DOUBLE, or cast in the job.")
    checks.append(
        Check(
            "NaN or infinity", "finite numbers", "make them null in the job.",
            lambda a: pc.invert(pc.is_finite(a)), lambda s: s.nans > 0 or s.infinities > 0,
            by_table=False,
        )
    )  # fmt: skip
    if column.unsigned:
        checks.append(
            Check(
                "a negative number", f"{column.full_type}", "mend the values, or drop UNSIGNED.",
                lambda a: pc.less(a, 0.0), lambda s: s.minimum is not None and float(s.minimum) < 0,
            )
        )  # fmt: skip
    return checks


# --- dates and times -------------------------------------------------------------------------------------------------

# All in UTC, without a zone, as the columns hold them.
_FIRST = datetime.fromisoformat("1000-01-01")
_LAST = datetime.fromisoformat("9999-12-31T23:59:59.999999")
_STAMP_FIRST = datetime.fromisoformat("1970-01-01T00:00:01")
_STAMP_LAST = datetime.fromisoformat("2038-01-19T03:14:07.999999")
_STAMP_LAST_64 = datetime.fromisoformat("2106-02-07T06:28:15.999999")
_UNITS = {"s": 0, "ms": 3, "us": 6, "ns": 9}


def _into_time(kind: pa.DataType, column: Column, timestamps_to_2106: bool) -> Objection | Sequence[Check]:
    types = pa.types
    if types.is_null(kind):
        return ()
    target = column.type
    if target == "time":
        if not types.is_time(kind):
            return _mismatch(kind, column, "use DATETIME for timestamps, an integer for durations")
        return _fraction_checks(kind, column)
    if types.is_date(kind):
        first, last = _bounds(target, timestamps_to_2106)
        return (_between(kind, first, last, column),)
    if types.is_timestamp(kind) and target in ("datetime", "timestamp"):
        first, last = _bounds(target, timestamps_to_2106)
        return (_between(kind, first, last, column), *_fraction_checks(kind, column))
    return _mismatch(kind, column, "use DATETIME(6) for timestamps, DATE for dates")


def _bounds(target: str, timestamps_to_2106: bool) -> tuple[datetime, datetime]:
    if target == "timestamp":
        return _STAMP_FIRST, _STAMP_LAST_64 if timestamps_to_2106 else _STAMP_LAST
    return _FIRST, _LAST


def _between(kind: pa.DataType, first: datetime, last: datetime, column: Column) -> Check:
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
        values = [parse_time(text) for text in (statistics.minimum, statistics.maximum) if text is not None]
        return any(value < first or value > last for value in values)

    return Check(
        "a date out of range", f"{first} to {last} ({column.full_type})",
        "mend the values, or use DATETIME (years 1000 to 9999).", offends, by_statistics,
        by_table=column.type == "timestamp",
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
            "truncate in the job (date_trunc), or widen the column to DATETIME(6).", offends, None,
        ),
    )  # fmt: skip


# --- text and bytes --------------------------------------------------------------------------------------------------


def _into_text(kind: pa.DataType, column: Column) -> Objection | Sequence[Check]:
    if pa.types.is_null(kind):
        return ()
    if is_nested(kind):
        if column.type not in ("json", "text", "mediumtext", "longtext"):
            return _mismatch(kind, column, "nested values become JSON text: use JSON, TEXT or LONGTEXT")
        if (inner := unsupported(kind)) is not None:
            return Objection(
                f"{inner} inside {kind} has no JSON text", "cast it to a string in the job.", by_table=False
            )
        return ()
    if not is_text(kind):
        return _mismatch(kind, column, "use a column of the values' type")
    checks: list[Check] = []
    if column.type in ("char", "varchar") and column.characters is not None:
        checks.append(_characters(column.characters, column))
    elif column.type in TEXTS and column.octets is not None:
        checks.append(_octets(column.octets, column))
    if column.charset is not None and column.charset != "utf8mb4" and column.type not in SERVER_JUDGES:
        checks.append(_charset(column))
    if column.type == "char":
        checks.append(
            Check(
                "a text that ends in blanks, which CHAR drops", "no blanks at the end",
                "use VARCHAR, or trim in the job.",
                lambda a: pc.ends_with(a, " "), None,
            )
        )  # fmt: skip
    return checks


def _characters(limit: int, column: Column) -> Check:
    return Check(
        f"a text longer than {limit} characters", column.full_type, "cut it in the job, or widen the column.",
        lambda a: pc.greater(pc.utf8_length(a), limit), lambda s: (s.max_characters or 0) > limit,
    )  # fmt: skip


def _octets(limit: int, column: Column) -> Check:
    return Check(
        f"a value longer than {limit} bytes", column.full_type, "cut it in the job, or use a larger type.",
        lambda a: pc.greater(pc.binary_length(a), limit), lambda s: (s.max_bytes or 0) > limit,
    )  # fmt: skip


def _charset(column: Column) -> Check:
    if column.charset in ("utf8mb3", "utf8"):
        return Check(
            "a character of 4 bytes", f"{column.full_type} in {column.charset}", "make the column utf8mb4.",
            lambda a: pc.match_substring_regex(a, "[\\x{10000}-\\x{10FFFF}]"), None,
        )  # fmt: skip
    return Check(
        "a text that is not ASCII", f"{column.full_type} in {column.charset}, of which only ASCII is certain",
        "make the column utf8mb4.", lambda a: pc.invert(pc.string_is_ascii(a)), None,
    )  # fmt: skip


def _into_bytes(kind: pa.DataType, column: Column) -> Objection | Sequence[Check]:
    if pa.types.is_null(kind):
        return ()
    if not (is_binary(kind) or is_text(kind)):
        return _mismatch(kind, column, "use a column of the values' type")
    limit = column.octets or 0
    checks = [_octets(limit, column)]
    if column.type == "binary":
        checks.append(
            Check(
                f"a value shorter than {limit} bytes, which BINARY pads", column.full_type, "use VARBINARY.",
                lambda a: pc.less(pc.binary_length(a), limit), None,
            )
        )  # fmt: skip
    return checks
