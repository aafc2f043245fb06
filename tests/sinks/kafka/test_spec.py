import json
import subprocess
import sys
from datetime import timedelta

import pytest

from airflow_ft.core.config import CheckpointConfig
from airflow_ft.core.doctor import Verdict
from airflow_ft.core.errors import ConfigurationError
from airflow_ft.core.model import ParticipantPlan, Promise
from airflow_ft.core.ports import ConnectionInfo, SinkSpec
from airflow_ft.sinks.kafka import KafkaSink
from airflow_ft.sinks.kafka.doctor import examine


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
    ("settings", "message"),
    [
        ({"topic": ""}, "no name of a Kafka topic"),
        ({"topic": "ä"}, "no name of a Kafka topic"),
        ({"topic": ".."}, "no name of a Kafka topic"),
        ({"conn_id": ""}, "conn_id is empty"),
        ({"strategy": "kept"}, "Available: held, transaction"),
        ({"key": ""}, "name is empty"),
        ({"key": "a", "partition": "a"}, "two roles"),
        ({"format": "avro"}, "Available: json, raw"),
        ({"format": "raw"}, "contradict"),
        ({"format": "json", "value": "v"}, "contradict"),
        ({"slots": 0}, "out of range"),
        ({"slots": 17}, "out of range"),
        ({"slots": True}, "out of range"),
        ({"slots": "2"}, "out of range"),
        ({"transaction_timeout": timedelta(minutes=1)}, "holds no transaction open"),
        ({"two_phase_commit": True}, "holds no transaction open"),
        ({"strategy": "held", "transaction_timeout": timedelta(milliseconds=10)}, "at least one second"),
        ({"strategy": "held", "transaction_timeout": 60}, "at least one second"),
        (
            {"strategy": "held", "transaction_timeout": timedelta(minutes=1), "two_phase_commit": True},
            "has no time-out",
        ),
    ],
)
def test_what_cannot_work_is_refused_when_the_dag_is_parsed(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        KafkaSink(**{"topic": "alerts", **settings})  # type: ignore[arg-type]


def test_a_transaction_must_live_as_long_as_a_checkpoint_may_take() -> None:
    config = CheckpointConfig(timeout=timedelta(minutes=20))
    short, default = (
        KafkaSink(topic="a", strategy="held", transaction_timeout=timedelta(minutes=19)),
        KafkaSink(topic="a", strategy="held"),
    )
    with pytest.raises(ConfigurationError, match=r"transaction_timeout \(0:19:00\) is shorter than .*0:20:00"):
        short.check_checkpointing(config)
    with pytest.raises(ConfigurationError, match=r"default transaction.max.timeout.ms \(0:15:00\) is shorter"):
        default.check_checkpointing(config)
    default.check_checkpointing(CheckpointConfig())
    KafkaSink(topic="a", strategy="held", transaction_timeout=timedelta(minutes=20)).check_checkpointing(config)
    KafkaSink(topic="a", strategy="held", two_phase_commit=True).check_checkpointing(config)
    KafkaSink(topic="a").check_checkpointing(config)


def test_a_plan_of_a_newer_version_is_not_half_understood() -> None:
    with pytest.raises(ConfigurationError, match="compact"):
        KafkaSink.from_settings("k", "transaction", {"topic": "a", "compact": True})
    with pytest.raises(ConfigurationError, match="names no topic"):
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
def test_held_without_kafka_python_is_refused_when_the_dag_is_parsed() -> None:
    with pytest.raises(ConfigurationError, match=r"kafka-python, which is not installed.*airflow-ft\[held\]"):
        KafkaSink(topic="alerts", strategy="held")
    assert KafkaSink(topic="alerts").strategy == "transaction"


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
    hide = "import airflow_ft.sinks.kafka.spec as s\ns.find_spec = lambda name: None\nimport airflow_ft.preload\n"
    done = subprocess.run([sys.executable, "-c", block + imports + hide], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
