"""State as Spark itself has written it, read without Spark: the same as Spark's own reader says."""

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor

from airflow_ft.jobs.uids import plan_of
from airflow_ft.protocol.errors import ConfigurationError
from airflow_ft.spark.state.locations import SparkLocation
from airflow_ft.spark.state.operators import identities
from airflow_ft.state.bounds import Bounds
from airflow_ft.state.handle import State
from airflow_ft.state.hashing import partition_of
from airflow_ft.state.layout import Entry, Shape, Table
from airflow_ft.state.positions import Position
from airflow_ft.state.rows import StateColumn, columns_of, write_row
from tests.raising import raises

pytestmark = [pytest.mark.sampled, pytest.mark.spark, pytest.mark.slow]
SETTING = "spark.sql.streaming.stateStore."
OF_STATE = "org.apache.spark.sql.execution.streaming.state."
CHANGELOG = f"{SETTING}rocksdb.changelogCheckpointing.enabled"
ROCKS = {f"{SETTING}providerClass": f"{OF_STATE}RocksDBStateStoreProvider", CHANGELOG: "false"}
HDFS = {f"{SETTING}providerClass": f"{OF_STATE}HDFSBackedStateStoreProvider"}
HDFS_ZSTD = {**HDFS, f"{SETTING}compression.codec": "zstd", f"{SETTING}minDeltasForSnapshot": "1"}
FORMAT_2 = {**ROCKS, f"{SETTING}checkpointFormatVersion": "2"}
BATCHES, KEYS, TRIES = 3, 5, 10
Query = Callable[[DataFrame], DataFrame]


def count(frame: DataFrame) -> DataFrame:
    """By a key of every type that is looked up by its value."""
    types = ("tinyint", "smallint", "int", "double", "float", "date", "timestamp_ntz", "decimal(9,2)", "decimal(25,3)")
    number = {"date": F.col("t"), "timestamp_ntz": F.col("t")}
    keys = [(number.get(each, F.col("n") / 4)).cast(each).alias(f"k{i}") for i, each in enumerate(types)]
    more = (F.col("k").cast("binary").alias("b"), (F.col("n") % 2 == 0).alias("even"), "n", "t", "k")
    aggregates = (F.count("*"), F.sum("n"), F.avg("n"), F.first(F.struct("k", F.lit(None).alias("nothing"))))
    return frame.groupBy(*keys, *more).agg(*aggregates, F.max(F.array("n")), F.max("t"))


def all_together(frame: DataFrame) -> DataFrame:
    return frame.groupBy().agg(F.count("*"))


def distinct(frame: DataFrame) -> DataFrame:
    return frame.dropDuplicates(["k", "n"])


def distinct_within_watermark(frame: DataFrame) -> DataFrame:
    return frame.withWatermark("t", "10 days").dropDuplicatesWithinWatermark(["k"])


def windows(frame: DataFrame) -> DataFrame:
    return frame.withWatermark("t", "10 days").groupBy(F.window("t", "5 minutes"), "k").count()


def sessions(frame: DataFrame) -> DataFrame:
    return frame.withWatermark("t", "10 days").groupBy(F.session_window("t", "1 minutes"), "k").count()


def joined(frame: DataFrame) -> DataFrame:
    other = frame.select(*(F.col(name).alias(f"{name}2") for name in "knt"))
    left, right = frame.withWatermark("t", "10 days"), other.withWatermark("t2", "10 days")
    return left.join(right, F.expr("k = k2 and t2 >= t and t2 <= t + interval 1 day"), "leftOuter")


def pandas_with_state(frame: DataFrame) -> DataFrame:
    def each(key: Any, frames: Any, state: Any) -> Iterator[pd.DataFrame]:
        state.update(((state.get[0] if state.exists else 0) + sum(map(len, frames)),))
        yield pd.DataFrame({"k": [key[0]]})

    return frame.groupBy("k").applyInPandasWithState(each, "k string", "n bigint", "update", "NoTimeout")


def variables(frame: DataFrame) -> DataFrame:
    """Value, list and map, each also with a time to live; and timers."""

    class Variables(StatefulProcessor):  # within, so that it is pickled as a whole
        def init(self, handle: Any) -> None:
            self.handle = handle
            self.one, self.old = (
                handle.getValueState(name, "n bigint, s string", ttlDurationMs=ttl)
                for name, ttl in (("one", None), ("old", 3_600_000))
            )
            self.many, self.oldMany = (
                handle.getListState(name, "x int", ttlDurationMs=ttl)
                for name, ttl in (("many", None), ("oldMany", 3_600_000))
            )
            self.map, self.oldMap = (
                handle.getMapState(name, "mk string", "mv int", ttlDurationMs=ttl)
                for name, ttl in (("map", None), ("oldMap", 3_600_000))
            )

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
            numbers = [row.n for row in rows]
            for one in (self.one, self.old):
                one.update((sum(numbers), "x" * numbers[0]))
            for many in (self.many, self.oldMany):
                many.appendList([(n,) for n in numbers])
            for each in (self.map, self.oldMap):
                each.updateValue((f"m{numbers[0]}",), (len(numbers),))
                each.updateValue(("again",), (numbers[0],))
            self.handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() + 3_600_000)
            yield Row(k=key[0])

        def close(self) -> None:
            pass

    return frame.groupBy("k").transformWithState(Variables(), "k string", "update", "processingTime")


CASES: list[tuple[Query, str, Mapping[str, str]]] = [
    (count, "update", ROCKS),
    (count, "update", HDFS_ZSTD),
    (count, "update", FORMAT_2),
    (all_together, "update", ROCKS),
    (distinct, "append", ROCKS),
    (distinct_within_watermark, "append", HDFS),
    (windows, "update", ROCKS),
    (sessions, "append", ROCKS),
    (sessions, "append", HDFS),
    (joined, "append", ROCKS),
    (joined, "append", HDFS),
    (pandas_with_state, "update", HDFS_ZSTD),
    (variables, "update", ROCKS),
    (variables, "update", FORMAT_2),
]
IDS = [f"{query.__name__}-{'hdfs' if HDFS.items() <= conf.items() else 'rocks'}{len(conf)}" for query, _, conf in CASES]


class World:
    """A query that is started once more for each file."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark, self.input, self.location = spark, folder / "input", folder / "location"
        self.input.mkdir()
        self.batch = -1

    def add(self) -> None:
        self.batch += 1
        rows = [
            {"k": f"key-{'x' * k}", "n": 10 * self.batch + i, "t": f"2026-01-01T00:{5 * self.batch + k:02}:00"}
            for k in range(KEYS)
            for i in range(2)
        ]
        hidden = self.input / f".{self.batch}"
        hidden.write_text("".join(json.dumps(row) + "\n" for row in rows))
        os.utime(hidden, (1_700_000_000 + self.batch,) * 2)
        hidden.rename(self.input / f"{self.batch}.json")

    def run(self, query: Query, mode: str) -> None:
        self.add()
        frame = self.spark.readStream.schema("k string, n bigint, t timestamp").json(str(self.input))
        writer = query(frame).writeStream.foreachBatch(
            lambda batch, _: batch.write.format("noop").mode("append").save()
        )
        writer = writer.outputMode(mode).option("checkpointLocation", str(self.location))
        for left in range(TRIES, 0, -1):
            try:
                writer.trigger(availableNow=True).start().awaitTermination()
                return
            except StreamingQueryException as error:
                # A worker of Python has ten seconds to start, which a busy machine may need for its imports. The next
                # try does the batch again.
                if left == 1 or "worker failed to connect back" not in f"{error}":
                    raise

    def state(self, **more: Any) -> State:
        location = SparkLocation("", "p", self.location.as_uri(), self.batch)
        return State("p", lambda _: Position(self.batch + 1, location), **more)


@pytest.fixture
def world(spark: SparkSession, tmp_path: Path) -> Iterator[World]:
    spark.sparkContext.pythonExec = sys.executable
    before: dict[str, str | None] = {}
    original = spark.conf.set

    def remembered(name: str, value: Any) -> None:
        before.setdefault(name, spark.conf.get(name, None))
        original(name, value)

    spark.conf.set = remembered  # type: ignore[method-assign]
    spark.conf.set("spark.sql.streaming.noDataMicroBatches.enabled", "false")
    yield World(spark, tmp_path)
    del spark.conf.set
    for name, value in before.items():
        spark.conf.unset(name) if value is None else spark.conf.set(name, value)


def plain(value: Any) -> Any:
    """Values by their place, as Spark's rows have several of one name; times as Python collects them."""
    if isinstance(value, dict):
        return tuple(plain(each) for each in value.values())
    if isinstance(value, (list, tuple)):
        return tuple(plain(each) for each in value)
    if isinstance(value, datetime) and value.tzinfo:
        return value.astimezone().replace(tzinfo=None)
    return bytes(value) if isinstance(value, bytearray) else value


def ours(table: Table, entry: Entry) -> Any:
    """An entry as Spark's reader has it."""
    key, at = dict(entry.key), dict(entry.at or {})
    if table.shape is Shape.LIST:
        return plain((key, dict(entry.value)))
    if table.shape is Shape.MAP:
        return plain((key, at, dict(entry.value)))
    return plain((key | at, dict(entry.value)))


def sparks(table: Table, frame: DataFrame) -> list[Any]:
    """What Spark's reader has; of a value with a time to live only that."""
    found = [row[:-1] for row in frame.collect()]  # without the partition
    if table.ttl:
        found = [(*row[:-1], row[-1][0]) for row in found]
    return sorted((plain(row) for row in found), key=repr)


@pytest.mark.parametrize(("query", "mode", "conf"), CASES, ids=IDS)
def test_it_is_what_sparks_own_reader_says(world: World, query: Query, mode: str, conf: Mapping[str, str]) -> None:
    for name, value in conf.items():
        world.spark.conf.set(name, value)
    for batch in range(BATCHES):
        if batch == BATCHES - 1:  # so there are snapshots, and changes behind them
            world.spark.conf.set(CHANGELOG, "true")
        world.run(query, mode)
        if batch == 0:
            early = world.state()
    with early, world.state() as state:
        [operator] = state.operators()
        tables = state.states(operator.id)
        assert {each.name for each in tables} == _names(query)
        for table in tables:
            entries = list(state.scan(operator.id, table.name))
            if table.shape is not Shape.TIMERS:
                frame = state.dataframe(world.spark, operator.id, table.name)
                assert sorted((ours(table, each) for each in entries), key=repr) == sparks(table, frame)
            assert entries and state.count(operator.id, table.name) == len({repr(each.key) for each in entries})
            _each_key_is_found(state, operator.id, table, entries)
            arrow = state.to_arrow(operator.id, table.name)
            assert arrow.num_rows == len(entries)
            assert not table.key or arrow.column("key").to_pylist()[0] == dict(entries[0].key)
        _changes_are_what_differs(early, state, operator.id, tables)


def _names(query: Query) -> set[str]:
    if query is joined:
        return {"left", "right"}
    return {"one", "old", "many", "oldMany", "map", "oldMap", "timers"} if query is variables else {"default"}


def _each_key_is_found(state: State, op: int, table: Table, entries: list[Entry]) -> None:
    for entry in entries:
        found = state.get(op, dict(entry.key), table.name)
        several = found.values() if table.shape is Shape.MAP else [found] if table.shape is Shape.VALUE else found
        assert (entry.at if table.shape is Shape.TIMERS else entry.value) in several
        row = table.key_row(dict(entry.key))
        guess = partition_of(table.key, row, state.partitions(op))
        assert list(table.entries_of(state.store(op, guess, table.store), dict(entry.key), 0)), "the guess is right"
    absent = [None for _ in table.key]
    assert state.get(op, absent, table.name) is None or not absent


def _changes_are_what_differs(early: State, late: State, op: int, tables: tuple[Table, ...]) -> None:
    early_find, late_find = early._find, late._find
    both = State("p", lambda number: early_find(None) if number == 1 else late_find(None))
    with both:
        for table in tables:
            found = {repr(each["key"]): each for each in both.changes(op, 1, state=table.name)}
            for handle, side in ((early, "before"), (late, "after")):
                for entry in handle.scan(op, table.name):
                    key, value = repr(dict(entry.key)), handle.get(op, dict(entry.key), table.name)
                    other = (late if handle is early else early).get(op, dict(entry.key), table.name)
                    assert (key in found) == (value != other)
                    assert key not in found or found[key][side] == value
            assert all(each["before"] != each["after"] for each in found.values())


def test_what_has_expired_is_hidden(world: World) -> None:
    world.spark.conf.set(f"{SETTING}providerClass", ROCKS[f"{SETTING}providerClass"])
    world.run(variables, "update")
    with world.state() as now, world.state(clock=lambda: time.time() + 7_200) as later:
        for name in ("old", "oldMany", "oldMap"):
            assert now.get(0, "key-", name) and now.count(0, name) == KEYS
            assert later.get(0, "key-", name) is None and later.count(0, name) == 0
        assert set(later.get(0, "key-")) == {"one", "many", "map", "timers"}
        assert later.get(0, "key-", "one") == {"n": 1, "s": ""}
        visible = now.entries(0, "key-")
        assert set(visible) == set(now.get(0, "key-")) and set(later.entries(0, "key-")) == {
            "one",
            "many",
            "map",
            "timers",
        }
        in_an_hour = (time.time() + 3_600) * 1_000  # of the clock that wrote it, a moment ago
        for name, entries in visible.items():
            if name.startswith("old"):
                assert all(each.expires and time.time() * 1_000 < each.expires <= in_an_hour for each in entries), name
            else:
                assert all(each.expires is None for each in entries), name
        assert [each.at for each in visible["many"]] == [{"index": 0}, {"index": 1}]
    with world.state(
        bounds=Bounds(bytes=0, entries=1, stores=1)
    ) as bounded:  # what lies in a full snapshot is not read as a whole
        assert bounded.entries(0, "key-") == {name: entries[:1] for name, entries in visible.items()}


def test_another_encoding_is_refused_by_name_and_shown_by_spark(world: World) -> None:
    for name, value in {**ROCKS, f"{SETTING}encodingFormat": "avro"}.items():
        world.spark.conf.set(name, value)
    world.run(variables, "update")
    with world.state() as state:
        with raises(ConfigurationError, "state_unreadable", reason="is encoded as avro") as caught:
            state.get(0, "key-", "one")
        assert caught.error is not None and "`dataframe(spark, operator)`" in caught.error.remedy
        frame = state.dataframe(world.spark, 0, "one")
        assert {row.key.k for row in frame.collect()} == {f"key-{'x' * k}" for k in range(KEYS)}


def test_keys_are_hashed_as_spark_does(spark: SparkSession) -> None:
    """Also those that the queries above do not have."""
    texts = ["", "a", "ab", "abc", "abcd", "abcde", "äöü€😀", "x" * 100]
    numbers = [0, 1, -1, 127, -128]
    frame = spark.createDataFrame(
        [(text, number, number / 3, None) for text in texts for number in numbers],
        "s string, n bigint, d double, x int",
    ).selectExpr(
        *("s", "n", "d", "x", "cast(n as tinyint) b", "cast(n as smallint) h", "cast(n as int) i", "n > 0 as o"),
        *("cast(d as float) f", "cast(s as binary) y", "cast(d as decimal(10,4)) e", "cast(d as decimal(38,20)) g"),
        *("date_add(date'1970-01-01', cast(n as int)) a", "timestamp_micros(n) m", "struct(s, n, x) w"),
    )
    schema = json.loads(frame.schema.json())
    columns = columns_of(schema)
    for name in frame.columns:
        [column] = [each for each in columns if each.name == name]
        _hashes_agree(frame.select(name, F.hash(name)), (column,))
    _hashes_agree(frame.select(*frame.columns, F.hash(*frame.columns)), columns)


def _hashes_agree(frame: DataFrame, columns: tuple[StateColumn, ...]) -> None:
    for row in frame.collect():
        values = [_aware(column, value) for column, value in zip(columns, row[:-1], strict=True)]
        hashed = partition_of(columns, write_row(columns, values), 1 << 31)
        assert hashed == row[-1] % (1 << 31), values


def _aware(column: StateColumn, value: Any) -> Any:
    if isinstance(value, bytearray):
        return bytes(value)
    if isinstance(value, Row):
        return tuple(value)
    return value.astimezone() if column.kind == "timestamp" else value


def key_called_session(frame: DataFrame) -> DataFrame:
    return frame.withColumnRenamed("k", "session_window_id").groupBy("session_window_id").count()


def times_of_sessions(frame: DataFrame) -> DataFrame:
    return sessions(frame).groupBy(F.window_time("session_window")).count()


@pytest.mark.parametrize(
    ("query", "mode"), [(key_called_session, "update"), (times_of_sessions, "append"), (sessions, "append")]
)
def test_kinds_of_sessions_are_those_of_spark(world: World, query: Query, mode: str) -> None:
    found: list[Any] = []

    def watched(frame: DataFrame) -> DataFrame:
        made = query(frame)
        found[:] = plan_of(made)
        return made

    world.run(watched, mode)
    assert found == list(identities(SparkLocation("", "p", world.location.as_uri(), world.batch)))
