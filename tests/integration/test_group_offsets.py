"""The consumer group of a Kafka source follows what is confirmed, as a lag monitor sees it."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from airflow_ft.clients.kafka.client import KafkaClients, KafkaSettings
from airflow_ft.clients.kafka.topics import topic_ids
from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.errors import SinkAccessError, SinkUnavailableError
from airflow_ft.protocol.model import Checkpoint
from airflow_ft.sources import FileSource, KafkaSource
from airflow_ft.sources.progress import GroupOffsets
from tests.conftest import TopicFactory
from tests.protocol.test_planning import staged
from tests.raising import raises
from tools.servers import Kafka
from tools.servers.processes import free_port

pytestmark = pytest.mark.server


def confirmed(topic: str, end: dict[str, int], ids: dict[str, str] | None = None) -> Checkpoint:
    orders = {"start": None, "end": {topic: end}, **({"topic_ids": ids} if ids else {})}
    return staged(1, positions={"orders": orders, "files": {"start": 0, "end": 7}})


def group_offsets(bootstrap: str, source: KafkaSource, **extra: Any) -> GroupOffsets:
    settings = {"bootstrap.servers": bootstrap, "group.id": "of-other-code", "airflow_ft_timeout": 30, **extra}
    files = FileSource(path="/data", format="csv", schema="id bigint")
    return GroupOffsets(
        {"orders": source, "files": files}, lambda conn_id: ConnectionInfo(conn_id, "kafka", extra=settings)
    )


def committed(kafka: Kafka, group: str, topic: str, partitions: int) -> list[int]:
    with closing(Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": group})) as consumer:
        places = [TopicPartition(topic, number) for number in range(partitions)]
        return [place.offset for place in consumer.committed(places, 30)]


def test_the_group_stands_where_the_confirmed_checkpoint_ends(kafka: Kafka, topic_factory: TopicFactory) -> None:
    topic = topic_factory(partitions=3)
    group = f"monitor-{topic}"
    progress = group_offsets(kafka.bootstrap, KafkaSource(topics=[topic], group_id=group))
    progress(confirmed(topic, {"0": 10, "1": 0, "2": -1}))
    assert committed(kafka, group, topic, 3) == [10, 0, -1001]
    progress(confirmed(topic, {"0": 12, "1": 5, "2": 3}))
    progress(confirmed(topic, {"0": 12, "1": 5, "2": 3}))
    assert committed(kafka, group, topic, 3) == [12, 5, 3]


def test_a_deleted_or_recreated_topic_gets_no_offsets(kafka: Kafka, topic_factory: TopicFactory) -> None:
    topic = topic_factory(partitions=1)
    group = f"monitor-{topic}"
    progress = group_offsets(kafka.bootstrap, KafkaSource(topics=[topic], group_id=group))
    clients = KafkaClients(KafkaSettings("kafka_default", {"bootstrap.servers": kafka.bootstrap}, {}))
    ids = {name: found for name, found in topic_ids(clients, [topic]).items() if found}
    progress(confirmed(topic, {"0": 10}, ids))
    assert committed(kafka, group, topic, 1) == [10]
    kafka.delete_topic(topic)
    progress(confirmed(topic, {"0": 11}, ids))
    kafka.create_topic(topic, 1)
    progress(confirmed(topic, {"0": 12}, ids))
    assert committed(kafka, group, topic, 1) != [12], "of another topic"
    assert topic_ids(clients, [topic]) != ids


def test_an_id_as_java_writes_it_is_that_of_the_topic(kafka: Kafka, topic_factory: TopicFactory) -> None:
    """By which the driver asks: in base64 for URLs, so about each second id reads otherwise here."""
    clients = KafkaClients(KafkaSettings("kafka_default", {"bootstrap.servers": kafka.bootstrap}, {}))
    found = ""
    while not {"+", "/"} & set(found):
        topic = topic_factory(partitions=1)
        found = str(topic_ids(clients, [topic])[topic])
    group = f"monitor-{topic}"
    progress = group_offsets(kafka.bootstrap, KafkaSource(topics=[topic], group_id=group))
    progress(confirmed(topic, {"0": 7}, {topic: found.replace("+", "-").replace("/", "_")}))
    assert committed(kafka, group, topic, 1) == [7]


def test_without_a_group_nothing_is_committed(topic_factory: TopicFactory) -> None:
    topic = topic_factory(partitions=1)
    unreachable = f"127.0.0.1:{free_port()}"
    for source in (KafkaSource(topics=[topic]), KafkaSource(topics=[topic], group_id="g", commit_offsets=False)):
        group_offsets(unreachable, source)(confirmed(topic, {"0": 10}))  # connects to nothing


def test_an_unreachable_cluster_hides_no_other_source(kafka: Kafka, topic_factory: TopicFactory) -> None:
    topic, servers = topic_factory(partitions=1), {"away": f"127.0.0.1:{free_port()}", "there": kafka.bootstrap}
    sources = {
        name: KafkaSource(topics=[topic], group_id=f"{name}-{topic}", conn_id=name) for name in ("away", "there")
    }
    settings = {"socket.timeout.ms": 1000, "airflow_ft_timeout": 5}
    progress = GroupOffsets(
        sources, lambda name: ConnectionInfo(name, "kafka", extra={**settings, "bootstrap.servers": servers[name]})
    )
    place = {"start": None, "end": {topic: {"0": 10}}}
    with pytest.raises((SinkUnavailableError, SinkAccessError)) as caught:
        progress(staged(1, positions=dict.fromkeys(sources, place)))
    assert caught.value.participant == "away" and committed(kafka, f"there-{topic}", topic, 1) == [10]


def test_a_commit_waits_for_a_coordinator_within_the_timeout(servers_folder: Path) -> None:
    with Kafka(servers_folder / "kafka-no-groups", options={"offsets.topic.replication.factor": 3}) as kafka:
        kafka.create_topic("orders", 1)
        source = KafkaSource(topics=["orders"], group_id="monitor")
        progress = group_offsets(kafka.bootstrap, source, airflow_ft_timeout=3)
        begun = monotonic()
        with raises(SinkUnavailableError, "request_failed", participant="kafka_default"):
            progress(confirmed("orders", {"0": 10}))
        assert monotonic() - begun < 20, "librdkafka alone waits for 45 seconds"


def test_a_cluster_that_is_away_is_named(topic_factory: TopicFactory) -> None:
    topic = topic_factory(partitions=1)
    unreachable = f"127.0.0.1:{free_port()}"
    short = {"socket.timeout.ms": 1000, "airflow_ft_timeout": 5}
    progress = group_offsets(
        unreachable, KafkaSource(topics=[topic], group_id="monitor", conn_id="kafka_orders"), **short
    )
    with pytest.raises((SinkUnavailableError, SinkAccessError)) as caught:
        progress(confirmed(topic, {"0": 10}))
    assert caught.value.participant == "kafka_orders" and "monitor" in caught.value.headline
