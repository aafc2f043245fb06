"""The task group as a DAG sees it; nothing is run."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG, Asset, BaseOperator, Param, TriggerRule, task_group
from airflow.serialization.serialized_objects import DagSerialization

from airflow_ft import CheckpointConfig, CheckpointedPipeline, FileSource, KafkaSink, KafkaSource, MySqlSink
from airflow_ft.operators.stage import StageOperator
from airflow_ft.protocol.errors import PROPOSED, ConfigurationError, UnfitTargetError, together
from airflow_ft.protocol.restart import ExponentialDelay, FailureRate, FixedDelay, NoRestart
from tests.operators.declared import spec
from tests.raising import raises

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
        "orders.confirmed": {"orders.commit.shop", "orders.commit.bus"},
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


def test_a_restart_strategy_overrides_the_dag_but_not_the_group() -> None:
    from airflow.sdk import TaskGroup

    around = {"retries": 1, "retry_exponential_backoff": 4.0, "max_retry_delay": timedelta(hours=1)}
    for restart, group_args, expected in (
        (FixedDelay(attempts=7), {}, (7, timedelta(seconds=1), 0, None)),
        ({"type": "fixed-delay", "attempts": 7, "delay": 9}, {}, (7, timedelta(seconds=9), 0, None)),
        (FixedDelay(attempts=7), {"retries": 2}, (2, timedelta(seconds=1), 0, None)),
        (NoRestart(), {}, (0, timedelta(0), 0, None)),
        (None, {}, (1, timedelta(seconds=15), 4.0, timedelta(hours=1))),
        (
            ExponentialDelay(attempts_before_reset_backoff=9),
            {},
            (9, timedelta(seconds=1), 1.5, timedelta(minutes=1)),
        ),
    ):
        in_dag, in_group = DAG("d", schedule=None, default_args=around), DAG("d", schedule=None)
        pipeline(in_dag, restart=restart, default_args=group_args)
        with in_group, TaskGroup("outer", default_args=around):
            pipeline(in_group, restart=restart, default_args=group_args)
        for dag in (in_dag, in_group):
            found = {
                (each.retries, each.retry_delay, each.retry_exponential_backoff, each.max_retry_delay)
                for each in dag.tasks
            }
            assert found == {expected}
            DagSerialization.deserialize_dag(DagSerialization.serialize_dag(dag))


@pytest.mark.parametrize(
    ("restart", "code", "name"),
    [
        (FailureRate(), "argument_invalid", "FixedDelay"),
        (ExponentialDelay(), "argument_invalid", "attempts_before_reset_backoff=10"),
        (FixedDelay(attempts=None), "argument_invalid", "attempts=10"),
        ({"type": "fixed-delay", "attempts": "{{ params.n }}"}, "value_known_too_late", "attempts"),
    ],
)
def test_a_restart_strategy_that_airflow_cannot_run_is_refused(dag: DAG, restart: Any, code: str, name: str) -> None:
    with raises(ConfigurationError, code, argument="restart") as caught:
        pipeline(dag, restart=restart)
    assert caught.error is not None and name in caught.error.remedy and not dag.tasks


def test_the_asset_is_updated_by_recover_and_confirmed(dag: DAG) -> None:
    group = pipeline(dag)
    assert group.asset == Asset("airflow-ft://orders")
    assert {t.task_id for t in dag.tasks if group.asset in t.outlets} == {"orders.recover", "orders.confirmed"}
    quiet = DAG("quiet", schedule=None)
    pipeline(quiet, emit_asset=False)
    assert not any(task.outlets for task in quiet.tasks)


def test_a_trigger_rule_of_the_dag_applies_only_to_recover() -> None:
    dag = DAG("d", schedule=None, default_args={"trigger_rule": "one_failed"})
    pipeline(dag)
    rules = {task.task_id.removeprefix("orders."): task.trigger_rule.value for task in dag.tasks}
    assert rules.pop("recover") == "one_failed"
    assert set(rules.values()) == {"all_success", "all_done"} and rules["stage"] == "all_success"


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


def test_a_dag_is_serialised_identically_at_each_parse() -> None:
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
    ("changes", "name"),
    [
        ({"pipeline": "Orders"}, "'Orders'"),
        ({"sinks": {}}, "sinks"),
        ({"sinks": {"A": SINKS["orders"]}}, "'A'"),
        ({"commit_point": "bus"}, "'bus'"),
        ({"commit_point": "nobody"}, "'nobody'"),
        ({"optional_sinks": ["rejected"]}, "rejected"),
        ({"sinks": {"orders": MySqlSink(table="orders", conn_id="{{ var.value.x }}")}}, "{{ var.value.x }}"),
        ({"sinks": {"orders": MySqlSink(table="orders", conn_id="a/b")}}, "'a/b'"),
        (
            {
                "sinks": {"alerts": KafkaSink(topic="alerts", strategy="held")},
                "checkpointing": CheckpointConfig(timeout=timedelta(minutes=16)),
            },
            "CheckpointConfig.timeout",
        ),
    ],
)
def test_what_cannot_work_is_refused_when_the_dag_is_parsed(dag: DAG, changes: dict[str, Any], name: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        pipeline(dag, **changes)
    assert name in caught.value.headline


def a_job(spark: Any, sources: Any) -> None:
    """Given instead of its name."""


class AJob:
    """The same."""


FILES = FileSource(path="/data", schema="id bigint")


@pytest.mark.parametrize(
    ("changes", "name", "remedy"),
    [
        ({"job": a_job}, "the function a_job", "test_pipeline"),
        ({"job": AJob}, "the class AJob", 'test_pipeline:AJob"'),
        ({"job": "jobs/orders.py"}, "'jobs/orders.py'", "package.module"),
        ({"job": None}, "job is None", ""),
        ({"sources": {}}, "sources", "KafkaSource"),
        ({"sources": [FILES]}, "sources is a list", "dictionary"),
        ({"sources": FILES}, "sources is a FileSource", ""),
        ({"sources": {"files": "/data"}}, "sources['files'] is '/data'", ""),
        ({"sources": {"files": SINKS["orders"]}}, "sources['files'] is a MySqlSink", ""),
        ({"sinks": [SINKS["orders"]]}, "sinks is a list", "dictionary"),
        ({"sinks": {"orders": MySqlSink}}, "sinks['orders'] is the class MySqlSink", ""),
        ({"sinks": {"orders": FILES}}, "sinks['orders'] is a FileSource", ""),
        ({"sinks": {5: SINKS["orders"]}}, "5 ", ""),
        ({"checkpointing": {"timeout": "soon"}}, "timeout is 'soon'", "seconds"),
        ({"checkpointing": {"time_out": 5}}, "time_out", ""),
        ({"chekpointing": None}, "chekpointing", "checkpointing"),
        ({"checkpointing": timedelta(minutes=1)}, "checkpointing is a timedelta", ""),
        ({"optional_sinks": "orders"}, "optional_sinks is 'orders'", '["orders"]'),
        ({"optional_sinks": None}, "optional_sinks is None", ""),
        ({"commit_point": ["shop"]}, "commit_point is a list", ""),
        ({"store": 5}, "store is 5", ""),
        ({"wal_root": Path("/wal")}, "wal_root is a PosixPath", ""),
        ({"wal_root": "wal"}, "wal_root is 'wal'", ""),
        ({"wal_root": "gs://bucket/wal"}, "wal_root is 'gs://bucket/wal'", ""),
        ({"spark_master": 4}, "spark_master is 4", ""),
        ({"spark_conf": ["a=b"]}, "spark_conf is a list", ""),
        ({"spark_conf": {"spark.ui.enabled": False}}, "spark_conf['spark.ui.enabled'] is a bool", ""),
        ({"jars": 5}, "jars is 5", ""),
        ({"jars": [Path("/x.jar")]}, "jars[0] is a PosixPath", ""),
        ({"packages": "org:x:1"}, "packages is 'org:x:1'", '["org:x:1"]'),
        ({"job_args": ["x"]}, "job_args is a list", ""),
        ({"job_args": {1: "x"}}, "a name in job_args is 1", ""),
        ({"job_args": {"limits": {"{{ ds }}": "x"}}}, "a name in job_args['limits'] is '{{ ds }}'", ""),
        ({"spark_conf": {"spark.{{ params.x }}": "x"}}, "a name in spark_conf is 'spark.{{", ""),
        ({"pipeline": Param("orders")}, "a Param ", ""),
        ({"suffix": Param("de")}, "suffix", ""),
        ({"keep_session": 60}, "keep_session is 60", ""),
        ({"late_after": 60}, "late_after is 60", ""),
        ({"late_after": timedelta(0)}, "late_after is ", ""),
        ({"late_after": timedelta.max}, "late_after is ", "100 years"),
        ({"overlap": "yes"}, "overlap is 'yes'", "True or False"),
        ({"standby": 1}, "standby is 1", "True or False"),
        ({"emit_asset": 1}, "emit_asset is 1", ""),
        ({"group_id": 7}, "group_id is 7", ""),
        ({"default_args": [1]}, "default_args is a list", ""),
    ],
)
def test_an_argument_of_the_wrong_type_is_named_at_parse_time(
    dag: DAG, changes: dict[str, Any], name: str, remedy: str
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        pipeline(dag, **changes)
    error = caught.value
    assert name in error.headline and error.remedy and remedy in error.remedy
    assert len(error.headline) + len(error.remedy) < 500 and " at 0x" not in error.headline + error.remedy


@pytest.mark.parametrize(
    "given", [{"spec": spec(), "overlap": True}, {"spec": spec(), "overlpa": True}], ids=["known", "unknown"]
)
def test_what_stands_beside_a_specification_is_named(dag: DAG, given: dict[str, Any]) -> None:
    with dag, raises(ConfigurationError, "arguments_conflict", argument=list(given)[-1]):
        CheckpointedPipeline(**given)


def test_text_is_no_specification(dag: DAG) -> None:
    with dag, pytest.raises(ConfigurationError):
        CheckpointedPipeline(spec="orders")  # type: ignore[arg-type]


K, F, M, C, CC = KafkaSource, FileSource, MySqlSink, KafkaSink, CheckpointConfig


@pytest.mark.parametrize(
    ("kind", "fields", "name"),
    [
        (K, {"topics": 5}, "topics"),
        (K, {"topics": [5]}, "topics[0]"),
        (K, {"pattern": ["a"]}, "pattern"),
        (K, {"topics": ["a"], "conn_id": 5}, "conn_id"),
        (K, {"topics": ["a"], "starting_offsets": ["a"]}, "starting_offsets"),
        (K, {"topics": ["a"], "starting_offsets": {"a": 5}}, "starting_offsets['a']"),
        (K, {"topics": ["a"], "starting_offsets": {"a": {"0": 5}}}, "'0'"),
        (K, {"topics": ["a"], "starting_offsets": "group_offsets"}, "group_id"),
        (K, {"pattern": "a", "starting_offsets": "group_offsets", "group_id": "g"}, "topics"),
        (K, {"topics": ["a"], "commit_offsets": "no"}, "commit_offsets"),
        (K, {"topics": ["a"], "isolation_level": None}, "isolation_level"),
        (K, {"topics": ["a"], "max_offsets_per_trigger": "a hundred"}, "max_offsets_per_trigger"),
        (K, {"topics": ["a"], "max_offsets_per_trigger": True}, "max_offsets_per_trigger"),
        (K, {"topics": ["a"], "fail_on_data_loss": "false"}, "fail_on_data_loss"),
        (K, {"topics": ["a"], "group_id": 5}, "group_id"),
        (K, {"topics": ["a"], "options": ["x"]}, "options"),
        (K, {"topics": ["a"], "options": {"x": ["secret"]}}, "options['x']"),
        (F, {"path": Path("/data"), "schema": "id int"}, "path"),
        (F, {"path": "/data", "format": None}, "format"),
        (F, {"path": "/data", "schema": ["id"]}, "schema"),
        (F, {"path": "/data", "schema": "id int", "max_files_per_trigger": "one"}, "max_files_per_trigger"),
        (F, {"path": "/data", "schema": "id int", "options": 5}, "options"),
        (M, {"table": 5}, "table"),
        (M, {"table": "t", "conn_id": 5}, "5"),
        (M, {"table": "t", "strategy": ["xa"]}, "strategy"),
        (M, {"table": "t", "ledger_schema": ""}, "ledger_schema"),
        (M, {"table": "t", "version_column": 5}, "version_column"),
        (C, {"topic": 5}, "topic"),
        (C, {"topic": "t", "strategy": ["held"]}, "strategy"),
        (C, {"topic": "t", "key": ["k"]}, "key"),
        (C, {"topic": "t", "headers": ""}, "headers"),
        (C, {"topic": "t", "slots": "2"}, "slots"),
        (C, {"topic": "t", "two_phase_commit": "yes"}, "two_phase_commit"),
        (CC, {"timeout": 60}, "timeout"),
        (CC, {"num_retained": True}, "num_retained"),
        (CC, {"max_delivery_rows": "5"}, "max_delivery_rows"),
        (CC, {"quarantine_after": 5}, "quarantine_after"),
        (CC.from_json, {"data": {"timeout": "soon"}}, "timeout"),
    ],
)
def test_a_field_of_the_wrong_type_is_named_where_it_is_written(kind: Any, fields: dict[str, Any], name: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        kind(**fields)
    error = caught.value
    assert name in error.headline and error.remedy and "secret" not in error.headline + error.remedy


def test_what_only_a_run_knows_may_stand_for_text(dag: DAG) -> None:
    """Another task's output, which Airflow puts in its place when the task runs."""
    from airflow.sdk import task

    with dag:

        @task
        def where() -> str:
            return "/wal"

        job = "{{ params.job }}"
        stage = StageOperator(task_id="stage", spec=spec("p", job=job, wal_root=where()))
    assert stage.upstream_task_ids == {"where"}


def test_common_operator_arguments_reach_each_task(dag: DAG) -> None:
    called: list[Any] = []
    common = {
        "retries": 7,
        "retry_delay": timedelta(seconds=3),
        "pool": "spark",
        "pool_slots": 2,
        "queue": "big",
        "execution_timeout": timedelta(hours=2),
        "priority_weight": 9,
        "owner": "shop",
        "depends_on_past": False,
        "on_failure_callback": called.append,
        "executor_config": {"a": 1},
        "run_as_user": "spark",
    }
    group = pipeline(dag, default_args={"retries": 1, "ignore_first_depends_on_past": False}, **common)
    for task in dag.tasks:
        found = {name: getattr(task, name) for name in common}
        assert found == {**common, "on_failure_callback": [called.append]}, task.task_id
    assert group.default_args["ignore_first_depends_on_past"] is False
    stream = pipeline(DAG("s", schedule=None), streaming=True, pool="streams", retries=2)
    assert isinstance(stream.confirmed, BaseOperator)
    assert (stream.confirmed.pool, stream.confirmed.retries) == ("streams", 2)
    with DAG("beside", schedule=None) as beside:
        CheckpointedPipeline(spec(), pool="spark")
    assert {task.pool for task in beside.tasks} == {"spark"}


@pytest.mark.parametrize(
    ("given", "name", "remedy"),
    [
        ({"trigger_rule": "all_done"}, "trigger_rule", ""),
        ({"task_id": "x"}, "task_id", ""),
        ({"do_xcom_push": False}, "do_xcom_push", ""),
        ({"retires": 3}, "retires", "retries"),
    ],
)
def test_what_is_not_for_all_tasks_is_refused(dag: DAG, given: dict[str, Any], name: str, remedy: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        pipeline(dag, **given)
    assert name in caught.value.headline and remedy in caught.value.remedy


@pytest.mark.parametrize(
    ("name", "value"), [("depends_on_past", True), ("wait_for_downstream", True), ("max_active_tis_per_dag", 1)]
)
def test_arguments_that_chain_runs_are_refused(name: str, value: object) -> None:
    """After a failed run two runs would wait for each other."""
    of_dag = DAG("d", schedule=None, default_args={name: value})
    for make in (
        lambda: pipeline(DAG("e", schedule=None), **{name: value}),
        lambda: pipeline(DAG("f", schedule=None), default_args={name: value}),
        lambda: pipeline(of_dag),
        lambda: pipeline(of_dag, pipeline="clicks", streaming=True),
    ):
        with raises(ConfigurationError, "argument_invalid", argument=name):
            make()
    group = pipeline(of_dag, pipeline="returns", **{name: None if name.startswith("max") else False})
    assert not any(getattr(task, name) for task in group.iter_tasks())


def test_tasks_of_a_mapped_group_have_no_limit_per_run() -> None:
    """One task may wait for the turn of its pipeline while another one has a turn and needs the slot."""
    limit: dict[str, Any] = {"max_active_tis_per_dagrun": 1}
    group = pipeline(DAG("d", schedule=None), **limit)
    assert all(task.max_active_tis_per_dagrun == 1 for task in group.iter_tasks())

    @task_group
    def each(suffix: str) -> None:
        CheckpointedPipeline(spec(suffix=suffix), **limit)

    with DAG("e", schedule=None), raises(ConfigurationError, "argument_invalid", argument="max_active_tis_per_dagrun"):
        each.expand(suffix=["a", "b"])


def test_a_fail_fast_dag_may_hold_streams_only() -> None:
    dag = DAG("d", schedule=None, fail_fast=True)
    with raises(ConfigurationError, "arguments_conflict", argument="fail_fast"):
        pipeline(dag)
    pipeline(DAG("s", schedule=None, fail_fast=True), streaming=True)


def test_retries_are_set_in_one_place(dag: DAG) -> None:
    with raises(ConfigurationError, "arguments_conflict", argument="restart", other="retries"):
        pipeline(dag, retries=3, restart={"type": "none"})


def test_a_pipeline_twice_in_a_dag_is_refused_under_any_group_id(dag: DAG) -> None:
    """By the same group id it was Airflow's DuplicateTaskIdFound."""
    pipeline(dag)
    for changes in ({}, {"group_id": "again"}, {"add_suffix_on_collision": True}, {"streaming": True}):
        with raises(ConfigurationError, "pipeline_duplicated", pipeline="orders"):
            pipeline(dag, **changes)
    with raises(ConfigurationError, "arguments_conflict", pipeline="other", group_id="orders") as caught:
        pipeline(dag, pipeline="other", group_id="orders")
    assert caught.error is not None and "'orders_2'" in caught.error.remedy


def test_remedies_name_the_pipeline_and_its_dag_file(dag: DAG) -> None:
    pipeline(dag)
    error = together([UnfitTargetError("no table a.", remedy=PROPOSED), UnfitTargetError("no b.", remedy=PROPOSED)])
    message = str(error.located(pipeline="orders").filled("orders", dag.get_task("orders.stage").dag_file))  # type: ignore[attr-defined]
    assert message.count(f"`airflow ft setup orders --dag {__file__} --print --tables`") == 2
