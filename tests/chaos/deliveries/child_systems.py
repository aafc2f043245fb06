"""Redis, HBase, Cassandra, Iceberg, Paimon and Hive within a process: sinks, rows, and points around their requests."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa
from cassandra.cluster import Session
from cassandra.query import BatchStatement, BoundStatement
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO
from redis.client import Pipeline, Redis
from thriftpy2.thrift import TClient

from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.model import ParticipantPlan
from airflow_ft.protocol.participant import Participant
from airflow_ft.protocol.sink_spec import SinkSpec
from airflow_ft.sinks import open_participant
from airflow_ft.sinks.cassandra import participant as _cassandra  # noqa: F401  (imported before the fork)
from airflow_ft.sinks.cassandra.spec import CassandraSink
from airflow_ft.sinks.hbase import participant as _hbase  # noqa: F401
from airflow_ft.sinks.hbase.server import Client
from airflow_ft.sinks.hbase.spec import HBaseSink
from airflow_ft.sinks.hive import participant as _hive  # noqa: F401
from airflow_ft.sinks.hive.spec import HiveSink
from airflow_ft.sinks.iceberg import participant as _iceberg  # noqa: F401
from airflow_ft.sinks.iceberg import sql_catalog as _sql_catalog  # noqa: F401
from airflow_ft.sinks.iceberg.spec import IcebergSink
from airflow_ft.sinks.paimon import participant as _paimon  # noqa: F401
from airflow_ft.sinks.paimon.spec import PaimonSink
from airflow_ft.sinks.redis import participant as _redis  # noqa: F401
from airflow_ft.sinks.redis.spec import RedisSink
from airflow_ft.wal import open_wal
from airflow_ft.wal.local import LocalFileSystem
from tests.chaos.deliveries import hot_keys
from tests.chaos.deliveries.points import Points, statement_name
from tests.chaos.deliveries.targets import APPENDING, ICEBERG, NEWEST

SINKS: Mapping[str, Callable[[str, str, str, str], SinkSpec]] = {
    "redis": lambda pipeline, conn_id, strategy, place: RedisSink(
        key="rows:{pipeline}:{id}", conn_id=conn_id, strategy=strategy, change_column="op"
    ),
    "hbase": lambda pipeline, conn_id, strategy, place: HBaseSink(
        table="rows", row_key="{pipeline}:{id}", family="f", conn_id=conn_id, change_column="op"
    ),
    "cassandra": lambda pipeline, conn_id, strategy, place: CassandraSink(
        table="rows", conn_id=conn_id, change_column="op"
    ),
    "paimon": lambda pipeline, conn_id, strategy, place: PaimonSink(
        table=f"{place}/{pipeline.replace('-', '_')}", name=conn_id
    ),
    "hive": lambda pipeline, conn_id, strategy, place: HiveSink(
        table=f"metastore.chaos.{pipeline.replace('-', '_')}",
        partition_by=["part"] if strategy == "divided" else [],
        name=conn_id,
    ),
    **dict.fromkeys(
        ICEBERG,
        lambda pipeline, conn_id, strategy, place: IcebergSink(
            table=f"lake.chaos.{pipeline.replace('-', '_')}", name=conn_id
        ),
    ),
}


def opened(plan: ParticipantPlan, connection: Mapping[str, Any]) -> Participant:
    """The participant of a plan, over this connection."""
    return open_participant(plan, lambda _: ConnectionInfo(plan.name, **connection), open_wal())


def rows_for(server: str, rows: pa.Table, chunk: int) -> pa.Table:
    """The rows of a chunk; by key also changes of the keys that change, half of them before the others.

    Those for Hive say to which of three partitions they belong.
    """
    if server == "hive":
        return rows.append_column("part", pa.array([id % 3 for id in rows["id"].to_pylist()], pa.int32()))
    if server not in NEWEST or server in APPENDING:
        return rows
    changes = hot_keys.changes(chunk)
    pipeline = rows["pipeline"][0].as_py()
    hot = pa.table(
        {
            "pipeline": pa.array([pipeline] * len(changes)),
            "id": pa.array([change.id for change in changes], pa.int64()),
            "draw": pa.array([change.draw for change in changes], pa.int64()),
            "op": pa.array([change.kind for change in changes]),
        }
    )
    half = len(changes) // 2
    plain = rows.append_column("op", pa.array(["insert"] * rows.num_rows))
    return pa.concat_tables([hot[:half], plain, hot[half:]])


def instrument(points: Points, sinks: Mapping[str, tuple[str, str]]) -> None:
    """Points around the requests of these systems, each of which has one sink."""
    names = {server: f"{server}-{strategy}" for server, strategy in sinks.values()}
    iceberg = next((names[server] for server in ICEBERG if server in names), "iceberg")

    def query(_: Any, statement: Any, *more: Any) -> str:
        if isinstance(statement, BatchStatement | BoundStatement):
            return f"{names['cassandra']}: BATCH"
        return f"{names['cassandra']}: {statement_name(getattr(statement, 'query_string', str(statement)))}"

    if "redis" in names:
        points.instrument(Redis, "execute_command", lambda _, command, *more: f"{names['redis']}: {command}")
        points.instrument(Pipeline, "execute", lambda *_: f"{names['redis']}: EVALSHA")
    for server in {"hbase", "hive"} & set(names):
        points.instrument(TClient, "_req", lambda _, call, *more, name=names[server]: f"{name}: {call}")
    if "hbase" in names:
        points.instrument(Client, "mutate_rows", lambda *_: f"{names['hbase']}: mutateRowsTs")
    if "cassandra" in names:
        points.instrument(Session, "execute_async", query)
    for owner, method in (
        *((catalog, call) for catalog in (RestCatalog, SqlCatalog) for call in ("load_table", "create_table")),
        (RestCatalog, "commit_table"),
        (SqlCatalog, "commit_table"),
        (PyArrowFile, "create"),
        (PyArrowFileIO, "delete"),
    ):
        points.instrument(owner, method, lambda *_, method=method: f"{iceberg}: {method}")
    if "paimon" in names:
        for method in ("create", "write", "replace", "remove", "link_file"):
            _around_files(points, names["paimon"], method)


_FOLDERS = {"_airflow_ft": "document", "snapshot": "snapshot", "manifest": "manifest", "consumer": "consumer"}
"""Folder of a Paimon table -> what its files are."""


def _around_files(points: Points, label: str, method: str) -> None:
    """Points around changes of files in a database's folder, not in that of the log."""
    original = getattr(LocalFileSystem, method)

    def call(self: LocalFileSystem, uri: str, *more: Any) -> Any:
        place = more[0] if method == "link_file" else uri
        if "/chaos.db/" not in place:
            return original(self, uri, *more)
        parts = place.partition("/chaos.db/")[2].split("/")
        what = next((_FOLDERS[part] for part in parts if part in _FOLDERS), "data")
        return points.around(f"{label}: {method} {what}", lambda: original(self, uri, *more))

    setattr(LocalFileSystem, method, call)
