"""A module as a process that ends by itself: a cold job."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from benchmarks.bench import say
from benchmarks.measuring import MeasurementError
from benchmarks.workers import ROOT


def run_module(module: str, folder: Path, *arguments: str, cwd: Path | None = None) -> None:
    """A module as a process of its own; MeasurementError with the end of its output when it fails.

    folder: for its log. cwd: where it runs, by default there.
    """
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TZ": "UTC", "SPARK_LOCAL_IP": "127.0.0.1"}
    environment |= {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    log = folder / "log"
    with log.open("ab") as output:
        done = subprocess.run(
            [sys.executable, "-m", module, *arguments],
            cwd=cwd or folder, env=environment, check=False, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
        )  # fmt: skip
    if done.returncode != 0:
        say(log.read_text(errors="replace")[-4000:])
        raise MeasurementError(f"{module} ended with status {done.returncode}")
