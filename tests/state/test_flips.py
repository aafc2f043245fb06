"""One flipped bit in a file of state gives the right answer or WalCorruptError: never another answer."""

from __future__ import annotations

import json
import random
import struct
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from airflow_ft import state
from airflow_ft.protocol.errors import NewerReleaseError, WalCorruptError
from airflow_ft.protocol.model import SparkPosition
from airflow_ft.spark.savepoints.taking import take
from airflow_ft.spark.state import source_log
from airflow_ft.spark.state.location_files import COMMITS, entry
from airflow_ft.spark.state.locations import SOURCES_FILE, TOPICS, SparkLocation, begins_at, check_sources
from airflow_ft.spark.state.sealing import Lacking, seal
from airflow_ft.spark.state.status import location_status, record_ids, recorded_ids
from airflow_ft.state.rows import write_row
from airflow_ft.state.versions import open_version
from airflow_ft.wal.filesystem import filesystem
from airflow_ft.wal.local import local_path
from airflow_ft.wal.parsing import json_with_digest, read_json
from tests.state.scene import KEY, VALUE, Pipeline, compressed, pipeline, records
from tests.state.test_files import PUT, marked, rocks
from tests.store.scene import PIPELINE

pytestmark = [pytest.mark.slow, pytest.mark.sampled("flipped bits")]

EXPECTED = {"a": 40, "b": 2, "c": 3}
MOST = 150
"""The most bits of a file that are tried; a larger file has random ones."""


def hadoop_sums(path: Path) -> None:
    """Make the file that Hadoop's local file system puts beside a file."""
    data = path.read_bytes()
    sums = b"".join(struct.pack(">I", zlib.crc32(data[at : at + 512])) for at in range(0, len(data), 512))
    path.with_name(f".{path.name}.crc").write_bytes(b"crc\0" + struct.pack(">i", 512) + sums)


def flips(path: Path) -> Iterator[int]:
    """Flips one bit after the other, and puts the file back as it was."""
    data, bits = path.read_bytes(), path.stat().st_size * 8
    for bit in range(bits) if bits <= MOST else sorted(random.Random(7).sample(range(bits), MOST)):
        broken = bytearray(data)
        broken[bit // 8] ^= 1 << bit % 8
        path.write_bytes(bytes(broken))
        yield bit
    path.write_bytes(data)


def assert_never_wrong(files: list[Path], ask: Callable[[], object]) -> None:
    expected, refused = ask(), 0
    assert files
    for path in files:
        for bit in flips(path):
            try:
                found = ask()
            except (WalCorruptError, NewerReleaseError):  # the number of a format may become a greater one
                refused += 1
                continue
            assert found == expected, f"bit {bit} of {path}"
    assert refused, "nothing was looked at"


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Pipeline]:
    with pipeline(tmp_path) as found:
        found.confirmed({"a": 1, "b": 2})
        found.counts.snapshot(0, {"a": 1, "b": 2})
        found.counts.file(0).unlink()
        found.confirmed({"a": 40})
        found.confirmed({"c": 3, "d": 4})
        found.confirmed({"d": None})
        yield found


def files_of(location: Path) -> list[Path]:
    return sorted(path for path in location.rglob("*") if path.is_file() and not path.name.endswith(".crc"))


def test_the_live_state_of_the_map(scene: Pipeline) -> None:
    location = scene.counts.path
    for path in files_of(location):
        hadoop_sums(path)

    def ask() -> object:
        with state.open(PIPELINE, store=scene.store) as found:
            return found.get(0, "a"), {entry.key["k"]: entry.value["count"] for entry in found.scan(0)}

    assert ask() == ({"count": 40}, EXPECTED)
    assert_never_wrong(files_of(location), ask)
    assert_never_wrong([path for path in location.rglob(".*.crc") if path.parent.name == "0"], ask)


def test_changes_without_hadoop_sums(scene: Pipeline) -> None:
    """As on HDFS: the codec's own checksums have to do."""

    def ask() -> object:
        with state.open(PIPELINE, store=scene.store) as found:
            return {entry.key["k"]: entry.value["count"] for entry in found.scan(0)}

    assert_never_wrong([path for path in files_of(scene.counts.path) if path.suffix in (".delta", ".snapshot")], ask)


def test_a_savepoint(scene: Pipeline, tmp_path: Path) -> None:
    uri, _ = take(scene.store, PIPELINE, str(tmp_path / "savepoints"), "a test")

    def ask() -> object:
        with state.open_savepoint(uri) as found:
            return {entry.key["k"]: entry.value["count"] for entry in found.scan(0)}

    assert_never_wrong(files_of(local_path(uri)), ask)


def test_rocksdb(tmp_path: Path) -> None:
    """A full snapshot, and changes of both forms and codecs."""
    values = {write_row(KEY, [f"key-{n}"]): write_row(VALUE, [n]) for n in range(20)}
    rocks(tmp_path, 3, values)
    key = write_row(KEY, ["key-7"])
    (tmp_path / "4.changelog").write_bytes(compressed(marked(2, (PUT, key, write_row(VALUE, [70])))))
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(records({write_row(KEY, ["key-8"]): None}))
    (tmp_path / "5.changelog").write_bytes(sink.getvalue().to_pybytes())
    hadoop_sums(tmp_path / "5.changelog")  # this codec has none of its own, as Spark uses it
    files = [*tmp_path.glob("*.changelog"), *tmp_path.glob("*.zip"), *tmp_path.glob("SSTs/*")]

    def ask() -> object:
        found = open_version(tmp_path.as_uri(), 5)
        try:
            return dict(found.items()), [found.get(each) for each in values]
        finally:
            found.close()

    assert len(files) == 4
    assert_never_wrong(files, ask)


def test_what_the_next_attempt_goes_on_from(tmp_path: Path) -> None:
    """Positions, read files and notes. Spark writes no checksums beside its logs here, so sealing does."""
    location = SparkLocation(str(tmp_path), PIPELINE, (tmp_path / PIPELINE / "spark" / "1-1").as_uri(), 1)
    read = [{"path": f"file:///in/{name}.json", "timestamp": 7, "batchId": at} for at, name in enumerate("ab")]
    for name, text in {
        **{f"offsets/{batch}": f'v1\n{{}}\n{{"logOffset":{batch}}}\n{{"orders":{{"0":{batch}}}}}' for batch in (0, 1)},
        **{f"commits/{batch}": 'v1\n{"nextBatchWatermarkMs":1000}' for batch in (0, 1)},
        **{f"sources/0/{at}": f"v1\n{json.dumps(each)}" for at, each in enumerate(read)},
        "sources/1/0": '\x00v1\n{"orders":{"0":12345}}',
        "metadata": '{"id":"11111111-2222-3333-4444-555555555555"}',
    }.items():
        (path := local_path(location.uri) / name).parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    check_sources(location, ["files", "orders"])
    record_ids(location, 1, {1: {"orders": "A"}})
    seal(location.uri, Lacking(logs=True), first=True)
    files = filesystem(location.uri)

    def ask() -> object:
        return (
            location.sources(),
            location_status(SparkPosition(location.uri, 1)),
            begins_at(location.uri, 1),
            source_log.all_entries(files, location.uri, "0", 1),
            entry(location.uri, COMMITS, 1),
            recorded_ids(location),
        )

    looked_at = ("offsets/1", "commits/1", "sources/0/0", "sources/0/1", "sources/1/0", SOURCES_FILE, f"{TOPICS}/1")
    assert_never_wrong([local_path(location.uri) / name for name in looked_at], ask)


def test_state_that_is_compressed_with_zstd(tmp_path: Path) -> None:
    """Spark's zstd has no checksums, so the changes are sealed."""
    folder, key = tmp_path / "state" / "0" / "0", write_row(KEY, ["a"])
    folder.mkdir(parents=True)
    for version in (1, 2):
        sink = pa.BufferOutputStream()
        with pa.CompressedOutputStream(sink, "zstd") as stream:
            stream.write(records({key: write_row(VALUE, [version]), write_row(KEY, ["b"]): write_row(VALUE, [7])}))
        (folder / f"{version}.delta").write_bytes(sink.getvalue().to_pybytes())
    seal(tmp_path.as_uri(), Lacking(logs=True, state=True), first=True)
    assert_never_wrong([folder / "2.delta"], lambda: dict(open_version(folder.as_uri(), 2).items()))


def test_where_sources_begin(tmp_path: Path) -> None:
    path = tmp_path / "begun-0.json"
    path.write_bytes(json_with_digest({"first": '\x00v1\n{"orders":{"0":12345}}', "ids": {"orders": "A"}}))
    assert_never_wrong([path], lambda: read_json(path.as_uri()))
