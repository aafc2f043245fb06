"""Segments are sealed under checksums, and read only when everything matches."""

import datetime as dt
import json
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest

from airflow_ft.protocol.errors import (
    ConfigurationError,
    NewerReleaseError,
    StageError,
    TransientError,
    WalCorruptError,
)
from airflow_ft.protocol.model import Segment
from airflow_ft.protocol.write_ahead_log import ColumnStatistics
from airflow_ft.wal import open_wal, reader, writer
from airflow_ft.wal.filesystem import filesystem
from airflow_ft.wal.local import LocalFileSystem, local_path
from airflow_ft.wal.manifest import MANIFEST, Manifest, digest
from airflow_ft.wal.reader import BYTES_A_BATCH
from airflow_ft.wal.statistics import Statistics
from airflow_ft.wal.writer import SegmentFolder, write_segment
from tests.raising import raises

ORDERS = pa.table(
    {
        "id": pa.array([1, 2, None], pa.int64()),
        "price": pa.array([Decimal("1.50"), Decimal("-99.99"), None], pa.decimal128(38, 10)),
        "ratio": pa.array([float("nan"), float("-inf"), 0.5]),
        "note": pa.array(["héé", "", "𝄞"]),
        "raw": pa.array([bytes(range(256)), b"", None]),
        "at": pa.array([dt.datetime(1000, 1, 1, tzinfo=dt.UTC), None, None], pa.timestamp("us", "UTC")),
        "local": pa.array([dt.datetime(9999, 12, 31, 23, 59, 59, 999999), None, None], pa.timestamp("us")),
        "day": pa.array([dt.date(1000, 1, 1), dt.date(9999, 12, 31), None]),
        "yes": pa.array([True, False, None]),
    }
)


@pytest.fixture
def folder(tmp_path: Path) -> SegmentFolder:
    return SegmentFolder(str(tmp_path / "a b%20"), "orders", 3, 7, 0)


@pytest.fixture
def segment(folder: SegmentFolder) -> Segment:
    return write_segment(folder, 5, {"orders": ORDERS, "alerts": ORDERS.slice(0, 0).select(["id"])}, {"k": {"end": 1}})


def _rows(segment: Segment, sink: str) -> Iterator[pa.RecordBatch]:
    opened = open_wal().open(segment)
    for file in opened.files(sink):
        yield from opened.batches(sink, file)


def test_what_was_written_is_read_in_order(segment: Segment) -> None:
    opened = open_wal().open(segment)
    assert list(opened.sinks()) == ["alerts", "orders"]
    assert segment.rows == {"alerts": 0, "orders": 3} and segment.total_rows == 3
    assert opened.schema("orders") == ORDERS.schema
    found = pa.Table.from_batches(_rows(segment, "orders"), ORDERS.schema)
    assert str(found.to_pylist()) == str(ORDERS.to_pylist())  # as text, since nan is not nan
    assert list(_rows(segment, "alerts")) == [] and opened.schema("alerts").names == ["id"]
    assert segment.bytes == sum(f.bytes for s in opened.sinks() for f in opened.files(s))


def test_the_location_is_the_attempts_own_and_a_valid_uri(segment: Segment, folder: SegmentFolder) -> None:
    assert segment.location.startswith("file:///") and segment.location.endswith("/a%20b%2520/orders/3-7/0")
    assert local_path(segment.location).is_dir()


def test_statistics_have_the_text_of_python_values(segment: Segment) -> None:
    found = open_wal().open(segment).statistics("orders")
    assert found["id"] == ColumnStatistics(1, "1", "2")
    assert found["price"] == ColumnStatistics(1, "-99.9900000000", "1.5000000000")
    assert found["ratio"] == ColumnStatistics(0, "-inf", "0.5", nans=1, infinities=1)
    assert found["note"] == ColumnStatistics(0, max_characters=3, max_bytes=5)
    assert found["raw"] == ColumnStatistics(1, max_bytes=256)
    assert found["at"] == ColumnStatistics(2, "1000-01-01 00:00:00+00:00", "1000-01-01 00:00:00+00:00")
    assert found["local"] == ColumnStatistics(2, "9999-12-31 23:59:59.999999", "9999-12-31 23:59:59.999999")
    assert found["day"] == ColumnStatistics(1, "1000-01-01", "9999-12-31")
    assert found["yes"] == ColumnStatistics(1, "False", "True")


def test_the_digest_is_that_of_the_manifests_text(segment: Segment, folder: SegmentFolder) -> None:
    data = (local_path(segment.location) / MANIFEST).read_bytes()
    assert digest(data) == segment.digest
    manifest = Manifest.parse(data, "here")
    assert manifest.text().encode() == data
    assert (manifest.number, manifest.epoch, manifest.attempt, manifest.batch) == (5, 3, 7, 0)
    assert manifest.positions == {"k": {"end": 1}}


def test_a_changed_manifest_is_refused(segment: Segment) -> None:
    path = local_path(segment.location) / MANIFEST
    path.write_text(path.read_text().replace('"number":5', '"number":6'))
    with raises(WalCorruptError, "checksum_mismatch", checkpoint=5, expected=segment.digest):
        open_wal().open(segment)


def test_a_missing_manifest_is_refused(segment: Segment) -> None:
    (local_path(segment.location) / MANIFEST).unlink()
    with raises(WalCorruptError, "file_missing"):
        open_wal().open(segment)


def test_a_manifest_of_a_newer_format_is_refused(segment: Segment) -> None:
    path = local_path(segment.location) / MANIFEST
    data = json.dumps({**json.loads(path.read_text()), "format": 99})
    path.write_text(data)
    newer = Segment(5, digest(data), segment.location, segment.rows, segment.bytes)
    with raises(NewerReleaseError, "newer_release"):
        open_wal().open(newer)


@pytest.mark.parametrize("position", [0.0, 0.3, 0.6, 1.0])
def test_a_flipped_bit_is_found_before_any_row_is_handed_out(segment: Segment, position: float) -> None:
    opened = open_wal().open(segment)
    (file,) = opened.files("orders")
    path = local_path(segment.location) / file.path
    data = bytearray(path.read_bytes())
    data[int(position * (len(data) - 1))] ^= 1
    path.write_bytes(data)
    with raises(WalCorruptError, "checksum_mismatch", sink="orders"):
        next(iter(opened.batches("orders", file)))


def test_a_shortened_or_missing_file_is_found(segment: Segment) -> None:
    opened = open_wal().open(segment)
    (file,) = opened.files("orders")
    path = local_path(segment.location) / file.path
    path.write_bytes(path.read_bytes()[:-10])
    with raises(WalCorruptError, "checksum_mismatch", sink="orders"):
        list(opened.batches("orders", file))
    path.unlink()
    with raises(WalCorruptError, "file_missing"):
        list(opened.batches("orders", file))


def test_a_sink_that_was_not_declared_then_is_named(segment: Segment) -> None:
    with raises(WalCorruptError, "sink_missing", sink="refunds", checkpoint=5, known=["alerts", "orders"]):
        open_wal().open(segment).files("refunds")


def test_a_segment_is_sealed_once(folder: SegmentFolder, segment: Segment) -> None:
    with raises(StageError, "attempt_folder_exists", path=folder.location):
        folder.seal(5, {}, {})


def test_a_folder_that_a_lost_history_has_written_is_left_alone(folder: SegmentFolder, segment: Segment) -> None:
    """A restored decision log gives epoch and attempt out again; the next try has a folder of its own."""
    with raises(StageError, "attempt_folder_exists", path=folder.location):
        write_segment(folder, 5, {"orders": ORDERS})
    assert list(open_wal().open(segment).files("orders")), "what was there is whole"


@pytest.mark.parametrize("operation", ["open", "sync_file", "write", "sync_folders"])
def test_a_segment_deleted_while_sealing_is_a_transient_error(
    folder: SegmentFolder, monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    """A process wakes up while it seals, and its successor has deleted what nobody needed."""
    whole = getattr(LocalFileSystem, operation)

    def when_all_is_gone(self: LocalFileSystem, *arguments: object) -> object:
        self.remove_tree(folder.location)
        return whole(self, *arguments)

    monkeypatch.setattr(LocalFileSystem, operation, when_all_is_gone)
    with raises(TransientError, "file_missing", checkpoint=1):
        write_segment(folder, 1, {"orders": ORDERS})


def test_an_optional_sink_without_rows_is_there_without_columns(folder: SegmentFolder) -> None:
    segment = folder.seal(5, {"dead_letters": False}, {})
    opened = open_wal().open(segment)
    assert segment.rows == {"dead_letters": 0}
    assert list(opened.files("dead_letters")) == [] and opened.schema("dead_letters").names == []


def test_statistics_are_those_of_all_files_and_row_groups(folder: SegmentFolder) -> None:
    import pyarrow.parquet as pq

    path = local_path(folder.sink("s"))
    path.mkdir(parents=True)
    text = ["a", None, "long" * 9, "a"]
    values = pa.table(
        {
            "number": pa.array([-5, None, 7, 0], pa.int32()),
            "ratio": pa.array([float("nan"), 1.5, float("inf"), None], pa.float32()),
            "text": text,
            "raw": pa.array([b"", b"12345", None, b"1"]),
            "at": pa.array([None, 253_402_300_800_000_000, 0, -1], pa.timestamp("us", "UTC")),
        }
    )
    for part, dictionary in enumerate((True, False, ["text"])):
        pq.write_table(
            values.slice(part),
            path / f"part-{part:05}.parquet",
            row_group_size=2,
            use_dictionary=dictionary,
            coerce_timestamps="us",
        )
    found = open_wal().open(folder.seal(1, {"s": True}, {})).statistics("s")
    assert found == {
        "number": ColumnStatistics(2, "-5", "7"),
        "ratio": ColumnStatistics(3, "1.5", "inf", nans=1, infinities=3),
        "text": ColumnStatistics(2, max_characters=36, max_bytes=36),
        "raw": ColumnStatistics(3, max_bytes=5),
        "at": ColumnStatistics(1, "1969-12-31 23:59:59.999999+00:00", "10000-01-01 00:00:00.000000+00:00"),
    }


def test_dates_that_are_too_late_for_python_have_a_text(folder: SegmentFolder) -> None:
    """As microseconds they would not go into 64 bits."""
    days = pa.array([-(2**30), 2**30], pa.int32()).cast(pa.date32())
    sealed = write_segment(folder, 1, {"orders": pa.table({"day": days})})
    found = open_wal().open(sealed).statistics("orders")["day"]
    assert (found.minimum, found.maximum) == ("-2937836-09-26", "2941775-04-07")


def test_a_value_that_repeats_is_looked_at_once(folder: SegmentFolder) -> None:
    """Else a batch of rows that take a few kilobytes in the file would take gigabytes in memory."""
    import pyarrow.parquet as pq

    path = local_path(folder.sink("s"))
    path.mkdir(parents=True)
    table = pa.table({"text": pa.DictionaryArray.from_arrays(pa.array([0, 1] * 30_000), ["x" * 100_000, "y"])})
    pq.write_table(table, path / "part-00000.parquet", store_schema=False)
    before = pa.default_memory_pool().max_memory()
    segment = folder.seal(1, {"s": True}, {})
    assert segment.rows == {"s": 60_000}
    assert open_wal().open(segment).statistics("s") == {"text": ColumnStatistics(0, None, None, 100_000, 100_000)}
    assert pa.default_memory_pool().max_memory() - before < 1_000_000_000, "of 3 GB that the values would take"


def test_wide_rows_are_looked_at_a_few_at_a_time(folder: SegmentFolder) -> None:
    """Else all rows of a file would be in memory at once, and the kernel would kill the driver."""
    import pyarrow.parquet as pq

    path = local_path(folder.sink("s"))
    path.mkdir(parents=True)
    table = pa.table({"text": [*["x"] * 60_000, *(f"{n:05}" + "x" * 20_000 for n in range(20_000))]})
    pq.write_table(table, path / "part-00000.parquet", row_group_size=600, use_dictionary=False, store_schema=False)
    del table
    seen: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        add = Statistics.add
        patch.setattr(Statistics, "add", lambda self, batch: (seen.append(batch.nbytes), add(self, batch)))
        assert folder.seal(1, {"s": True}, {}).rows == {"s": 80_000}
    assert max(seen) <= 1.1 * BYTES_A_BATCH, "of 400 MB"


def test_the_longest_values_of_dictionaries_are_known(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    repeated = ["x" * 2000] * 50
    table = pa.table(
        {
            "short": ["short", "a"] * 10_025,
            "falls_back": [*repeated, *(f"{number:016}" for number in range(20_000))],
            "late": [*(["short"] * 20_000), *repeated],
            "number": pa.array(range(20_050)),
        }
    )
    path = tmp_path / "one.parquet"
    pq.write_table(table, path, row_group_size=10_000, dictionary_pagesize_limit=64 * 1024, store_schema=False)
    with path.open("rb") as file:
        found = writer.longest_in_dictionaries(file, pq.read_metadata(path), table.schema)
    assert found == {"short": 5, "falls_back": 2000, "late": 2000}


@pytest.mark.slow
def test_many_dictionary_columns_are_examined_in_small_batches(
    folder: SegmentFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As text of a kilobyte in twenty columns, 50,000 rows take 1 GB."""
    import pyarrow.parquet as pq

    path = local_path(folder.sink("s"))
    path.mkdir(parents=True)
    column = pa.DictionaryArray.from_arrays(pa.array([0] * 50_000), ["x" * 1000])
    table = pa.table({f"text{index}": column for index in range(20)})
    pq.write_table(table, path / "part-00000.parquet", store_schema=False)
    sizes = []
    add = Statistics.add

    def noted(statistics: Statistics, batch: pa.RecordBatch) -> None:
        sizes.append(batch.nbytes)
        add(statistics, batch)

    monkeypatch.setattr(Statistics, "add", noted)
    assert folder.seal(1, {"s": True}, {}).rows == {"s": 50_000}
    assert len(sizes) > 10 and max(sizes) < 70_000_000


def test_files_are_in_the_order_of_partitions(folder: SegmentFolder) -> None:
    import pyarrow.parquet as pq

    path = local_path(folder.sink("s"))
    path.mkdir(parents=True)
    for part in (100_000, 2, 10):
        pq.write_table(pa.table({"part": [part]}), path / f"part-{part:05}-x.parquet")
    (path / "_SUCCESS").touch()
    segment = folder.seal(1, {"s": True}, {})
    assert [b.to_pydict()["part"] for b in _rows(segment, "s")] == [[2], [10], [100_000]]


def test_wide_rows_come_in_small_batches(folder: SegmentFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "BYTES_A_BATCH", 1_000_000)
    text = "x" * 100_000  # repeated, so that the file is small and only the statistics tell
    segment = write_segment(folder, 1, {"s": pa.table({"wide": [text] * 200})})
    assert segment.bytes < 1_000_000
    sizes = [batch.nbytes for batch in _rows(segment, "s")]
    assert len(sizes) >= 4 and max(sizes) < 5_000_000


def test_places_that_cannot_be_used_are_refused() -> None:
    for uri in ("gs://bucket/wal", "relative/path", "file://host/path", ""):
        with raises(ConfigurationError, "path_invalid", path=uri):
            filesystem(uri)
