"""Random values of any Arrow type, with all its ends and oddities among them, from a seed."""

from __future__ import annotations

import random
import struct
from datetime import datetime, timedelta
from decimal import Context, Decimal
from typing import Any

import pyarrow as pa

_NULL, _EDGE = 0.1, 0.2  # how often a value is NULL, and how often one that was given
_MICROSECONDS = int((datetime(9999, 12, 31, 23, 59, 59) - datetime(1, 1, 1)).total_seconds()) * 1_000_000
_FIRST = datetime(1, 1, 1)
_EPOCH = datetime(1970, 1, 1)
_LETTERS = (
    *("a", "Z", "0", " ", "\0", "\x01", "\t", "\n", "\r", "\x1f", "\x7f", "\x80"),
    *("\\", "'", '"', "/", ":", ",", "{", "}", "%", "*"),
    *("\u00e9", "e\u0301", "\u200b", "\u2028", "\ud7ff", "\ue000", "\ufeff", "\ufffd", "\uffff"),
    *("\U00010000", "\N{PILE OF POO}", "\U0010ffff"),
)  # fmt: skip


class Fuzz:
    """A stream of values; `finite`: no NaN and no infinity, wherever in a value."""

    def __init__(self, seed: str, *, finite: bool) -> None:
        self._chance = random.Random(seed)
        self._finite = finite

    def column(self, given: pa.Array, rows: int, wanted: str = "") -> pa.Array:
        """Random values of the type of `given`, and some of its own. `wanted`: "uuid", "millisecond", or anything."""
        makes = {"uuid": self._uuid, "millisecond": self._millisecond}
        values = [self._maybe(given, makes.get(wanted)) for _ in range(rows)]
        return pa.array(values, given.type, from_pandas=False)

    def _maybe(self, given: pa.Array, make: Any) -> Any:
        chance = self._chance.random()
        if chance < _NULL:
            return None
        if chance < _NULL + _EDGE:
            return given[self._chance.randrange(len(given))].as_py()
        return make() if make is not None else self.value(given.type)

    def value(self, kind: pa.DataType) -> Any:
        """One value, which is not NULL itself."""
        chance, types = self._chance, pa.types
        if types.is_boolean(kind):
            return chance.random() < 0.5
        if types.is_integer(kind):
            return self._whole(kind.bit_width)
        if types.is_floating(kind):
            return self._float("<d" if kind.bit_width == 64 else "<f", kind.bit_width // 8)
        if types.is_decimal(kind):
            digits = chance.randrange(10 ** chance.randrange(1, kind.precision + 1))
            return Decimal(digits * chance.choice((-1, 1))).scaleb(-kind.scale, Context(prec=kind.precision))
        if types.is_string(kind):
            return self._text()
        if types.is_binary(kind):
            return chance.randbytes(chance.choice((0, 1, 7, 300)))
        if types.is_date(kind):
            return self._moment().date()
        if types.is_timestamp(kind):
            return self._moment()
        if types.is_time(kind):
            return self._moment().time()
        if types.is_map(kind):  # each key once, as readers of JSON have it
            keys = {self._text() for _ in range(chance.randrange(4))}
            return [(key, self._inside(kind.item_type)) for key in keys]
        if types.is_list(kind):
            return [self._inside(kind.value_type) for _ in range(chance.randrange(5))]
        return {field.name: self._inside(field.type) for field in kind}

    def _inside(self, kind: pa.DataType) -> Any:
        return None if self._chance.random() < _NULL else self.value(kind)

    def _whole(self, bits: int) -> int:
        least = -(1 << bits - 1)
        return max(least, self._chance.getrandbits(self._chance.randrange(bits)) * self._chance.choice((-1, 1)))

    def _float(self, form: str, size: int) -> float:
        while True:
            [value] = struct.unpack(form, self._chance.randbytes(size))
            if not self._finite or value - value == 0:
                return float(value)

    def _text(self) -> str:
        length = self._chance.choice((0, 1, 3, 15, 16, 17, 40, 400))
        return "".join(self._chance.choice(_LETTERS) for _ in range(length))

    def _uuid(self) -> str:
        text = self._chance.randbytes(16).hex()
        cased = text if self._chance.random() < 0.5 else text.upper()
        return "-".join((cased[:8], cased[8:12], cased[12:16], cased[16:20], cased[20:]))

    def _moment(self) -> datetime:
        near = self._chance.random() < 0.3  # around 1970, where seconds become negative
        offset = self._chance.randrange(-(10**9), 10**9) if near else self._chance.randrange(_MICROSECONDS)
        return (_EPOCH if near else _FIRST) + timedelta(microseconds=offset)

    def _millisecond(self) -> datetime:
        moment = self._moment()
        return moment.replace(microsecond=moment.microsecond // 1000 * 1000)
