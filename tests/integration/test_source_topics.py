"""A source topic that was deleted and recreated is another topic: its old offsets mean other records."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.errors import DataLossError, JobError, StageError
from airflow_ft.sources import KafkaSource
from airflow_ft.spark.request import StageRequest
from airflow_ft.spark.state.location_files import OFFSETS, entry
from airflow_ft.wal.local import local_path
from tests.conftest import TopicFactory
from tests.integration.stage_jobs import fill, recreate
from tests.integration.stage_world import JARS, StageWorld, with_connection, world
from tests.raising import raises
from tools.servers import Kafka

pytestmark = [
    pytest.mark.sampled(among="Spark drivers"),
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.timeout(900),
]


@pytest.fixture
def pipeline(tmp_path: Path, sessions: Path) -> Iterator[StageWorld]:
    yield from world(tmp_path, sessions)


@pytest.fixture
def topic(topic_factory: TopicFactory) -> str:
    return topic_factory(partitions=1)


def _request(pipeline: StageWorld, kafka: Kafka, source: KafkaSource, job: str = "Plain", **more: Any) -> StageRequest:
    name = "numbers" if job in ("Plain", "Faulty") else "orders"
    request = pipeline.request(f"stage_jobs:{job}", {name: source}, jars=(str(JARS),), **more)
    extra = {"bootstrap.servers": kafka.bootstrap}
    return with_connection(request, ConnectionInfo("kafka_default", "kafka", extra=extra))


def _numbers(prefix: str, count: int) -> list[str]:
    return [f"{prefix} {n}" for n in range(count)]


def _values(pipeline: StageWorld) -> list[str]:
    return sorted(bytes(row["value"]).decode() for row in pipeline.all_rows())


def _ids(pipeline: StageWorld, source: str = "numbers") -> dict[str, str]:
    ids: dict[str, str] = pipeline.published()[-1].positions[source]["topic_ids"]
    return ids


@pytest.mark.parametrize("written", [150, 100, 20], ids=["more", "as many", "fewer"])
def test_a_recreated_topic_is_data_loss_before_anything_is_read(
    pipeline: StageWorld, kafka: Kafka, topic: str, written: int
) -> None:
    strict = KafkaSource(topics=[topic])
    fill(kafka.bootstrap, topic, _numbers("old", 100))
    assert pipeline.complete(_request(pipeline, kafka, strict)).rows == {"orders": 100}
    (old,) = _ids(pipeline).values()
    assert len(old) == 22

    recreate(kafka.bootstrap, topic, _numbers("new", written))
    for _ in range(2):
        fields = {"source": "numbers", "topics": [topic], "participant": "kafka_default"}
        with raises(DataLossError, "topic_recreated", **fields) as caught:
            pipeline.stage(_request(pipeline, kafka, strict))
    assert caught.error and "fail_on_data_loss=False" in caught.error.remedy
    assert old in caught.error.what and '{"0":100}' in caught.error.what
    assert len(pipeline.checkpoints()) == 1, "not even a number was given out"

    lenient = replace(strict, fail_on_data_loss=False)
    result = pipeline.complete(_request(pipeline, kafka, lenient))
    assert result.rows == {"orders": written}
    assert _values(pipeline) == sorted(_numbers("old", 100) + _numbers("new", written))
    (new,) = _ids(pipeline).values()
    assert new != old and new in caught.error.what
    assert any("reads the new topic from its beginning" in line for line in pipeline.lines)

    fill(kafka.bootstrap, topic, ["after"])
    assert pipeline.complete(_request(pipeline, kafka, strict)).rows == {"orders": 1}, "set again"
    assert _ids(pipeline) == {topic: new}


def test_the_base_that_others_may_go_back_to_is_left_as_it_was(pipeline: StageWorld, kafka: Kafka, topic: str) -> None:
    """The offsets are changed in a copy: a rewind to the older position must find what it was published with."""
    fill(kafka.bootstrap, topic, _numbers("old", 3))
    lenient = KafkaSource(topics=[topic], fail_on_data_loss=False)
    pipeline.complete(_request(pipeline, kafka, lenient))
    (first,) = pipeline.published()
    assert first.position is not None
    before = {path: path.read_bytes() for path in local_path(first.position.location).rglob("*") if path.is_file()}
    recreate(kafka.bootstrap, topic, _numbers("new", 2))
    pipeline.complete(_request(pipeline, kafka, lenient))
    assert {path: path.read_bytes() for path in before} == before
    last = pipeline.published()[-1].position
    assert last is not None and last.location != first.position.location
    offsets = local_path(last.location) / "offsets"
    assert entry(last.location, OFFSETS, first.position.batch), "the checksum fits, too"
    assert json.loads((offsets / str(first.position.batch)).read_text().splitlines()[2]) == {}


@pytest.mark.parametrize("point", ["compared", "read"])
@pytest.mark.parametrize("strict", [True, False], ids=["strict", "lenient"])
def test_a_topic_recreated_while_it_is_read_is_not_published(
    pipeline: StageWorld, kafka: Kafka, topic: str, tmp_path: Path, point: str, strict: bool
) -> None:
    source = KafkaSource(topics=[topic], fail_on_data_loss=strict)
    arguments = {"bootstrap": kafka.bootstrap, "topic": topic, "count": 30, "once": str(tmp_path / "once"), "point": ""}
    fill(kafka.bootstrap, topic, _numbers("old", 10))
    pipeline.complete(_request(pipeline, kafka, source, "Recreating", job_arguments=arguments))
    fill(kafka.bootstrap, topic, ["more"])
    arguments["point"] = point
    with raises(DataLossError if strict else StageError, "topic_recreated", topics=[topic]):
        pipeline.stage(_request(pipeline, kafka, source, "Recreating", job_arguments=arguments))
    assert len(pipeline.published()) == 1
    assert (tmp_path / "once").exists()
    if not strict:
        pipeline.complete(_request(pipeline, kafka, source, "Recreating", job_arguments=arguments))
        assert _values(pipeline) == sorted([*_numbers("old", 10), *_numbers("new", 30)])


def test_of_several_topics_the_others_go_on_where_they_stand(
    pipeline: StageWorld, kafka: Kafka, topic_factory: TopicFactory
) -> None:
    one, other = topic_factory(partitions=1), topic_factory(partitions=1)
    source = KafkaSource(topics=[one, other], fail_on_data_loss=False)
    fill(kafka.bootstrap, one, _numbers("one", 5))
    fill(kafka.bootstrap, other, _numbers("other", 5))
    pipeline.complete(_request(pipeline, kafka, source))
    recreate(kafka.bootstrap, one, _numbers("new", 7))
    fill(kafka.bootstrap, other, ["last"])
    assert pipeline.complete(_request(pipeline, kafka, source)).rows == {"orders": 8}
    wanted = [*_numbers("one", 5), *_numbers("other", 5), *_numbers("new", 7), "last"]
    assert _values(pipeline) == sorted(wanted)


def test_a_source_moves_to_another_topic_and_back(
    pipeline: StageWorld, kafka: Kafka, topic_factory: TopicFactory
) -> None:
    """Positions are of topics: nothing is read by those of the other one, and those of before are not kept."""
    one, other = topic_factory(partitions=1), topic_factory(partitions=1)
    strict = KafkaSource(topics=[other], starting_offsets="latest")
    lenient = replace(strict, fail_on_data_loss=False)
    fill(kafka.bootstrap, one, _numbers("one", 3))
    pipeline.complete(_request(pipeline, kafka, replace(strict, topics=[one], starting_offsets="earliest")))
    fill(kafka.bootstrap, other, _numbers("other", 5))
    with pytest.raises(DataLossError):
        pipeline.stage(_request(pipeline, kafka, strict))
    assert pipeline.complete(_request(pipeline, kafka, lenient)).rows == {"orders": 5}, "from its beginning"
    back = replace(lenient, topics=[one])
    assert pipeline.complete(_request(pipeline, kafka, back)).rows == {"orders": 3}, "from its beginning, once more"


def test_a_pattern_gains_and_loses_topics(pipeline: StageWorld, kafka: Kafka, topic_factory: TopicFactory) -> None:
    stays, goes = topic_factory(partitions=1), topic_factory(partitions=1)
    pattern = f"{stays}|{goes}|{stays}-late"
    strict = KafkaSource(pattern=pattern)
    lenient = replace(strict, fail_on_data_loss=False)
    fill(kafka.bootstrap, stays, _numbers("stays", 2))
    fill(kafka.bootstrap, goes, _numbers("goes", 2))
    pipeline.complete(_request(pipeline, kafka, strict))
    kafka.create_topic(f"{stays}-late", 1)
    try:
        fill(kafka.bootstrap, f"{stays}-late", ["late"])
        assert pipeline.complete(_request(pipeline, kafka, strict)).rows == {"orders": 1}, "one that appears is no loss"
        assert set(_ids(pipeline)) == {stays, goes, f"{stays}-late"}
        kafka.delete_topic(goes)
        with raises(DataLossError, "topic_recreated", topics=[goes]):
            pipeline.stage(_request(pipeline, kafka, strict))
        fill(kafka.bootstrap, stays, ["more"])
        assert pipeline.complete(_request(pipeline, kafka, lenient)).rows == {"orders": 1}
        assert set(_ids(pipeline)) == {stays, f"{stays}-late"}
    finally:
        kafka.delete_topic(f"{stays}-late")
        kafka.create_topic(goes, 1)
    fill(kafka.bootstrap, goes, _numbers("back", 3))
    assert pipeline.complete(_request(pipeline, kafka, lenient)).rows == {"orders": 3}, "from its beginning"


def test_many_topics_are_compared_by_one_answer(
    pipeline: StageWorld, kafka: Kafka, topic_factory: TopicFactory
) -> None:
    """To ask for each would take some of py4j's calls a topic, with every publication."""
    first, *more = (topic_factory(partitions=1) for _ in range(22))
    strict = KafkaSource(pattern="|".join((first, *more)))
    for topic in (first, *more):
        fill(kafka.bootstrap, topic, ["old"])
    pipeline.complete(_request(pipeline, kafka, strict))
    assert _ids(pipeline).keys() == {first, *more}
    assert {len(found) for found in _ids(pipeline).values()} == {22}
    recreate(kafka.bootstrap, first, ["new"])
    kafka.delete_topic(more[0])
    try:
        with raises(DataLossError, "topic_recreated", topics=sorted((first, more[0]))) as caught:
            pipeline.stage(_request(pipeline, kafka, strict))
    finally:
        kafka.create_topic(more[0], 1)
    assert caught.error and more[1] not in caught.error.what


def test_a_listed_topic_that_is_gone_is_named(pipeline: StageWorld, kafka: Kafka, topic: str) -> None:
    source = KafkaSource(topics=[topic], fail_on_data_loss=False)
    fill(kafka.bootstrap, topic, ["one"])
    pipeline.complete(_request(pipeline, kafka, source))
    kafka.delete_topic(topic)
    with raises(StageError, "topic_missing", source="numbers", topic=topic):
        pipeline.stage(_request(pipeline, kafka, source))
    kafka.create_topic(topic, 1)
    fill(kafka.bootstrap, topic, _numbers("new", 2))
    assert pipeline.complete(_request(pipeline, kafka, source)).rows == {"orders": 2}


def test_a_frozen_origin_counts_the_records_of_its_topic_alone(pipeline: StageWorld, kafka: Kafka, topic: str) -> None:
    """The first attempt froze "latest" and died; then the topic was recreated, before anything was published."""
    strict = KafkaSource(topics=[topic], starting_offsets="latest")
    fill(kafka.bootstrap, topic, _numbers("before", 5))
    with raises(JobError, "job_failed", exception="KeyError"):
        pipeline.stage(_request(pipeline, kafka, strict, "Faulty", job_arguments={"fault": "split"}))
    assert pipeline.published() == []
    recreate(kafka.bootstrap, topic, _numbers("new", 8))
    with raises(DataLossError, "topic_recreated", topics=[topic]):
        pipeline.stage(_request(pipeline, kafka, strict))
    lenient = replace(strict, fail_on_data_loss=False)
    assert pipeline.complete(_request(pipeline, kafka, lenient)).rows == {"orders": 8}
    assert len(pipeline.published()) == 1


def test_a_loss_allowed_once_is_not_reported_again_without_state(
    pipeline: StageWorld, kafka: Kafka, topic: str
) -> None:
    """The run that was allowed to go on finds nothing to read. Its first batch is empty, and names the new topic."""
    strict = KafkaSource(topics=[topic])
    fill(kafka.bootstrap, topic, _numbers("old", 3))
    pipeline.complete(_request(pipeline, kafka, strict))
    pipeline.deliver()
    assert pipeline.reset_state() is not None
    recreate(kafka.bootstrap, topic, [])
    lenient = replace(strict, fail_on_data_loss=False)
    assert pipeline.complete(_request(pipeline, kafka, lenient)).rows == {"orders": 0}
    fill(kafka.bootstrap, topic, _numbers("new", 2))
    assert pipeline.complete(_request(pipeline, kafka, strict)).rows == {"orders": 2}
    assert _values(pipeline) == sorted([*_numbers("old", 3), *_numbers("new", 2)])


def test_records_that_expire_before_they_are_read_are_data_loss(pipeline: StageWorld, kafka: Kafka, topic: str) -> None:
    """Retention of the very same topic: its id says nothing of it, Spark does."""
    strict = KafkaSource(topics=[topic])
    fill(kafka.bootstrap, topic, _numbers("old", 3))
    pipeline.complete(_request(pipeline, kafka, strict))
    fill(kafka.bootstrap, topic, _numbers("new", 6))
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    for answer in admin.delete_records([TopicPartition(topic, 0, 7)]).values():
        answer.result(60)
    with raises(DataLossError, "records_expired") as caught:
        pipeline.stage(_request(pipeline, kafka, strict))
    assert caught.error and "fail_on_data_loss=False" in caught.error.remedy
    assert "[3, 9)" in caught.error.what and f"{topic}-0" in caught.error.what
    assert len(pipeline.published()) == 1
    lenient = replace(strict, fail_on_data_loss=False)
    assert pipeline.complete(_request(pipeline, kafka, lenient)).rows == {"orders": 2}
    fill(kafka.bootstrap, topic, ["after"])
    assert pipeline.complete(_request(pipeline, kafka, strict)).rows == {"orders": 1}, "set again"
