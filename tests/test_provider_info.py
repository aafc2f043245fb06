"""What Airflow is told about the provider is valid, and what it names exists."""

from __future__ import annotations

import json
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from airflow_ft import settings
from airflow_ft.core.errors import ConfigurationError
from airflow_ft.provider_info import get_provider_info

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
    for path in (*INFO["extra-links"], *INFO["cli"], *(entry["handler"] for entry in INFO["asset-uris"])):
        assert callable(found(path))


def test_each_option_has_a_reader(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    values = {
        "store": "conn:log",
        "wal_root": "/wal",
        "lease_seconds": "5",
        "spark_master": "local[1]",
        "spark_conf": '{"spark.ui.enabled": false, "a": 1}',
        "spark_jars": "/jars",
    }
    assert set(INFO["config"]["airflow_ft"]["options"]) == set(values)
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path))
    defaults = {name: getattr(settings, name)() for name in values}
    assert defaults == {
        "store": f"sqlite:///{tmp_path}/airflow_ft/ft.db",
        "wal_root": f"{tmp_path}/airflow_ft/wal",
        "lease_seconds": 30.0,
        "spark_master": "",
        "spark_conf": {},
        "spark_jars": "",
    }
    for name, value in values.items():
        monkeypatch.setenv(f"AIRFLOW__AIRFLOW_FT__{name.upper()}", value)
    given = {name: getattr(settings, name)() for name in values}
    assert given == {**values, "lease_seconds": 5.0, "spark_conf": {"spark.ui.enabled": "false", "a": "1"}}


@pytest.mark.parametrize(
    ("option", "value"),
    [("lease_seconds", "soon"), ("lease_seconds", "0"), ("spark_conf", "spark.a=b"), ("spark_conf", "[1]")],
)
def test_an_option_that_makes_no_sense_is_named(option: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"AIRFLOW__AIRFLOW_FT__{option.upper()}", value)
    with pytest.raises(ConfigurationError, match=option):
        getattr(settings, option)()
