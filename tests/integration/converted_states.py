"""A Spark driver in which stateful operators go on in converted state: `python -m ... FOLDER`, what they gave as JSON.

Each runs over files 1 and 2, goes on over file 3 in the other state store, and over file 4 in the first one again. File
n holds each key from k1 to k(3 + n) twice.
"""

import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from airflow_ft.spark.savepoints.converting import Backend, prepare
from airflow_ft.spark.state.copying import copy_state
from airflow_ft.spark.state.files import drop_unnamed
from airflow_ft.spark.state.locations import SparkLocation, copy_location
from airflow_ft.spark.state.settings import FORMAT, PROVIDER

_MINUTES = (0, 1, 2, 60)  # of the files' rows: the last one is another session


def _numbers(spark: SparkSession, folder: Path) -> DataFrame:
    return spark.readStream.schema("k string, n int, at timestamp").option("maxFilesPerTrigger", 1).json(str(folder))


def _counts(frame: DataFrame) -> DataFrame:
    return frame.groupBy("k").agg(F.count("*").alias("n"))


def _distinct(frame: DataFrame) -> DataFrame:
    return frame.dropDuplicates(["k"])


def _joined(frame: DataFrame) -> DataFrame:
    """With the rows of the file before it."""
    before = frame.selectExpr("k as key", "n as number")
    return frame.join(before, F.expr("k = key and n = number + 1")).select("k", "n")


def _groups(frame: DataFrame) -> DataFrame:
    def count(key: Any, frames: Iterator[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
        state.update(((state.get[0] if state.exists else 0) + sum(map(len, frames)),))
        yield pd.DataFrame({"k": [key[0]], "n": [state.get[0]]})

    schema = "k string, n bigint"
    return frame.groupBy("k").applyInPandasWithState(count, schema, "n bigint", "update", "NoTimeout")


def _sessions(frame: DataFrame) -> DataFrame:
    timed = frame.withWatermark("at", "0 seconds")
    return timed.groupBy(F.session_window("at", "5 minutes"), "k").agg(F.count("*").alias("n")).select("k", "n")


# Operator, output mode, what it begins in, settings.
CASES: dict[str, tuple[Callable[[DataFrame], DataFrame], str, Backend, dict[str, str]]] = {
    "counts, rescaled in between": (_counts, "update", Backend.HDFS, {}),
    "counts, checkpoint format 2": (_counts, "update", Backend.ROCKSDB, {FORMAT: "2"}),
    "distinct": (_distinct, "append", Backend.HDFS, {}),
    "joined": (_joined, "append", Backend.HDFS, {}),
    "joined, checkpoint format 2": (_joined, "append", Backend.ROCKSDB, {FORMAT: "2"}),
    "groups": (_groups, "update", Backend.HDFS, {}),
    "sessions": (_sessions, "append", Backend.HDFS, {}),
}


def _add(folder: Path, n: int) -> None:
    folder.mkdir(exist_ok=True)
    at = f"2026-01-01T00:{_MINUTES[n - 1]:02}:00" if _MINUTES[n - 1] < 60 else "2026-01-01T01:00:00"
    rows = [{"k": f"k{k}", "n": n, "at": at} for k in range(1, 4 + n) for _ in range(2)]
    (hidden := folder / f".{n}").write_text("\n".join(map(json.dumps, rows)))
    os.utime(hidden, (n, n))
    hidden.rename(folder / f"{n}.json")


def _run(spark: SparkSession, name: str, folder: Path, location: Path, conf: dict[str, str]) -> tuple[int, list[Any]]:
    """The last batch, and the rows."""
    operator, mode, _, _ = CASES[name]
    found: list[Any] = []

    def keep(frame: DataFrame, batch: int) -> None:
        found.extend([row["k"], row["n"]] for row in frame.collect())

    for key, value in conf.items():
        spark.conf.set(key, value)
    writer = operator(_numbers(spark, folder)).writeStream.foreachBatch(keep).outputMode(mode)
    writer.option("checkpointLocation", str(location)).trigger(availableNow=True).start().awaitTermination()
    for key in conf:
        spark.conf.unset(key)
    return max(int(each.name) for each in (location / "commits").iterdir() if each.name.isdigit()), sorted(found)


def _converted(spark: SparkSession, location: Path, batch: int, to: Backend) -> tuple[Path, int]:
    """A copy in the other state store, and its rows."""
    old = SparkLocation(str(location.parent), "p", location.as_uri(), batch)
    copied = copy_location(old, location.with_name(f"{location.name}-{to}").as_uri())
    prepare(copied.uri, to)
    rows = copy_state(spark, old.uri, copied.uri, batch)
    drop_unnamed(copied.uri)
    return location.with_name(f"{location.name}-{to}"), rows


def main(root: Path) -> None:
    """Prints, by case: rows of state of each conversion, and the rows that came out in each run."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.driver.memory", "700m")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled", "true")
        .getOrCreate()
    )
    found = {}
    for number, (name, (_, _, begin, more)) in enumerate(CASES.items()):
        folder, location = root / f"input-{number}", root / f"location-{number}"
        other = next(each for each in Backend if each is not begin)
        for n in (1, 2):
            _add(folder, n)
        batch, _ = _run(spark, name, folder, location, {PROVIDER: begin.provider, **more})
        result: dict[str, Any] = {"state": [], "rows": []}
        for n, backend in ((3, other), (4, begin)):
            location, rows = _converted(spark, location, batch, backend)
            _add(folder, n)
            batch, out = _run(spark, name, folder, location, {})
            if "rescaled" in name and backend is Backend.ROCKSDB:
                spark._streamingCheckpointManager.repartition(str(location), 3)
                batch += 1
            result["state"].append(rows)
            result["rows"].append(out)
        found[name] = result
    print(json.dumps(found), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
