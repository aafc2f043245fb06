"""Savepoints of much state: seconds to take one, to read and copy it back, to rescale it, and to convert it both ways.

The state is a count of each key, in RocksDB, in 8 partitions: `ROWS` keys (`make bench ONLY=savepoints ROWS=1000000
ROUNDS=1`). Each figure is of one command as a person types it, its Spark driver's start included. What is converted is
compared by the command itself, row for row; that the state is whole is checked here by the bytes of the way there and
back.
"""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.bench import Bench
from benchmarks.beside import Beside
from benchmarks.measuring import Comparison, Contender, MeasurementError
from benchmarks.workers import ROOT

PARTITIONS, MORE = 8, 16
_TAKE, _RESTORE, _RESCALE = "take", "restore", f"rescale {PARTITIONS} -> {MORE}"
_TO_MAP, _TO_ROCKSDB = "convert to the HDFS-backed map", "convert to RocksDB"


def savepoints(bench: Bench) -> list[Comparison]:
    """Seconds, CPU seconds, and megabytes of what was made."""
    from airflow_ft.spark.savepoints.converting import Backend, convert
    from airflow_ft.spark.savepoints.metadata import SPARK, Savepoint, read_metadata, verify
    from airflow_ft.spark.savepoints.rescaling import rescale
    from airflow_ft.spark.savepoints.taking import finish
    from airflow_ft.spark.state.locations import SparkLocation, copy_location

    folder = bench.folder / "savepoints"
    location = SparkLocation(str(folder), "bench", (folder / "location").as_uri(), 0)
    conf = {"spark.driver.memory": f"{max(1, bench.rows // 1_500_000)}g"}
    bytes_of: dict[str, list[float]] = {}
    cpu_of: dict[str, list[float]] = {}
    made: dict[str, str] = {}

    def state() -> None:
        if not (folder / "location").exists():
            folder.mkdir(parents=True, exist_ok=True)
            command = [sys.executable, "-m", __name__, str(folder), str(bench.rows), conf["spark.driver.memory"]]
            subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def seconds(name: str, work: Callable[[], str]) -> Callable[[], float]:
        def run() -> float:
            state()
            if name in made:
                shutil.rmtree(made[name])
            os.sync()
            began, used = time.monotonic(), _used()
            made[name] = work()
            took = time.monotonic() - began
            cpu_of.setdefault(name, []).append(_used() - used)
            size = sum(path.stat().st_size for path in Path(made[name]).rglob("*") if path.is_file())
            bytes_of.setdefault(name, []).append(size / 1e6)
            return took

        return run

    def take() -> str:
        uri = folder / "taken"
        uri.mkdir()
        empty: Mapping[str, str] = {}
        savepoint = Savepoint(
            "id", "bench", "i", 1, 0, datetime.now(UTC), "bench", empty, (), "", False, empty, empty, {}
        )
        finish(uri.as_uri(), copy_location(location, (uri / SPARK).as_uri()), savepoint)
        return str(uri)

    def restore() -> str:
        verify(made[_TAKE], read_metadata(made[_TAKE]))
        copied = copy_location(read_metadata(made[_TAKE]).location(made[_TAKE]), (folder / "restored").as_uri())
        SparkLocation(str(folder), "bench", copied.uri, 0).sync({})
        return str(folder / "restored")

    def other(make: Callable[[], tuple[str, Savepoint]]) -> Callable[[], str]:
        return lambda: str(Path(make()[0].removeprefix("file://")))

    lines: list[str] = []
    to = str(folder / "made")
    work: dict[str, Callable[[], str]] = {
        _TAKE: take,
        _RESTORE: restore,
        _RESCALE: other(lambda: rescale(made[_TAKE], MORE, to, "bench", conf, lines.append)),
        _TO_MAP: other(lambda: convert(made[_TAKE], Backend.HDFS, to, "bench", conf, lines.append)),
        _TO_ROCKSDB: other(lambda: convert(made[_TO_MAP], Backend.ROCKSDB, to, "bench", conf, lines.append)),
    }
    contenders = [Contender(name, seconds(name, each), warm_up=0) for name, each in work.items()]
    title = "Savepoints of a count of each key, of so many keys"
    taken = _InOrder("savepoints", title, contenders, [], rows=bench.rows)
    sizes = [Contender(name, lambda: 0.0, warm_up=0) for name in work]
    return [
        taken,
        Beside.of(taken, cpu_of),
        Beside("savepoints, MB", f"{title}: bytes", sizes, [], "MB", noted=bytes_of),
    ]


def _used() -> float:
    """CPU seconds of this process and those that it has started and that have ended: hardly changed by other work."""
    return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


class _InOrder(Comparison):
    """One needs what the other has made: no turns."""

    def measure(self, rounds: int, say: Callable[[str], None]) -> None:
        before = os.getloadavg()[0]
        self.costs = {contender.name: [] for contender in self.contenders}
        for number in range(rounds):
            for contender in self.contenders:
                cost = contender.run()
                self.costs[contender.name].append(cost)
                say(f"  {self.name}, round {number + 1} of {rounds}: {contender.name} {cost:.1f} {self.unit}")
        self.load = (before, os.getloadavg()[0])


def _make_state(folder: Path, keys: int, memory: str) -> None:
    """A location of Spark with one micro-batch."""
    from pyspark.sql import SparkSession

    spark = (
        SparkSession.builder.master("local[*]")
        .config("spark.driver.memory", memory)
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", str(PARTITIONS))
        .config("spark.local.dir", str(folder / "local"))
        .config(
            "spark.sql.streaming.stateStore.providerClass",
            "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
        )
        .getOrCreate()
    )
    spark.range(keys).write.parquet(str(folder / "input"))
    frame = spark.readStream.schema("id bigint").parquet(str(folder / "input")).groupBy("id").count()
    rows: list[int] = []
    writer = frame.writeStream.foreachBatch(lambda batch, _: rows.append(batch.count())).outputMode("update")
    writer.option("checkpointLocation", str(folder / "location")).trigger(availableNow=True).start().awaitTermination()
    spark.stop()
    shutil.rmtree(folder / "input")
    if rows != [keys]:
        raise MeasurementError(f"{rows} instead of {keys} keys")


if __name__ == "__main__":
    _make_state(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
