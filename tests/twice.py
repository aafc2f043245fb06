"""Run the tests, and those that failed once more: `python -m tests.twice [ARGUMENT OF PYTEST...]`.

A busy machine may fail a test that is right. So the failed ones run again, one after the other, in a new process with
fresh servers. The exit status is 0 if each of them passes then. They are printed as `FLAKY:` and written to
`.local/flaky.json`: a test that fails now and then is a defect of the test or of the product, and has to be explained.

Nothing is run again if a test could not be imported, if more than `MANY` failed, or if no test failed but pytest did.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tools.servers.base import local_folder

MANY = 25
"""Failures beyond which the second run is left out: a change has broken something."""
FLAKY = "flaky.json"
_FAILED = "AIRFLOW_FT_FAILED_TESTS"
"""Environment variable: the file that a pytest process writes its failed tests into."""


class Failures:
    """Pytest plugin: writes the failed tests with their reasons, as a JSON object, when the session ends."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._failed: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            reason = crash.message if crash else report.longreprtext[-1000:]
            self._failed.setdefault(report.nodeid, f"{report.when}: {reason[:1000]}")

    def pytest_sessionfinish(self) -> None:
        self._file.write_text(json.dumps(self._failed))


def pytest_configure(config: pytest.Config) -> None:
    """Register the plugin in the controller; a worker of xdist reports to it."""
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Failures(Path(os.environ[_FAILED])))


def run(first: list[str], again: list[str], folder: Path) -> int:
    """Run pytest with the arguments `first`; run the failed tests with the arguments `again` and their ids.

    Returns the exit status. `folder` gets `flaky.json`: an object of test id -> reason of the first failure.
    """
    flaky = folder / FLAKY
    flaky.unlink(missing_ok=True)
    status, failed = _pytest(first, folder)
    if status != pytest.ExitCode.TESTS_FAILED or not failed:
        return status
    if len(failed) > MANY:
        print(f"\n{len(failed)} tests failed, which are too many to run them again.", flush=True)
        return status
    print(f"\nRunning {len(failed)} failed tests again, one after the other:", flush=True)
    status, still = _pytest([*again, *failed], folder)
    if still is None or status not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        return status  # it did not run to the end, so nothing has passed
    note({test: reason for test, reason in failed.items() if test not in still}, flaky)
    for test in still:
        print(f"FAILED TWICE: {test}", flush=True)
    return status


def note(passed: dict[str, str], flaky: Path) -> None:
    """Print what passed the second time, and add it to the file `flaky`."""
    if passed:
        known: dict[str, str] = json.loads(flaky.read_text()) if flaky.exists() else {}
        flaky.write_text(json.dumps(known | passed, indent=1) + "\n")
        print("\nFLAKY:\n" + "\n".join(f"  {test}" for test in passed), flush=True)


def _pytest(arguments: list[str], folder: Path) -> tuple[int, dict[str, str] | None]:
    """Run pytest. Returns its exit status, and the failed tests with their reasons, or None if the process died."""
    file = folder / "failed.json"
    file.unlink(missing_ok=True)
    environment = {**os.environ, _FAILED: str(file)}
    command = [sys.executable, "-m", "pytest", "-p", "tests.twice", *arguments]
    status = subprocess.run(command, env=environment, check=False).returncode
    failed: dict[str, str] | None = json.loads(file.read_text()) if file.exists() else None
    return status, failed


if __name__ == "__main__":
    if sys.argv[1:2] == ["--note"]:  # a command that is no test has passed the second time
        note(dict.fromkeys(sys.argv[2:], "failed once"), local_folder() / FLAKY)
        sys.exit()
    sys.exit(run(sys.argv[1:], ["-n0"], local_folder()))
