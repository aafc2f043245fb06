"""From the beginning, with real Spark: everything is read anew, once, wherever it dies; and where it is refused."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.coordinator import Coordinator
from airflow_ft.protocol.errors import (
    ConfigurationError,
    DataLossError,
    FencedError,
    LeaseHeldError,
    StateConflictError,
)
from airflow_ft.protocol.from_savepoint import BEGINNING, Later
from airflow_ft.protocol.lease import Worker, new_epoch
from airflow_ft.protocol.recovery import give_up_undecided
from airflow_ft.sources import FileSource, KafkaSource
from airflow_ft.spark.request import StageRequest
from airflow_ft.spark.savepoints.restoring import restore
from tests.conftest import TopicFactory
from tests.integration.stage_world import JARS, PIPELINE, StageWorld, with_connection, world
from tests.raising import raises
from tests.store.scene import Scene
from tools.servers import Database, Kafka

pytestmark = [
    pytest.mark.sampled(among="Spark drivers"),
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.timeout(900),
]
ROOT = Path(__file__).parents[2]


@pytest.fixture
def pipeline(tmp_path: Path, sessions: Path, own_sessions: Path) -> Iterator[StageWorld]:
    yield from world(tmp_path, sessions, own_sessions)


def _counts(pipeline: StageWorld, **more: Any) -> StageRequest:
    source = FileSource(path=str(pipeline.input), schema="k string, n bigint")
    return pipeline.request("stage_jobs:Counts", {"numbers": source}, job_arguments={"by": "count"}, **more)


def _delivered(pipeline: StageWorld, **more: Any) -> set[int]:
    """The counts that sinks get by one more run."""
    pipeline.complete(_counts(pipeline, **more))
    pipeline.deliver()
    return {row["rows"] for row in pipeline.rows(pipeline.published()[-1]).to_pylist()}


def _add(pipeline: StageWorld, n: int) -> None:
    pipeline.add_file(f"f{n}", [{"k": k, "n": 10 * n + i} for i in range(2) for k in "ab"])


def no_participant(_: Any) -> Any:
    raise AssertionError("no sink is asked")


def _start_from_scratch(pipeline: StageWorld, later: Later = Later.WRITE_AGAIN, **more: Any) -> None:
    options = {"pipeline": PIPELINE, "later": later, "lease_seconds": 0.0, **more}
    restored = restore(pipeline.store, BEGINNING, no_participant, Worker("", 1), "a test", **options)
    assert restored.savepoint is None and restored.position == pipeline.store.pipeline(PIPELINE).base


def test_everything_is_read_anew_without_state_and_numbers_go_on(pipeline: StageWorld) -> None:
    _start_from_scratch(pipeline)
    assert pipeline.store.pipeline(PIPELINE).base is None, "it had read nothing"
    for n in range(2):
        _add(pipeline, n)
        assert _delivered(pipeline) == {2 * n + 2}
    before = pipeline.store.pipeline(PIPELINE).base
    with raises(StateConflictError, "rows_would_repeat", sinks=["db", "log"]):
        _start_from_scratch(pipeline, Later.REFUSE)
    with raises(ConfigurationError, "arguments_conflict", argument="later"):
        _start_from_scratch(pipeline, Later.CONTINUE)
    with raises(ConfigurationError, "arguments_conflict", argument="rename"):
        _start_from_scratch(pipeline, rename=True)
    assert pipeline.store.pipeline(PIPELINE).base == before
    _start_from_scratch(pipeline)
    # Also what Spark keeps for the life of a state may be another: there is none.
    other = {"conf": {"spark.sql.shuffle.partitions": "3"}}
    assert _delivered(pipeline, **other) == {4}, "both files, at once, and no count of before"
    assert [checkpoint.number for checkpoint in pipeline.published()] == [1, 2, 3]
    _add(pipeline, 2)
    assert _delivered(pipeline, **other) == {6}, "only the third one"


def test_a_rewind_after_a_full_refresh_goes_to_the_beginning(pipeline: StageWorld) -> None:
    """The number before still says where a rewind ends."""
    _add(pipeline, 0)
    assert _delivered(pipeline) == {2}
    _start_from_scratch(pipeline)
    pipeline.complete(_counts(pipeline))
    store = pipeline.store
    number = pipeline.published()[-1].number
    assert number == 2
    with new_epoch(store, PIPELINE, Worker("", 1), "a test", lease_seconds=0.0) as (epoch, _):
        give_up_undecided(store, PIPELINE, Coordinator(store, PIPELINE, epoch, no_participant), "a test")
    _add(pipeline, 1)
    assert _delivered(pipeline) == {4}, "both files: nothing of the second number was kept"


def test_whoever_dies_before_the_write_has_changed_nothing(
    pipeline: StageWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    _add(pipeline, 0)
    assert _delivered(pipeline) == {2}

    class Died(BaseException):
        pass

    def die(*_: Any, **__: Any) -> None:
        raise Died

    with monkeypatch.context() as patch, pytest.raises(Died):
        patch.setattr(type(pipeline.store), "restore", die)
        _start_from_scratch(pipeline)
    _add(pipeline, 1)
    assert _delivered(pipeline) == {4}, "it has counted on, with the second file"


def test_whoever_wakes_up_later_is_fenced(pipeline: StageWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    _add(pipeline, 0)
    assert _delivered(pipeline) == {2}
    store, write = pipeline.store, type(pipeline.store).restore

    def sleep(*given: Any) -> None:
        while store.pipeline(PIPELINE).epoch == given[2]:
            with suppress(LeaseHeldError):  # it was renewed between two looks
                Scene(store, PIPELINE).take("its successor")
        write(*given)

    with monkeypatch.context() as patch, pytest.raises(FencedError):
        patch.setattr(type(store), "restore", sleep)
        _start_from_scratch(pipeline)
    _add(pipeline, 1)
    assert _delivered(pipeline) == {4}


def _milliseconds(at: datetime | None) -> int:
    return 0 if at is None else int(at.timestamp() * 1000)  # 0: now


def _send(kafka: Kafka, topic: str, *numbers: int, at: datetime | None = None) -> None:
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    for n in numbers:
        producer.produce(topic, json.dumps({"id": n}).encode(), partition=0, timestamp=_milliseconds(at))
    assert not producer.flush(30)


def _run(pipeline: StageWorld, kafka: Kafka, source: KafkaSource) -> list[int]:
    """The ids that one more run delivers."""
    request = pipeline.request("stage_jobs:Plain", {"numbers": source}, jars=(str(JARS),))
    place = ConnectionInfo("kafka_default", "kafka", extra={"bootstrap.servers": kafka.bootstrap})
    before = len(pipeline.published())
    pipeline.complete(with_connection(request, place))
    pipeline.deliver()
    found = pipeline.published()[before:]
    return [json.loads(row["value"])["id"] for checkpoint in found for row in pipeline.rows(checkpoint).to_pylist()]


def test_records_that_were_not_read_yet_are_not_passed_over(
    pipeline: StageWorld, kafka: Kafka, topic_factory: TopicFactory
) -> None:
    """A full refresh from a time, or "latest", behind where the pipeline stands."""
    topic = topic_factory(partitions=1)
    source = KafkaSource(topics=[topic], starting_offsets="earliest")

    def at(**start: Any) -> list[int]:
        return _run(pipeline, kafka, replace(source, **start))

    now = datetime.now(UTC).replace(microsecond=0)  # within retention
    hour = [now + timedelta(hours=n) for n in (-3, -2, -1)]
    _send(kafka, topic, 1, 2, at=hour[0])
    assert at() == [1, 2]
    _send(kafka, topic, 3, at=hour[1])
    _send(kafka, topic, 4, at=hour[2])
    _start_from_scratch(pipeline)
    for _ in range(2):
        with raises(DataLossError, "records_skipped", records=1, skipped=[[topic, 0, 2, 3]]):
            at(starting_offsets=hour[2])
    with raises(DataLossError, "records_skipped", records=2):
        at(starting_offsets="latest")
    assert at(starting_offsets=hour[1]) == [3, 4], "from where it stands on nothing is passed over"
    _send(kafka, topic, 5, at=hour[1])
    _send(kafka, topic, 6, at=hour[2])
    _start_from_scratch(pipeline)
    assert at(starting_offsets={topic: {0: 5}}, fail_on_data_loss=False) == [6], "who says so passes them over"
    assert at() == [], "once, and it goes on from there"


def test_kafka_is_read_from_where_it_begins_now(
    pipeline: StageWorld, kafka: Kafka, topic_factory: TopicFactory
) -> None:
    """What the first run had frozen of where it begins does not count: the topic has lost that since."""
    topic = topic_factory(partitions=1)
    source = KafkaSource(topics=[topic], starting_offsets="earliest")

    def run() -> list[int]:
        return _run(pipeline, kafka, source)

    _send(kafka, topic, 1, 2, 3)
    assert run() == [1, 2, 3]
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    for answer in admin.delete_records([TopicPartition(topic, 0, 1)]).values():
        answer.result(30)
    _start_from_scratch(pipeline)
    _send(kafka, topic, 4)
    assert run() == [2, 3, 4]
    _send(kafka, topic, 5)
    assert run() == [5]


_RUN = """
import sys
import airflow_ft as ft

@ft.job
def orders(spark, sources):
    return sources["orders"]

folder, run_id, begin = sys.argv[1:]
keyed = {"strategy": "upsert", "key_columns": ["id"], "version_column": "version"}
ft.run(
    pipeline="orders",
    job=orders,
    sources={"orders": ft.FileSource(path=f"{folder}/in", schema="id bigint, price bigint")},
    sinks={"orders": ft.PostgresSink(table="orders", conn_id="shop", **keyed)},
    spark_master="local[2]",
    spark_conf={"spark.driver.memory": "700m"},
    run_id=run_id,
    from_savepoint=begin,
)
"""


@pytest.mark.airflow
def test_a_full_refresh_updates_upserted_rows_once_per_run(tmp_path: Path, postgres_database: Database) -> None:
    """A price that was mended in the files is mended in the table; the same run once more does nothing."""
    (tmp_path / "run.py").write_text(_RUN)
    (tmp_path / "in").mkdir()
    postgres_database.sql("CREATE TABLE orders (id bigint PRIMARY KEY, price bigint, version bigint NOT NULL)")
    kept = {n: v for n, v in os.environ.items() if not n.startswith("AIRFLOW") and n != "PYTEST_CURRENT_TEST"}
    variables = {
        **kept,
        "AIRFLOW_HOME": str(tmp_path / "home"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW_CONN_SHOP": json.dumps(postgres_database.airflow_connection()),
    }

    def run(run_id: str, begin: str = "") -> str:
        command = [sys.executable, str(tmp_path / "run.py"), str(tmp_path), run_id, begin]
        done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=300)
        return "" if done.returncode == 0 else done.stderr

    def write(price: int) -> None:
        (tmp_path / "hidden").write_text("".join(json.dumps({"id": n, "price": price}) + "\n" for n in range(3)))
        (tmp_path / "hidden").rename(tmp_path / "in" / "orders.json")

    def prices() -> list[tuple[int, int]]:
        return [(n, price) for n, price in postgres_database.sql("SELECT id, price FROM orders ORDER BY 1")]

    write(10)
    assert run("monday") == ""
    write(20)
    assert run("tuesday") == "" and prices() == [(n, 10) for n in range(3)], "the file was read before"
    assert run("wednesday", BEGINNING) == "" and prices() == [(n, 20) for n in range(3)]
    write(30)
    assert run("wednesday", BEGINNING) == "" and prices() == [(n, 20) for n in range(3)], "a run does it once"
