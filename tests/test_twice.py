"""A test that fails once does not hold a build up; one that fails twice does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests import twice

pytestmark = pytest.mark.slow

ONCE = """
from pathlib import Path
def test_once():
    seen = Path(__file__).with_name("seen")
    again = seen.exists()
    seen.touch()
    assert again, "the first time"
"""
ALWAYS = "def test_always():\n    assert False\n"
FINE = "def test_fine():\n    pass\n"


@pytest.fixture
def build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> object:
    """Run these test files as a build does; returns its status and what it calls flaky."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")

    def run(*sources: str, first: tuple[str, ...] = ()) -> tuple[int, dict[str, str]]:
        project = tmp_path / "project"
        project.mkdir()
        (project / "pytest.ini").write_text("[pytest]\n")
        for number, source in enumerate(sources):
            (project / f"test_{number}.py").write_text(source)
        monkeypatch.chdir(project)
        alone = ["-q", "-p", "no:cacheprovider"]
        status = twice.run([*alone, *first], alone, tmp_path)
        flaky = tmp_path / twice.FLAKY
        return status, json.loads(flaky.read_text()) if flaky.exists() else {}

    return run


def test_what_passes_the_second_time_is_flaky(build, capfd) -> None:  # type: ignore[no-untyped-def]
    status, flaky = build(ONCE, FINE)
    assert status == 0
    assert list(flaky) == ["test_0.py::test_once"]
    assert "the first time" in flaky["test_0.py::test_once"]
    assert "FLAKY:\n  test_0.py::test_once" in capfd.readouterr().out


def test_what_fails_twice_fails_the_build(build) -> None:  # type: ignore[no-untyped-def]
    status, flaky = build(ONCE, ALWAYS)
    assert status == 1
    assert list(flaky) == ["test_0.py::test_once"]


def test_a_green_run_is_not_repeated(build) -> None:  # type: ignore[no-untyped-def]
    assert build(FINE) == (0, {})


def test_a_file_that_cannot_be_imported_fails_at_once(build) -> None:  # type: ignore[no-untyped-def]
    assert build("import nothing_of_this_name\n", ONCE) == (pytest.ExitCode.INTERRUPTED, {})


def test_many_failures_fail_at_once(build, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(twice, "MANY", 0)
    assert build(ONCE) == (1, {})


def test_a_process_that_dies_fails_the_build(build) -> None:  # type: ignore[no-untyped-def]
    status, flaky = build("import os\ndef test_dies():\n    os._exit(1)\n")
    assert status == 1
    assert not flaky


def test_what_kills_its_process_twice_is_not_flaky(build, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.delenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD")
    status, flaky = build("import os\ndef test_dies():\n    os._exit(1)\n", first=("-n1", "-p", "no:airflow_ft"))
    assert status == 1
    assert not flaky


def test_failures_of_workers_are_repeated(build, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.delenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD")
    status, flaky = build(ONCE, FINE, first=("-n1", "-p", "no:airflow_ft"))
    assert (status, list(flaky)) == (0, ["test_0.py::test_once"])


def test_a_command_is_noted_beside_tests(tmp_path: Path) -> None:
    twice.note({"a": "why"}, tmp_path / twice.FLAKY)
    twice.note({"make test-unlocked": "failed once"}, tmp_path / twice.FLAKY)
    assert list(json.loads((tmp_path / twice.FLAKY).read_text())) == ["a", "make test-unlocked"]
