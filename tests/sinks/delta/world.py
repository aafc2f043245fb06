"""A table that is not there yet, on disk or in a bucket, and the world around it."""

from __future__ import annotations

import uuid
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable

from airflow_ft import DeltaSink
from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.sinks.delta.participant import DeltaParticipant
from airflow_ft.testing.world import Target, World
from tests.sinks.files.bucket import REGION, connection_of
from tools.servers import S3


def options_of(server: S3) -> dict[str, str]:
    """For delta-rs."""
    return {
        "AWS_ACCESS_KEY_ID": server.login, "AWS_SECRET_ACCESS_KEY": server.password, "AWS_ENDPOINT": server.url,
        "AWS_REGION": REGION, "AWS_ALLOW_HTTP": "true",
    }  # fmt: skip


class Table(Target):
    """Read by delta-rs."""

    options: dict[str, str] | None = None

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.path = folder / "orders"
        self.uri = str(self.path)
        self.sink: DeltaSink = DeltaSink(table=self.uri, **settings)
        self.connection = ConnectionInfo(self.sink.participant, "")

    def anew(self) -> Table:
        """One that is made."""
        other, name = copy(self), f"orders-{uuid.uuid4().hex[:8]}"
        other.path, other.uri = self.path.with_name(name), str(self.path.with_name(name))
        other.sink = replace(self.sink, table=other.uri)
        other.connection = ConnectionInfo(other.sink.participant, "")
        return other

    def open(self) -> DeltaTable:
        return DeltaTable(self.uri, storage_options=self.options)

    def read(self) -> pa.Table:
        return self.open().to_pyarrow_table()

    def ids(self) -> list[int]:
        if not DeltaTable.is_deltatable(self.uri, self.options):
            return []
        found = self.read()
        return sorted(found["id"].to_pylist()) if "id" in found.column_names else []


class TableInBucket(Table):
    """The same in S3."""

    def __init__(self, server: S3, **settings: Any) -> None:
        self.server, name = server, f"{server.bucket}/{uuid.uuid4().hex}/orders"
        self.uri = f"s3://{name}"
        self.sink = DeltaSink(table=f"s3://aws@{name}", name="lake", **settings)
        self.connection = connection_of(server)
        self.options = options_of(server)

    def anew(self) -> TableInBucket:
        other, name = copy(self), f"{self.server.bucket}/{uuid.uuid4().hex}/orders"
        other.uri, other.sink = f"s3://{name}", replace(self.sink, table=f"s3://aws@{name}")
        return other


def world_of(folder: Path, **settings: Any) -> World:
    folder.mkdir(exist_ok=True)
    return World(Table(folder, **settings), folder)


def table_of(world: World) -> Table:
    assert isinstance(world.target, Table)
    return world.target


def participant_of(world: World, plan: Any) -> DeltaParticipant:
    opened = world.participant(plan)
    assert isinstance(opened, DeltaParticipant)
    return opened
