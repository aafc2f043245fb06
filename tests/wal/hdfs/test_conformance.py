"""Promises of every file system of the log, of a real HDFS, and what only a NameNode can do."""

from __future__ import annotations

import io
import time
import uuid
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_ft.protocol.errors import ConfigurationError, ExternalRowsError, StorageUnavailableError
from airflow_ft.wal import hdfs as hdfs_module
from airflow_ft.wal.filesystem import filesystem, link_tree
from airflow_ft.wal.incoming import ParquetRows
from tests.raising import raises
from tests.wal.test_conformance import (
    ALL,
    test_a_copy_holds_what_is_kept_and_goes_its_own_way,
    test_a_copy_of_what_is_replaced_meanwhile_is_taken_anew,
    test_a_file_appears_once_and_whole_and_is_not_replaced,
    test_a_file_is_read_in_pieces_and_from_anywhere,
    test_a_file_under_a_second_name_stays_when_the_first_goes,
    test_a_folder_gets_another_name_once,
    test_a_root_without_its_marker_is_unavailable_not_damaged,
    test_only_one_racing_writer_creates_a_file_or_folder,
    test_segments_are_written_read_and_swept,
    test_what_is_not_there,
)
from tools.servers import Hdfs

pytestmark = [pytest.mark.timeout(300), pytest.mark.sampled(among="HDFS")]

__all__ = [
    "test_a_copy_holds_what_is_kept_and_goes_its_own_way",
    "test_a_copy_of_what_is_replaced_meanwhile_is_taken_anew",
    "test_a_file_appears_once_and_whole_and_is_not_replaced",
    "test_a_file_is_read_in_pieces_and_from_anywhere",
    "test_a_file_under_a_second_name_stays_when_the_first_goes",
    "test_a_folder_gets_another_name_once",
    "test_a_root_without_its_marker_is_unavailable_not_damaged",
    "test_only_one_racing_writer_creates_a_file_or_folder",
    "test_segments_are_written_read_and_swept",
    "test_what_is_not_there",
]


@pytest.fixture
def root(hdfs: Hdfs) -> str:
    return f"{hdfs.url}/{uuid.uuid4().hex}"


def test_a_folder_or_a_file_has_rows(root: str) -> None:
    file = io.BytesIO()
    pq.write_table(pa.table({"id": [1]}), file)
    files = filesystem(root)
    files.write(files.uri(root, "a.parquet"), file.getvalue())
    for location in (root, f"{root}/a.parquet"):
        rows = ParquetRows(location)
        assert [batch.to_pydict() for batch in rows.batches()] == [{"id": [1]}]
        rows.require_unchanged()
    with raises(ExternalRowsError, "files_none"):
        ParquetRows(f"{root}/nothing")


def test_from_one_file_system_to_the_other(hdfs: Hdfs, tmp_path: Path) -> None:
    """As a savepoint is that lies elsewhere than the log."""
    one, two = str(tmp_path / "one"), f"{hdfs.url}/{uuid.uuid4().hex}"
    filesystem(one).write(filesystem(one).uri(one, "a", "b"), b"text")
    filesystem(one).write(filesystem(one).uri(one, "left out"), b"")
    assert link_tree(one, two, lambda name: name.parts[0] == "a") == 1
    assert link_tree(two, str(tmp_path / "three"), ALL) == 1
    assert (tmp_path / "three" / "a" / "b").read_text() == "text"


def test_who_may_not_write_is_told_whom_to_ask(hdfs: Hdfs, monkeypatch: pytest.MonkeyPatch) -> None:
    root = f"{hdfs.url}/{uuid.uuid4().hex}"
    filesystem(root).make_folder(root)
    hdfs_module._client(f"{hdfs.host}:{hdfs.port}").set_permission(root.removeprefix(hdfs.url), 0o755)
    monkeypatch.setenv("HADOOP_USER_NAME", "mallory")
    with raises(StorageUnavailableError, "privilege_missing") as refused:
        filesystem(root).write(f"{root}/x", b"")
    assert refused.error is not None
    assert "user=mallory, access=WRITE" in refused.error.headline and "HADOOP_USER_NAME" in refused.error.remedy


def test_what_is_no_name_node_is_named(hdfs: Hdfs) -> None:
    for authority in ("127.0.0.1:1", "no-such-host.invalid:8020"):
        with raises(StorageUnavailableError, "server_unreachable", path=f"hdfs://{authority}/wal"):
            filesystem(f"hdfs://{authority}/wal").exists(f"hdfs://{authority}/wal")
    with raises(ConfigurationError, "namenode_unknown", path="hdfs://cluster/wal"):
        filesystem("hdfs://cluster/wal").exists("hdfs://cluster/wal")


def test_a_copy_does_not_wait_for_who_died_while_it_wrote(hdfs: Hdfs) -> None:
    """The file has no end then, for as long as the NameNode believes in its writer."""
    root = f"{hdfs.url}/{uuid.uuid4().hex}"
    files = filesystem(root)
    files.write(files.uri(root, "old", "whole"), b"whole")
    dead = files.create(files.uri(root, "old", "half"))
    dead.write(b"half")
    files.link_tree(files.uri(root, "old"), files.uri(root, "copy"), ALL)
    assert files.read(files.uri(root, "copy", "whole")) == b"whole"
    files.remove_tree(root)


def test_a_file_that_another_one_replaces_has_another_mark(hdfs: Hdfs) -> None:
    """Also with as many bytes: a stage must notice when its rows are written again while it reads."""
    root = f"{hdfs.url}/{uuid.uuid4().hex}"
    files = hdfs_module.HdfsFileSystem()
    files.write(files.uri(root, "in", "a.parquet"), b"one")
    before = files.marks(files.uri(root, "in"))
    assert before == files.marks(files.uri(root, "in")) and list(before) == ["a.parquet"]
    [(_, written_at)] = before.values()
    while time.time_ns() // 1_000_000 <= written_at:  # the NameNode counts milliseconds of this machine's clock
        pass
    files.remove_tree(files.uri(root, "in"))
    files.write(files.uri(root, "in", "a.parquet"), b"two")
    assert before != files.marks(files.uri(root, "in"))
    files.remove_tree(root)
