"""The compressed streams in which Spark's state stores write changes and snapshots.

The codec is that of `spark.sql.streaming.stateStore.compression.codec`; each begins with its own mark. LZ4's stream is
that of `LZ4BlockOutputStream` (lz4-java), which no library for Python reads. It consists of blocks, each after a head
of 21 bytes with a checksum of its contents, and an empty one at the end.
"""

from __future__ import annotations

import struct

from airflow_ft.protocol.errors import ConfigurationError
from airflow_ft.state.xxhash import xxh32
from airflow_ft.wal.checksums import damaged

_LZ4, _ZSTD = b"LZ4Block", b"\x28\xb5\x2f\xfd"
_OTHERS = (b"\x82SNAPPY\0", b"ZV")  # snappy, lzf
_SEED, _BITS = 0x9747B28C, 0x0FFFFFFF  # of lz4-java's checksums, which lack the highest four bits
_HEAD = struct.Struct("<8sBiiI")  # mark, method, bytes here, bytes once decompressed, checksum
_STORED, _COMPRESSED = 0x10, 0x20
_MOST = 255
"""LZ4's highest compression ratio. It bounds a damaged length, which must not exhaust the memory."""


def decompressed(data: bytes, name: str) -> bytes:
    """All of a file of this name. ConfigurationError for another codec, WalCorruptError for what is damaged."""
    if data.startswith(_LZ4):
        return _lz4(data, name)
    if data.startswith(_ZSTD):
        return _zstd(data, name)
    if not data.startswith(_OTHERS):
        raise damaged(name)
    raise ConfigurationError(
        f"{name} is not compressed with lz4 or zstd, the codecs that airflow-ft knows.",
        code="state_unreadable",
        remedy="Read the state with Spark: `dataframe(spark, operator)` of the same handle.",
        path=name,
    )


def _lz4(data: bytes, name: str) -> bytes:
    import pyarrow as pa

    codec = pa.Codec("lz4_raw")
    parts: list[bytes] = []
    sums: list[int] = []
    at, ended = 0, False
    while at < len(data):
        if len(data) - at < _HEAD.size:
            raise damaged(name)
        mark, token, size, whole, checksum = _HEAD.unpack_from(data, at)
        at += _HEAD.size
        if mark != _LZ4 or size < 0 or not 0 <= whole <= _MOST * (size + 1) or len(data) - at < size:
            raise damaged(name)
        part = data[at : at + size]
        if token & 0xF0 == _COMPRESSED:
            try:
                part = codec.decompress(part, decompressed_size=whole, asbytes=True)
            except (OSError, ValueError) as error:
                raise damaged(name) from error
        elif token & 0xF0 != _STORED or size != whole:
            raise damaged(name)
        ended = whole == 0
        if whole > 1 << (10 + (token & 0x0F)) or (ended and checksum):
            raise damaged(name)
        if not ended:
            parts.append(part)
            sums.append(checksum)
        at += size
    if not ended or [each & _BITS for each in xxh32(parts, _SEED)] != sums:
        raise damaged(name)
    return b"".join(parts)


def _zstd(data: bytes, name: str) -> bytes:
    import pyarrow as pa

    try:
        with pa.CompressedInputStream(pa.BufferReader(data), "zstd") as stream:
            found: bytes = stream.read()
    except (OSError, ValueError) as error:
        raise damaged(name) from error
    return found
