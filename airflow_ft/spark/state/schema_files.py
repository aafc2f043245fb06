"""Spark's description of a state store: types of keys and values, and how a key becomes bytes.

    state/<operator>/<partition>[/<store>]/_metadata/schema    "v1" or "v2": the types of the store
    state/<operator>/_stateSchema/<store>/<batch>_<id>         "v3": those of each column family (`transformWithState`)

Texts lie there as Java's `writeUTF` writes them: two bytes of length, then modified UTF-8; longer ones in parts.
`SchemaHelper.scala` says so.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

NEWEST = 3


class UnknownFormatError(ValueError):
    """The file has the format of a later version of Spark."""


@dataclass(frozen=True, slots=True)
class Schema:
    """Schema of a store, or a column family in it. `key`, `value`: Spark's types as JSON. `encoder`: of the key."""

    name: str
    key: Any
    value: Any
    encoder: Mapping[str, Any] = field(default_factory=dict)


def schemas(data: bytes, store: str = "default") -> tuple[Schema, ...]:
    """Return what a schema file says; UnknownFormatError, or ValueError when it is damaged."""
    try:
        reader = _Reader(data)
        version = int(reader.text().removeprefix("v"))
        if version > NEWEST:
            raise UnknownFormatError(version)
        if version == NEWEST:
            return tuple(_family(reader) for _ in range(reader.number()))
        read = reader.text if version == 1 else reader.parts
        return (Schema(store, json.loads(read()), json.loads(read())),)
    except struct.error as error:
        raise ValueError(str(error)) from error


def _family(reader: _Reader) -> Schema:
    name = reader.text()
    reader.skip(2)  # which version of the key's schema
    key = json.loads(reader.parts())
    reader.skip(2)  # and of the value's
    value = json.loads(reader.parts())
    encoder = json.loads(reader.parts())
    reader.parts()  # the type of a map's own keys, which is in that of the key, too
    return Schema(name, key, value, encoder)


class _Reader:
    """Java's `DataInputStream`."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def text(self) -> str:
        return _joined([self._part()])

    def parts(self) -> str:
        """A text that may be longer than one can be."""
        return _joined([self._part() for _ in range(self.number())])

    def _part(self) -> bytes:
        (length,) = struct.unpack_from(">H", self._data, self._at)
        self._at += 2 + length
        return self._data[self._at - length : self._at]

    def number(self) -> int:
        (number,) = struct.unpack_from(">i", self._data, self._at)
        self.skip(4)
        return int(number)

    def skip(self, size: int) -> None:
        self._at += size


def _joined(parts: list[bytes]) -> str:
    """Decode modified UTF-8: U+0000 has two bytes, and a character beyond U+FFFF is a pair of surrogates."""
    text = b"".join(parts).replace(b"\xc0\x80", b"\0").decode(errors="surrogatepass")
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
