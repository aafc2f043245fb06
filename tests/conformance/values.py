"""Values to the ends of their ranges, as Arrow has them, and how systems without a type of their own show them."""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

from airflow_ft.testing import plain
from airflow_ft.testing.values import same

NAN, INF = float("nan"), float("inf")
EVERY_BYTE = bytes(range(256))
UTC_MICRO, MICRO = pa.timestamp("us", "UTC"), pa.timestamp("us")
MOMENTS = [
    datetime(1, 1, 1),
    datetime(1582, 10, 10),
    datetime(1969, 12, 31, 23, 59, 59, 999_999),
    datetime(1970, 1, 1),
    datetime(2024, 10, 27, 1, 30, 0, 250),
    datetime(9999, 12, 31, 23, 59, 59, 999_999),
    None,
]
TEXTS = [
    "",
    " ",
    "a ",
    "007",
    "NULL",
    "null",
    "\\N",
    "\\",
    "'",
    '"',
    '"quoted", with\ttabs',
    "two\nlines\r\nand\r",
    "ü",
    "e\u0301",
    "\N{PILE OF POO}",
    "\N{PILE OF POO}" * 5_000,
    "x" * 100_000,
    "\ufeff",
    "\u2028",
    "\x01\x7f",
    None,
]
NUL = {"zeros": pa.array(["\0", "a\0b", "a\0", None])}
"""Texts that programs in C may cut off. PostgreSQL takes none."""
DIGITS = [
    Decimal(text)
    for text in ("0", "0.0000000001", "-0.0000000001", "42.5", f"{'9' * 28}.{'9' * 10}", f"-{'9' * 28}.{'9' * 10}")
]


def ends(bits: int, signed: bool = True) -> list[int | None]:
    """Return the ends of a range, and what a detour over floating point would change."""
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    inexact = [2**53 + 1] if bits == 64 else []  # as a double it would be even
    return [low, low + 1, 0, 1, *inexact, high - 1, high, None]


FINITE: dict[str, pa.Array] = {
    "flag": pa.array([True, False, None]),
    "tiny": pa.array(ends(8), pa.int8()),
    "small": pa.array(ends(16), pa.int16()),
    "whole": pa.array(ends(32), pa.int32()),
    "big": pa.array(ends(64), pa.int64()),
    "single": pa.array([0.1, 1.0, -3.4028234663852886e38, 3.4028234663852886e38, 1e-45, None], pa.float32()),
    "double": pa.array([0.1, 1.0, -1.7976931348623157e308, 1.7976931348623157e308, 5e-324, 2.0**53 + 2, None]),
    "text": pa.array(TEXTS, pa.string()),
    "amount": pa.array([*DIGITS, None], pa.decimal128(38, 10)),
    "day": pa.array([date(1, 1, 1), date(1969, 12, 31), date(2024, 2, 29), date(9999, 12, 31), None], pa.date32()),
    "moment": pa.array([each and each.replace(tzinfo=UTC) for each in MOMENTS], UTC_MICRO),
    "local": pa.array(MOMENTS, MICRO),
    "raw": pa.array([b"", b"\0", EVERY_BYTE, EVERY_BYTE[::-1] * 40, None], pa.binary()),
}
NOT_FINITE = {
    "odd_single": pa.array([NAN, INF, -INF, -0.0], pa.float32()),
    "odd_double": pa.array([NAN, INF, -INF, -0.0], pa.float64()),
}
CLOCK = {"clock": pa.array([time(0), time(12, 0, 0, 250), time(23, 59, 59, 999_999), None], pa.time64("us"))}
NESTED = {
    "listed": pa.array([[1, None, -(2**63)], [], None], pa.list_(pa.int64())),
    "named": pa.array([[("k", 1.5), ('ü"', None)], [], None], pa.map_(pa.string(), pa.float64())),
    "parts": pa.array(
        [{"a": 2**63 - 1, "b": 'q"\\/\n'}, {"a": None, "b": ""}, None],
        pa.struct([("a", pa.int64()), ("b", pa.string())]),
    ),
}
EARLY = pa.array([-719_163], pa.int32()).cast(pa.date32())  # the last day before the year 1
LATE = pa.array([2_932_897], pa.int32()).cast(pa.date32())  # 10000-01-01
LATE_MOMENT = pa.array([253_402_300_800_000_000], pa.int64()).cast(MICRO)


def without(columns: dict[str, pa.Array], *names: str) -> dict[str, pa.Array]:
    return {name: array for name, array in columns.items() if name not in names}


def by_place(values: pa.Array, shown: Sequence[Any]) -> Callable[[Any], Any]:
    """What stands for a value in another list, in the same place."""
    pairs = list(zip((row["v"] for row in plain(pa.table({"v": values}))), shown, strict=True))
    return lambda value: next(text for each, text in pairs if same(each, value))


def digits(value: Decimal) -> str:
    return format(value, "f")


def instant(value: datetime, between: str = "T", end: str = "") -> str:
    """With six digits of a second."""
    return value.replace(tzinfo=None).isoformat(between, "microseconds") + end


def shortest(value: float) -> float:
    """A single number, as its shortest text reads back."""
    return float(str(np.float32(value)))


AS_JSON: dict[str, Callable[[Any], Any]] = {
    "single": shortest,
    "amount": digits,
    "day": date.isoformat,
    "moment": lambda value: instant(value, end="Z"),
    "local": instant,
    "clock": lambda value: value.isoformat("microseconds"),
    "raw": lambda value: base64.b64encode(value).decode(),
    "named": dict,
}
REFUSED_BY_JSON = {
    "NaN": ("double", pa.array([NAN])),
    "infinity": ("single", pa.array([INF, -INF], pa.float32())),
}
