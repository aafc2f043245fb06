"""Settings that Spark keeps with the state are compared before a JVM is started."""

import json
import logging
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_ft.pipeline import steps as pipeline_steps
from airflow_ft.pipeline.resolved import resolve
from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.errors import ConfigurationError
from airflow_ft.protocol.model import RunKey, SparkPosition
from airflow_ft.spark.state.settings import (
    keep_configured,
    kept_settings,
    log_changed_settings,
    refuse_changed,
    remember_given,
)
from airflow_ft.store import open_store
from tests.operators.declared import spec
from tests.raising import raises

PARTITIONS = "spark.sql.shuffle.partitions"
PROVIDER = "spark.sql.streaming.stateStore.providerClass"
FORMAT = "spark.sql.streaming.stateStore.checkpointFormatVersion"


@pytest.fixture
def base(tmp_path: Path) -> SparkPosition:
    kept = json.dumps({"batchWatermarkMs": 0, "conf": {PARTITIONS: "4", PROVIDER: "org.RocksDB"}})
    for name, text in {"offsets/3": f'v1\n{kept}\n{{"logOffset":3}}', "commits/3": "v1\n{}", "state/0/x": ""}.items():
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text(text)
    remember_given(tmp_path.as_uri(), {PARTITIONS: "4", "spark.password": "secret"})
    return SparkPosition(tmp_path.as_uri(), 3)


@pytest.mark.parametrize(("name", "value"), [(PARTITIONS, "8"), (PROVIDER, "org.Hdfs"), (FORMAT, "2")])
def test_a_setting_that_contradicts_the_state_is_refused_by_name(base: SparkPosition, name: str, value: str) -> None:
    with raises(ConfigurationError, "state_settings_changed", pipeline="orders", settings={name: value}) as caught:
        refuse_changed("orders", base, {"spark.driver.memory": "1g", name: value})
    assert caught.error is not None and "airflow ft reset-state orders" in caught.error.remedy


def test_a_global_setting_does_not_stop_a_pipeline_with_state(
    base: SparkPosition, caplog: pytest.LogCaptureFixture
) -> None:
    """It keeps the old value, and says so; what the pipeline itself says is refused as before."""
    conf = {PARTITIONS: "8", PROVIDER: "org.Hdfs", "spark.driver.memory": "1g"}
    found = keep_configured("orders", base, conf, {PARTITIONS, "spark.driver.memory"})
    assert found == {**conf, PARTITIONS: "4"}
    assert [record.getMessage() for record in caplog.records] == [
        f"{PARTITIONS} of orders stays 4, because its state was created with it; only new state gets the 8 of"
        " [airflow_ft] spark_conf"
    ]
    with raises(
        ConfigurationError, "state_settings_changed", settings={PROVIDER: "org.Hdfs"}, kept={PROVIDER: "org.RocksDB"}
    ):
        refuse_changed("orders", base, found)
    assert keep_configured("orders", SparkPosition(base.location, -1), conf, {PARTITIONS}) == conf, "without state"


def test_a_driver_is_told_what_the_state_has(
    base: SparkPosition, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In place of what the provider's configuration says; what a pipeline says itself is passed on, to be refused."""
    said = json.dumps({PARTITIONS: "8", PROVIDER: "org.Hdfs"})
    monkeypatch.setenv("AIRFLOW__AIRFLOW_FT__SPARK_CONF", said)
    found = resolve(spec(spark_conf={PROVIDER: "org.Own"}, wal_root=str(tmp_path), store="sqlite:////x"))
    with closing(open_store(f"sqlite:///{tmp_path}/ft.db")) as store:
        pipeline = replace(store.register("orders"), base=base)

    def connection(name: str) -> ConnectionInfo:
        return ConnectionInfo(name, "kafka", extra={"bootstrap.servers": "b:9092"})

    request = pipeline_steps.request(found, RunKey("d", "r"), pipeline, 1, 1, connection)
    assert request.conf == {PARTITIONS: "4", PROVIDER: "org.Own"}


def test_the_same_settings_and_others_pass(base: SparkPosition, caplog: pytest.LogCaptureFixture) -> None:
    refuse_changed("orders", base, {PARTITIONS: " 4", PROVIDER: "org.RocksDB", FORMAT: "1", "spark.x": "y"})
    log_changed_settings(base, {PARTITIONS: "4"}.get)
    assert not caplog.records


def test_without_state_nothing_is_kept(base: SparkPosition, tmp_path: Path) -> None:
    assert kept_settings(None) == kept_settings(SparkPosition(base.location, -1)) == {}
    (tmp_path / "state/0/x").unlink()
    (tmp_path / "state/0").rmdir()
    refuse_changed("orders", base, {PARTITIONS: "8"})


def test_what_the_job_itself_has_set_is_told(base: SparkPosition, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        log_changed_settings(base, {PARTITIONS: "8"}.get)
    assert [record.getMessage() for record in caplog.records] == [
        f"{PARTITIONS} stays 4, because the state was created with it; ignoring the session's 8"
    ]


def test_a_setting_that_the_job_overrides_is_not_a_change(base: SparkPosition, tmp_path: Path) -> None:
    """What was given is remembered once, and nothing else of the settings, which may hold secrets."""
    kept = tmp_path / "airflow_ft_settings.json"
    assert json.loads(kept.read_text()) == {PARTITIONS: "4"}
    kept.write_text(json.dumps({PARTITIONS: "7"}))
    remember_given(base.location, {PARTITIONS: "8"})
    refuse_changed("orders", base, {PARTITIONS: "7"})
    with raises(ConfigurationError, "state_settings_changed", settings={PARTITIONS: "8"}, kept={PARTITIONS: "4"}):
        refuse_changed("orders", base, {PARTITIONS: "8"})
