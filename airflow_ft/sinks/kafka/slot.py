"""One transactional id: reading its token, and producers that own it one after the other.

The order is init -> read token -> rows -> token -> commit: initialising fences every other producer of the id, aborts
its open transaction and waits for the markers. So a token that is read afterwards stays true while this producer
lives. A token read before proves nothing.
"""

from __future__ import annotations

import logging
import random
import time
import traceback
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from confluent_kafka import OFFSET_INVALID, KafkaError, KafkaException, TopicPartition

from airflow_ft.clients.kafka.client import KafkaClients
from airflow_ft.clients.kafka.errors import is_fenced, is_refusal
from airflow_ft.protocol.errors import (
    ConfigurationError,
    FencedError,
    ForeignOwnerError,
    SinkAccessError,
    SinkUnavailableError,
    TokenLostError,
)
from airflow_ft.protocol.model import Fence
from airflow_ft.sinks.kafka.permissions import id_prefix
from airflow_ft.sinks.kafka.sending import ProducerLostError
from airflow_ft.sinks.kafka.token import Token, check_owner, parse
from airflow_ft.sinks.kafka.transaction import Transaction

log = logging.getLogger(__name__)

T = TypeVar("T")
STABLE, LAST_COMMITTED = "read_committed", "read_uncommitted"
_BEGINNINGS = 6  # a producer that is fenced while epoch and attempt are still mine begins again, but not for ever
_REGULAR = 3  # transactions, after which another one is expected
_GLANCE_SECONDS = 1.0  # a commit that is alive is through within milliseconds


class Slot:
    """One transactional id and the group of the same name, whose offset is the token."""

    def __init__(self, clients: KafkaClients, pipeline: str, index: int) -> None:
        self._clients = clients
        self.index = index
        self.group = f"{id_prefix(pipeline, clients.conn_id)}{index}"
        self._readers: dict[str, Any] = {}
        self._transactions = 0
        self._demands: dict[str, Any] = {}  # of all transactions, on their producers
        self._written: Token | None = None  # by the last transaction; None: it is not known what came of it

    def connect(self, limits: Mapping[str, Any] | None = None) -> None:
        """Start connecting for `with_producer`, and return at once.

        With `limits`, which may change later, also creates its producer. Initialises nothing, so it disturbs no other
        producer.
        """
        for isolation in (LAST_COMMITTED, STABLE):
            self._reader(isolation)
        if limits is not None:
            self._clients.make_ready(self.group, limits)

    def read_token(self, fence: Fence | None = None, patience: float | None = None) -> Token | None:
        """Return the last committed token, after any pending one; None when there is none.

        With a fence, metadata that are not ours are a foreign owner's. `patience` is in seconds, by default the
        connection's time-out.

        Raises:
            SinkUnavailableError: no answer, or a transaction that writes the token is still open.
            SinkAccessError: the group may not be read.
            ForeignOwnerError: the group's offset was not written by this package.
        """
        return self._read(fence, patience, STABLE)

    def own_token(self, fence: Fence) -> Token | None:
        """Return the token, if the last transaction of this object wrote it in this epoch, and it is unchanged.

        Then no older process needs fencing: the first token of this epoch fenced those before it, and no other process
        of this epoch has written since.
        """
        mine = self._written
        if mine is None or not self.has_written(fence):
            return None
        token = self.glance(fence)
        if token is None or (token.number, token.metadata()) != (mine.number, mine.metadata()):
            return None
        return token

    def has_written(self, fence: Fence) -> bool:
        """Return whether this object's last transaction wrote the token in this epoch; asks no server."""
        mine = self._written
        return mine is not None and (mine.installation, mine.epoch) == (fence.installation, fence.epoch)

    def last_committed(self, fence: Fence | None = None) -> Token | None:
        """Return the token without the writes of an open transaction; None: there was none.

        It may soon be outdated. Only two conclusions are safe: a newer head refuses this fence for good, and delivered
        numbers stay delivered.

        Raises:
            FencedError, ForeignOwnerError: as `check_owner`.
            SinkUnavailableError, SinkAccessError: as the brokers answer, or do not.
        """
        token = self._read(fence, None, LAST_COMMITTED)
        if token is not None and fence is not None:
            check_owner(token, fence, self._clients.conn_id, self.group)
        return token

    def await_number(self, number: int, fence: Fence) -> None:
        """Waits until the token has reached `number`: its transaction is committed, its marker is under way.

        A later transaction that is open does not delay it, as it would `read_token`.

        Raises:
            SinkUnavailableError: not within the connection's time-out.
            TokenLostError: not even the one before is there, which a transaction does not take away.
        """
        deadline, pause = time.monotonic() + self._clients.timeout, 0.002
        while (token := self.last_committed(fence)) is None or token.number < number:
            if token is None:
                raise TokenLostError(
                    f"transactional id {self.group!r} is committed, but its token is gone: the consumer group was"
                    " deleted at the same moment.",
                    remedy="Compare the topics with the checkpoint before anything else: the rows are in the topics.",
                    participant=self._clients.conn_id,
                    group=self.group,
                )
            if time.monotonic() > deadline:
                raise SinkUnavailableError(
                    f"transactional id {self.group!r} is committed, but its token does not show it yet.",
                    code="token_late",
                    remedy="Retry. If it happens again, check the broker that leads __consumer_offsets.",
                    participant=self._clients.conn_id,
                    group=self.group,
                )
            time.sleep(pause)
            pause = min(2 * pause, 0.25)

    def glance(self, fence: Fence) -> Token | None:
        """Return the token if it can be read at once; None if there is none, or a transaction that writes it is open.

        A killed process may have left that transaction. Only the next init ends it before its time-out, so waiting
        here would be useless.
        """
        try:
            return self.read_token(fence, min(_GLANCE_SECONDS, self._clients.timeout))
        except SinkUnavailableError:
            return None  # what is decided is decided by what is read after init

    def group_metadata(self) -> object:
        """Return what send_offsets_to_transaction wants to know of a consumer group (without members)."""
        return self._reader(STABLE).consumer_group_metadata()

    def with_producer(
        self,
        fence: Fence,
        work: Callable[[Transaction], T],
        limits: Mapping[str, Any],
        *,
        foreign: bool = False,
        hold: Mapping[str, Any] | None = None,
        yields: bool = False,
    ) -> T:
        """Run `work` with a newly initialised producer, and again with another one if that is lost.

        Before each initialisation the head is read, so that an older owner does not even disturb the newer one. `work`
        must read the token itself and judge by that. `foreign` tolerates another's token (adoption); `hold` is for
        transactions that are released (see `Transaction`). With `yields` it does not begin again once it is fenced.

        Raises:
            FencedError: a newer owner; or the id was taken away without one, repeatedly unless it `yields`.
            SinkAccessError: the transaction took longer than its time-out, so the brokers ended it.
            SinkUnavailableError, SinkAccessError: as the brokers answer, or do not.
        """
        lost: ProducerLostError | None = None
        too_long: tuple[float, float] | None = None
        for beginning in range(_BEGINNINGS):
            if beginning:
                time.sleep(random.uniform(0.02, 0.1) * 2**beginning)  # two owners must not stay in step
            if not foreign:
                self.last_committed(fence)
            transaction: Transaction | None = None
            try:
                self._written = None
                transaction = Transaction(self._clients, self, limits, hold)
                done = work(transaction)
                self._written = transaction.committed
                if hold is None:
                    self._expect_another(limits)
                return done
            except ProducerLostError as failure:
                lost = failure
                _forget_frames(failure)
                if transaction is not None and transaction.took >= transaction.timeout and not _is_silence(failure):
                    too_long = transaction.took, transaction.timeout
                    break
                log.warning("transactional id %s: %s; starting the transaction again", self.group, failure)
                if is_refusal(failure.error) or _is_silence(failure) or (yields and is_fenced(failure.error)):
                    break
            finally:
                if transaction is not None:
                    transaction.discard()
        assert lost is not None
        if too_long is not None:
            if not foreign:
                self.last_committed(fence)  # a successor of a suspended process has fenced it
            raise self._timed_out(*too_long) from lost
        if is_fenced(lost.error):
            raise FencedError(
                f"another process keeps taking the transactional id {self.group!r}.",
                remedy="End one of the two processes that deliver this pipeline under the same epoch.",
                pipeline=fence.pipeline,
                participant=self._clients.conn_id,
                group=self.group,
            ) from lost
        raise self._clients.error(lost.error, f"transactional id {self.group!r}: {lost.doing}") from lost

    def _timed_out(self, took: float, timeout: float) -> SinkAccessError:
        return SinkAccessError(
            f"the transaction of {self.group!r} took {took:.1f} s, but the brokers end one after {timeout:g} s"
            " (transaction.timeout.ms). None of its rows is visible.",
            code="transaction_timeout",
            remedy="Raise transaction.timeout.ms in the connection's extra (with strategy 'held':"
            " KafkaSink(transaction_timeout=...)), up to transaction.max.timeout.ms of the brokers (900000 by default)."
            " Or deliver fewer rows at a time: CheckpointConfig(max_delivery_rows=...).",
            participant=self._clients.conn_id,
            setting="transaction.timeout.ms",
            group=self.group,
        )

    def _expect_another(self, limits: Mapping[str, Any]) -> None:
        """Connect the next producer ahead where transactions follow each other."""
        self._transactions += 1
        self._demands.update(limits)
        if self._transactions >= _REGULAR:
            self._clients.make_ready(self.group, dict(self._demands))

    def close(self) -> None:
        """Closes the readers of the token."""
        for reader in self._readers.values():
            reader.close()
        self._readers.clear()

    def _read(self, fence: Fence | None, patience: float | None, isolation: str) -> Token | None:
        topic = self._clients.settings.token_topic
        doing = f"reading the token of group {self.group!r}"
        deadline = time.monotonic() + (self._clients.timeout if patience is None else patience)
        slice_seconds = 1.0  # growing: a refusal is found early, and a slow broker still gets its time
        while True:
            try:
                left = max(0.1, min(slice_seconds, deadline - time.monotonic()))
                position = self._reader(isolation).committed([TopicPartition(topic, 0)], left)[0]
                error = position.error
            except KafkaException as failure:
                error = failure.args[0]
            if error is None:
                break
            refusal = self._refusal(isolation)
            if refusal is not None or error.code() not in _SETTLING or time.monotonic() >= deadline:
                raise self._clients.error(refusal or error, doing)
            slice_seconds *= 2
            time.sleep(0.05)
        if position.offset == OFFSET_INVALID:
            return None
        try:
            return parse(position.offset, position.metadata)
        except ConfigurationError as newer:
            newer.located(participant=self._clients.conn_id, pipeline=fence.pipeline if fence is not None else "")
            raise
        except ValueError as error:
            raise ForeignOwnerError(
                f"airflow-ft did not write offset {position.offset} of group {self.group!r} on topic {topic!r}"
                f" ({error}).",
                remedy="Give the group back to its owner, or rename the pipeline. `airflow ft adopt` overwrites the"
                " offset.",
                participant=self._clients.conn_id,
                pipeline=fence.pipeline if fence is not None else "",
                group=self.group,
                topic=topic,
            ) from error

    def _refusal(self, isolation: str) -> KafkaError | None:
        """Why the coordinator refuses the group, if it does.

        Librdkafka says so once, as an event of `poll`; `committed` itself only times out. The reader is closed with
        it, so that the next one asks again (measured with librdkafka 2.16.0).
        """
        event = self._reader(isolation).poll(0)
        error: KafkaError | None = event.error() if event is not None else None
        if error is None or not is_refusal(error):
            return None
        self.close()
        return error

    def _reader(self, isolation: str) -> Any:
        # Not the administration client, which reads group offsets too: it crashes the process when the group's
        # coordinator is not there yet (SIGSEGV in rd_kafka_handle_OffsetFetch, librdkafka 2.16.0).
        if isolation not in self._readers:
            self._readers[isolation] = self._clients.consumer(self.group, isolation)
        return self._readers[isolation]


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


def _is_silence(failure: ProducerLostError) -> bool:
    return failure.error.code() in _SILENCE


def _forget_frames(failure: BaseException | None) -> None:
    """Lets go of the lost producer: the frames of a kept exception would hold it, with its threads and buffers."""
    while failure is not None:
        traceback.clear_frames(failure.__traceback__)
        failure = failure.__cause__
