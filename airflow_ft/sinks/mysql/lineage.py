"""Name of a sink's table in lineage."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.datasets import Dataset, table
from airflow_ft.sinks.mysql.naming import TableName


def dataset(settings: Mapping[str, Any], connection: ConnectionInfo) -> Dataset:
    """`mysql://host:3306`, `shop.orders`; of MariaDB too."""
    name = TableName.parse(settings["table"]).within(connection.schema)
    return table("mysql", connection, 3306, name.schema, name.name)


def place(settings: Mapping[str, Any], connection: ConnectionInfo) -> str:
    """Return one text for one table. Names are folded: some servers ignore case."""
    return dataset(settings, connection).uri.casefold()
