"""Which bucket a URI of the log names, and the settings with which this process and Spark reach it.

`s3://CONNECTION@BUCKET/FOLDER` names an Airflow connection of type `aws`. `s3://BUCKET/FOLDER` takes the keys of the
environment. Either way the settings are complete, so that task, command, driver and Spark's S3A use the same ones.
What else the environment says of AWS, such as a session token beside a connection's keys, never mixes with them.

A task or command says once where connections are found (`resolve_with`). It reads them again every few minutes, as
keys are replaced while a stream or the API server runs. A driver gets the settings from its task (`learn`), since it
cannot ask Airflow.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any

from airflow_ft.clients.foreign_connections import require_type
from airflow_ft.clients.s3 import SCHEME, config_of
from airflow_ft.protocol.connections import ConnectionInfo, ConnectionResolver, connection_of_type
from airflow_ft.protocol.errors import ConfigurationError, SinkAccessError, StorageUnavailableError
from airflow_ft.protocol.secrets import safe_uri

_PLACE = re.compile(r"s3://(?:(?P<conn>[\w.-]+)@)?(?P<bucket>[a-z0-9][a-z0-9.-]+[a-z0-9])(?P<key>(?:/[^/]+)+)/?")
_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
_REGIONS = ("AWS_REGION", "AWS_DEFAULT_REGION")
_HOW = "s3://CONNECTION@BUCKET/FOLDER with the id of an Airflow connection of type aws"


def is_bucket(uri: str) -> bool:
    """Return whether a URI names a place in a bucket."""
    return uri.startswith(f"{SCHEME}://")


@dataclass(frozen=True, slots=True)
class BucketPlace:
    """A folder or file in a bucket. `conn_id`: "" for the keys of the environment."""

    conn_id: str
    bucket: str
    key: str

    @classmethod
    def of(cls, uri: str) -> BucketPlace:
        """Return the place that a URI names; ConfigurationError if it names none."""
        scheme, _, rest = uri.partition("://")
        uri = f"{scheme}://{re.sub('/+', '/', rest)}"
        match = _PLACE.fullmatch(uri)
        if match is None or {".", ".."} & set(match["key"].split("/")):
            shown = safe_uri(uri)
            raise ConfigurationError(
                f"{shown!r} is not a folder in a bucket.",
                code="path_invalid",
                remedy=f"Give {_HOW}, or s3://BUCKET/FOLDER.",
                path=shown,
            )
        return cls(match["conn"] or "", match["bucket"], match["key"].strip("/"))

    def __str__(self) -> str:
        return "/".join(part for part in (f"{SCHEME}://{self.authority}", self.key) if part)

    @property
    def authority(self) -> str:
        """Return bucket and connection."""
        return f"{self.conn_id}@{self.bucket}" if self.conn_id else self.bucket


@dataclass(frozen=True, slots=True)
class BucketSettings:
    """Everything that a client of a store needs. `endpoint` is always a URL."""

    conn_id: str
    region: str
    endpoint: str
    access_key_id: str = field(repr=False)
    secret_access_key: str = field(repr=False)
    session_token: str = field(default="", repr=False)

    @classmethod
    def of(cls, connection: ConnectionInfo) -> BucketSettings:
        """Return the settings of a connection.

        Raises:
            SinkAccessError: it is of another type.
            ConfigurationError: it lacks keys, or a setting is wrong.
        """
        require_type(connection, "aws")
        return cls._complete(connection.conn_id, config_of(connection))

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> BucketSettings:
        """Return the settings of the environment: keys, region and endpoint. ConfigurationError without keys."""
        given = {
            "access_key_id": environment.get("AWS_ACCESS_KEY_ID", ""),
            "secret_access_key": environment.get("AWS_SECRET_ACCESS_KEY", ""),
            "session_token": environment.get("AWS_SESSION_TOKEN", ""),
            "region": next(filter(None, map(environment.get, _REGIONS)), ""),
            "endpoint": next(filter(None, map(environment.get, _ENDPOINTS)), ""),
        }
        extra = {"endpoint_url": given["endpoint"]} if given["endpoint"] else {}
        config_of(ConnectionInfo("", "aws", extra=extra))  # checks it
        return cls._complete("", {name: value for name, value in given.items() if value})

    @classmethod
    def _complete(cls, conn_id: str, given: Mapping[str, str]) -> BucketSettings:
        if not given.get("access_key_id") or not given.get("secret_access_key"):
            what = "the environment has no access key and secret key. Roles of a machine and profiles are not supported"
            what += " here, because tasks and Spark could find different ones."
            remedy = f"Give both keys in a connection, and name it: {_HOW}."
            remedy += " Or set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY for every task and command."
            if conn_id:
                what = f"connection {conn_id!r} has no access key and secret key. Keys of the environment do not count."
                remedy = "Give both keys in the connection: its login and password. Or, for a sink, name no connection"
                remedy += " (s3://BUCKET/FOLDER), to use the keys or the role of the worker."
            raise ConfigurationError(
                what,
                code="connection_invalid",
                remedy=remedy,
                fields=["login", "password"],
            )
        region = given.get("region") or "us-east-1"
        return cls(
            conn_id=conn_id,
            region=region,
            endpoint=(given.get("endpoint") or f"https://s3.{region}.amazonaws.com").rstrip("/"),
            access_key_id=given["access_key_id"],
            secret_access_key=given["secret_access_key"],
            session_token=given.get("session_token", ""),
        )

    def to_json(self) -> dict[str, Any]:
        """Plain data with secrets, for the driver's private file."""
        return asdict(self)

    @property
    def secrets(self) -> tuple[str, ...]:
        """Return what no log may show."""
        return tuple(filter(None, (self.access_key_id, self.secret_access_key, self.session_token)))


RENEWED_EACH = 300.0
"""Seconds after which a connection is read again. Known settings stay in use while it cannot be read."""

_resolvers: list[ConnectionResolver] = []
_settings: dict[str, BucketSettings] = {}
_read_at: dict[str, float] = {}
"""When a connection was read; none: its settings were learned."""


def resolve_with(connections: ConnectionResolver) -> None:
    """Look connections up in this way from now on. Known settings stay those of the former way only if it is this."""
    if _resolvers != [connections]:
        forget()
        _resolvers[:] = [connections]


def resolve_by_default(connections: ConnectionResolver) -> None:
    """Look connections up in this way unless the process has said another one."""
    if not _resolvers:
        resolve_with(connections)


def forget() -> None:
    """Forget how connections are found, and all settings."""
    _resolvers.clear()
    _settings.clear()
    _read_at.clear()


def learn(settings: BucketSettings) -> None:
    """Use these settings for their connection."""
    _settings[settings.conn_id] = settings
    _read_at.pop(settings.conn_id, None)


def settings_of(place: BucketPlace) -> BucketSettings:
    """Return the settings for a place.

    Raises:
        ConfigurationError: they are incomplete.
        StorageUnavailableError: the connection cannot be read now.
    """
    conn_id = place.conn_id
    if not conn_id and conn_id not in _settings:
        _settings[conn_id] = _of_environment(place)
    if conn_id not in _settings:
        return renew(place)
    if (at := _read_at.get(conn_id)) is not None and time.monotonic() - at > RENEWED_EACH:
        _read_at[conn_id] = time.monotonic()
        with suppress(StorageUnavailableError, ConfigurationError):
            return renew(place)
    return _settings[conn_id]


def renew(place: BucketPlace) -> BucketSettings:
    """Read the connection of a place now, and return its settings. A driver uses them until it ends.

    Raises as `settings_of` does.
    """
    if not place.conn_id:
        return settings_of(place)
    found = _settings[place.conn_id] = _found(place)
    _read_at[place.conn_id] = time.monotonic()
    return found


def _of_environment(place: BucketPlace) -> BucketSettings:
    try:
        return BucketSettings.from_environment(os.environ)
    except ConfigurationError as error:
        raise ConfigurationError(
            f"{place} cannot be reached: {error.what}",
            code=error.code,
            remedy=error.remedy,
            **{**error.fields, "path": str(place)},
        ) from None


def _found(place: BucketPlace) -> BucketSettings:
    if not _resolvers:
        raise ConfigurationError(
            f"this process cannot read Airflow's connection {place.conn_id!r}, which {place} names.",
            code="connection_missing",
            remedy="Read the log in a task, or with the command `airflow ft`.",
            conn_id=place.conn_id,
        )
    try:
        return BucketSettings.of(connection_of_type("aws", place.conn_id, _resolvers[0]))
    except SinkAccessError as error:
        raise StorageUnavailableError(
            f"{place} cannot be reached: {error.what}",
            code=error.code,
            remedy=error.remedy,
            conn_id=place.conn_id,
            path=str(place),
        ) from error
