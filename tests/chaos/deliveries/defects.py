"""Defects for the package under test, to show that chaos finds what it is there to find. For one process's life."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing

from airflow_ft.protocol.model import Fence, Plan
from airflow_ft.sinks.kafka.cluster import KafkaParticipant
from airflow_ft.sinks.kafka.slot import Slot
from airflow_ft.sinks.kafka.token import Token
from airflow_ft.sinks.kafka.transaction import Transaction
from airflow_ft.sinks.redis import participant as redis


def _send_without_asking_the_token() -> None:
    def deliver(sink: KafkaParticipant, slot: Slot, plan: Plan, fence: Fence, *_: object) -> Token:
        def work(transaction: Transaction) -> Token:
            token = slot.read_token(fence)
            assert token is not None
            with closing(sink._content.read(plan, slot.index)) as reading:
                after = sink._send(slot, plan, fence, token, reading, transaction)
            transaction.commit(after)
            return after

        return slot.with_producer(fence, work, sink._limits())

    setattr(KafkaParticipant, "_deliver", deliver)  # noqa: B010


def _send_rows_of_anyone() -> None:
    fence = "if memory[1] ~= ARGV[1] or memory[2] ~= ARGV[2] then"
    assert fence in redis.SEND
    setattr(redis, "SEND", redis.SEND.replace(fence, "if false then"))  # noqa: B010


DEFECTS: Mapping[str, Callable[[], None]] = {
    "the token is not asked": _send_without_asking_the_token,
    "rows have no fence": _send_rows_of_anyone,
}
