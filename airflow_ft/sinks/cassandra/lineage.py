"""What the table of a sink is called in lineage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.datasets import Dataset, table
from airflow_ft.sinks.cassandra.spec import CassandraSink

PORT = 9042


def hosts(connection: ConnectionInfo) -> list[str]:
    """Return the nodes that a connection names, separated by commas."""
    return [each.strip() for each in connection.host.split(",") if each.strip()] or ["localhost"]


def dataset(settings: Mapping[str, Any], connection: ConnectionInfo) -> Dataset:
    """`cassandra://host:9042`, `shop.orders`; the host is the first one of the connection."""
    return _at(hosts(connection)[0], settings, connection)


def places(settings: Mapping[str, Any], connection: ConnectionInfo) -> Sequence[str]:
    """Return a text for the table at each node that the connection names: another one may name others first."""
    return [_at(host.lower(), settings, connection).uri for host in hosts(connection)]


def _at(host: str, settings: Mapping[str, Any], connection: ConnectionInfo) -> Dataset:
    keyspace, name = CassandraSink(table=settings["table"]).place(connection.schema)
    info = ConnectionInfo(connection.conn_id, connection.conn_type, host, connection.port)
    return table("cassandra", info, PORT, keyspace, name)
