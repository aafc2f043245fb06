"""Which tier detects which seeded defect: `make seeded` switches each rule off, and runs the tests that need no server.

The defects are those of the simulator (`tests/simulation/defects.py` and its neighbours): mistakes in the product's own
code, one at a time. Its own tests of them (`test_defects`) search where a defect is known to show; this asks whether
the tests that run before a change goes in would have detected it without knowing.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import tests.simulation.branch_defects
import tests.simulation.defects
import tests.simulation.held_defects  # noqa: F401  they register what they hold
from tests.simulation.defect import DEFECTS

VARIABLE = "AIRFLOW_FT_SEEDED_DEFECT"
WITHOUT_SERVERS = ["tests/core", "tests/store", "tests/wal", "tests/simulation"]
_FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)


@contextmanager
def seeded() -> Iterator[None]:
    """The defect that the environment names is there inside this block; none, when it names none."""
    if name := os.environ.get(VARIABLE):
        (defect,) = (each for each in DEFECTS if each.name == name)
        with defect.made():
            yield
    else:
        yield


@dataclass(frozen=True)
class Found:
    """The first test that failed ("": none), and after how many seconds."""

    test: str
    seconds: float


def look(name: str, options: list[str]) -> Found:
    """Runs the tests with a defect until the first one fails."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *WITHOUT_SERVERS, *options]
    # What knows of the defects, or compares a model of a server with the server, says nothing here.
    command += ["--ignore=tests/simulation/test_defects.py", "--ignore=tests/simulation/test_models_and_servers.py"]
    began = time.monotonic()
    ran = subprocess.run(command, env={**os.environ, VARIABLE: name}, capture_output=True, text=True, check=False)
    if ran.returncode not in (0, 1):
        raise RuntimeError(f"{name}: pytest ended with {ran.returncode}\n{ran.stdout[-2000:]}{ran.stderr[-2000:]}")
    failed = _FAILED.search(ran.stdout)
    return Found(failed[1] if failed else "", time.monotonic() - began)


def main() -> int:
    """A row for each defect; 1 when a defect is not detected before a change goes in."""
    parser = argparse.ArgumentParser(prog="python -m tests.seeded", description=__doc__)
    parser.add_argument("names", nargs="*", help="only these defects")
    given = parser.parse_args()
    lost = 0
    print(
        "| seeded defect | `make test` detects it by | seconds | `make test-all` |\n| --- | --- | --- | --- |",
        flush=True,
    )
    for defect in DEFECTS:
        if given.names and defect.name not in given.names:
            continue
        quick = look(defect.name, [])
        whole = quick if quick.test else look(defect.name, ["--all"])
        lost += not quick.test
        by = f"`{quick.test.partition('::')[2]}`" if quick.test else "-"
        also = "as well" if quick.test else f"`{whole.test.partition('::')[2]}`" if whole.test else "-"
        print(f"| {defect.name} | {by} | {quick.seconds:.0f} | {also} |", flush=True)
    return int(lost > 0)


if __name__ == "__main__":
    sys.exit(main())
