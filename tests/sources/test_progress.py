"""Reports of confirmed positions to the consumer groups of Kafka sources, without a broker."""

from __future__ import annotations

import gc
import weakref

import pytest

from airflow_ft.clients.kafka.client import KafkaClients, KafkaSettings
from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.errors import SinkAccessError, SinkUnavailableError
from airflow_ft.sources import KafkaSource
from airflow_ft.sources.progress import GroupOffsets
from tests.protocol.test_planning import staged
from tests.raising import raises
from tools.servers.processes import free_port


def test_each_source_is_reported_though_the_first_fails() -> None:
    asked = []

    def connections(conn_id: str) -> ConnectionInfo:
        asked.append(conn_id)
        return ConnectionInfo(conn_id, "kafka")

    sources = {name: KafkaSource(topics=[name], group_id="g", conn_id=name) for name in ("a", "b")}
    positions = {name: {"start": None, "end": {name: {"0": 1}}} for name in sources}
    with raises(SinkAccessError, "connection_invalid", participant="a", setting="bootstrap.servers"):
        GroupOffsets(sources, connections)(staged(1, positions=positions))
    assert asked == ["a", "b"]


def test_a_cluster_that_is_away_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def commit(self: GroupOffsets, source: KafkaSource, *_: object) -> None:
        asked.append(source.conn_id)
        if source.conn_id == "away":
            raise SinkUnavailableError("the cluster is away.", code="server_unreachable", remedy="Start it.")

    monkeypatch.setattr(GroupOffsets, "_commit", commit)
    clusters = {"a": "away", "b": "away", "c": "there", "d": "away"}
    sources = {name: KafkaSource(topics=[name], group_id="g", conn_id=conn_id) for name, conn_id in clusters.items()}
    positions = {name: {"start": None, "end": {name: {"0": 1}}} for name in sources}
    with raises(SinkUnavailableError, "server_unreachable"):
        GroupOffsets(sources, lambda conn_id: ConnectionInfo(conn_id, "kafka"))(staged(1, positions=positions))
    assert asked == ["away", "there"]


def test_unused_clients_end_without_the_garbage_collector() -> None:
    settings = KafkaSettings("kafka", {"bootstrap.servers": f"127.0.0.1:{free_port()}"}, {})
    gc.disable()
    try:
        clients = KafkaClients(settings)
        admin = clients.admin()
        left = weakref.ref(clients)
        del clients, admin
        assert left() is None
    finally:
        gc.enable()


def test_a_commit_waits_for_a_coordinator_as_the_connection_says() -> None:
    made = []

    class Clients(KafkaClients):
        def _make(self, kind: object, own: object) -> object:  # type: ignore[override]
            made.append(own)
            return None

    for timeout in (5.0, 4000.0):
        Clients(KafkaSettings("kafka", {}, {}, timeout=timeout)).consumer("g")
    assert [own["session.timeout.ms"] for own in made] == [5000, 45_000]
