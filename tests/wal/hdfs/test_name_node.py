"""A NameNode that dies, does not answer, or has no space left."""

from __future__ import annotations

import errno
import uuid
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from airflow_ft.protocol.errors import StorageUnavailableError
from airflow_ft.wal import hdfs as hdfs_module
from airflow_ft.wal import open_wal
from airflow_ft.wal.filesystem import filesystem
from airflow_ft.wal.writer import SegmentFolder, write_segment
from tests.raising import raises
from tools.servers import Hdfs

pytestmark = [pytest.mark.timeout(300), pytest.mark.sampled(among="HDFS")]


@pytest.fixture
def own_hdfs(servers_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hdfs]:
    with Hdfs(servers_folder / f"hdfs-{uuid.uuid4().hex[:8]}") as server:
        monkeypatch.setenv("HADOOP_USER_NAME", server.user)
        yield server


def test_a_name_node_that_dies_stands_still_or_is_full(own_hdfs: Hdfs, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is told, and nothing is lost: the same process goes on when it is back."""
    root = f"{own_hdfs.url}/wal"
    files = filesystem(root)
    table = pa.table({"id": range(1000)})
    segment = write_segment(SegmentFolder(root, "p", 1, 1, 0), 1, {"rows": table})
    own_hdfs.kill()
    with raises(StorageUnavailableError, "server_unreachable"):
        open_wal().open(segment)
    own_hdfs.start()
    reader = open_wal().open(segment)
    [file] = reader.files("rows")
    assert pa.Table.from_batches(reader.batches("rows", file)) == table

    own_hdfs.pause()
    with monkeypatch.context() as patch:
        patch.setattr(hdfs_module, "TIMEOUT", 1.0)
        with raises(StorageUnavailableError, "server_unreachable", errno=errno.ETIMEDOUT):
            files.exists(root)
    own_hdfs.resume()
    assert files.exists(root)

    own_hdfs.admin("-setSpaceQuota", "1m", "/wal")
    with raises(StorageUnavailableError, "limit_reached", errno=errno.EDQUOT):
        write_segment(SegmentFolder(root, "p", 1, 2, 0), 2, {"rows": table})
    own_hdfs.admin("-clrSpaceQuota", "/wal")
    write_segment(SegmentFolder(root, "p", 1, 3, 0), 2, {"rows": table})
