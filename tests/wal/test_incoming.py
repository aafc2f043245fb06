"""Rows of other programs become files of the log: their types, their order, and how many lie in a file."""

from __future__ import annotations

import errno
from contextlib import nullcontext
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import NoReturn, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_ft.protocol.errors import AirflowFtError, ExternalRowsError, StorageUnavailableError
from airflow_ft.protocol.model import Segment
from airflow_ft.wal import incoming, open_wal, reader
from airflow_ft.wal.incoming import ParquetRows, Rows, TableRows, write_rows
from airflow_ft.wal.incoming_files import sink_folders
from airflow_ft.wal.local import LocalFileSystem
from airflow_ft.wal.writer import SegmentFolder
from tests.raising import raises


def sealed(folder: Path, rows: Rows) -> Segment:
    segment = SegmentFolder(str(folder / "wal"), "orders", 1, 1, 0)
    write_rows(segment, {"s": rows})
    return segment.seal(1, {"s": True}, {})


def read(segment: Segment) -> pa.Table:
    reader = open_wal().open(segment)
    schema = reader.schema("s")
    return pa.Table.from_batches((b for file in reader.files("s") for b in reader.batches("s", file)), schema)


def _of_polars() -> pa.Array:
    """Its Categorical and Enum: a dictionary of views, which Arrow does not cast to text."""
    views = pa.array(["a"]).cast(pa.string_view())
    return pa.DictionaryArray.from_arrays(pa.array([0, None], pa.uint32()), views)


@pytest.mark.parametrize(
    ("values", "kept"),
    [
        (pa.array([2**64 - 1], pa.uint64()), pa.array([Decimal(2**64 - 1)], pa.decimal128(20))),
        (pa.array([2**32 - 1], pa.uint32()), pa.array([2**32 - 1], pa.int64())),
        (pa.array(["a"], pa.large_string()), pa.array(["a"])),
        (pa.array(["a"]).dictionary_encode(), pa.array(["a"])),
        (_of_polars(), pa.array(["a", None])),
        (pa.ListArray.from_arrays([0, 1, 2], _of_polars()), pa.array([["a"], [None]])),
        (pa.StructArray.from_arrays([_of_polars()], ["n"]), pa.array([{"n": "a"}, {"n": None}])),
        (pa.array([b"ab"], pa.binary(2)), pa.array([b"ab"])),
        (pa.array([86_400_000], pa.date64()), pa.array([1], pa.date32())),
        (pa.array([1.5], pa.float16()), pa.array([1.5], pa.float32())),
        (pa.array([1_000], pa.timestamp("ns", "Europe/Berlin")), pa.array([1], pa.timestamp("us", "UTC"))),
        (pa.array([1], pa.timestamp("s")), pa.array([1_000_000], pa.timestamp("us"))),
        (pa.array([["a"]], pa.large_list(pa.large_string())), pa.array([["a"]], pa.list_(pa.string()))),
        (pa.array([{"x": 1}], pa.struct([("x", pa.uint8())])), pa.array([{"x": 1}], pa.struct([("x", pa.int16())]))),
        (pa.array([[("a", 1)]], pa.map_("large_string", "uint8")), pa.array([[("a", 1)]], pa.map_("string", "int16"))),
    ],
    ids=lambda values: str(values.type),
)
def test_each_type_keeps_its_values(tmp_path: Path, values: pa.Array, kept: pa.Array) -> None:
    found = read(sealed(tmp_path, TableRows(pa.table({"c": values}))))
    assert found.column("c").to_pylist() == kept.to_pylist()
    assert str(found.schema.field("c").type).replace("element", "item") == str(kept.type)


def test_int96_is_an_instant(tmp_path: Path) -> None:
    instants = pa.table({"at": pa.array([1_764_000_000_123_456], pa.timestamp("us", "UTC"))})
    pq.write_table(instants, tmp_path / "a.parquet", use_deprecated_int96_timestamps=True)
    assert read(sealed(tmp_path, ParquetRows(str(tmp_path / "a.parquet")))) == instants
    nested = pa.table({"s": pa.array([{"at": 1}], pa.struct([("at", pa.timestamp("us"))]))})
    pq.write_table(nested, tmp_path / "b.parquet", use_deprecated_int96_timestamps=True)
    with raises(ExternalRowsError, "type_unsupported", column="s"):
        ParquetRows(str(tmp_path / "b.parquet"))


def test_rows_keep_their_order_over_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(incoming, "ROWS_A_FILE", 3)
    monkeypatch.setattr(incoming, "ROW_GROUP_BYTES", 16)
    (tmp_path / "in").mkdir()
    for part in (10, 9):  # by number, and not by name
        rows = pa.table({"id": pa.array(range(3 * part, 3 * part + 3), pa.int64())})
        pq.write_table(rows, tmp_path / "in" / f"part-{part}.parquet")
    pq.write_table(rows.slice(0, 0), tmp_path / "in" / "part-11.parquet")
    segment = sealed(tmp_path, ParquetRows(str(tmp_path / "in")))
    assert read(segment).column("id").to_pylist() == list(range(27, 33))
    assert len(open_wal().open(segment).files("s")) == 2


def test_columns_in_another_order_are_the_same_ones(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    pq.write_table(pa.table({"a": [1], "b": ["x"]}), tmp_path / "in" / "1.parquet")
    pq.write_table(pa.table({"b": ["y"], "a": [2]}), tmp_path / "in" / "2.parquet")
    assert read(sealed(tmp_path, ParquetRows(str(tmp_path / "in")))).to_pydict() == {"a": [1, 2], "b": ["x", "y"]}


def test_batches_of_a_table_fit_into_a_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(incoming, "BYTES_A_BATCH", 1_000)
    rows = pa.table({"t": ["x" * 96] * 50})
    assert {batch.num_rows for batch in TableRows(rows).batches()} == {10}
    monkeypatch.setattr(incoming, "ROWS_A_BATCH", 5)
    assert {batch.num_rows for batch in TableRows(rows).batches()} == {5}


@pytest.mark.parametrize("in_file", [False, True])
def test_a_batch_that_arrow_cannot_cast_is_halved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_file: bool
) -> None:
    """Arrow casts at most 2 GB of text at once."""
    whole = incoming.cast

    def overflows(batch: pa.RecordBatch, schema: pa.Schema, file: str) -> pa.RecordBatch:
        if batch.num_rows > 2:
            raise ExternalRowsError("input array too large.", code="value_not_exact", remedy="None.")
        return whole(batch, schema, file)

    monkeypatch.setattr(incoming, "cast", overflows)
    table = pa.table({"t": pa.array(list("abcde"), pa.large_string())})
    pq.write_table(table, tmp_path / "a.parquet")
    rows = ParquetRows(str(tmp_path / "a.parquet")) if in_file else TableRows(table)
    assert [batch.column("t").to_pylist() for batch in rows.batches()] == [["a", "b"], ["c"], ["d", "e"]]


class Counted:
    """A batch that counts how often its size is asked for."""

    asked = 0

    @property
    def nbytes(self) -> int:
        Counted.asked += 1
        return 1


def test_the_size_of_each_batch_is_added_once() -> None:
    class Many:
        def batches(self) -> list[Counted]:
            return [Counted() for _ in range(200)]

    assert [len(group) for group in incoming._groups(cast(Rows, Many()))] == [200]
    assert Counted.asked == 200


def test_a_batch_of_lists_holds_its_own_values_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise each batch validates the values of all."""
    monkeypatch.setattr(incoming, "ROWS_A_BATCH", 5)
    rows = TableRows(pa.table({"l": pa.array([["x"]] * 10)}))
    assert [len(batch.column("l").values) for batch in rows.batches()] == [5, 5]


@pytest.mark.parametrize(
    ("mark", "is_int96"),
    [
        ({"org.apache.spark.legacyDateTime": "", "org.apache.spark.version": "3.5.1"}, False),
        ({"org.apache.spark.version": "2.4.8"}, False),
        ({"org.apache.spark.legacyINT96": "", "org.apache.spark.version": "3.5.1"}, True),
        ({"org.apache.spark.version": "3.0.3"}, True),
    ],
)
def test_old_times_of_sparks_former_calendar_are_refused(tmp_path: Path, mark: dict[str, str], is_int96: bool) -> None:
    def rows(day: date, *marks: dict[str, str]) -> Rows:
        time = datetime(day.year, day.month, day.day, tzinfo=UTC)
        values = pa.array([time], pa.timestamp("us", "UTC")) if is_int96 else pa.array([[{"at": time}]])
        table = pa.table({"v": values})
        for each in marks:
            table = table.replace_schema_metadata(each)
        pq.write_table(table, tmp_path / "a.parquet", use_deprecated_int96_timestamps=is_int96)
        return ParquetRows(str(tmp_path / "a.parquet"))

    for old in (date(1500, 1, 1), date(1899, 12, 31)):
        with raises(ExternalRowsError, "value_not_exact", column="v", file="a.parquet"):
            list(rows(old, mark).batches())
        assert len(list(rows(old).batches())) == 1
        assert len(list(rows(old, {"org.apache.spark.version": "4.0.0"}).batches())) == 1
    assert len(list(rows(date(1900, 1, 1), mark).batches())) == 1


def test_a_day_of_sparks_former_calendar_is_refused(tmp_path: Path) -> None:
    for day, is_old in ((date(1582, 10, 14), True), (date(1582, 10, 15), False)):
        table = pa.table({"day": [day]}).replace_schema_metadata({"org.apache.spark.legacyDateTime": ""})
        pq.write_table(table, tmp_path / "a.parquet")
        rows = ParquetRows(str(tmp_path / "a.parquet"))
        with raises(ExternalRowsError, "value_not_exact", column="day") if is_old else nullcontext():
            list(rows.batches())


def test_long_values_that_repeat_are_read_in_small_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "BYTES_A_BATCH", 1_000_000)
    texts = pa.array(["x" * 15_000, "y" * 15_000] * 350)
    pq.write_table(pa.table({"t": texts.dictionary_encode()}), tmp_path / "a.parquet", store_schema=False)
    sizes = [batch.nbytes for batch in ParquetRows(str(tmp_path / "a.parquet")).batches()]
    assert max(sizes) <= 4_000_000 and len(sizes) >= 3


@pytest.mark.parametrize(
    ("fault", "kind", "code"),
    [
        (PermissionError(errno.EACCES, "Permission denied"), ExternalRowsError, "files_forbidden"),
        (OSError(errno.EIO, "Input/output error"), StorageUnavailableError, "storage_unavailable"),
    ],
    ids=["forbidden", "a failing disk"],
)
def test_files_that_cannot_be_read_name_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: OSError, kind: type[AirflowFtError], code: str
) -> None:
    def fails(self: LocalFileSystem, uri: str) -> NoReturn:
        raise fault

    pq.write_table(pa.table({"id": [1]}), tmp_path / "a.parquet")
    monkeypatch.setattr(LocalFileSystem, "open_plain", fails)
    with raises(kind, code, path=(tmp_path / "a.parquet").as_uri()):
        ParquetRows(str(tmp_path))


@pytest.mark.parametrize("forbidden", [(LocalFileSystem, "names"), (Path, "is_file")])
def test_a_folder_that_may_not_be_listed_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forbidden: tuple[type, str]
) -> None:
    def refuse(*_: object) -> NoReturn:
        raise PermissionError(errno.EACCES, "Permission denied")

    with raises(ExternalRowsError, "files_forbidden"), monkeypatch.context() as only_here:  # pytest asks Path itself
        only_here.setattr(*forbidden, refuse)
        sink_folders(str(tmp_path), ["a", "b"])
