"""Airflow connections as plain data, so that clients and sinks need no Airflow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from airflow_ft.protocol.errors import AirflowFtError

UNKNOWN_TYPE = "--conn-type ..."
"""Part of the remedy of a missing connection, as long as its type is unknown."""


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
    """Finds a connection by its id; ConfigurationError (naming it) when there is none."""

    def __call__(self, conn_id: str) -> ConnectionInfo: ...


def connection_of_type(conn_type: str, conn_id: str, connections: ConnectionResolver) -> ConnectionInfo:
    """Return a connection, and raise as `connections` does. `conn_type` completes the fix of a missing one."""
    try:
        return connections(conn_id)
    except AirflowFtError as error:
        if conn_type:
            error.remedy = error.remedy.replace(UNKNOWN_TYPE, f"--conn-type {conn_type}")
        error.located()
        raise
