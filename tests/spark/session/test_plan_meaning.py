"""The meaning of a job's state, from real plans of Spark: changes of a job that alter it, and others."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from datetime import date, datetime
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from airflow_ft.jobs.keyed import ReducingState
from airflow_ft.jobs.parsing import parse_json
from airflow_ft.jobs.uids import plan_of
from airflow_ft.sources import FileSource
from airflow_ft.spark.driver.inputs import Sources
from airflow_ft.spark.driver.plan_meaning import memory_of
from airflow_ft.spark.state.meaning import Memory, differences, texts

pytestmark = pytest.mark.spark

SCHEMAS = {
    "orders": "id bigint, x bigint, y bigint, customer string, city string, t timestamp, u timestamp,"
    " lines array<struct<a:string,b:string>>",
    "returns": "id bigint, x bigint, y bigint, customer string, city string, t timestamp, u timestamp,"
    " lines array<struct<a:string,b:string>>",
    "messages": "value string, note string",
}
Made = Callable[[Sources], DataFrame]


@pytest.fixture(scope="module")
def sources(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Sources:
    root = tmp_path_factory.mktemp("sources")
    specs = {}
    for name, schema in SCHEMAS.items():
        (root / name).mkdir()
        (root / name / "one.json").write_text("")
        specs[name] = FileSource(path=str(root / name), schema=schema).to_json()
    return Sources(spark, specs, {})


def read(frame: DataFrame, sources: Sources, arguments: Mapping[str, Any] | None = None) -> Memory:
    found = memory_of(frame, sources.source_of, arguments)
    assert found is not None and len(found.operators) == len(plan_of(frame))
    return found


def changed(one: DataFrame, other: DataFrame, sources: Sources) -> list[str]:
    before, now = read(one, sources), read(other, sources)
    assert len(before.operators) == len(now.operators) > 0
    pairs = zip(before.operators, now.operators, strict=True)
    return [each for a, b in pairs for each in differences(a, b)]


def upper(text: str) -> str:
    return text.upper()


def lower(text: str) -> str:
    return text.lower()


def count(key: Any, frames: Iterator[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
    yield from frames


def total(key: Any, frames: Iterator[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
    yield from frames


class Visits(StatefulProcessor):
    def init(self, handle: Any) -> None:
        pass

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[pd.DataFrame]:
        yield from rows


class Spent(Visits):
    pass


class Keeping(StatefulProcessor):
    def __init__(self, fields: str, key: str = "k string") -> None:
        self.fields, self.key = fields, key

    def init(self, handle: Any) -> None:
        self.sum = ReducingState(handle, "sum", self.fields, lambda one, other: one)
        self.map = handle.getMapState("map", self.key, "n int")
        self.now = handle.getQueryInfo()

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[pd.DataFrame]:
        yield from rows


def orders(s: Sources) -> DataFrame:
    return s["orders"].withWatermark("t", "10 minutes")


def joined(how: str = "inner", on: str = "a.id = b.id AND b.t BETWEEN a.t AND a.t + INTERVAL 1 HOUR") -> Made:
    def make(s: Sources) -> DataFrame:
        left = orders(s).alias("a")
        right = s["returns"].withWatermark("t", "10 minutes").alias("b")
        return left.join(right, F.expr(on), how).select("a.id", "a.x", "b.y")

    return make


def with_state(function: Any, state: str = "n int", key: str = "city", timeout: str = "NoTimeout") -> Made:
    return lambda s: s["orders"].groupBy(key).applyInPandasWithState(function, "c string", state, "append", timeout)


def processed(processor: Any, key: str = "city", time: str = "none", rows: bool = False) -> Made:
    def make(s: Sources) -> DataFrame:
        keyed = s["orders"].groupBy(key)
        how = keyed.transformWithState if rows else keyed.transformWithStateInPandas
        return how(processor, "c string", "update", time)

    return make


def in_zone(s: Sources, zone: str) -> DataFrame:
    s["orders"].sparkSession.conf.set("spark.sql.session.timeZone", zone)
    return s["orders"]


@pytest.fixture(autouse=True)
def utc(spark: SparkSession) -> Iterator[None]:
    yield
    spark.conf.set("spark.sql.session.timeZone", "UTC")


def windowed(*window: str, session: bool = False, by: str = "t") -> Made:
    made = F.session_window if session else F.window
    return lambda s: orders(s).groupBy(made(by, *window), "city").count()


def parsed(*fields: str, key: str = "k", column: str = "value") -> Made:
    return lambda s: parse_json(s["messages"], ", ".join(fields), column).groupBy(key).count()


CHANGES: dict[str, tuple[Made, Made, str]] = {
    "function": (
        lambda s: s["orders"].groupBy("city").agg(F.sum("x")),
        lambda s: s["orders"].groupBy("city").agg(F.max("x")),
        "functions were sum(orders.x), and are max(orders.x)",
    ),
    "argument": (
        lambda s: s["orders"].groupBy("city").agg(F.sum("x").alias("s")),
        lambda s: s["orders"].groupBy("city").agg(F.sum("y").alias("s")),
        "functions were sum(orders.x), and are sum(orders.y)",
    ),
    "argument, above": (
        lambda s: s["orders"].withColumn("v", F.col("x") * 2).groupBy("city").agg(F.sum("v")),
        lambda s: s["orders"].withColumn("v", F.col("x") * 3).groupBy("city").agg(F.sum("v")),
        "functions were sum((orders.x * ",
    ),
    "order of functions": (
        lambda s: s["orders"].groupBy("city").agg(F.max("x").alias("a"), F.min("x").alias("b")),
        lambda s: s["orders"].groupBy("city").agg(F.min("x").alias("b"), F.max("x").alias("a")),
        "functions were max(orders.x), min(orders.x), and are min(orders.x), max(orders.x)",
    ),
    "condition of a function": (
        lambda s: s["orders"].groupBy("city").agg(F.expr("sum(x) FILTER (WHERE y > 1)")),
        lambda s: s["orders"].groupBy("city").agg(F.expr("sum(x) FILTER (WHERE y > 2)")),
        "functions were sum(orders.x) where ",
    ),
    "first without nulls": (
        lambda s: s["orders"].groupBy("city").agg(F.first("x")),
        lambda s: s["orders"].groupBy("city").agg(F.first("x", ignorenulls=True)),
        "functions were first(orders.x), and are first(orders.x, ignoreNulls=True)",
    ),
    "field of an array": (
        lambda s: s["orders"].groupBy("city").agg(F.collect_set("lines.a")),
        lambda s: s["orders"].groupBy("city").agg(F.collect_set("lines.b")),
        "functions were collectset(orders.lines[].a, ignoreNulls=True), and are collectset(orders.lines[].b",
    ),
    "error of an estimate": (
        lambda s: s["orders"].groupBy("city").agg(F.approx_count_distinct("x", 0.05)),
        lambda s: s["orders"].groupBy("city").agg(F.approx_count_distinct("x", 0.04)),
        "relativeSD=0.05), and are ",
    ),
    "constant in a condition": (
        lambda s: s["orders"].groupBy("city").agg(F.sum(F.when(F.col("customer") == "a", F.col("x")))),
        lambda s: s["orders"].groupBy("city").agg(F.sum(F.when(F.col("customer") == "b", F.col("x")))),
        "functions were sum(casewhen((orders.customer = 'a'), orders.x)), and are ",
    ),
    "number in a key": (
        lambda s: s["orders"].groupBy(F.col("x") % 2).count(),
        lambda s: s["orders"].groupBy(F.col("x") % 3).count(),
        "keys were (orders.x % ",
    ),
    "time zone of a key": (
        lambda s: in_zone(s, "UTC").groupBy(F.to_date("t")).count(),
        lambda s: in_zone(s, "Asia/Tokyo").groupBy(F.to_date("t")).count(),
        "keys were parsetodate(orders.t, zone=UTC), and are parsetodate(orders.t, zone=Asia/Tokyo)",
    ),
    "time zone of a cast": (
        lambda s: in_zone(s, "UTC").groupBy(F.col("t").cast("string")).count(),
        lambda s: in_zone(s, "Asia/Tokyo").groupBy(F.col("t").cast("string")).count(),
        "keys were cast(orders.t as string in UTC), and are cast(orders.t as string in Asia/Tokyo)",
    ),
    "key": (
        lambda s: s["orders"].groupBy("customer").count(),
        lambda s: s["orders"].groupBy("city").count(),
        "keys were orders.customer, and are orders.city",
    ),
    "key under the same name": (
        lambda s: s["orders"].withColumn("k", F.col("customer")).groupBy("k").count(),
        lambda s: s["orders"].withColumn("k", F.col("city")).groupBy("k").count(),
        "keys were orders.customer, and are orders.city",
    ),
    "key renamed over another": (
        lambda s: s["orders"].groupBy("city").count(),
        lambda s: s["orders"].drop("city").withColumnRenamed("customer", "city").groupBy("city").count(),
        "keys were orders.city, and are orders.customer",
    ),
    "order of keys": (
        lambda s: s["orders"].groupBy("customer", "city").count(),
        lambda s: s["orders"].groupBy("city", "customer").count(),
        "keys were orders.customer, orders.city, and are orders.city, orders.customer",
    ),
    "function in a key": (
        lambda s: s["orders"].groupBy(F.upper("city")).count(),
        lambda s: s["orders"].groupBy(F.lower("city")).count(),
        "keys were upper(orders.city), and are lower(orders.city)",
    ),
    "Python function in a key": (
        lambda s: s["orders"].groupBy(F.udf(upper)("city")).count(),
        lambda s: s["orders"].groupBy(F.udf(lower)("city")).count(),
        "keys were upper(orders.city), and are lower(orders.city)",
    ),
    "key of SQL": (
        lambda s: s["orders"].selectExpr("named_struct('a', customer, 'b', city) s").groupBy("s.a").count(),
        lambda s: s["orders"].selectExpr("named_struct('a', city, 'b', customer) s").groupBy("s.a").count(),
        "keys were orders.customer, and are orders.city",
    ),
    "source of a key": (
        lambda s: s["orders"].groupBy("city").count(),
        lambda s: s["returns"].groupBy("city").count(),
        "keys were orders.city, and are returns.city",
    ),
    "key in one branch": (
        lambda s: s["orders"].select("city").union(s["returns"].select("city")).groupBy("city").count(),
        lambda s: s["orders"].select("city").union(s["returns"].select("customer")).groupBy("city").count(),
        "keys were orders.city or returns.city, and are orders.city or returns.customer",
    ),
    "constant of one branch": (
        lambda s: s["orders"].selectExpr("'a' AS k").union(s["returns"].select("city")).groupBy("k").count(),
        lambda s: s["orders"].selectExpr("'a' AS k").union(s["returns"].select("customer")).groupBy("k").count(),
        "keys were a constant or returns.city, and are a constant or returns.customer",
    ),
    "number in a function": (
        lambda s: s["orders"].withColumn("one", F.lit(1)).groupBy("city").agg(F.sum("one")),
        lambda s: s["orders"].withColumn("one", F.lit(2)).groupBy("city").agg(F.sum("one")),
        "functions were sum(1), and are sum(2)",
    ),
    "key becomes a constant": (
        lambda s: s["orders"].groupBy("city").count(),
        lambda s: s["orders"].withColumn("city", F.lit("x")).groupBy("city").count(),
        "keys were orders.city, and are a constant",
    ),
    "parsed field": (
        parsed("k string", "l string", key="k"),
        parsed("k string", "l string", key="l"),
        "keys were parse_json(messages.value).k, and are parse_json(messages.value).l",
    ),
    "parsed column": (
        parsed("k string"),
        parsed("k string", column="note"),
        "keys were parse_json(messages.value).k, and are parse_json(messages.note).k",
    ),
    "distinct": (
        lambda s: s["orders"].select("city").distinct(),
        lambda s: s["orders"].select(F.col("customer").alias("city")).distinct(),
        "keys were orders.city, and are orders.customer",
    ),
    "dropDuplicates": (
        lambda s: s["orders"].dropDuplicates(["id"]),
        lambda s: s["orders"].dropDuplicates(["x"]),
        "keys were orders.id, and are orders.x",
    ),
    "dropDuplicatesWithinWatermark": (
        lambda s: orders(s).dropDuplicatesWithinWatermark(["id"]),
        lambda s: orders(s).dropDuplicatesWithinWatermark(["x"]),
        "keys were orders.id, and are orders.x",
    ),
    "delay": (
        lambda s: s["orders"].withWatermark("t", "1 hour").dropDuplicatesWithinWatermark(["id"]),
        lambda s: s["orders"].withWatermark("t", "2 hours").dropDuplicatesWithinWatermark(["id"]),
        "watermark were orders.t with a delay of 1 hours, and are orders.t with a delay of 2 hours",
    ),
    "watermark": (
        lambda s: s["orders"].withWatermark("t", "1 hour").groupBy("city").count(),
        lambda s: s["orders"].withWatermark("u", "1 hour").groupBy("city").count(),
        "watermark were orders.t with a delay of 1 hours, and are orders.u",
    ),
    "length of a window": (windowed("10 minutes"), windowed("20 minutes"), "keys were window(orders.t: 0 s, 600 s)"),
    "slide of a window": (windowed("10 minutes"), windowed("10 minutes", "5 minutes"), "keys were window(orders.t"),
    "start of a window": (
        windowed("10 minutes", "5 minutes"),
        windowed("10 minutes", "5 minutes", "1 minute"),
        "keys were window(orders.t",
    ),
    "column of a window": (windowed("10 minutes"), windowed("10 minutes", by="u"), "keys were window(orders.t"),
    "gap of a session": (
        windowed("10 minutes", session=True),
        windowed("20 minutes", session=True),
        "keys were session_window(orders.t: 10 minutes), orders.city, and are session_window(orders.t: 20 minutes)",
    ),
    "kind of a join": (joined(), joined("leftOuter"), "join were Inner, and are LeftOuter"),
    "keys of a join": (
        joined(),
        joined(on="a.x = b.x AND b.t BETWEEN a.t AND a.t + INTERVAL 1 HOUR"),
        "condition were ",
    ),
    "bounds of a join": (
        joined(),
        joined(on="a.id = b.id AND b.t BETWEEN a.t AND a.t + INTERVAL 2 HOUR"),
        "condition were ",
    ),
    "rows of a join": (
        lambda s: s["orders"].selectExpr("id", "x v").join(s["returns"].selectExpr("id", "y"), "id"),
        lambda s: s["orders"].selectExpr("id", "y v").join(s["returns"].selectExpr("id", "y"), "id"),
        "rows of the left were orders.id, orders.x, and are orders.id, orders.y",
    ),
    "limit": (lambda s: s["orders"].limit(3), lambda s: s["orders"].limit(4), "limit were 3, and are 4"),
    "function with state": (with_state(count), with_state(total), "function were count, and are total"),
    "its key": (with_state(count), with_state(count, key="customer"), "keys were orders.city, and are orders.customer"),
    "its state": (
        with_state(count, "a int, b int"),
        with_state(count, "b int, a int"),
        "state were a integer, b integer, and are b integer, a integer",
    ),
    "its time-out": (
        with_state(count),
        with_state(count, timeout="ProcessingTimeTimeout"),
        "time-out were NoTimeout, and are ProcessingTimeTimeout",
    ),
    "processor": (processed(Visits()), processed(Spent()), "processor were Visits, and are Spent"),
    "processor of rows": (
        processed(Visits(), rows=True),
        processed(Spent(), rows=True),
        "processor were Visits, and are Spent",
    ),
    "its key, too": (
        processed(Visits()),
        processed(Visits(), key="customer"),
        "keys were orders.city, and are orders.customer",
    ),
    "fields of its state": (
        processed(Keeping("a int, b int")),
        processed(Keeping("b int, a int")),
        "fields of state variable sum were a integer, b integer, and are b integer, a integer",
    ),
    "fields of its key": (
        processed(Keeping("a int", key="a int, s struct<b: int, c: int>")),
        processed(Keeping("a int", key="a int, s struct<c: int, b: int>"), rows=True),
        "fields of state variable map (key) were a integer, s.b integer, s.c integer, and are a",
    ),
    "its time": (
        processed(Visits()),
        processed(Visits(), time="processingTime"),
        "time mode were NoTime, and are ProcessingTime",
    ),
}


@pytest.mark.sampled(one_in=6)
@pytest.mark.parametrize("name", CHANGES)
def test_another_meaning_is_seen(name: str, sources: Sources) -> None:
    one, other, expected = CHANGES[name]
    assert any(expected in each for each in changed(one(sources), other(sources), sources))
    assert not changed(one(sources), one(sources), sources), "other ids alone"


SAME: dict[str, tuple[Made, Made]] = {
    "alias of a key": (
        lambda s: s["orders"].groupBy("city").count(),
        lambda s: s["orders"].groupBy(F.col("city").alias("town")).count(),
    ),
    "alias above": (
        lambda s: s["orders"].groupBy("city").count(),
        lambda s: s["orders"].withColumnRenamed("city", "town").groupBy("town").count(),
    ),
    "alias of a function": (
        lambda s: s["orders"].groupBy("city").agg(F.sum("x").alias("a")),
        lambda s: s["orders"].groupBy("city").agg(F.sum("x").alias("b")),
    ),
    "filter and an unused column": (
        lambda s: s["orders"].groupBy("city").count(),
        lambda s: s["orders"].where("x > 1").withColumn("z", F.col("x") + 1).groupBy("city").count(),
    ),
    "result": (
        lambda s: s["orders"].groupBy("city").agg(F.sum("x").alias("s")),
        lambda s: (
            s["orders"].groupBy("city").agg(F.sum("x").alias("s")).selectExpr("city", "s * 2 AS d").where("d > 1")
        ),
    ),
    "order of columns": (
        lambda s: s["orders"].groupBy("city").agg(F.sum("x")),
        lambda s: s["orders"].select("x", "city", "id").groupBy("city").agg(F.sum("x")),
    ),
    "one more source": (
        lambda s: s["orders"].select("city").groupBy("city").count(),
        lambda s: s["orders"].select("city").union(s["returns"].select("customer")).groupBy("city").count(),
    ),
    "struct": (
        lambda s: s["orders"].groupBy("city").count(),
        lambda s: s["orders"].select(F.struct("city", "x").alias("s")).groupBy("s.city").count(),
    ),
    "parsed with more fields": (parsed("k string"), parsed("a int", "k string")),
    "parsed, marked": (
        parsed("k string"),
        lambda s: parse_json(s["messages"], "k string", on_malformed="keep").groupBy("k").count(),
    ),
    "from_json with more fields": (
        lambda s: s["messages"].select(F.from_json("value", "k string").alias("d")).groupBy("d.k").count(),
        lambda s: s["messages"].select(F.from_json("value", "a int, k string").alias("d")).groupBy("d.k").count(),
    ),
    "watermark added": (
        lambda s: s["orders"].groupBy("city").count(),
        lambda s: orders(s).groupBy("city").count(),
    ),
    "what a join need not keep": (
        lambda s: s["orders"].selectExpr("id", "x", "city").join(s["returns"].selectExpr("id", "y"), "id").select("x"),
        lambda s: s["orders"].selectExpr("id", "x", "customer").join(s["returns"].selectExpr("id"), "id").select("x"),
    ),
    "fields of a state that Spark compares": (processed(Keeping("a int, b int")), processed(Keeping("a int, c int"))),
    "random numbers": (
        lambda s: s["orders"].withColumn("r", F.rand()).groupBy("city").agg(F.sum("r")),
        lambda s: s["orders"].withColumn("r", F.rand()).groupBy("city").agg(F.sum("r")),
    ),
    "a constant of each run": (
        lambda s: s["orders"].withColumn("day", F.lit("monday").cast("string")).groupBy("day", "city").count(),
        lambda s: s["orders"].withColumn("day", F.lit("tuesday").cast("string")).groupBy("day", "city").count(),
    ),
    "a constant of each run in a function": (
        lambda s: s["orders"].withColumn("day", F.lit("monday")).groupBy("city").agg(F.max("day")),
        lambda s: s["orders"].withColumn("day", F.lit("tuesday")).groupBy("city").agg(F.max("day")),
    ),
    "time zone of others": (
        lambda s: in_zone(s, "UTC").groupBy(F.col("x").cast("string")).count(),
        lambda s: in_zone(s, "Asia/Tokyo").groupBy(F.col("x").cast("string")).count(),
    ),
    "the day of a run": (
        lambda s: s["orders"].groupBy("city").agg(F.sum(F.when(F.to_date("t") == date(2024, 5, 1), F.col("x")))),
        lambda s: s["orders"].groupBy("city").agg(F.sum(F.when(F.to_date("t") == date(2024, 5, 2), F.col("x")))),
    ),
    "the time of a run": (
        lambda s: s["orders"].groupBy(F.col("t") > datetime(2024, 5, 1, 12, 30, 0, 5)).count(),
        lambda s: s["orders"].groupBy(F.col("t") > datetime(2024, 5, 2)).count(),
    ),
    "the day of a run in text": (
        lambda s: s["orders"].groupBy(F.concat("city", F.lit("scheduled__2024-05-01T00:00:00+00:00"))).count(),
        lambda s: s["orders"].groupBy(F.concat("city", F.lit("scheduled__2024-05-02T00:00:00+00:00"))).count(),
    ),
    "bytes": (
        lambda s: s["orders"].groupBy("city").agg(F.max(F.lit(bytearray(b"a")))),
        lambda s: s["orders"].groupBy("city").agg(F.max(F.lit(bytearray(b"a")))),
    ),
    "functions of arrays": (
        lambda s: s["orders"].groupBy(F.transform(F.array("x"), lambda x: x + 1)).count(),
        lambda s: s["orders"].groupBy(F.transform(F.array("x"), lambda x: x + 1)).count(),
    ),
    "copy of a processor": (processed(Visits()), processed(copy.copy(Visits()))),
}


@pytest.mark.sampled(one_in=6)
@pytest.mark.parametrize("name", SAME)
def test_the_same_meaning_is_known(name: str, sources: Sources) -> None:
    one, other = SAME[name]
    assert changed(one(sources), other(sources), sources) == []


def test_operators_come_in_the_order_of_the_plan(sources: Sources) -> None:
    frame = orders(sources).dropDuplicates(["id", "t"]).groupBy(F.window("t", "5 minutes")).agg(F.sum("x"))
    outer, inner = read(frame, sources).operators
    assert outer["functions"] == [["sum(orders.x)"]] and inner["keys"] == [["orders.id"], ["orders.t"]]
    assert read(sources["orders"].select("x"), sources).operators == ()


def test_a_plan_of_any_size_has_a_meaning(sources: Sources) -> None:
    frame = sources["orders"]
    for _ in range(30):
        frame = frame.withColumn("x", F.col("x") + F.col("x"))
    (found,) = read(frame.groupBy("city").agg(F.sum("x")), sources).operators
    assert len(found["functions"][0][0]) < 2_000
    for _ in range(12):
        frame = frame.union(sources["returns"])
    assert read(frame.groupBy("city").agg(F.sum("x")), sources).operators


def test_sql_with_named_tables(sources: Sources, spark: SparkSession, tmp_path: Path) -> None:
    sources["orders"].createOrReplaceTempView("of_orders")
    text = "WITH a AS (SELECT {0} AS k, x FROM of_orders) SELECT k, sum(x) FROM a GROUP BY k"
    found = changed(spark.sql(text.format("customer")), spark.sql(text.format("city")), sources)
    assert found == ["keys were orders.customer, and are orders.city"]


def test_what_a_run_gives_to_its_job_is_not_compared(sources: Sources) -> None:
    def rated(rate: float, hour: int) -> DataFrame:
        of_hour = F.when(F.hour("t") == hour, F.col("x") * F.lit(2)).otherwise(F.col("x") * F.lit(rate))
        return sources["orders"].groupBy("city").agg(F.sum(of_hour))

    def note(rate: float, hour: int, **more: Any) -> Memory:
        return read(rated(rate, hour), sources, {"rates": [{"rate": str(rate)}], "hour": hour, **more})

    notes = [note(0.25, 1), note(0.5, 2), note(0.75, 3), note(0.25, 1, unused="x")]  # in the second, 2 is also the hour
    for one in notes:
        for other in notes:
            assert not differences(one.operators[0], other.operators[0])
    assert notes[0].is_same(notes[2]) and notes[0].is_same(notes[3])
    given = read(rated(0.25, 1), sources).operators[0]  # nothing says where it comes from
    assert differences(given, read(rated(0.5, 1), sources).operators[0])
    assert not differences(given, note(0.5, 1).operators[0]), "a way out: let it be an argument"
    assert "\u2039" not in texts(given["functions"])


def test_a_long_expression_keeps_its_meaning_from_run_to_run(sources: Sources) -> None:
    def made(day: date, last: int) -> Memory:
        cases = F.when(F.to_date("t") == day, F.col("x"))
        for n in range(60):
            cases = cases.when(F.col("x") == n, F.col("y"))
        return read(sources["orders"].groupBy("city").agg(F.sum(cases.otherwise(F.lit(last)))), sources)

    one, other, third = made(date(2024, 5, 1), 0), made(date(2024, 5, 2), 0), made(date(2024, 5, 2), 1)
    assert one == other and differences(one.operators[0], third.operators[0])
