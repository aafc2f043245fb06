"""The provider's configuration: section `[airflow_ft]` of airflow.cfg, or AIRFLOW__AIRFLOW_FT__<OPTION>.

An argument of an operator goes before these, and the defaults below come last. The options are described for people
in `airflow_ft.provider_info`. Read at run time only: parsing a DAG opens nothing.
"""

from __future__ import annotations

import json
from typing import Any

from airflow_ft.protocol.config import CheckpointConfig
from airflow_ft.protocol.errors import ConfigurationError
from airflow_ft.protocol.kinds import LONGEST
from airflow_ft.protocol.lease import LEASE_SECONDS
from airflow_ft.spark import private
from airflow_ft.store.url import sqlite_url

SECTION = "airflow_ft"


def _read(option: str) -> str:
    from airflow.sdk.configuration import conf

    value = conf.get(SECTION, option, fallback="")
    return str(value).strip() if value is not None else ""


def store() -> str:
    """`[airflow_ft] store`: a SQLite URL, "conn:<connection id>" or a connection id."""
    return _read("store") or sqlite_url(private.own_folder() / "ft.db")


def wal_root() -> str:
    """`[airflow_ft] wal_root`: folder (path or URI) of the write-ahead log, the same for all workers."""
    return _read("wal_root") or str(private.own_folder() / "wal")


def savepoint_dir() -> str:
    """`[airflow_ft] savepoint_dir`: folder (path or URI) of savepoints."""
    return _read("savepoint_dir") or str(private.own_folder() / "savepoints")


def maintenance_dags() -> tuple[str, ...]:
    """`[airflow_ft] maintenance_dags`: the ids of the DAGs that act on pipelines for users of the page."""
    named = (each.strip() for each in (_read("maintenance_dags") or "airflow_ft_maintenance").split(","))
    return tuple(dict.fromkeys(each for each in named if each))


def lease_seconds() -> float:
    """Return `[airflow_ft] lease_seconds`: how long a process without renewal keeps its lease, in seconds."""
    text = _read("lease_seconds")
    if not text:
        return LEASE_SECONDS
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 1 <= seconds <= LONGEST.total_seconds():  # nor NaN
        raise _invalid("lease_seconds", text, "Give a number of seconds, from 1 s to 100 years.")
    return seconds


def checkpointing() -> CheckpointConfig:
    """`[airflow_ft] checkpointing`: settings of `CheckpointConfig` (a JSON object), where pipelines leave them open."""
    try:
        return CheckpointConfig.from_json(_json("checkpointing", '{"timeout": 1800, "num_retained": 5}'))
    except ConfigurationError as error:
        raise ConfigurationError(
            f"[{SECTION}] checkpointing: {error.what}",
            code="setting_invalid",
            remedy=error.remedy,
            **{**error.fields, "setting": "checkpointing", "cause": error.code},
        ) from None


def spark_master() -> str:
    """`[airflow_ft] spark_master`: "" leaves the choice to the launcher (local[*])."""
    return _read("spark_master")


def spark_conf() -> dict[str, str]:
    """`[airflow_ft] spark_conf`: a JSON object of Spark settings."""
    found = _json("spark_conf", '{"spark.driver.memory": "2g"}')
    return {str(key): _text(value) for key, value in found.items()}


def _json(option: str, example: str) -> dict[str, Any]:
    text = _read(option)
    try:
        found: Any = json.loads(text or "{}")
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise ConfigurationError(
            f"[{SECTION}] {option} is not a JSON object.",
            code="setting_invalid",
            remedy=f"Write a JSON object, such as {example}.",
            setting=option,
        )
    return found


def spark_jars() -> str:
    """`[airflow_ft] spark_jars`: folders and jar files for Spark's class path, separated by commas."""
    return _read("spark_jars")


def keep_session() -> float:
    """`[airflow_ft] keep_session`: seconds for which a Spark session waits for the next run; 0: none."""
    text = _read("keep_session")
    try:
        seconds = float(text or 0)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise _invalid("keep_session", text, "Give a number of seconds, or 0.")
    return seconds


def spark_history_url() -> str:
    """`[airflow_ft] spark_history_url`: where the page links to Spark, with places to fill in; "": nowhere."""
    url = _read("spark_history_url")
    if url and not url.startswith(("http://", "https://")):
        raise _invalid("spark_history_url", url, "Give an address that begins with http:// or https://.")
    return url


def preload() -> bool:
    """`[airflow_ft] preload`: whether processes that fork tasks import `airflow_ft.operators.preload`."""
    from airflow.sdk.configuration import conf

    return bool(conf.getboolean(SECTION, "preload", fallback=False))


def allow_test_runs() -> bool:
    """`[airflow_ft] allow_test_runs`: whether `airflow tasks test` and `airflow dags test` really run a pipeline."""
    from airflow.sdk.configuration import conf

    return bool(conf.getboolean(SECTION, "allow_test_runs", fallback=False))


def _invalid(setting: str, value: str, remedy: str) -> ConfigurationError:
    what = f"[{SECTION}] {setting} is {value!r}."
    return ConfigurationError(what, code="setting_invalid", remedy=remedy, setting=setting, value=repr(value))


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
