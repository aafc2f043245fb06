"""One flipped bit in a file of state gives the right answer or WalCorruptError: never another answer."""

from __future__ import annotations

import random
import struct
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from airflow_ft import state
from airflow_ft.core.errors import NewerReleaseError, WalCorruptError
from airflow_ft.savepoints.taking import take
from airflow_ft.state.rows import write_row
from airflow_ft.state.versions import open_version
from airflow_ft.wal.filesystem import local_path
from tests.state.scene import KEY, VALUE, Pipeline, compressed, pipeline, records
from tests.state.test_files import PUT, marked, rocks
from tests.store.scene import PIPELINE

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
