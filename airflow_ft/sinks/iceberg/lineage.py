"""What the table of a sink is called in lineage."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.datasets import Dataset
from airflow_ft.sinks.iceberg.connection import name_of, properties

_LOGIN = re.compile(r"^([^:]+://)[^:/]*(:[^@]*)?@")
"""Login and password as SQLAlchemy reads them: other readers end them at the first / ? or #."""


def dataset(settings: Mapping[str, Any], connection: ConnectionInfo) -> Dataset:
    """`iceberg://host:8181`, `shop.orders`: a name of our own.

    A database may hold several SQL catalogs: `iceberg:///data/catalog.db/lake`.
    """
    given = properties(connection)
    parts = urlsplit(_LOGIN.sub(r"\1", given["uri"]))
    namespace = f"iceberg://{parts.netloc.rpartition('@')[2]}{parts.path.rstrip('/')}"
    if given["type"] == "sql":
        namespace += f"/{name_of(connection)}"
    names = settings["table"].split(".")[1:]
    return Dataset(namespace, ".".join(names), "/".join((namespace, *names)))


def place(settings: Mapping[str, Any], connection: ConnectionInfo) -> str:
    """Return one text for one table: a REST catalog may have several warehouses."""
    return f"{dataset(settings, connection).uri}\n{properties(connection).get('warehouse', '')}"
