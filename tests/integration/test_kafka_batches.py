"""Records that librdkafka takes many at once: where they land, and what happens when some of them cannot."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import KafkaError, Message, Producer

from airflow_ft.clients.kafka.client import KafkaClients, KafkaSettings
from airflow_ft.clients.kafka.errors import is_fenced
from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.sinks.kafka.batches import BatchSender
from airflow_ft.sinks.kafka.readable import await_readable
from airflow_ft.sinks.kafka.records import RecordColumns
from airflow_ft.sinks.kafka.sending import AckCounter, ProducerLostError, merge_ends
from airflow_ft.sinks.kafka.slot import Slot
from airflow_ft.sinks.kafka.transaction import Transaction
from tests.conftest import TopicFactory
from tests.integration.kafka_world import read
from tools.servers import Kafka

PARTITIONS = 5
KEYS: list[bytes | None] = [
    None, b"", b"a", b"key", "Žluťoučký kůň 🐎".encode(), b"\0\xff", b"x" * 64, b"x" * 65, b"y" * 50_000,
]  # fmt: skip
VALUES: list[bytes | None] = [None, b"", b"v", "hodnota 🐎".encode(), b"z" * 10_000]


def _records(keys: list[bytes | None] | None, values: list[bytes | None], **more: Any) -> RecordColumns:
    kind = pa.large_binary()
    parts: dict[str, Any] = {"partitions": None, "timestamps": None, "headers": None, **more}
    return RecordColumns(pa.array(values, kind), None if keys is None else pa.array(keys, kind), **parts)


def _texts(count: int, size: int = 0) -> list[bytes | None]:
    return [b"%08d" % number + b"x" * size for number in range(count)]


class _Opened:
    """A begun transaction of a new transactional id, and what it takes to end it."""

    def __init__(self, kafka: Kafka, topic: str, group: str, patience: int = 60, **limits: int) -> None:
        extra = {"bootstrap.servers": kafka.bootstrap, "airflow_ft_timeout": patience}
        connection = ConnectionInfo("broker", "kafka", extra=extra)
        self._clients, self._limits = KafkaClients(KafkaSettings.from_connection(connection)), limits
        self.slot, self.topic, self.counter = Slot(self._clients, group, 0), topic, AckCounter(topic)
        self.transaction = self.open()
        self.transaction.begin()
        assert self.transaction._batches is not None

    def open(self) -> Transaction:
        return Transaction(self._clients, self.slot, self._limits)

    def send(self, records: RecordColumns) -> None:
        self.transaction.send(self.topic, records, self.counter)

    def finish(self) -> None:
        self.transaction.flush([self.counter])
        self.transaction._until_done("committing", self.transaction._producer.commit_transaction)
        await_readable(self._clients, merge_ends([self.counter]), [self.topic])

    @property
    def producer(self) -> Producer:
        return self.transaction._producer


@contextmanager
def _opened(kafka: Kafka, topic: str, **limits: int) -> Iterator[_Opened]:
    opened = _Opened(kafka, topic, f"batches-{topic}", **limits)
    try:
        yield opened
    finally:
        opened.transaction.discard()
        opened.slot.close()


@pytest.fixture
def topic(topic_factory: TopicFactory) -> str:
    return topic_factory(PARTITIONS)


def _plain(messages: list[Message]) -> list[tuple[bytes | None, bytes | None]]:
    pairs = ((message.key(), message.value()) for message in messages)
    return sorted(pairs, key=lambda pair: [(part is not None, part or b"") for part in pair])


def _by_partition(messages: list[Message]) -> dict[int | None, list[bytes | None]]:
    found: dict[int | None, list[bytes | None]] = defaultdict(list)
    for message in messages:
        found[message.partition()].append(message.value())
    return found


def test_records_sent_in_batches_land_where_single_ones_do(
    kafka: Kafka, topic: str, topic_factory: TopicFactory
) -> None:
    rng = random.Random(4)
    pairs = [(key, value) for key in KEYS for value in VALUES] + [
        (rng.randbytes(rng.randint(0, 40)), rng.randbytes(20)) for _ in range(500)
    ]
    keys, values = [key for key, _ in pairs], [value for _, value in pairs]
    other = topic_factory(PARTITIONS)
    with _opened(kafka, topic) as batches, _opened(kafka, other) as singly:
        batches.send(_records(keys, values))
        batches.finish()
        singly.transaction._batches = None
        singly.send(_records(keys, values))
        singly.finish()
        for opened in (batches, singly):
            messages = read(kafka.bootstrap, opened.topic)
            assert len(messages) == len(pairs) == opened.counter.total
            for partition, found in _by_partition(messages).items():
                assert partition is not None
                assert opened.counter.records[partition] == len(found)
                ends = [message.offset() for message in messages if message.partition() == partition]
                assert opened.counter.last[partition] == max(end for end in ends if end is not None)
        places = [
            {message.key(): message.partition() for message in read(kafka.bootstrap, name) if message.key() is not None}
            for name in (topic, other)
        ]
        assert places[0] == places[1]
        assert _plain(read(kafka.bootstrap, topic)) == _plain(read(kafka.bootstrap, other))


def test_a_full_buffer_in_a_batch_loses_and_repeats_nothing(kafka: Kafka, topic: str) -> None:
    values = _texts(20_000)
    with _opened(kafka, topic, **{"queue.buffering.max.messages": 700}) as opened:
        for begin in range(0, len(values), 5_000):
            opened.send(_records(None, values[begin : begin + 5_000]))
        opened.finish()
        assert opened.counter.total == len(values)
    found = _by_partition(read(kafka.bootstrap, topic))
    assert sorted(value or b"" for part in found.values() for value in part) == values
    assert all(part == sorted(part, key=lambda value: value or b"") for part in found.values()), "order stays"


def test_a_record_too_large_for_the_client_ends_the_transaction(kafka: Kafka, topic: str) -> None:
    values = _texts(1_000)
    values[500] = b"x" * 20_000
    with (
        _opened(kafka, topic, **{"message.max.bytes": 10_000}) as opened,
        pytest.raises(ProducerLostError) as lost,
    ):
        opened.send(_records(None, values))
    assert lost.value.error.code() == KafkaError.MSG_SIZE_TOO_LARGE
    assert read(kafka.bootstrap, topic) == []


def test_a_record_refused_by_the_broker_prevents_the_commit(kafka: Kafka, topic_factory: TopicFactory) -> None:
    topic = topic_factory(PARTITIONS, {"max.message.bytes": "5000"})
    values = _texts(2_000)
    values[500] = random.Random(0).randbytes(20_000)
    with _opened(kafka, topic, **{"message.max.bytes": 1_000_000, "batch.size": 2_000}) as opened:
        with pytest.raises(ProducerLostError) as lost:
            opened.send(_records([b"one key"] * 2_000, values))
            opened.transaction.flush([opened.counter])
        assert lost.value.error.code() == KafkaError.MSG_SIZE_TOO_LARGE
        with pytest.raises(ProducerLostError):
            opened.transaction._until_done("committing", opened.producer.commit_transaction)
    assert read(kafka.bootstrap, topic) == []


def test_librdkafka_refuses_to_commit_undelivered_records(kafka: Kafka, topic_factory: TopicFactory) -> None:
    topic = topic_factory(PARTITIONS, {"max.message.bytes": "5000"})
    with _opened(kafka, topic, patience=8, **{"message.max.bytes": 1_000_000}) as opened:
        opened.producer.produce(topic, random.Random(0).randbytes(20_000), partition=0)
        with pytest.raises(ProducerLostError):
            opened.send(_records(None, _texts(100)))  # which may know it already
            opened.finish()
    assert read(kafka.bootstrap, topic) == []


def test_a_partition_that_is_not_there_ends_the_transaction(kafka: Kafka, topic: str) -> None:
    for partition in (PARTITIONS, -2, 2**32):
        with _opened(kafka, topic) as opened:
            given = pa.array([0] * 99 + [partition], pa.int64())
            with pytest.raises(ProducerLostError) as lost:
                opened.send(_records(None, _texts(100), partitions=given))
            assert lost.value.error.code() == KafkaError._UNKNOWN_PARTITION
    assert read(kafka.bootstrap, topic) == []


@pytest.mark.parametrize("limit", [200_000, 500])
def test_a_producer_fenced_amid_its_batches_commits_nothing(kafka: Kafka, topic: str, limit: int) -> None:
    with _opened(kafka, topic, **{"queue.buffering.max.messages": limit}) as opened:
        opened.send(_records(None, _texts(400)))
        opened.transaction.flush([opened.counter])
        successor = opened.open()
        with pytest.raises(ProducerLostError) as lost:
            while True:
                opened.send(_records(None, _texts(2_000)))
                opened.transaction.flush([opened.counter])
        assert is_fenced(lost.value.error)
        successor.discard()
    assert read(kafka.bootstrap, topic) == []


def test_records_that_are_left_out_are_noticed(kafka: Kafka, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = BatchSender._send_without_report
    monkeypatch.setattr(
        BatchSender,
        "_send_without_report",
        lambda self, handle, partition, messages, wait: whole(self, handle, partition, messages[1:], wait),
    )
    with (
        _opened(kafka, topic) as opened,
        pytest.raises(ProducerLostError) as lost,
    ):
        opened.send(_records([b"one key"] * 50, _texts(50)))
    assert lost.value.error.code() == KafkaError._FAIL and "49" in lost.value.error.str()
    assert read(kafka.bootstrap, topic) == []
