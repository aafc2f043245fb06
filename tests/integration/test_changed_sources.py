"""Jobs whose sources change, with real Spark: each goes on where it stands; no row is lost or read twice."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.errors import AirflowFtError, ConfigurationError, JobError
from airflow_ft.protocol.lease import Worker
from airflow_ft.sources import FileSource, KafkaSource
from airflow_ft.spark.request import StageRequest
from airflow_ft.spark.savepoints.restoring import restore
from airflow_ft.spark.savepoints.taking import take
from airflow_ft.spark.state.location_files import KINDS_FILE
from airflow_ft.wal.local import local_path
from tests.conftest import TopicFactory
from tests.integration.stage_world import JARS, PIPELINE, StageWorld, with_connection
from tests.integration.stage_world import world as stage_world
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
    yield from stage_world(tmp_path, sessions)


class Job:
    """A pipeline whose sources are declared and used as a test says."""

    def __init__(self, pipeline: StageWorld, kafka: Kafka, topic: str) -> None:
        self.pipeline, self.kafka, self.topic = pipeline, kafka, topic
        self.producer = Producer({"bootstrap.servers": kafka.bootstrap})
        self._files = 0
        for name in ("numbers", "more"):
            (pipeline.folder / "in" / name).mkdir(parents=True)

    def add(self, name: str, *keys: str) -> None:
        """Something comes into a source."""
        if name == "events":
            for key in keys:
                self.producer.produce(self.topic, key.encode(), partition=0)
            assert self.producer.flush(30) == 0
            return
        self._files += 1
        hidden = self.pipeline.folder / f"f{self._files}"
        hidden.write_text("".join(json.dumps({"k": key}) + "\n" for key in keys))
        hidden.rename(self.pipeline.folder / "in" / name / f"f{self._files}.json")

    def request(self, *names: str, fail: bool = False, start: str = "latest") -> StageRequest:
        sources: dict[str, Any] = {
            name: KafkaSource(topics=[self.topic], starting_offsets=start)
            if name == "events"
            else FileSource(path=str(self.pipeline.folder / "in" / name), schema="k string")
            for name in sorted(names)
        }
        arguments = {"names": list(names), "fail": fail}
        request = self.pipeline.request("stage_jobs:Several", sources, job_arguments=arguments, jars=(str(JARS),))
        extra = {"bootstrap.servers": self.kafka.bootstrap, "group.id": "ignored"}
        return with_connection(request, ConnectionInfo("kafka_default", "kafka", extra=extra))

    def run(self, *names: str, start: str = "latest") -> dict[str, int]:
        """All that there is, delivered; the counts that have changed."""
        before = len(self.pipeline.published())
        self.pipeline.complete(self.request(*names, start=start))
        self.pipeline.deliver()
        new = self.pipeline.published()[before:]
        return {row["k"]: row["rows"] for each in new for row in self.pipeline.rows(each).to_pylist()}

    def positions(self) -> Mapping[str, Any]:
        return self.pipeline.published()[-1].positions


@pytest.fixture
def job(pipeline: StageWorld, kafka: Kafka, topic_factory: TopicFactory) -> Job:
    return Job(pipeline, kafka, topic_factory(partitions=1))


def test_sources_come_and_go_and_each_goes_on_where_it_stands(job: Job) -> None:
    job.add("numbers", "a", "b")
    job.add("more", "a")
    assert job.run("numbers") == {"a": 1, "b": 1}
    job.add("events", "early")  # before it is added: latest
    assert job.run("numbers", "more", "events") == {"a": 2}
    job.add("events", "a", "c")
    job.add("more", "c")
    job.add("numbers", "b")
    assert job.run("events", "numbers", "more") == {"a": 3, "c": 2, "b": 2}, "in another order"
    assert sorted(job.positions()) == ["events", "more", "numbers"]
    job.add("events", "a")
    job.add("more", "c")
    job.add("numbers", "b")
    assert job.run("more") == {"c": 3}, "two are left out"
    job.add("events", "d")
    job.add("more", "d")
    assert job.run("events", "more") == {"a": 4, "d": 2}, "what came meanwhile is read once"
    assert job.run("more", "numbers", "events") == {"b": 3}
    output = "\n".join(job.pipeline.lines)
    assert "no longer reads source numbers" in output and "source numbers is used again" in output


def test_a_source_may_be_used_more_often_and_less_often(job: Job) -> None:
    expected = 0
    for uses in (1, 1, 2, 2, 3, 1, 1):
        job.add("numbers", "a")
        expected += uses
        assert job.run(*["numbers"] * uses) == {"a": expected}


def test_latest_is_one_moment_for_an_added_source_too(job: Job) -> None:
    """The attempt that has looked it up first counts, though it publishes nothing."""
    job.add("numbers", "a")
    assert job.run("numbers") == {"a": 1}
    job.add("events", "early")
    base = job.pipeline.store.pipeline(PIPELINE).base
    job.add("numbers", "b")
    with raises(JobError, "job_failed"):
        job.pipeline.stage(job.request("numbers", "events", fail=True))
    assert job.pipeline.store.pipeline(PIPELINE).base == base
    job.add("events", "late")
    assert job.run("numbers", "events") == {"b": 1, "late": 1}


def test_latest_stays_one_moment_for_a_retry_with_other_sources(job: Job) -> None:
    """It was another one for every source then: what had come since the first attempt was never read."""
    job.add("numbers", "a")
    job.add("events", "early")
    with raises(JobError, "job_failed"):
        job.pipeline.stage(job.request("numbers", "events", fail=True))
    job.add("events", "late")
    assert job.run("events", "more", "numbers") == {"a": 1, "late": 1}, "one more, and in another order"


def test_a_removed_source_keeps_its_position_through_a_restore(job: Job, tmp_path: Path) -> None:
    for name in ("numbers", "more", "events"):
        job.add(name, "a")
    assert job.run("numbers", "more", "events", start="earliest") == {"a": 3}
    job.add("numbers", "b")
    assert job.run("numbers", start="earliest") == {"b": 1}
    job.add("events", "c")
    uri, _ = take(job.pipeline.store, PIPELINE, str(tmp_path / "kept"), "a test")

    def no_participant(_: Any) -> Any:
        raise AssertionError("no sink is asked")

    restore(job.pipeline.store, uri, no_participant, Worker("", 1), "a test", lease_seconds=0.0)
    assert job.pipeline.reset_state() is not None
    job.add("numbers", "a")
    assert job.run("events", "numbers", "more", start="earliest") == {"c": 1, "a": 1}, "from no state, nothing again"


def test_another_folder_under_the_same_name_is_refused_by_name(job: Job) -> None:
    """Spark looks at the files of the newest micro-batch once more, and only says that a path is wrong."""
    job.add("numbers", "a")
    assert job.run("numbers") == {"a": 1}
    request, elsewhere = job.request("numbers"), job.pipeline.folder / "in" / "more"
    other = FileSource(path=str(elsewhere), schema="k string")
    with raises(JobError, "folder_changed") as caught:
        job.pipeline.complete(replace(request, sources={"numbers": other.to_json()}))
    assert caught.error and caught.error.fields["path"].endswith("/in/more")
    assert "/in/numbers" in caught.error.fields["before"]
    job.add("more", "b")
    job.add("numbers", "a")
    assert job.run("numbers") == {"a": 2}
    assert job.run("numbers", "more") == {"b": 1}


def test_another_kind_of_source_under_the_same_name_is_refused(job: Job) -> None:
    """Spark took an offset of files for that of a topic named 'logOffset', and then read all of Kafka."""
    job.add("numbers", "a")
    job.add("events", "b")

    def run(source: FileSource | KafkaSource) -> None:
        job.pipeline.complete(replace(job.request("events"), sources={"events": source.to_json()}))

    text = FileSource(path=str(job.pipeline.folder / "in/numbers"), format="text")
    run(text)
    for other in (KafkaSource(pattern=job.topic), KafkaSource(topics=[job.topic])):
        with raises(ConfigurationError, "sources_changed", source="events"):
            run(other)
    job.add("numbers", "c")
    run(text)
    assert [row["rows"] for row in job.pipeline.all_rows()] == [1, 1]


def test_a_mistake_after_an_upgrade_leaves_the_base_as_it_was(job: Job) -> None:
    """The former release kept no kinds: the wrong kind was noted in the base, before Spark failed."""
    job.add("numbers", "a")

    def run(source: FileSource | KafkaSource) -> None:
        job.pipeline.complete(replace(job.request("events"), sources={"events": source.to_json()}))

    text = FileSource(path=str(job.pipeline.folder / "in/numbers"), format="text")
    run(text)
    base = job.pipeline.store.pipeline(PIPELINE).base
    assert base is not None
    (local_path(base.location) / KINDS_FILE).unlink()
    with pytest.raises(AirflowFtError):
        run(KafkaSource(topics=[job.topic]))
    job.add("numbers", "b")
    run(text)
    assert [row["rows"] for row in job.pipeline.all_rows()] == [1, 1]


def test_a_pattern_for_another_folder_is_refused(job: Job) -> None:
    """Spark does not look at the folder of a pattern: it read every file of the other one."""
    job.add("numbers", "a")
    folder = job.pipeline.folder / "in"

    def run(pattern: str) -> None:
        source = FileSource(path=str(folder / pattern), schema="k string")
        job.pipeline.complete(replace(job.request("numbers"), sources={"numbers": source.to_json()}))

    run("num*")
    job.add("more", "a")
    for other in ("mo*", "more", "{more,others}/*.json"):
        with raises(JobError, "folder_changed", path=str(folder / other), before=f"file://{folder}/numbers/f1.json"):
            run(other)
    run("{numbers,more}")
    assert [row["rows"] for row in job.pipeline.all_rows()] == [1, 2], "a wider pattern reads what is new"


def test_which_source_is_which_is_never_guessed(job: Job) -> None:
    job.add("numbers", "a")
    assert job.run("numbers", "more") == {"a": 1}
    job.pipeline.deliver()
    request = job.request("numbers")
    own = replace(request, job="stage_jobs:OwnSource", job_arguments={"path": str(job.pipeline.folder / "in" / "more")})
    with raises(ConfigurationError, "sources_changed") as caught:
        job.pipeline.stage(own)
    assert caught.error is not None
    assert "['numbers', 'source-1']" in caught.error.headline and "['numbers', 'more']" in caught.error.headline
    job.add("more", "a")
    assert job.run("numbers", "more") == {"a": 2}, "nothing was changed"
