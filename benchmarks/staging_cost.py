"""Staging alone: rows into the write-ahead log, against Spark writing the same rows as Parquet."""

from __future__ import annotations

import shutil
from itertools import count
from pathlib import Path
from urllib.parse import unquote, urlparse

import pyarrow.parquet as pq

from benchmarks.bench import Bench, check
from benchmarks.beside import Beside, used_by
from benchmarks.measuring import Claim, Comparison, Contender

SEALING = "  of it sealing"


def staging(bench: Bench) -> list[Comparison]:
    """One comparison in one warm session, and its CPU time."""
    numbers = count(1)
    noted: dict[str, list[float]] = {"into the log": [], SEALING: [], "Spark, Parquet": []}
    sealing: list[float] = []

    def log() -> float:
        root = bench.folder / "staged"
        before = used_by(bench.servers.spark.pid)
        answer = bench.servers.spark.ask(
            "stage", source=str(bench.source), root=str(root), pipeline="staging", number=next(numbers)
        )
        noted["into the log"].append(used_by(bench.servers.spark.pid) - before)
        sealing.append(answer["sealing"])
        noted[SEALING].append(answer["sealing_cpu"])
        written = Path(unquote(urlparse(answer["location"]).path)) / "table"
        check("the write-ahead log", bench.dataset.content(pq.read_table(written)), bench.content)
        shutil.rmtree(root)
        seconds: float = answer["seconds"]
        return seconds

    def parquet() -> float:
        target = bench.folder / "parquet"
        before = used_by(bench.servers.spark.pid)
        answer = bench.servers.spark.ask("files", source=str(bench.source), target=str(target), format="parquet")
        seconds: float = answer["seconds"]
        noted["Spark, Parquet"].append(used_by(bench.servers.spark.pid) - before)
        check("Spark's Parquet", bench.dataset.content(pq.read_table(target)), bench.content)
        shutil.rmtree(target)
        return seconds

    claims = [Claim("staging into the log, against Spark's Parquet", "into the log", ("Spark, Parquet",), 0.9)]
    contenders = [
        Contender("into the log", log, 2),
        Contender(SEALING, lambda: sealing[-1], warm_up=0),
        Contender("Spark, Parquet", parquet, 2),
    ]
    seconds = Comparison("staging", "Rows into the write-ahead log, by Spark", contenders, claims, rows=bench.rows)
    return [seconds, Beside.of(seconds, noted)]
