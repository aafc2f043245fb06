"""What the tables of a sink are called in lineage."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.datasets import Dataset, table
from airflow_ft.sinks.hbase.spec import PORT


def dataset(settings: Mapping[str, Any], connection: ConnectionInfo) -> Dataset:
    """`hbase://host:9090`, `orders`: a name of our own, as OpenLineage has none."""
    return table("hbase", connection, PORT, settings["table"])
