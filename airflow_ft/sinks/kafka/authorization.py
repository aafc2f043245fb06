"""Check whether a Kafka user may write its transactional ids and groups, by requests that change nothing.

A broker checks its access lists before anything else in a request. So the error of a request without effect shows
whether the user may write a transactional id, or read a group. Such requests end a transaction of a missing producer,
or send the heartbeat of an unknown member. They may use the ids of a running pipeline.
"""

from __future__ import annotations

from typing import Any

import kafka.errors
from confluent_kafka import KafkaError
from kafka.admin import KafkaAdminClient
from kafka.protocol.consumer import HeartbeatRequest
from kafka.protocol.metadata import CoordinatorType
from kafka.protocol.producer.transaction import EndTxnRequest

from airflow_ft.sinks.kafka.transaction_coordinator import TransactionCoordinator

_UNUSED_PRODUCER_ID = 2**62  # brokers give out producer ids from 0 upwards, a thousand at a time

# What a broker says to a request that it has let in.
_NO_SUCH_TRANSACTION = frozenset(
    {
        KafkaError.INVALID_PRODUCER_ID_MAPPING,
        KafkaError.INVALID_PRODUCER_EPOCH,
        KafkaError.PRODUCER_FENCED,
        KafkaError.INVALID_TXN_STATE,
        kafka.errors.TransactionalIdNotFoundError.errno,
    }
)
_NO_SUCH_MEMBER = frozenset(
    {
        KafkaError.NO_ERROR,  # said blindly while the coordinator loads its groups
        KafkaError.UNKNOWN_MEMBER_ID,
        KafkaError.ILLEGAL_GENERATION,
        kafka.errors.GroupIdNotFoundError.errno,
    }
)


class Permissions(TransactionCoordinator):
    """Asks the brokers what this user may do. See `TransactionCoordinator` for threads, connections and errors."""

    def may_write(self, transactional_id: str) -> bool:
        """Return whether transactions of this id may be begun and ended."""

        def ask(client: KafkaAdminClient) -> bool:
            try:
                code = client._manager.run(_end_nothing, client, transactional_id)
            except kafka.errors.TransactionalIdAuthorizationFailedError:  # not even to be described
                return False
            return _is_allowed(code, KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, _NO_SUCH_TRANSACTION)

        return self._ask(f"asking whether transactional id {transactional_id!r} may be written", ask)

    def may_read(self, group: str) -> bool:
        """Return whether offsets of this group may be committed and read."""

        def ask(client: KafkaAdminClient) -> bool:
            try:
                code = client._manager.run(_heartbeat_as_stranger, client, group)
            except kafka.errors.GroupAuthorizationFailedError:
                return False
            return _is_allowed(code, KafkaError.GROUP_AUTHORIZATION_FAILED, _NO_SUCH_MEMBER)

        return self._ask(f"asking whether group {group!r} may be read", ask)


def _is_allowed(code: int, refused: int, let_in: frozenset[int]) -> bool:
    if code == refused:
        return False
    if code not in let_in:
        raise kafka.errors.for_code(code)()
    return True


async def _end_nothing(client: Any, transactional_id: str) -> int:
    broker = await client._find_coordinator_id(transactional_id, CoordinatorType.TRANSACTION)
    request = EndTxnRequest(
        transactional_id=transactional_id, producer_id=_UNUSED_PRODUCER_ID, producer_epoch=0, committed=False
    )
    return int((await client._manager.send(request, node_id=broker)).error_code)


async def _heartbeat_as_stranger(client: Any, group: str) -> int:
    broker = await client._find_coordinator_id(group, CoordinatorType.GROUP)
    request = HeartbeatRequest(group_id=group, generation_id=0, member_id="nobody")
    return int((await client._manager.send(request, node_id=broker)).error_code)
