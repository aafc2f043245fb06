"""A producer, and what brokers acknowledge of its records: with a transaction around them (`transaction`) or without.

A producer that failed in any way is thrown away.
"""

from __future__ import annotations

import ctypes
import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import repeat
from typing import Any

from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, KafkaError, KafkaException, Message, Producer

from airflow_ft.clients.kafka.client import KafkaClients
from airflow_ft.sinks.kafka.batches import open_batches
from airflow_ft.sinks.kafka.records import RecordColumns, Records
from airflow_ft.sinks.kafka.token import PartitionEnd

_REASON_SECONDS = 2.0  # librdkafka says 'fatal' a moment before it says why


class ProducerLostError(Exception):
    """This producer is unusable. Its token shows the next producer what its transaction did."""

    def __init__(self, error: KafkaError, doing: str) -> None:
        super().__init__(f"{doing}: {error}")
        self.error = error
        self.doing = doing


@dataclass
class AckCounter:
    """Acknowledged records of one sink's topic, counted by delivery reports: what brokers said, not what was sent.

    With `with_times` it also counts the records whose timestamp the broker has replaced by its own time.
    """

    topic: str
    with_times: bool = False
    replaced: int = 0
    records: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    last: dict[int, int] = field(default_factory=dict)
    failure: KafkaError | None = None

    def __call__(self, error: KafkaError | None, message: Message) -> None:
        """The delivery report of one record; must not raise (librdkafka would turn that into a SystemError)."""
        self._count(1, error, message)

    def reporting(self, records: int) -> Callable[[KafkaError | None, Message], None]:
        """Return the delivery report of the last of `records` records of a partition, which covers them all."""
        return partial(self._count, records)

    def _count(self, records: int, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.failure = self.failure or error
            return
        partition, offset = message.partition(), message.offset()
        if partition is None or offset is None:
            self.failure = self.failure or KafkaError(KafkaError._FAIL, "a delivery report without its place")
            return
        if self.with_times and message.timestamp()[0] == TIMESTAMP_LOG_APPEND_TIME:
            self.replaced += records
        self.records[partition] += records
        self.last[partition] = offset

    @property
    def total(self) -> int:
        """Acknowledged records over all partitions."""
        return sum(self.records.values())


def merge_ends(counters: Iterable[AckCounter]) -> dict[str, dict[int, PartitionEnd]]:
    """Records and last offset by topic and partition, over sinks that may share a topic."""
    ends: dict[str, dict[int, PartitionEnd]] = {}
    for counter in counters:
        by_partition = ends.setdefault(counter.topic, {})
        for partition, records in counter.records.items():
            before = by_partition.get(partition, PartitionEnd(0, -1))
            by_partition[partition] = PartitionEnd(before.records + records, max(before.last, counter.last[partition]))
    return {topic: by_partition for topic, by_partition in ends.items() if by_partition}


def keep_for_ever(producer: Producer) -> None:
    """Keeps a producer with a fatal error, or in a call, until the process ends, and from being destroyed even then.

    Librdkafka 2.16.0 corrupts its heap now and then when it destroys one (SIGABRT or SIGSEGV; see docs/traps.md).
    Such a producer was fenced, so its process does not live long.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(producer))


def _columns(topic: str, records: Records, counter: AckCounter) -> list[Iterable[Any]]:
    """Return the arguments of `produce` as columns, by position: calls with names take a fifth longer."""
    columns: list[Iterable[Any]] = [
        repeat(topic),
        records.values,
        records.keys if records.keys is not None else repeat(None),
        records.partitions if records.partitions is not None else repeat(-1),
        repeat(counter),
    ]
    if _has_more(records):
        columns.append(records.timestamps if records.timestamps is not None else repeat(0))
        columns.append(records.headers if records.headers is not None else repeat(None))
    return columns


def _has_more(records: Records) -> bool:
    return records.timestamps is not None or records.headers is not None


def named(produce: Callable[..., None]) -> Callable[..., None]:
    """Return `produce` with timestamp and headers by name: programs that trace it look for headers there."""

    def call(topic: str, value: Any, key: Any, partition: int, counter: Any, timestamp: int, headers: Any) -> None:
        produce(topic, value, key, partition, counter, timestamp=timestamp, headers=headers)

    return call


class Sender:
    """A producer that hands over records and waits until each is acknowledged."""

    def __init__(self, clients: KafkaClients, producer: Producer) -> None:
        self._clients = clients
        self._producer = producer
        self._batches = open_batches(producer, clients.settings, clients.timeout)
        self._is_fatal = False
        self._is_stuck = False

    def send(self, topic: str, records: RecordColumns, counter: AckCounter) -> None:
        """Hands records to the producer; blocks while its buffer is full, as long as the brokers acknowledge some."""
        progress = self._progress()
        doing = f"sending to topic {topic!r}"

        def wait(acknowledged: Callable[[], int]) -> None:
            self._producer.poll(0.1)
            self._check(counter, doing)
            progress(acknowledged(), doing)

        with self._failures(doing):
            batches = self._batches if records.timestamps is None and records.headers is None else None
            if batches is not None:
                batches.send(topic, records, counter, lambda: wait(batches.acknowledged))
            else:
                self._send_one_by_one(topic, records.rows(), counter, lambda: wait(lambda: counter.total))
            self._producer.poll(0)
        self._check(counter, doing)

    def _send_one_by_one(self, topic: str, records: Records, counter: AckCounter, wait: Callable[[], None]) -> None:
        produce = named(self._producer.produce) if _has_more(records) else self._producer.produce
        for arguments in zip(*_columns(topic, records, counter), strict=False):
            while True:
                try:
                    produce(*arguments)
                    break
                except BufferError:
                    wait()

    def look_again(self) -> None:
        """Let the next records also go to partitions that were added since. Call it between two deliveries."""
        if self._batches is not None:
            self._batches.look_again()

    def flush(self, counters: Iterable[AckCounter]) -> None:
        """Waits until every record is acknowledged; ProducerLostError when one failed or the brokers are silent."""
        doing = "waiting for acknowledgements"
        counters = list(counters)
        progress = self._progress()
        with self._failures(doing):
            while (left := self._producer.flush(0.5)) > 0:
                for counter in counters:
                    self._check(counter, doing)
                progress(-left, doing)
        for counter in counters:
            self._check(counter, doing)  # flush() returns 0 even when deliveries failed

    def discard(self) -> None:
        """Throws the producer away."""
        if self._is_fatal or self._is_stuck:
            keep_for_ever(self._producer)
        elif self._batches is not None:
            self._batches.close()
        del self._producer  # not close(): that would wait for brokers without a bound

    def _until_done(self, doing: str, call: Callable[[float], object]) -> None:
        """Repeat a call while librdkafka allows it (it continues where it was)."""
        deadline = time.monotonic() + self._clients.timeout
        while True:
            try:
                with self._failures(doing):
                    call(max(0.1, deadline - time.monotonic()))
                return
            except ProducerLostError as lost:
                if not lost.error.retriable() or time.monotonic() >= deadline:
                    raise
                time.sleep(0.05)

    @contextmanager
    def _failures(self, doing: str) -> Iterator[None]:
        try:
            yield
        except KafkaException as failure:
            raise ProducerLostError(self._cause(failure.args[0]), doing) from failure
        except SystemError as failure:  # how a fatal error inside a callback surfaces; its cause says which
            cause = failure.__cause__
            known = cause.args[0] if isinstance(cause, KafkaException) else KafkaError(KafkaError._FATAL)
            raise ProducerLostError(self._cause(known), doing) from failure

    def _cause(self, error: KafkaError) -> KafkaError:
        """Return the cause of a vague error of `produce`, for a fenced producer or a failed transaction."""
        if error.code() == KafkaError._STATE:
            error = self._abortable() or error
        self._is_fatal = self._is_fatal or error.code() == KafkaError._FATAL
        deadline = time.monotonic() + _REASON_SECONDS
        while error.code() == KafkaError._FATAL and time.monotonic() < deadline:
            with suppress(SystemError, BufferError):
                try:
                    self._producer.poll(0.05)  # the error itself waits there, or is on its way
                except KafkaException as failure:
                    error = failure.args[0]
        self._is_fatal = self._is_fatal or error.fatal()
        return error

    def _abortable(self) -> KafkaError | None:
        """Return what a failure without a report of its own has left behind; None: nothing."""
        return None

    def _check(self, counter: AckCounter, doing: str) -> None:
        if counter.failure is not None:  # it may be but a consequence: what is queued is purged after the first failure
            raise ProducerLostError(self._abortable() or counter.failure, doing)

    def _progress(self) -> Callable[[int, str], None]:
        seen, since = -math.inf, time.monotonic()

        def check(acknowledged: int, doing: str) -> None:
            nonlocal seen, since
            if acknowledged > seen:  # the queue's length has events in it, too: less than before means nothing
                seen, since = acknowledged, time.monotonic()
            elif time.monotonic() - since > self._clients.timeout:
                raise ProducerLostError(KafkaError(KafkaError._TIMED_OUT), doing)

        return check
