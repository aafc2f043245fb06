"""Which partition a record goes to, for whole columns of keys: murmur2 as Java, Spark and librdkafka compute it.

A record without a key may go anywhere. Such records stay together in runs, as they do with the sticky partitioners of
Java and librdkafka, because few large batches are cheaper than many small ones.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from airflow_ft.sinks.arrow import booleans, numbers, offsets

_SEED, _M, _R = 0x9747B28C, 0x5BD1E995, 24
_SHORT = 64  # bytes: longer keys are rare, and each step of the loop below goes over four bytes of all keys
_RUN = 1_000  # records without a key that stay together

Integers = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]
# The partition of one key: its address, its length in bytes and the number of partitions (librdkafka's own function).
LongKeys = Callable[[int, int, int], int]


class Places:
    """The bytes of a large_binary array where they lie: for each row an address and a length; null is address 0.

    The addresses hold as long as the array lives.
    """

    def __init__(self, column: pa.Array) -> None:
        if column.type != pa.large_binary():
            raise TypeError(f"large_binary is needed, this is {column.type}")
        self.column = column
        data = column.buffers()[2]
        ends: Integers = offsets(column)
        self.starts = ends[:-1]
        self.lengths: Integers = np.diff(ends)
        self.is_null: npt.NDArray[np.bool_] = booleans(column.is_null())
        # An empty text is no null: it needs an address, be it of nothing.
        has_bytes = data is not None and data.size > 0
        self._nothing = np.zeros(1, np.uint8)
        self.data: Bytes = np.frombuffer(data, np.uint8) if has_bytes else self._nothing
        base = self.data.ctypes.data
        self.addresses: Integers = np.where(self.is_null, 0, self.starts + base)
        if column.null_count:
            self.lengths = np.where(self.is_null, 0, self.lengths)


class Partitioner:
    """Partitions for the records of one topic, as `partitioner=murmur2_random` would choose them.

    Args:
        partitions: how many the topic has.
        first: where the first run of records without a key goes; anywhere is right.
        long_key: the partition of a long key.
    """

    def __init__(self, partitions: int, first: int, long_key: LongKeys) -> None:
        self.count = partitions
        self._keyless = first * _RUN
        self._long_key = long_key

    def choose(self, keys: Places | None, given: pa.Array | None, rows: int) -> Integers:
        """One partition for each row: the given one, where it is not -1; else by the key, or anywhere without one."""
        chosen: Integers = np.full(rows, -1, np.int64)
        if given is not None:
            chosen[:] = numbers(given)
        open_rows = np.flatnonzero(chosen == -1)
        if keys is not None and len(open_rows):
            keyed = open_rows[~keys.is_null[open_rows]]
            chosen[keyed] = self._by_key(keys, keyed)
            open_rows = open_rows[keys.is_null[open_rows]]
        if len(open_rows):
            chosen[open_rows] = (self._keyless + np.arange(len(open_rows))) // _RUN % self.count
            self._keyless += len(open_rows)
        return chosen

    def _by_key(self, keys: Places, rows: Integers) -> Integers:
        chosen: Integers = np.empty(len(rows), np.int64)
        is_long = keys.lengths[rows] > _SHORT
        short = rows[~is_long]
        hashes = murmur2(keys.data, keys.starts[short], keys.lengths[short])
        chosen[~is_long] = (hashes & np.uint32(0x7FFFFFFF)) % np.uint32(self.count)
        for place in np.flatnonzero(is_long):
            row = rows[place]
            chosen[place] = self._long_key(int(keys.addresses[row]), int(keys.lengths[row]), self.count)
        return chosen


def murmur2(data: Bytes, starts: Integers, lengths: Integers) -> npt.NDArray[np.uint32]:
    """MurmurHash2 (32 bits, Kafka's seed) of the texts that begin at `starts` in `data`, all at once.

    Costs one step over all texts for every four bytes of the longest one.
    """
    m = np.uint32(_M)
    hashes: npt.NDArray[np.uint32] = np.uint32(_SEED) ^ lengths.astype(np.uint32)
    if not len(lengths):
        return hashes
    shortest, longest = int(lengths.min()), int(lengths.max())
    if longest >= 4:
        # Four bytes from any place on, as one little-endian number.
        words: Any = np.ndarray((len(data) - 3,), np.dtype("<u4"), data, strides=(1,))
        for step in range(0, longest - 3, 4):
            rows = slice(None) if step + 4 <= shortest else np.flatnonzero(lengths >= step + 4)
            k = words[starts[rows] + step].astype(np.uint32)
            k *= m
            k ^= k >> np.uint32(_R)
            k *= m
            hashes[rows] = (hashes[rows] * m) ^ k
    rest = lengths & 3
    tails = starts + (lengths - rest)
    for place in (2, 1, 0):
        rows = np.flatnonzero(rest > place)
        hashes[rows] ^= data[tails[rows] + place].astype(np.uint32) << np.uint32(8 * place)
    rows = np.flatnonzero(rest)
    hashes[rows] *= m
    hashes ^= hashes >> np.uint32(13)
    hashes *= m
    hashes ^= hashes >> np.uint32(15)
    return hashes
