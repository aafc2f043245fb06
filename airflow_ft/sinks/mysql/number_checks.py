"""Numbers into columns of numbers: in range, and without a digit that would be lost. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal

import pyarrow as pa
import pyarrow.compute as pc

from airflow_ft.protocol.write_ahead_log import ColumnStatistics
from airflow_ft.sinks.mysql.catalog import Column
from airflow_ft.sinks.mysql.checks import Check, Objection

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
        offends, lambda s: _outside(s, low, high), problem="range",
    )  # fmt: skip


def _outside(statistics: ColumnStatistics, low: Decimal, high: Decimal) -> bool:
    return any(value < low or value > high for value in _extremes(statistics))


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
