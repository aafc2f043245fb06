"""What a driver tells of its sources: a stream behind by so many says so many."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.lag import Lag, Unit
from airflow_ft.sources import FileSource, KafkaSource
from airflow_ft.spark.request import StageRequest
from tests.conftest import TopicFactory
from tests.integration.stage_jobs import fill
from tests.integration.stage_world import JARS, PIPELINE, StageWorld, streaming, with_connection, world
from tests.protocol.systems import Metered
from tests.waiting import wait_for
from tools.servers import Kafka

pytestmark = [
    pytest.mark.sampled(among="Spark drivers"),
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.timeout(300),
]


@pytest.fixture
def pipeline(tmp_path: Path, sessions: Path) -> Iterator[StageWorld]:
    yield from world(tmp_path, sessions)


def stored_lags(pipeline: StageWorld) -> list[Lag]:
    """Without times and rates."""
    return [replace(each, at=None, rate=None) for each in pipeline.store.lags([PIPELINE]).get(PIPELINE, [])]


def shows(pipeline: StageWorld, lags: list[Lag], seconds: float = 60) -> None:
    """Waits for it."""
    wait_for(lambda: stored_lags(pipeline) == lags, seconds, f"{lags}")


def kafka_request(
    pipeline: StageWorld, kafka: Kafka, source: KafkaSource, job: str = "Plain", **more: Any
) -> StageRequest:
    request = pipeline.request(f"stage_jobs:{job}", {"numbers": source}, jars=(str(JARS),), **more)
    extra = {"bootstrap.servers": kafka.bootstrap}
    return with_connection(request, ConnectionInfo("kafka_default", "kafka", extra=extra))


def test_of_topics_what_is_behind_the_newest_checkpoint(
    pipeline: StageWorld, kafka: Kafka, topic_factory: TopicFactory
) -> None:
    topic = topic_factory(partitions=2)
    fill(kafka.bootstrap, topic, [str(n) for n in range(40)])
    meter = pipeline.store.meter = Metered()
    with streaming(pipeline, kafka_request(pipeline, kafka, KafkaSource(topics=[topic])), max_concurrent=1):
        shows(pipeline, [Lag("numbers", Unit.RECORDS, 0)])
        fill(kafka.bootstrap, topic, [str(n) for n in range(70)])
        shows(pipeline, [Lag("numbers", Unit.RECORDS, 70)])
    assert [each.lag for each in pipeline.store.timings(PIPELINE, 5) if each.rows] == [{"numbers": 70}]
    assert [each for each in meter.calls if each[0] == "lag"][-1] == ("lag", PIPELINE, "numbers", Unit.RECORDS, 70)
    pipeline.deliver()
    assert pipeline.complete(kafka_request(pipeline, kafka, KafkaSource(topics=[topic]))).rows == {"orders": 70}
    assert stored_lags(pipeline) == [Lag("numbers", Unit.RECORDS, 0, done=70, expected=70)]
    assert any("source numbers: 0 records behind, 70 of 70 read" in line for line in pipeline.lines[-3:])


def test_lag_counts_new_partitions_and_topics_before_spark_does(
    pipeline: StageWorld, kafka: Kafka, topic_factory: TopicFactory
) -> None:
    topic = topic_factory(partitions=1)
    fill(kafka.bootstrap, topic, ["first"])
    source = KafkaSource(pattern=f"{topic}.*")
    with streaming(pipeline, kafka_request(pipeline, kafka, source), max_concurrent=1):
        shows(pipeline, [Lag("numbers", Unit.RECORDS, 0)])
        fill(kafka.bootstrap, topic, ["held up"])  # so the stream waits for room, and does not look any more
        shows(pipeline, [Lag("numbers", Unit.RECORDS, 1)])
        kafka.add_partitions(topic, 2)
        fill(kafka.bootstrap, topic, [str(n) for n in range(30)], partition=1)
        shows(pipeline, [Lag("numbers", Unit.RECORDS, 31)], 30)
        other = topic_factory(partitions=1, name=f"{topic}-b")
        fill(kafka.bootstrap, other, [str(n) for n in range(500)])
        shows(pipeline, [Lag("numbers", Unit.RECORDS, 531)], 30)


def test_of_folders_the_files_that_nobody_has_read(pipeline: StageWorld) -> None:
    source = FileSource(path=str(pipeline.input), format="text", max_files_per_trigger=2)
    for number in range(5):
        pipeline.add_file(f"a {number}", [{"id": number}])
    with streaming(pipeline, pipeline.request("stage_jobs:Plain", {"numbers": source}), max_concurrent=1):
        shows(pipeline, [Lag("numbers", Unit.FILES, 3)])
    pipeline.deliver()
    pipeline.add_file("b", [{"id": 7}])
    pipeline.complete(pipeline.request("stage_jobs:Plain", {"numbers": source}))
    assert stored_lags(pipeline) == [Lag("numbers", Unit.FILES, 0, done=4, expected=4)]
