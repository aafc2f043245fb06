"""Partitions and topics that appear while a stream runs, and between two runs: found, and read from their beginning."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.sources import KafkaSource
from airflow_ft.spark.request import StageRequest
from tests.conftest import TopicFactory
from tests.integration.stage_jobs import fill
from tests.integration.stage_world import JARS, PIPELINE, StageWorld, streaming, with_connection, world
from tests.waiting import wait_for
from tools.servers import Kafka

pytestmark = [
    pytest.mark.sampled(among="Spark drivers"),
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.timeout(300),
]
SOON = 60.0  # seconds; Kafka's consumers look for new partitions each five minutes (metadata.max.age.ms)


@pytest.fixture
def pipeline(tmp_path: Path, sessions: Path) -> Iterator[StageWorld]:
    yield from world(tmp_path, sessions)


def _request(pipeline: StageWorld, kafka: Kafka, source: KafkaSource) -> StageRequest:
    request = pipeline.request("stage_jobs:Plain", {"numbers": source}, jars=(str(JARS),))
    return with_connection(
        request, ConnectionInfo("kafka_default", "kafka", extra={"bootstrap.servers": kafka.bootstrap})
    )


def _rows(pipeline: StageWorld) -> list[tuple[str, int, str]]:
    return sorted((row["topic"], row["partition"], bytes(row["value"]).decode()) for row in pipeline.all_rows())


def _shows(pipeline: StageWorld, rows: list[tuple[str, int, str]]) -> None:
    wait_for(lambda: len(_rows(pipeline)) >= len(rows), SOON, f"{rows}")
    assert _rows(pipeline) == sorted(rows)


def test_a_stream_reads_a_new_partition_from_its_beginning(
    pipeline: StageWorld, kafka: Kafka, topic_factory: TopicFactory
) -> None:
    """Also one that begins at the newest records: what is in a partition that was not there came later."""
    topic = topic_factory(partitions=1)
    fill(kafka.bootstrap, topic, ["before"])
    source = KafkaSource(topics=[topic], starting_offsets="latest")
    with streaming(pipeline, _request(pipeline, kafka, source)):
        wait_for(lambda: pipeline.store.lags([PIPELINE]), SOON, "it has looked up where it begins")
        fill(kafka.bootstrap, topic, ["a"])
        _shows(pipeline, [(topic, 0, "a")])
        kafka.add_partitions(topic, 3)
        fill(kafka.bootstrap, topic, ["b", "c"], partition=2)
        _shows(pipeline, [(topic, 0, "a"), (topic, 2, "b"), (topic, 2, "c")])
        fill(kafka.bootstrap, topic, ["d"], partition=1)
        fill(kafka.bootstrap, topic, ["e"])
        rows = [(topic, 0, "a"), (topic, 0, "e"), (topic, 1, "d"), (topic, 2, "b"), (topic, 2, "c")]
        _shows(pipeline, rows)
    pipeline.deliver()
    kafka.add_partitions(topic, 4)
    fill(kafka.bootstrap, topic, ["f"], partition=3)
    pipeline.complete(_request(pipeline, kafka, source))
    assert _rows(pipeline) == sorted([*rows, (topic, 3, "f")])


def test_a_stream_reads_a_new_matching_topic_from_its_beginning(
    pipeline: StageWorld, kafka: Kafka, topic_factory: TopicFactory
) -> None:
    topic = topic_factory(partitions=1)
    fill(kafka.bootstrap, topic, ["a"])
    source = KafkaSource(pattern=f"{topic}(-b)?", max_offsets_per_trigger=100)
    with streaming(pipeline, _request(pipeline, kafka, source)):
        _shows(pipeline, [(topic, 0, "a")])
        fill(kafka.bootstrap, topic_factory(partitions=1, name=f"{topic}-c"), ["of another kind"])
        other = topic_factory(partitions=2, name=f"{topic}-b")
        fill(kafka.bootstrap, other, ["b"], partition=1)
        _shows(pipeline, [(topic, 0, "a"), (other, 1, "b")])
        assert set(pipeline.published()[-1].positions["numbers"]["topic_ids"]) == {topic, other}
        fill(kafka.bootstrap, other, ["c"])
        rows = [(topic, 0, "a"), (other, 0, "c"), (other, 1, "b")]
        _shows(pipeline, rows)
    pipeline.deliver()
    fill(kafka.bootstrap, other, ["d"])
    pipeline.complete(_request(pipeline, kafka, source))
    assert _rows(pipeline) == sorted([*rows, (other, 0, "d")])
