"""Promises of every file system of the log, of a real S3 server, and what only a bucket does."""

from __future__ import annotations

import os
import uuid
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import obstore
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from obstore.exceptions import AlreadyExistsError

from airflow_ft.clients import buckets, objects
from airflow_ft.clients.buckets import BucketPlace, BucketSettings, settings_of
from airflow_ft.protocol.errors import StorageUnavailableError, WalCorruptError
from airflow_ft.wal import open_wal, s3
from airflow_ft.wal.filesystem import FileSystem, filesystem, link_tree
from airflow_ft.wal.incoming import ParquetRows
from airflow_ft.wal.retention import sweep
from airflow_ft.wal.writer import SegmentFolder, write_segment
from tests.integration.proxy import Proxy
from tests.raising import raises
from tests.sinks.files.bucket import ELSEWHERE
from tests.wal.s3.conftest import connection_of
from tests.wal.test_conformance import (
    ALL,
    test_a_copy_holds_what_is_kept_and_goes_its_own_way,
    test_a_copy_of_what_is_replaced_meanwhile_is_taken_anew,
    test_a_file_appears_once_and_whole_and_is_not_replaced,
    test_a_file_is_read_in_pieces_and_from_anywhere,
    test_a_file_under_a_second_name_stays_when_the_first_goes,
    test_a_root_without_its_marker_is_unavailable_not_damaged,
    test_only_one_racing_writer_creates_a_file_or_folder,
    test_segments_are_written_read_and_swept,
    test_what_is_not_there,
)
from tools.servers import VersityGw

pytestmark = [pytest.mark.timeout(300)]

__all__ = [
    "test_a_copy_holds_what_is_kept_and_goes_its_own_way",
    "test_a_copy_of_what_is_replaced_meanwhile_is_taken_anew",
    "test_a_file_appears_once_and_whole_and_is_not_replaced",
    "test_a_file_is_read_in_pieces_and_from_anywhere",
    "test_a_file_under_a_second_name_stays_when_the_first_goes",
    "test_a_root_without_its_marker_is_unavailable_not_damaged",
    "test_only_one_racing_writer_creates_a_file_or_folder",
    "test_segments_are_written_read_and_swept",
    "test_what_is_not_there",
]


def test_files_of_several_parts_and_those_whose_writer_died(root: str, files: FileSystem) -> None:
    data = os.urandom(11 << 20)
    with files.create(files.uri(root, "large")) as file:
        file.write(data[: 6 << 20])
        assert not files.exists(files.uri(root, "large"))
        file.write(data[6 << 20 :])
    assert files.read(files.uri(root, "large")) == data
    for size in (10, 11 << 20):
        with pytest.raises(ZeroDivisionError), files.create(files.uri(root, "half")) as file:
            file.write(bytes(size))
            raise ZeroDivisionError
        assert not files.exists(files.uri(root, "half"))
    for size in (10, 11 << 20):
        with pytest.raises(FileExistsError), files.create(files.uri(root, "large")) as file:
            file.write(bytes(size))
    assert files.read(files.uri(root, "large")) == data


def test_folder_markers_of_s3a_are_not_listed_and_are_removed(root: str, files: FileSystem) -> None:
    place = BucketPlace.of(root)
    for name in ("state", "state/0"):
        marked = s3._folder_store(os.getpid(), place.bucket, f"{place.key}/{name}", settings_of(place))
        obstore.put(marked, "", b"", use_multipart=False)
    files.write(files.uri(root, "state", "0", "empty"), b"")
    assert files.tree(root) == {"state/0/empty": 0} and files.names(files.uri(root, "state")) == ["0"]
    files.remove_tree(files.uri(root, "state"))
    assert not files.exists(files.uri(root, "state")) and files.names(root) == []


def test_from_a_bucket_to_a_disk_to_another_bucket(root: str, versitygw: VersityGw, tmp_path: Path) -> None:
    one, other = str(tmp_path / "one"), root.replace("lake@", "other@")
    filesystem(one).write(filesystem(one).uri(one, "a", "b"), b"text")
    filesystem(one).write(filesystem(one).uri(one, "left out"), b"")
    assert link_tree(one, root, lambda name: name.parts[0] == "a") == 1
    assert link_tree(root, f"{other}/copy", ALL) == 1
    assert link_tree(f"{other}/copy", str(tmp_path / "three"), ALL) == 1
    assert (tmp_path / "three" / "a" / "b").read_text() == "text"


def test_retention_under_another_connection_keeps_what_is_needed(root: str) -> None:
    table = pa.table({"id": [1]})
    needed, old = (write_segment(SegmentFolder(root, "p", epoch, 1, 0), 1, {"rows": table}) for epoch in (1, 2))
    renamed = root.replace("lake@", "other@")
    assert sweep(renamed, "p", [needed.location], 9) == [f"{renamed}/p/2-1"]
    assert open_wal().open(needed).sinks() == ["rows"]
    with pytest.raises(WalCorruptError):
        open_wal().open(old)


@pytest.mark.parametrize("kind", ["lost request", "lost reply"])
def test_a_put_whose_answer_is_lost_is_settled_by_its_content(versitygw: VersityGw, root: str, kind: str) -> None:
    with Proxy(versitygw.port) as proxy:
        through = connection_of(versitygw, endpoint_url=f"http://127.0.0.1:{proxy.port}")
        buckets.learn(BucketSettings.of(through))
        files = filesystem(root)
        assert not files.exists(files.uri(root, "origin"))
        proxy.cut(kind, b"if-none-match")
        files.write(files.uri(root, "origin"), b"one")
        assert proxy.cuts == 1
        proxy.cut(kind, b"if-none-match")
        with pytest.raises(FileExistsError):
            files.write(files.uri(root, "origin"), b"two")
        proxy.cut(kind, b"if-none-match")
        files.make_folder(files.uri(root, "folder"))
        assert proxy.cuts == 3
        with pytest.raises(FileExistsError):
            files.make_folder(files.uri(root, "folder"))
    buckets.learn(BucketSettings.of(connection_of(versitygw)))
    assert files.read(files.uri(root, "origin")) == b"one"


def test_a_conflict_is_no_proof_that_the_object_is_there(
    root: str, files: FileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client reports 409 and 412 alike. A 409 says that another put is under way, which may fail."""
    file, put, refused = files.uri(root, "origin"), obstore.put, [1, 2]

    def conflicting(*of: Any, **more: Any) -> Any:
        if refused:
            refused.pop()
            raise AlreadyExistsError("409 Conflict")
        return put(*of, **more)

    monkeypatch.setattr(obstore, "put", conflicting)
    files.write(file, b"one")
    assert files.read(file) == b"one" and not refused
    pauses: list[float] = []
    monkeypatch.setattr(objects, "time", SimpleNamespace(sleep=pauses.append))
    refused += range(100)
    for _ in range(2):
        with raises(StorageUnavailableError, "server_unreachable", path=files.uri(root, "other")):
            files.write(files.uri(root, "other"), b"one")
    first, second = pauses[:12], pauses[12:]
    assert first != second, "two writers that have collided wait for different times"


def test_who_is_refused_or_finds_no_bucket_is_told(versitygw: VersityGw, root: str) -> None:
    buckets.learn(BucketSettings.of(replace(connection_of(versitygw), password="wrong-secret")))
    with raises(StorageUnavailableError, "access_refused", path=f"{root}/x") as refused:
        filesystem(root).read(f"{root}/x")
    for told in (vars(refused.error), settings_of(BucketPlace.of(root))):
        assert "wrong-secret" not in repr(told)
    buckets.learn(BucketSettings.of(connection_of(versitygw)))
    for wrong in ({"region_name": "eu-north-1"}, {"aws_session_token": "expired"}):
        buckets.learn(BucketSettings.of(connection_of(versitygw, **wrong)))
        for ask in (filesystem(root).read, filesystem(root).exists):  # the answer to HEAD has no reason
            with raises(StorageUnavailableError, "access_refused", path=f"{root}/x") as refused:
                ask(f"{root}/x")
            assert next(iter(wrong)) in refused.error.remedy
    buckets.learn(BucketSettings.of(connection_of(versitygw)))
    nowhere = root.replace(f"@{versitygw.bucket}/", "@nowhere/")
    with raises(StorageUnavailableError, "bucket_missing", path=f"{nowhere}/x"):
        filesystem(nowhere).write(f"{nowhere}/x", b"")


def test_aws_environment_variables_do_not_mix_with_a_connection(
    versitygw: VersityGw, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in ELSEWHERE.items():
        monkeypatch.setenv(name, value)
    root = f"s3://lake@{versitygw.bucket}/{uuid.uuid4().hex}"
    s3._store.cache_clear()
    filesystem(root).write(f"{root}/x", b"one")
    assert filesystem(root).read(f"{root}/x") == b"one"
    with raises(StorageUnavailableError, "server_unreachable"):
        plain = root.replace("lake@", "")
        filesystem(plain).read(f"{plain}/x")


def test_a_store_that_dies_loses_nothing(own_versitygw: VersityGw) -> None:
    buckets.learn(BucketSettings.of(connection_of(own_versitygw, "own")))
    root = f"s3://own@{own_versitygw.bucket}/wal"
    segment = write_segment(SegmentFolder(root, "p", 1, 1, 0), 1, {"rows": pa.table({"id": range(1000)})})
    own_versitygw.kill()
    with raises(StorageUnavailableError, "server_unreachable"):
        open_wal().open(segment)
    own_versitygw.start()
    reader = open_wal().open(segment)
    [file] = reader.files("rows")
    assert sum(batch.num_rows for batch in reader.batches("rows", file)) == 1000


@pytest.mark.parametrize("reader", ["segment", "folder of a program"])
def test_a_store_that_hangs_up_amid_a_file_is_unavailable(
    versitygw: VersityGw, root: str, tmp_path: Path, reader: str
) -> None:
    """A file over `SMALL` is downloaded while its rows are read."""
    table = pa.table({"text": [os.urandom(100) for _ in range(100_000)]})
    with Proxy(versitygw.port) as proxy:
        through = connection_of(versitygw, endpoint_url=f"http://127.0.0.1:{proxy.port}")
        buckets.learn(BucketSettings.of(through))
        if reader == "segment":
            opened = open_wal().open(write_segment(SegmentFolder(root, "p", 1, 1, 0), 1, {"rows": table}))
            rows = opened.batches("rows", opened.files("rows")[0])
        else:
            pq.write_table(table, tmp_path / "x.parquet", row_group_size=20_000, compression="none")
            filesystem(root).write(f"{root}/x.parquet", (tmp_path / "x.parquet").read_bytes())
            rows = ParquetRows(root).batches()
        next(rows)
        for _ in range(5):  # with its repetitions
            proxy.cut("lost request", b"range: bytes")
        with raises(StorageUnavailableError, "server_unreachable"):
            list(rows)
        assert proxy.cuts == 5
