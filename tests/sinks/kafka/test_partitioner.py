"""Which partition a key goes to, against librdkafka's own function; where records without one go."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest

from airflow_ft.sinks.kafka.batches import long_key_partition
from airflow_ft.sinks.kafka.partitioner import Partitioner, Places

EMPTY, NON_ASCII = b"", "Žluťoučký kůň 🐎".encode()


def _by_librdkafka(keys: list[bytes | None], partitions: int) -> list[int | None]:
    places = Places(pa.array(keys, pa.large_binary()))
    return [
        None if key is None else long_key_partition(int(places.addresses[row]), len(key), partitions)
        for row, key in enumerate(keys)
    ]


def _refuse(address: int, length: int, partitions: int) -> int:
    raise AssertionError(f"a key of {length} bytes is not long")


@pytest.mark.parametrize("partitions", [1, 2, 3, 7, 50, 1000])
def test_every_short_key_goes_where_librdkafka_sends_it(partitions: int) -> None:
    rng = random.Random(partitions)
    keys: list[bytes | None] = [rng.randbytes(rng.randint(0, 64)) for _ in range(3_000)]
    keys += [EMPTY, NON_ASCII, None, b"\0", b"\xff" * 64, *(b"x" * length for length in range(65))]
    column = pa.array(keys, pa.large_binary())
    chosen = Partitioner(partitions, 0, _refuse).choose(Places(column), None, len(keys)).tolist()
    expected = _by_librdkafka(keys, partitions)
    assert [p for p, key in zip(chosen, keys, strict=True) if key is not None] == [p for p in expected if p is not None]


@pytest.mark.parametrize("length", [0, 1, 3, 4, 16, 17])
def test_keys_of_one_length_go_where_librdkafka_sends_them(length: int) -> None:
    rng = random.Random(length)
    keys: list[bytes | None] = [rng.randbytes(length) for _ in range(500)]
    chosen = Partitioner(12, 0, _refuse).choose(Places(pa.array(keys, pa.large_binary())), None, len(keys)).tolist()
    assert chosen == _by_librdkafka(keys, 12)


def test_long_keys_and_short_ones_go_where_librdkafka_sends_them() -> None:
    rng = random.Random(1)
    keys: list[bytes | None] = [rng.randbytes(rng.choice([3, 64, 65, 200, 70_000])) for _ in range(300)]
    partitioner = Partitioner(12, 0, long_key_partition)
    assert partitioner.choose(Places(pa.array(keys, pa.large_binary())), None, 300).tolist() == _by_librdkafka(keys, 12)


def test_a_part_of_a_column_is_hashed_by_its_own_keys() -> None:
    keys: list[bytes | None] = [f"key {i}".encode() * (i % 5) for i in range(100)]
    part = pa.array(keys, pa.large_binary()).slice(37, 20)
    assert Partitioner(9, 0, _refuse).choose(Places(part), None, 20).tolist() == _by_librdkafka(keys[37:57], 9)


def test_records_without_a_key_are_spread_in_runs() -> None:
    partitioner = Partitioner(4, 2, _refuse)
    chosen = np.concatenate([partitioner.choose(None, None, 1_700) for _ in range(10)])
    assert np.array_equal(chosen[:3_500], np.repeat([2, 3, 0, 1], [1_000, 1_000, 1_000, 500]))
    assert np.bincount(chosen).max() - np.bincount(chosen).min() <= 1_000


def test_a_given_partition_goes_before_the_key() -> None:
    keys: list[bytes | None] = [b"a", b"b", None, None]
    given = pa.array([5, -1, 6, -1], pa.int64())
    chosen = Partitioner(8, 3, _refuse).choose(Places(pa.array(keys, pa.large_binary())), given, 4).tolist()
    assert chosen == [5, _by_librdkafka([b"b"], 8)[0], 6, 3]


def test_an_empty_text_has_a_place_and_null_has_none() -> None:
    places = Places(pa.array([EMPTY, None, EMPTY], pa.large_binary()))
    assert (places.addresses != 0).tolist() == [True, False, True]
    assert places.lengths.tolist() == [0, 0, 0]
