"""One transactional id: reading its token, and transactions that write it (strategy `transaction`).

The order is init -> read token -> rows -> token -> commit (DESIGN 6): initialising fences every other producer of the
id, aborts what it left open and waits for the markers, so that what is read after it stays true for as long as this
producer lives. What was read before proves nothing. A producer that failed in any way is thrown away.
"""

from __future__ import annotations

import logging
import random
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any, TypeVar

from confluent_kafka import OFFSET_INVALID, KafkaError, KafkaException, Message, TopicPartition

from airflow_ft.core.errors import FencedError, ForeignOwnerError, SinkUnavailableError
from airflow_ft.core.model import Fence
from airflow_ft.sinks.kafka.client import KafkaClients, is_fenced, is_refusal
from airflow_ft.sinks.kafka.records import Records
from airflow_ft.sinks.kafka.token import PartitionEnd, Token, check_owner, parse

log = logging.getLogger(__name__)

T = TypeVar("T")
_BEGINNINGS = 6  # a producer that is fenced while epoch and attempt are still mine begins again, but not for ever
_GLANCE_SECONDS = 1.0  # a commit that is alive is through within milliseconds
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
        """The delivery report callback; must not raise (librdkafka would turn that into a SystemError)."""
        if error is not None:
            self.failure = self.failure or error
            return
        partition, offset = message.partition(), message.offset()
        if partition is None or offset is None:
            self.failure = self.failure or KafkaError(KafkaError._FAIL, "a delivery report without its place")
            return
        self.records[partition] += 1
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


class Transaction:
    """A producer after `init_transactions`. `send` rows, then `commit` with the token; or leave it, which aborts."""

    def __init__(self, clients: KafkaClients, slot: Slot, limits: Mapping[str, Any]) -> None:
        self._clients = clients
        self._slot = slot
        self._producer = clients.producer(slot.group, limits)
        self._open = False
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

    def send(self, topic: str, records: Records, tally: Tally) -> None:
        """Hands records to the producer; blocks while its buffer is full, as long as the brokers acknowledge some."""
        produce, poll = self._producer.produce, self._producer.poll
        progress = self._progress()
        doing = f"sending to topic {topic!r}"
        with self._failures(doing):
            for value, key, partition, timestamp, headers in zip(
                records.values,
                records.keys if records.keys is not None else repeat(None),
                records.partitions if records.partitions is not None else repeat(-1),
                records.timestamps if records.timestamps is not None else repeat(0),
                records.headers if records.headers is not None else repeat(None),
                strict=False,
            ):
                while True:
                    try:
                        produce(
                            topic,
                            value,
                            key,
                            partition=partition,
                            on_delivery=tally,
                            timestamp=timestamp,
                            headers=headers,
                        )
                        break
                    except BufferError:
                        poll(0.1)
                        self._check(tally, doing)
                        progress(tally.total, doing)
            poll(0)
        self._check(tally, doing)

    def flush(self, tallies: Iterable[Tally]) -> None:
        """Waits until every record is acknowledged; ProducerLostError when one failed or the brokers are silent."""
        doing = "waiting for acknowledgements"
        tallies = list(tallies)
        progress = self._progress()
        with self._failures(doing):
            while self._producer.flush(0.5) > 0:
                for tally in tallies:
                    self._check(tally, doing)
                progress(sum(tally.total for tally in tallies), doing)
        for tally in tallies:
            self._check(tally, doing)  # flush() returns 0 even when deliveries failed

    def commit(self, token: Token) -> None:
        """Writes the token and commits: rows and token become visible together, or neither.

        ProducerLostError: not known which; the token tells the next producer.
        """
        position = TopicPartition(self._clients.settings.token_topic, 0, token.number, metadata=token.metadata())
        group = self._slot.group_metadata()
        self._until_done(
            "writing the token",
            lambda timeout: self._producer.send_offsets_to_transaction([position], group, timeout),
        )
        self._until_done("committing the transaction", self._producer.commit_transaction)
        self._open = False

    def discard(self) -> None:
        """Throws the producer away; an open transaction is aborted if the brokers answer soon."""
        if self._open:
            self._open = False
            # Whatever goes wrong here, the id's next init aborts the transaction, or the coordinator's time-out does.
            with suppress(KafkaException, SystemError, BufferError):
                self._producer.abort_transaction(_ABORT_SECONDS)
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
            raise ProducerLostError(failure.args[0], doing) from failure
        except SystemError as failure:  # how a fatal error inside a callback surfaces
            raise ProducerLostError(KafkaError(KafkaError._FATAL), doing) from failure

    @staticmethod
    def _check(tally: Tally, doing: str) -> None:
        if tally.failure is not None:
            raise ProducerLostError(tally.failure, doing)

    def _progress(self) -> Callable[[int, str], None]:
        seen, since = -1, time.monotonic()

        def check(acknowledged: int, doing: str) -> None:
            nonlocal seen, since
            if acknowledged != seen:
                seen, since = acknowledged, time.monotonic()
            elif time.monotonic() - since > self._clients.timeout:
                raise ProducerLostError(KafkaError(KafkaError._TIMED_OUT), doing)

        return check


class Slot:
    """One transactional id and the group of the same name, whose offset is the token."""

    def __init__(self, clients: KafkaClients, pipeline: str, index: int) -> None:
        self._clients = clients
        self.index = index
        self.group = f"airflow_ft.{pipeline}.{clients.conn_id}.{index}"
        self._consumer: Any = None

    def read_token(self, fence: Fence | None = None, patience: float | None = None) -> Token | None:
        """The last committed token; None when there is none. A pending one is waited for.

        With a fence, metadata that are not ours are a foreign owner's. `patience` is in seconds, by default the
        connection's time-out.

        Raises:
            SinkUnavailableError: no answer, or a transaction that writes the token is still open.
            SinkAccessError: the group may not be read.
            ForeignOwnerError: the group's offset was not written by this package.
        """
        topic = self._clients.settings.token_topic
        doing = f"reading the token of group {self.group!r}"
        deadline = time.monotonic() + (self._clients.timeout if patience is None else patience)
        slice_seconds = 1.0  # growing: a refusal is found early, and a slow broker still gets its time
        while True:
            try:
                left = max(0.1, min(slice_seconds, deadline - time.monotonic()))
                position = self._reader().committed([TopicPartition(topic, 0)], left)[0]
                error = position.error
            except KafkaException as failure:
                error = failure.args[0]
            if error is None:
                break
            refusal = self._refusal()
            if refusal is not None or error.code() not in _SETTLING or time.monotonic() >= deadline:
                raise self._clients.error(refusal or error, doing)
            slice_seconds *= 2
            time.sleep(0.05)
        if position.offset == OFFSET_INVALID:
            return None
        try:
            return parse(position.offset, position.metadata)
        except ValueError as error:
            raise ForeignOwnerError(
                f"the offset {position.offset} of group {self.group!r} on topic {topic!r} was not written by"
                f" airflow-ft ({error}).",
                remedy="Give the group back to its owner, or rename the pipeline; `airflow ft adopt` overwrites it.",
                participant=self._clients.conn_id,
                pipeline=fence.pipeline if fence is not None else "",
            ) from error

    def glance(self, fence: Fence) -> Token | None:
        """The token, if it can be read at once; None when there is none or a transaction that writes it is open.

        That transaction may be one that a killed process left: only the next init ends it before its time-out, so
        waiting for it here would wait in vain.
        """
        try:
            return self.read_token(fence, min(_GLANCE_SECONDS, self._clients.timeout))
        except SinkUnavailableError:
            return None  # what is decided is decided by what is read after init

    def group_metadata(self) -> object:
        """What send_offsets_to_transaction wants to know of a consumer group (without members)."""
        return self._reader().consumer_group_metadata()

    def with_producer(
        self, fence: Fence, work: Callable[[Transaction], T], limits: Mapping[str, Any], foreign: bool = False
    ) -> T:
        """Runs `work` with a freshly initialised producer, again with a new one while the old gets lost.

        Before each initialisation the head is read, so that an older owner does not even disturb the newer one.
        `work` must read the token itself and judge by that. `foreign` tolerates another's token (adoption).

        Raises:
            FencedError: a newer owner; or the id was taken away again and again without one.
            SinkUnavailableError, SinkAccessError: as the brokers answer, or do not.
        """
        lost: ProducerLostError | None = None
        for beginning in range(_BEGINNINGS):
            if beginning:
                time.sleep(random.uniform(0.02, 0.1) * 2**beginning)  # two owners must not stay in step
            if not foreign and (token := self.glance(fence)) is not None:
                check_owner(token, fence, self._clients.conn_id, self.group)
            transaction: Transaction | None = None
            try:
                transaction = Transaction(self._clients, self, limits)
                return work(transaction)
            except ProducerLostError as failure:
                lost = failure
                _forget_frames(failure)
                log.warning("transactional id %s: %s; beginning again", self.group, failure)
                if is_refusal(failure.error) or failure.error.code() in _SILENCE:
                    break
            finally:
                if transaction is not None:
                    transaction.discard()
        assert lost is not None
        if is_fenced(lost.error):
            raise FencedError(
                f"another process keeps taking the transactional id {self.group!r}.",
                remedy="Two processes deliver the same pipeline under one epoch; let one of them end.",
                pipeline=fence.pipeline,
                participant=self._clients.conn_id,
            ) from lost
        raise self._clients.error(lost.error, f"transactional id {self.group!r}: {lost.doing}") from lost

    def close(self) -> None:
        """Closes the reader of the token."""
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None

    def _refusal(self) -> KafkaError | None:
        """Why the coordinator refuses the group, if it does.

        Librdkafka says so once, as an event of `poll`; `committed` itself only times out. The reader is closed with
        it, so that the next one asks again (measured with librdkafka 2.16.0).
        """
        event = self._reader().poll(0)
        error: KafkaError | None = event.error() if event is not None else None
        if error is None or not is_refusal(error):
            return None
        self.close()
        return error

    def _reader(self) -> Any:
        if self._consumer is None:
            self._consumer = self._clients.consumer(self.group)
        return self._consumer


# A group whose coordinator is being elected or loaded, or whose offset is still pending.
_SETTLING = frozenset(
    {
        KafkaError.NOT_COORDINATOR,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.UNSTABLE_OFFSET_COMMIT,
        KafkaError._WAIT_COORD,
        KafkaError._TIMED_OUT,
        KafkaError._TRANSPORT,
    }
)
# The brokers were silent for the whole time-out already.
_SILENCE = frozenset({KafkaError._TIMED_OUT, KafkaError._MSG_TIMED_OUT, KafkaError._ALL_BROKERS_DOWN})


def _forget_frames(failure: BaseException | None) -> None:
    """Lets go of the lost producer: the frames of a kept exception would hold it, with its threads and buffers."""
    while failure is not None:
        traceback.clear_frames(failure.__traceback__)
        failure = failure.__cause__
