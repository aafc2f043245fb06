"""What Airflow is told about the provider is valid, and what it names exists."""

from __future__ import annotations

import json
import os
import stat
from datetime import timedelta
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from airflow_ft.pipeline import doctor, options, settings
from airflow_ft.protocol.config import CheckpointConfig
from airflow_ft.protocol.doctor import Verdict
from airflow_ft.protocol.errors import ConfigurationError, NotDeliveredError
from airflow_ft.provider_info import get_provider_info
from airflow_ft.spark import private
from airflow_ft.spark.session import connector
from tests.operators.declared import spec
from tests.raising import raises

pytestmark = pytest.mark.airflow

INFO = get_provider_info()


def found(path: str) -> Any:
    module, _, name = path.rpartition(".")
    return getattr(import_module(module), name)


def test_it_is_what_airflow_accepts() -> None:
    import airflow

    schema = json.loads((Path(airflow.__file__).parent / "provider_info.schema.json").read_text())
    jsonschema.validate(INFO, schema)


def test_its_name_is_the_distributions() -> None:
    assert INFO["package-name"] == metadata.metadata("airflow-ft")["Name"]


def test_everything_that_it_names_exists() -> None:
    for part in ("operators", "sensors", "hooks", "triggers"):
        for entry in INFO[part]:
            for module in entry["python-modules"]:
                import_module(module)
    hooks = [entry["hook-class-name"] for entry in INFO["connection-types"]]
    handlers = [entry["handler"] for entry in INFO["asset-uris"]]
    for path in (*INFO["extra-links"], *INFO["cli"], *INFO["notifications"], *hooks, *handlers):
        assert callable(found(path))


def test_each_option_has_a_reader(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    values = {
        "store": "conn:log",
        "wal_root": "/wal",
        "savepoint_dir": "/savepoints",
        "maintenance_dags": "ft_operate, ft_settle,",
        "lease_seconds": "5",
        "checkpointing": '{"timeout": 90.5, "quarantine_after": "never"}',
        "spark_master": "local[1]",
        "spark_conf": '{"spark.ui.enabled": false, "a": 1}',
        "spark_jars": "/jars",
        "keep_session": "900",
        "spark_history_url": "https://spark/{run_id}",
        "preload": "True",
        "allow_test_runs": "True",
    }
    assert set(INFO["config"]["airflow_ft"]["options"]) == set(values)
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path))
    defaults = {name: getattr(settings, name)() for name in values}
    assert defaults == {
        "store": f"sqlite:///{tmp_path}/airflow_ft/ft.db",
        "wal_root": f"{tmp_path}/airflow_ft/wal",
        "savepoint_dir": f"{tmp_path}/airflow_ft/savepoints",
        "maintenance_dags": ("airflow_ft_maintenance",),
        "lease_seconds": 30.0,
        "checkpointing": CheckpointConfig(),
        "spark_master": "",
        "spark_conf": {},
        "spark_jars": "",
        "keep_session": 0.0,
        "spark_history_url": "",
        "preload": False,
        "allow_test_runs": False,
    }
    for name, value in values.items():
        monkeypatch.setenv(f"AIRFLOW__AIRFLOW_FT__{name.upper()}", value)
    given = {name: getattr(settings, name)() for name in values}
    assert given == {
        **values,
        "maintenance_dags": ("ft_operate", "ft_settle"),
        "lease_seconds": 5.0,
        "checkpointing": CheckpointConfig(timeout=timedelta(seconds=90.5), quarantine_after=None),
        "keep_session": 900.0,
        "preload": True,
        "allow_test_runs": True,
        "spark_conf": {"spark.ui.enabled": "false", "a": "1"},
    }


def test_airflow_masks_options_that_may_hold_passwords(monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow.sdk.configuration import conf

    masked = {name for section, name in conf.sensitive_config_values if section == "airflow_ft"}
    assert masked == {"store", "spark_conf"}
    monkeypatch.setenv("AIRFLOW__AIRFLOW_FT__STORE", "postgresql://ada:sesame@db/ft")
    monkeypatch.setenv("AIRFLOW__AIRFLOW_FT__SPARK_CONF", '{"spark.hadoop.fs.s3a.secret.key": "sesame"}')
    assert "sesame" not in str(conf.as_dict(display_sensitive=False)["airflow_ft"])


def test_a_command_may_supply_the_decision_logs_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AIRFLOW__AIRFLOW_FT__STORE", raising=False)
    monkeypatch.setenv("AIRFLOW__AIRFLOW_FT__STORE_CMD", "echo postgresql://ada:sesame@db/ft")
    assert settings.store() == "postgresql://ada:sesame@db/ft"


def test_what_lies_in_airflows_home_is_its_users_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Whatever comes first: a dry run has made the folder of the rows as the umask has it."""
    monkeypatch.setattr(private, "airflow_home", lambda: tmp_path)
    before = os.umask(0o022)
    try:
        for place in (settings.wal_root, settings.savepoint_dir, settings.store, connector.folder):
            assert str(place()).startswith((str(tmp_path / "airflow_ft"), f"sqlite:///{tmp_path}/airflow_ft/"))
            assert stat.S_IMODE((tmp_path / "airflow_ft").stat().st_mode) == 0o700
            (tmp_path / "airflow_ft").rmdir()
    finally:
        os.umask(before)
    monkeypatch.setattr(private, "airflow_home", lambda: tmp_path / "nothing")
    assert settings.wal_root() == str(tmp_path / "nothing" / "airflow_ft" / "wal")


def test_the_described_defaults_are_those_that_count(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path))
    for name, option in INFO["config"]["airflow_ft"]["options"].items():
        monkeypatch.delenv(f"AIRFLOW__AIRFLOW_FT__{name.upper()}", raising=False)
        without = getattr(settings, name)()
        monkeypatch.setenv(f"AIRFLOW__AIRFLOW_FT__{name.upper()}", option["default"])
        assert getattr(settings, name)() == without, name


@pytest.mark.parametrize(
    ("argument", "setting", "expected"),
    [
        (CheckpointConfig(), 60, timedelta(minutes=1)),
        (CheckpointConfig(), "never", None),
        (CheckpointConfig(), None, None),
        (None, 60, timedelta(minutes=1)),
        ({"num_retained": 1}, 0, timedelta(0)),
        (CheckpointConfig(quarantine_after=None), 60, None),
        (CheckpointConfig(quarantine_after=timedelta(days=1)), "never", timedelta(days=1)),
        ({"quarantine_after": 5}, 60, timedelta(seconds=5)),
    ],
)
def test_a_pipelines_own_settings_go_before_the_configured_ones(
    argument: Any, setting: Any, expected: timedelta | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow_ft.operators import confirm

    found: list[CheckpointConfig] = []

    def confirm_step(run: Any, config: CheckpointConfig, *others: Any) -> Any:
        found.append(config)
        raise NotDeliveredError("enough")

    monkeypatch.setattr("airflow_ft.protocol.steps.confirm_step", confirm_step)
    monkeypatch.setattr(confirm.ConfirmOperator, "skip_if_skipped", lambda *_: None)
    monkeypatch.setenv("AIRFLOW__AIRFLOW_FT__CHECKPOINTING", json.dumps({"quarantine_after": setting}))
    task = confirm.ConfirmOperator(task_id="confirmed", spec=spec(checkpointing=argument))
    with pytest.raises(NotDeliveredError):
        task.step(task.rendered(), None, {})  # type: ignore[arg-type]
    assert [config.quarantine_after for config in found] == [expected]


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("lease_seconds", "soon"),
        ("lease_seconds", "0"),
        ("lease_seconds", "nan"),
        ("lease_seconds", "inf"),
        ("lease_seconds", "1e13"),
        ("checkpointing", '{"timeout": 1e13}'),
        ("checkpointing", "timeout=5"),
        ("checkpointing", '["timeout"]'),
        ("checkpointing", '{"quarantine_after": "a day"}'),
        ("checkpointing", '{"quarantine_after": -1}'),
        ("checkpointing", '{"quarantine_after": "nan"}'),
        ("checkpointing", '{"num_retained": 2.5}'),
        ("checkpointing", '{"time_out": 2}'),
        ("spark_conf", "spark.a=b"),
        ("spark_conf", "[1]"),
    ],
)
def test_an_option_that_makes_no_sense_is_named(option: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"AIRFLOW__AIRFLOW_FT__{option.upper()}", value)
    with raises(ConfigurationError, "setting_invalid", setting=option):
        getattr(settings, option)()


def test_an_option_that_nothing_reads_is_told_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert options.unknown_options() == {}
    monkeypatch.setenv("AIRFLOW__AIRFLOW_FT__WAL_ROT", "/wal")
    monkeypatch.setenv("AIRFLOW__AIRFLOW_FT__STORE_CMD", "true")
    monkeypatch.setenv("AIRFLOW__AIRFLOW_FT__WAL_ROOT_CMD", "true")  # Airflow runs it for sensitive options alone
    assert list(options.unknown_options()) == ["wal_root_cmd", "wal_rot"]
    monkeypatch.delenv("AIRFLOW__AIRFLOW_FT__WAL_ROOT_CMD")
    [(name, (_, remedy))] = options.unknown_options().items()
    close = remedy.rpartition("The closest options: ")[2].split(", ")
    assert (name, close[0], len(close)) == ("wal_rot", "wal_root", 3)
    options.warn_of_unknown_options.cache_clear()
    for _ in range(2):
        options.warn_of_unknown_options()
    options.warn_of_unknown_options.cache_clear()
    assert [text.count("wal_rot") for text in caplog.messages if "[setting_unknown]" in text] == [1]
    [check] = doctor._configuration()
    assert (check.name, check.code, check.verdict) == ("wal_rot", "setting_unknown", Verdict.WARNING)
    assert "wal_root" in check.remedy and "/wal" not in f"{check} {caplog.messages}"


def test_airflow_loads_no_example_under_the_id_of_a_users_dag() -> None:
    """`[core] load_examples`, Airflow's default, makes a bundle of the folder. The files can still be copied."""
    from airflow.utils.file import list_py_file_paths

    folder = Path(__file__).parents[1] / "dags"
    shown = {Path(file).stem for file in list_py_file_paths(folder, safe_mode=False)}
    assert "flights" in shown
    assert not shown & {*settings.maintenance_dags(), "airflow_ft_recovery", "flights_everywhere", "order_files"}
