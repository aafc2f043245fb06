"""How fast a key of a pipeline's state is looked up, in a Python process of its own, while Spark is nowhere near.

The state is written by Spark itself: a count by a text, in four partitions, of which the last micro-batch has changed
one in a hundred. The first answer counts from before the import of `airflow_ft.state`; the decision log is not asked (a
few queries: `history` measures such).
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from benchmarks.bench import Bench
from benchmarks.measuring import Claim, Comparison, Contender, MeasurementError
from benchmarks.workers import ROOT

FIRST_MS, NEXT_MS = 2_000.0, 10.0
LOOKUPS = 2_000
FIGURES = {
    "first": "first answer",
    "cpu": "first answer, CPU time",
    "median": "median of the next ones",
    "99th": "99th percentile of the next ones",
    "99th cpu": "99th percentile of the next ones, CPU time",
    "worst": "slowest of the next ones",
}
BACKENDS = {"RocksDB": "RocksDBStateStoreProvider", "HDFS-backed map": "HDFSBackedStateStoreProvider"}

_MAKE = """
import sys
from pyspark.sql import SparkSession, functions as F
from airflow_ft.spark.state.files import upload
folder, provider, keys = sys.argv[1], sys.argv[2], int(sys.argv[3])
states = "spark.sql.streaming.stateStore."
spark = (
    SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").config("spark.driver.memory", "2g")
    .config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
    .config("spark.sql.shuffle.partitions", "4").config("spark.log.level", "ERROR")
    .config("spark.ui.showConsoleProgress", "false").config(states + "minDeltasForSnapshot", "1")
    .config(states + "providerClass", "org.apache.spark.sql.execution.streaming.state." + provider)
    .config(states + "rocksdb.changelogCheckpointing.enabled", "true").getOrCreate()
)
for batch, first in enumerate((0, keys - keys // 100)):
    frame = spark.range(first, keys).select(F.format_string("customer-%08d", "id").alias("k"))
    frame.coalesce(1).write.mode("append").parquet(folder + "/input")
    counts = spark.readStream.schema("k string").parquet(folder + "/input").groupBy("k").count()
    query = counts.writeStream.outputMode("update").foreachBatch(lambda frame, _: frame.count())
    query.option("checkpointLocation", folder + "/location").trigger(availableNow=True).start().awaitTermination()
    if batch == 0:
        upload(spark)
"""
_LOOK = """
import json, random, sys, time
began, cpu = time.perf_counter(), time.process_time()
from airflow_ft.spark.state.locations import SparkLocation
from airflow_ft.state.handle import State
from airflow_ft.state.positions import Position
location, keys, lookups = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
wanted = random.Random(1).sample(range(keys), lookups)
found = State("p", lambda _: Position(1, SparkLocation("", "p", location, 1)))
first = found.get(0, "customer-%08d" % wanted[0])
first_ms, first_cpu = (time.perf_counter() - began) * 1000, (time.process_time() - cpu) * 1000
costs, cpus, wrong = [], [], 0
for number in wanted:
    at, cpu = time.perf_counter(), time.thread_time()
    value = found.get(0, "customer-%08d" % number)
    cpus.append((time.thread_time() - cpu) * 1000)
    costs.append((time.perf_counter() - at) * 1000)
    wrong += value != {"count": 2 if number >= keys - keys // 100 else 1}
absent = found.get(0, "nobody")
costs.sort()
cpus.sort()
print(json.dumps({
    "wrong": wrong + (first is None) + (absent is not None),
    "first": first_ms, "cpu": first_cpu, "median": costs[len(costs) // 2],
    "99th": costs[-len(costs) // 100], "99th cpu": cpus[-len(cpus) // 100], "worst": costs[-1],
}))
"""


def state(bench: Bench) -> Iterator[Comparison]:
    """First and next answers, for each backend and size."""
    for backend, provider in BACKENDS.items():
        for keys in (100_000,) if bench.quick else (100_000, 1_000_000):
            name = f"{backend}, {keys:,} keys"
            folder = bench.folder / f"state-{provider}-{keys}"
            _python(_MAKE, str(folder), provider, str(keys))
            looks = Looks(folder / "location", keys)
            contenders = [Contender(title, partial(looks.cost, what)) for what, title in FIGURES.items()]
            contenders += [Contender("2 s", lambda: FIRST_MS), Contender("10 ms", lambda: NEXT_MS)]
            claims = [
                Claim(f"{name}: 2 s, against the first answer", FIGURES["first"], ("2 s",), 1.0),
                Claim(f"{name}: 10 ms, against the 99th percentile", FIGURES["99th"], ("10 ms",), 1.0),
            ]
            yield Comparison(f"state/{name}", f"Looking up a key of {name}", contenders, claims, unit="ms")


class Looks:
    """Processes that look up keys; each has one value of every figure."""

    def __init__(self, location: Path, keys: int) -> None:
        self.location, self.keys = location, keys
        self._left: dict[str, list[float]] = {what: [] for what in FIGURES}

    def cost(self, what: str) -> float:
        """Of a process that nobody has asked for this figure yet."""
        if not self._left[what]:
            output = _python(_LOOK, self.location.as_uri(), str(self.keys), str(LOOKUPS))
            found = json.loads(output.splitlines()[-1])
            if found["wrong"]:
                raise MeasurementError(f"{found['wrong']} of {LOOKUPS} answers are wrong")
            for each, costs in self._left.items():
                costs.append(float(found[each]))
        return self._left[what].pop(0)


def _python(code: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], cwd=ROOT, check=False, capture_output=True, text=True
    )
    if done.returncode != 0:
        raise MeasurementError(done.stderr)
    return done.stdout
