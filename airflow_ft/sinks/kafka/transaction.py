"""A transaction of one transactional id: rows and token, committed by this process or left open for another one.

A producer that failed in any way is thrown away; what it did is in the token, for the next one to read.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from airflow_ft.clients.kafka.client import KafkaClients, bounded
from airflow_ft.sinks.kafka.sending import ProducerLostError, Sender
from airflow_ft.sinks.kafka.token import Token

_NO_TIMEOUT = "transaction.two.phase.commit.enable"
_GRACE_SECONDS = 1.0
_ABORT_SECONDS = 5.0  # politeness to readers only: the next init aborts what stays open (I5)


@dataclass(frozen=True, slots=True)
class ProducerIdentity:
    """Identity of a transaction at its coordinator: each initialisation of the transactional id creates a new one."""

    producer_id: int
    epoch: int


@dataclass
class _Statistics:
    """Librdkafka's statistics, the only place with a producer's identity; kept as text, parsed on demand."""

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


class OwnedGroup(Protocol):
    """The transactional id, and the group of the same name whose offset is the token (`slot.Slot`)."""

    group: str

    def group_metadata(self) -> object: ...


class Transaction(Sender):
    """A producer after `init_transactions`.

    `send` rows, then `commit` with the token. Or `write` the token and `release`, which leaves the transaction open.
    Or leave it, which aborts. `hold` are producer settings of a transaction that will be released.
    """

    def __init__(
        self, clients: KafkaClients, slot: OwnedGroup, limits: Mapping[str, Any], hold: Mapping[str, Any] | None = None
    ) -> None:
        self._slot = slot
        self.committed: Token | None = None
        """The token, once the brokers have said that it is committed."""
        self._statistics = _Statistics()
        forced = {"statistics.interval.ms": 100, "stats_cb": self._statistics, **hold} if hold is not None else {}
        super().__init__(clients, clients.producer(slot.group, limits, forced))
        self._open = False
        self._began = math.inf
        wanted = {"transaction.timeout.ms": clients.settings.transaction_timeout, **limits, **(hold or {})}
        self.timeout = math.inf if _NO_TIMEOUT in wanted else int(wanted["transaction.timeout.ms"]) / 1000
        """Seconds after which the brokers end the transaction, by `transaction.timeout.ms`."""
        try:
            self._until_done("initialising the transactional id", self._producer.init_transactions)
        except ProducerLostError:
            self.discard()
            raise

    def begin(self) -> None:
        """Begins the transaction; local to this process."""
        with self._failures("beginning a transaction"):
            self._producer.begin_transaction()
            self._open, self._began = True, time.monotonic()

    @property
    def took(self) -> float:
        """Seconds since it was begun; 0: it was not."""
        return max(0.0, time.monotonic() - self._began)

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
        """Write the token and commit: rows and token become visible together, or neither.

        Raises:
            ProducerLostError: the result is unknown; the token shows it to the next producer.
        """
        self.write(token)
        self._until_done("committing the transaction", self._producer.commit_transaction)
        self._open = False
        self.committed = token

    def identity(self) -> ProducerIdentity:
        """Return the identity of this producer, which ends its transaction from outside (with `hold` only)."""
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
        super().discard()

    def _abortable(self) -> KafkaError | None:
        """Return the error that makes the open transaction abortable only; None while nothing in it has failed.

        Librdkafka shows its state only by the errors of calls that need another state.
        """
        if self._open:
            try:
                self._producer.begin_transaction()
            except KafkaException as failure:
                error: KafkaError = failure.args[0]
                self._is_fatal = self._is_fatal or error.fatal()
                return None if error.code() == KafkaError._STATE else error
        return None
