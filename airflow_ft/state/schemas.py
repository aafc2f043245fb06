"""What Spark has written down of its stores: types of keys and values, and how a key becomes bytes.

    state/<operator>/0/[<store>/]_metadata/schema        "v1" or "v2": the types of the store
    state/<operator>/_stateSchema/<store>/<name>         "v3": those of each column family (`transformWithState`)

Texts lie there as Java writes them: two bytes of length, then UTF-8. `SchemaHelper.scala` says so.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from airflow_ft.core.errors import ConfigurationError, WalCorruptError
from airflow_ft.state.rows import Column, columns_of

_NEWEST = 3
NO_PREFIX, PREFIX, RANGE = "NoPrefixKey", "PrefixKeyScan", "RangeKeyScan"


@dataclass(frozen=True, slots=True)
class Family:
    """A column family of a store; a store of older operators is one by itself ("default").

    encoder: how a key becomes bytes in RocksDB. prefix: so many columns of it come first, by themselves.
    """

    name: str
    key: tuple[Column, ...]
    value: tuple[Column, ...]
    encoder: str = NO_PREFIX
    prefix: int = 0


def families(data: bytes, name: str) -> tuple[Family, ...]:
    """What a schema file of this name says; WalCorruptError when it is damaged, ConfigurationError for a newer one."""
    try:
        reader = _Reader(data)
        version = int(reader.text().removeprefix("v"))
        if version > _NEWEST:
            raise ConfigurationError(
                f"{name} is of format {version}; formats up to {_NEWEST} are known.",
                remedy="look at the state with Spark: `dataframe(spark, operator)` of the same handle.",
            )
        if version == 1:
            return (Family("default", _columns(reader.text()), _columns(reader.text())),)
        if version == 2:
            return (Family("default", _columns(reader.parts()), _columns(reader.parts())),)
        return tuple(_family(reader) for _ in range(reader.number()))
    except (struct.error, ValueError, KeyError) as error:
        if isinstance(error, ConfigurationError):
            raise
        raise WalCorruptError(
            f"{name}, a schema of Spark's state, is damaged", remedy="restore it from a backup, or rewind the pipeline"
        ) from error


def _family(reader: _Reader) -> Family:
    name = reader.text()
    reader.skip(2)  # the number of this version of the key's schema: with `unsaferow` there is but one
    key = _columns(reader.parts())
    reader.skip(2)
    value = _columns(reader.parts())
    encoder: Mapping[str, Any] = json.loads(reader.parts())
    reader.parts()  # the type of a map's own keys, which is in that of the key, too
    kind = str(encoder.get("keyStateEncoderType", "")).removesuffix("StateEncoderSpec")
    return Family(name, key, value, kind, int(encoder.get("numColsPrefixKey", 0)))


def _columns(text: str) -> tuple[Column, ...]:
    return columns_of(json.loads(text))


class _Reader:
    """Java's `DataInputStream`."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def text(self) -> str:
        (length,) = struct.unpack_from(">H", self._data, self._at)
        self._at += 2 + length
        return self._data[self._at - length : self._at].decode()

    def parts(self) -> str:
        """A text that may be longer than one can be."""
        return "".join(self.text() for _ in range(self.number()))

    def number(self) -> int:
        (number,) = struct.unpack_from(">i", self._data, self._at)
        self.skip(4)
        return int(number)

    def skip(self, size: int) -> None:
        self._at += size
