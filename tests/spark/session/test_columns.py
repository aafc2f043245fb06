"""What columns are made of, by real plans of Spark."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from airflow_ft.jobs.parsing import malformed_rows, parse_json
from airflow_ft.protocol.column_lineage import ColumnLineage, How, Input
from airflow_ft.sources import FileSource
from airflow_ft.spark.driver import columns as sink_columns
from airflow_ft.spark.driver import plan_columns
from airflow_ft.spark.driver.columns import SinkColumns
from airflow_ft.spark.driver.inputs import Sources
from airflow_ft.spark.driver.staging import materialised

pytestmark = pytest.mark.spark

SCHEMAS = {
    "orders": "id bigint, customer string, amount double, tax double, at timestamp",
    "customers": "id bigint, name string, at timestamp",
    "messages": "value binary, key binary, at timestamp",
}
Made = tuple[dict[str, set[str]], set[str]]


@pytest.fixture
def sources(spark: SparkSession, tmp_path: Path) -> Sources:
    specs = {}
    for name, schema in SCHEMAS.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "one.json").write_text("")
        specs[name] = FileSource(path=str(tmp_path / name), schema=schema).to_json()
    return Sources(spark, specs, {})


def readable(lineage: ColumnLineage) -> Made:
    def words(inputs: frozenset[Input]) -> set[str]:
        return {f"{each.how} {each.source}.{each.column}" for each in inputs}

    return {name: words(inputs) for name, inputs in lineage.columns.items()}, words(lineage.rows)


def made(frame: DataFrame, sources: Sources) -> Made:
    lineage = SinkColumns(frame, sources.source_of).lineage(frame, {"sink": frame})
    assert ColumnLineage.from_json(lineage["sink"]).to_json() == lineage["sink"]
    return readable(ColumnLineage.from_json(lineage["sink"]))


def pass_on(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    yield from frames


def projection(sources: Sources) -> DataFrame:
    return sources["orders"].select("id", F.col("customer").alias("who"), (F.col("amount") + F.col("tax")).alias("sum"))


def chain(sources: Sources) -> DataFrame:
    frame = sources["orders"].withColumn("sum", F.col("amount") + F.col("tax")).drop("amount", "tax", "at")
    frame = frame.filter("sum > 10").withColumnRenamed("sum", "total").alias("o")
    return frame.select("o.total", F.lit(1).alias("one"))


def conditions(sources: Sources) -> DataFrame:
    return sources["orders"].select(
        F.when(F.col("customer") == "x", F.col("amount")).otherwise(F.col("tax")).alias("a"),
        F.expr("if(id > 3, amount, 0.0)").alias("b"),
    )


def aggregate(sources: Sources) -> DataFrame:
    frame = sources["orders"].withWatermark("at", "1 minute").where("tax is not null")
    return frame.groupBy("customer").agg(
        F.sum("amount").alias("sum"), F.count(F.lit(1)).alias("n"), F.expr("max(id) filter (where tax > 1)").alias("m")
    )


def windows(sources: Sources) -> DataFrame:
    frame = sources["orders"].withWatermark("at", "1 minute")
    return frame.groupBy(F.window("at", "5 minutes")).agg(F.sum("amount").alias("sum")).select("window.start", "sum")


def join(sources: Sources) -> DataFrame:
    orders, customers = sources["orders"].alias("o"), sources["customers"].alias("c")
    return orders.join(customers, F.expr("o.customer = c.name")).select("o.id", F.upper("c.name").alias("name"))


def semi_join(sources: Sources) -> DataFrame:
    return sources["orders"].join(sources.static("customers"), "id", "left_semi").select("id")


def static_join(sources: Sources) -> DataFrame:
    known = sources.static("customers").select(F.col("id").alias("c"), F.concat("name", F.lit("!")).alias("loud"))
    return sources["orders"].join(known, F.col("id") == F.col("c"), "left").select("id", "loud")


def self_join(sources: Sources) -> DataFrame:
    static = sources.static("customers")
    one, two = static.alias("a"), static.alias("b")
    return one.join(two, F.expr("a.id = b.id")).select("a.name", F.col("b.at").alias("other"))


def from_json(sources: Sources) -> DataFrame:
    parsed = sources["messages"].select(
        F.from_json(F.col("value").cast("string"), "id bigint, lines array<struct<price:double>>").alias("v"), "key"
    )
    return parsed.select("v.id", F.explode("v.lines").alias("line"), "key").select("id", "line.price", "key")


def union(sources: Sources) -> DataFrame:
    orders = sources["orders"].select("id", F.col("customer").alias("name"))
    return orders.unionByName(sources["customers"].select(F.upper("name").alias("name"), "id"))


def distinct(sources: Sources) -> DataFrame:
    return sources["orders"].withWatermark("at", "1 minute").dropDuplicatesWithinWatermark(["id"]).select("amount")


def over_windows(sources: Sources) -> DataFrame:
    order = Window.partitionBy("name").orderBy("at")
    return sources.static("customers").select(F.row_number().over(order).alias("n"), F.lag("id").over(order).alias("l"))


def in_sql(sources: Sources) -> DataFrame:
    sources["orders"].createOrReplaceTempView("some_orders")
    return sources["orders"].sparkSession.sql(
        "with large as (select id, amount * 2 as twice from some_orders where amount > 9) select twice from large l"
    )


def python(sources: Sources) -> DataFrame:
    frame = sources["orders"].select("id", "amount").mapInPandas(pass_on, "id bigint, amount double")
    return frame.select("id", F.udf(lambda amount: amount, "double")("amount").alias("again"))


def python_groups(sources: Sources) -> DataFrame:
    def each(_: Any, frames: Iterator[pd.DataFrame], __: Any) -> Iterator[pd.DataFrame]:
        yield from frames

    grouped = sources["orders"].select("customer", "amount").groupBy("customer")
    return grouped.applyInPandasWithState(each, "a string, b double", "n bigint", "append", "NoTimeout")


def elsewhere(sources: Sources) -> DataFrame:
    numbers = sources["orders"].sparkSession.readStream.format("rate").load()
    return numbers.select("value")


T, A = "TRANSFORMATION", "AGGREGATION"
CASES: Mapping[Callable[[Sources], DataFrame], Made] = {
    projection: (
        {
            "id": {"IDENTITY orders.id"},
            "who": {"IDENTITY orders.customer"},
            "sum": {f"{T} orders.amount", f"{T} orders.tax"},
        },
        set(),
    ),
    chain: (
        {"total": {f"{T} orders.amount", f"{T} orders.tax"}, "one": set()},
        {"FILTER orders.amount", "FILTER orders.tax"},
    ),
    conditions: (
        {
            "a": {"CONDITIONAL orders.customer", f"{T} orders.amount", f"{T} orders.tax"},
            "b": {"CONDITIONAL orders.id", f"{T} orders.amount"},
        },
        set(),
    ),
    aggregate: (
        {
            "customer": {"IDENTITY orders.customer"},
            "sum": {f"{A} orders.amount"},
            "n": set(),
            "m": {f"{A} orders.id", "CONDITIONAL orders.tax"},
        },
        {"FILTER orders.tax", "GROUP_BY orders.customer"},
    ),
    windows: (
        {"start": {f"{T} orders.at", "CONDITIONAL orders.at"}, "sum": {f"{A} orders.amount"}},
        {"FILTER orders.at", "GROUP_BY orders.at", "CONDITIONAL orders.at"},
    ),
    join: (
        {"id": {"IDENTITY orders.id"}, "name": {f"{T} customers.name"}},
        {"JOIN orders.customer", "JOIN customers.name"},
    ),
    semi_join: ({"id": {"IDENTITY orders.id"}}, {"JOIN orders.id", "JOIN customers.id"}),
    static_join: (
        {"id": {"IDENTITY orders.id"}, "loud": {f"{T} customers.name"}},
        {"JOIN orders.id", "JOIN customers.id"},
    ),
    self_join: (
        {"name": {"IDENTITY customers.name"}, "other": {"IDENTITY customers.at"}},
        {"JOIN customers.id"},
    ),
    from_json: (
        {"id": {f"{T} messages.value"}, "price": {f"{T} messages.value"}, "key": {"IDENTITY messages.key"}},
        set(),
    ),
    union: (
        {
            "id": {"IDENTITY orders.id", "IDENTITY customers.id"},
            "name": {"IDENTITY orders.customer", f"{T} customers.name"},
        },
        set(),
    ),
    distinct: ({"amount": {"IDENTITY orders.amount"}}, {"FILTER orders.id"}),
    over_windows: (
        {
            "n": {"WINDOW customers.name", "WINDOW customers.at"},
            "l": {f"{T} customers.id", "WINDOW customers.name", "WINDOW customers.at"},
        },
        set(),
    ),
    in_sql: ({"twice": {f"{T} orders.amount"}}, {"FILTER orders.amount"}),
    python: (
        {
            "id": {f"{T} orders.id", f"{T} orders.amount"},
            "again": {f"{T} orders.id", f"{T} orders.amount"},
        },
        set(),
    ),
    python_groups: (
        {"a": {f"{T} orders.customer", f"{T} orders.amount"}, "b": {f"{T} orders.customer", f"{T} orders.amount"}},
        set(),
    ),
    elsewhere: ({"value": set()}, set()),
}


@pytest.mark.sampled(one_in=4)
@pytest.mark.parametrize("job", CASES, ids=lambda job: job.__name__)
def test_each_column_knows_what_it_is_made_of(job: Callable[[Sources], DataFrame], sources: Sources) -> None:
    assert made(job(sources), sources) == CASES[job]


def test_what_split_makes_comes_from_what_transform_has_read(sources: Sources, spark: SparkSession) -> None:
    def transform(frame: DataFrame) -> DataFrame:
        return frame.where("tax > 0").select("id", (F.col("amount") * 2).alias("twice"), "customer")

    known = sources.static("customers").select("name", F.col("id").alias("number"))
    of = SinkColumns(transform(sources["orders"]), sources.source_of)
    with materialised(transform(spark.createDataFrame([], SCHEMAS["orders"]))) as batch:
        other = spark.createDataFrame([(1,)], "x int").localCheckpoint()
        lineage = of.lineage(
            batch,
            {
                "all": batch,
                "large": batch.where("twice > 5").select(F.col("twice").alias("large"), "id"),
                "named": batch.join(known, F.col("customer") == F.col("name")).select("number", "twice"),
                "other": other,
            },
        )
    found = {sink: readable(ColumnLineage.from_json(each)) for sink, each in lineage.items()}
    twice = {f"{T} orders.amount"}
    assert found == {
        "all": (
            {"id": {"IDENTITY orders.id"}, "twice": twice, "customer": {"IDENTITY orders.customer"}},
            {"FILTER orders.tax"},
        ),
        "large": (
            {"large": twice, "id": {"IDENTITY orders.id"}},
            {"FILTER orders.tax", "FILTER orders.amount"},
        ),
        "named": (
            {"number": {"IDENTITY customers.id"}, "twice": twice},
            {"FILTER orders.tax", "JOIN orders.customer", "JOIN customers.name"},
        ),
        "other": ({"x": set()}, {"FILTER orders.tax"}),
    }


def test_the_plan_of_each_sink_is_read_only_once(
    sources: Sources, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[Any] = []
    lineage_of = plan_columns.lineage_of
    monkeypatch.setattr(sink_columns, "lineage_of", lambda *asked: read.append(1) or lineage_of(*asked))
    of = SinkColumns(projection(sources), sources.source_of)
    batch = spark.createDataFrame([], "id bigint, who string, sum double").localCheckpoint()
    first = of.lineage(batch, {"sink": batch.select("id")})
    assert len(read) == 2  # of `transform`, and of the sink
    later = batch.localCheckpoint()  # the next micro-batch
    assert of.lineage(later, {"sink": later.select("id")}) == first and len(read) == 2
    assert set(of.lineage(later, {"sink": later.select("id"), "rare": later.select("id")})) == {"sink", "rare"}
    assert len(read) == 3
    assert of.lineage(later, {"sink": later}) == first, "a sink for which nothing was returned is not told of"


def test_what_cannot_be_read_costs_the_lineage_alone(
    sources: Sources, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(_: Any) -> str:
        raise ZeroDivisionError("a mistake")

    frame = projection(sources)
    of = SinkColumns(frame, broken)
    assert of.lineage(frame, {"a": frame, "b": frame}) == of.lineage(frame, {"c": frame}) == {}
    assert [record.message for record in caplog.records if record.levelno >= logging.WARNING] == [
        "lineage has no columns: ZeroDivisionError: a mistake"
    ]


@pytest.mark.parametrize("bound", ["MOST_NODES", "MOST_COLUMNS", "MOST_INPUTS", "MOST_WORK"])
def test_what_is_too_large_is_left_out(
    bound: str, sources: Sources, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    frame = projection(sources)
    monkeypatch.setattr(plan_columns if bound == "MOST_WORK" else sink_columns, bound, 1)
    assert SinkColumns(frame, sources.source_of).lineage(frame, {"sink": frame}) == {}
    assert "lineage has no columns for sink sink" in caplog.text
    assert all(record.levelno < logging.WARNING for record in caplog.records)


def test_a_node_that_nobody_knows_makes_the_columns_unknown() -> None:
    plan = [{"class": "org.example.Strange", "num-children": 1}, {"class": "Range", "num-children": 0, "output": []}]
    with pytest.raises(plan_columns.UnknownPlanError):
        plan_columns.lineage_of(plan, lambda *_: frozenset())


def test_the_stronger_of_two_steps_decides_the_lineage() -> None:
    """An indirect use, such as a filter, wins over every direct use."""
    steps = {
        (How.IDENTITY, How.IDENTITY): How.IDENTITY,
        (How.AGGREGATION, How.TRANSFORMATION): How.AGGREGATION,
        (How.TRANSFORMATION, How.FILTER): How.FILTER,
        (How.CONDITIONAL, How.AGGREGATION): How.CONDITIONAL,
        (How.FILTER, How.JOIN): How.FILTER,
    }
    assert {pair: pair[0].then(pair[1]) for pair in steps} == steps


def test_what_it_costs_does_not_depend_on_the_columns(
    sources: Sources, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    client: Any = spark.sparkContext._gateway._gateway_client  # type: ignore[union-attr]
    send, sent = client.send_command, [0]

    def counted(*args: Any, **more: Any) -> Any:
        command = args[0] if args else more["command"]
        sent[0] += not command.startswith("m\n")  # Python's garbage collection tells the JVM what it holds no more
        return send(*args, **more)

    def calls(columns: int) -> int:
        wide = [F.col("amount").alias(f"c{index}") for index in range(columns)]
        frame = sources["orders"].where("tax > 1").select(*wide).where("c0 > 1")
        with monkeypatch.context() as patch:
            patch.setattr(client, "send_command", counted)
            sent[0] = 0
            made(frame, sources)
        return sent[0]

    assert calls(3) == calls(300) <= 60


def test_records_that_are_malformed_are_made_of_what_was_parsed(sources: Sources) -> None:
    columns, _ = made(malformed_rows(parse_json(sources["messages"], "id bigint", on_malformed="keep")), sources)
    assert columns["raw"] == columns["reason"] | {"TRANSFORMATION messages.value"}
    columns, rows = made(parse_json(sources["messages"], "id bigint"), sources)
    assert columns == {"id": {"TRANSFORMATION messages.value"}} and "FILTER messages.value" in rows
