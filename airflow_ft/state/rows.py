"""Spark's binary rows (UnsafeRow), read and written without a JVM.

    [a bit for each column: null?, in words of 8 bytes] [8 bytes a column] [values of variable length, padded to 8]

What fits lies in the column's 8 bytes, little-endian; of anything else they hold its offset in the row and its size.
`UnsafeRow.java`, `UnsafeArrayData.java` and `UnsafeMapData.java` of Spark say so.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

from airflow_ft.protocol.arguments import standard_time
from airflow_ft.protocol.errors import ConfigurationError, WalCorruptError
from airflow_ft.wal.checksums import RESTORE_STATE

Kind = Any
"""A type as Spark writes it in JSON: a name, or an object with "type"."""
Reader = Callable[[bytes, int, int], Any]
"""A value: of its row's bytes, where it lies in them (its 8 bytes), and where the row begins."""

_WORD = struct.Struct("<q")
_WORDS: Mapping[str, struct.Struct] = {
    "byte": struct.Struct("<b"),
    "short": struct.Struct("<h"),
    "integer": struct.Struct("<i"),
    "long": _WORD,
    "float": struct.Struct("<f"),
    "double": struct.Struct("<d"),
}
_EPOCH, _NAIVE_EPOCH = datetime(1970, 1, 1, tzinfo=UTC), datetime(1970, 1, 1)  # noqa: DTZ001  timestamp_ntz has no zone
_DAY_ZERO = date(1970, 1, 1).toordinal()
_LONG_DIGITS = 18  # a decimal of more does not fit into 8 bytes
_BY_SPARK = "Read it with Spark: `dataframe(spark, operator)` of the same handle."


@dataclass(frozen=True, slots=True)
class StateColumn:
    """A column of a row: its name, which no other has, and its type."""

    name: str
    kind: Kind

    @property
    def text(self) -> str:
        """As SQL would declare it."""
        return f"{self.name} {kind_text(self.kind)}"


def columns_of(schema: Mapping[str, Any]) -> tuple[StateColumn, ...]:
    """The columns of a struct of Spark; of several with one name the later ones get a number (`sum`, `sum_2`)."""
    taken: set[str] = set()
    found = []
    for each in schema["fields"]:
        name, number = each["name"], 2
        while name in taken:
            name, number = f"{each['name']}_{number}", number + 1
        taken.add(name)
        kind = each["type"]
        found.append(StateColumn(name, kind["sqlType"] if isinstance(kind, dict) and kind["type"] == "udt" else kind))
    return tuple(found)


def kind_text(kind: Kind) -> str:
    """A type, as SQL would declare it."""
    if isinstance(kind, str):
        return {"integer": "int", "long": "bigint", "short": "smallint", "byte": "tinyint"}.get(kind, kind)
    if kind["type"] == "struct":
        return f"struct<{', '.join(each.text.replace(' ', ': ', 1) for each in columns_of(kind))}>"
    if kind["type"] == "array":
        return f"array<{kind_text(kind['elementType'])}>"
    if kind["type"] == "map":
        return f"map<{kind_text(kind['keyType'])}, {kind_text(kind['valueType'])}>"
    return str(kind["type"])


# --- reading -------------------------------------------------------------------------------------------------------


class RowReader:
    """Reads rows of these columns as {name: value}. ConfigurationError for a type that it does not know."""

    def __init__(self, columns: Sequence[StateColumn]) -> None:
        self.columns = tuple(columns)
        self._header = _header(len(columns))
        self._readers = [(each.name, index, _reader(each.name, each.kind)) for index, each in enumerate(columns)]

    def read(self, data: bytes, base: int = 0) -> dict[str, Any]:
        """The row that begins at `base`. WalCorruptError when it is none, ConfigurationError for what Python lacks."""
        try:
            return dict(self._values(data, base))
        except (struct.error, IndexError) as error:
            raise WalCorruptError(
                "a row of Spark's state is cut off.",
                code="state_damaged",
                remedy=RESTORE_STATE,
            ) from error
        except (OverflowError, ValueError) as error:
            raise ConfigurationError(
                f"a row of Spark's state has a time outside of Python's years ({error}).",
                code="state_unreadable",
                remedy=_BY_SPARK,
            ) from error

    def _values(self, data: bytes, base: int) -> Iterator[tuple[str, Any]]:
        at = base + self._header
        for name, index, reader in self._readers:
            null = data[base + (index >> 3)] >> (index & 7) & 1
            yield name, None if null else reader(data, at + 8 * index, base)


def _header(columns: int) -> int:
    return (columns + 63) // 64 * 8


def _reader(name: str, kind: Kind) -> Reader:
    """Reads a value at an offset, in the row that begins at `base`."""
    if isinstance(kind, str):
        return _plain(name, kind)
    if kind["type"] == "struct":
        inner = RowReader(columns_of(kind))
        return lambda data, at, base: inner.read(data, base + _place(data, at)[0])
    if kind["type"] == "array":
        return _array(name, kind["elementType"])
    if kind["type"] == "map":
        return _map(name, kind)
    raise _unknown(name, kind)


def _plain(name: str, kind: str) -> Reader:
    if kind in _WORDS:
        unpack = _WORDS[kind].unpack_from
        return lambda data, at, base: unpack(data, at)[0]
    if kind == "boolean":
        return lambda data, at, base: data[at] != 0
    if kind == "string" or kind.startswith(("varchar(", "char(")):
        return lambda data, at, base: _bytes(data, at, base).decode(errors="replace")
    if kind == "binary":
        return _bytes
    if kind == "timestamp":
        return lambda data, at, base: _EPOCH + timedelta(microseconds=_WORD.unpack_from(data, at)[0])
    if kind == "timestamp_ntz":
        return lambda data, at, base: _NAIVE_EPOCH + timedelta(microseconds=_WORD.unpack_from(data, at)[0])
    if kind == "date":
        days = _WORDS["integer"].unpack_from
        return lambda data, at, base: date.fromordinal(_DAY_ZERO + days(data, at)[0])
    if kind == "void":
        return lambda data, at, base: None
    if kind.startswith("decimal("):
        digits, scale = decimal_of(kind)
        if digits <= _LONG_DIGITS:
            return lambda data, at, base: Decimal(_WORD.unpack_from(data, at)[0]).scaleb(-scale)
        return lambda data, at, base: _scaled(int.from_bytes(_bytes(data, at, base), "big", signed=True), scale)
    raise _unknown(name, kind)


def decimal_of(kind: str) -> tuple[int, int]:
    """Digits, and those behind the point, of `decimal(10,2)`."""
    digits, _, scale = kind.removeprefix("decimal(").removesuffix(")").partition(",")
    return int(digits), int(scale or 0)


def _scaled(unscaled: int, scale: int) -> Decimal:
    """Exact: the context of `decimal` rounds to 28 digits."""
    sign, digits, _ = Decimal(unscaled).as_tuple()
    return Decimal((sign, digits, -scale))


def _place(data: bytes, at: int) -> tuple[int, int]:
    word = _WORD.unpack_from(data, at)[0]
    return word >> 32, word & 0xFFFFFFFF


def _bytes(data: bytes, at: int, base: int) -> bytes:
    offset, size = _place(data, at)
    return data[base + offset : base + offset + size]


def _array(name: str, kind: Kind) -> Callable[[bytes, int, int], list[Any]]:
    element, width = _reader(name, kind), element_width(kind)

    def read(data: bytes, at: int, base: int) -> list[Any]:
        return _elements(data, base + _place(data, at)[0], element, width)

    return read


def _elements(data: bytes, base: int, element: Reader, width: int) -> list[Any]:
    """[number] [a bit for each: null?] [the values, each in its own width]."""
    number = _WORD.unpack_from(data, base)[0]
    first = base + 8 + _header(number)
    return [
        None if data[base + 8 + (i >> 3)] >> (i & 7) & 1 else element(data, first + i * width, base)
        for i in range(number)
    ]


def element_width(kind: Kind) -> int:
    """Bytes of an element of an array."""
    if kind == "boolean":
        return 1
    if kind == "date":
        return 4
    return _WORDS[kind].size if isinstance(kind, str) and kind in _WORDS else 8


def _map(name: str, kind: Kind) -> Reader:
    """As a dict where the keys can be those of one, else as pairs."""
    keys, values = (_reader(name, kind[each]) for each in ("keyType", "valueType"))
    widths = element_width(kind["keyType"]), element_width(kind["valueType"])
    hashable = isinstance(kind["keyType"], str)

    def read(data: bytes, at: int, base: int) -> Any:
        begin = base + _place(data, at)[0]
        second = begin + 8 + _WORD.unpack_from(data, begin)[0]
        found = _elements(data, begin + 8, keys, widths[0]), _elements(data, second, values, widths[1])
        return dict(zip(*found, strict=True)) if hashable else list(zip(*found, strict=True))

    return read


def _unknown(name: str, kind: Kind) -> ConfigurationError:
    return ConfigurationError(
        f"airflow-ft cannot read values of type {kind_text(kind)} from Spark's files.",
        code="state_unreadable",
        column=name,
        remedy=_BY_SPARK,
        type=kind_text(kind),
    )


# --- writing: keys that are looked up ------------------------------------------------------------------------------


def write_row(columns: Sequence[StateColumn], values: Sequence[Any]) -> bytes:
    """The row as Spark writes it, byte by byte; ConfigurationError for a value that is none of the column's type."""
    header, words, tail = bytearray(_header(len(columns))), bytearray(), bytearray()
    fixed = len(header) + 8 * len(columns)
    for index, (column, value) in enumerate(zip(columns, values, strict=True)):
        if value is None:
            header[index >> 3] |= 1 << (index & 7)
            words += bytes(8)
            continue
        written = _written(column, value)
        if len(written) == 8 and not _is_variable(column.kind):
            words += written
        else:
            size = len(written)
            words += _WORD.pack((fixed + len(tail)) << 32 | size)
            # A long decimal has 16 bytes, whatever it needs of them.
            room = 16 if isinstance(column.kind, str) and column.kind.startswith("decimal") else (size + 7) // 8 * 8
            tail += written.ljust(room, b"\0")
    return bytes(header + words + tail)


def _is_variable(kind: Kind) -> bool:
    if not isinstance(kind, str):
        return True
    if kind.startswith("decimal("):
        return decimal_of(kind)[0] > _LONG_DIGITS
    return kind in ("string", "binary") or kind.startswith(("varchar(", "char("))


def _written(column: StateColumn, value: Any) -> bytes:
    kind = column.kind
    try:
        if not isinstance(kind, str):
            if kind["type"] != "struct":
                raise ConfigurationError(
                    f"a lookup cannot take a key of type {kind_text(kind)}.",
                    code="key_invalid",
                    column=column.name,
                    remedy="Find it with `scan` of the same handle.",
                    type=kind_text(kind),
                )
            inner = columns_of(kind)
            return write_row(inner, in_order(inner, value))
        return _plain_written(kind, value)
    except (TypeError, ValueError, OverflowError, struct.error, ArithmeticError) as error:
        if isinstance(error, ConfigurationError):
            raise
        raise ConfigurationError(
            f"{value!r} is not a {kind_text(kind)}, the type of this column of the key.",
            code="key_invalid",
            column=column.name,
            remedy=f"Give a value of type {kind_text(kind)}.",
            type=kind_text(kind),
        ) from error


def _plain_written(kind: str, value: Any) -> bytes:
    if kind == "boolean":
        return bytes([_of(value, bool)]).ljust(8, b"\0")
    if kind in ("float", "double"):
        return _WORDS[kind].pack(float(_of(value, float, int))).ljust(8, b"\0")
    if kind in _WORDS:
        # Spark clears the 8 bytes before it writes fewer.
        return _WORDS[kind].pack(_of(value, int)).ljust(8, b"\0")
    if kind == "date":
        day = _of(value, date)
        return _WORDS["integer"].pack(day.toordinal() - _DAY_ZERO).ljust(8, b"\0")
    if kind in ("timestamp", "timestamp_ntz"):
        at = standard_time(_of(value, datetime))
        since = at - (_EPOCH if kind == "timestamp" else _NAIVE_EPOCH)
        return _WORD.pack(since // timedelta(microseconds=1))
    if kind.startswith("decimal("):
        digits, scale = decimal_of(kind)
        sign, number, exponent = Decimal(_of(value, Decimal, int)).as_tuple()
        if not isinstance(exponent, int) or -exponent > scale or len(number) + exponent + scale > digits:
            raise ValueError(value)
        unscaled: int = int("".join(map(str, number))) * 10 ** (scale + exponent) * (-1 if sign else 1)
        if digits <= _LONG_DIGITS:
            return _WORD.pack(unscaled)
        return unscaled.to_bytes((unscaled + (unscaled < 0)).bit_length() // 8 + 1, "big", signed=True)
    if kind == "binary":
        return bytes(_of(value, bytes))
    if kind == "string" or kind.startswith(("varchar(", "char(")):
        return str(_of(value, str)).encode()
    raise TypeError(kind)


def _of(value: Any, *types: type) -> Any:
    wrong = isinstance(value, bool) and bool not in types  # which Python takes for a number
    wrong = wrong or (isinstance(value, datetime) and types == (date,))
    if wrong or not isinstance(value, types):
        raise TypeError(value)
    return value


def in_order(columns: Sequence[StateColumn], given: Any) -> Sequence[Any]:
    """The values of a key in the order of its columns: of a dict by name, of a tuple by place, of a scalar as it is.

    ConfigurationError when there are more or fewer, or others.
    """
    names = [each.name for each in columns]
    if isinstance(given, Mapping):
        if set(given) == set(names):
            return [given[name] for name in names]
    elif isinstance(given, (tuple, list)):
        if len(given) == len(names):
            return given
    elif len(names) == 1:
        return [given]
    raise ConfigurationError(
        f"the key has the columns {', '.join(each.text for each in columns)}, which {given!r} does not fit.",
        code="key_invalid",
        remedy="Give a value for each column: a tuple in that order, or a dict by name.",
        columns=[each.name for each in columns],
    )


def with_other_zeros(columns: Sequence[StateColumn], values: Sequence[Any]) -> Iterator[Sequence[Any]]:
    """Yield the values of a key, then the same with 0.0 and with -0.0 for zeros.

    Spark stores -0.0 as 0.0 in keys of aggregations, joins and dropDuplicates, but as it is for `transformWithState`
    and `applyInPandasWithState`.
    """
    zeros = {n for n, each in enumerate(columns) if each.kind in ("float", "double") and values[n] == 0}
    yield values
    for zero in (0.0, -0.0) if zeros else ():
        yield [zero if n in zeros else value for n, value in enumerate(values)]
