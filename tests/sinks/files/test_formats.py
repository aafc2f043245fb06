"""Values as files hold them, and as PyArrow and Spark read them back."""

from __future__ import annotations

import csv
import datetime as dt
import errno
import gzip
import io
import json
import os
import resource
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pc_csv
import pyarrow.dataset as ds
import pyarrow.json as pc_json
import pyarrow.parquet as pq
import pytest

from airflow_ft.protocol.errors import DeclinedError, SinkUnavailableError, UnfitTargetError
from airflow_ft.protocol.set_aside import of_proof
from airflow_ft.sinks.files.failures import translated_errors
from airflow_ft.testing.world import SINK, World
from airflow_ft.wal.local import LocalFileSystem
from tests.raising import raises
from tests.sinks.files.world import Folder, folder_of, read, world_of

NOON = dt.datetime(2024, 5, 31, 12, 0, 0, 250)
FIRST, LAST = dt.datetime(1, 1, 1), dt.datetime(9999, 12, 31, 23, 59, 59, 999999)
UTC = pa.timestamp("us", "UTC")
FLAT = pa.table(
    {
        "id": pa.array([1, 2, 3], pa.int64()),
        "tiny": pa.array([-128, 127, None], pa.int8()),
        "small": pa.array([-(2**15), 2**15 - 1, None], pa.int16()),
        "int": pa.array([-(2**31), 2**31 - 1, None], pa.int32()),
        "long": pa.array([-(2**63), 2**63 - 1, None], pa.int64()),
        "yes": pa.array([True, False, None]),
        "single": pa.array([3.4028235e38, 1.17549435e-38, None], pa.float32()),
        "double": pa.array([1.7976931348623157e308, 5e-324, None]),
        "zero": pa.array([-0.0, 0.1, None]),
        "money": pa.array([Decimal("-9" * 1 + "9" * 35 + ".99"), Decimal("0.00"), None], pa.decimal128(38, 2)),
        "exact": pa.array([Decimal("1E-18"), Decimal("0"), None], pa.decimal128(38, 18)),
        "text": ['it\'s "q", \\ a\nb\r\n\t\N{SNOWMAN}', "", None],
        "word": ["NULL", "null", None],
        "day": pa.array([FIRST.date(), LAST.date(), None]),
        "at": pa.array([FIRST, LAST, None], UTC),
        "local": pa.array([NOON, LAST, None], pa.timestamp("us")),
    }
)
STRUCT = pa.struct({"a": pa.string(), "b": pa.float64()})
NESTED = FLAT.append_column("list", pa.array([[1, None], [], None], pa.list_(pa.int64()))).append_column(
    "struct", pa.array([{"a": "x", "b": None}, {"a": None, "b": 1.5}, None], STRUCT)
)
RAW = NESTED.append_column("data", pa.array([b"\0\xff", b"", None])).append_column(
    "not", pa.array([float("nan"), float("-inf"), None])
)  # fmt: skip


def delivered(folder: Path, rows: pa.Table, **settings: Any) -> Folder:
    world = world_of(folder, **settings)
    proof = world.deliver(world.plan(rows))
    assert dict(proof.counts) == {SINK: rows.num_rows}
    return folder_of(world)


def only_file(folder: Folder) -> Path:
    [name] = folder.files()
    return folder.path / name


@pytest.mark.parametrize("compression", ["", "none", "snappy", "zstd", "gzip", "lz4"])
def test_parquet_holds_everything(tmp_path: Path, compression: str) -> None:
    folder = delivered(tmp_path, RAW, compression=compression)
    found = pq.read_table(only_file(folder), partitioning=None)
    assert found.drop_columns(["not"]).equals(RAW.drop_columns(["not"]))
    assert str(found["not"]) == str(RAW["not"]), "NaN equals nothing"
    codec = pq.read_metadata(only_file(folder)).row_group(0).column(0).compression
    assert codec == {"": "LZ4", "none": "UNCOMPRESSED"}.get(compression, compression.upper())


@pytest.mark.parametrize("compression", ["", "gzip"])
def test_csv_holds_what_is_flat(tmp_path: Path, compression: str) -> None:
    rows = FLAT.append_column("not", pa.array([float("nan"), float("-inf"), None]))
    folder = delivered(tmp_path, rows, format="csv", compression=compression)
    file = only_file(folder)
    assert file.name == "part-00000.csv" + (".gz" if compression else "")
    convert = pc_csv.ConvertOptions(
        column_types={each.name: each.type for each in rows.schema},
        null_values=[""],
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
    )
    found = pc_csv.read_csv(file, parse_options=pc_csv.ParseOptions(newlines_in_values=True), convert_options=convert)
    assert found.drop_columns(["not"]).equals(FLAT) and str(found["not"]) == str(rows["not"])


def test_null_and_an_empty_text_differ_in_csv(tmp_path: Path) -> None:
    folder = delivered(tmp_path, pa.table({"a": ["", None, "x"], "b": [None, None, 1]}), format="csv")
    assert only_file(folder).read_text().splitlines() == ['"a","b"', '"",', ",", '"x",1']


@pytest.mark.parametrize("compression", ["", "gzip"])
def test_json_is_an_object_a_line(tmp_path: Path, compression: str) -> None:
    folder = delivered(tmp_path, NESTED, format="json", compression=compression)
    data = only_file(folder).read_bytes()
    text = (gzip.decompress(data) if compression else data).decode()
    found = [json.loads(line) for line in text.splitlines()]
    assert len(found) == 3 and all(list(each) == NESTED.schema.names for each in found)
    assert found[0]["long"] == -(2**63) and found[0]["double"] == 1.7976931348623157e308
    assert found[0]["exact"] == "0.000000000000000001" and found[0]["text"] == FLAT["text"][0].as_py()
    assert (found[0]["day"], found[0]["at"]) == ("0001-01-01", "0001-01-01T00:00:00.000000Z")
    assert found[0]["list"] == [1, None] and found[1]["list"] == [] and found[1]["text"] == ""
    assert found[2] == dict.fromkeys(NESTED.schema.names) | {"id": 3}
    unread = ("money", "exact", "day")  # PyArrow reads them as text, or not at all
    plain = [name for name in NESTED.schema.names if name not in unread]
    schema = pa.schema([NESTED.schema.field(name) for name in plain])
    options = pc_json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")
    assert pc_json.read_json(io.BytesIO(text.encode()), parse_options=options).equals(NESTED.select(plain))


@pytest.mark.parametrize(
    ("format", "column", "cast"),
    [
        ("csv", pa.array([[1]]), "to_json(column)"),
        ("csv", pa.array([{"a": 1}]), "to_json(column)"),
        ("csv", pa.array([b"x"]), "base64(column)"),
        ("json", pa.array([[([1], 1)]], pa.map_(pa.list_(pa.int8()), pa.int64())), ""),
    ],
)
def test_a_column_that_the_format_cannot_hold_is_named(
    tmp_path: Path, format: str, column: pa.Array, cast: str
) -> None:
    world = world_of(tmp_path, format=format)
    with raises(DeclinedError, "type_unsupported", sink=SINK, column="wide") as caught:
        world.prepare(world.plan(pa.table({"id": [1], "wide": column})))
    assert caught.error is not None and cast in caught.error.headline
    assert folder_of(world).files() == []


TWICE = pa.array([[("a", 1)], [("a", 1), ("a", 2)]], pa.map_(pa.string(), pa.int64()))


@pytest.mark.parametrize(
    ("format", "rows", "words"),
    [
        ("csv", pa.table({"id": pa.array([1, None])}), ("row 2", "NULL")),
        (
            "csv",
            pa.table({"id": [1, 2], "day": pa.array([0, 2_932_897], pa.date32())}),
            ("row 2", "'day'"),
        ),
        ("json", pa.table({"id": [1, 2], "at": pa.array([0, -62_135_596_800_000_001], UTC)}), ("row 2", "'at'")),
        ("json", pa.table({"id": [1, 2], "x": [0.5, float("nan")]}), ("row 2", "'x'", "NaN")),
        ("json", pa.table({"id": [1, 2], "x": [[1.5], [float("inf")]]}), ("row 2", "'x'", "NaN")),
        (
            "json",
            pa.table({"id": [1, 2], "x": TWICE}),
            ("row 2", "'x'"),
        ),
    ],
)
def test_a_row_that_the_format_cannot_hold_can_be_set_aside(
    tmp_path: Path, format: str, rows: pa.Table, words: tuple[str, ...]
) -> None:
    world = world_of(tmp_path, format=format)
    world.deliver(world.plan(rows.slice(0, 1)))
    plan = world.plan(rows)
    with pytest.raises(DeclinedError) as caught:
        world.prepare(plan)
    assert all(word in caught.value.headline for word in words)
    assert len(folder_of(world).files()) == 1 and folder_of(world).ids() == [1]
    proof = world.commit(plan, world.vote_without_prepare(plan), set_aside=True)
    aside = of_proof(proof)[SINK]
    assert (proof.counts[SINK], aside.rows) == (1, 1) and folder_of(world).ids() == [1, 1]
    assert pq.read_table(aside.files[0].removeprefix("file://"))["airflow_ft_row"].to_pylist() == [2]


@pytest.mark.parametrize("format", ["parquet", "csv", "json"])
def test_partition_columns_name_folders_as_hive_has_them(tmp_path: Path, format: str) -> None:
    texts = ["DE", "a/b", "50% = x:y", None, "Köln", "..", "DE", "\x01"]
    rows = pa.table(
        {
            "id": range(8),
            "text": texts,
            "day": pa.array([dt.date(2024, 5, 31)] * 8),
            "count": pa.array([-(2**31), 2**31 - 1] * 4, pa.int32()),
            "yes": [True, None] * 4,
        }
    )
    folder = delivered(tmp_path, rows, format=format, partition_by=("day", "text", "count", "yes"))
    names = {name.partition("/")[2].rpartition("/")[0] for name in folder.files()}
    assert "day=2024-05-31/text=DE/count=-2147483648/yes=true" in names
    null = "__HIVE_DEFAULT_PARTITION__"
    assert f"day=2024-05-31/text=a%2Fb/count=2147483647/yes={null}" in names
    assert f"day=2024-05-31/text={null}/count=2147483647/yes={null}" in names
    assert {name.split("/")[1] for name in names} == {
        "text=DE", "text=a%2Fb", "text=50%25 %3D x%3Ay", f"text={null}", "text=Köln", "text=..", "text=%01",
    }  # fmt: skip
    hive = ds.partitioning(
        pa.schema([rows.schema.field(name) for name in ("day", "text", "count", "yes")]), flavor="hive"
    )
    found = read(folder, partitioning=hive).select(rows.schema.names).sort_by("id")
    assert found.to_pylist() == rows.to_pylist()


@pytest.mark.parametrize("day", [14_600_000, 2_932_897, -719_163])
def test_a_day_no_folder_can_name_is_refused_before_a_decision(tmp_path: Path, day: int) -> None:
    """Spark parses "20240-02-10", and whoever lists such a folder cannot read any of the others."""
    rows = pa.table({"id": [1, 2, 3], "day": pa.array([2_932_896, day, -719_162], pa.date32())})
    world = world_of(tmp_path, partition_by=["day"])
    with pytest.raises(DeclinedError) as caught:
        world.prepare(world.plan(rows))
    assert "row 2 of" in caught.value.headline and "'day'" in caught.value.headline
    proof = world.commit(plan := world.plan(rows), world.vote_without_prepare(plan), set_aside=True)
    assert proof.counts[SINK] == 2 and folder_of(world).ids() == [1, 3]


def test_partitions_that_the_file_system_merges_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = world_of(tmp_path, partition_by=["c"])
    plan = world.plan(pa.table({"id": [1, 2], "c": ["DE", "de"]}))
    create = LocalFileSystem.create
    monkeypatch.setattr(LocalFileSystem, "create", lambda self, uri: create(self, uri.replace("c%3Dde", "c%3DDE")))
    with raises(UnfitTargetError, "file_system_unsupported", feature="case"):
        world.prepare(plan)
    monkeypatch.undo()
    world.commit(plan, world.prepare(plan))
    assert {name.split("/")[1] for name in folder_of(world).files()} == {"c=DE", "c=de"}


def test_many_partitions_need_few_open_files_and_little_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("airflow_ft.sinks.files.writing.OPEN_FILES", 5)
    monkeypatch.setattr("airflow_ft.sinks.files.writing.BUFFERED", 2000)
    monkeypatch.setattr("airflow_ft.wal.reader.ROWS_A_BATCH", 100)
    rows = pa.table({"id": range(1000), "which": [str(id % 20) for id in range(1000)]})
    folder = delivered(tmp_path, rows, partition_by=("which",))
    assert read(folder).num_rows == 1000 and folder.ids() == list(range(1000))
    for file in folder.files():
        which = int(file.split("/")[1].removeprefix("which="))
        ids = pq.ParquetFile(folder.path / file).read()["id"].to_pylist()
        assert all(id % 20 == which for id in ids) and ids == sorted(ids)
    assert len(folder.files()) > 20, "a file is ended to make room, and another one begun"


def test_open_files_stay_below_the_limit_of_the_process(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    rows = pa.table({"id": range(200), "which": [str(id) for id in range(200)]})
    others = len(list(Path("/proc/self/fd").iterdir()))
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (others + 150, hard))
        folder = delivered(tmp_path, rows, partition_by=("which",))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert folder.ids() == list(range(200))


def test_too_many_open_files_name_the_limit() -> None:
    with raises(SinkUnavailableError, "file_system_failed") as caught, translated_errors("/out"):
        raise OSError(errno.EMFILE, "Too many open files", "/out/part")
    assert caught.error is not None and "ulimit -n" in caught.error.remedy


def test_values_that_hardly_repeat_have_no_dictionary(tmp_path: Path) -> None:
    count = 30_000
    rows = pa.table(
        {
            "id": range(count),
            "text": [f"order {number}" for number in range(count)],
            "city": [f"city {number % 100}" for number in range(count)],
            "alone": [None] * (count - 1) + [7],
            "tags": [[number % 3] for number in range(count)],
            "part": [{"id": number % 5} for number in range(count)],
        }
    )
    file = only_file(delivered(tmp_path, rows, compression="snappy"))
    group = pq.read_metadata(file).row_group(0)
    columns = [group.column(index) for index in range(group.num_columns)]
    with_dictionary = [column.path_in_schema for column in columns if column.has_dictionary_page]
    assert with_dictionary == ["city", "alone", "tags.list.element", "part.id"]
    assert pq.read_table(file, partitioning=None).equals(rows)


def test_a_file_is_ended_at_its_size(tmp_path: Path) -> None:
    rows = pa.table({"id": range(200_000), "text": [f"row {id:020}" for id in range(200_000)]})
    folder = delivered(tmp_path, rows, format="csv", file_bytes=1 << 20)
    sizes = [(folder.path / name).stat().st_size for name in folder.files()]
    assert 3 < len(sizes) < 9 and all(size >= 1 << 20 for size in sizes[:-1])
    with (folder.path / folder.files()[-1]).open() as file:
        assert next(csv.reader(file)) == ["id", "text"], "each file has a header"
    assert folder.ids() == list(range(200_000))


def test_the_log_s_own_files_are_not_written_again(tmp_path: Path) -> None:
    world = world_of(tmp_path)
    world.deliver(world.plan())
    [file] = list((tmp_path / "wal").rglob("*.parquet"))
    assert only_file(folder_of(world)).samefile(file), "a hard link"
    assert folder_of(world).manifest(1)["files"][0]["sha256"]


def test_where_they_cannot_be_linked_they_are_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(source: Path, target: Path, *, link: Callable[..., None] = os.link) -> None:
        if str(source).startswith(str(tmp_path / "wal")):
            raise OSError(18, "Invalid cross-device link")
        link(source, target)

    world = world_of(tmp_path)
    monkeypatch.setattr("airflow_ft.wal.local.os.link", refuse)
    world.deliver(world.plan())
    [file] = list((tmp_path / "wal").rglob("*.parquet"))
    copy = only_file(folder_of(world))
    assert not copy.samefile(file) and copy.read_bytes() == file.read_bytes()


def test_small_segments_are_put_together_and_large_ones_linked(tmp_path: Path) -> None:
    world = world_of(tmp_path, file_bytes=200_000)
    large = pa.table({"id": range(40_000), "text": [f"row {id}" for id in range(40_000)]})
    parts = [world.segment(number, world.table(number * 40)) for number in (1, 2)]
    parts.append(world.segment(3, large))
    parts.append(world.segment(4, world.table(160)))
    parts.append(world.segment(5, pa.table({"id": [7], "other": ["another schema"]})))
    world.deliver(world.plan_of(5, *parts))
    folder = folder_of(world)
    rows = sorted(pq.read_metadata(folder.path / name).num_rows for name in folder.files())
    assert rows == [1, 120, 40_000], "one of the three small ones, one for the other columns"
    linked = [name for name in folder.files() if (folder.path / name).stat().st_nlink == 2]
    assert len(linked) == 1
    assert folder.ids() == sorted([*world.ids_of(1, 2, 4), *range(40_000), 7])


def test_a_damaged_file_of_the_log_is_not_linked(tmp_path: Path) -> None:
    from airflow_ft.protocol.errors import WalCorruptError

    world = world_of(tmp_path)
    plan = world.plan()
    [file] = list((tmp_path / "wal").rglob("*.parquet"))
    data = bytearray(file.read_bytes())
    data[20] ^= 1
    file.write_bytes(data)
    with raises(WalCorruptError, "wal_corrupt"):
        world.prepare(plan)
    assert folder_of(world).files() == []


def test_a_success_file_and_nothing_of_ours_is_seen(tmp_path: Path) -> None:
    world: World = world_of(tmp_path, success_file=True)
    world.deliver(world.plan())
    world.deliver(world.plan(world.table(0, 0)))
    world.prepare(world.plan())
    folder = folder_of(world)
    assert folder.files() == ["checkpoint=0000000001/part-00000.parquet"], "a checkpoint without rows has no folder"
    assert (folder.path / "checkpoint=0000000001" / "_SUCCESS").stat().st_size == 0
    assert read(folder).num_rows == 40
