"""Name of a sink's topic in lineage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from airflow_ft.clients.kafka.connection import servers, topic
from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.datasets import Dataset


def dataset(settings: Mapping[str, Any], connection: ConnectionInfo) -> Dataset:
    """`kafka://host:9092`, `orders`."""
    return topic(connection, settings["topic"])


def columns(settings: Mapping[str, Any], given: Sequence[tuple[str, str]]) -> Sequence[tuple[str, str]]:
    """The fields of the JSON value; nothing of a value that the job has made."""
    if settings["format"] != "json":
        return ()
    roles = {settings.get(role) for role in ("key", "headers", "partition", "timestamp")}
    return [(name, kind) for name, kind in given if name not in roles]


def places(settings: Mapping[str, Any], connection: ConnectionInfo) -> Sequence[str]:
    """Return a text for the topic at each server that the connection names: another one may name others first."""
    return [f"kafka://{_whole(each)}/{settings['topic']}" for each in servers(connection)]


def _whole(server: str) -> str:
    """Return a server as librdkafka and DNS read it: 9092 is the usual port, and case says nothing."""
    host, mark, port = server.rpartition(":")
    is_bare = not mark or "]" in port or (":" in host and not host.endswith("]"))
    return f"{server}:9092".lower() if is_bare else f"{host}:{port}".lower()
