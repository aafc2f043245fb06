"""Promises of every file system of the log, here of the local one; tests/wal/hdfs plays the same on HDFS."""

from __future__ import annotations

import io
import os
import threading
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_ft.clients.buckets import BucketSettings
from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.errors import ConfigurationError, StorageUnavailableError, WalCorruptError
from airflow_ft.wal import open_wal, roots
from airflow_ft.wal.filesystem import FileSystem, filesystem, identity, link_file
from airflow_ft.wal.markers import MARKER
from airflow_ft.wal.retention import sweep
from airflow_ft.wal.writer import SegmentFolder, write_segment
from tests.raising import raises

pytestmark = pytest.mark.timeout(300)
ALL: Callable[[PurePosixPath], bool] = lambda name: True  # noqa: E731


def test_a_file_appears_once_and_whole_and_is_not_replaced(root: str, files: FileSystem) -> None:
    file = files.uri(root, "a", "b c", "1%.json")
    assert not files.exists(file)
    files.write(file, b"one")
    assert files.exists(file) and files.read(file) == b"one" and files.size(file) == 3
    with pytest.raises(FileExistsError):
        files.write(file, b"two")
    assert files.read(file) == b"one"
    files.replace(file, b"three")
    files.replace(files.uri(root, "new"), b"")
    assert files.read(file) == b"three" and files.read(files.uri(root, "new")) == b""
    assert files.names(files.uri(root, "a", "b c")) == ["1%.json"], "nothing is left beside it"
    files.remove(file)
    files.remove(file)
    assert files.tree(root) == {"new": 0}


def test_a_root_without_its_marker_is_unavailable_not_damaged(root: str, files: FileSystem) -> None:
    known: dict[str, str] = {}

    class Log:
        def root(self, uri: str) -> str | None:
            return known.get(uri)

        def remember_root(self, uri: str, id: str) -> str:
            return known.setdefault(uri, id)

        def locations_below(self, uri: str) -> frozenset[str]:
            return frozenset()

    log = Log()
    roots.claim(log, root)
    segment = write_segment(SegmentFolder(root, "p", 1, 1, 0), 1, {"rows": pa.table({"id": [1]})})
    marker = files.uri(root, MARKER)
    kept = files.read(marker)
    files.remove(marker)
    for asking in (
        lambda: open_wal().open(segment),
        lambda: files.read(files.uri(root, "nowhere")),
        lambda: roots.claim(log, root),
        lambda: sweep(root, "p", [], 9),
    ):
        with pytest.raises(StorageUnavailableError):
            asking()
    assert not files.exists(marker)
    files.write_marker(marker, kept)
    roots.claim(log, root)
    assert open_wal().open(segment).sinks() == ["rows"]
    with pytest.raises(WalCorruptError):
        files.read(files.uri(root, "nowhere"))


def test_a_folder_gets_another_name_once(root: str, files: FileSystem) -> None:
    staged, visible = files.uri(root, "_staged", "42.1-1"), files.uri(root, "checkpoint=42")
    for folder in (staged, files.uri(root, "_staged", "42.1-2")):
        files.write(files.uri(folder, "a=1%2F2", "part"), folder.encode())
    files.rename_folder(staged, visible)
    assert files.tree(visible) == {"a=1%2F2/part": len(staged)} and not files.exists(staged)
    with pytest.raises(FileNotFoundError):
        files.rename_folder(staged, files.uri(root, "checkpoint=43"))
    with pytest.raises(FileExistsError):
        files.rename_folder(files.uri(root, "_staged", "42.1-2"), visible)
    files.write(files.uri(root, "a file"), b"")
    with pytest.raises(FileExistsError):
        files.rename_folder(files.uri(root, "_staged", "42.1-2"), files.uri(root, "a file"))
    assert files.read(files.uri(visible, "a=1%2F2", "part")) == staged.encode(), "and nothing was moved into it"
    assert sorted(files.names(root)) == ["_staged", "a file", "checkpoint=42"]


def test_a_file_under_a_second_name_stays_when_the_first_goes(root: str, files: FileSystem, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_bytes(b"from another place")
    files.write(files.uri(root, "first"), b"rows")
    for source, target in (
        (files.uri(root, "first"), files.uri(root, "new", "second")),
        (str(tmp_path / "elsewhere"), files.uri(root, "new", "third")),
    ):
        link_file(source, target)
    files.remove(files.uri(root, "first"))
    assert files.read(files.uri(root, "new", "second")) == b"rows"
    assert files.read(files.uri(root, "new", "third")) == b"from another place"


def test_what_is_not_there(root: str, files: FileSystem) -> None:
    nowhere = files.uri(root, "nowhere")
    assert files.names(nowhere) == [] and files.tree(nowhere) == {} and not files.exists(nowhere)
    with pytest.raises(FileNotFoundError):
        files.size(nowhere)
    for call in (files.read, files.open):
        with raises(WalCorruptError, "file_missing", path=nowhere):
            call(nowhere)
    files.remove_tree(nowhere)
    with raises(WalCorruptError, "file_missing", path=nowhere):
        files.link_tree(nowhere, files.uri(root, "copy"), ALL)


def test_only_one_racing_writer_creates_a_file_or_folder(root: str, files: FileSystem) -> None:
    won: list[bytes] = []
    made: list[bytes] = []
    ready = threading.Barrier(8)

    def race(name: bytes) -> None:
        ready.wait()
        try:
            files.write(files.uri(root, "origin"), name)
            won.append(name)
        except FileExistsError:
            pass
        try:
            files.make_folder(files.uri(root, "attempts", "1-1"))
            made.append(name)
        except FileExistsError:
            pass

    racers = [threading.Thread(target=race, args=(str(n).encode(),)) for n in range(8)]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join()
    assert won == [files.read(files.uri(root, "origin"))] and len(made) == 1


def test_a_file_is_read_in_pieces_and_from_anywhere(root: str, files: FileSystem) -> None:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as made:
        made.writestr("metadata", "v1\n{}")
    files.write(files.uri(root, "1.zip"), archive.getvalue())
    with files.open(files.uri(root, "1.zip")) as file, zipfile.ZipFile(file) as found:
        assert found.read("metadata") == b"v1\n{}"
    data = os.urandom(3_000_000)
    with files.create(files.uri(root, "sub", "large")) as file:
        file.write(data[:10])
        file.write(data[10:])
        files.sync_file(file)
    with files.open(files.uri(root, "sub", "large")) as file:
        assert file.read(7) == data[:7]
        file.seek(-5, os.SEEK_END)
        assert file.read() == data[-5:] and file.read() == b""
        file.seek(1_500_000)
        assert file.tell() == 1_500_000 and file.read() == data[1_500_000:]
    table = pa.table({"n": range(1000)})
    with files.create(files.uri(root, "t.parquet")) as file:
        pq.write_table(table, file)
    with files.open(files.uri(root, "t.parquet")) as file:
        assert pq.ParquetFile(file, pre_buffer=False, buffer_size=1 << 20).read() == table


def test_a_copy_holds_what_is_kept_and_goes_its_own_way(root: str, files: FileSystem) -> None:
    for name in ("offsets/0", "offsets/1", "state/0/0/1.zip", "state/0/0/.1.zip.crc"):
        files.write(files.uri(root, "old", *name.split("/")), name.encode())
    copy = files.uri(root, "copy")
    assert files.link_tree(files.uri(root, "old"), copy, lambda name: str(name) != "offsets/1") == 3
    files.sync_tree(copy, root, {})
    assert set(files.tree(copy)) == {"offsets/0", "state/0/0/1.zip", "state/0/0/.1.zip.crc"}
    files.replace(files.uri(copy, "offsets", "0"), b"changed")
    assert files.read(files.uri(root, "old", "offsets", "0")) == b"offsets/0"
    with pytest.raises(FileExistsError):
        files.link_tree(files.uri(root, "old"), copy, ALL)
    files.remove_tree(files.uri(root, "old"))
    assert not files.exists(files.uri(root, "old")) and files.read(files.uri(copy, "state/0/0/1.zip"))


def test_a_copy_of_what_is_replaced_meanwhile_is_taken_anew(
    root: str, files: FileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log is compacted between the listing and the copy of its files."""
    old = files.uri(root, "old")
    for number in range(3):
        files.write(files.uri(old, str(number)), b"x")
    asked: list[str] = []

    def keep(name: PurePosixPath) -> bool:
        if not asked:
            files.write(files.uri(old, "2.compact"), b"all")
            for number in range(3):
                files.remove(files.uri(old, str(number)))
        asked.append(str(name))
        return True

    files.link_tree(old, files.uri(root, "copy"), keep)
    assert files.tree(files.uri(root, "copy")) == {"2.compact": 3}


def test_segments_are_written_read_and_swept(root: str, files: FileSystem) -> None:
    table = pa.table({"id": range(100), "name": [f"name {n}" for n in range(100)]})
    folders = [SegmentFolder(root, "p", epoch, 1, 0) for epoch in (1, 2)]
    first, second = [write_segment(folder, 1, {"rows": table, "copies": table}) for folder in folders]
    reader = open_wal().open(first)
    for sink in ("rows", "copies"):
        [file] = reader.files(sink)
        assert pa.Table.from_batches(reader.batches(sink, file)) == table
    files.make_folder(files.uri(root, "p", "spark", "1-1"))
    assert set(sweep(root, "p", [second.location], 2)) == {
        files.uri(root, "p", "1-1"),
        files.uri(root, "p", "spark", "1-1"),
    }
    assert sweep(root, "p", [second.location], 3) == [] and open_wal().open(second).files("rows")

    part = files.uri(second.location, *reader.files("rows")[0].path.split("/"))
    files.replace(part, files.read(part)[:-1] + b"!")
    reader = open_wal().open(second)
    with raises(WalCorruptError, "checksum_mismatch", path=part):
        list(reader.batches("rows", reader.files("rows")[0]))


# --- addresses of HDFS ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("uri", ["hdfs:///wal", "hdfs://spark@127.0.0.1:8020/wal", "hdfs://127.0.0.1:8020"])
def test_a_place_has_a_name_node_and_a_path_and_no_user(uri: str) -> None:
    with raises(ConfigurationError, "path_invalid", path=uri.replace("spark@", "...@")):
        filesystem(uri)


def test_a_place_is_spelled_in_one_way() -> None:
    files = filesystem("hdfs://nn:8020/wal/")
    assert files.uri("hdfs://nn:8020//wal/", "a b%20", "1") == "hdfs://nn:8020/wal/a b%20/1"
    assert files.hadoop_path("hdfs://nn:8020/wal/?#/") == "hdfs://nn:8020/wal/?#"


def test_without_the_client_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "hdfs_native", None)
    with raises(ConfigurationError, "package_missing", package="hdfs-native"):
        filesystem("hdfs://nowhere:1/").exists("hdfs://nowhere:1/")


# --- addresses of buckets ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "uri", ["s3://lake@bucket", "s3:///wal", "s3://key:secret@bucket/wal", "s3://b/a/../c", "s3://B/a"]
)
def test_a_place_has_a_bucket_and_a_folder_and_no_keys(uri: str) -> None:
    with raises(ConfigurationError, "path_invalid") as refused:
        filesystem(uri)
    assert "secret" not in repr(vars(refused.error))


def test_a_place_in_a_bucket_is_spelled_in_one_way() -> None:
    files = filesystem("s3://lake@bucket/wal/")
    assert files.uri("s3://lake@bucket//wal/", "a b%20", "1") == "s3://lake@bucket/wal/a b%20/1"
    assert files.hadoop_path("s3://lake@bucket/wal/1%") == "s3a://bucket/wal/1%"
    assert identity("s3://lake@bucket/wal/") == identity("s3://other@bucket/wal") != identity("s3://lake@other/wal")


@pytest.mark.parametrize(
    ("changed", "fields"),
    [
        ({"extra": {"endpoint_url": "minio:9000"}}, ["endpoint_url"]),
        ({"extra": {"endpoint_url": "https://key:hidden@minio"}}, ["endpoint_url"]),
        ({"login": ""}, ["login", "password"]),
        ({"password": ""}, ["login", "password"]),
    ],
)
def test_a_connection_that_leads_to_no_bucket_is_refused(changed: dict[str, Any], fields: list[str]) -> None:
    """An endpoint without a scheme would make the client panic."""
    connection = replace(ConnectionInfo("lake", "aws", login="me", password="hidden"), **changed)
    with raises(ConfigurationError, "connection_invalid", fields=fields) as refused:
        BucketSettings.of(connection)
    assert "hidden" not in repr(vars(refused.error))


def test_keys_of_the_environment_are_taken_whole_or_not_at_all() -> None:
    keys = {"AWS_ACCESS_KEY_ID": "me", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_DEFAULT_REGION": "eu-west-1"}
    found = BucketSettings.from_environment(keys)
    assert (found.endpoint, found.region, found.session_token) == (
        "https://s3.eu-west-1.amazonaws.com",
        "eu-west-1",
        "",
    )
    for lacking in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        with raises(ConfigurationError, "connection_invalid", fields=["login", "password"]):
            BucketSettings.from_environment({**keys, lacking: ""})
    with raises(ConfigurationError, "connection_invalid", fields=["endpoint_url"]):
        BucketSettings.from_environment({**keys, "AWS_ENDPOINT": "minio:9000"})
