"""What the table of a sink is called in lineage."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.datasets import Dataset, table
from airflow_ft.sinks.postgres.naming import TableName


def dataset(settings: Mapping[str, Any], connection: ConnectionInfo) -> Dataset:
    """`postgres://host:5432`, `shop.public.orders`; a table without a schema is taken for one in `public`."""
    name = TableName.parse(settings["table"])
    return table("postgres", connection, 5432, connection.schema, name.schema or "public", name.name)
