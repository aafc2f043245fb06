"""What a driver is started with: the folder of Spark, the files that spark-submit reads there, Python's folders."""

from __future__ import annotations

import os
import site
import sys
import sysconfig
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path, PurePath

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


def spark_defaults() -> str:
    """Return the text of spark-defaults.conf, which spark-submit reads; "": there is none."""
    try:
        return conf_file("spark-defaults.conf").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""


def added_folders(path: Sequence[str]) -> list[str]:
    """Return the entries of `path`, from which a process imports, outside the folders of the interpreter.

    Prefixes say too little: with Python in /usr/local, DAGs may be in /usr/local/airflow, and a virtual environment may
    be Airflow's home.
    """
    standard = sysconfig.get_path("stdlib")
    own = {sysconfig.get_path(name) for name in ("platstdlib", "purelib", "platlib", "scripts")}
    own |= {standard, *site.getsitepackages()}
    archive = PurePath(standard).with_name(f"python{sys.version_info.major}{sys.version_info.minor}.zip")
    own.add(str(archive))
    return [entry for entry in path if not any(PurePath(entry).is_relative_to(folder) for folder in own)]
