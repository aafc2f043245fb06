"""Clients that are made from a connection."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from airflow_ft.clients.kafka import topics
from airflow_ft.clients.kafka.client import KafkaClients, KafkaSettings
from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.sinks.kafka.sending import ProducerLostError
from airflow_ft.sinks.kafka.transaction import Transaction
from tools.servers.processes import free_port


class _Slot:
    group = "airflow_ft.orders.kafka.0"

    def group_metadata(self) -> object:
        raise AssertionError("nothing is written")


def test_an_absent_broker_fails_the_producers_initialisation() -> None:
    extra = {"bootstrap.servers": f"127.0.0.1:{free_port()}", "airflow_ft_timeout": 0.5}
    clients = KafkaClients(KafkaSettings.from_connection(ConnectionInfo("kafka", "kafka", extra=extra)))
    clients.producer(_Slot.group, {})
    with pytest.raises(ProducerLostError) as lost:
        Transaction(clients, _Slot(), {})
    assert lost.value.doing == "initialising the transactional id"


class _Brokers:
    """A producer's brokers: -1 is the connection of the first answer, others are there to stay."""

    def __init__(self, *answers: int) -> None:
        self.answers = list(answers)

    def list_topics(self, topic: str, timeout: float) -> Any:
        return SimpleNamespace(orig_broker_id=self.answers.pop(0))


@pytest.mark.parametrize(("answers", "left"), [((1, 7), 1), ((-1, 1, 7), 1), ((-1, -1, -1, 7), 1)])
def test_a_new_producer_waits_briefly_for_a_lasting_connection(answers: tuple[int, ...], left: int) -> None:
    extra = {"bootstrap.servers": "127.0.0.1:1"}
    clients = KafkaClients(KafkaSettings.from_connection(ConnectionInfo("kafka", "kafka", extra=extra)))
    brokers: Any = _Brokers(*answers)
    clients._connect(brokers)
    assert len(brokers.answers) == left


def test_a_token_topic_that_another_process_created_is_awaited(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The controller knows of it; brokers that do not yet would refuse the first token."""
    admin = SimpleNamespace(create_topics=lambda *_, **__: {"tokens": None})
    clients: Any = SimpleNamespace(
        settings=SimpleNamespace(token_topic="tokens"), timeout=5.0, conn_id="kafka", admin=lambda: admin
    )
    seen = [None, SimpleNamespace(leaderless=True), SimpleNamespace(leaderless=False)]

    def answer(*_: object) -> None:
        raise KafkaException(KafkaError(KafkaError.TOPIC_ALREADY_EXISTS))

    monkeypatch.setattr(topics, "answer", answer)
    monkeypatch.setattr(topics, "describe", lambda _, names: {names[0]: seen.pop(0)})
    topics.create_token_topic(clients)
    assert seen == []
