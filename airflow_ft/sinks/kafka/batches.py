"""Many records in one call: librdkafka's own `rd_kafka_produce_batch`, fed from Arrow's buffers.

confluent_kafka calls librdkafka once a record and Python once a delivery report, which limits a delivery to about a
million records a second. This module calls the same library, on the handle inside confluent_kafka's Producer, with
thousands of records at once. All records of a call have one partition, which is chosen before (`partitioner`).

**What proves the delivery.** Only the last record of each partition in a call of `send` goes through confluent_kafka
and has a delivery report. The report carries how many records it speaks for. That it proves the others, too, rests on
four things:

1. `rd_kafka_produce_batch` says of every record whether it was taken. What the buffer had no room for is given again
   from just there on; any other refusal ends the transaction. So all records are in librdkafka's queues, in order.
2. `flush` returns 0 only when librdkafka knows the outcome of every record that it took, with or without a report.
3. An idempotent producer numbers the records of a partition. Their broker takes a batch only when its first number
   follows the last one in the log, under the same producer id and epoch. These stay the same within a transaction:
   librdkafka asks for others only after an abort. So a success for the last record means that all records of this
   producer before it are in the log of this partition, in order. A record that failed or was lost before it (timed
   out, refused, without an answer) is either sent again under its number, or makes all later ones fail.
4. Librdkafka counts the deliveries of a transaction that failed, and refuses to commit it when there was one. After a
   permanent failure it refuses to write the token, too (`Sender` finds out why).

The handle is the first field behind the object header of a Producer in CPython. `open_batches` checks all it can
before it sends anything by it. If a check fails, the records go one by one through confluent_kafka.
"""

from __future__ import annotations

import ctypes
import logging
import random
import sys
import time
from collections.abc import Callable
from functools import cache
from typing import Any, Protocol

import confluent_kafka
import numpy as np
import numpy.typing as npt
from confluent_kafka import KafkaError, KafkaException, Producer, cimpl
from confluent_kafka.admin import TopicMetadata

from airflow_ft.clients.kafka.client import KafkaSettings
from airflow_ft.sinks.kafka.partitioner import Partitioner, Places
from airflow_ft.sinks.kafka.records import RecordColumns

log = logging.getLogger(__name__)

_COPY = 2  # RD_KAFKA_MSG_F_COPY: librdkafka keeps its own copy, so Arrow's buffers may go
_PRODUCER = 0  # RD_KAFKA_PRODUCER
_PROPAGATION_SECONDS = 30.0  # as librdkafka's topic.metadata.propagation.max.ms
_LOOKED_SECONDS = 10.0  # how long a number of partitions is believed, from one delivery to the next
# rd_kafka_message_t of rdkafka.h, on 64 bits.
_MESSAGE = np.dtype(
    {
        "names": ["err", "payload", "len", "key", "key_len", "private"],
        "formats": ["<i4", "<u8", "<u8", "<u8", "<u8", "<u8"],
        "offsets": [0, 24, 32, 40, 48, 64],
        "itemsize": 72,
    }
)

Report = Callable[[KafkaError | None, Any], None]


class Counter(Protocol):
    """Counter of delivery reports (`transaction.AckCounter`)."""

    def reporting(self, records: int) -> Report: ...


class _OddError(Exception):
    """Something is not as it is known here; the text says what."""


@cache
def _library() -> ctypes.CDLL:
    """The librdkafka that confluent_kafka itself calls, looked up through the module that is linked with it."""
    if sys.implementation.name != "cpython" or ctypes.sizeof(ctypes.c_void_p) != 8 or sys.byteorder != "little":
        raise _OddError(f"{sys.implementation.name} on this processor")
    try:
        found = ctypes.CDLL(cimpl.__file__)
        pointer, text, number = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int32
        for name, result, arguments in (
            ("rd_kafka_version", ctypes.c_int, ()),
            ("rd_kafka_type", ctypes.c_int, (pointer,)),
            ("rd_kafka_name", text, (pointer,)),
            ("rd_kafka_outq_len", ctypes.c_int, (pointer,)),
            ("rd_kafka_topic_new", pointer, (pointer, text, pointer)),
            ("rd_kafka_topic_destroy", None, (pointer,)),
            ("rd_kafka_last_error", ctypes.c_int, ()),
            ("rd_kafka_produce_batch", ctypes.c_int, (pointer, number, ctypes.c_int, pointer, ctypes.c_int)),
            (
                "rd_kafka_msg_partitioner_murmur2_random",
                number,
                (pointer, pointer, ctypes.c_size_t, number, pointer, pointer),
            ),
        ):
            function = getattr(found, name)
            function.restype, function.argtypes = result, arguments
    except (OSError, AttributeError, TypeError) as error:
        raise _OddError(f"librdkafka cannot be called ({error})") from error
    if found.rd_kafka_version() != confluent_kafka.libversion()[1]:
        raise _OddError("there are two librdkafkas in this process")
    return found


def _handle(producer: Producer, client_id: str) -> int:
    """The rd_kafka_t of a producer."""
    library, header = _library(), object.__basicsize__
    if type(producer) is not Producer or Producer.__basicsize__ < header + ctypes.sizeof(ctypes.c_void_p):
        raise _OddError("a Producer has another layout")
    handle = ctypes.c_void_p.from_address(id(producer) + header).value
    if not handle or handle % 8:
        raise _OddError("a Producer holds no handle where it is looked for")
    name = (library.rd_kafka_name(handle) or b"").decode(errors="replace")
    if (
        library.rd_kafka_type(handle) != _PRODUCER
        or not name.startswith(f"{client_id}#producer-")
        # An event of librdkafka's threads may be counted by one of the two only.
        or not any(library.rd_kafka_outq_len(handle) == len(producer) for _ in range(10))
    ):
        raise _OddError("a Producer's handle is that of something else")
    return handle


@cache
def _say_once(what: str) -> None:
    log.warning("records are sent to Kafka one by one, which is slower: %s", what)


def long_key_partition(address: int, length: int, partitions: int) -> int:
    """Librdkafka's own murmur2 partitioner for one key that is not null."""
    chosen: int = _library().rd_kafka_msg_partitioner_murmur2_random(None, address, length, partitions, None, None)
    return chosen


def open_batches(producer: Producer, settings: KafkaSettings, timeout: float) -> BatchSender | None:
    """Return what sends many records at once by this producer; None, and a line in the log, where that cannot be.

    `timeout` is in seconds, for asking how many partitions a topic has.
    """
    try:
        if settings.partitioner != "murmur2_random":
            raise _OddError(f"the connection's partitioner is {settings.partitioner}")
        return BatchSender(producer, _handle(producer, settings.client_id), timeout)
    except _OddError as odd:
        _say_once(str(odd))
        return None


class BatchSender:
    """Sends records without headers and timestamps. Of one thread; to be closed before its producer goes."""

    def __init__(self, producer: Producer, handle: int, timeout: float) -> None:
        self._producer = producer
        self._handle = handle
        self._timeout = timeout
        self._taken = 0
        self._topics: dict[str, tuple[int, Partitioner]] = {}
        self._looked = time.monotonic()

    def send(self, topic: str, records: RecordColumns, counter: Counter, wait: Callable[[], None]) -> None:
        """Hands records over; returns when librdkafka has them all. Their order within a partition stays.

        `wait` is called while the buffer is full; it serves the producer, and raises when the brokers are silent.

        Raises:
            KafkaException: one was not taken: the transaction cannot be completed.
        """
        if not len(records):
            return
        handle, partitioner = self._topic(topic)
        values = Places(records.values)
        keys = Places(records.keys) if records.keys is not None else None
        partitions = partitioner.choose(keys, records.partitions, len(records))
        if partitions.min() < 0 or partitions.max() >= partitioner.count:
            raise KafkaException(KafkaError(KafkaError._UNKNOWN_PARTITION))
        order = np.argsort(partitions, kind="stable")
        messages = _messages(values, keys, order)
        ends = np.append(np.flatnonzero(np.diff(partitions[order])) + 1, len(order))
        begin, due = 0, self._taken + len(records)
        for end in ends.tolist():
            last = int(order[end - 1])
            partition = int(partitions[last])
            self._send_without_report(handle, partition, messages[begin : end - 1], wait)
            self._send_with_report(topic, records, last, partition, counter.reporting(end - begin), wait)
            begin = end
        if self._taken != due:  # I2: by librdkafka's own answers
            raise KafkaException(KafkaError(KafkaError._FAIL, f"librdkafka took {self._taken} records, not {due}"))

    def acknowledged(self) -> int:
        """Return a lower bound of the records that are in the topics, or have failed; for showing progress."""
        return self._taken - len(self._producer)

    def look_again(self) -> None:
        """Forget the numbers of partitions if they are old: an administrator may have added some."""
        if time.monotonic() - self._looked > _LOOKED_SECONDS:
            self.close()
            self._looked = time.monotonic()

    def close(self) -> None:
        """Lets go of the topics: a producer whose topics are held is never quite destroyed."""
        while self._topics:
            _, (handle, _) = self._topics.popitem()
            _library().rd_kafka_topic_destroy(handle)

    def _send_without_report(
        self, handle: int, partition: int, messages: npt.NDArray[np.void], wait: Callable[[], None]
    ) -> None:
        """Hands over records of one partition, however often the buffer is full meanwhile."""
        produce = _library().rd_kafka_produce_batch
        while len(messages):
            taken: int = produce(handle, partition, _COPY, messages.ctypes.data, len(messages))
            self._taken += taken
            if taken == len(messages):
                return
            errors = messages["err"]
            if refused := [code for code in np.unique(errors).tolist() if code not in (0, KafkaError._QUEUE_FULL)]:
                raise KafkaException(KafkaError(refused[0]))
            if errors[:taken].any() or not errors[taken:].all():
                raise KafkaException(KafkaError(KafkaError._FAIL, "librdkafka has left records out"))
            # All from the first one without room on were refused: continue exactly there.
            messages = messages[taken:]
            wait()

    def _send_with_report(
        self,
        topic: str,
        records: RecordColumns,
        row: int,
        partition: int,
        report: Report,
        wait: Callable[[], None],
    ) -> None:
        key = records.keys[row].as_py() if records.keys is not None else None
        value = records.values[row].as_py()
        while True:
            try:
                self._producer.produce(topic, value, key, partition, report)
                self._taken += 1
                return
            except BufferError:
                wait()

    def _topic(self, name: str) -> tuple[int, Partitioner]:
        known = self._topics.get(name)
        if known is None:
            found = self._describe(name)
            library, partitions = _library(), len(found.partitions)
            handle = library.rd_kafka_topic_new(self._handle, name.encode(), None)
            if not handle:
                raise KafkaException(KafkaError(library.rd_kafka_last_error()))
            partitioner = Partitioner(partitions, random.randrange(partitions), long_key_partition)
            known = self._topics[name] = (handle, partitioner)
        return known

    def _describe(self, name: str) -> TopicMetadata:
        """The topic with its partitions; it was seen before, but the broker that answers now may not know it yet."""
        deadline = time.monotonic() + min(self._timeout, _PROPAGATION_SECONDS)
        while True:
            found: TopicMetadata = self._producer.list_topics(name, self._timeout).topics[name]
            if found.error is None and found.partitions:
                return found
            if time.monotonic() > deadline:
                raise KafkaException(found.error or KafkaError(KafkaError.LEADER_NOT_AVAILABLE))
            time.sleep(0.02)


def _messages(values: Places, keys: Places | None, order: npt.NDArray[np.intp]) -> npt.NDArray[np.void]:
    """The records as librdkafka wants them. The last one of each partition is in it too, and is not sent from it."""
    messages: npt.NDArray[np.void] = np.zeros(len(order), _MESSAGE)
    messages["payload"] = values.addresses[order]
    messages["len"] = values.lengths[order]
    if keys is not None:
        messages["key"] = keys.addresses[order]
        messages["key_len"] = keys.lengths[order]
    return messages
