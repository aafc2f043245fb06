"""What the topic of a sink is called in lineage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from airflow_ft.core.datasets import Dataset
from airflow_ft.core.ports import ConnectionInfo
from airflow_ft.kafka.datasets import topic


def dataset(settings: Mapping[str, Any], connection: ConnectionInfo) -> Dataset:
    """`kafka://host:9092`, `orders`."""
    return topic(connection, settings["topic"])


def columns(settings: Mapping[str, Any], given: Sequence[tuple[str, str]]) -> Sequence[tuple[str, str]]:
    """The fields of the JSON value; nothing of a value that the job has made."""
    if settings["format"] != "json":
        return ()
    roles = {settings.get(role) for role in ("key", "headers", "partition", "timestamp")}
    return [(name, kind) for name, kind in given if name not in roles]
