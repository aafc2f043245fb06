"""What topics are called outside of this package. Imports no client: DAG files import it."""

from __future__ import annotations

from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.datasets import Dataset


def servers(connection: ConnectionInfo) -> list[str]:
    """The servers that a connection names, as `host:port`."""
    named = str(connection.extra.get("bootstrap.servers") or connection.extra.get("metadata.broker.list") or "")
    found = [each.strip().rpartition("://")[2] for each in named.split(",") if each.strip()]
    return found or [f"{connection.host or 'localhost'}:{connection.port or 9092}"]


def topic(connection: ConnectionInfo, name: str) -> Dataset:
    """A topic, at the first server that its connection names: `kafka://host:9092`, `orders`."""
    server = f"kafka://{servers(connection)[0]}"
    return Dataset(server, name, f"{server}/{name}")
