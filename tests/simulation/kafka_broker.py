"""A model of a Kafka cluster as far as a transactional producer, its group's offset and a reader can see it.

`ModelClients` stands in for `airflow_ft.clients.kafka.client.KafkaClients`, with producers and consumers in the shape
of confluent_kafka. What the model claims is compared with a real broker in `test_models_and_servers`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any, TypeVar

from confluent_kafka import OFFSET_INVALID, KafkaError, KafkaException, TopicPartition

from airflow_ft.clients.kafka.client import KafkaClients, KafkaSettings
from tests.simulation.kernel import Blocked, Kernel, Process
from tests.simulation.source import Item

T = TypeVar("T")


def failure(code: int) -> KafkaException:
    """As confluent_kafka raises it."""
    return KafkaException(KafkaError(code))


@dataclass
class Transactional:
    """What the coordinator knows of a transactional id, and of the group of the same name."""

    name: str
    producer_id: int
    epoch: int = -1
    ended: tuple[int, bool] | None = None  # the epoch whose transaction ended last, and whether it was committed
    owner: Process | None = None
    ongoing: bool = False
    pending: list[tuple[str, Item]] = field(default_factory=list)
    pending_offset: tuple[int, str] | None = None
    offset: tuple[int, str] | None = None


@dataclass(frozen=True)
class EndedTransaction:
    """What became visible by one transaction: records by topic, the token before and now (offset, metadata).

    `name` is the transactional id.
    """

    server: str
    name: str
    records: tuple[tuple[str, Item], ...]
    before: tuple[int, str] | None
    token: tuple[int, str] | None


@dataclass(frozen=True)
class Appended:
    """What became visible without a transaction: records by topic."""

    server: str
    records: tuple[tuple[str, Item], ...]


class KafkaCluster:
    """The brokers; `commits` are read (and emptied) by the laws."""

    def __init__(self, kernel: Kernel, name: str) -> None:
        self.kernel = kernel
        self.name = name
        self.ids: dict[str, Transactional] = {}
        self.visible: dict[str, list[Item]] = {}
        self.commits: list[EndedTransaction | Appended] = []
        self.notes: dict[str, tuple[int, str]] = {}  # offsets of groups that no transaction writes

    def known(self, name: str) -> Transactional:
        return self.ids.setdefault(name, Transactional(name, 1000 + len(self.ids)))

    def init(self, name: str) -> int:
        """InitProducerId: fences every other producer of the id, and aborts what it left open."""
        state = self.known(name)
        self._abort(state)
        state.epoch += 1
        state.ended = None
        state.owner = self.kernel.owner
        return state.epoch

    def _mine(self, name: str, epoch: int) -> Transactional:
        state = self.known(name)
        if state.epoch != epoch:
            raise failure(KafkaError._FENCED)
        return state

    def produce(self, name: str, epoch: int, records: list[tuple[str, Item]]) -> None:
        state = self._mine(name, epoch)
        state.ongoing = True
        state.pending += records

    def append(self, records: list[tuple[str, Item]]) -> None:
        """Of a producer without transactions: nothing fences it, and readers see its records at once."""
        self.commits.append(Appended(self.name, tuple(records)))
        for topic, item in records:
            self.visible.setdefault(topic, []).append(item)

    def offset(self, name: str, epoch: int, offset: int, metadata: str) -> None:
        """AddOffsetsToTxn and TxnOffsetCommit."""
        state = self._mine(name, epoch)
        state.ongoing = True
        state.pending_offset = (offset, metadata)

    def commit(self, name: str, epoch: int) -> None:
        """EndTxn(commit): the records and the offset of the transaction become visible together."""
        state = self._mine(name, epoch)
        if state.ongoing:
            self._commit(state)
            state.ended = None  # the coordinator answers a repetition of version 5 only

    def end(self, name: str, producer_id: int, epoch: int, *, commit: bool) -> int:
        """EndTxn version 5 by whoever knows the identity: the error code. It raises the epoch, which shuts out all."""
        state = self.ids.get(name)
        if state is None or state.producer_id != producer_id:
            return KafkaError.INVALID_PRODUCER_ID_MAPPING
        if state.ongoing and state.epoch == epoch:
            if commit:
                self._commit(state)
            else:
                self._abort(state)
            state.epoch += 1
            return KafkaError.NO_ERROR
        if not state.ongoing and state.ended is not None and state.ended[0] == epoch:
            return KafkaError.NO_ERROR if state.ended[1] is commit else KafkaError.INVALID_TXN_STATE
        return KafkaError.INVALID_TXN_STATE if state.epoch == epoch else KafkaError.PRODUCER_FENCED

    def _commit(self, state: Transactional) -> None:
        before = state.offset
        if state.pending_offset is not None:
            state.offset = state.pending_offset
        self.commits.append(EndedTransaction(self.name, state.name, tuple(state.pending), before, state.offset))
        for topic, item in state.pending:
            self.visible.setdefault(topic, []).append(item)
        self._abort(state)
        state.ended = (state.epoch, True)

    def abort(self, name: str, epoch: int) -> None:
        """EndTxn(abort)."""
        self._abort(self._mine(name, epoch))

    def _abort(self, state: Transactional) -> None:
        if state.ongoing:
            state.ended = (state.epoch, False)
        state.ongoing = False
        state.pending = []
        state.pending_offset = None

    def time_out(self) -> None:
        """The coordinator aborts what is open, and fences its producer."""
        for state in self.ids.values():
            if state.ongoing:
                self._abort(state)
                state.epoch += 1

    def forget_offsets(self) -> None:
        """offsets.retention.minutes have passed."""
        self.notes.clear()
        for state in self.ids.values():
            if not state.ongoing:
                state.offset = None

    def committed(self, name: str, stable: bool) -> tuple[int, str] | None:
        """The group's offset. `stable` (read_committed): none while a transaction that writes it is open."""
        state = self.known(name)
        if state.pending_offset is not None and stable:
            raise Blocked(state.owner, failure(KafkaError._TIMED_OUT))
        return state.offset


class ModelProducer:
    """See `confluent_kafka.Producer`. Records leave when `flush` is called. Without a name it has no transactions."""

    def __init__(
        self, cluster: KafkaCluster, name: str = "", on_statistics: Callable[[str], None] | None = None
    ) -> None:
        self._cluster = cluster
        self._name = name
        self._on_statistics = on_statistics  # the callback of librdkafka's statistics
        self._epoch = -2
        self._buffer: list[tuple[str, Item, Any]] = []

    def init_transactions(self, timeout: float) -> None:
        self._epoch = self._ask("InitProducerId", lambda: self._cluster.init(self._name))

    def begin_transaction(self) -> None:
        pass

    def produce(
        self, topic: str, value: Any, key: Any, partition: int = -1, on_delivery: Any = None, *_: Any, **__: Any
    ) -> None:
        self._buffer.append((topic, value, on_delivery))

    def poll(self, timeout: float) -> int:
        if self._on_statistics is not None:
            eos = {"producer_id": self._cluster.known(self._name).producer_id, "producer_epoch": self._epoch}
            self._on_statistics(json.dumps({"eos": eos}))
        return 0

    def flush(self, timeout: float) -> int:
        buffer, self._buffer = self._buffer, []
        if not buffer:
            return 0
        records = [(topic, item) for topic, item, _ in buffer]
        error: KafkaError | None = None
        try:
            self._ask(
                f"Produce {', '.join(str(item) for _, item in records)}",
                partial(self._cluster.produce, self._name, self._epoch, records)
                if self._name
                else partial(self._cluster.append, records),
            )
        except KafkaException as failed:
            error = failed.args[0]
        for offset, (_, _, on_delivery) in enumerate(buffer):
            place = offset
            on_delivery(error, SimpleNamespace(partition=lambda: 0, offset=lambda place=place: place))
        return 0

    def send_offsets_to_transaction(self, positions: list[TopicPartition], group: object, timeout: float) -> None:
        position = positions[0]
        self._ask(
            f"TxnOffsetCommit {position.offset}",
            lambda: self._cluster.offset(self._name, self._epoch, position.offset, str(position.metadata)),
        )

    def commit_transaction(self, timeout: float) -> None:
        self._ask("EndTxn(commit)", lambda: self._cluster.commit(self._name, self._epoch))

    def abort_transaction(self, timeout: float) -> None:
        self._ask("EndTxn(abort)", lambda: self._cluster.abort(self._name, self._epoch))

    def _ask(self, what: str, call: Callable[[], T]) -> T:
        return self._cluster.kernel.call(f"{self._cluster.name} {what}", call, _lost)


def _lost(sent: bool) -> Exception:
    return failure(KafkaError._TRANSPORT if sent else KafkaError._TIMED_OUT)


class ModelConsumer:
    """See `confluent_kafka.Consumer`: reads the group's offset, and nothing else."""

    def __init__(self, cluster: KafkaCluster, group: str, *, stable: bool) -> None:
        self._cluster = cluster
        self._group = group
        self._stable = stable

    def committed(self, places: list[TopicPartition], timeout: float) -> list[TopicPartition]:
        kernel = self._cluster.kernel
        try:
            found = kernel.call(
                f"{self._cluster.name} OffsetFetch",
                lambda: self._cluster.committed(self._group, self._stable),
                _lost,
                writes=False,
            )
        except KafkaException as error:
            if error.args[0].code() == KafkaError._TIMED_OUT:
                kernel.clock += timeout
            raise
        topic, partition = places[0].topic, places[0].partition
        if found is None:
            return [TopicPartition(topic, partition, OFFSET_INVALID)]
        return [TopicPartition(topic, partition, found[0], metadata=found[1])]

    def consumer_group_metadata(self) -> object:
        return None

    def poll(self, timeout: float) -> None:
        return None

    def close(self) -> None:
        pass


class ModelClients(KafkaClients):
    """Clients of the model; explains errors as the product does."""

    def __init__(self, cluster: KafkaCluster) -> None:
        super().__init__(KafkaSettings(conn_id=cluster.name, common={}, producer={}))
        self._cluster = cluster

    def producer(
        self, transactional_id: str, limits: Mapping[str, Any], strategy: Mapping[str, Any] | None = None
    ) -> Any:
        return ModelProducer(self._cluster, transactional_id, (strategy or {}).get("stats_cb"))

    def plain_producer(self, limits: Mapping[str, Any]) -> Any:
        return ModelProducer(self._cluster)

    def make_ready(self, transactional_id: str, limits: Mapping[str, Any]) -> None:
        pass  # a producer that is not initialised is nothing to the brokers

    def consumer(self, group: str, isolation: str = "read_committed") -> Any:
        return ModelConsumer(self._cluster, group, stable=isolation == "read_committed")

    def admin(self) -> Any:
        raise NotImplementedError("the model has no administration")
