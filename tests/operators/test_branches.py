"""`delivery="mapped"`: the tasks of a pipeline whose branches are loaded side by side."""

from __future__ import annotations

from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.definitions.mappedoperator import MappedOperator
from airflow.serialization.serialized_objects import DagSerialization

from airflow_ft import KafkaSink, MySqlSink, PostgresSink
from airflow_ft.operators.branches import AnnounceOperator, LoadBranchOperator
from airflow_ft.operators.pipeline import CheckpointedPipeline
from airflow_ft.protocol.announced import Announcement
from airflow_ft.protocol.errors import ConfigurationError
from tests.operators.declared import spec
from tests.raising import raises

XA = MySqlSink(table="t", conn_id="shop", strategy="xa", branches=4)


def mapped(dag: DAG, **changes: Any) -> CheckpointedPipeline:
    with dag:
        return CheckpointedPipeline(spec(**{"sinks": {"orders": XA}, **changes}), delivery="mapped")


def test_branches_are_announced_loaded_and_voted_for() -> None:
    dag = DAG("d", schedule=None)
    mapped(dag, sinks={"orders": XA, "alerts": KafkaSink(topic="alerts", conn_id="bus")})
    tasks = {task.task_id.removeprefix("orders."): task for task in dag.tasks}
    announce, load, prepare = (tasks[f"prepare.shop{name}"] for name in ("-announce", "-load", ""))
    assert isinstance(announce, AnnounceOperator)
    assert isinstance(load, MappedOperator) and load.operator_class is LoadBranchOperator
    assert announce.upstream_task_ids == {"orders.stage"} and load.upstream_task_ids == {announce.task_id}
    assert prepare.upstream_task_ids == {announce.task_id, load.task_id}
    assert prepare.trigger_rule == "all_done_min_one_success"  # failed loads are done again, a failed stage is not
    assert tasks["commit.shop"].upstream_task_ids == {prepare.task_id, "orders.prepare.bus"}
    assert "prepare.bus-load" not in tasks


def test_the_branches_of_postgres_are_loaded_by_tasks() -> None:
    dag = DAG("d", schedule=None)
    mapped(dag, sinks={"orders": PostgresSink(table="t", conn_id="shop", strategy="prepared", branches=2)})
    assert {"orders.prepare.shop-announce", "orders.prepare.shop-load"} <= {task.task_id for task in dag.tasks}


def test_a_dag_is_serialised_identically_at_each_parse() -> None:
    def once() -> dict[str, Any]:
        dag = DAG("d", schedule=None)
        mapped(dag)
        return DagSerialization.serialize_dag(dag)

    assert once() == once()
    DagSerialization.deserialize_dag(once())


@pytest.mark.parametrize(
    ("changes", "argument"),
    [
        ({"streaming": True}, "streaming"),
        ({"overlap": True}, "overlap"),
        ({"sinks": {"orders": MySqlSink(table="t", conn_id="shop")}}, "sinks"),
        ({"sinks": {"orders": MySqlSink(table="t", conn_id="shop", strategy="xa", branches=1)}}, "sinks"),
        ({"sinks": {"orders": PostgresSink(table="t", conn_id="shop", strategy="prepared")}}, "sinks"),
    ],
)
def test_mapped_delivery_is_refused_if_no_task_loads_branches(changes: dict[str, Any], argument: str) -> None:
    dag = DAG("d", schedule=None)
    with raises(ConfigurationError, "arguments_conflict", arguments=["delivery", argument]):
        mapped(dag, **changes)
    assert not dag.tasks


def test_another_delivery_is_refused() -> None:
    with raises(ConfigurationError, "argument_invalid", argument="delivery"), DAG("d", schedule=None):
        CheckpointedPipeline(spec(sinks={"orders": XA}), delivery="mappd")


def test_it_is_refused_in_a_mapped_group() -> None:
    from airflow.sdk import task_group

    with DAG("d", schedule=None):

        @task_group
        def each(shop: str) -> None:
            CheckpointedPipeline(spec(sinks={"orders": XA}, suffix=shop), delivery="mapped")

        with raises(ConfigurationError, "arguments_conflict", argument="delivery"):
            each.expand(shop=["a", "b"])


def test_an_announcement_survives_xcom() -> None:
    found = Announcement(3, "shop", 2, 7, ("0001", "0002"), {"session": "ab", "tables": {"orders": {"rows": 3}}})
    data = found.to_json()
    assert Announcement.from_json({**data, "branch": "0001"}).to_json() == data
