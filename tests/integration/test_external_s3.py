"""Rows of other programs with the log in a bucket, and from a folder in a bucket."""

from __future__ import annotations

import io
import json
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from airflow.sdk.exceptions import AirflowSkipException

from airflow_ft.clients import buckets
from airflow_ft.protocol.errors import ExternalRowsError, StageError
from airflow_ft.wal.filesystem import filesystem
from airflow_ft.wal.incoming import ParquetRows
from airflow_ft.wal.incoming_files import sink_folders
from tests.integration.test_external import (
    Programs,
    test_a_killed_script_is_run_again,
    test_a_spark_job_delivers_with_its_last_line,
)
from tests.operators.test_external import Flow
from tests.raising import raises
from tests.wal.s3.conftest import connection_of
from tools.servers import VersityGw

pytestmark = [pytest.mark.server, pytest.mark.slow, pytest.mark.timeout(1200)]
__all__ = ["test_a_killed_script_is_run_again", "test_a_spark_job_delivers_with_its_last_line"]
ROWS = pa.table({"id": pa.array([1, 2], pa.int64())})


@pytest.fixture
def root(versitygw: VersityGw) -> Iterator[str]:
    buckets.resolve_with(lambda conn_id: connection_of(versitygw, conn_id))
    yield versitygw.place(uuid.uuid4().hex)
    buckets.forget()


@pytest.fixture
def programs(tmp_path: Path, versitygw: VersityGw, root: str) -> Iterator[Programs]:
    """The log is in a bucket; of pyspark's own rows nothing is left on this machine."""
    made = Programs(tmp_path)
    (tmp_path / "tmp").mkdir()
    made.variables |= {
        "AIRFLOW_CONN_LAKE": json.dumps({"conn_type": "aws", **versitygw.connection()}),
        "AIRFLOW__AIRFLOW_FT__WAL_ROOT": root,
        "TMPDIR": str(tmp_path / "tmp"),
    }
    yield made
    assert filesystem(root).tree(root) and not (tmp_path / "home" / "airflow_ft" / "wal").exists()
    assert not list((tmp_path / "tmp").glob("airflow-ft-given-*"))


def put(folder: str, rows: pa.Table = ROWS, name: str = "part-00000.parquet") -> None:
    file = io.BytesIO()
    pq.write_table(rows, file)
    files = filesystem(folder)
    files.replace(files.uri(folder, name), file.getvalue())


def test_a_folder_or_a_file_in_a_bucket(root: str) -> None:
    put(root)
    put(root, name="_hidden")
    for location in (root, f"{root}/part-00000.parquet"):
        rows = ParquetRows(location)
        assert [batch.to_pydict() for batch in rows.batches()] == [{"id": [1, 2]}]
        rows.require_unchanged()
    put(root, name="part-00001.parquet")
    rows.require_unchanged()  # of another file
    put(root, ROWS.take([1, 0]))  # as many bytes
    with raises(StageError, "file_changed", path=root):
        rows.require_unchanged()
    put(f"{root}/_temporary/0")
    with raises(ExternalRowsError, "writer_unfinished", path=root):
        ParquetRows(root)
    sinks = f"{root}/sinks"
    put(f"{sinks}/a")
    put(f"{sinks}/b")
    assert sink_folders(sinks, ["a", "b"]) == {"a": f"{sinks}/a", "b": f"{sinks}/b"}
    with raises(ExternalRowsError, "files_none"):
        ParquetRows(f"{root}/nothing")


@pytest.mark.airflow
def test_a_folder_is_handed_out_read_once_and_removed(
    tmp_path: Path, root: str, versitygw: VersityGw, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other programs get its place without the connection, and write there with their own keys."""
    monkeypatch.setenv("AIRFLOW_CONN_SHOP", json.dumps({"conn_type": "sqlite", "host": str(tmp_path / "shop.db")}))
    flow = Flow(tmp_path, wal_root=root)
    with closing(flow.store):
        flow.do("recover", "monday")
        earlier, folder = (flow.do("folder", "monday") for _ in range(2))
        assert folder.startswith(f"s3://{versitygw.bucket}/") and "@" not in folder
        put(folder.replace("s3://", "s3://lake@"))
        with raises(ExternalRowsError, "folder_replaced"):
            flow.do("stage", "monday", folder=earlier)
        assert flow.do("stage", "monday", folder=folder)["numbers"] == [2]
        inbox = f"{root}/orders/inbox"
        assert filesystem(root).names(inbox) == []
        flow.deliver("monday")
        assert flow.rows() == [1, 2]
        with pytest.raises(AirflowSkipException):
            flow.do("folder", "monday")
