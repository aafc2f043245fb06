"""What setup.cfg demands is what is imported, or has a reason to be there all the same."""

from __future__ import annotations

import ast
import configparser
import json
import os
import re
import subprocess
import sys
from functools import cache
from importlib import metadata
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]

# Distribution -> why it is needed although nothing of ours imports it.
NOT_IMPORTED = {
    "apache-airflow-providers-apache-kafka": "the connection type kafka: its form, its Test button, its hook in tasks",
    "apache-airflow-providers-openlineage": "asks our operators for lineage; its modules are found below `airflow`",
    "cryptography": "PyMySQL logs in to MySQL's default accounts with it (caching_sha2_password)",
    "happybase": "its file describes HBase's Thrift gateway; its client is slower and has no checkAndPut",
    "pandas": "Spark runs stateful Python functions with it",
    "protobuf": "Spark's state protocol of Python functions",
}
# Modules that come with Airflow, as its interface or what it runs on, with pyspark (py4j), and with Airflow's provider
# of OpenLineage, whose interface takes values of openlineage.
OF_OTHERS = {"airflow", "asgiref", "fastapi", "openlineage", "opentelemetry", "py4j", "pydantic", "rich"}
OF_OTHERS |= {"sqlalchemy", "typing_extensions"}


def demanded_by(text: str) -> set[str]:
    """The distributions that a list of requirements names, in lower case."""
    lines = (line.strip() for line in text.splitlines())
    found = (re.match(r"[A-Za-z0-9._-]+", line) for line in lines if line and line[0] != "#")
    return {match[0].lower() for match in found if match}


def demanded() -> set[str]:
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg")
    extras = (text for extra, text in parser["options.extras_require"].items() if extra != "dev")
    return demanded_by("\n".join([parser["options"]["install_requires"], *extras]))


@cache
def imported_in(folder: str) -> dict[str, str]:
    """Top-level module -> a file in the folder that imports it."""
    found: dict[str, str] = {}
    for file in (ROOT / folder).rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                names = [node.module]
            for name in names:
                top = name.partition(".")[0]
                if top not in sys.stdlib_module_names and top != "airflow_ft":
                    found[top] = str(file.relative_to(ROOT))
    return found


def imported() -> dict[str, str]:
    """The same for all folders that are installed."""
    return {**imported_in("airflow_ft"), **imported_in("plugins"), **imported_in("dags")}


@cache
def distributions() -> dict[str, set[str]]:
    """Module -> the distributions that bring it, in lower case."""
    return {module: {name.lower() for name in names} for module, names in metadata.packages_distributions().items()}


def test_what_is_imported_is_demanded() -> None:
    of, wanted = distributions(), demanded()
    for module, file in imported().items():
        if module not in OF_OTHERS:
            assert of[module] & wanted, f"{file} imports {module}: setup.cfg demands none of {of[module]}"


def test_what_is_demanded_is_imported_or_has_a_reason() -> None:
    of, modules = distributions(), imported()
    used = {name for module in modules for name in of[module]}
    assert demanded() - used - {"apache-airflow"} - set(NOT_IMPORTED) == set()


def test_no_reason_has_outlived_what_it_is_for() -> None:
    """Modules in the package itself; an example job may import what Spark hands to it."""
    assert set(NOT_IMPORTED) <= demanded()
    own = {*imported_in("airflow_ft"), *imported_in("plugins")}
    assert not own & {"cryptography", "google", "pandas"}, "it is imported now: the reason goes"


def test_commands_and_other_sinks_work_without_the_extras(tmp_path: Path) -> None:
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg")
    extras = parser["options.extras_require"]
    own = demanded_by(parser["options"]["install_requires"])
    optional = {name for extra, text in extras.items() if extra not in ("dev", "testing") for name in demanded_by(text)}
    hidden = {module for module, names in distributions().items() if names and names <= optional - own}
    assert {"cassandra", "pyiceberg", "kafka"} <= hidden
    hidden.add("backports")  # development tools bring parts of it, too
    program = f"""
import json, sys
from argparse import Namespace
from importlib import metadata
from importlib.machinery import PathFinder

class Without:
    find_distributions = PathFinder.find_distributions

    @staticmethod
    def find_spec(name, path=None, target=None):
        return None if name.partition(".")[0] in {hidden} else PathFinder.find_spec(name, path, target)

def distribution(name):
    if name in {optional - own}:
        raise metadata.PackageNotFoundError(name)
    return installed(name)

installed, metadata.distribution = metadata.distribution, distribution
sys.meta_path[sys.meta_path.index(PathFinder)] = Without

import airflow_ft.operators.preload
import airflow_ft.admin.cli
from airflow_ft.admin.commands.installation import sinks
from airflow_ft.protocol.errors import ConfigurationError
from airflow_ft.protocol.model import ParticipantPlan, Promise
from airflow_ft.sinks import open_participant
from airflow_ft.sinks.registry import own_systems

sinks(Namespace(output="json"))
for system in own_systems():
    if not system.missing_clients():
        continue
    plan = ParticipantPlan("x", system.kind, next(iter(system.strategies)), Promise.TWO_PHASE, None, {{}})
    for use in (lambda: open_participant(plan, None, None), lambda: system.part("verify") and system.require_clients()):
        try:
            use()
        except ConfigurationError as error:
            print(json.dumps({{system.kind: [error.code, *error.fields["extras"]]}}))
"""
    environment = {**os.environ, "AIRFLOW_HOME": str(tmp_path)}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    refused = {kind: found for line in done.stdout.splitlines()[1:] for kind, found in json.loads(line).items()}
    extra = {"cassandra", "delta", "hbase", "hive", "iceberg", "paimon", "redis"}
    assert refused == {kind: ["package_missing", kind] for kind in extra}


def test_broken_third_party_sinks_do_not_stop_preloading(tmp_path: Path) -> None:
    """A missing module, another object than a system, and a module that raises when it is preloaded."""
    for name, offer in (("gone", "nowhere:SYSTEM"), ("other", "os:environ"), ("unfit", "unfit:SYSTEM")):
        folder = tmp_path / f"{name}_sink-1.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}-sink\nVersion: 1\n")
        (folder / "entry_points.txt").write_text(f"[airflow_ft.sinks]\n{name} = {offer}\n")
    system = "from airflow_ft.sinks.registry import System\n"
    (tmp_path / "unfit.py").write_text(
        f"{system}SYSTEM = System('unfit', 'Unfit', 'unfit', preload=['unfit_client'])\n"
    )
    (tmp_path / "unfit_client.py").write_text("1 / 0\n")
    environment = {**os.environ, "AIRFLOW_HOME": str(tmp_path), "PYTHONPATH": str(tmp_path)}
    program = "import sys, airflow_ft.operators.preload; print('airflow_ft.sinks.sqlite.participant' in sys.modules)"
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.splitlines()[-1:]) == (0, ["True"]), done.stderr
