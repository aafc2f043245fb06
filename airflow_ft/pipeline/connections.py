"""Airflow connections as plain data (`ConnectionInfo`), for tasks, triggers and the command line.

No provider of the connection's type has to be installed: only its fields are read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Protocol

from airflow_ft.protocol.connections import ConnectionInfo, missing_connection
from airflow_ft.protocol.errors import ConfigurationError


class _Connection(Protocol):
    """Shared fields of Airflow's two classes of connections (task and server)."""

    conn_type: Any
    host: Any
    port: Any
    login: Any
    password: Any
    schema: Any
    extra: Any


def task_connections(conn_id: str) -> ConnectionInfo:
    """Return the connection, as a task or trigger may read it.

    Raises:
        SinkAccessError: there is none. A retry may help, because Airflow's workers cannot distinguish 'not defined'
            from an API server that did not answer.
    """
    from airflow.sdk.bases.hook import BaseHook
    from airflow.sdk.exceptions import AirflowException

    try:
        return connection_info(conn_id, BaseHook.get_connection(conn_id))
    except AirflowException as error:
        raise missing_connection(conn_id) from error


def server_connections(conn_id: str) -> ConnectionInfo:
    """The connection, as a command or the API server reads it: from the metadata database too."""
    from airflow.models.connection import Connection
    from airflow.sdk.exceptions import AirflowException

    try:
        return connection_info(conn_id, Connection.get_connection_from_secrets(conn_id))
    except AirflowException as error:
        raise missing_connection(conn_id) from error


def connection_info(conn_id: str, connection: _Connection) -> ConnectionInfo:
    """Airflow's connection as plain data; ConfigurationError when its extra is not a JSON object."""
    return ConnectionInfo(
        conn_id=conn_id,
        conn_type=connection.conn_type or "",
        host=connection.host or "",
        port=int(connection.port) if connection.port else None,
        login=connection.login or "",
        password=connection.password or "",
        schema=connection.schema or "",
        extra=_extra(conn_id, connection.extra),
    )


def _extra(conn_id: str, text: str | None) -> Mapping[str, Any]:
    if not text:
        return {}
    try:
        extra = json.loads(text)
    except ValueError:
        extra = None  # the text may hold secrets: it is not quoted
    if not isinstance(extra, dict):
        raise ConfigurationError(
            "its extra is not a JSON object.",
            code="connection_invalid",
            remedy="Correct the field 'extra' of the connection.",
            participant=conn_id,
            fields=["extra"],
        )
    return extra
