"""Whether records can be sent in batches, made sure of before anything is sent by them. No broker is needed."""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import KafkaError, KafkaException, Producer

from airflow_ft.clients.kafka.client import KafkaSettings
from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.sinks.kafka import batches
from airflow_ft.sinks.kafka.batches import BatchSender, open_batches
from tools.servers.processes import free_port


@pytest.fixture(autouse=True)
def _restored_client() -> Iterator[None]:
    """What is known of the library, and has been said, belongs to the process."""
    for known in (batches._library, batches._say_once):
        known.cache_clear()
    yield
    for known in (batches._library, batches._say_once):
        known.cache_clear()


def _open(extra: Mapping[str, str], own: Mapping[str, str] | None = None) -> BatchSender | None:
    servers = f"127.0.0.1:{free_port()}"
    settings = KafkaSettings.from_connection(
        ConnectionInfo("broker", "kafka", extra={"bootstrap.servers": servers, **extra})
    )
    producer = Producer({"bootstrap.servers": servers, "log_level": 0, **(extra if own is None else own)})
    return open_batches(producer, settings, 1.0)


@pytest.mark.parametrize("extra", [{}, {"client.id": "orders#1"}])
def test_a_producer_of_ours_takes_batches(extra: dict[str, str]) -> None:
    assert _open(extra) is not None


def test_a_handle_of_another_client_is_skipped_with_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(3):
        assert _open({}, {"client.id": "somebody"}) is None
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "one by one" in caplog.text


def test_another_partitioner_chooses_itself() -> None:
    assert _open({"partitioner": "consistent_random"}) is None


def test_another_version_of_the_library_is_not_called(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(confluent_kafka, "libversion", lambda: ("2.0.0", 0x020000FF))
    assert _open({}) is None


def test_a_library_without_the_call_is_not_called(monkeypatch: pytest.MonkeyPatch) -> None:
    class Without:
        def __getattr__(self, name: str) -> Any:
            raise AttributeError(name)

    monkeypatch.setattr(ctypes, "CDLL", lambda _: Without())
    assert _open({}) is None


def test_a_subclass_may_have_another_layout() -> None:
    class Other(Producer):
        pass

    servers = f"127.0.0.1:{free_port()}"
    settings = KafkaSettings.from_connection(ConnectionInfo("broker", "kafka", extra={"bootstrap.servers": servers}))
    assert open_batches(Other({"bootstrap.servers": servers, "log_level": 0}), settings, 1.0) is None


class _Metadata:
    """A producer whose brokers know a topic only when they are asked again."""

    def __init__(self, answers: list[KafkaError | None]) -> None:
        self.answers = answers

    def list_topics(self, name: str, timeout: float) -> Any:
        error = self.answers.pop(0)
        partitions = {} if error is not None else {0: None, 1: None}
        return SimpleNamespace(topics={name: SimpleNamespace(error=error, partitions=partitions)})


def test_a_broker_that_does_not_know_the_topic_is_asked_again() -> None:
    unknown = KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)
    producer: Any = _Metadata([unknown, unknown, None])
    assert len(BatchSender(producer, 0, 30.0)._describe("orders").partitions) == 2


def test_a_topic_that_nobody_knows_ends_the_transaction() -> None:
    unknown = KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)
    producer: Any = _Metadata([unknown] * 2)
    with pytest.raises(KafkaException) as caught:
        BatchSender(producer, 0, 0.01)._describe("orders")
    assert caught.value.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART
