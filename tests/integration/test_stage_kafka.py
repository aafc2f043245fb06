"""Kafka as the source of a Spark driver: committed records only, each once, from frozen positions."""

import itertools
import json
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.errors import ConfigurationError, JobError
from airflow_ft.sources import KafkaSource
from airflow_ft.spark.request import StageRequest
from airflow_ft.wal import open_wal
from tests.conftest import TopicFactory
from tests.integration.stage_jobs import fill
from tests.integration.stage_world import JARS, StageWorld, with_connection, world
from tests.raising import raises
from tools.servers import Kafka

pytestmark = [
    pytest.mark.sampled(among="Spark drivers"),
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.timeout(900),
]
JOB = "stage_jobs:Orders"


@pytest.fixture
def pipeline(tmp_path: Path, sessions: Path) -> Iterator[StageWorld]:
    yield from world(tmp_path, sessions)


def _send(kafka: Kafka, topic: str, values: list[bytes], partition: int = 0, commit: bool = True) -> None:
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": f"{topic}-{partition}-{commit}"})
    producer.init_transactions(30)
    producer.begin_transaction()
    for value in values:
        producer.produce(topic, value, partition=partition, headers=[("h", b"\x00\xff")])
    producer.flush(30)
    if commit:
        producer.commit_transaction(30)
    else:
        producer.abort_transaction(30)


def _orders(*numbers: int) -> list[bytes]:
    return [json.dumps({"id": n, "amount": f"{n}.50"}).encode() for n in numbers]


def _request(pipeline: StageWorld, kafka: Kafka, source: KafkaSource, **more: Any) -> StageRequest:
    request = pipeline.request(JOB, {"orders": source}, jars=(str(JARS),), **more)
    extra = {"bootstrap.servers": kafka.bootstrap, "group.id": "ignored"}
    return with_connection(request, ConnectionInfo("kafka_default", "kafka", extra=extra))


def test_timers_fire_after_a_run_has_read_every_record(
    pipeline: StageWorld, kafka: Kafka, topic_factory: TopicFactory
) -> None:
    topic = topic_factory(partitions=1)
    source = KafkaSource(topics=[topic])

    def run(*values: bytes) -> list[tuple[str, int]]:
        before = len(pipeline.all_rows())
        _send(kafka, topic, list(values))
        pipeline.complete(replace(_request(pipeline, kafka, source), job="stage_jobs:KafkaReminders"))
        return sorted((row["k"], row["rows"]) for row in pipeline.all_rows()[before:])

    assert run(b"a", b"a", b"b") == [("a", 2), ("b", 1)]
    assert run(b"a") == [("a", 1)]
    places = [each.positions["orders"] for each in pipeline.published()]
    assert [place["start"] == place["end"] for place in places] == [False, True, False, True]


def test_committed_records_are_staged_once_with_their_positions(
    pipeline: StageWorld, kafka: Kafka, topic_factory: TopicFactory
) -> None:
    topic = topic_factory(partitions=2)
    _send(kafka, topic, _orders(1, 2, 3))
    _send(kafka, topic, _orders(666), commit=False)
    _send(kafka, topic, [*_orders(4), b"not json"], partition=1)
    source = KafkaSource(topics=[topic], max_offsets_per_trigger=4)
    keep = {"job_arguments": {"on_malformed": "keep"}, "optional_sinks": ("dead_letters",)}
    result = pipeline.complete(_request(pipeline, kafka, source, **keep))
    assert len(result.numbers) >= 2 and result.rows == {"orders": 4, "dead_letters": 1}
    assert sorted(row["id"] for row in pipeline.all_rows()) == [1, 2, 3, 4]
    assert {bytes(row["headers"][0]["value"]) for row in pipeline.all_rows()} == {b"\x00\xff"}
    (dead,) = pipeline.all_rows("dead_letters")
    assert (dead["topic"], dead["partition"], dead["offset"], dead["raw"]) == (topic, 1, 1, b"not json")
    published = pipeline.published()
    for each in published:
        assert each.segment is not None
        lineage = open_wal().open(each.segment).manifest.lineage
        assert lineage["orders"]["columns"] == {
            "headers": [["orders", "headers", "IDENTITY"]],
            "id": [["orders", "value", "TRANSFORMATION"]],
            "amount": [["orders", "value", "TRANSFORMATION"]],
        }
        assert ["orders", "value", "FILTER"] in lineage["orders"]["rows"]
        assert ["orders", "value", "TRANSFORMATION"] in lineage["dead_letters"]["columns"]["raw"]
    assert published[0].positions["orders"]["start"] is None
    for before, after in itertools.pairwise(published):
        assert after.positions["orders"]["start"] == before.positions["orders"]["end"]
    ends = published[-1].positions["orders"]["end"][topic]
    assert ends["1"] >= 2 and ends["0"] >= 5  # behind the records and the marks of both transactions

    _send(kafka, topic, _orders(5))
    again = pipeline.complete(_request(pipeline, kafka, source, **keep))
    assert again.rows == {"orders": 1, "dead_letters": 0}
    assert [row["id"] for row in pipeline.all_rows()][-1] == 5


def test_dropped_state_keeps_the_positions(pipeline: StageWorld, kafka: Kafka, topic_factory: TopicFactory) -> None:
    """Spark begins with batch 0 again, and reads on where it was told."""
    topic = topic_factory(partitions=2)
    source = KafkaSource(topics=[topic])
    _send(kafka, topic, _orders(1, 2))
    _send(kafka, topic, _orders(3), partition=1)
    pipeline.complete(_request(pipeline, kafka, source))
    pipeline.deliver()
    assert pipeline.reset_state() is not None
    _send(kafka, topic, _orders(4))
    pipeline.complete(_request(pipeline, kafka, source))
    assert sorted(row["id"] for row in pipeline.all_rows()) == [1, 2, 3, 4]
    before, after = pipeline.published()
    assert after.positions["orders"]["start"] == before.positions["orders"]["end"]
    assert after.position is not None and after.position.batch == 0


def test_a_malformed_record_fails_the_job_and_is_located(
    pipeline: StageWorld, kafka: Kafka, topic_factory: TopicFactory
) -> None:
    topic = topic_factory(partitions=1)
    _send(kafka, topic, [*_orders(1), b'{"id": "x"}'])
    with raises(JobError, "job_failed") as caught:
        pipeline.stage(_request(pipeline, kafka, KafkaSource(topics=[topic])))
    assert caught.error and f"topic {topic}, partition 0, offset 1" in caught.error.what
    assert pipeline.published() == []


def test_latest_means_the_same_moment_in_every_attempt(
    pipeline: StageWorld, kafka: Kafka, topic_factory: TopicFactory
) -> None:
    """An attempt that published nothing must not let the next begin at the end again: that would lose rows."""
    topic = topic_factory(partitions=1)
    _send(kafka, topic, _orders(1))
    sources = {"numbers": KafkaSource(topics=[topic], starting_offsets="latest")}
    extra = {"bootstrap.servers": kafka.bootstrap}

    def request(job: str, **arguments: str) -> StageRequest:
        made = pipeline.request(f"stage_jobs:{job}", sources, jars=(str(JARS),), job_arguments=arguments)
        return with_connection(made, ConnectionInfo("kafka_default", "kafka", extra=extra))

    with raises(JobError, "job_failed", exception="KeyError"):
        pipeline.stage(request("Faulty", fault="split"))
    assert pipeline.published() == []
    _send(kafka, topic, _orders(2, 3))
    pipeline.complete(request("Plain"))
    assert [json.loads(row["value"])["id"] for row in pipeline.all_rows()] == [2, 3]


def _plain(pipeline: StageWorld, kafka: Kafka, source: KafkaSource) -> StageRequest:
    request = pipeline.request("stage_jobs:Plain", {"numbers": source}, jars=(str(JARS),))
    return with_connection(
        request, ConnectionInfo("kafka_default", "kafka", extra={"bootstrap.servers": kafka.bootstrap})
    )


def _ids(pipeline: StageWorld) -> list[int]:
    return sorted(json.loads(row["value"])["id"] for row in pipeline.all_rows())


def test_it_goes_on_where_a_group_stands_and_stays_there(
    pipeline: StageWorld, kafka: Kafka, topic_factory: TopicFactory
) -> None:
    """In place of another consumer: what that has committed until an attempt first looked, whatever it does later."""
    topic = topic_factory(partitions=2)
    _send(kafka, topic, _orders(1, 2, 3))
    _send(kafka, topic, _orders(4, 5), partition=1)
    group = f"before-{topic}"
    with closing(Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": group})) as other:
        other.commit(offsets=[TopicPartition(topic, 0, 2)], asynchronous=False)
        source = KafkaSource(topics=[topic], starting_offsets="group_offsets", group_id=group)
        faulty = {"job_arguments": {"fault": "split"}}
        request = pipeline.request("stage_jobs:Faulty", {"numbers": source}, jars=(str(JARS),), **faulty)
        connection = ConnectionInfo("kafka_default", "kafka", extra={"bootstrap.servers": kafka.bootstrap})
        with raises(JobError, "job_failed", exception="KeyError"):
            pipeline.stage(with_connection(request, connection))
        other.commit(offsets=[TopicPartition(topic, 0, 3), TopicPartition(topic, 1, 2)], asynchronous=False)
    pipeline.complete(_plain(pipeline, kafka, source))
    assert _ids(pipeline) == [3, 4, 5]


def test_it_starts_at_the_first_record_of_a_time(
    pipeline: StageWorld, kafka: Kafka, topic_factory: TopicFactory
) -> None:
    """In each partition; one without such a record is read from its end. A later run goes on, whatever its times."""
    topic = topic_factory(partitions=2)
    at = datetime.now(UTC).replace(microsecond=678_000) - timedelta(days=3)  # a broker keeps records for seven days
    millisecond = timedelta(milliseconds=1)
    for number, partition, moment in (
        (1, 0, at - timedelta(days=1)),
        (2, 0, at - millisecond),
        (3, 0, at),
        (4, 0, at + timedelta(hours=1)),
        (5, 1, at - millisecond),
    ):
        fill(kafka.bootstrap, topic, [f'{{"id": {number}}}'], partition, moment)
    # Half a millisecond before is no time of a record, so it is the same beginning.
    source = KafkaSource(topics=[topic], starting_offsets=at - timedelta(microseconds=500))
    pipeline.complete(_plain(pipeline, kafka, source))
    assert _ids(pipeline) == [3, 4]
    fill(kafka.bootstrap, topic, ['{"id": 6}'], 1, at - timedelta(days=2))
    fill(kafka.bootstrap, topic, ['{"id": 7}'], 0, at + timedelta(days=2))
    pipeline.complete(_plain(pipeline, kafka, source))
    assert _ids(pipeline) == [3, 4, 6, 7]


def test_it_starts_at_the_offsets_that_are_named(
    pipeline: StageWorld, kafka: Kafka, topic_factory: TopicFactory
) -> None:
    topic = topic_factory(partitions=3)
    for partition, numbers in enumerate(((1, 2, 3, 4), (5, 6), (7, 8))):
        fill(kafka.bootstrap, topic, [f'{{"id": {number}}}' for number in numbers], partition)
    source = KafkaSource(topics=[topic], starting_offsets={topic: {0: 2, 1: -1, 2: -2}})
    pipeline.complete(_plain(pipeline, kafka, source))
    assert _ids(pipeline) == [3, 4, 7, 8]
    for partition, number in ((0, 9), (1, 10), (2, 11)):
        fill(kafka.bootstrap, topic, [f'{{"id": {number}}}'], partition)
    pipeline.complete(_plain(pipeline, kafka, source))
    assert _ids(pipeline) == [3, 4, 7, 8, 9, 10, 11]


def test_an_unnamed_partition_starts_at_its_earliest_offset(
    pipeline: StageWorld, kafka: Kafka, topic_factory: TopicFactory
) -> None:
    """A named partition that does not exist is refused."""
    topic = topic_factory(partitions=2)
    for partition, numbers in enumerate(((1, 2, 3), (4, 5))):
        fill(kafka.bootstrap, topic, [f'{{"id": {number}}}' for number in numbers], partition)
    absent = KafkaSource(topics=[topic], starting_offsets={topic: {0: 1, 2: 0}})
    named = {"source": "numbers", "topic": topic, "partitions": [2]}
    with raises(ConfigurationError, "partition_missing", **named):
        pipeline.stage(_plain(pipeline, kafka, absent))
    source = KafkaSource(topics=[topic], starting_offsets={topic: {0: 1}})
    pipeline.complete(_plain(pipeline, kafka, source))
    assert _ids(pipeline) == [2, 3, 4, 5]
    kafka.add_partitions(topic, 3)
    fill(kafka.bootstrap, topic, ['{"id": 6}'], 2)
    pipeline.complete(_plain(pipeline, kafka, source))
    assert _ids(pipeline) == [2, 3, 4, 5, 6]


def test_a_record_limit_per_task_does_not_change_what_is_read(
    pipeline: StageWorld, kafka: Kafka, topic_factory: TopicFactory
) -> None:
    topic = topic_factory(partitions=1)
    fill(kafka.bootstrap, topic, [f'{{"id": {number}}}' for number in range(10)])
    source = KafkaSource(topics=[topic], options={"maxRecordsPerPartition": "3"})
    result = pipeline.complete(_plain(pipeline, kafka, source))
    assert _ids(pipeline) == list(range(10)) and len(result.numbers) == 1, "it bounds no checkpoint"
