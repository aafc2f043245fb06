"""What a micro-batch of one row costs: from one publication to the next, in a warm JVM that never waits for input."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

from benchmarks.bench import Bench
from benchmarks.beside import Beside
from benchmarks.measuring import Claim, Comparison, Contender

JOBS = {"Rows": "one sink", "Twice": "two sinks", "Sums": "one sink, state in RocksDB"}
WARM_UP = 3  # runs: what a JVM compiles late takes long to get there


def comparisons(bench: Bench, trees: Mapping[str, Path | None], wanted: float) -> Iterator[Comparison]:
    """Of the source trees "this tree" and "the other", two comparisons for each job: the time, and the CPU time."""
    staging = {label: MicroBatches(bench, tree) for label, tree in trees.items()}
    for job, what in JOBS.items():
        noted: dict[str, list[float]] = {label: [] for label in trees}
        contenders = [Contender(name, partial(tree.run, job, noted[name]), WARM_UP) for name, tree in staging.items()]
        claims = [Claim(f"a micro-batch of one row, {what}", "this tree", ("the other",), wanted)]
        time = Comparison(f"micro-batches/{job}", f"Micro-batches of one row, {what}", contenders, claims, "ms")
        yield time
        yield Beside.of(time, noted)


class MicroBatches:
    """Runs of new pipelines in one JVM, by the airflow_ft of `tree`."""

    def __init__(self, bench: Bench, tree: Path | None) -> None:
        self._numbers = bench.servers.numbers
        self._folder = bench.servers.folder / f"micro-{next(bench.servers.numbers)}"
        self._worker = bench.servers.worker("benchmarks.micro_staging", tree)

    def run(self, job: str, cpu: list[float]) -> float:
        """Milliseconds of a micro-batch, the median of a run; `cpu` gets the seconds of CPU of the run."""
        answer = self._worker.ask("stage", folder=str(self._folder), number=next(self._numbers), job=job)
        shutil.rmtree(self._folder)
        cpu.append(answer["cpu"])
        return float(answer["milliseconds"])
