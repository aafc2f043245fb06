"""The task group as a DAG sees it; nothing is run."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from airflow.sdk import DAG, Asset, TriggerRule
from airflow.serialization.serialized_objects import DagSerialization

from airflow_ft import CheckpointConfig, CheckpointedPipeline, FileSource, KafkaSink, MySqlSink
from airflow_ft.core.errors import ConfigurationError

pytestmark = pytest.mark.airflow

SINKS = {
    "alerts": KafkaSink(topic="alerts", conn_id="bus"),
    "orders": MySqlSink(table="shop.orders", conn_id="shop"),
    "lines": MySqlSink(table="{{ params.table }}", conn_id="shop"),
}


def pipeline(dag: DAG, **changes: Any) -> CheckpointedPipeline:
    with dag:
        return CheckpointedPipeline(
            **{
                "pipeline": "orders",
                "job": "jobs.orders",
                "sources": {"files": FileSource(path="/data", schema="id bigint")},
                "sinks": SINKS,
                **changes,
            }
        )


@pytest.fixture
def dag() -> DAG:
    return DAG("d", schedule=None)


def test_the_tasks_and_their_order(dag: DAG) -> None:
    group = pipeline(dag)
    upstream = {task.task_id: task.upstream_task_ids for task in dag.tasks}
    assert upstream == {
        "orders.recover": set(),
        "orders.stage": {"orders.recover"},
        "orders.prepare.bus": {"orders.stage"},
        "orders.prepare.shop": {"orders.stage"},
        "orders.commit.shop": {"orders.prepare.bus", "orders.prepare.shop"},
        "orders.commit.bus": {"orders.commit.shop"},
        "orders.confirmed": {"orders.commit.bus"},
    }
    assert group.commit_order == ("shop", "bus")
    assert [task.task_id for task in group.leaves] == ["orders.confirmed"]
    assert [task.task_id for task in group.roots] == ["orders.recover"]


def test_commits_and_the_confirmation_run_beside_failed_siblings(dag: DAG) -> None:
    pipeline(dag)
    rules = {task.task_id: task.trigger_rule for task in dag.tasks}
    all_done = {name for name, rule in rules.items() if rule == TriggerRule.ALL_DONE}
    assert all_done == {"orders.commit.shop", "orders.commit.bus", "orders.confirmed"}


def test_whoever_stands_behind_the_group_needs_its_success(dag: DAG) -> None:
    from airflow.providers.standard.operators.empty import EmptyOperator

    group = pipeline(dag)
    with dag:
        report = EmptyOperator(task_id="report")
    group >> report
    assert report.upstream_task_ids == {"orders.confirmed"}
    assert report.trigger_rule == TriggerRule.ALL_SUCCESS


def test_retries_are_three_unless_somebody_says_otherwise() -> None:
    for dag_args, group_args, expected in (
        ({}, {}, (3, timedelta(seconds=15))),
        ({"retries": 1}, {}, (1, timedelta(seconds=15))),
        ({"retries": 1}, {"retries": 5, "retry_delay": timedelta(seconds=1)}, (5, timedelta(seconds=1))),
    ):
        dag = DAG("d", schedule=None, default_args=dag_args)
        pipeline(dag, default_args=group_args)
        assert {(task.retries, task.retry_delay) for task in dag.tasks} == {expected}


def test_the_asset_is_updated_by_recover_and_confirmed(dag: DAG) -> None:
    group = pipeline(dag)
    assert group.asset == Asset("airflow-ft://orders")
    assert {t.task_id for t in dag.tasks if group.asset in t.outlets} == {"orders.recover", "orders.confirmed"}
    quiet = DAG("quiet", schedule=None)
    pipeline(quiet, emit_asset=False)
    assert not any(task.outlets for task in quiet.tasks)


def test_two_pipelines_in_one_dag_and_one_in_a_group(dag: DAG) -> None:
    from airflow.sdk import TaskGroup

    pipeline(dag)
    with dag, TaskGroup("outer"):
        CheckpointedPipeline(
            pipeline="other",
            group_id="inner",
            job="jobs.other",
            sources={"files": FileSource(path="/data", schema="id bigint")},
            sinks={"orders": MySqlSink(table="orders", conn_id="shop")},
            checkpointing=CheckpointConfig(num_retained=1),
        )
    assert "outer.inner.commit.shop" in dag.task_dict


def test_a_dag_with_it_is_serialised_and_shows_no_change_at_the_next_parse() -> None:
    def once() -> dict[str, Any]:
        dag = DAG("d", schedule=None)
        pipeline(dag)
        return DagSerialization.serialize_dag(dag)

    first = once()
    assert first == once()
    DagSerialization.deserialize_dag(first)


def test_a_sink_with_a_time_out_is_serialised_too() -> None:
    held = KafkaSink(topic="alerts", strategy="held", transaction_timeout=timedelta(minutes=10))

    def once() -> dict[str, Any]:
        dag = DAG("d", schedule=None)
        pipeline(dag, sinks={"alerts": held})
        return DagSerialization.serialize_dag(dag)

    assert once() == once()
    DagSerialization.deserialize_dag(once())


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"pipeline": "Orders"}, "'Orders' cannot name a pipeline"),
        ({"sinks": {}}, "no sinks"),
        ({"sinks": {"A": SINKS["orders"]}}, "'A' cannot name a sink"),
        ({"commit_point": "bus"}, "commit_point='bus'"),
        ({"commit_point": "nobody"}, "commit_point='nobody'"),
        ({"optional_sinks": ["rejected"]}, "rejected"),
        ({"sinks": {"orders": MySqlSink(table="orders", conn_id="{{ var.value.x }}")}}, "connection id"),
        ({"sinks": {"orders": MySqlSink(table="orders", conn_id="a/b")}}, "'a/b'"),
        (
            {
                "sinks": {"alerts": KafkaSink(topic="alerts", strategy="held")},
                "checkpointing": CheckpointConfig(timeout=timedelta(minutes=16)),
            },
            "sink 'alerts'.*shorter than CheckpointConfig.timeout",
        ),
    ],
)
def test_what_cannot_work_is_refused_when_the_dag_is_parsed(dag: DAG, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words.replace("'", "['\"]?")):
        pipeline(dag, **changes)
