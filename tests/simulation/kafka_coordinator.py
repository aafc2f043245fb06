"""The model's transaction coordinator, in the shape of the kafka-python client that `transaction_coordinator` asks."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import kafka.errors
from kafka.protocol.api_key import ApiKey

from tests.simulation.kafka_broker import KafkaCluster


class ModelAdmin:
    """See `kafka.admin.KafkaAdminClient`. Brokers with EndTxn version 5 and transaction.version 2."""

    def __init__(self, cluster: KafkaCluster) -> None:
        self._cluster = cluster
        self._manager = SimpleNamespace(run=self._run)

    def api_versions(self) -> dict[Any, tuple[int, int]]:
        return {ApiKey.EndTxn: (0, 5), ApiKey.InitProducerId: (0, 5)}

    def describe_features(self) -> dict[str, Any]:
        return {"transaction.version": {"finalized": (0, 2)}}

    def describe_transactions(self, names: Sequence[str]) -> dict[str, Any]:
        name = names[0]

        def call() -> Any:
            state = self._cluster.ids.get(name)
            if state is None:
                raise kafka.errors.TransactionalIdNotFoundError
            value = "Empty" if state.ended is None else "CompleteCommit" if state.ended[1] else "CompleteAbort"
            return SimpleNamespace(
                state=SimpleNamespace(value="Ongoing" if state.ongoing else value),
                producer_id=state.producer_id,
                producer_epoch=state.epoch,
                topic_partitions=[SimpleNamespace(topic=topic, partition=0) for topic, _ in state.pending],
            )

        return {name: self._ask("DescribeTransactions", call, writes=False)}

    def alter_group_offsets(self, group: str, offsets: dict[Any, Any]) -> dict[Any, Any]:
        (place, found), *_ = offsets.items()
        write = partial(self._cluster.notes.update, {group: (found.offset, found.metadata)})
        self._ask(f"OffsetCommit {found.offset}", write)
        return {place: kafka.errors.NoError}

    def list_group_offsets(self, groups: dict[str, Any]) -> dict[str, Any]:
        (group, (place, *_)), *_ = groups.items()
        offset, text = self._ask(
            "OffsetFetch of the note", lambda: self._cluster.notes.get(group, (-1, "")), writes=False
        )
        return {group: {place: SimpleNamespace(offset=offset, metadata=text)}}

    def _run(self, send: Any, client: Any, name: str, producer: Any, commit: bool) -> int:
        """`transaction_coordinator._send_end`: the code that the coordinator answers."""
        identity = (producer.producer_id, producer.epoch)
        what = f"EndTxn({'commit' if commit else 'abort'}, producer {identity[0]}, epoch {identity[1]})"
        return int(self._ask(what, lambda: self._cluster.end(name, *identity, commit=commit)))

    def _ask(self, what: str, call: Any, *, writes: bool = True) -> Any:
        return self._cluster.kernel.call(f"{self._cluster.name} {what}", call, _lost, writes=writes)

    def close(self) -> None:
        pass


def _lost(sent: bool) -> Exception:
    error: Exception = kafka.errors.KafkaConnectionError("no answer")
    return error if sent else OSError("no connection")
