"""Installs a wheel into a fresh environment, with each extra, and imports all that it brings."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable
from email.parser import BytesParser
from pathlib import Path

from tools.release.build import ROOT
from tools.servers.base import local_folder

_IMPORT_ALL = """
import importlib, pkgutil, airflow_ft
for name in airflow_ft.__all__:
    getattr(airflow_ft, name)
lacking = set()
for found in pkgutil.walk_packages(airflow_ft.__path__, "airflow_ft."):
    if found.name.endswith("__main__"):
        continue
    try:
        importlib.import_module(found.name)
    except Exception as error:
        for extra, module in EXTRAS.items():
            if module and importlib.util.find_spec(module) is None and (
                getattr(error, "name", "") == module or f"airflow-ft[{extra}]" in str(error)
            ):
                break
        else:
            raise SystemExit(f"{found.name} cannot be imported: {type(error).__name__}: {error}")
"""
_MODULES = {
    "cassandra": "cassandra",
    "delta": "deltalake",
    "hbase": "thriftpy2",
    "hdfs": "hdfs_native",
    "held": "kafka",
    "hive": "thriftpy2",
    "iceberg": "pyiceberg",
    "openlineage": "airflow.providers.openlineage",
    "paimon": "fastavro",
    "redis": "redis",
    "s3": "obstore",
    "testing": "pytest",
}
"""Extra -> the module that is there with it alone; a module of ours may need it, and say so."""


def metadata(wheel: Path) -> dict[str, list[str]]:
    """The wheel's own description: field -> its values."""
    with zipfile.ZipFile(wheel) as packed:
        name = next(each for each in packed.namelist() if each.endswith(".dist-info/METADATA"))
        headers = BytesParser().parsebytes(packed.read(name), headersonly=True)
    return {field: [str(each) for each in headers.get_all(field, [])] for field in headers}


def extras(wheel: Path) -> list[str]:
    """Those that users may ask for."""
    return [each for each in metadata(wheel)["Provides-Extra"] if each != "dev"]


def install(wheel: Path, wanted: Iterable[str], environment: Path, base: Path | None = None) -> Path:
    """Makes an environment with the wheel, these extras, and the releases of requirements.lock; returns its Python.

    base: an environment to begin with a copy of, which spares to build pyspark and a gigabyte of uv's cache.
    """
    python = environment / "bin" / "python"
    if base is None:
        _uv("venv", "--clear", "--python", sys.executable, str(environment))
    else:
        subprocess.run(["cp", "--archive", "--link", base, environment], check=True)
    named = ",".join(wanted)
    asked = f"airflow-ft{f'[{named}]' if named else ''} @ {wheel.resolve().as_uri()}"
    _uv("pip", "install", "--python", str(python), "--constraint", str(ROOT / "requirements.lock"), asked)
    return python


def import_all(python: Path) -> str:
    """Imports every public name and module there; returns what is wrong, empty when nothing is."""
    program = f"EXTRAS = {_MODULES!r}\n{_IMPORT_ALL}"
    with tempfile.TemporaryDirectory(prefix="airflow-ft-home-") as home:
        environment = {**os.environ, "AIRFLOW_HOME": home}
        done = subprocess.run(
            [python, "-c", program], cwd=home, env=environment, capture_output=True, text=True, check=False
        )
    return "" if done.returncode == 0 else (done.stderr.strip().splitlines() or ["it ended without a word"])[-1]


def _uv(*arguments: str) -> None:
    """With pip's own index and certificate, as tools/bootstrap.sh has it."""
    settings = f'source {ROOT}/tools/python.sh; follow_pip_settings "$0"; exec "$@"'
    command = ["bash", "-c", settings, sys.executable, str(local_folder() / "uv" / "bin" / "uv"), *arguments, "--quiet"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"uv {arguments[0]}: {done.stderr.strip()}")
