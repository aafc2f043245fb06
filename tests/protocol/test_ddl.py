"""Schemas in DDL that are refused without Spark. tests/spark/session/test_ddl.py compares with Spark."""

from __future__ import annotations

import pytest

from airflow_ft import FileSource
from airflow_ft.protocol.ddl import check_ddl
from airflow_ft.protocol.errors import ConfigurationError
from airflow_ft.protocol.inline_job import InlineJob, Part
from tests.raising import raises

WRONG = {
    "id bigin": ("id", "bigin", "bigint"),
    "id bigint, amount decimals(12,2)": ("amount", "decimals", "decimal"),
    "id bigint, name text": ("name", "text", "string"),
    "a struct<b: array<strng>>": ("b", "strng", "string"),
    "m map<string, bool>": ("m", "bool", "boolean"),
    "at: datetime": ("at", "datetime", "timestamp"),
    "`the id` big int": ("the id", "big", ""),
    "id": ("id", "", ""),
    "id bigint,": ("", "", ""),
    "amount decimal(12,2": ("", "", ""),
    "a array<int": ("", "", ""),
    "a array<int)>": ("", "", ""),
}
"""By schema: the column, its type, and the type that the fix names."""
RIGHT = (
    "id bigint, at date",
    "ID BIGINT NOT NULL, Amount Decimal(12, 2)",
    "a: int, b: string",
    "a struct<b: array<tinyint>, c: map<string, decimal(3,1)>>, d int",
    "id bigint COMMENT 'the (id, of <a> row', `a, b` string",
    'n string comment "it\'s"',
    "x interval day to second, y timestamp_ntz, z varchar(3), v void",
    "a array<struct<b: int, c: string>>",
    "`ключ` string",
)


@pytest.mark.parametrize("schema", WRONG)
def test_a_schema_that_spark_cannot_read_is_refused(schema: str) -> None:
    column, kind, meant = WRONG[schema]
    with raises(ConfigurationError, "schema_invalid", argument="schema", column=column, type=kind) as caught:
        FileSource(path="/in", schema=schema)
    assert caught.error is not None and meant in caught.error.remedy


@pytest.mark.parametrize("schema", [*RIGHT, "struct<id: bigin>", "id bigin -- a comment", "{{ params.schema }}"])
def test_what_is_not_understood_is_left_to_spark(schema: str) -> None:
    FileSource(path="/in", schema=schema)


def test_an_empty_struct_has_no_columns() -> None:
    check_ddl("a struct<>", "FileSource")


@pytest.mark.parametrize(
    "call",
    ['parse_json(rows, "id bigin")', 'ft.parse_json(rows, schema="id bigin")', "parse_json(rows, ROWS)"],
)
def test_a_schema_in_the_source_of_a_job_is_examined(call: str) -> None:
    parts = (Part(1, 'ROWS = "id bigin"'), Part(3, f"def transform(spark, sources):\n    return {call}"))
    with raises(ConfigurationError, "schema_invalid", column="id", type="bigin"):
        InlineJob("transform", "/dags/orders.py", parts).check_schemas()


@pytest.mark.parametrize("call", ["parse_json(rows)", "parse_json(rows, WHERE)", 'F.parse_json("id bigin")'])
def test_other_calls_of_a_job_are_not_examined(call: str) -> None:
    parts = (Part(1, f"def transform(spark, sources):\n    return {call}"),)
    InlineJob("transform", "/dags/orders.py", parts).check_schemas()


def test_a_function_of_the_author_takes_any_text() -> None:
    text = 'def transform(spark, sources):\n    return parse_json(rows, "id bigin")'
    parts = (Part(1, "def parse_json(rows, text): ..."), Part(3, text))
    InlineJob("transform", "/dags/orders.py", parts).check_schemas()
