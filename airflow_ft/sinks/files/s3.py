"""The client of one bucket, from an Airflow connection."""

from __future__ import annotations

from datetime import timedelta
from functools import lru_cache
from typing import TYPE_CHECKING

from airflow_ft.clients.foreign_connections import require_text
from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.errors import ConfigurationError
from airflow_ft.sinks.base.places import S3, missing_client

if TYPE_CHECKING:
    from obstore.store import RetryConfig, S3Store

KEYS = {
    "region_name": "region",
    "endpoint_url": "endpoint",
    "aws_access_key_id": "access_key_id",
    "aws_secret_access_key": "secret_access_key",
    "aws_session_token": "session_token",
}
_RETRIES: RetryConfig = {"max_retries": 4, "retry_timeout": timedelta(seconds=30)}


@lru_cache(8)
def store_of(bucket: str, config: tuple[tuple[str, str], ...]) -> S3Store:
    """Return the client of a bucket; it is shared by all sinks with the same settings."""
    try:
        from obstore.store import S3Store
    except ImportError as error:
        raise missing_client(S3) from error

    plain = dict(config).get("endpoint", "").startswith("http://")
    return S3Store(
        bucket,
        config=dict(config),  # type: ignore[arg-type]
        client_options={"allow_http": plain, "connect_timeout": "5s", "timeout": "300s"},
        retry_config=_RETRIES,
    )


def config_of(connection: ConnectionInfo) -> dict[str, str]:
    """Return the settings of an Airflow connection of type `aws`; without one the client uses its environment."""
    require_text(connection)
    if unknown := sorted(set(connection.extra) - set(KEYS)):
        raise ConfigurationError(
            f"the extra of connection {connection.conn_id!r} has unknown settings: {', '.join(unknown)}.",
            code="connection_invalid",
            remedy=f"Use only {', '.join(KEYS)}. Or name no connection, and set the environment of the worker.",
            settings=unknown,
        )
    given = {KEYS[name]: str(value) for name, value in connection.extra.items()}
    if connection.login:
        given |= {"access_key_id": connection.login, "secret_access_key": connection.password}
    if connection.host and "endpoint" not in given:
        port = f":{connection.port}" if connection.port else ""
        given["endpoint"] = f"{connection.schema or 'https'}://{connection.host}{port}"
    return given


def endpoint(store: S3Store) -> str:
    """Return the address that the client asks, for people."""
    return str((store.config or {}).get("endpoint", "AWS"))
