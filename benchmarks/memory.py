"""Memory of a delivery process against the number of rows in the checkpoint: it must stay flat, and under 500 MB."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa

from benchmarks.bench import Bench, say
from benchmarks.data import orders, records_content, segment
from benchmarks.into_kafka import kafka_job
from benchmarks.into_mysql import mysql_job
from benchmarks.measuring import Claim, Comparison, Contender
from benchmarks.workers import Worker

LIMIT_MB = 500
FLAT = 1 / 1.2


def memory(bench: Bench) -> list[Comparison]:
    """A comparison of a small and a large checkpoint, for each sink; the processes are fresh and have no children.

    The large one has ten million rows, or as many as the run if these are more.
    """
    sizes = (100_000, 1_000_000) if bench.quick else (1_000_000, max(10_000_000, bench.rows))
    wanted = None if bench.quick else FLAT  # 100,000 rows fill no buffers
    return [_compare(bench, name, sizes, measure, wanted) for name, measure in (("MySQL", _mysql), ("Kafka", _kafka))]


Measure = Callable[[Bench, pa.Table, str], Callable[[], float]]


def _compare(bench: Bench, name: str, sizes: tuple[int, int], measure: Measure, wanted: float | None) -> Comparison:
    contenders = []
    for size in sizes:
        label = f"{size:,} rows"
        say(f"making {label} for the memory of a delivery into {name}")
        table = pa.concat_tables([orders(min(size, 1_000_000), first) for first in range(0, size, 1_000_000)])
        contenders.append(Contender(label, measure(bench, table, f"{name}-{size}"), warm_up=0))
    contenders.append(Contender("the limit", lambda: float(LIMIT_MB), warm_up=0))
    small, large, limit = (contender.name for contender in contenders)
    claims = [
        Claim(f"memory of a delivery into {name}: {small} against {large}", large, (small,), wanted),
        Claim(f"memory of a delivery into {name}: {LIMIT_MB} MB against {large}", large, (limit,), 1.0),
    ]
    return Comparison(f"memory/{name}", f"Peak memory of a delivery into {name}", contenders, claims, unit="MB")


def _peak(bench: Bench, job: dict[str, Any]) -> float:
    """Prepares in one process, commits in another, as two tasks would; the larger peak."""
    with Worker("benchmarks.delivering", bench.folder / "workers") as worker:
        prepared = worker.ask("prepare", **job)
    with Worker("benchmarks.delivering", bench.folder / "workers") as worker:
        committed = worker.ask("commit", **job, attempt=2, notes=prepared["notes"])
    return float(max(prepared["peak_mb"], committed["peak_mb"]))


def _mysql(bench: Bench, table: pa.Table, name: str) -> Callable[[], float]:
    written = segment(bench.folder / "memory", name.lower(), {"orders": table})
    expected = bench.dataset.content(table)

    def run() -> float:
        bench.empty_table(bench.servers.mariadb)
        peak = _peak(bench, mysql_job(bench, bench.servers.mariadb, written, "local", {}))
        bench.check_table(bench.servers.mariadb, name, expected=expected)
        return peak

    return run


def _kafka(bench: Bench, table: pa.Table, name: str) -> Callable[[], float]:
    made = bench.dataset.records(table)
    written = segment(bench.folder / "memory", name.lower(), {"orders": made})
    expected = records_content(made)

    def run() -> float:
        topic = f"memory-{next(bench.servers.numbers)}"
        bench.servers.kafka.create_topic(topic, 4)
        peak = _peak(bench, kafka_job(bench, written, topic))
        bench.check_topic(topic, name, expected=expected)
        bench.servers.kafka.delete_topic(topic)
        return peak

    return run
