"""What a DAG author writes for Paimon, columns that do not fit, and rows in manifests."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from airflow_ft import PaimonSink
from airflow_ft.protocol.errors import ConfigurationError
from airflow_ft.sinks.paimon.binary_row import EMPTY, decoded, encoded
from airflow_ft.sinks.paimon.buckets import Layout, hashes
from airflow_ft.sinks.paimon.columns import fields_of, name_of, of_table, schema_problems
from airflow_ft.sinks.paimon.features import unsupported
from airflow_ft.sinks.paimon.partitions import Partitions, refused
from tests.raising import raises

ROW = {"type": "ROW", "fields": [{"id": 1, "name": "x", "type": "DATE"}]}
KEY = {"id": 0, "name": "id", "type": "BIGINT NOT NULL"}
TABLE = "/warehouse/shop.db/orders"


@pytest.mark.parametrize(
    "table",
    [
        "warehouse/shop.db/orders", "s3://bucket/shop.db/orders", "/warehouse/orders", "/warehouse/.db/orders", "/",
        "/warehouse/shop.db/a b", "/warehouse/shop.db/a%20b", "file:///warehouse/shop.db/a%20b",
    ],
)  # fmt: skip
def test_a_folder_that_no_catalog_finds_is_refused(table: str) -> None:
    with raises(ConfigurationError, "path_invalid", argument="table", value=table):
        PaimonSink(table=table)


def test_a_plan_keeps_its_settings() -> None:
    sink = PaimonSink(table=TABLE, partition_by=["dt"], create=False, shared=True, name="orders")
    assert PaimonSink.from_settings("orders", sink.settings()) == sink
    assert PaimonSink(table=f"file://{TABLE}").path == sink.path
    assert PaimonSink(table=TABLE).participant == "paimon-warehouse-shop-db-orders"


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("BIGINT NOT NULL", "bigint"), ("DECIMAL(10, 2)", "decimal(10,2)"), ("VARCHAR(2147483647)", "string"),
        ("VARCHAR(10)", "varchar(10)"), ("TIMESTAMP(6)", "timestamp_ntz"), ("TIMESTAMP(3)", "timestamp(3)"),
        ("TIMESTAMP(6) WITH LOCAL TIME ZONE", "timestamp"), ("TIMESTAMP_LTZ(6)", "timestamp"), ("BYTES", "binary"),
        ({"type": "ARRAY NOT NULL", "element": "INT"}, "array<int>"),
        ({"type": "MAP", "key": "STRING NOT NULL", "value": ROW}, "map<string,struct<x:date>>"),
    ],
)  # fmt: skip
def test_types_of_a_table_in_the_words_of_spark(written: Any, name: str) -> None:
    assert name_of(written) == name


def test_columns_of_a_new_table_read_back_as_they_were() -> None:
    inner = pa.struct([("x", pa.int32()), ("y", pa.list_(pa.string()))])
    schema = pa.schema({"id": pa.int64(), "m": pa.map_(pa.string(), inner), "at": pa.timestamp("us", "UTC")})
    fields, highest = fields_of(schema, 3)
    assert [field["id"] for field in fields] == [3, 4, 7] and highest == 7
    columns = of_table({"fields": fields})
    assert [column.type for column in columns] == ["bigint", "map<string,struct<x:int,y:array<string>>>", "timestamp"]
    assert all(column.nullable and not column.oddity for column in columns)


def test_parts_that_must_not_be_null_and_defaults_are_odd() -> None:
    fields = [
        {"id": 0, "name": "a", "type": {"type": "ARRAY", "element": "INT NOT NULL"}},
        {"id": 1, "name": "b", "type": "INT NOT NULL"},
        {"id": 2, "name": "c", "type": "INT", "defaultValue": "7"},
    ]
    columns = of_table({"fields": fields})
    assert [bool(column.oddity) for column in columns] == [True, False, True]
    assert [column.must for column in columns] == [False, True, False]


def test_reserved_columns_and_unfit_partition_columns_are_found() -> None:
    schema = pa.schema({"id": pa.int64(), "_KEY_id": pa.int64(), "ratio": pa.float64()})
    sink = PaimonSink(table=TABLE, partition_by=["ratio", "day"])
    found = [(each.code, each.column) for each in schema_problems(sink, schema, None, Layout(), "rows")]
    assert found == [("name_invalid", "_KEY_id"), ("partition_unfit", "ratio"), ("job_column_missing", "day")]


@pytest.mark.parametrize(
    ("schema", "setting"),
    [
        ({"options": {"bucket": "-2"}}, "bucket"),
        ({"options": {"bucket": "0"}}, "bucket"),
        ({"fields": [], "options": {"bucket": "4"}}, "bucket-key"),
        ({"fields": [], "options": {"bucket": "4", "bucket-key": "at"}}, "bucket-key"),
        ({"fields": [KEY], "primaryKeys": ["id"], "partitionKeys": ["dt"], "options": {"bucket": "1"}}, "primary-key"),
        ({"fields": [KEY], "primaryKeys": ["id"], "partitionKeys": []}, "bucket"),
        ({"options": {"merge-engine": "partial-update"}}, "merge-engine"),
        ({"options": {"sequence.field": "at"}}, "sequence.field"),
        ({"options": {"deduplicate.ignore-delete": "true"}}, "deduplicate.ignore-delete"),
        ({"version": 4}, "version"),
        ({"options": {"deletion-vectors.enabled": "TRUE"}}, "deletion-vectors.enabled"),
        ({"options": {"metadata.iceberg.storage": "table-location"}}, "metadata.iceberg.storage"),
        ({"options": {"row-tracking.enabled": "true"}}, "row-tracking.enabled"),
        ({"options": {"file.format": "orc"}}, "file.format"),
        ({"options": {"changelog-producer": "input"}}, "changelog-producer"),
        ({"options": {"data-file.path-directory": "data"}}, "data-file.path-directory"),
        ({"options": {"branch": "dev"}}, "branch"),
        ({"options": {"fields.id.default-value": "7"}}, "fields.id.default-value"),
    ],
    ids=str,
)
def test_options_that_others_have_to_follow_are_named(schema: dict[str, Any], setting: str) -> None:
    assert [error.fields["setting"] for error in unsupported(schema)] == [setting]


def test_options_that_change_nothing_here_are_taken() -> None:
    options = {
        "bucket": "-1",
        "file.format": "PARQUET",
        "deletion-vectors.enabled": "false",
        "snapshot.num-retained.max": "9",
    }
    assert not list(unsupported({"version": 3, "options": options}))


@pytest.mark.parametrize(
    ("given", "code", "argument"),
    [
        ({"buckets": -1, "bucket_key": ["id"]}, "argument_invalid", "buckets"),
        ({"buckets": 4, "bucket_key": ["dt"], "partition_by": ["dt"]}, "argument_invalid", "bucket_key"),
        ({"buckets": 4, "bucket_key": ["id", "id"]}, "argument_invalid", "buckets"),
        ({"buckets": 4}, "arguments_conflict", "bucket_key"),
        ({"bucket_key": ["id"]}, "arguments_conflict", "bucket_key"),
        ({"primary_key": ["id", "id"]}, "argument_invalid", "primary_key"),
        ({"primary_key": ["id"], "partition_by": ["dt"]}, "arguments_conflict", "primary_key"),
        ({"primary_key": ["dt"], "partition_by": ["dt"]}, "arguments_conflict", "primary_key"),
        ({"primary_key": ["id"], "bucket_key": ["dt"], "buckets": 2}, "arguments_conflict", "primary_key"),
        ({"primary_key": ["id"], "change_column": "id"}, "arguments_conflict", "primary_key"),
        ({"change_column": "op"}, "arguments_conflict", "primary_key"),
    ],
    ids=str,
)
def test_buckets_and_keys_that_cannot_be(given: dict[str, Any], code: str, argument: str) -> None:
    with raises(ConfigurationError, code, argument=argument):
        PaimonSink(table=TABLE, **given)


def test_hashes_of_bucket_keys_are_those_of_paimon() -> None:
    """The numbers are those of pypaimon 2.1."""
    days = pa.array([19723, None, -719_162], pa.int32()).cast(pa.date32())
    texts = pa.array(["seven b", "eight by and more", None])
    found = hashes([pa.array([1, -1, None], pa.int64()), texts, pa.array([True, None, False]), days, None], 3)
    assert found.tolist() == [1066477259, -838728193, -820992619]


def test_rows_in_manifests_are_those_of_paimon() -> None:
    """The bytes are what pypaimon 2.1 writes for these values."""
    assert encoded(["a"], ["string"]) == bytes.fromhex("00000001" + "0000000000000000" + "61000000000000" + "81")
    assert encoded([None], ["string"]) == bytes.fromhex("00000001" + "0001000000000000" + "0000000000000000")
    assert bytes(12) == EMPTY


@pytest.mark.parametrize("text", ["", "seven b", "eight by", "ä" * 300, None])
def test_values_of_partitions_read_back(text: str | None) -> None:
    kinds = ["string", "int", "boolean", "date", "bigint", "smallint", "tinyint", "string"]
    values = [text, -5, True, -719_162, 2**62, None, -1, "behind the first"]
    assert decoded(encoded(values, kinds), kinds) == values


def test_folders_of_partitions_are_those_of_paimon() -> None:
    kinds = ["string", "int", "boolean", "date"]
    these = Partitions("abcd", kinds)
    assert these.folder(["x/y: z", -5, True, 19723]) == "a=x%2Fy%3A z/b=-5/c=true/d=19723/"
    assert these.folder([" ", None, False, None]).count("__DEFAULT_PARTITION__") == 3
    others = Partitions.of("abcd", kinds, {"partition.legacy-name": "false", "partition.default-name": "none"})
    assert others.folder([None, 1, None, 19723]) == "a=none/b=1/c=none/d=2024-01-01/"


def test_texts_that_name_no_folder() -> None:
    values = pa.array(["x", "", None, "x" * 300, "\xa0", "é" * 127])
    rows = pa.RecordBatch.from_arrays([values, values.is_null()], names=["a", "b"])
    assert sorted(refused(rows, ["a", "b", "missing"])) == [3, 4, 5]
