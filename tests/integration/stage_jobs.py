"""Jobs that the staging tests run inside Spark drivers; some crash at a point that their arguments name."""

import functools
import json
import os
import shutil
import signal
import sys
import threading
import time
from asyncio import CancelledError
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, cast

import pandas as pd
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from airflow_ft.jobs.parsing import malformed_rows, parse_json, parsed_rows
from airflow_ft.jobs.uids import uid
from airflow_ft.protocol.errors import JobError
from airflow_ft.spark.driver import publisher, stopper, topics
from airflow_ft.spark.state import timers


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Plain:
    """All rows to `orders`."""

    def transform(self, spark: SparkSession, sources: Any) -> DataFrame:
        return cast(DataFrame, sources["numbers"])


class Stopping:
    """A thread stops the query as soon as it runs; the file `said` has the code of the error that it gets."""

    def __init__(self, said: str) -> None:
        self.said = Path(said)

    def transform(self, spark: SparkSession, sources: Any) -> DataFrame:
        threading.Thread(target=self._stop, args=(spark,), daemon=True).start()
        return cast(DataFrame, sources["numbers"])

    def _stop(self, spark: SparkSession) -> None:
        while not spark.streams.active:
            time.sleep(0.01)
        try:
            spark.streams.active[0].stop()
        except JobError as error:
            self.said.write_text(error.code)


class Faulty:
    """Does something wrong; its driver waits `stop_seconds` for a query that does not stop."""

    def __init__(self, fault: str, stop_seconds: float = stopper.STOP_SECONDS) -> None:
        self.fault = fault
        stopper.STOP_SECONDS = stop_seconds

    def transform(self, spark: SparkSession, sources: Any) -> DataFrame:
        frame: DataFrame = sources["numbers"]
        if "stop" in self.fault:
            SparkSession.stop = lambda _: time.sleep(3600)  # type: ignore[method-assign]
        if self.fault == "exit in transform":
            sys.exit("no such file")
        if self.fault == "cast":
            return frame.select(F.expr("cast('abc' || n as int)").alias("n"))
        return frame

    def split(self, batch: DataFrame) -> dict[str, DataFrame]:
        if "exit" in self.fault:
            sys.exit(3)
        if "cancelled" in self.fault:
            raise CancelledError
        if "split" in self.fault:
            raise KeyError("colour")
        if self.fault == "hang":
            while True:
                time.sleep(0.1)
        return {"orders": batch}


class Crashing:
    """Keeps a running total a key, adds a random number to each step, and dies at a point of batch `batch`.

    Each row says what was added and the total after it: over all published rows of a key, total = total before +
    added, or else state and rows are not of the same attempt (I1).
    """

    output_mode = "update"

    def __init__(self, point: str = "", batch: int = -1, once: str = "", snapshot_below: str = "") -> None:
        self.point, self.batch, self.marker = point, batch, Path(once) if once else None
        self.snapshot_below = snapshot_below
        self.seen = -1
        if point in ("after commit", "after publish"):
            original = publisher.Publisher._publish

            def publish(this: Any, now: Any, segment: Any) -> None:
                if now.batch == batch and point == "after commit":
                    self._crash()
                original(this, now, segment)
                if now.batch == batch:
                    self._crash()

            publisher.Publisher._publish = publish  # type: ignore[method-assign, assignment]

    def _crash(self) -> None:
        assert self.marker is not None
        if not self.marker.exists():
            deadline = time.monotonic() + 240
            while self.snapshot_below and len(list(Path(self.snapshot_below).glob("**/state/0/*/2.zip"))) < 2:
                assert time.monotonic() < deadline
                time.sleep(0.02)
            self.marker.touch()
            _die()

    def transform(self, spark: SparkSession, sources: Any) -> DataFrame:
        return (
            cast(DataFrame, sources["numbers"])
            .groupBy("k")
            .transformWithStateInPandas(
                Totals(), "k string, n bigint, added double, total double, steps bigint", "update", "none"
            )
        )

    def split(self, batch: DataFrame) -> dict[str, DataFrame]:
        self.seen += 1
        if self.point == "before commit" and self.seen == self.batch:
            batch.count()
            self._crash()
        return {"orders": batch}


class Unmounting(Crashing):
    """Take the log's disk away at a point of batch `batch`, once: an empty folder replaces it.

    `back`: it is there again before anything else happens ("at once"), or stays away ("").
    """

    def __init__(self, root: str, point: str, batch: int, once: str, back: str = "") -> None:
        super().__init__()
        self.root, self.unmount_at, self.batch = Path(root), point, batch
        self.marker, self.back = Path(once), back
        if point == "publish":
            original = publisher.Publisher._publish

            def publish(this: Any, now: Any, segment: Any) -> None:
                if now.batch == batch:
                    self._unmount()
                original(this, now, segment)

            publisher.Publisher._publish = publish  # type: ignore[method-assign, assignment]

    def _unmount(self) -> None:
        if self.marker.exists():
            return
        self.marker.touch()
        elsewhere = self.root.with_name("elsewhere")
        self.root.rename(elsewhere)
        self.root.mkdir()
        if self.back:  # what was written of this batch is lost, as if it lay below the mount point
            self.root.rename(self.root.with_name("below"))
            shutil.rmtree(next(elsewhere.glob(f"*/*-*/{self.batch}")))
            elsewhere.rename(self.root)

    def split(self, batch: DataFrame) -> dict[str, DataFrame]:
        self.seen += 1
        if self.unmount_at == "split" and self.seen == self.batch:
            self._unmount()
        return {"orders": batch}


class Totals(StatefulProcessor):
    """The running total of a key."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._state = handle.getValueState("total", "total double, steps bigint")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
        total, steps = self._state.get() or (0.0, 0)
        found = []
        for frame in rows:
            for n in sorted(frame["n"]):
                added = float(n) + int.from_bytes(os.urandom(2), "big") / 65536.0
                total, steps = total + added, steps + 1
                found.append((key[0], n, added, total, steps))
        self._state.update((total, steps))
        yield pd.DataFrame(found, columns=["k", "n", "added", "total", "steps"])

    def close(self) -> None:
        pass


class Sums:
    """A built-in aggregation, without user code in its state."""

    output_mode = "update"

    def transform(self, spark: SparkSession, sources: Any) -> DataFrame:
        return (
            cast(DataFrame, sources["numbers"])
            .groupBy("k")
            .agg(F.sum("n").alias("total"), F.count(F.lit(1)).alias("rows"))
        )


class CrashingSums(Crashing, Sums):
    """The same with a crash."""

    transform = Sums.transform


class Windows:
    """Counts rows in windows of ten seconds, which come out when the watermark has passed their ends."""

    def transform(self, spark: SparkSession, sources: Any) -> DataFrame:
        timed = cast(DataFrame, sources["numbers"]).withWatermark("at", "0 seconds")
        counted = timed.groupBy(F.window("at", "10 seconds")).agg(F.count(F.lit(1)).alias("rows"))
        return counted.select(F.second("window.start").alias("second"), "rows")


class AllWindows(Windows):
    """The same, where each checkpoint has all of them."""

    output_mode = "complete"


class Chained:
    """Counts rows in windows of ten seconds, and once more over windows of thirty seconds."""

    def transform(self, spark: SparkSession, sources: Any) -> DataFrame:
        timed = cast(DataFrame, sources["numbers"]).withWatermark("at", "0 seconds")
        counted = timed.groupBy(F.window("at", "10 seconds")).agg(F.count(F.lit(1)).alias("rows"))
        larger = counted.groupBy(F.window(F.window_time("window"), "30 seconds")).agg(F.sum("rows").alias("rows"))
        return larger.select(F.second("window.start").alias("second"), "rows")


class Joined:
    """Rows without a partner among those of an odd number, within five seconds: known when no partner can come."""

    def transform(self, spark: SparkSession, sources: Any) -> DataFrame:
        timed = cast(DataFrame, sources["numbers"]).withWatermark("at", "0 seconds")
        left, right = timed.alias("a"), timed.where("n % 2 = 1").alias("b")
        near = F.expr("a.n = b.n and b.at between a.at and a.at + interval 5 seconds")
        found = left.join(right, near, "leftOuter")
        return found.select(F.second("a.at").alias("second"), F.expr("bigint(b.n is not null)").alias("rows"))


class Remembered(StatefulProcessor):
    """Counts rows, and tells how many ten seconds after the first one, by event time."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._state = handle.getValueState("count", "second int, rows bigint")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
        found = list(rows)
        known = self._state.get()
        if known is None:
            first = min(row["at"] for row in found)
            self._handle.registerTimer(int(1000 * first.timestamp()) + 10_000)
            known = (first.second, 0)
        self._state.update((known[0], known[1] + len(found)))
        return iter(())

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
        second, rows = self._state.get()
        self._state.clear()
        yield Row(second=second, rows=rows)

    def close(self) -> None:
        pass


class Timers:
    """Rows of each ten numbers, told by a timer."""

    def transform(self, spark: SparkSession, sources: Any) -> DataFrame:
        timed = cast(DataFrame, sources["numbers"]).withWatermark("at", "0 seconds")
        keyed = timed.withColumn("k", F.expr("n div 10")).groupBy("k")
        return keyed.transformWithState(Remembered(), "second int, rows bigint", "append", "EventTime")


class Reminder(StatefulProcessor):
    """Counts rows, and tells how many so many milliseconds after the first of them, by processing time."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._state = handle.getValueState("count", "rows bigint")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
        found = list(rows)
        (before,) = self._state.get() or (0,)
        self._state.update((before + len(found),))
        if not before:
            self._handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() + found[0]["after"])
        return iter(())

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
        (rows,) = self._state.get()
        self._state.clear()
        yield Row(k=key[0], rows=rows)

    def close(self) -> None:
        pass


class Reminders(Crashing):
    """Rows of each key, told by a timer of processing time. It may crash.

    ahead: seconds by which the clock is fast for micro-batches that this package begins; silent: so many without rows
    may follow each other.
    """

    output_mode = "append"

    def __init__(self, ahead: float = 0, silent: int = timers.SILENT, **crash: Any) -> None:
        super().__init__(**crash)
        now = time.time

        class Clock:
            @staticmethod
            def time() -> float:
                return now() + ahead

        timers.time = Clock  # type: ignore[assignment]
        timers.SILENT = silent

    def transform(self, spark: SparkSession, sources: Any) -> DataFrame:
        keyed = cast(DataFrame, sources["numbers"]).groupBy("k")
        return keyed.transformWithState(Reminder(), "k string, rows bigint", "append", "processingTime")


class KafkaReminders(Reminders):
    """The same of records, whose keys are their texts; after a millisecond."""

    def transform(self, spark: SparkSession, sources: Any) -> DataFrame:
        numbers = cast(DataFrame, sources["orders"]).selectExpr("cast(value as string) as k", "1L as after")
        return super().transform(spark, {"numbers": numbers})


def _time_out(key: Any, frames: Any, state: Any) -> Any:
    (before,) = state.getOption or (0,)
    if state.hasTimedOut:
        state.remove()
        yield pd.DataFrame({"k": [key[0]], "rows": [before]})
        return
    found = list(frames)
    state.update((before + sum(map(len, found)),))
    state.setTimeoutDuration(int(found[0]["after"].iloc[0]))


class TimeOuts(Reminders):
    """The same by time-outs of applyInPandasWithState."""

    def transform(self, spark: SparkSession, sources: Any) -> DataFrame:
        keyed = cast(DataFrame, sources["numbers"]).groupBy("k")
        return keyed.applyInPandasWithState(
            _time_out, "k string, rows bigint", "rows bigint", "append", "ProcessingTimeTimeout"
        )


class RemindersAndWindows(Reminders):
    """The same beside windows of ten seconds, which wait for the watermark."""

    def transform(self, spark: SparkSession, sources: Any) -> DataFrame:
        timed = cast(DataFrame, sources["timed"]).withWatermark("at", "0 seconds")
        counted = timed.groupBy(F.window("at", "10 seconds")).agg(F.count(F.lit(1)).alias("rows"))
        return super().transform(spark, sources).union(counted.select(F.second("window.start").cast("string"), "rows"))


class CrashingWindows(Crashing, Windows):
    """Windows with a crash."""

    transform = Windows.transform
    output_mode = "append"


class Counter(StatefulProcessor):
    """How many rows of a key came so far, in either form of transformWithState."""

    def __init__(self, pandas: bool) -> None:
        self.pandas = pandas

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._state = handle.getValueState("count", "rows bigint")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
        (before,) = self._state.get() or (0,)
        found = before + sum(len(each) if self.pandas else 1 for each in rows)
        self._state.update((found,))
        if self.pandas:
            yield pd.DataFrame({"k": [key[0]], "rows": [found]})
        else:
            yield Row(k=key[0], rows=found)

    def close(self) -> None:
        pass


class Counts:
    """A count of the rows of a key, by an operator that the arguments name."""

    output_mode = "update"

    def __init__(self, by: str) -> None:
        self.by = by

    def transform(self, spark: SparkSession, sources: Any) -> DataFrame:
        frame = cast(DataFrame, sources["numbers"])
        keyed, schema = frame.groupBy("k"), "k string, rows bigint"
        if self.by == "rows":
            return keyed.transformWithState(Counter(pandas=False), schema, "update", "none")
        if self.by == "pandas":
            return keyed.transformWithStateInPandas(Counter(pandas=True), schema, "update", "none")
        if self.by == "count":
            return keyed.agg(F.count(F.lit(1)).alias("rows"))
        if self.by == "count and more":
            return keyed.agg(F.count(F.lit(1)).alias("rows"), F.max("n").alias("most"))
        if self.by == "count of distinct":
            return frame.dropDuplicates(["k", "n"]).groupBy("k").agg(F.count(F.lit(1)).alias("rows"))
        return frame.select("k", F.lit(1).cast("bigint").alias("rows"))


def _count_group(key: Any, frames: Any, state: Any) -> Any:
    (before,) = state.get if state.exists else (0,)
    total = before + sum(len(frame) for frame in frames)
    state.update((total,))
    yield pd.DataFrame({"k": [key[0]], "rows": [total]})


class Composed:
    """Branches, each with a stateful operator that has a uid ("": none), whose rows say which operator made them."""

    def __init__(self, branches: list[tuple[str, str]]) -> None:
        self.branches = branches

    def transform(self, spark: SparkSession, sources: Any) -> DataFrame:
        made = [self._made(sources["numbers"], by, name) for by, name in self.branches]
        return functools.reduce(lambda one, other: one.unionByName(other), made)

    def _made(self, frame: DataFrame, by: str, name: str) -> DataFrame:
        keyed, schema = frame.groupBy("k"), "k string, rows bigint"
        if by == "rows":
            found = keyed.transformWithState(Counter(pandas=False), schema, "append", "none")
        elif by == "pandas":
            found = keyed.transformWithStateInPandas(Counter(pandas=True), schema, "append", "none")
        elif by == "groups":
            found = keyed.applyInPandasWithState(_count_group, schema, "total bigint", "append", "NoTimeout")
        elif by == "joined":
            left, right = frame.alias("l"), frame.alias("r")
            found = left.join(right, F.expr("l.k = r.k")).select("l.k", F.expr("100 * l.n + r.n").alias("rows"))
        elif by == "firsts":
            found = frame.dropDuplicates(["k"]).select("k", F.lit(1).cast("bigint").alias("rows"))
        else:
            found = frame.select("k", F.lit(0).cast("bigint").alias("rows"))
        named = uid(found, name) if name else found
        return named.withColumn("by", F.lit(name or by))


class Counted:
    """A count a key, behind as many dropDuplicates as there are columns named; each operator may have a uid."""

    output_mode = "update"

    def __init__(self, distinct: list[tuple[str, str]], count: str) -> None:
        self.distinct, self.count = distinct, count

    def transform(self, spark: SparkSession, sources: Any) -> DataFrame:
        frame = cast(DataFrame, sources["numbers"])
        for column, name in self.distinct:
            frame = frame.dropDuplicates([column])
            frame = uid(frame, name) if name else frame
        counts = frame.groupBy("k").agg(F.count(F.lit(1)).alias("rows"))
        return uid(counts, self.count).where("rows > 0") if self.count else counts


class Aggregated:
    """A function of a column by a key, each of which may be another one in the next run, behind dropDuplicates."""

    output_mode = "update"

    def __init__(self, by: str = "k", function: str = "sum", distinct: str = "n", alias: str = "k") -> None:
        self.by, self.function, self.distinct, self.alias = by, function, distinct, alias

    def transform(self, spark: SparkSession, sources: Any) -> DataFrame:
        frame = uid(cast(DataFrame, sources["numbers"]).dropDuplicates([self.distinct]), "distinct")
        keyed = frame.withColumn(self.alias, F.col(self.by)).groupBy(self.alias)
        return uid(keyed.agg(getattr(F, self.function)("n").alias("n")), "totals")


class Waiting:
    """Rows with a random number. `split` says in a file that a batch is there, and waits for another file."""

    def __init__(self, there: str, go: str) -> None:
        self.there, self.go = Path(there), Path(go)

    def transform(self, spark: SparkSession, sources: Any) -> DataFrame:
        return cast(DataFrame, sources["numbers"]).repartition(4).withColumn("r", F.rand())

    def split(self, batch: DataFrame) -> dict[str, DataFrame]:
        if not batch.isEmpty():
            self.there.touch()
            while not self.go.exists():
                time.sleep(0.05)
        return {"orders": batch}


class Held:
    """The running total of a key, with a random part. From the second file on its rows wait for a file in `folder`."""

    output_mode = "update"

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def transform(self, spark: SparkSession, sources: Any) -> DataFrame:
        keyed = cast(DataFrame, sources["numbers"]).groupBy("k")
        schema = "k string, n bigint, added double, total double"
        return keyed.transformWithState(Holding(self.folder), schema, "update", "none")


class Holding(StatefulProcessor):
    """A point of `Held`: between the load and the commit of a state partition."""

    def __init__(self, folder: str) -> None:
        self.folder = Path(folder)

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._total = handle.getValueState("total", "total double")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
        [n] = [row["n"] for row in rows]
        found = self._total.get()
        if n:
            (self.folder / f"there-{n}-{os.getpid()}").touch()
            while not (self.folder / f"go-{n}").exists():
                time.sleep(0.05)
        added = int.from_bytes(os.urandom(2), "big") / 65_536
        total = (found[0] if found else 0.0) + added
        self._total.update((total,))
        yield Row(k=key[0], n=n, added=added, total=total)

    def close(self) -> None:
        pass


class Shuffled:
    """The running total of a key, with a random part, and a shuffle behind it, whose readers wait in the second file.

    Two of the four wait for a file in `folder`; with two cores the others have not begun by then. Another file has the
    working folder of the executor that has computed state.
    """

    output_mode = "update"

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def transform(self, spark: SparkSession, sources: Any) -> DataFrame:
        keyed = cast(DataFrame, sources["numbers"]).groupBy("k")
        schema = "k string, n bigint, added double, total double, steps bigint"
        totals = keyed.transformWithStateInPandas(Placed(self.folder), schema, "update", "none")
        return totals.repartition(4).mapInPandas(functools.partial(_hold, self.folder), schema).repartition(2)


class Placed(Totals):
    """The totals of `Shuffled`."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
        Path(self.folder, "at").write_text(str(Path.cwd()))
        yield from super().handleInputRows(key, rows, timerValues)


class Ranged(Crashing):
    """The running total of a key, with a random part, and rows by ranges, for which Spark computes them twice."""

    def transform(self, spark: SparkSession, sources: Any) -> DataFrame:
        return super().transform(spark, sources).repartitionByRange(2, "k")


def _hold(folder: str, frames: Any) -> Any:
    for frame in frames:
        while 1 in set(frame["n"]) and not Path(folder, "go").exists():
            Path(folder, f"there-{os.getpid()}").touch()
            time.sleep(0.05)
        yield frame


class Grown:
    """Tells what a key's state variables hold (as JSON), and adds the rows to each; `fields` are those of their values.

    The first field counts rows from `first` on; what comes new is null until it has been written once.
    """

    output_mode = "update"

    def __init__(self, fields: str, first: int = 0) -> None:
        self.fields, self.first = fields, first

    def transform(self, spark: SparkSession, sources: Any) -> DataFrame:
        keyed = cast(DataFrame, sources["numbers"]).groupBy("k")
        counter = Growing(self.fields, self.first)
        return keyed.transformWithState(counter, "k string, items string", "update", "none")


class Growing(StatefulProcessor):
    """Of `Grown`."""

    def __init__(self, fields: str, first: int) -> None:
        self.fields, self.first = fields, first

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._value = handle.getValueState("value", self.fields)
        self._list = handle.getListState("list", self.fields)
        self._map = handle.getMapState("map", "key string", self.fields)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
        value = self._value.get()
        items = [value and list(value), [list(each) for each in self._list.get()]]
        items.append([list(each) for _, each in self._map.iterator()])
        count = (value[0] if value else self.first) + len(list(rows))
        row = (count, *(8 if "int" in each else "new" for each in self.fields.split(",")[1:]))
        self._value.update(row)
        self._list.appendValue(row)
        self._map.updateValue(("m",), row)
        yield Row(k=key[0], items=json.dumps(items))

    def close(self) -> None:
        pass


class Static:
    """A plain batch job."""

    def transform(self, spark: SparkSession, sources: Any) -> DataFrame:
        return spark.range(10).withColumn("r", F.rand())


class Parted:
    """Rows of the last and the next ten seconds. `split` divides them by an expression; the first sink takes seconds.

    Each row belongs to one of the sinks.
    """

    def __init__(self, column: str, condition: str) -> None:
        self.column, self.condition = column, condition

    def transform(self, spark: SparkSession, sources: Any) -> DataFrame:
        seconds = F.make_dt_interval(secs=(F.col("id") - 40) / 4)
        return spark.range(80).repartition(1).withColumn("at", F.current_timestamp() + seconds)

    def split(self, batch: DataFrame) -> dict[str, DataFrame]:
        spark = batch.sparkSession
        spark.udf.register("changing", F.udf(os.getpid, "int").asNondeterministic())
        found = batch.withColumn("x", F.expr(self.column))
        slow = "reflect('java.lang.Thread', 'sleep', 50L) AS slept"
        return {
            "late": found.where(self.condition).selectExpr("id", slow),
            "fresh": found.where(f"NOT ({self.condition})").select("id"),
        }


class Meddling:
    """Somebody touches the source's files at moments that the arguments name: (number of the batch, old, new name).

    A new name of None rewrites the file with a row more.
    """

    def __init__(self, moves: list[tuple[int, str, str | None]]) -> None:
        self.moves = moves
        self.seen = -1

    def transform(self, spark: SparkSession, sources: Any) -> DataFrame:
        return cast(DataFrame, sources["numbers"])

    def split(self, batch: DataFrame) -> dict[str, DataFrame]:
        self.seen += 1
        for when, old, new in self.moves:
            if when == self.seen and Path(old).exists():
                if new is None:
                    with Path(old).open("a") as file:
                        file.write('{"k": "late", "n": -1}\n')
                else:
                    Path(old).rename(new)
        return {"orders": batch}


class MeddlingStatic(Meddling):
    """The same in a job that does not stream."""

    def transform(self, spark: SparkSession, sources: Any) -> DataFrame:
        return cast(DataFrame, sources.static("numbers"))


class StaticSide(Meddling):
    """A stream, each row of which meets the rows of a static source in `split`."""

    def transform(self, spark: SparkSession, sources: Any) -> DataFrame:
        self.side = sources.static("side")
        return super().transform(spark, sources)

    def split(self, batch: DataFrame) -> dict[str, DataFrame]:
        return {"orders": super().split(batch)["orders"].join(self.side, "k", "left")}


class Union:
    """Two sources of files as one stream; the file `lose` goes while a batch is computed."""

    def __init__(self, lose: str = "") -> None:
        self.lose = lose

    def transform(self, spark: SparkSession, sources: Any) -> DataFrame:
        return cast(DataFrame, sources["numbers"].union(sources["side"]))

    def split(self, batch: DataFrame) -> dict[str, DataFrame]:
        if self.lose:
            Path(self.lose).unlink(missing_ok=True)
        return {"orders": batch}


class Orders:
    """JSON records of Kafka; malformed ones fail the job, or go to `dead_letters`."""

    def __init__(self, on_malformed: Literal["fail", "keep"] = "fail") -> None:
        self.on_malformed = on_malformed

    def transform(self, spark: SparkSession, sources: Any) -> DataFrame:
        return parse_json(
            sources["orders"], "id bigint, amount decimal(12,2)", keep=["headers"], on_malformed=self.on_malformed
        )

    def split(self, batch: DataFrame) -> dict[str, DataFrame]:
        if self.on_malformed == "fail":
            return {"orders": batch}
        return {"orders": parsed_rows(batch), "dead_letters": malformed_rows(batch)}


class Recreating:
    """All rows to `orders`; deletes a topic and makes it anew, once, at a point of the attempt."""

    def __init__(self, bootstrap: str, topic: str, point: str, once: str, count: int) -> None:
        self.bootstrap, self.topic, self.marker, self.count = bootstrap, topic, Path(once), count
        if point == "compared":
            begin = topics.Topics.begin

            def compare(this: topics.Topics, status: Any) -> Any:
                void = begin(this, status)
                self._recreate()
                return void

            topics.Topics.begin = compare  # type: ignore[method-assign]
        self.point = point

    def transform(self, spark: SparkSession, sources: Any) -> DataFrame:
        return cast(DataFrame, sources["orders"])

    def split(self, batch: DataFrame) -> dict[str, DataFrame]:
        if self.point == "read":  # the rows are there, and nothing is published
            self._recreate()
        return {"orders": batch}

    def _recreate(self) -> None:
        if not self.marker.exists():
            self.marker.touch()
            recreate(self.bootstrap, self.topic, [f"new {n}" for n in range(self.count)])


def recreate(bootstrap: str, topic: str, values: list[str]) -> None:
    """Deletes a topic of one partition, makes it anew and fills it."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.delete_topics([topic], operation_timeout=30)[topic].result(60)
    admin.create_topics([NewTopic(topic, num_partitions=1)], operation_timeout=30)[topic].result(60)
    fill(bootstrap, topic, values)


def fill(bootstrap: str, topic: str, values: list[str], partition: int = 0, at: datetime | None = None) -> None:
    """Appends records to a partition; they are of the time `at`, or of now."""
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all"})
    stamp = {"timestamp": round(at.timestamp() * 1000)} if at else {}
    for value in values:
        producer.produce(topic, value.encode(), partition=partition, **stamp)
    assert producer.flush(60) == 0


class Fitting:
    """For the comparison of columns with sinks; each row says which call of `split` on this object it went through.

    `how`: "plain"; "looks" at its rows, and gives another column when there are none; "hangs" when `marker` is lacking.
    """

    def __init__(self, how: str = "plain", marker: str = "") -> None:
        self.how, self.marker = how, Path(marker)
        self.calls: list[int] = []

    def transform(self, spark: SparkSession, sources: Any) -> DataFrame:
        return cast(DataFrame, sources["numbers"])

    def split(self, batch: DataFrame) -> dict[str, DataFrame]:
        self.calls.append(1)
        if self.how == "looks" and batch.where("n > 0").isEmpty():
            batch = batch.withColumn("nothing", F.lit("x"))
        while self.how == "hangs" and not self.marker.exists():
            self.marker.touch()
            time.sleep(60)
        rows = batch.withColumn("call", F.lit(len(self.calls)))
        return {"orders": rows, "lines": rows.select("k"), "copies": rows.select("n")}


class Mistaken:
    """Raises where the rows are, in a Python worker of Spark, or asks for what a stream cannot give."""

    def __init__(self, where: str) -> None:
        self.where = where

    def transform(self, spark: SparkSession, sources: Any) -> DataFrame:
        frame: DataFrame = sources["numbers"]
        match self.where:
            case "udf":
                return frame.withColumn("share", F.udf(share, "double")("n"))
            case "pandas":
                return frame.mapInPandas(shares, "share double")
            case "state":
                return frame.groupBy("k").transformWithStateInPandas(Dividing(), "share double", "update", "none")
            case "collect":
                frame.collect()
            case "module":
                import no_such_helper  # type: ignore[import-not-found]  # noqa: F401
        return frame


def share(n: int) -> float:
    return 1 / (n - n)


def shares(frames: Any) -> Any:
    for frame in frames:
        yield pd.DataFrame({"share": [share(n) for n in frame["n"]]})


class Dividing(StatefulProcessor):
    """Fails at its first row."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        pass

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
        for frame in rows:
            yield from shares([frame])

    def close(self) -> None:
        pass


class Typed:
    """The numbers and a column `c` of any type, made by `transform`, or not before `split`."""

    def __init__(self, expression: str, where: str) -> None:
        self.expression, self.where = expression, where
        if where == "transform":
            self.split = None  # type: ignore[assignment]

    def transform(self, spark: SparkSession, sources: Any) -> DataFrame:
        frame = cast(DataFrame, sources["numbers"])
        return frame.selectExpr("n", f"{self.expression} AS c") if self.where == "transform" else frame

    def split(self, batch: DataFrame) -> dict[str, DataFrame]:
        return {"others": batch, "orders": batch.selectExpr("n", f"{self.expression} AS c")}


class Several:
    """How often each key has come, over the sources named, in this order; `fail`: when there are rows."""

    output_mode = "update"

    def __init__(self, names: list[str], fail: bool = False) -> None:
        self.names, self.fail = names, fail

    def transform(self, spark: SparkSession, sources: Any) -> DataFrame:
        keys = [sources[name].selectExpr(f"cast({self._key(name)} as string) as k") for name in self.names]
        rows = functools.reduce(lambda one, other: one.union(other), keys)
        return cast(DataFrame, rows.groupBy("k").agg(F.count(F.lit(1)).alias("rows")))

    def split(self, batch: DataFrame) -> dict[str, DataFrame]:
        if self.fail and batch.count():
            raise ValueError("told to")
        return {"orders": batch}

    def _key(self, name: str) -> str:
        return "value" if name == "events" else "k"


class OwnSource:
    """A declared source, and one that the job opens by itself."""

    def __init__(self, path: str) -> None:
        self.path = path

    def transform(self, spark: SparkSession, sources: Any) -> DataFrame:
        return cast(DataFrame, sources["numbers"].union(spark.readStream.schema("k string").json(self.path)))
