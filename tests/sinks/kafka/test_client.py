"""Clients that are made from a connection."""

from __future__ import annotations

import pytest

from airflow_ft.core.ports import ConnectionInfo
from airflow_ft.sinks.kafka.client import KafkaClients, KafkaSettings
from airflow_ft.sinks.kafka.transaction import ProducerLostError, Transaction
from tools.servers.processes import free_port


class _Slot:
    group = "airflow_ft.orders.kafka.0"

    def group_metadata(self) -> object:
        raise AssertionError("nothing is written")


def test_a_producer_is_made_while_no_broker_answers_and_initialising_says_so() -> None:
    extra = {"bootstrap.servers": f"127.0.0.1:{free_port()}", "airflow_ft_timeout": 0.5}
    clients = KafkaClients(KafkaSettings.from_connection(ConnectionInfo("kafka", "kafka", extra=extra)))
    clients.producer(_Slot.group, {})
    with pytest.raises(ProducerLostError, match="initialising the transactional id"):
        Transaction(clients, _Slot(), {})
