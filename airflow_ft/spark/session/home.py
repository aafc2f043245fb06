"""The Spark installation that a driver is started with: its folder, and the files that spark-submit reads there."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

from airflow_ft.protocol.errors import ConfigurationError


def spark_home() -> Path:
    """$SPARK_HOME, else the folder of the installed pyspark; ConfigurationError when there is neither."""
    if os.environ.get("SPARK_HOME"):
        return Path(os.environ["SPARK_HOME"])
    found = find_spec("pyspark")
    if found is None or not found.submodule_search_locations:
        raise ConfigurationError(
            "pyspark is not installed on this machine.",
            code="package_missing",
            remedy="Run `pip install pyspark`, or set SPARK_HOME.",
            package="pyspark",
        )
    return Path(found.submodule_search_locations[0])


def conf_file(name: str) -> Path:
    """Return where spark-submit looks for a file such as spark-defaults.conf, which need not be there."""
    return Path(os.environ.get("SPARK_CONF_DIR") or spark_home() / "conf") / name
