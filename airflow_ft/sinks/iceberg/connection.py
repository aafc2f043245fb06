"""What an Airflow connection of type `iceberg` says of a catalog, in the words of pyiceberg. Imports no client."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import parse_qsl, unquote

from airflow_ft.clients.foreign_connections import invalid, refuse_misspelt, require_type
from airflow_ft.protocol.connections import ConnectionInfo

KINDS = ("rest", "sql")
_NAME = "catalog_name"
_KNOWN = frozenset(
    {
        _NAME, "type", "uri", "warehouse", "credential", "token", "scope", "audience", "resource", "prefix", "auth",
        "ssl", "oauth2-server-uri", "rest.sigv4-enabled", "rest.signing-region", "rest.signing-name", "rest-page-size",
        "snapshot-loading-mode", "scan-planning-mode", "view-endpoints-supported", "namespace-separator", "py-io-impl",
        "echo", "pool_pre_ping", "init_catalog_tables", "schema_version", "downcast-ns-timestamp-to-us-on-write",
        "client.profile-name", "client.region", "client.access-key-id", "client.secret-access-key",
        "client.session-token", "client.role-arn", "client.role-session-name", "s3.profile-name", "s3.anonymous",
        "s3.endpoint", "s3.access-key-id", "s3.secret-access-key", "s3.session-token", "s3.region", "s3.resolve-region",
        "s3.proxy-uri", "s3.connect-timeout", "s3.request-timeout", "s3.signer", "s3.signer.uri", "s3.signer.endpoint",
        "s3.role-arn", "s3.role-session-name", "s3.force-virtual-addressing", "s3.retry-strategy-impl",
        "s3.server-side-encryption", "s3.sse-kms-key-id",
    }
)  # fmt: skip
"""Properties of catalogs and of S3. Those of other storages are not checked."""
_SECRET = ("secret", "token", "password", "credential", "key", "auth")
_SHOWN = ("type", "impl", "uri", "url", "client_id", "scope")
"""How names end whose values are no secrets."""


def properties(connection: ConnectionInfo) -> dict[str, Any]:
    """Return the properties of a catalog: those in the extra; else host, login and password as Airflow's provider.

    SinkAccessError: the connection is another system's, or names no catalog that this sink can use.
    """
    require_type(connection, "iceberg")
    refuse_misspelt(connection, _KNOWN)
    given: dict[str, Any] = {
        key: value if isinstance(value, dict) else str(value)  # `auth` is a dict
        for key, value in connection.extra.items()
        if key != _NAME and value is not None
    }
    if connection.host:
        host = connection.host if "://" in connection.host else f"https://{connection.host}"
        given.setdefault("uri", host + (f":{connection.port}" if connection.port else ""))
    if connection.login and connection.password:
        given.setdefault("credential", f"{connection.login}:{connection.password}")
    if not {"type", "uri"} & given.keys():
        what = "the connection names no catalog: it has no host, and its extra has neither type nor uri."
        remedy = (
            'Give the URI of a REST catalog as host. Or write a SQL catalog into the extra: {"type": "sql", "uri": ...,'
            ' "warehouse": ...}.'
        )
        raise invalid(connection, what, remedy, "host", "type", "uri")
    given.setdefault("type", "rest" if given.get("uri", "").startswith("http") else "sql")
    if given["type"] not in KINDS:
        what = f"the catalog is of type {given['type']!r}, which this sink does not know."
        remedy = "Use a REST or a SQL catalog: type is rest or sql in the connection's extra."
        raise invalid(connection, what, remedy, "type")
    if "uri" not in given:
        remedy = "Give the URI of the REST catalog as host, or the uri of the SQL catalog's database in the extra."
        raise invalid(connection, "the connection has neither a host nor a uri in its extra.", remedy, "host")
    return given


def name_of(connection: ConnectionInfo) -> str:
    """Return the catalog's name, by which a SQL catalog finds its tables: extra `catalog_name`, else the connection."""
    return str(connection.extra.get(_NAME) or connection.conn_id)


def secrets(connection: ConnectionInfo) -> list[str]:
    """Return what no message may show."""
    given = list(_hidden(connection.extra))
    uri = str(connection.extra.get("uri", ""))
    if "@" in uri:
        given.append(uri.partition("://")[2].rpartition("@")[0].partition(":")[2])
        given.append(unquote(given[-1]))
    given += _hidden(dict(parse_qsl(uri.partition("?")[2])))
    return sorted(filter(None, {connection.password, *given}), key=len, reverse=True)


def _hidden(given: Mapping[str, Any], secret: bool = False) -> Iterator[str]:
    for key, value in given.items():
        inside = secret or any(one in key.lower() for one in _SECRET)
        if isinstance(value, dict):
            yield from _hidden(value, inside)
        elif inside and value is not None and not key.lower().endswith(_SHOWN):
            yield str(value)
