"""Airflow connections as plain data, so that clients and sinks need no Airflow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from airflow_ft.protocol.errors import SinkAccessError


@dataclass(frozen=True, slots=True)
class ConnectionInfo:
    """An Airflow connection as plain data, so that sinks need no Airflow. Its repr shows no secret."""

    conn_id: str
    conn_type: str
    host: str = ""
    port: int | None = None
    login: str = ""
    password: str = field(default="", repr=False)
    schema: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict, repr=False)


class ConnectionResolver(Protocol):
    """Finds a connection by its id. Raises `missing_connection` when there is none."""

    def __call__(self, conn_id: str) -> ConnectionInfo: ...


def missing_connection(conn_id: str, conn_type: str = "...") -> SinkAccessError:
    """Return the error for a connection that Airflow lacks, with the command that creates one of this type."""
    return SinkAccessError(
        f"the Airflow connection {conn_id!r} is not defined, or cannot be read now.",
        code="connection_missing",
        remedy=f"Create it with `airflow connections add {conn_id} --conn-type {conn_type}`, or set"
        f" AIRFLOW_CONN_{conn_id.upper()}. The page of the sink or source describes its fields (`airflow ft docs`)."
        " If the connection exists, compare [core] fernet_key and [secrets] backend here with those of the API server.",
        participant=conn_id,
    )


def connection_of_type(conn_type: str, conn_id: str, connections: ConnectionResolver) -> ConnectionInfo:
    """Return a connection, and raise as `connections` does. The fix of a missing one names `conn_type`."""
    try:
        return connections(conn_id)
    except SinkAccessError as error:
        if error.code != "connection_missing" or not conn_type:
            raise
        raise missing_connection(conn_id, conn_type) from error.__cause__
