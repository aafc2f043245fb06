"""Imports stay light: what a DAG or the `airflow` command imports loads neither Spark, nor Arrow, nor a driver."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
HEAVY = {"pyspark", "pyarrow", "pandas", "numpy", "pymysql", "confluent_kafka", "kafka", "psycopg2", "hdfs_native"}

HIDE_SPARK = """
import sys
class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("pyspark", "pyarrow"):
            raise ModuleNotFoundError(f"No module named {name!r} (hidden)", name=name)
sys.meta_path.insert(0, Hidden())
"""

_FORKING = """
import json, os, sys, traceback
import airflow

answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
for line in sys.stdin:
    if not os.fork():
        try:
            exec(json.loads(line), {"__name__": "__main__"})
            answer = sorted(sys.modules)
        except BaseException:
            answer = traceback.format_exc()
        print(json.dumps(answer), file=answers, flush=True)
        os._exit(0)
    _, status = os.wait()
    if status:
        print(json.dumps(f"the process ended with the status {status}"), file=answers, flush=True)
"""


def environment(home: Path) -> dict[str, str]:
    return {**os.environ, "AIRFLOW_HOME": str(home), "AIRFLOW__CORE__LOAD_EXAMPLES": "False"}


def modules_after(code: str, home: Path) -> set[str]:
    """The modules that a fresh interpreter has imported after `code`."""
    program = f"{code}\nimport json, sys\nprint(json.dumps(sorted(sys.modules)))"
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(home), cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout.splitlines()[-1]))


@pytest.fixture(scope="module")
def after_airflow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], set[str]]]:
    """The same after `import airflow` and `code`, in a fork: Airflow alone takes two seconds of each interpreter."""
    command = [sys.executable, "-c", _FORKING]
    variables = environment(tmp_path_factory.mktemp("airflow"))
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=variables, cwd=ROOT
    ) as parent:
        assert parent.stdin is not None and parent.stdout is not None
        orders, answers = parent.stdin, parent.stdout

        def modules(code: str) -> set[str]:
            print(json.dumps(code), file=orders, flush=True)
            answer = json.loads(answers.readline())
            assert isinstance(answer, list), answer
            return set(answer)

        yield modules
        orders.close()


def heavy(modules: set[str]) -> set[str]:
    return {name for name in modules if name.partition(".")[0] in HEAVY}


def test_the_package_imports_nothing(tmp_path: Path) -> None:
    modules = modules_after("import airflow_ft", tmp_path)
    assert not heavy(modules)
    assert "airflow" not in modules
    ours = {name for name in modules if name.startswith("airflow_ft") and "editable" not in name}
    assert ours == {"airflow_ft"}


def test_the_plugin_of_pytest_imports_nothing_before_it_is_used(tmp_path: Path) -> None:
    code = "import airflow_ft.testing.plugin"
    modules = modules_after(code, tmp_path)
    ours = {name for name in modules if name.startswith("airflow_ft") and "editable" not in name}
    assert ours == {"airflow_ft", "airflow_ft.testing", "airflow_ft.testing.plugin"}
    assert not heavy(modules) and "airflow" not in modules


@pytest.mark.parametrize(
    ("preload", "command", "imported"),
    [
        (False, "scheduler", False),
        (True, "scheduler", True),
        *((True, command, False) for command in ("api-server", "dag-processor", "triggerer")),
    ],
)
def test_the_plugin_imports_clients_where_tasks_are_forked(
    preload: bool, command: str, imported: bool, after_airflow: Callable[[str], set[str]]
) -> None:
    modules = after_airflow(
        "import os, sys, threading\n"
        f"os.environ['AIRFLOW__AIRFLOW_FT__PRELOAD'] = '{preload}'\n"
        f"sys.argv = ['airflow', '{command}']\n"
        "import airflow_ft.plugins\n"
        "assert threading.active_count() == 1"
    )
    clients = {"pyarrow.parquet", "pymysql", "confluent_kafka.admin"}
    assert (clients & modules, "pyspark" in modules) == (clients if imported else set(), False)


def test_every_public_name_is_there(after_airflow: Callable[[str], set[str]]) -> None:
    modules = after_airflow("from airflow_ft import *")
    assert not heavy(modules)
    assert "airflow_ft.wal" not in modules, "parsing a DAG needs no file system"


def test_the_provider_describes_itself_without_airflow(tmp_path: Path) -> None:
    modules = modules_after("from airflow_ft.provider_info import get_provider_info; get_provider_info()", tmp_path)
    assert "airflow" not in modules


def test_dividing_rows_into_partitions_imports_no_pandas(tmp_path: Path) -> None:
    code = (
        "import pyarrow as pa\n"
        "from airflow_ft.sinks.files.partitions import refused, split\n"
        "from airflow_ft.sinks.arrow import texts\n"
        "rows = pa.RecordBatch.from_arrays([texts(['a', 'b'])] * 2, names=['id', 'text'])\n"
        "assert not refused(rows, ['text'], 500) and len(list(split(rows, ['text']))) == 2"
    )
    modules = modules_after(code, tmp_path)
    assert "pandas" not in modules


@pytest.mark.airflow
def test_starting_the_airflow_command_loads_nothing_heavy(after_airflow: Callable[[str], set[str]]) -> None:
    modules = after_airflow("from airflow.cli.cli_parser import get_parser; get_parser()")
    assert "airflow_ft.admin.cli" in modules
    assert not heavy(modules)


@pytest.mark.airflow
@pytest.mark.sampled
@pytest.mark.parametrize("dag", sorted(path.stem for path in (ROOT / "dags").glob("[a-z]*.py")))
def test_an_example_dag_is_parsed_without_spark(dag: str, after_airflow: Callable[[str], set[str]]) -> None:
    assert not heavy(after_airflow(f"{HIDE_SPARK}\nimport airflow_ft.example_dags.{dag}"))


def imports_of(path: Path) -> set[str]:
    """The modules of the package that a file imports anywhere, also in functions and for type checkers."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found


def test_modules_form_no_circle() -> None:
    files = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts): path
        for path in (ROOT / "airflow_ft").rglob("*.py")
        if path.name != "__init__.py"  # a package names what it offers
    }
    assert len(files) > 150
    graph = {name: imports_of(path) & files.keys() for name, path in files.items()}
    list(TopologicalSorter(graph).static_order())  # CycleError names the circle
