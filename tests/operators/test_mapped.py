"""Mapped values in the texts of a pipeline: a value itself works, text around one is refused when the DAG is parsed."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG, task, task_group

from airflow_ft.operators.pipeline import CheckpointedPipeline
from airflow_ft.protocol.errors import ConfigurationError
from airflow_ft.sinks.delta.spec import DeltaSink
from airflow_ft.sinks.files.spec import FilesSink
from airflow_ft.sinks.kafka.spec import KafkaSink
from airflow_ft.sinks.mysql.spec import MySqlSink
from airflow_ft.sinks.postgres.spec import PostgresSink
from airflow_ft.sinks.sqlite.spec import SqliteSink
from airflow_ft.sources import FileSource, KafkaSource, SocketSource
from tests.raising import raises

Value = Any
PLACES: dict[str, Callable[[Value], dict[str, Any]]] = {
    "path": lambda x: _source(FileSource(path=x, schema="id int")),
    "schema": lambda x: _source(FileSource(path="/in", schema=x)),
    "format": lambda x: _source(FileSource(path="/in", schema="id int", format=x)),
    "file option": lambda x: _source(FileSource(path="/in", schema="id int", options={"sep": x})),
    "max files": lambda x: _source(FileSource(path="/in", schema="id int", max_files_per_trigger=x)),
    "topics": lambda x: _source(KafkaSource(topics=["other", x])),
    "pattern": lambda x: _source(KafkaSource(pattern=x)),
    "group": lambda x: _source(KafkaSource(topics=["t"], group_id=x)),
    "start": lambda x: _source(KafkaSource(topics=["t"], starting_offsets=x)),
    "connection of a source": lambda x: _source(KafkaSource(topics=["t"], conn_id=x)),
    "Kafka": lambda x: _sink(KafkaSink(topic=x)),
    "MySQL": lambda x: _sink(MySqlSink(table=x)),
    "MySQL's ledger": lambda x: _sink(MySqlSink(table="t", ledger_schema=x)),
    "PostgreSQL": lambda x: _sink(PostgresSink(table=x)),
    "SQLite": lambda x: _sink(SqliteSink(table=x)),
    "files": lambda x: _sink(FilesSink(folder=x, name="files")),
    "Delta": lambda x: _sink(DeltaSink(table=x, name="orders")),
    "job_args": lambda x: {"job_args": {"a": {"b": [x]}}},
    "spark_conf": lambda x: {"spark_conf": {"spark.x": x}},
    "wal_root": lambda x: {"wal_root": x},
    "spark_master": lambda x: {"spark_master": x},
    "store": lambda x: {"store": x},
    "job": lambda x: {"job": x},
    "jars": lambda x: {"jars": x},
    "packages": lambda x: {"packages": [x]},
    "checkpointing": lambda x: {"checkpointing": {"timeout": x}},
    "suffix": lambda x: {"suffix": x},
    "pipeline": lambda x: {"pipeline": x, "suffix": None},
}


def _source(source: Any) -> dict[str, Any]:
    return {"sources": {"in": source}}


def _sink(sink: Any) -> dict[str, Any]:
    return {"sinks": {"out": sink}}


def _dag(arguments: Callable[[Value, Any], dict[str, Any]], values: tuple[str, ...] = ("de", "fr")) -> DAG:
    with DAG("shops") as dag:

        @task
        def text_of(x: str) -> str:
            return f"/data/{x}"

        @task_group
        def load(x: str) -> None:
            declared = {
                "pipeline": "orders",
                "suffix": x,
                "job": "jobs.orders",
                "sources": {"in": KafkaSource(topics=["t"])},
                "sinks": {"out": SqliteSink(table="t")},
            }
            CheckpointedPipeline(**(declared | arguments(x, text_of)))

        load.expand(x=list(values))
    return dag


@pytest.mark.parametrize("place", PLACES)
def test_a_mapped_value_works_alone_but_not_inside_other_text(place: str) -> None:
    _dag(lambda x, _: PLACES[place](x))
    _dag(lambda x, text_of: PLACES[place](text_of(x)))
    with pytest.raises(ConfigurationError) as refused:
        _dag(lambda x, _: PLACES[place](f"t_{x}"))
    assert "(...)" in refused.value.headline and ".expand(" in refused.value.remedy
    with pytest.raises(ConfigurationError) as refused:
        _dag(lambda x, text_of: PLACES[place](f"t_{text_of(x).map(str)}"))
    assert "(...)" in refused.value.headline and ".expand(" in refused.value.remedy


@pytest.mark.parametrize("place", [name for name in PLACES if name not in ("suffix", "pipeline")])
def test_jinja_that_pulls_outputs_of_all_map_indexes_is_refused(place: str) -> None:
    with raises(ConfigurationError, "argument_invalid", pulled="load.text_of") as refused:
        _dag(lambda x, text_of: PLACES[place](f"{text_of(x)}/in"))
    own = "{{ ti.xcom_pull(task_ids='load.text_of', map_indexes=ti.map_index) }}"
    assert refused.error is not None and own in refused.error.remedy
    _dag(lambda x, text_of: PLACES[place](f"{own}{'' if text_of(x) else x}"))


def test_jinja_of_a_task_outside_is_as_good_as_ever() -> None:
    with DAG("shops"):

        @task
        def folder() -> str:
            return "/data"

        CheckpointedPipeline(
            pipeline="orders",
            job="jobs.orders",
            sources={"in": FileSource(path=f"{folder()}/in", schema="id int")},
            sinks={"out": SqliteSink(table="t")},
        )


def test_each_map_index_gets_its_own_text() -> None:
    def arguments(x: Value, _: Any) -> dict[str, Any]:
        return {
            "suffix": "{{ ti.map_index }}",
            "sources": {"in": FileSource(path=x, schema="id int")},
            "sinks": {"out": SqliteSink(table=x)},
            "job_args": {"shop": x},
        }

    stage = _dag(arguments, ("/de", "/fr")).get_task("load.orders.stage")
    ti = SimpleNamespace(map_index=1, task=stage)
    stage.render_template_fields({"ti": ti, "expanded_ti_count": 2})  # type: ignore[typeddict-item]
    spec = stage.rendered()
    assert spec.pipeline == "orders-1" and spec.sources["in"].path == "/fr" and spec.job_args == {"shop": "/fr"}
    assert spec.sinks["out"].table == "/fr"


def test_the_connection_of_a_sink_cannot_be_a_mapped_value() -> None:
    with pytest.raises(ConfigurationError) as refused:
        _dag(lambda x, _: _sink(KafkaSink(topic="t", conn_id=x)))
    assert refused.value.sink == "out"


@pytest.mark.parametrize(
    "made",
    [
        lambda x: MySqlSink(table="t", strategy=x),
        lambda x: MySqlSink(table="t", strategy="upsert", key_columns=[x], version_column="v"),
        lambda x: PostgresSink(table="t", strategy="upsert", key_columns=["k"], version_column=x),
        lambda x: KafkaSink(topic="t", key=x),
        lambda x: KafkaSink(topic="t", strategy=x),
        lambda x: FilesSink(folder="/out", partition_by=[x]),
        lambda x: DeltaSink(table="/out", partition_by=[x]),
    ],
)
def test_what_makes_the_dag_is_no_mapped_value(made: Callable[[Value], Any]) -> None:
    with pytest.raises(ConfigurationError) as refused:
        _dag(lambda x, _: _sink(made(x)))
    assert "map indexes" in refused.value.remedy


def test_an_object_in_text_is_refused_outside_of_a_pipeline_too() -> None:
    with pytest.raises(ConfigurationError):
        SocketSource(host=f"{_dag(lambda *_: {}).get_task('load.orders.stage')!r}", port=1)
