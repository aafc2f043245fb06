import json
import subprocess
import sys
from datetime import timedelta

import pytest

from airflow_ft.protocol.config import CheckpointConfig
from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.doctor import Verdict
from airflow_ft.protocol.errors import ConfigurationError
from airflow_ft.protocol.model import ParticipantPlan, Promise
from airflow_ft.protocol.sink_spec import SinkSpec
from airflow_ft.sinks.kafka import KafkaSink
from airflow_ft.sinks.kafka.doctor import examine
from airflow_ft.sinks.kafka.participant import open_participant
from airflow_ft.wal import open_wal
from tests.raising import raises


def test_a_topic_is_enough() -> None:
    sink: SinkSpec = KafkaSink(topic="alerts")
    assert (sink.kind, sink.conn_id, sink.strategy, sink.promise) == (
        "kafka", "kafka_default", "transaction", Promise.REDO
    )  # fmt: skip
    assert sink.settings() == {"topic": "alerts", "format": "json", "slots": 1}


def test_settings_survive_the_store() -> None:
    sink = KafkaSink(
        topic="a.b-c_D", conn_id="k", key="k", value="v", headers="h", partition="p", timestamp="t", slots=4
    )
    assert sink.format == "raw"
    assert KafkaSink.from_settings("k", "transaction", json.loads(json.dumps(sink.settings()))) == sink
    for held in (
        KafkaSink(topic="a", conn_id="k", strategy="held"),
        KafkaSink(topic="a", conn_id="k", strategy="held", transaction_timeout=timedelta(seconds=1.5)),
        KafkaSink(topic="a", conn_id="k", strategy="held", two_phase_commit=True),
    ):
        assert held.promise is Promise.TWO_PHASE
        assert KafkaSink.from_settings("k", "held", json.loads(json.dumps(held.settings()))) == held


@pytest.mark.parametrize(
    ("settings", "code", "argument"),
    [
        ({"topic": ""}, "name_invalid", "topic"),
        ({"topic": "ä"}, "name_invalid", "topic"),
        ({"topic": ".."}, "name_invalid", "topic"),
        ({"conn_id": ""}, "argument_missing", "conn_id"),
        ({"strategy": "kept"}, "argument_invalid", "strategy"),
        ({"key": ""}, "argument_invalid", "key"),
        ({"key": "a", "partition": "a"}, "arguments_conflict", ""),
        ({"format": "avro"}, "argument_invalid", "format"),
        ({"format": "raw"}, "arguments_conflict", "format"),
        ({"format": "json", "value": "v"}, "arguments_conflict", "format"),
        ({"slots": 0}, "argument_invalid", "slots"),
        ({"slots": 17}, "argument_invalid", "slots"),
        ({"slots": True}, "argument_invalid", "slots"),
        ({"slots": "2"}, "argument_invalid", "slots"),
        ({"transaction_timeout": timedelta(minutes=1)}, "arguments_conflict", "strategy"),
        ({"two_phase_commit": True}, "arguments_conflict", "strategy"),
        (
            {"strategy": "held", "transaction_timeout": timedelta(milliseconds=10)},
            "argument_invalid",
            "transaction_timeout",
        ),
        ({"strategy": "held", "transaction_timeout": 60}, "argument_invalid", "transaction_timeout"),
        (
            {"strategy": "held", "transaction_timeout": timedelta(minutes=1), "two_phase_commit": True},
            "arguments_conflict",
            "transaction_timeout",
        ),
    ],
)
def test_what_cannot_work_is_refused_when_the_dag_is_parsed(
    settings: dict[str, object], code: str, argument: str
) -> None:
    with raises(ConfigurationError, code, argument=argument):
        KafkaSink(**{"topic": "alerts", **settings})  # type: ignore[arg-type]


def test_a_wrong_choice_is_answered_by_all_choices() -> None:
    for settings, choices in (({"strategy": "kept"}, "held, transaction"), ({"format": "avro"}, "json, raw")):
        with raises(ConfigurationError, "argument_invalid") as caught:
            KafkaSink(topic="alerts", **settings)  # type: ignore[arg-type]
        assert caught.error is not None and choices in caught.error.remedy


def test_a_transaction_must_last_as_long_as_a_checkpoint_may() -> None:
    config = CheckpointConfig(timeout=timedelta(minutes=20))
    short, default = (
        KafkaSink(topic="a", strategy="held", transaction_timeout=timedelta(minutes=19)),
        KafkaSink(topic="a", strategy="held"),
    )
    for sink, lives in ((short, "0:19:00"), (default, "0:15:00")):
        with raises(ConfigurationError, "arguments_conflict", argument="transaction_timeout") as caught:
            sink.check_checkpointing(config)
        assert caught.error is not None and lives in caught.error.headline and "0:20:00" in caught.error.headline
    default.check_checkpointing(CheckpointConfig())
    KafkaSink(topic="a", strategy="held", transaction_timeout=timedelta(minutes=20)).check_checkpointing(config)
    KafkaSink(topic="a", strategy="held", two_phase_commit=True).check_checkpointing(config)
    KafkaSink(topic="a").check_checkpointing(config)


def test_a_plan_of_a_newer_version_is_not_half_understood() -> None:
    with raises(ConfigurationError, "newer_release", settings=["compact"]):
        KafkaSink.from_settings("k", "transaction", {"topic": "a", "compact": True})
    with raises(ConfigurationError, "newer_release", settings=[]):
        KafkaSink.from_settings("k", "transaction", {})


def test_the_spec_imports_nothing_heavy() -> None:
    code = (
        "import sys, airflow_ft.sinks.kafka;"
        "heavy = {'pyarrow', 'confluent_kafka', 'kafka', 'numpy', 'airflow', 'pyspark'} & set(sys.modules);"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.fixture
def without_second_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where `airflow-ft` was installed without its extra."""
    monkeypatch.setattr("airflow_ft.sinks.kafka.spec.find_spec", lambda name: None)


@pytest.mark.usefixtures("without_second_client")
def test_the_strategy_held_is_not_opened_without_kafka_python() -> None:
    """`tests/sinks/test_registry.py` has the error when a DAG is parsed."""
    plan = ParticipantPlan("kafka_default", "kafka", "held", Promise.TWO_PHASE, 0, {"alerts": {"topic": "alerts"}})
    connection = ConnectionInfo("kafka_default", "kafka", extra={"bootstrap.servers": "127.0.0.1:1"})
    with raises(ConfigurationError, "package_missing", packages=["kafka-python"], extras=["held"]):
        open_participant(plan, connection, open_wal())


@pytest.mark.usefixtures("without_second_client")
def test_the_doctor_names_the_extra_before_it_connects() -> None:
    plan = ParticipantPlan("kafka_default", "kafka", "held", Promise.TWO_PHASE, 0, {"alerts": {"topic": "alerts"}})
    connection = ConnectionInfo("kafka_default", "kafka", extra={"bootstrap.servers": "127.0.0.1:1"})
    (check,) = examine("orders", plan, connection, [])
    assert (check.verdict, check.name) == (Verdict.PROBLEM, "held transactions")
    assert "airflow-ft[held]" in check.remedy


@pytest.mark.slow
def test_the_strategy_transaction_needs_no_second_client() -> None:
    """Everything that such a pipeline imports, where there is no kafka-python."""
    modules = "participant setup doctor verify permissions"
    imports = "".join(f"import airflow_ft.sinks.kafka.{name}\n" for name in modules.split())
    block = "import importlib.util, sys\nsys.modules['kafka'] = None\n"
    hide = "import airflow_ft.sinks.kafka.spec as s\ns.find_spec = lambda name: None\n"
    hide += "import airflow_ft.operators.preload\n"
    done = subprocess.run([sys.executable, "-c", block + imports + hide], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
