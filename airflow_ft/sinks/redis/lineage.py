"""What the keys of a sink are called in lineage."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.datasets import Dataset, table
from airflow_ft.sinks.redis.server import PORT, database


def dataset(settings: Mapping[str, Any], connection: ConnectionInfo) -> Dataset:
    """`redis://host:6379`, `0.orders:{id}`: a name of our own, as OpenLineage has none."""
    return table("redis", connection, PORT, str(database(connection)), settings["key"])
