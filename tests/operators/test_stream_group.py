"""The operator of a group of streams; nothing is run."""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG

from airflow_ft import CheckpointedPipeline, FixedDelay, SocketSource, StreamGroupOperator
from airflow_ft.operators.stream_group import _first_try, _raise_failures
from airflow_ft.protocol.errors import ConfigurationError, FencedError, JobError, NotDeliveredError, StageError
from tests.operators.declared import spec
from tests.raising import raises

pytestmark = pytest.mark.airflow


def stream(pipeline: str, **changes: Any) -> Any:
    return spec(pipeline=pipeline, streaming=True, **changes)


def group(*streams: Any, **arguments: Any) -> StreamGroupOperator:
    with DAG("d", schedule=None, **arguments):
        return StreamGroupOperator(task_id="small", streams=streams)


def test_a_group_is_one_task_with_the_assets_of_all_its_streams() -> None:
    task = group(stream("orders"), stream("returns"))
    assert (task.retries, task.retry_delay) == (5000, timedelta(seconds=3))
    names = [getattr(outlet, "uri", "") for outlet in task.outlets]
    assert {"airflow-ft://orders/", "airflow-ft://returns/"} <= set(names)
    assert task.pipelines == ("orders", "returns")
    assert [each["pipeline"] for each in task.streams] == ["orders", "returns"]
    assert group(stream("orders"), default_args={"retries": 7}).retries == 7


@pytest.mark.parametrize(
    ("name", "one", "other"),
    [
        ("spark.driver.memory", {"spark_conf": {"spark.driver.memory": "2g"}}, {}),
        ("spark.driver.memory", {}, {"spark_conf": {"spark.driver.memory": "2g"}}),
        ("spark.sql.extensions", {"spark_conf": {"spark.sql.extensions": "a.B"}}, {}),
        ("spark.sql.codegen.cache.maxEntries", {"spark_conf": {"spark.sql.codegen.cache.maxEntries": "9"}}, {}),
        ("spark_master", {"spark_master": "local[1]"}, {}),
        ("jars", {"jars": ["/a.jar"]}, {}),
        ("packages", {"packages": ["a:b:1"]}, {}),
        ("wal_root", {"wal_root": "s3://one@bucket/ft"}, {"wal_root": "s3://two@bucket/ft"}),
    ],
)
def test_what_a_jvm_has_once_must_be_equal(name: str, one: dict[str, Any], other: dict[str, Any]) -> None:
    with raises(ConfigurationError, "group_unequal", setting=name, pipelines=["b"]):
        group(stream("a", **one), stream("b", **other))


def test_settings_of_a_session_may_differ() -> None:
    group(stream("a", spark_conf={"spark.sql.shuffle.partitions": "2"}), stream("b"))


def test_streams_that_cannot_share_a_driver_are_refused() -> None:
    with raises(ConfigurationError, "arguments_conflict", argument="streaming"):
        group(spec(pipeline="a"))
    with raises(ConfigurationError, "arguments_conflict", argument="keep_session"):
        group(stream("a", keep_session=timedelta(minutes=1)))
    with raises(ConfigurationError, "pipeline_duplicated"):
        group(stream("a"), stream("a"))
    with raises(ConfigurationError, "argument_missing", argument="streams"):
        group()
    socket = {"checkpointing": {"mode": "AT_MOST_ONCE"}, "sources": {"l": SocketSource(host="localhost", port=9999)}}
    with raises(ConfigurationError, "arguments_conflict", source="l"):
        group(stream("a", **socket), stream("b", **socket))


def test_its_driver_has_a_restart_strategy() -> None:
    with DAG("d", schedule=None):
        task = StreamGroupOperator(task_id="small", streams=[stream("a")], restart=FixedDelay(attempts=2))
    assert str(task.restart) == "2 times, 1 s apart"
    with DAG("d", schedule=None), raises(ConfigurationError, "argument_invalid", argument="restart"):
        StreamGroupOperator(task_id="small", streams=[stream("a")], restart=2)


def test_a_pipeline_has_one_task_in_its_dag() -> None:
    with DAG("d", schedule=None):
        StreamGroupOperator(task_id="small", streams=[stream("a"), stream("b")])
        with raises(ConfigurationError, "pipeline_duplicated"):
            CheckpointedPipeline(stream("b"))
    with DAG("d", schedule=None):
        CheckpointedPipeline(stream("b"))
        with raises(ConfigurationError, "pipeline_duplicated"):
            StreamGroupOperator(task_id="small", streams=[stream("a"), stream("b")])


def test_the_task_fails_for_good_if_every_failure_is_terminal() -> None:
    _raise_failures({})
    with raises(NotDeliveredError, "group_failed", pipelines=["a"]):
        _raise_failures({"a": JobError("it is bad.")})
    with raises(StageError, "group_failed", pipelines=["a", "b"]):
        _raise_failures({"a": JobError("it is bad."), "b": FencedError("another process took epoch 2.")})


@pytest.mark.parametrize(
    ("try_number", "max_tries", "is_retry"),
    [(1, 1000, False), (2, 1000, True), (5, 1004, False), (6, 1004, True), (1, 0, False)],
    ids=["first", "retry", "cleared at try 4", "retry after that", "without retries"],
)
def test_a_cleared_task_is_no_retry_though_its_run_has_not_ended(
    try_number: int, max_tries: int, is_retry: bool
) -> None:
    context: Any = {"ti": SimpleNamespace(try_number=try_number, max_tries=max_tries)}
    retries = min(max_tries, 1000)
    assert _first_try(context, retries) == (max_tries - retries + 1 if is_retry else None)


def test_commands_find_each_stream() -> None:
    task = group(stream("a"), stream("b"), params={"x": 1})
    found = task.operator_of("b")
    assert (found.pipeline, found.dag_id, dict(found.dag.params)) == ("b", "d", {"x": 1})
