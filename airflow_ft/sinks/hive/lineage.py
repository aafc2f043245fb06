"""What the table of a sink is called in lineage."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.datasets import Dataset, table

PORT = 9083


def dataset(settings: Mapping[str, Any], connection: ConnectionInfo) -> Dataset:
    """`hive://host:9083`, `shop.orders`."""
    _, schema, name = settings["table"].lower().split(".")
    return table("hive", connection, PORT, schema, name)
