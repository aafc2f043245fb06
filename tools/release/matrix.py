"""Runs a small pipeline with each release of Airflow, pyspark and Python that the package says it works with.

`make matrix`, or `python -m tools.release.matrix [NAME...]`: one after the other, each as `make test-unlocked` does
it, in an environment of its own, with what is committed. What came of it is written into docs/releasing.md; the logs
are in .local/release/matrix.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from tools.servers.base import local_folder

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "releasing.md"
BEGIN, END = "<!-- what `make matrix` found begins -->", "<!-- and ends -->"
TITLES = ("Python", "Airflow", "pyspark", "others", "result", "seconds", "day", "commit")
PIPELINE = ("--calm", "--flights", "3000")
"""Kafka to MariaDB and Kafka, judged value by value."""


@dataclass(frozen=True)
class Combination:
    """Releases that are installed together; `resolution` as tools/unlocked.sh knows it."""

    python: str
    airflow: str
    pyspark: str
    resolution: str = "newest"

    @classmethod
    def of(cls, line: Mapping[str, str]) -> Combination:
        """That of a line of the table."""
        return cls(_minor(line["Python"]), line["Airflow"], _minor(line["pyspark"]), line["others"])

    @property
    def name(self) -> str:
        """Of the folder and the log."""
        oldest = "-oldest" if self.resolution == "lowest" else ""
        return f"python{self.python}-airflow{self.airflow}-pyspark{self.pyspark}{oldest}"


COMBINATIONS = (
    Combination("3.11", "3.3.2", "4.2"),
    Combination("3.12", "3.3.2", "4.2"),
    Combination("3.13", "3.3.2", "4.2"),
    Combination("3.11", "3.3.2", "4.1"),
    Combination("3.11", "3.3.2", "4.0"),
    Combination("3.11", "3.3.1", "4.2"),
    Combination("3.11", "3.3.0", "4.2"),
    Combination("3.13", "3.3.0", "4.0"),
    Combination("3.11", "3.3.0", "4.0", "lowest"),
)
"""Each release at least once beside the newest of the others, and the corners."""


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def interpreter(version: str) -> Path | None:
    """One of this minor version that works on this machine: on the PATH, or the newest that pyenv has installed."""
    found = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv").glob(f"versions/{version}.*/bin/python")
    on_path = shutil.which(f"python{version}")
    for path in (*([Path(on_path)] if on_path else []), *sorted(found, reverse=True)):
        if subprocess.run([path, "-c", ""], capture_output=True, check=False).returncode == 0:
            return path
    return None


def tried(one: Combination, commit: str, logs: Path) -> dict[str, str]:
    """Runs one, and returns the line of the table."""
    line = {"Python": one.python, "Airflow": one.airflow, "pyspark": one.pyspark, "others": one.resolution}
    line |= {"day": f"{datetime.now(UTC):%Y-%m-%d}", "commit": commit}
    python = interpreter(one.python)
    if python is None:
        return {**line, "result": "not run: no such interpreter here", "seconds": ""}
    environment = {
        **os.environ,
        "AIRFLOW_FT_PYTHON": str(python),
        "COMMIT": commit,
        "NAME": one.name,
        "WITH": f"apache-airflow=={one.airflow} pyspark=={one.pyspark}.*",
    }
    began = time.monotonic()
    log = logs / f"{one.name}.log"
    with log.open("w") as file:
        command = [str(ROOT / "tools" / "unlocked.sh"), one.resolution, *PIPELINE]
        status = subprocess.run(command, env=environment, stdout=file, stderr=file, check=False).returncode
    folder = local_folder() / "unlocked" / one.name
    installed = versions(folder / "venv" / "bin" / "python")
    if status == 0:
        shutil.rmtree(folder, ignore_errors=True)  # an environment of a gigabyte and more
    result = "passed" if status == 0 else f"failed, {log.relative_to(ROOT)}"
    return {**line, **installed, "result": result, "seconds": f"{time.monotonic() - began:.0f}"}


def versions(python: Path) -> dict[str, str]:
    """What is installed there; empty when there is no environment."""
    program = (
        "import platform; from importlib.metadata import version as v;"
        "print(platform.python_version(), v('apache-airflow'), v('pyspark'))"
    )
    if not python.exists():
        return {}
    output = subprocess.run([python, "-c", program], capture_output=True, text=True, check=False).stdout.split()
    return dict(zip(("Python", "Airflow", "pyspark"), output, strict=False))


def table(lines: Iterable[Mapping[str, str]]) -> str:
    """As Markdown."""
    rows = [TITLES, ["---"] * len(TITLES), *([line[title] for title in TITLES] for line in lines)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def matrix_results(page: Path = PAGE) -> dict[str, dict[str, str]]:
    """What the page says of each combination that was tried, by its name."""
    text = page.read_text().partition(BEGIN)[2].partition(END)[0]
    rows = [[each.strip() for each in line.strip("|").split("|")] for line in re.findall(r"^\|.*", text, re.MULTILINE)]
    lines = [dict(zip(TITLES, row, strict=True)) for row in rows[2:]]
    return {Combination.of(line).name: line for line in lines}


def write(lines: Iterable[Mapping[str, str]], page: Path = PAGE) -> None:
    """Puts the table between its marks."""
    text = f"{BEGIN}\n\n{table(lines)}\n\n{END}"
    page.write_text(re.sub(f"{BEGIN}.*{END}", lambda _: text, page.read_text(), flags=re.DOTALL))


def main() -> int:
    """Exit status 0 when all have passed."""
    parser = argparse.ArgumentParser(prog="make matrix", description=__doc__)
    parser.add_argument("names", nargs="*", help="of combinations; the others' lines on the page stay as they are")
    names = parser.parse_args().names
    chosen = [one for one in COMBINATIONS if not names or one.name in names]
    if not chosen:
        parser.error(f"there is none of these: {', '.join(one.name for one in COMBINATIONS)}")
    logs = local_folder() / "release" / "matrix"
    logs.mkdir(parents=True, exist_ok=True)
    head = ["git", "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(head, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    results = []
    for one in chosen:
        print(f"{one.name} ...", end=" ", flush=True)
        line = tried(one, commit, logs)
        print(line["result"], line["seconds"], "s", flush=True)
        known = {**matrix_results(), one.name: line}  # others may have been written meanwhile
        write(known[each.name] for each in COMBINATIONS if each.name in known)
        results.append(line["result"])
    return 0 if set(results) == {"passed"} else 1


if __name__ == "__main__":
    sys.exit(main())
