"""A pipeline's specification: what it refuses, what a task makes of it, what is kept of it."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from dataclasses import FrozenInstanceError
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest

from airflow_ft import (
    CheckpointConfig,
    CheckpointingMode,
    FileSource,
    FilesSink,
    HBaseSink,
    KafkaSink,
    KafkaSource,
    MySqlSink,
    PaimonSink,
    RedisSink,
    SocketSource,
)
from airflow_ft.pipeline.resolved import DeliveryContext, checkpointing_of, delivery_context, resolve
from airflow_ft.pipeline.spec import SPEC_FIELDS, PipelineSpec, defaults, take_spec
from airflow_ft.protocol.errors import ConfigurationError
from airflow_ft.protocol.restart import ExponentialDelay, FixedDelay, NoRestart
from tests.operators.declared import SINKS, spec
from tests.raising import raises


class Output:
    """Stands for what there is in a run alone, as Airflow's XComArg does."""

    def iter_references(self) -> None: ...

    def resolve(self) -> None: ...


def rendered(declared: PipelineSpec, **values: Any) -> PipelineSpec:
    return declared.rendered({name: declared.plain(name) for name in SPEC_FIELDS} | values)


def test_the_default_of_each_field_is_as_it_is_kept() -> None:
    data = spec().to_json()
    found = {name: value for name, value in defaults().items() if name in data and name != "checkpointing"}
    assert found == {name: data[name] for name in found} and {"overlap", "packages", "job_args"} < set(found)
    with raises(ConfigurationError, "argument_unknown", argument="configured"):
        take_spec({"configured": ("wal_root",)}, ())


def test_it_is_frozen_and_equal_by_value() -> None:
    assert spec() == spec()
    with pytest.raises(FrozenInstanceError):
        spec().job = "jobs.other"  # type: ignore[misc]


def test_what_nothing_is_rendered_of_is_as_it_was() -> None:
    declared = spec(
        sources={"a": KafkaSource(topics=["t"]), "b": FileSource(path="/p", schema="id bigint")},
        sinks={**SINKS, "alerts": KafkaSink(topic="t", strategy="held", transaction_timeout=timedelta(minutes=14))},
        checkpointing=CheckpointConfig(num_retained=7, quarantine_after=None),
        job_args={"limits": [1, 2]},
        jars=["/a.jar"],
        packages=["org:x:1"],
    )
    again = rendered(declared)
    assert again.to_json() == declared.to_json()
    assert again.config == declared.config and again.delivery == declared.delivery


def test_checkpointing_may_be_rendered_from_params() -> None:
    declared = spec(checkpointing={"timeout": "{{ params.t }}", "num_retained": 2})
    assert rendered(declared, checkpointing={"timeout": "90", "num_retained": 2}).config == CheckpointConfig(
        timeout=timedelta(seconds=90), num_retained=2
    )
    with raises(ConfigurationError, "argument_invalid", argument="timeout", value="'soon'"):
        rendered(declared, checkpointing={"timeout": "soon"})
    with raises(ConfigurationError, "argument_invalid", argument="timeout", value="'{{ params.t }}'"):
        rendered(declared)


def test_an_impossible_mode_is_refused_even_when_rendered() -> None:
    most = CheckpointConfig(mode=CheckpointingMode.AT_MOST_ONCE)
    latest = {"orders": KafkaSource(topics=["orders"], starting_offsets="latest")}
    assert spec(streaming=True, sources=latest, checkpointing=most).config == most
    with raises(ConfigurationError, "needs_streaming", pipeline="orders", value="AT_MOST_ONCE"):
        spec(sources=latest, checkpointing=most)
    with pytest.raises(ConfigurationError) as caught:
        spec(streaming=True, checkpointing=most)
    assert caught.value.pipeline == "orders" and "'files'" in caught.value.headline
    declared = spec(streaming=True, checkpointing={"mode": "{{ params.mode }}"})
    assert rendered(declared, checkpointing={"mode": "exactly_once"}).config.mode is CheckpointingMode.EXACTLY_ONCE
    with pytest.raises(ConfigurationError) as caught:
        rendered(declared, checkpointing={"mode": "at_most_once"})
    assert "'files'" in caught.value.headline
    socket = {"lines": SocketSource(host="localhost", port=9999)}
    assert rendered(spec(streaming=True, sources=socket, checkpointing=most)).sources == socket
    with pytest.raises(ConfigurationError) as caught:
        spec(streaming=True, sources=socket, checkpointing=CheckpointConfig(mode=CheckpointingMode.EXACTLY_ONCE))
    assert "'lines'" in caught.value.headline


@pytest.mark.parametrize(
    "setting",
    [{"interval": 5}, {"externalized_retention": "DELETE_ON_CANCELLATION"}, {"min_pause": "{{ params.pause }}"}],
)
def test_what_is_for_streams_is_refused_of_a_scheduled_pipeline(setting: dict[str, Any]) -> None:
    assert spec(streaming=True, checkpointing=setting).checkpointing == setting
    with raises(ConfigurationError, "needs_streaming", argument=next(iter(setting))):
        spec(checkpointing=setting)


def test_restart_may_be_plain_data_and_is_a_strategy_then() -> None:
    declared = spec(restart={"type": "fixed-delay", "attempts": "5", "delay": 30})
    assert declared.restart == FixedDelay(attempts=5, delay=timedelta(seconds=30))
    assert rendered(declared).restart == declared.restart
    assert declared == spec(restart=declared.restart)
    assert declared.to_json()["restart"] == {"type": "fixed-delay", "attempts": 5, "delay": 30}
    assert spec().restart is None and spec().to_json()["restart"] is None and rendered(spec()).restart is None


def test_restart_may_be_rendered_from_params() -> None:
    plain = {"type": "exponential-delay", "initial_backoff": 120, "max_backoff": "{{ params.most }}"}
    declared = spec(restart=plain)  # whether 2 min are too long is not known yet
    assert declared.to_json()["restart"] == plain
    found = rendered(declared, restart={**plain, "max_backoff": "300"})
    assert found.restart == ExponentialDelay(initial_backoff=timedelta(minutes=2), max_backoff=timedelta(minutes=5))
    with raises(ConfigurationError, "argument_invalid", argument="max_backoff", value="'{{ params.most }}'"):
        rendered(declared)
    assert rendered(spec(restart={"type": "{{ params.t }}"}), restart={"type": "none"}).restart == NoRestart()


@pytest.mark.parametrize(
    ("restart", "code", "argument"),
    [
        (5, "argument_invalid", "restart"),
        (FixedDelay, "argument_invalid", "restart"),
        ({"attempts": 3}, "argument_missing", "type"),
        ({"type": "fixed-delay", "attemps": 3}, "argument_unknown", "attemps"),
        ({"type": "fixed-delay", "attempts": "{{ params.n }}", "delay": "soon"}, "argument_invalid", "delay"),
        ({"attempts": "{{ params.n }}"}, "argument_missing", "type"),
    ],
)
def test_a_restart_that_cannot_be_is_named(restart: Any, code: str, argument: str) -> None:
    with raises(ConfigurationError, code, pipeline="orders", argument=argument) as caught:
        spec(restart=restart)
    assert caught.error and caught.error.remedy


def test_a_timeout_too_long_for_a_sink_is_refused_when_rendered() -> None:
    held = {"alerts": KafkaSink(topic="alerts", strategy="held")}
    declared = spec(sinks=held, checkpointing={"timeout": "{{ params.t }}"})
    with pytest.raises(ConfigurationError) as caught:
        rendered(declared, checkpointing={"timeout": 3600})
    assert caught.value.sink == "alerts"


@pytest.mark.parametrize("missing", ["job", "sources", "sinks"])
def test_what_is_missing_is_named(missing: str) -> None:
    arguments = {name: getattr(spec(), name) for name in ("pipeline", "job", "sources", "sinks") if name != missing}
    with raises(ConfigurationError, "argument_missing", argument=missing):
        take_spec(arguments, ())


def test_what_nobody_knows_is_named_with_what_was_meant() -> None:
    for argument, expected in (("wal_rot", ("wal_root",)), ("zzzzzzzz", ("pipeline", "tooltip"))):
        with raises(ConfigurationError, "argument_unknown", argument=argument) as caught:
            take_spec({argument: "/wal"}, ("tooltip",))
        assert caught.error and all(name in caught.error.remedy for name in expected)


@pytest.mark.parametrize(
    ("given", "argument", "value"),
    [
        ({"folder": Path("/data")}, "job_args['folder']", "a PosixPath"),
        ({"since": [1, {"at": date(2026, 1, 2)}]}, "job_args['since'][1]['at']", "a date"),
        ({"rate": lambda n: n}, "job_args['rate']", "the function <lambda>"),
        ({"names": {"a"}}, "job_args['names']", "a set"),
        ({"key": b"planted"}, "job_args['key']", "a bytes"),
        ({"lock": threading.Lock()}, "job_args['lock']", "a lock"),
    ],
)
def test_a_job_argument_that_the_driver_cannot_receive_is_named(given: Any, argument: str, value: str) -> None:
    with raises(ConfigurationError, "argument_invalid", pipeline="orders", argument=argument, value=value) as caught:
        spec(job_args=given)
    assert "planted" not in f"{caught.value} {vars(caught.value)}"
    assert caught.error and "str(path)" in caught.error.remedy and "isoformat" in caught.error.remedy
    declared = spec(job_args={"of a task": Output(), "many": (1, 2.5, None, True), "by": {1: "one"}})
    with raises(ConfigurationError, "argument_invalid", argument=argument, value=value):
        rendered(declared, job_args=given)


@pytest.mark.parametrize("suffix", [None, "", "None"])
def test_a_suffix_that_a_run_has_none_for_is_not_left_out(suffix: Any) -> None:
    """Else it would be the pipeline whose name has none, or share one with the next empty value."""
    declared = spec(suffix=Output())
    assert rendered(declared, suffix="de").pipeline == "orders-de" and rendered(spec()).pipeline == "orders"
    with raises(ConfigurationError, "name_invalid", pipeline="orders", argument="suffix", value=repr(suffix)):
        rendered(declared, suffix=suffix)


def test_what_is_kept_is_plain_and_holds_no_secret() -> None:
    kept = spec(
        spark_conf={
            "spark.hadoop.fs.s3a.secret.key": "planted-1",
            "spark.hadoop.fs.azure.account.key.x.dfs.core.windows.net": "planted-2",
            "spark.hadoop.fs.azure.sas.container.account": "planted-3",
            "spark.driver.extraJavaOptions": "-Dx=1 -Djavax.net.ssl.keyStorePassword=planted-4 -Dy=2",
            "spark.ui.enabled": "false",
        },
        job_args={
            "api": {"token": "planted-5", "url": "https://example.org"},
            "credentials": {"user": "ada", "key": "planted-6"},
            "jdbc": "jdbc:mysql://ada:planted-7@h/db?user=ada&password=planted-8&ssl=true",
            "password": ["planted-9"],
            "pwd": "planted-11",
            "libpq": "password='planted-12' host=db",
            "weights": {1: 0.5, "rest": 1},
            "of another task": Output(),
        },
        sources={"in": KafkaSource(topics=["t"], options={"kafka.sasl.jaas.config": "planted-10"})},
        keep_session=timedelta(minutes=2),
        late_after=timedelta(hours=26),
    ).to_json()
    text = json.dumps(kept, sort_keys=True)
    assert "planted" not in text, text
    assert kept["spark_conf"]["spark.ui.enabled"] == "false"
    assert kept["spark_conf"]["spark.driver.extraJavaOptions"] == "-Dx=1 -Djavax.net.ssl.keyStorePassword=*** -Dy=2"
    assert kept["job_args"]["jdbc"] == "jdbc:mysql://***@h/db?user=ada&password=***&ssl=true"
    assert kept["job_args"]["weights"] == {"1": 0.5, "rest": 1}
    assert kept["job_args"]["of another task"] == "known in a run"
    assert kept["sources"]["in"]["topics"] == ["t"] and kept["job"] == "jobs.orders"
    assert kept["job_args"]["api"]["url"] == "https://example.org"
    assert kept["sinks"]["orders"]["table"] == "t" and kept["sinks"]["orders"]["promise"] == "ATOMIC"
    assert (kept["keep_session"], kept["late_after"]) == (120, 26 * 3600)
    assert kept["checkpointing"] == {}


def test_sinks_and_sources_may_sound_like_secrets() -> None:
    kept = spec(
        sources={"tokens": KafkaSource(topics=["t"], options={"kafka.sasl.password": "planted"})},
        sinks={"password": KafkaSink(conn_id="k", topic="t")},
    ).to_json()
    assert (kept["sources"]["tokens"]["topics"], kept["sinks"]["password"]["conn_id"]) == (["t"], "k")
    assert "planted" not in str(kept)


@pytest.mark.airflow
def test_what_it_leaves_open_is_the_providers_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "WAL_ROOT": "/of/all",
        "SPARK_MASTER": "local[3]",
        "SPARK_CONF": '{"spark.a": "1", "spark.b": "1"}',
        "SPARK_JARS": "/jars",
        "KEEP_SESSION": "60",
        "CHECKPOINTING": '{"quarantine_after": "never", "num_retained": 9}',
    }.items():
        monkeypatch.setenv(f"AIRFLOW__AIRFLOW_FT__{name}", value)
    found = resolve(spec(spark_conf={"spark.b": "2"}))
    assert (found.wal_root, found.spark.master, found.spark.jars) == ("/of/all", "local[3]", ("/jars",))
    assert (found.spark.conf, found.spark.keep_session) == ({"spark.a": "1", "spark.b": "2"}, timedelta(minutes=1))
    assert (found.checkpointing.quarantine_after, found.checkpointing.num_retained) == (None, 9)
    settled = ("checkpointing.num_retained", "checkpointing.quarantine_after", "spark_conf.spark.a")
    assert found.stored["configured"] == sorted((*settled, "jars", "keep_session", "spark_master", "wal_root"))
    assert found.stored["jars"] == "/jars" and "configured" not in SPEC_FIELDS
    assert delivery_context(spec()) == DeliveryContext(wal_root=found.wal_root, checkpointing=found.checkpointing)
    own = spec(
        wal_root="/own",
        spark_master="yarn",
        jars=(),
        keep_session=timedelta(0),
        checkpointing=CheckpointConfig(quarantine_after=timedelta(1)),
    )
    found = resolve(own)
    assert (found.wal_root, found.spark.master, found.spark.jars) == ("/own", "yarn", ())
    assert found.spark.keep_session == timedelta(0)
    assert (found.checkpointing.quarantine_after, found.checkpointing.num_retained) == (timedelta(1), 9)
    assert found.stored["configured"] == ["checkpointing.num_retained", "spark_conf.spark.a", "spark_conf.spark.b"]


@pytest.mark.airflow
def test_at_most_once_in_the_configuration_is_for_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__AIRFLOW_FT__CHECKPOINTING", '{"mode": "AT_MOST_ONCE", "num_retained": 9}')
    found = resolve(spec()).checkpointing
    assert (found.mode, found.num_retained) == (CheckpointingMode.EXACTLY_ONCE, 9)
    socket = {"lines": SocketSource(host="localhost", port=9999)}
    assert resolve(spec(streaming=True, sources=socket)).checkpointing.mode is CheckpointingMode.AT_MOST_ONCE
    with pytest.raises(ConfigurationError) as caught:
        resolve(spec(streaming=True))
    assert "'files'" in caught.value.headline


@pytest.mark.airflow
def test_what_the_configuration_says_against_a_pipeline_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unaligned checkpoints need exactly once, whoever says the one or the other; a run's params, too."""
    monkeypatch.setenv("AIRFLOW__AIRFLOW_FT__CHECKPOINTING", '{"unaligned": true, "aligned_timeout": 5}')
    modes = {mode: {"mode": mode} for mode in CheckpointingMode}
    both = ["unaligned", "mode"]
    said = {"unaligned": True, "aligned_timeout": 5}
    with raises(ConfigurationError, "arguments_conflict", arguments=both, configured=said) as caught:
        resolve(spec(streaming=True, checkpointing=modes[CheckpointingMode.AT_LEAST_ONCE]))
    assert caught.error and "[airflow_ft] checkpointing" in caught.error.remedy
    ahead = {"mode": "AT_LEAST_ONCE", "unaligned": True, "aligned_timeout": 5}
    for name in ("mode", "unaligned"):
        declared = spec(streaming=True, checkpointing={**ahead, name: "{{ params.it }}"})
        with raises(ConfigurationError, "arguments_conflict", arguments=both):
            delivery_context(declared.rendered({"checkpointing": ahead}))
    for streaming in (True, False):  # a scheduled pipeline is none of its business, also when its DAG is parsed
        assert checkpointing_of(spec(streaming=streaming)).unaligned is streaming
    scheduled = spec(checkpointing=modes[CheckpointingMode.AT_LEAST_ONCE])
    assert checkpointing_of(scheduled).mode is CheckpointingMode.AT_LEAST_ONCE
    monkeypatch.setenv("AIRFLOW__AIRFLOW_FT__CHECKPOINTING", '{"mode": "AT_LEAST_ONCE"}')
    plan = delivery_context(spec()).plan(SINKS, None)
    assert plan == resolve(spec()).plan and plan.mode is CheckpointingMode.AT_LEAST_ONCE
    with raises(ConfigurationError, "arguments_conflict", arguments=both, configured={"mode": "AT_LEAST_ONCE"}):
        resolve(spec(streaming=True, checkpointing=CheckpointConfig(unaligned=True)))


@pytest.mark.airflow
def test_only_a_scheduled_pipeline_may_be_configured_to_drain(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with raises(ConfigurationError, "arguments_conflict", arguments=["drain", "streaming"]) as caught:
        spec(streaming=True, checkpointing=CheckpointConfig(drain=True))
    assert caught.error and "`airflow ft stop orders --drain`" in caught.error.remedy
    declared = spec(checkpointing={"drain": "{{ params.drain }}"})
    assert declared.rendered({"checkpointing": {"drain": "True"}}).config.drain
    monkeypatch.setenv("AIRFLOW__AIRFLOW_FT__CHECKPOINTING", '{"drain": true, "resume_drained": true}')
    scheduled, stream = resolve(spec()).checkpointing, resolve(spec(streaming=True)).checkpointing
    assert (scheduled.drain, scheduled.resume_drained) == (True, True)
    assert (stream.drain, stream.resume_drained) == (False, True)


@pytest.mark.airflow
def test_the_decision_log_keeps_templates_instead_of_secrets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from airflow_ft.operators.stage import StageOperator

    monkeypatch.setenv("AIRFLOW__AIRFLOW_FT__SPARK_CONF", '{"spark.of.all": "planted-1", "spark.own": "planted-2"}')
    declared = spec(
        job_args={"key": "{{ conn.api.password }}"}, spark_conf={"spark.own": "{{ var.value.x }}"}, wal_root="{{ ds }}"
    )
    stage = StageOperator(task_id="stage", spec=declared)
    stage.job_args, stage.spark_conf, stage.wal_root = {"key": "planted-3"}, {"spark.own": "planted-4"}, "/wal"
    found = resolve(stage.rendered(), stage.spec)
    assert (found.job_args, found.spark.conf["spark.own"]) == ({"key": "planted-3"}, "planted-4")
    kept = found.stored
    assert kept["job_args"] == {"key": "{{ conn.api.password }}"} and kept["wal_root"] == "/wal"
    assert kept["spark_conf"] == {"spark.own": "{{ var.value.x }}", "spark.of.all": "[airflow_ft] spark_conf"}


@pytest.mark.airflow
def test_an_operator_carries_all_that_it_resolves() -> None:
    from airflow_ft.operators.confirm import ConfirmOperator
    from airflow_ft.operators.doctor import DoctorOperator
    from airflow_ft.operators.prepare import PrepareOperator
    from airflow_ft.operators.stage import StageOperator

    for operator in (StageOperator, DoctorOperator):
        texts = {"checkpointing", "wal_root", "spark_master", "spark_conf", "jars", "packages", "sources", "sinks"}
        assert texts | {"commit_point", "store"} <= set(operator.template_fields)
    assert {"sinks", "commit_point", "checkpointing", "wal_root"} <= set(PrepareOperator.template_fields)
    assert {"sources", "checkpointing", "wal_root"} <= set(ConfirmOperator.template_fields)


@pytest.mark.airflow
def test_a_timeout_from_the_configuration_must_fit_each_sink(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from airflow.sdk import DAG

    from airflow_ft import CheckpointedPipeline

    held = {"alerts": KafkaSink(topic="t", strategy="held", transaction_timeout=timedelta(minutes=5))}
    with DAG("d", schedule=None), pytest.raises(ConfigurationError) as caught:
        CheckpointedPipeline(spec(sinks=held))
    assert caught.value.sink == "alerts"
    monkeypatch.setenv("AIRFLOW__AIRFLOW_FT__CHECKPOINTING", '{"timeout": 60}')
    with DAG("d", schedule=None):
        CheckpointedPipeline(spec(sinks=held))
    monkeypatch.setenv("AIRFLOW__AIRFLOW_FT__CHECKPOINTING", '{"timeout": 1800}')
    usual = {"alerts": KafkaSink(topic="t", strategy="held")}
    with DAG("d", schedule=None), pytest.raises(ConfigurationError) as caught:
        CheckpointedPipeline(spec(sinks=usual))
    assert caught.value.sink == "alerts"


def test_sinks_of_one_connection_are_one_participant() -> None:
    names = spec(sinks={"a": MySqlSink(table="a", conn_id="x"), "b": MySqlSink(table="b", conn_id="x")}).delivery.names
    assert names == ("x",)


def test_the_mode_reaches_the_delivery_and_may_be_rendered() -> None:
    declared = spec(checkpointing={"mode": "{{ params.mode }}"})
    found = rendered(declared, checkpointing={"mode": "at_least_once"}).delivery
    assert found.mode is CheckpointingMode.AT_LEAST_ONCE and found.commit_point is None
    assert spec().delivery.mode is CheckpointingMode.EXACTLY_ONCE
    at_least = CheckpointConfig(mode=CheckpointingMode.AT_LEAST_ONCE)
    with raises(ConfigurationError, "arguments_conflict", argument="strategy"):
        spec(sinks={"alerts": KafkaSink(topic="t", strategy="held")}, checkpointing=at_least)
    with raises(ConfigurationError, "arguments_conflict", arguments=["commit_point", "mode"]):
        spec(commit_point=next(iter(SINKS.values())).conn_id, checkpointing=at_least)


def test_one_group_does_not_follow_two_sources_of_a_topic() -> None:
    """Which of the two was told last would be chance."""

    def read(group: str | None = "shop", topics: Sequence[str] = ("orders",), **more: Any) -> KafkaSource:
        return KafkaSource(topics=list(topics), group_id=group, **more)

    with pytest.raises(ConfigurationError) as caught:
        spec(sources={"a": read(topics=["orders", "returns"]), "b": read()})
    assert all(name in caught.value.headline for name in ("'a'", "'b'", "'orders'", "'shop'"))
    for other in (
        read("other"), read(None), read(topics=["returns"]), read(conn_id="elsewhere"), read(commit_offsets=False)
    ):  # fmt: skip
        spec(sources={"a": read(), "b": other})


@pytest.mark.parametrize("given", [{"spark_master": "k8s://https://host"}, {"spark_conf": {"spark.master": "k8s://h"}}])
def test_a_session_kept_on_kubernetes_is_refused_at_parse(
    given: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with raises(ConfigurationError, "arguments_conflict", arguments=["keep_session", "spark_master"]):
        spec(keep_session=timedelta(1), **given)
    spec(keep_session=timedelta(0), **given)
    spec(keep_session=timedelta(1), spark_master="yarn")
    monkeypatch.setenv("AIRFLOW__AIRFLOW_FT__KEEP_SESSION", "60")
    if "spark_master" in given:
        assert resolve(spec(**given)).spark.keep_session == timedelta(0)
        assert resolve(spec(spark_master="yarn")).spark.keep_session == timedelta(minutes=1)


@pytest.mark.parametrize(
    ("given", "code", "fields"),
    [
        ({}, "needs_streaming", {"argument": "standby"}),
        (
            {"streaming": True, "keep_session": timedelta(1)},
            "arguments_conflict",
            {"arguments": ["standby", "keep_session"]},
        ),
        ({"streaming": True, "spark_master": "yarn"}, "arguments_conflict", {"value": "yarn"}),
        ({"streaming": True, "spark_conf": {"spark.master": "yarn"}}, "arguments_conflict", {"value": "yarn"}),
    ],
)
def test_a_standby_with_conflicting_arguments_is_refused(
    given: dict[str, Any], code: str, fields: dict[str, Any]
) -> None:
    with raises(ConfigurationError, code, **fields):
        spec(standby=True, **given)
    spec(**given)


def test_a_standby_goes_before_the_configurations_kept_sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__AIRFLOW_FT__KEEP_SESSION", "60")
    found = resolve(spec(standby=True, streaming=True, spark_master="local[2]", keep_session=timedelta(0)))
    assert (found.spark.standby, found.spark.keep_session) == (True, timedelta(0))
    found = resolve(spec(standby=True, streaming=True, spark_master="conn:spark"))
    assert (found.spark.standby, found.spark.keep_session) == (True, timedelta(0))
    found = resolve(spec(streaming=True))
    assert (found.spark.standby, found.spark.keep_session) == (False, timedelta(minutes=1))


BUCKET = "s3://lake@wal/log"


@pytest.mark.parametrize(
    ("given", "code", "fields"),
    [
        ({"wal_root": "s3://key:secret@wal/log"}, "path_invalid", {"path": "s3://...@wal/log"}),
        ({"wal_root": "s3://wal"}, "path_invalid", {"path": "s3://wal"}),
        ({"keep_session": timedelta(1)}, "log_in_bucket", {"arguments": ["wal_root", "keep_session"]}),
        ({"spark_master": "local-cluster[2,1,512]"}, "log_in_bucket", {"value": "local-cluster[2,1,512]"}),
        (
            {"spark_conf": {"spark.master": "local-cluster[2,1,512]"}},
            "log_in_bucket",
            {"value": "local-cluster[2,1,512]"},
        ),
        ({"spark_conf": {"spark.redaction.regex": "x"}}, "spark_setting_unsafe", {"setting": "spark.redaction.regex"}),
    ],
)
def test_what_a_log_in_a_bucket_cannot_do_is_refused_at_parse(
    given: dict[str, Any], code: str, fields: dict[str, Any]
) -> None:
    with raises(ConfigurationError, code, **fields):
        spec(**{"wal_root": BUCKET, **given})


def test_a_templated_log_in_a_bucket_is_checked_when_rendered() -> None:
    declared = spec(wal_root="{{ params.root }}", spark_master="local-cluster[2,1,512]")
    with raises(ConfigurationError, "log_in_bucket", value="local-cluster[2,1,512]"):
        rendered(declared, wal_root=BUCKET)
    spec(wal_root=BUCKET, spark_master="local[2]", from_savepoint="beginning")
    for master in ("spark://host:7077", "yarn", "k8s://https://host"):
        spec(wal_root=BUCKET, streaming=True, spark_master=master)
    PipelineSpec(pipeline="orders", position="2026-11-27", sinks=SINKS, wal_root=BUCKET)
    spec(wal_root=BUCKET, spark_master="conn:spark", from_savepoint="/savepoints/1")


def test_configuration_that_a_log_in_a_bucket_forbids_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value, argument in (
        ("SPARK_MASTER", "local-cluster[2,1,512]", "spark_master"),
        ("KEEP_SESSION", "60", "keep_session"),
        ("SPARK_CONF", '{"spark.master": "local-cluster[2,1,512]"}', "spark_master"),
    ):
        with monkeypatch.context() as patch:
            patch.setenv(f"AIRFLOW__AIRFLOW_FT__{name}", value)
            with raises(ConfigurationError, "log_in_bucket", arguments=["wal_root", argument]):
                resolve(spec(wal_root=BUCKET))
    with monkeypatch.context() as patch:
        patch.setenv("AIRFLOW__AIRFLOW_FT__SPARK_CONF", '{"spark.master": "local[2]"}')
        resolve(spec(wal_root=BUCKET))
    monkeypatch.setenv("AIRFLOW__AIRFLOW_FT__WAL_ROOT", BUCKET)
    monkeypatch.setenv("AIRFLOW__AIRFLOW_FT__SPARK_MASTER", "local-cluster[2,1,512]")
    with raises(ConfigurationError, "log_in_bucket", value="local-cluster[2,1,512]"):
        resolve(spec(wal_root=None))


@pytest.mark.parametrize(
    ("make", "code", "fields"),
    [
        (lambda: FilesSink(path="/data"), "argument_unknown", {"argument": "path", "of": "FilesSink"}),
        (lambda: FilesSink(folder="/data", conn_id="s3"), "argument_unknown", {"argument": "conn_id"}),
        (lambda: FilesSink(), "argument_missing", {"argument": "folder", "of": "FilesSink"}),
        (lambda: MySqlSink("shop.orders"), "argument_unnamed", {"of": "MySqlSink"}),
        (lambda: KafkaSource(["orders"]), "argument_unnamed", {"of": "KafkaSource"}),
        (lambda: CheckpointConfig(time_out=timedelta(1)), "argument_unknown", {"argument": "time_out"}),
        (lambda: FixedDelay(tries=3), "argument_unknown", {"argument": "tries"}),
        (lambda: PipelineSpec(name="p"), "argument_unknown", {"argument": "name"}),
    ],
)
def test_arguments_that_no_constructor_takes_are_refused(make: Any, code: str, fields: dict[str, Any]) -> None:
    with raises(ConfigurationError, code, **fields):
        make()


@pytest.mark.parametrize(
    ("given", "meant"), [("late", "late_after"), ("on_late", "late_after"), ("sink", "sinks"), ("topics", "")]
)
def test_a_wrong_argument_of_a_pipeline_names_the_nearest(given: str, meant: str) -> None:
    with raises(ConfigurationError, "argument_unknown", argument=given) as caught:
        take_spec({"pipeline": "p", given: 1}, ())
    assert caught.error is not None
    assert f"Did you mean {meant or 'none'}?" in caught.error.remedy or not meant


@pytest.mark.parametrize(
    "sinks",
    [
        {name: MySqlSink(table="t", strategy="upsert", key_columns=["id"], version_column="n") for name in "ab"},
        {"a": HBaseSink(table="t", row_key="{id}", family="f"), "b": HBaseSink(table="t", row_key="{id}", family="f")},
        {"a": RedisSink(key="t:{id}", strategy="atomic"), "b": RedisSink(key="t:{id}", strategy="atomic")},
    ],
)
def test_two_sinks_that_write_by_key_into_one_place_are_refused(sinks: Any) -> None:
    with raises(ConfigurationError, "target_duplicated", sinks=["a", "b"]):
        spec(sinks=sinks)


@pytest.mark.parametrize(
    "sinks",
    [
        {"a": MySqlSink(table="t"), "b": MySqlSink(table="t")},  # each row is inserted
        {"a": RedisSink(key="t:{id}"), "b": RedisSink(key="u:{id}")},
        {"a": RedisSink(key="t:{id}"), "b": RedisSink(key="t:{id}", conn_id="other")},
    ],
)
def test_other_sinks_of_one_kind_are_not(sinks: Any) -> None:
    assert set(spec(sinks=sinks).sinks) == {"a", "b"}


@pytest.mark.parametrize("master", ["YARN", "yarn-client", "locall[*]", "local[x]", "mesos://a", "spark:/a:7077"])
def test_a_master_that_spark_does_not_know_is_refused(master: str) -> None:
    with raises(ConfigurationError, "master_invalid", argument="spark_master"):
        spec(spark_master=master)


@pytest.mark.parametrize(
    "master",
    [
        *("local", "local[2]", "local[*]", "local[4, 2]", "local-cluster[2,1,1024]", "yarn", "spark://a:7077,b:7077"),
        *("k8s://https://a:443", "conn:spark", "{{ params.master }}"),
    ],
)
def test_a_master_that_spark_knows_is_not(master: str) -> None:
    assert spec(spark_master=master).spark_master == master


@pytest.mark.parametrize("conf", [{"executor.memory": "1g"}, {"spark.submit.deployMode": "cluster"}])
def test_ignored_or_driver_moving_spark_settings_are_refused(conf: dict[str, str]) -> None:
    with raises(ConfigurationError, "argument_invalid"):
        spec(spark_conf=conf)


@pytest.mark.parametrize("position", [{"start": "{{ a }}", "stop": "{{ b }}"}, {"end": "2026-11-28"}])
def test_an_interval_with_one_bound_is_refused(position: Any) -> None:
    with raises(ConfigurationError, "argument_invalid", argument="position"):
        PipelineSpec(pipeline="orders", position=position, sinks=SINKS)


def test_two_sinks_of_one_table_without_a_connection_are_refused() -> None:
    table = "/warehouse/shop.db/orders"
    with raises(ConfigurationError, "target_duplicated", sinks=["a", "b"], target=table):
        spec(sinks={"a": PaimonSink(table=table), "b": PaimonSink(table=table)})


@pytest.mark.parametrize(
    ("first", "second"), [("/o", "/o/"), ("/o", "file:///o"), ("s3://lake/o", "s3://conn@lake/o/"), ("/o", "/o")]
)
def test_two_sinks_of_one_folder_are_refused(first: str, second: str) -> None:
    sinks = {"a": FilesSink(folder=first, name="a"), "b": FilesSink(folder=second, name="b")}
    with raises(ConfigurationError, "target_duplicated", sinks=["a", "b"]):
        spec(sinks=sinks)


@pytest.mark.parametrize(
    ("path", "folder"),
    [
        *(("/in/orders", "/in/orders"), ("/in/orders/", "file:///in/orders"), ("file:/in", "/in/out")),
        *(("/in/orders", "/in"), ("s3a://lake/in", "s3://conn@lake/in/out"), ("hdfs://a:1/in", "hdfs://a:1/in")),
    ],
)
def test_a_sink_into_a_folder_of_a_source_is_refused(path: str, folder: str) -> None:
    sources = {"files": FileSource(path=path, schema="id bigint")}
    with raises(ConfigurationError, "target_is_source", sink="lake", source="files", path=folder):
        spec(sources=sources, sinks={"lake": FilesSink(folder=folder, name="lake")})


@pytest.mark.parametrize(
    ("path", "folder"),
    [("/in", "/in2"), ("/in/*/a", "/in/out"), ("s3a://one/in", "s3://two/in"), ("{{ params.a }}", "/in")],
)
def test_a_sink_into_another_folder_is_not(path: str, folder: str) -> None:
    sources = {"files": FileSource(path=path, schema="id bigint")}
    assert spec(sources=sources, sinks={"lake": FilesSink(folder=folder, name="lake")}).sinks
