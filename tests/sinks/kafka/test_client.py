"""Clients that are made from a connection."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import certifi
import pytest
from confluent_kafka import KafkaError, KafkaException

from airflow_ft.clients.kafka import topics
from airflow_ft.clients.kafka.client import KafkaClients, KafkaSettings
from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.errors import SinkAccessError
from airflow_ft.sinks.kafka.sending import ProducerLostError
from airflow_ft.sinks.kafka.transaction import Transaction
from airflow_ft.sources.kafka_options import kafka_options
from tests.raising import raises
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


def test_a_topic_without_some_settings_has_kafkas_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    """Redpanda has no min.insync.replicas."""
    admin = SimpleNamespace(describe_configs=lambda resources, **_: dict.fromkeys(resources))
    clients: Any = SimpleNamespace(timeout=5.0, conn_id="kafka", admin=lambda: admin)
    limits = topics.TopicLimits("orders", 3, 3, 3, 0, True)
    entry = SimpleNamespace(value="2000")
    for settings, largest in (({}, limits.max_message_bytes), ({"max.message.bytes": entry}, 2000)):
        monkeypatch.setattr(topics, "answer", lambda *_, found=settings: found)
        found = topics._with_settings(clients, [limits])["orders"]
        assert (found.max_message_bytes, found.min_in_sync, found.compacted) == (largest, 1, False)
        assert not found.log_append_time


def test_brokers_without_a_longest_transaction_have_no_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [SimpleNamespace(id_string="0")]
    admin = SimpleNamespace(
        describe_cluster=lambda **_: SimpleNamespace(nodes=nodes),
        describe_configs=lambda resources, **_: {each: {} for each in resources},
    )
    clients: Any = SimpleNamespace(timeout=5.0, conn_id="kafka", admin=lambda: admin)
    monkeypatch.setattr(topics, "answer", lambda _, found: found)
    assert topics.longest_transaction(clients) is None


_LOGIN = {"sasl.username": "ada", "sasl.password": "planted-Secret"}
_JAAS = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.jaas.config": "Login required;"}
_JKS = {"security.protocol": "SSL", "ssl.truststore.location": "/t.jks", "ssl.truststore.password": "planted-Secret"}
_OAUTH = {"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER", "sasl.jaas.config": "Login required;"}
_PEM = {"security.protocol": "SSL", "ssl.keystore.certificate.chain": "C"}
_HANDLER = {"security.protocol": "SASL_PLAINTEXT", "sasl.login.callback.handler.class": "a.Handler"}
_STORE = {"security.protocol": "SSL", "ssl.keystore.location": "/k.jks", "ssl.keystore.password": "planted-Secret"}


def _connection(extra: dict[str, str]) -> ConnectionInfo:
    return ConnectionInfo("kafka", "kafka", extra={"bootstrap.servers": "127.0.0.1:1", **extra})


@pytest.mark.parametrize("extra", [{**_JAAS, **_LOGIN}, {**_JKS, "ssl.ca.pem": ""}], ids=["login", "trust"])
def test_settings_of_java_are_left_to_spark(extra: dict[str, str]) -> None:
    if "ssl.ca.pem" in extra:
        extra["ssl.ca.pem"] = Path(certifi.where()).read_text()
    connection = _connection(extra)
    assert kafka_options(connection)
    KafkaClients(KafkaSettings.from_connection(connection)).admin()


@pytest.mark.parametrize(
    ("extra", "setting"),
    [
        (_JAAS, "sasl.jaas.config"),
        (_OAUTH, "sasl.jaas.config"),
        (_JKS, "ssl.truststore.location"),
        (_STORE, "ssl.keystore.location"),
        ({**_STORE, "ssl.keystore.location": "/k.JKS"}, "ssl.keystore.location"),
        ({**_PEM, "ssl.keystore.key": "K", "ssl.ca.location": "/ca.pem"}, "ssl.keystore.certificate.chain"),
        ({**_HANDLER, "sasl.mechanism": "OAUTHBEARER"}, "sasl.login.callback.handler.class"),
    ],
)
def test_settings_of_java_alone_are_named(extra: dict[str, str], setting: str) -> None:
    with raises(SinkAccessError, "connection_invalid", participant="kafka", setting=setting):
        KafkaSettings.from_connection(_connection(extra))


def test_a_store_of_java_is_not_mixed_with_pem_files() -> None:
    stores = {**_JKS, **_STORE}
    pem = {"ssl.ca.location": "/ca.pem", "ssl.certificate.location": "/c.pem", "ssl.key.location": "/key.pem"}
    assert kafka_options(_connection({**stores, **pem})) == kafka_options(_connection(stores))
    common = KafkaSettings.from_connection(_connection({**stores, **pem})).common
    assert {name for name in common if name.startswith("ssl.")} == set(pem)
