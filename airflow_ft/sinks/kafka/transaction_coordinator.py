"""Requests to coordinators themselves: describe a transaction, end it from another process, keep a note of it.

librdkafka ends only transactions of its own producer, so these requests use kafka-python. `EndTxn` carries the
transaction's identity, (producer id, epoch), and needs version 5 (KIP-890). That version raises the epoch, which shuts
out a producer that still lives. With older versions a late record could enter the committed transaction.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeVar

import kafka.errors
from confluent_kafka import KafkaError
from kafka.admin import KafkaAdminClient
from kafka.protocol.api_key import ApiKey
from kafka.protocol.metadata import CoordinatorType
from kafka.protocol.producer.transaction import EndTxnRequest
from kafka.structs import OffsetAndMetadata, TopicPartition

from airflow_ft.clients.kafka.client import KafkaClients
from airflow_ft.protocol.errors import SinkAccessError
from airflow_ft.sinks.kafka.kafka_python import client_settings
from airflow_ft.sinks.kafka.transaction import ProducerIdentity

T = TypeVar("T")
_END_TXN_VERSION = 5
_TRANSACTION_VERSION = 2
_TWO_PHASE_INIT_VERSION = 6  # of InitProducerId: the first that knows Enable2Pc (KIP-939)

# Markers are being written, or the coordinator is loading or moving: the same request again will be answered.
_AGAIN = frozenset(
    {
        KafkaError.CONCURRENT_TRANSACTIONS,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.NOT_COORDINATOR,
        KafkaError.REQUEST_TIMED_OUT,
    }
)
# This identity holds no transaction (now). It may have been committed: only the token proves that (I6).
_GONE = frozenset(
    {
        KafkaError.INVALID_TXN_STATE,
        KafkaError.INVALID_PRODUCER_EPOCH,
        KafkaError.INVALID_PRODUCER_ID_MAPPING,
        KafkaError.PRODUCER_FENCED,
        KafkaError.UNKNOWN_PRODUCER_ID,
        kafka.errors.TransactionalIdNotFoundError.errno,
    }
)


class Ending(Enum):
    """Answer of the coordinator to a request to end a transaction."""

    DONE = "done"  # it ends as asked; its markers may still be under way
    GONE = "gone"  # not to be had under this identity: committed before, aborted, timed out or fenced


@dataclass(frozen=True, slots=True)
class Description:
    """A transactional id as its coordinator sees it; `partitions` are those that the open transaction has written."""

    state: str
    producer: ProducerIdentity
    partitions: frozenset[tuple[str, int]]

    @property
    def is_open(self) -> bool:
        """Return whether its transaction is neither ended nor about to end."""
        return self.state == "Ongoing"


class TransactionCoordinator:
    """Requests about transactional ids of one cluster. Thread-safe; connects at the first request.

    Every method may raise SinkAccessError and SinkUnavailableError.
    """

    def __init__(self, clients: KafkaClients) -> None:
        self._clients = clients
        self._client: KafkaAdminClient | None = None
        self._lock = threading.Lock()

    def require(self, *, two_phase_commit: bool = False) -> None:
        """SinkAccessError, saying why, when the brokers cannot have a transaction ended by another process."""

        def ask(client: KafkaAdminClient) -> tuple[int, int, int]:
            versions = client.api_versions()
            level = client.describe_features().get("transaction.version", {}).get("finalized", (0, 0))[1]
            return versions.get(ApiKey.EndTxn, (0, 0))[1], level, versions.get(ApiKey.InitProducerId, (0, 0))[1]

        end_txn, level, init = self._ask("asking the brokers for their versions", ask)
        if end_txn < _END_TXN_VERSION or level < _TRANSACTION_VERSION:
            raise SinkAccessError(
                f"strategy 'held' needs EndTxn version {_END_TXN_VERSION} and transaction.version"
                f" {_TRANSACTION_VERSION}; the brokers have EndTxn version {end_txn} and transaction.version {level}."
                " Without these, a delayed producer could add records to a committed transaction.",
                code="server_version",
                remedy="Upgrade to Kafka 4.0 and run `kafka-features.sh --bootstrap-server <broker:9092> upgrade"
                f' --feature transaction.version={_TRANSACTION_VERSION}`, or use strategy="transaction".',
                participant=self._clients.conn_id,
                feature="transaction.version",
                version=level,
            )
        if two_phase_commit and init < _TWO_PHASE_INIT_VERSION:
            raise SinkAccessError(
                f"two_phase_commit needs InitProducerId version {_TWO_PHASE_INIT_VERSION} (KIP-939), but the brokers"
                f" have version {init}.",
                code="server_version",
                remedy="Remove two_phase_commit. Brokers then hold the transaction for transaction_timeout.",
                participant=self._clients.conn_id,
                feature="two_phase_commit",
                version=init,
            )

    def describe(self, transactional_id: str) -> Description | None:
        """Return what the coordinator knows of the id; None: nothing."""

        def ask(client: KafkaAdminClient) -> Description | None:
            try:
                found = client.describe_transactions([transactional_id])[transactional_id]
            except kafka.errors.TransactionalIdNotFoundError:
                return None
            return Description(
                str(found.state.value),
                ProducerIdentity(found.producer_id, found.producer_epoch),
                frozenset((place.topic, place.partition) for place in found.topic_partitions),
            )

        return self._ask(f"describing transactional id {transactional_id!r}", ask)

    def end(self, transactional_id: str, producer: ProducerIdentity, *, commit: bool) -> Ending:
        """Commit or abort the transaction of exactly this producer. Repeatable after a lost answer.

        Use only stored identities. A *described* identity may be that of an ended transaction, and aborting by it
        turns the coordinator's record of a commit into that of an abort (measured with 4.3.1).
        """

        def ask(client: KafkaAdminClient) -> Ending:
            try:
                code = client._manager.run(_send_end, client, transactional_id, producer, commit)
            except kafka.errors.IncompatibleBrokerVersion:  # a downgrade: no process can end it safely any more
                return Ending.GONE
            if code in _GONE:
                return Ending.GONE
            if code != KafkaError.NO_ERROR:
                raise kafka.errors.for_code(code)()
            return Ending.DONE

        return self._ask(f"{'committing' if commit else 'aborting'} transactional id {transactional_id!r}", ask)

    def leave_note(self, group: str, number: int, text: str) -> None:
        """Commit an offset of a group that has no members, outside of every transaction; `text` is its metadata."""
        place = TopicPartition(self._clients.settings.token_topic, 0)

        def ask(client: KafkaAdminClient) -> None:
            answer = client.alter_group_offsets(group, {place: OffsetAndMetadata(number, text, -1)})[place]
            if answer is not kafka.errors.NoError:
                raise answer()

        self._ask(f"writing the note of group {group!r}", ask)

    def note(self, group: str) -> str:
        """Return the newest text of `leave_note`; "": there is none."""
        place = TopicPartition(self._clients.settings.token_topic, 0)

        def ask(client: KafkaAdminClient) -> str:
            found = client.list_group_offsets({group: [place]})[group].get(place)
            return str(found.metadata or "") if found is not None and found.offset >= 0 else ""

        return self._ask(f"reading the note of group {group!r}", ask)

    def close(self) -> None:
        """Closes the connections."""
        with self._lock:
            self._drop()

    def _ask(self, doing: str, ask: Callable[[KafkaAdminClient], T]) -> T:
        """Asks until there is an answer, each time after a failure with new connections and a newly found broker."""
        deadline, pause = time.monotonic() + self._clients.timeout, 0.01
        with self._lock:
            while True:
                try:
                    return ask(self._connected(deadline))
                except (kafka.errors.KafkaError, OSError) as failure:
                    code = failure.errno if isinstance(failure, kafka.errors.BrokerResponseError) else None
                    if code != KafkaError.CONCURRENT_TRANSACTIONS:
                        self._drop()
                    error = KafkaError(KafkaError._TRANSPORT if code is None else code)
                    if (code is not None and code not in _AGAIN) or time.monotonic() + pause >= deadline:
                        # The text of a failure may repeat settings: code and kind say enough.
                        raise self._clients.error(error, f"{doing} ({type(failure).__name__})") from None
                time.sleep(pause)
                pause = min(2 * pause, 0.2)

    def _connected(self, deadline: float) -> KafkaAdminClient:
        if self._client is None:
            left = max(100, int((deadline - time.monotonic()) * 1000))
            self._client = KafkaAdminClient(
                **client_settings(self._clients.settings),
                bootstrap_timeout_ms=left,
                request_timeout_ms=int(self._clients.timeout * 1000),
                reconnect_backoff_ms=10,
                reconnect_backoff_max_ms=500,
            )
        return self._client

    def _drop(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None


async def _send_end(client: Any, transactional_id: str, producer: ProducerIdentity, commit: bool) -> int:
    # kafka-python has no public call for EndTxn, and setup.cfg keeps to the versions of it that have these two.
    broker = await client._find_coordinator_id(transactional_id, CoordinatorType.TRANSACTION)
    request = EndTxnRequest(
        transactional_id=transactional_id,
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        committed=commit,
        min_version=_END_TXN_VERSION,
    )
    return int((await client._manager.send(request, node_id=broker)).error_code)
