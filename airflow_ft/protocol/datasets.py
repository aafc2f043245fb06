"""What tables, topics and folders are called outside of this package: by OpenLineage, and as Airflow's assets.

The names are those of OpenLineage (https://openlineage.io/docs/spec/naming), the URIs those of Airflow's providers
(AIP-60). What neither of them knows is named alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote, urlsplit

from airflow_ft.protocol.connections import ConnectionInfo

_OF_A_PATH = "/:@!$&'()*+,;=~{}[]"


@dataclass(frozen=True, slots=True)
class Dataset:
    """`namespace` and `name` as OpenLineage has them, and the `uri` of the asset."""

    namespace: str
    name: str
    uri: str


def table(scheme: str, connection: ConnectionInfo, port: int, *parts: str) -> Dataset:
    """A table of a server: `parts` are database, schema (if the system has both) and table; `port` is the usual one."""
    server = f"{scheme}://{_host(connection.host)}:{connection.port or port}"
    return Dataset(server, ".".join(parts), "/".join((server, *(quote(part, safe="") for part in parts))))


def _host(given: str) -> str:
    """Return the host as in a URI: `localhost` for a socket folder, and an IPv6 address in brackets."""
    if not given or given.startswith(("/", "@")):
        return "localhost"
    return f"[{given}]" if ":" in given and not given.startswith("[") else given


def folder(place: str) -> Dataset:
    """A folder: a path, or a URI such as `file:///a`, `s3://bucket/a` (also `s3a`) and `hdfs://host:8020/a`."""
    if "://" not in place or place.startswith("file://"):
        path = place.removeprefix("file://").rstrip("/") or "/"
        return Dataset("file", path, f"file://{quote(path, safe=_OF_A_PATH)}")
    parts = urlsplit(place)
    scheme, host = "s3" if parts.scheme.startswith("s3") else parts.scheme, parts.netloc.rpartition("@")[2]
    path = parts.path.rstrip("/") or "/"
    name = path.lstrip("/") if scheme == "s3" else path
    return Dataset(f"{scheme}://{host}", name, f"{scheme}://{host}{quote(path, safe=_OF_A_PATH)}")
