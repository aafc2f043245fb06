"""A transaction of one transactional id: rows and token, committed by this process or left open for another one.

A producer that failed in any way is thrown away; what it did is in the token, for the next one to read.
"""

from __future__ import annotations

import ctypes
import json
import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import repeat
from typing import Any, Protocol

from confluent_kafka import KafkaError, KafkaException, Message, Producer, TopicPartition

from airflow_ft.kafka.client import KafkaClients, bounded
from airflow_ft.sinks.kafka.batches import open_batches
from airflow_ft.sinks.kafka.records import RecordColumns, Records
from airflow_ft.sinks.kafka.token import PartitionEnd, Token

_REASON_SECONDS = 2.0  # librdkafka says 'fatal' a moment before it says why
_GRACE_SECONDS = 1.0
_ABORT_SECONDS = 5.0  # politeness to readers only: the next init aborts what stays open (I5)


class ProducerLostError(Exception):
    """This producer is of no more use. What it did is in the token, for the next one to read."""

    def __init__(self, error: KafkaError, doing: str) -> None:
        super().__init__(f"{doing}: {error}")
        self.error = error
        self.doing = doing


@dataclass
class Tally:
    """Acknowledged records of one sink's topic, counted by delivery reports: what brokers said, not what was sent."""

    topic: str
    records: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    last: dict[int, int] = field(default_factory=dict)
    failure: KafkaError | None = None

    def __call__(self, error: KafkaError | None, message: Message) -> None:
        """The delivery report of one record; must not raise (librdkafka would turn that into a SystemError)."""
        self._count(1, error, message)

    def reporting(self, records: int) -> Callable[[KafkaError | None, Message], None]:
        """The delivery report of a record that speaks for so many of its partition, and is the last of them."""
        return partial(self._count, records)

    def _count(self, records: int, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.failure = self.failure or error
            return
        partition, offset = message.partition(), message.offset()
        if partition is None or offset is None:
            self.failure = self.failure or KafkaError(KafkaError._FAIL, "a delivery report without its place")
            return
        self.records[partition] += records
        self.last[partition] = offset

    @property
    def total(self) -> int:
        """Acknowledged records over all partitions."""
        return sum(self.records.values())


def merge_ends(tallies: Iterable[Tally]) -> dict[str, dict[int, PartitionEnd]]:
    """Records and last offset by topic and partition, over sinks that may share a topic."""
    ends: dict[str, dict[int, PartitionEnd]] = {}
    for tally in tallies:
        by_partition = ends.setdefault(tally.topic, {})
        for partition, records in tally.records.items():
            before = by_partition.get(partition, PartitionEnd(0, -1))
            by_partition[partition] = PartitionEnd(before.records + records, max(before.last, tally.last[partition]))
    return {topic: by_partition for topic, by_partition in ends.items() if by_partition}


@dataclass(frozen=True, slots=True)
class ProducerIdentity:
    """What names a transaction to its coordinator: given out anew by each initialisation of the transactional id."""

    producer_id: int
    epoch: int


@dataclass
class _Statistics:
    """Librdkafka's statistics, which alone tell who a producer is; kept as text, parsed when asked."""

    text: str = ""

    def __call__(self, text: str) -> None:
        self.text = text

    @property
    def identity(self) -> ProducerIdentity | None:
        """The producer's identity by the newest statistics; None before it has one."""
        known = json.loads(self.text)["eos"] if self.text else {}
        if known.get("producer_id", -1) < 0:
            return None
        return ProducerIdentity(known["producer_id"], known["producer_epoch"])


def _keep_for_ever(producer: Producer) -> None:
    """Keeps a producer with a fatal error, or in a call, until the process ends, and from being destroyed even then.

    Librdkafka 2.16.0 corrupts its heap now and then when it destroys one (SIGABRT or SIGSEGV; see docs/findings.md).
    Such a producer was fenced, so its process does not live long.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(producer))


def _columns(topic: str, records: Records, tally: Tally) -> list[Iterable[Any]]:
    """The arguments of `_produce` as columns."""
    columns: list[Iterable[Any]] = [
        repeat(topic),
        records.values,
        records.keys if records.keys is not None else repeat(None),
        records.partitions if records.partitions is not None else repeat(-1),
        repeat(tally),
    ]
    if _has_more(records):
        columns.append(records.timestamps if records.timestamps is not None else repeat(0))
        columns.append(records.headers if records.headers is not None else repeat(None))
    return columns


def _has_more(records: Records) -> bool:
    return records.timestamps is not None or records.headers is not None


def _produce(producer: Producer, records: Records) -> Callable[..., None]:
    """`produce`, to be called by position: naming the arguments, and all of them, costs a fifth of a record's time."""
    plain: Callable[..., None] = producer.produce
    if not _has_more(records):
        return plain

    def with_more(topic: str, value: Any, key: Any, partition: int, tally: Tally, timestamp: int, headers: Any) -> None:
        plain(topic, value, key, partition, tally, timestamp=timestamp, headers=headers)

    return with_more


class OwnedGroup(Protocol):
    """The transactional id, and the group of the same name whose offset is the token (`slot.Slot`)."""

    group: str

    def group_metadata(self) -> object: ...


class Transaction:
    """A producer after `init_transactions`.

    `send` rows, then `commit` with the token; or `write` the token and `release`, which leaves the transaction open; or
    leave it, which aborts. `hold` are producer settings of a transaction that is to be released.
    """

    def __init__(
        self, clients: KafkaClients, slot: OwnedGroup, limits: Mapping[str, Any], hold: Mapping[str, Any] | None = None
    ) -> None:
        self._clients = clients
        self._slot = slot
        self._statistics = _Statistics()
        forced = {"statistics.interval.ms": 100, "stats_cb": self._statistics, **hold} if hold is not None else {}
        self._producer = clients.producer(slot.group, limits, forced)
        self._batches = open_batches(self._producer, clients.settings, clients.timeout)
        self._open = False
        self._is_fatal = False
        self._is_stuck = False
        try:
            self._until_done("initialising the transactional id", self._producer.init_transactions)
        except ProducerLostError:
            self.discard()
            raise

    def begin(self) -> None:
        """Begins the transaction; local to this process."""
        with self._failures("beginning a transaction"):
            self._producer.begin_transaction()
            self._open = True

    def send(self, topic: str, records: RecordColumns, tally: Tally) -> None:
        """Hands records to the producer; blocks while its buffer is full, as long as the brokers acknowledge some."""
        progress = self._progress()
        doing = f"sending to topic {topic!r}"

        def wait(acknowledged: Callable[[], int]) -> None:
            self._producer.poll(0.1)
            self._check(tally, doing)
            progress(acknowledged(), doing)

        with self._failures(doing):
            batches = self._batches if records.timestamps is None and records.headers is None else None
            if batches is not None:
                batches.send(topic, records, tally, lambda: wait(batches.acknowledged))
            else:
                self._send_one_by_one(topic, records.rows(), tally, lambda: wait(lambda: tally.total))
            self._producer.poll(0)
        self._check(tally, doing)

    def _send_one_by_one(self, topic: str, records: Records, tally: Tally, wait: Callable[[], None]) -> None:
        produce = _produce(self._producer, records)
        for arguments in zip(*_columns(topic, records, tally), strict=False):
            while True:
                try:
                    produce(*arguments)
                    break
                except BufferError:
                    wait()

    def flush(self, tallies: Iterable[Tally]) -> None:
        """Waits until every record is acknowledged; ProducerLostError when one failed or the brokers are silent."""
        doing = "waiting for acknowledgements"
        tallies = list(tallies)
        progress = self._progress()
        with self._failures(doing):
            while (left := self._producer.flush(0.5)) > 0:
                for tally in tallies:
                    self._check(tally, doing)
                progress(-left, doing)
        for tally in tallies:
            self._check(tally, doing)  # flush() returns 0 even when deliveries failed
        if (error := self._abortable()) is not None:  # one without a report of its own (`batches`)
            raise ProducerLostError(error, doing)

    def write(self, token: Token) -> None:
        """Writes the token: from now on nothing more is sent in this transaction."""
        position = TopicPartition(self._clients.settings.token_topic, 0, token.number, metadata=token.metadata())
        group, producer, doing = self._slot.group_metadata(), self._producer, "writing the token"

        def send(timeout: float) -> None:
            # Librdkafka 2.16.0 forgets the time-out while the group's coordinator is away (its issue 5456).
            call = partial(producer.send_offsets_to_transaction, [position], group, timeout)
            try:
                bounded(call, timeout + _GRACE_SECONDS)
            except TimeoutError:
                self._is_stuck = True
                raise ProducerLostError(KafkaError(KafkaError._TIMED_OUT), doing) from None

        self._until_done(doing, send)

    def commit(self, token: Token) -> None:
        """Writes the token and commits: rows and token become visible together, or neither.

        ProducerLostError: not known which; the token tells the next producer.
        """
        self.write(token)
        self._until_done("committing the transaction", self._producer.commit_transaction)
        self._open = False

    def identity(self) -> ProducerIdentity:
        """Who this producer is, for whoever ends its transaction (with `hold` only)."""
        doing = "asking librdkafka for the producer's identity"
        deadline = time.monotonic() + self._clients.timeout
        with self._failures(doing):
            while (identity := self._statistics.identity) is None:
                self._producer.poll(0.02)
                if time.monotonic() > deadline:
                    raise ProducerLostError(KafkaError(KafkaError._TIMED_OUT), doing)
        return identity

    def release(self) -> None:
        """Leaves the transaction open when the producer is thrown away: destroying a producer ends nothing."""
        self._open = False

    def discard(self) -> None:
        """Throws the producer away; an open transaction is aborted if the brokers answer soon."""
        if self._open and not self._is_stuck:
            self._open = False
            # Whatever goes wrong here, the id's next init aborts the transaction, or the coordinator's time-out does.
            with suppress(ProducerLostError, BufferError), self._failures("aborting"):
                self._producer.abort_transaction(_ABORT_SECONDS)
        if self._is_fatal or self._is_stuck:
            _keep_for_ever(self._producer)
        elif self._batches is not None:
            self._batches.close()
        del self._producer  # not close(): that would wait for brokers without a bound

    def _until_done(self, doing: str, call: Callable[[float], object]) -> None:
        """Repeats a call while librdkafka says that it may be repeated (it goes on where it was)."""
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
        """What is behind the words of `produce` for a producer that was fenced, or a transaction that has failed."""
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
        """Why the open transaction can only be aborted; None while nothing in it has failed.

        Librdkafka tells its state only by the errors of calls that need another one.
        """
        if self._open:
            try:
                self._producer.begin_transaction()
            except KafkaException as failure:
                error: KafkaError = failure.args[0]
                self._is_fatal = self._is_fatal or error.fatal()
                return None if error.code() == KafkaError._STATE else error
        return None

    def _check(self, tally: Tally, doing: str) -> None:
        if tally.failure is not None:  # it may be but a consequence: what is queued is purged after the first failure
            raise ProducerLostError(self._abortable() or tally.failure, doing)

    def _progress(self) -> Callable[[int, str], None]:
        seen, since = -math.inf, time.monotonic()

        def check(acknowledged: int, doing: str) -> None:
            nonlocal seen, since
            if acknowledged > seen:  # the queue's length has events in it, too: less than before means nothing
                seen, since = acknowledged, time.monotonic()
            elif time.monotonic() - since > self._clients.timeout:
                raise ProducerLostError(KafkaError(KafkaError._TIMED_OUT), doing)

        return check
