"""What came out: a table for people, JSON for machines, and the machine itself."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.measuring import Comparison, Spread
from benchmarks.workers import ROOT

_PACKAGES = ("apache-airflow", "pyspark", "pyarrow", "confluent-kafka", "kafka-python", "PyMySQL", "psycopg2-binary")
_JARS = (
    "jdbc/*.jar",
    "spark/spark-sql-kafka*.jar",
    "kafka/kafka_*.jar",
    "flink/flink-runtime-*.jar",
    "flink/flink-connector-[jk]*.jar",
)


def machine() -> dict[str, Any]:
    """The machine, the versions of what took part, and this tree's commit."""
    processor = next(
        (
            line.split(":", 1)[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if "model name" in line
        ),
        platform.machine(),
    )
    memory = int(Path("/proc/meminfo").read_text().split()[1]) // 1024
    commit = _output("git", "-C", str(ROOT), "describe", "--always", "--dirty")
    versions = {name: importlib.metadata.version(name) for name in _PACKAGES}
    jars = sorted(path.stem for pattern in _JARS for path in (ROOT / ".local/jars").glob(pattern))
    java = _output("java", "-version").splitlines()
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit,
        "processor": processor,
        "cores": os.cpu_count(),
        "memory_mb": memory,
        "system": platform.platform(),
        "python": platform.python_version(),
        "java": java[0] if java else "",
        "packages": versions,
        "jars": jars,
        "load": list(os.getloadavg()),
    }


def _output(*command: str) -> str:
    done = subprocess.run(command, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return done.stdout.strip()


def costs_table(comparison: Comparison) -> list[str]:
    """What each contender took."""
    unit = comparison.unit
    width = max(len(contender.name) for contender in comparison.contenders)
    lines = [f"\n{comparison.title}  (load {comparison.load[0]:.1f} to {comparison.load[1]:.1f})"]
    for contender in comparison.contenders:
        spread = comparison.spread(contender.name)
        line = f"  {contender.name:{width}}  {_spread(spread, unit):32}"
        if comparison.rows and unit == "s":
            line += f"{comparison.rows / spread.median:>12,.0f} rows/s"
        lines.append(line)
    return lines


def verdict_table(comparisons: Sequence[Comparison]) -> list[str]:
    """All claims: the ratio, what is wanted, and the baseline that it was taken against."""
    rows = [("path", "ratio (least, most)", "wanted", "", "against")]
    for comparison in comparisons:
        for verdict in comparison.verdicts():
            wanted = "" if verdict.claim.wanted is None else f"{verdict.claim.wanted:.2f}"
            reached = {True: "yes", False: "NO", None: ""}[verdict.is_reached]
            ratio = f"{verdict.ratio.median:.2f} ({verdict.ratio.low:.2f}, {verdict.ratio.high:.2f})"
            rows.append((verdict.claim.label, ratio, wanted, reached, verdict.best))
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    return ["  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _spread(spread: Spread, unit: str) -> str:
    digits = 3 if spread.median < 10 else 1
    return f"{spread.median:.{digits}f} {unit} ({spread.low:.{digits}f} to {spread.high:.{digits}f})"
