"""A root of the log in a bucket."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_ft.clients import buckets
from airflow_ft.protocol.connections import ConnectionInfo
from tools.servers import VersityGw


def connection_of(server: VersityGw, conn_id: str = "lake", **changed: object) -> ConnectionInfo:
    """As Airflow has it."""
    found = server.connection()
    return ConnectionInfo(conn_id, "aws", **found | {"extra": {**found["extra"], **changed}})


@pytest.fixture(autouse=True)
def _connections(versitygw: VersityGw) -> Iterator[None]:
    buckets.resolve_with(lambda conn_id: connection_of(versitygw, conn_id))
    yield
    buckets.forget()


@pytest.fixture
def root(versitygw: VersityGw) -> str:
    return f"s3://lake@{versitygw.bucket}/{uuid.uuid4().hex}"


@pytest.fixture
def own_versitygw(built_versitygw: None, servers_folder: Path) -> Iterator[VersityGw]:
    with VersityGw(servers_folder / f"versitygw-{uuid.uuid4().hex[:8]}") as server:
        yield server
