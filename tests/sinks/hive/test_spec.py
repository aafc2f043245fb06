"""What a DAG author writes for Hive, columns that do not fit, and the chain of documents."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from io import BytesIO
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pyarrow.orc as orc
import pytest

from airflow_ft import HiveSink
from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.errors import ConfigurationError, SinkAccessError, SinkUnavailableError, StoreBehindSinkError
from airflow_ft.sinks.hive.columns import arrow_of, fields_of, schema_problems, type_of
from airflow_ft.sinks.hive.formats import batches, refused
from airflow_ft.sinks.hive.memory import is_memory, newest, packed, unpacked, value_of_memory, value_of_rows
from airflow_ft.sinks.hive.metastore import Connected
from airflow_ft.sinks.hive.requirements import CHECKS
from airflow_ft.sinks.hive.rows import Rows
from airflow_ft.sinks.hive.table import Version, path_of
from airflow_ft.sinks.hive.thrift import API
from airflow_ft.wal import open_wal
from airflow_ft.wal.writer import SegmentFolder, write_segment
from tests.disks import synced
from tests.raising import raises
from tests.sinks.hive.world import read_file, storage

TABLE = "metastore.shop.orders"
MICROS = pa.timestamp("us", "UTC")


@pytest.mark.parametrize(
    "given",
    [
        {"table": "shop.orders"},
        {"table": "metastore.shop.a b"},
        {"partition_by": ["airflow_ft"]},
        {"partition_by": ["day(at)"]},
        {"strategy": "upsert"},
        {"format": "avro"},
        {"aws_conn_id": "a key@b"},
    ],
    ids=str,
)
def test_what_cannot_work_is_refused_at_once(given: dict[str, Any]) -> None:
    with raises(ConfigurationError, "argument_invalid", argument=next(iter(given))):
        HiveSink(**{"table": TABLE, **given})


def test_a_plan_keeps_its_settings() -> None:
    sink = HiveSink(
        table="metastore.Shop.Orders",
        partition_by=["dt"],
        format="orc",
        create=False,
        shared=True,
        aws_conn_id="lake",
        name="orders",
    )
    assert HiveSink.from_settings("orders", sink.settings()) == sink
    assert (sink.metastore, sink.identifier) == ("metastore", ("shop", "orders"))
    assert HiveSink(table=TABLE).participant == "hive-metastore-shop-orders"


def test_types_of_hive() -> None:
    assert type_of(pa.timestamp("us", "UTC")) == "timestamp"
    assert type_of(pa.timestamp("us")) == type_of(pa.list_(pa.timestamp("us"))) == type_of(pa.uint8()) == ""
    assert type_of(pa.struct({"timestamp_ntz": pa.int32()})) == "struct<timestamp_ntz:int>"


def test_columns_of_a_new_table_and_what_speaks_against_them() -> None:
    schema = pa.schema({"Id": pa.int64(), "dt": pa.date32(), "ratio": pa.float64()})
    plain, keys = fields_of(schema, ["DT"])
    assert [(each.name, each.type) for each in plain] == [("id", "bigint"), ("ratio", "double")]
    assert [(each.name, each.type) for each in keys] == [("dt", "date"), ("airflow_ft", "string")]

    def codes(*by: str) -> list[str]:
        return [each.code for each in schema_problems(HiveSink(table=TABLE, partition_by=by), schema, None, "rows")]

    assert codes("dt") == []
    assert codes("ratio") == ["partition_unfit"]
    assert codes("nothing") == ["job_column_missing"]


@pytest.mark.parametrize("name", ["unit-price", "a:b", "a,b", "a<b", "@id", ""])
def test_names_that_no_reader_parses_are_refused(name: str) -> None:
    within = pa.struct({"a": pa.map_(pa.string(), pa.list_(pa.struct({name: pa.int32()})))})
    found = schema_problems(HiveSink(table=TABLE), pa.schema({"10L": pa.int64(), "s": within}), None, "rows")
    assert [(each.code, each.column) for each in found] == [("name_invalid", "s")]


@pytest.mark.parametrize("name", ["größe", "1st", "y.z", "a$b"])
def test_names_in_structs_that_readers_parse_are_accepted(name: str) -> None:
    within = pa.struct({name: pa.int32()})
    assert not list(schema_problems(HiveSink(table=TABLE), pa.schema({"s": within}), None, "rows"))
    assert arrow_of(type_of(within)) == within


def test_orc_columns_that_readers_take_by_order_are_refused() -> None:
    def codes(format: str, *names: str) -> list[str]:
        schema = pa.schema([pa.field(name, pa.int64()) for name in names])
        return [each.code for each in schema_problems(HiveSink(table=TABLE, format=format), schema, None, "rows")]

    assert codes("orc", "_col0", "_COL1") == ["name_invalid"]
    assert codes("orc", "_col0", "id") == codes("parquet", "_col0", "_col1") == []


@pytest.mark.parametrize("format", ["parquet", "orc"])
@pytest.mark.parametrize("key", ["", "country"])
def test_files_have_the_columns_in_the_tables_order(tmp_path: Path, format: str, key: str) -> None:
    """Trino reads ORC by the order of columns, and Impala does so with Parquet."""
    kinds = {"first": "string", "middle": "array<struct<a:int,b:map<string,decimal(4,2)>>>", "last": "bigint"}
    names = [name for name in (key, "airflow_ft") if name]
    keys = [API.FieldSchema(name=name, type="string") for name in names]
    there = API.Table(sd=storage({**kinds, "more": "char(3)"}, format, location=f"file:{tmp_path}"), partitionKeys=keys)
    given = pa.table({"last": [1], **({key: ["DE"]} if key else {}), "first": ["Ada"]})
    segment = write_segment(SegmentFolder(str(tmp_path / "wal"), "shop", 1, 1, 1), 1, {"rows": given})
    place = Connected(ConnectionInfo("metastore", "hive_metastore", host="h"), ("shop", "orders"))
    rows = Rows(Version(place, there), "rows", 128 << 20, "p/n", (1, 1))
    assert rows.write(mock.Mock(number=1), [open_wal().open(segment)], None) == 1
    [file] = tmp_path.glob(f"_airflow_ft/**/*.{format}")
    read = read_file(str(file))
    assert read.column_names == ["first", "middle", "last"]
    assert read.to_pylist() == [{"first": "Ada", "middle": None, "last": 1}]


def test_folders_above_the_table_are_synced_with_its_rows(tmp_path: Path) -> None:
    """The metastore may have made them, and it syncs nothing."""
    folder = tmp_path / "shop.db" / "orders"
    folder.mkdir(parents=True)
    keys = [API.FieldSchema(name="airflow_ft", type="string")]
    there = API.Table(sd=storage({"id": "bigint"}, location=f"file:{folder}"), partitionKeys=keys)
    segment = write_segment(SegmentFolder(str(tmp_path / "wal"), "shop", 1, 1, 1), 1, {"rows": pa.table({"id": [1]})})
    place = Connected(ConnectionInfo("metastore", "hive_metastore", host="h"), ("shop", "orders"))
    rows = Rows(Version(place, there), "rows", 128 << 20, "p/n", (1, 1))
    with synced() as seen:
        assert rows.write(mock.Mock(number=1), [open_wal().open(segment)], None) == 1
    assert {each.stat().st_ino for each in (folder, folder.parent, tmp_path)} <= seen


def test_a_lacking_column_of_an_unknown_type_is_refused() -> None:
    def columns(*names: str) -> list[str]:
        kinds = {"a": "int", "b": "array<uniontype<int,string>>"}
        keys = [API.FieldSchema(name="airflow_ft", type="string")]
        there = API.Table(sd=storage({name: kinds[name] for name in names}), partitionKeys=keys)
        found = schema_problems(HiveSink(table=TABLE), pa.schema({"a": pa.int32()}), there, "rows")
        return [each.code for each in found]

    assert columns("a", "b") == []
    assert columns("b", "a") == ["table_unsupported"]


@pytest.mark.parametrize(
    ("kind", "values", "wrong"),
    [
        (pa.date32(), [-141_428, -141_427, None, 0], [0]),
        (MICROS, [-2_208_988_800_000_001, -2_208_988_800_000_000, None, -1, 0, 1], [0, 3]),
        (MICROS, [(2**63 - 1) // 1000, (2**63 - 1) // 1000 + 1, -1_000_000, -999_999], [1, 3]),
    ],
)
def test_rows_that_orc_does_not_hold_are_found_at_any_depth(
    kind: pa.DataType, values: list[int | None], wrong: list[int]
) -> None:
    plain = pa.array(values, pa.int32() if kind == pa.date32() else pa.int64()).cast(kind)
    ones, ends = pa.array(range(len(plain)), pa.int64()), pa.array(range(len(plain) + 1), pa.int32())
    for column in (
        plain,
        pa.ListArray.from_arrays(ends, plain),
        pa.StructArray.from_arrays([ones, plain], ["a", "b"]),
        pa.MapArray.from_arrays(ends, ones, pa.ListArray.from_arrays(ends, plain)),
    ):
        rows = pa.record_batch({"id": ones, "v": column})
        assert sorted(refused("orc", rows, [])) == wrong
        assert sorted(refused("orc", rows.slice(1), [])) == [row - 1 for row in wrong if row]
        assert not refused("orc", rows, ["v"]) and not refused("parquet", rows, [])


def test_rows_of_orc_are_read_by_names_in_any_case() -> None:
    file, at = BytesIO(), pa.array([1, None], pa.int64()).cast(MICROS)
    orc.write_table(
        pa.table({"Id": [1, 2], "ids": [3, 4], "at": at, "times": pa.array([[None], []], pa.list_(MICROS))}), file
    )
    [rows] = batches("orc", BytesIO(file.getvalue()), ["id", "at", "times"])
    assert {field.name: field.type for field in rows.schema} == {
        "id": pa.int64(), "at": MICROS, "times": pa.list_(MICROS)
    }  # fmt: skip
    assert rows.column(1).equals(at)
    [none] = batches("orc", BytesIO(file.getvalue()), ["other"])
    assert (none.num_columns, none.num_rows) == (0, 2)


@pytest.mark.parametrize("last", [0, 1, 2, 3, 7, 8, 9, 63, 64, 65, 1_000, 5_001, 123_456])
@pytest.mark.parametrize("behind", [None, 0, 1, 7, 8, 9, 500])
def test_the_newest_document_is_found(last: int, behind: int | None) -> None:
    asked = 0

    def look(numbers: Collection[int]) -> Mapping[int, int]:
        nonlocal asked
        asked += 1
        assert len(numbers) <= 200
        return {number: number for number in numbers if 1 <= number <= last}

    seen = max(0, last - behind) if behind is not None else 0
    assert newest(look, seen) == (last, last or None)
    assert asked <= 6


def test_a_document_is_parameters_of_letters() -> None:
    text = '{"head": "ü' + "".join(map(chr, range(32, 5_000))) + '"}'
    parameters = packed(text)
    assert len(parameters) > 1 and all(each.isascii() and len(each) < 4_000 for each in parameters.values())
    assert unpacked({**parameters, "transient_lastDdlTime": "1"}, "here") == text
    assert unpacked({"transient_lastDdlTime": "1"}, "here") is None
    first = next(iter(parameters))
    with raises(StoreBehindSinkError, "ledger_damaged"):
        unpacked({**parameters, first: parameters[first][:-8]}, "here")


def test_partitions_without_rows_are_known_by_their_value() -> None:
    assert is_memory(value_of_memory("p/orders", 7)) and not is_memory(value_of_rows("p/orders", 7))
    assert not is_memory(value_of_rows("memory-1/memory-1", 7))


def test_locations_are_taken_literally() -> None:
    assert path_of("file:/data/a%20b") == path_of("file:///data/a%20b") == "/data/a%20b"
    assert path_of("hdfs://nn:8020/a") == "hdfs://nn:8020/a"
    assert path_of("s3a://bucket/a/b") == "s3://bucket/a/b"
    assert path_of("s3a://bucket/a/b", "lake") == "s3://lake@bucket/a/b"


PLACE = Connected(ConnectionInfo("metastore", "hive_metastore", host="h"), ("shop", "orders"))


@pytest.mark.parametrize(
    "words",
    [
        "file:/data/a is not a directory or unable to create one",
        "Unable to create database path file:/data/a, failed to create database shop",
        "Failed to create external path file:/data/a for database shop. This may result in access not being allowed",
        "Got exception: org.apache.hadoop.fs.ParentNotDirectoryException Parent path is not a directory: file:/data/a",
        "Got exception: org.apache.hadoop.fs.FileAlreadyExistsException Destination exists and is not a directory:"
        " /data/a",
        "Got exception: org.apache.hadoop.fs.ParentNotDirectoryException /data/a (is not a directory)",
    ],
)
@pytest.mark.parametrize("path", ["/data/a", "/data/my lake", f"/data/{'a' * 300}"])
def test_a_folder_that_the_metastore_cannot_create_is_no_outage(words: str, path: str) -> None:
    with raises(SinkAccessError, "folder_unusable", path=path), PLACE.translated_errors():
        raise API.MetaException(message=words.replace("/data/a", path))


def test_another_failure_of_the_metastore_is_an_outage() -> None:
    with raises(SinkUnavailableError, "sink_unavailable"), PLACE.translated_errors():
        raise API.MetaException(message="Got exception: java.net.ConnectException Call to nn:8020 failed")


def test_files_that_may_not_be_written_are_told() -> None:
    with raises(SinkAccessError, "folder_unusable", path="/data/a"), PLACE.translated_errors():
        raise PermissionError(13, "Permission denied", "/data/a")


def test_a_folder_for_several_users_is_given_to_a_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a chown the metastore, and so other clients, could create no table there."""
    monkeypatch.setattr("os.access", lambda *of: False)
    version = mock.Mock(root=str(tmp_path))
    with raises(SinkAccessError, "folder_unusable", path=str(tmp_path)) as caught:
        CHECKS.room(HiveSink(table=TABLE), PLACE, version)
    assert caught.error and "chmod g+rwx" in caught.error.remedy and "chown" not in caught.error.remedy


def test_the_folder_that_cannot_be_entered_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.access", lambda path, _: str(path) in ("/", "/data"))
    file = "/data/warehouse/shop.db/orders"
    with raises(SinkAccessError, "folder_unusable", path=file) as refused, PLACE.translated_errors():
        raise PermissionError(13, "Permission denied", file)
    assert refused.error is not None and refused.error.remedy.endswith(" /data/warehouse.")
