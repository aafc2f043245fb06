"""Unit tests need no server: where they are, and what happens to one that starts something."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.units import ELSEWHERE, MISPLACED, TESTS, forbid_programs, in_unit_folder, is_airflow, misplaced, started_in


def test_tests_in_folders_of_unit_tests_use_no_server(request: pytest.FixtureRequest) -> None:
    assert request.config.stash[MISPLACED] == [], f"move them to one of the folders {', '.join(ELSEWHERE)}"


@pytest.mark.parametrize(
    ("file", "unit"),
    [
        ("test_cli.py", True),
        ("wal/test_segments.py", True),
        ("wal/hdfs/test_conformance.py", False),
        ("sinks/postgres/servers/test_local.py", False),
        ("integration/test_doctor.py", False),
        ("chaos/servers", False),
    ],
)
def test_folders_tell_what_a_unit_test_is(file: str, unit: bool) -> None:
    assert in_unit_folder(TESTS / file) is unit


def test_every_folder_of_other_tests_is_there() -> None:
    assert {folder.name for folder in TESTS.rglob("*/") if folder.name in ELSEWHERE} == ELSEWHERE.keys()


@pytest.mark.parametrize(
    ("folder", "fixtures", "mark", "found"),
    [
        ("wal", ["tmp_path", "hdfs"], "", True),
        ("wal", ["spark"], "", True),
        ("wal", ["tmp_path"], "server", True),
        ("wal", ["tmp_path"], "", False),
        ("wal/hdfs", ["hdfs"], "server", False),
    ],
)
def test_a_test_in_the_wrong_folder_is_found(folder: str, fixtures: list[str], mark: str, found: bool) -> None:
    test = SimpleNamespace(
        nodeid="test", path=TESTS / folder / "test_a.py", fixturenames=fixtures, get_closest_marker={mark: mark}.get
    )
    assert misplaced([test]) == (["test"] if found else [])  # type: ignore[list-item]


def test_a_jvm_is_refused_and_noted(tmp_path: Path) -> None:
    environment = dict(os.environ)
    forbid_programs(tmp_path / "instead", environment)
    for java in ("java", f"{environment['JAVA_HOME']}/bin/java"):
        version = subprocess.run([java, "-version"], env=environment, capture_output=True, text=True, check=True)
        assert "version" in version.stderr and started_in(tmp_path / "instead") == []
        started = subprocess.run([java, "Main"], env=environment, capture_output=True, text=True, check=False)
        assert started.returncode and "a folder named servers" in started.stderr
        assert started_in(tmp_path / "instead") == ["java Main"]
    assert started_in(tmp_path / "instead") == []


@pytest.mark.parametrize(
    ("command", "refused"),
    [
        (["/usr/bin/python", "-m", "airflow", "scheduler"], True),
        (["airflow", "standalone"], True),
        (["/usr/bin/python", "-m", "pytest", "airflow"], False),
        ("airflow", False),
    ],
)
def test_processes_of_airflow_are_recognised(command: list[str] | str, refused: bool) -> None:
    assert is_airflow(command) is refused


def test_a_server_and_airflow_are_refused(tmp_path: Path) -> None:
    code = (
        "import subprocess, sys\nfrom pathlib import Path\nfrom tests.units import forbid_servers\n"
        "from tools.servers import Kafka\nforbid_servers()\n"
        "for start in (Kafka(Path(sys.argv[1])).start, lambda: subprocess.run(['airflow', 'version'])):\n"
        "    try:\n        start()\n    except RuntimeError as error:\n        print(error)\n"
    )
    output = subprocess.run(
        [sys.executable, "-c", code, tmp_path], cwd=TESTS.parent, capture_output=True, text=True, check=True
    )
    first, second = output.stdout.splitlines()
    assert "started kafka" in first and "started a process of Airflow" in second
