"""Malformed rows fail the job by name, or are kept apart; none becomes a row of nulls."""

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from airflow_ft.jobs.parsing import malformed_rows, parse_json, parsed_rows
from airflow_ft.protocol.errors import ConfigurationError, JobError
from airflow_ft.spark.driver.failures import as_error
from airflow_ft.spark.driver.same_values import with_same_values
from tests.raising import raises

pytestmark = pytest.mark.spark
SCHEMA = "id bigint, amount decimal(12,2), name string"

GOOD = [b'{"id": 1, "amount": 2.50, "name": "\xc3\xa9"}', b' {"id": 2} ', b"{}", b'{"id": 3, "more": [1]}']
BAD = [
    b'{"id": 1',
    b'{"id": "x"}',
    b'{"id": 1.5}',
    b'{"id": 99999999999999999999}',
    b'{"id": 1} rest',
    b'{"id": 1}{"id": 2}',
    b'{"id": 1},{"id": 2}',
    b'[{"id": 1}]',
    b'[{"id": 1},{"id": 2}]',
    b"null",
    b"7",
    b"",
    b"  ",
    b'{"name": "\xff"}',
    None,
]


def _kafka(spark: SparkSession, values: list[bytes | None]) -> DataFrame:
    rows = [("orders", 3, 100 + index, value) for index, value in enumerate(values)]
    return spark.createDataFrame(rows, "topic string, partition int, offset bigint, value binary")


def test_every_malformed_row_is_kept_apart_as_it_was(spark: SparkSession) -> None:
    batch = parse_json(_kafka(spark, [*GOOD, *BAD]), SCHEMA, keep=("offset",), on_malformed="keep")
    good = [tuple(row) for row in parsed_rows(batch).collect()]
    assert [(row[0], row[1], str(row[2]), row[3]) for row in good] == [
        (100, 1, "2.50", "é"),
        (101, 2, "None", None),
        (102, None, "None", None),
        (103, 3, "None", None),
    ]
    bad = malformed_rows(batch).collect()
    assert [None if row.raw is None else bytes(row.raw) for row in bad] == BAD
    assert [(row.topic, row.partition, row.offset) for row in bad] == [("orders", 3, 104 + n) for n in range(len(BAD))]
    assert bad[-1].reason == "no value" and bad[-2].reason == "not UTF-8"


@pytest.mark.sampled(one_in=4)
@pytest.mark.parametrize("value", BAD)
def test_by_default_a_malformed_row_fails_the_job_and_is_located(spark: SparkSession, value: bytes | None) -> None:
    frame = parse_json(_kafka(spark, [*GOOD, value]), SCHEMA)
    with raises(PySparkException) as caught:
        frame.groupBy().count().collect()  # uses none of the columns
    assert caught.value
    error = as_error(caught.value, "orders", "jobs.orders")
    assert isinstance(error, JobError) and error.code == "job_failed"
    assert "topic orders, partition 3, offset 104" in error.what and "malformed_rows" in error.what


def test_good_rows_pass(spark: SparkSession) -> None:
    frame = parse_json(_kafka(spark, [*GOOD]), SCHEMA, keep=["offset"])
    assert frame.columns == ["offset", "id", "amount", "name"]
    assert [row.offset for row in frame.collect()] == [100, 101, 102, 103]


def test_text_of_other_sources_is_located_by_its_beginning(spark: SparkSession) -> None:
    frame = spark.createDataFrame([("oops" + "x" * 200,)], "line string")
    with raises(PySparkException) as caught:
        parse_json(frame, SCHEMA, "line").collect()
    assert f"oops{'x' * 76};" in f"{caught.value}"


def test_two_columns_of_one_name_are_refused(spark: SparkSession) -> None:
    with raises(ConfigurationError, "column_repeated", columns=["offset"]):
        parse_json(_kafka(spark, []), "offset int", keep=["offset"])


def test_split_may_parse_the_rows_of_each_sink(spark: SparkSession) -> None:
    batch = _kafka(spark, [b'{"id": 1}', b'{"id": 2}'])
    frames = {
        "first": parse_json(batch.where("offset = 100"), "id bigint"),
        "second": parse_json(batch.where("offset = 101"), "id int"),
    }
    found = with_same_values(frames, "jobs.orders")
    assert [[row.id for row in frame.collect()] for frame in found.values()] == [[1], [2]]
    rows = parse_json(batch, "id bigint", on_malformed="keep")
    with_same_values({"good": parsed_rows(rows), "bad": malformed_rows(rows)}, "jobs.orders")


@pytest.mark.parametrize("changing", ["before", "behind"])
def test_split_may_not_parse_values_that_change(spark: SparkSession, changing: str) -> None:
    batch = _kafka(spark, [b'{"id": 1}'])
    shuffled = F.udf(lambda found: found, "bigint").asNondeterministic()
    if changing == "before":
        batch = batch.withColumn("value", F.expr("reflect('java.util.UUID', 'randomUUID')"))
    frame = parse_json(batch, "id bigint")
    if changing == "behind":
        frame = frame.withColumn("id", shuffled("id"))
    with raises(JobError, "split_unfit", sinks=["a", "b"]):
        with_same_values({"a": frame, "b": frame.where("id > 1")}, "jobs.orders")
