"""Which test detects which seeded defect: `make seeded` switches each rule off, and runs what `make test` would run.

The tests that need no server go first; if none of them fails, some with real servers follow.

The defects are those of the simulator (`tests/simulation/defects.py` and its neighbours): mistakes in the product's own
code, one at a time. `test_defects` plays the schedules that are known to show them, with every commit; `--unknowing`
leaves it out, and asks whether the other tests of the fixed set would have detected an unknown mistake.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import tests.simulation.known  # noqa: F401  its imports register the defects
from tests.simulation.defect import DEFECTS

PROJECT = Path(__file__).resolve().parents[1]
VARIABLE = "AIRFLOW_FT_SEEDED_DEFECT"
_KNOWING, _QUICKEST = "tests/simulation/test_defects.py", "tests/simulation/test_random_schedules.py"
_NOTHING_TO_SAY = "tests/simulation/test_models_and_servers.py"  # compares a model of a server with the server
_SIMULATION = {path.relative_to(PROJECT).as_posix() for path in Path(__file__).parent.glob("simulation/test_*.py")}
WITHOUT_SERVERS = [
    _KNOWING,
    _QUICKEST,
    *sorted(_SIMULATION - {_NOTHING_TO_SAY, _KNOWING, _QUICKEST}),
    "tests/protocol",
    "tests/store",
    "tests/wal",
]
WITH_SERVERS = [
    "tests/integration/test_kafka_tokens.py",
    "tests/integration/test_mysql_xa.py",
    "tests/integration/test_mysql_branches_chaos.py",
]
_FAILED = re.compile(r"^(?:FAILED|ERROR) \S+?::(.+?)(?: - .*)?$", re.MULTILINE)


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


def look(name: str, *, unknowing: bool) -> Found:
    """Run the tests of the fixed set with a defect, until the first one fails."""
    environment = {**os.environ, VARIABLE: name}
    command = [sys.executable, "-m", "pytest", "--fixed-set", "-x", "-q", "-p", "no:cacheprovider"]
    if unknowing:
        command.append(f"--ignore={_KNOWING}")
    began = time.monotonic()
    for files in (WITHOUT_SERVERS, WITH_SERVERS):
        ran = subprocess.run([*command, *files], env=environment, capture_output=True, text=True, check=False)
        failed = _FAILED.search(ran.stdout)
        if ran.returncode not in (0, 1) or bool(ran.returncode) != bool(failed):
            raise RuntimeError(f"{name}: pytest ended with {ran.returncode}\n{ran.stdout[-2000:]}{ran.stderr[-2000:]}")
        if failed:
            return Found(failed[1], time.monotonic() - began)
    return Found("", time.monotonic() - began)


def main() -> int:
    """Print a row for each defect. Returns 1 if the fixed set does not detect one."""
    parser = argparse.ArgumentParser(prog="python -m tests.seeded", description=__doc__)
    parser.add_argument("names", nargs="*", help="only these defects")
    parser.add_argument("--unknowing", action="store_true", help="without the tests that know of the defects")
    given = parser.parse_args()
    missed = 0
    print("| seeded defect | after | detected by |", flush=True)
    print("| --- | ---: | --- |", flush=True)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        names = [defect.name for defect in DEFECTS if not given.names or defect.name in given.names]
        looks = {name: pool.submit(look, name, unknowing=given.unknowing) for name in names}
        for name, future in looks.items():
            found = future.result()
            missed += not found.test
            detected = f"{found.seconds:.0f} s | `{found.test}`" if found.test else "**-** |"
            print(f"| {name} | {detected} |", flush=True)
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
