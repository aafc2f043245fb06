"""Records of a file of changes, or of a full snapshot of the HDFS-backed map: keys that were put, removed, added to.

    .delta, .snapshot, .changelog (1)    [length] [key] [length, -1: removed] [value] ... [-1]
    .changelog (2)                       "v2", then [kind] [length] [key] [length] [value] ... [0]
    .changelog (3, 4)                    the same as 1 and 2 behind "v3" or "v4" and a text: the versions before it

Numbers are of four bytes, big-endian. From `HDFSBackedStateStoreProvider.scala` and `StateStoreChangelog.scala`.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from typing import Any

from airflow_ft.protocol.errors import ConfigurationError, WalCorruptError
from airflow_ft.wal.checksums import RESTORE_STATE

_LENGTH = struct.Struct(">i").unpack_from
_TEXT = struct.Struct(">H").unpack_from
_END, _PUT, _REMOVE, _APPEND = 0x00, 0x01, 0x10, 0x11

Values = dict[bytes, bytes | None]
"""Values by the bytes of their keys; None: removed."""


class Changes:
    """Combined changes of several files: the last value of each key."""

    def __init__(self) -> None:
        self.values: Values = {}
        self.added: dict[bytes, bytes] = {}
        """Bytes to append to the value that the key had before."""

    def apply(self, data: bytes, name: str) -> None:
        """Apply the contents of a file, decompressed."""
        try:
            version, at = _version(data)
            if version in (2, 4):
                self._marked(data, at)
            else:
                plain(data, at, self.values)
        except (IndexError, struct.error) as error:
            raise WalCorruptError(
                f"{name}, a file of Spark's state, is cut off.",
                code="state_damaged",
                remedy=RESTORE_STATE,
                path=name,
            ) from error

    def _marked(self, data: bytes, at: int) -> None:
        values, added = self.values, self.added
        while (kind := data[at]) != _END:
            (length,) = _LENGTH(data, at + 1)
            if length < 0:
                raise IndexError(at)
            key = data[at + 5 : at + 5 + length]
            at += 5 + length
            (length,) = _LENGTH(data, at)
            at += 4
            if kind == _REMOVE:
                values[key] = None
                added.pop(key, None)
                continue
            value = data[at : at + max(0, length)]
            if len(value) != length:
                raise IndexError(at)
            at += length
            if kind == _PUT:
                values[key] = value
                added.pop(key, None)
            elif kind != _APPEND:
                raise _unknown(f"a record of kind {kind}")
            elif key in values:
                values[key] = (values[key] or b"") + value
            else:
                added[key] = added.get(key, b"") + value
        if at + 1 != len(data):
            raise IndexError(at)


def plain(data: bytes, at: int, into: Values) -> None:
    """The records of the first form, from `at` on."""
    length_of = _LENGTH
    (length,) = length_of(data, at)
    while length >= 0:
        end = at + 4 + length
        (size,) = length_of(data, end)
        if size < -1:
            raise IndexError(end)
        if size < 0:
            into[data[at + 4 : end]] = None
            at = end + 4
        else:
            at = end + 4 + size
            into[data[end - length : end]] = data[end + 4 : at]
        (length,) = length_of(data, at)
    if length != -1 or at + 4 != len(data):
        raise IndexError(at)


def lineage(data: bytes) -> list[tuple[int, str]]:
    """Return version and id of the versions before a file of changes, newest first, as far as it lists them. Without
    ids: nothing.
    """
    version, _ = _version(data)
    if version not in (3, 4):
        return []
    (size,) = _TEXT(data, 4)
    entries: list[dict[str, Any]] = json.loads(data[6 : 6 + size])
    return sorted(((int(each["version"]), str(each["checkpointUniqueId"])) for each in entries), reverse=True)


def _unknown(what: str) -> ConfigurationError:
    return ConfigurationError(
        f"Spark's state has {what}, which airflow-ft cannot read.",
        code="state_unreadable",
        remedy="Read the state with Spark: `dataframe(spark, operator)` of the same handle.",
        reason=what,
    )


def _version(data: bytes) -> tuple[int, int]:
    """The format of a file of changes, and where its records begin."""
    # Of the first form the two bytes would be half of a key's length, 2: such a key would have 150,000 bytes.
    if data[:3] != b"\0\2v" or not data[3:4].isdigit():
        return 1, 0
    version = int(data[3:4])
    if version in (3, 4):
        return version, 6 + int(_TEXT(data, 4)[0])
    if version != 2:
        raise _unknown(f"a file of changes of format {version}")
    return version, 4


def strings(data: bytes) -> Iterator[bytes]:
    """Yield the parts of a value with several (a list): [length, little-endian] [part], maybe a comma, and so on.

    Whether a merge operator of RocksDB puts a comma between them depends on Spark's version and on when they were
    merged. The first byte distinguishes a comma from a length: a part is a row after one byte, so its length leaves 1
    when divided by 8.
    """
    at = 0
    while at < len(data):
        if data[at] == 0x2C:
            at += 1
        (length,) = struct.unpack_from("<i", data, at)
        at += 4 + length
        if length < 0 or at > len(data):
            raise WalCorruptError(
                "a list of Spark's state is cut off.",
                code="state_damaged",
                remedy=RESTORE_STATE,
            )
        yield data[at - length : at]
