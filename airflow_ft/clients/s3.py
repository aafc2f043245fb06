"""Settings and client of a bucket, from an Airflow connection of type `aws`."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from datetime import timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol

from airflow_ft.clients.foreign_connections import require_text
from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.errors import ConfigurationError

if TYPE_CHECKING:
    from obstore.store import ClientConfig, RetryConfig, S3Config, S3Credential, S3Store

SCHEME = "s3"
KEYS = {
    "region_name": "region",
    "endpoint_url": "endpoint",
    "aws_access_key_id": "access_key_id",
    "aws_secret_access_key": "secret_access_key",
    "aws_session_token": "session_token",
}
_TIMEOUT = 300  # seconds for one request of a sink
_RETRIES: RetryConfig = {"max_retries": 4, "retry_timeout": timedelta(seconds=30)}


def store_of(bucket: str, keys: Keys | None) -> S3Store:
    """Return the client of a bucket; all with the same keys share it. None: those of the environment."""
    return _store(os.getpid(), bucket, keys)


@lru_cache(16)
def _store(pid: int, bucket: str, keys: Keys | None) -> S3Store:
    """By process: a client does not survive a fork."""
    if keys is not None:
        return private_store(bucket, keys.endpoint, keys, _TIMEOUT)
    return _client(bucket, _TIMEOUT)


class Keys(Protocol):
    """The address of a store, and keys of its user. `session_token`: "" for none."""

    def __hash__(self) -> int: ...

    @property
    def endpoint(self) -> str: ...

    @property
    def region(self) -> str: ...

    @property
    def access_key_id(self) -> str: ...

    @property
    def secret_access_key(self) -> str: ...

    @property
    def session_token(self) -> str: ...


def private_store(bucket: str, endpoint: str, keys: Keys, seconds: int, *, is_root: bool = False) -> S3Store:
    """Return a client for which the environment says nothing. `is_root`: the endpoint names the bucket already.

    The environment could add a session token to other keys, or another endpoint, which Spark would not have.
    """

    def proven() -> S3Credential:
        token = {"token": keys.session_token} if keys.session_token else {}
        return {
            "access_key_id": keys.access_key_id,
            "secret_access_key": keys.secret_access_key,
            **token,  # type: ignore[typeddict-item]
            "expires_at": None,
        }

    config: S3Config = {
        "region": keys.region,
        "endpoint": endpoint,
        "aws_endpoint_url_s3": endpoint,  # of the environment it would go before
        "virtual_hosted_style_request": is_root,
        "disable_bulk_delete": is_root,
        "skip_signature": False,
        "s3_express": False,
        "conditional_put": "etag",
    }
    is_plain = endpoint.startswith("http://")
    return _client(bucket, seconds, is_plain=is_plain, config=config, credential_provider=proven)


def _client(bucket: str, seconds: int, *, is_plain: bool = False, **more: Any) -> S3Store:
    """Return a client whose requests take at most `seconds` each. `is_plain`: HTTP without TLS is allowed."""
    try:
        from obstore.store import S3Store
    except ImportError as error:
        raise _missing_client() from error

    options: ClientConfig = {"allow_http": is_plain, "connect_timeout": "5s", "timeout": f"{seconds}s"}
    return S3Store(bucket, client_options=options, retry_config=_RETRIES, **more)


def _missing_client() -> ConfigurationError:
    """Return the error for a machine without the client."""
    return ConfigurationError(
        f"a folder {SCHEME}://... needs the package obstore, which is not installed here.",
        code="package_missing",
        remedy=f"Run `pip install 'airflow-ft[{SCHEME}]'` where DAGs are parsed and where tasks run.",
        packages=["obstore"],
        extras=[SCHEME],
    )


def config_of(connection: ConnectionInfo) -> dict[str, str]:
    """Return the settings of an Airflow connection of type `aws`.

    Raises:
        SinkAccessError: a field is not Unicode text.
        ConfigurationError: a setting is unknown, or its endpoint is no URL.
    """
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
    _check_endpoint(connection.conn_id, given)
    return given


def _check_endpoint(conn_id: str, given: Mapping[str, str]) -> None:
    """Refuse an endpoint without a scheme: the client would panic."""
    where = given.get("endpoint")
    if where is not None and not re.fullmatch(r"https?://[^/\s@?#]+(/[^\s?#]*)?", where):
        raise ConfigurationError(
            f"the endpoint of connection {conn_id!r} is not an http:// or https:// URL.",
            code="connection_invalid",
            remedy="Give endpoint_url in the connection's extra with its scheme, such as https://s3.example.com:9000.",
            fields=["endpoint_url"],
        )


def endpoint(store: S3Store) -> str:
    """Return the address that the client asks, for people."""
    return str((store.config or {}).get("endpoint", "AWS"))
