"""Who reads a log in a bucket asks Airflow for its connection, by the way that this process has."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_ft.clients import buckets
from airflow_ft.pipeline.decision_log import open_configured_store
from airflow_ft.pipeline.dry_run import columns_of, rehearse
from airflow_ft.pipeline.resolved import resolve
from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.errors import SinkAccessError, StorageUnavailableError
from airflow_ft.wal.filesystem import filesystem
from tests.operators.declared import spec
from tests.raising import raises

ROOT = "s3://lake@wal/log"


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    buckets.forget()
    yield
    buckets.forget()


def missing(conn_id: str) -> ConnectionInfo:
    raise SinkAccessError("there is none.", code="connection_missing", remedy="Create it.", participant=conn_id)


def test_a_dry_run_asks_before_it_opens_a_decision_log(tmp_path: Path) -> None:
    resolved = resolve(spec(wal_root=ROOT, store=f"sqlite:///{tmp_path}/ft.db"))
    for look in (rehearse, columns_of):
        buckets.forget()
        with raises(StorageUnavailableError, "connection_missing", conn_id="lake"):
            look(resolved, missing)


def test_opening_the_decision_log_says_how_connections_are_found(tmp_path: Path) -> None:
    open_configured_store(f"sqlite:///{tmp_path}/ft.db", missing).close()
    with raises(StorageUnavailableError, "connection_missing", conn_id="lake"):
        filesystem(ROOT).read(f"{ROOT}/x")
