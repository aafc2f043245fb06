"""Airflow connections as plain data, so that clients and sinks need no Airflow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol


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
