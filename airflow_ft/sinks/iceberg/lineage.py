"""What the table of a sink is called in lineage."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from airflow_ft.protocol.datasets import Dataset
from airflow_ft.protocol.ports import ConnectionInfo
from airflow_ft.sinks.iceberg.connection import properties


def dataset(settings: Mapping[str, Any], connection: ConnectionInfo) -> Dataset:
    """`iceberg://host:8181`, `shop.orders`: a name of our own. A catalog in a database has the database's name."""
    parts = urlsplit(properties(connection).get("uri", ""))
    namespace = f"iceberg://{parts.netloc.rpartition('@')[2]}{parts.path.rstrip('/')}"
    names = settings["table"].split(".")[1:]
    return Dataset(namespace, ".".join(names), "/".join((namespace, *names)))
