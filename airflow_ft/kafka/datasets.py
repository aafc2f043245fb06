"""What topics are called outside of this package. Imports no client: DAG files import it."""

from __future__ import annotations

from airflow_ft.core.datasets import Dataset
from airflow_ft.core.ports import ConnectionInfo


def topic(connection: ConnectionInfo, name: str) -> Dataset:
    """A topic, at the first server that its connection names: `kafka://host:9092`, `orders`."""
    servers = str(connection.extra.get("bootstrap.servers") or connection.extra.get("metadata.broker.list") or "")
    first = servers.split(",")[0].strip() or f"{connection.host or 'localhost'}:{connection.port or 9092}"
    server = f"kafka://{first.rpartition('://')[2]}"
    return Dataset(server, name, f"{server}/{name}")
