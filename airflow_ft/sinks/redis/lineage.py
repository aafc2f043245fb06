"""Name of a sink's keys in lineage."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.datasets import Dataset, table
from airflow_ft.sinks.base.key_template import parts_of
from airflow_ft.sinks.redis.server import PORT, database


def dataset(settings: Mapping[str, Any], connection: ConnectionInfo) -> Dataset:
    """`redis://host:6379`, `0.orders:{id}`: a name of our own, as OpenLineage has none."""
    return table("redis", connection, PORT, str(database(connection)), settings["key"])


def place(settings: Mapping[str, Any], connection: ConnectionInfo) -> str:
    """Return one text for keys of one form: `orders:{id}` and `orders:{number}` may be the same keys."""
    form = "".join(text + ("{}" if column else "") for text, column in parts_of(settings["key"], ValueError))
    return dataset({**settings, "key": form}, connection).uri
