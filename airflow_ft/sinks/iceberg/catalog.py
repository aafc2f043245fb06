"""A catalog through pyiceberg, and what its errors mean.

pyiceberg would repeat a commit onto the new head of the table, and so bring in the rows of a process that has slept.
Only `Table` and its transactions do that. Commits here call `Catalog.commit_table`, which does not.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from pyiceberg.catalog import Catalog, MetastoreCatalog
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import (
    BadRequestError,
    ForbiddenError,
    NoSuchNamespaceError,
    NoSuchTableError,
    NotInstalledError,
    OAuthError,
    RESTError,
    UnauthorizedError,
)
from pyiceberg.io import load_file_io
from pyiceberg.table import Table

from airflow_ft.clients.foreign_connections import invalid
from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.errors import AirflowFtError, SinkAccessError, SinkUnavailableError
from airflow_ft.sinks.base.failures import ServerFault
from airflow_ft.sinks.base.places import require_file
from airflow_ft.sinks.base.table_checks import CatalogTable
from airflow_ft.sinks.iceberg.connection import name_of, properties, secrets

_CONNECT_SECONDS, _ANSWER_SECONDS = 5.0, 60.0
_CLIENTS = (
    "pyiceberg",
    "sqlalchemy",
    "requests",
    "urllib3",
    "sqlite3",
    "botocore",
    "aiobotocore",
    "pyarrow",
    "pydantic_core",
)
"""Modules whose errors come from the catalog or its storage. None is imported for that."""
_NO_CATALOG = (RESTError, BadRequestError)
"""What a server of another kind answers. Their subclasses are answers of catalogs."""
_SILENT = ("ConnectionError", "TimeoutError", "Timeout", "OperationalError")
_NO_DATABASE = re.compile(r'database ".*" does not exist|unable to open database file')
"""What PostgreSQL and SQLite say."""
_LOCKED = "database is locked"
"""What SQLite says."""
_CONNECTING = ("s3", "s3a", "s3n", "hdfs", "viewfs")
"""Schemes whose clients ask a server when they are made, which may take long."""
_UNKNOWN = "the table has a place that pyiceberg does not know"
_UNSET = {
    "No default path is set": "the table has no place: neither the connection nor the namespace names one",
    "Unrecognized filesystem type": _UNKNOWN,
    "No registered filesystem for scheme": _UNKNOWN,
}
"""What pyiceberg says of a table that it has no place for."""


class RestCatalogWithTimeouts(RestCatalog):
    """A REST catalog whose requests end: pyiceberg's would wait forever."""

    def _create_session(self) -> Any:
        session = super()._create_session()
        session.request = partial(session.request, timeout=(_CONNECT_SECONDS, _ANSWER_SECONDS))  # type: ignore[method-assign]
        return session


def _class_of(kind: str) -> type[Catalog]:
    if kind == "rest":
        return RestCatalogWithTimeouts
    from airflow_ft.sinks.iceberg.sql_catalog import DurableSqlCatalog  # needs SQLAlchemy

    return DurableSqlCatalog


@dataclass
class Connected(CatalogTable):
    """A table's name in the catalog of a connection."""

    looks: bool = False
    """True: create nothing, not even a SQL catalog's tables."""
    _catalog: Catalog | None = field(default=None, repr=False)

    @property
    def catalog(self) -> Catalog:
        """The catalog. SinkAccessError: the connection names none."""
        if self._catalog is None:
            given = properties(self.connection)
            if self.looks:
                given["init_catalog_tables"] = "false"
            try:
                self._catalog = _class_of(given.pop("type"))(name_of(self.connection), **given)
            except Exception as error:
                is_wrong = isinstance(error, ValueError | KeyError) or _is_one_of(error, ["ArgumentError"])
                if not is_wrong and type(error) not in _NO_CATALOG:
                    raise
                what = f"the connection's catalog cannot be used: {_words(error, self.connection)}."
                remedy = (
                    "Name a REST catalog as host, or correct pyiceberg's properties in the extra of the connection."
                )
                if "type" not in self.connection.extra:
                    remedy = f"Set type in the extra to rest or sql. {remedy}"
                raise invalid(self.connection, what, remedy, "host", "extra") from None
        return self._catalog

    def load(self) -> Table | None:
        """The table as it is now. None: there is none."""
        try:
            return self.catalog.load_table(self.identifier)
        except (NoSuchTableError, NoSuchNamespaceError):
            return None

    def require_database(self) -> None:
        """Raise SinkAccessError if the database of a SQL catalog is a file that cannot be written."""
        if (file := getattr(self.catalog, "file", None)) is not None:
            require_file(file)

    def location(self) -> str | None:
        """Return where the catalog creates the table; None: its server decides. ValueError: no place is set."""
        if not isinstance(self.catalog, MetastoreCatalog):
            return None
        *namespace, name = self.identifier
        return self.catalog._resolve_table_location(None, Catalog.namespace_to_string(tuple(namespace)), name)

    def require_clients(self, locations: Iterable[str], given: Mapping[str, str]) -> None:
        """Let pyiceberg raise its error if it has no client for a location; `given` are its properties."""
        for location in locations:
            if urlsplit(location).scheme not in _CONNECTING:
                load_file_io(dict(given), location).new_output(location)

    def ask_storage(self, locations: Iterable[str], given: Mapping[str, str]) -> None:
        """Let an object store or HDFS look for the locations: its client raises if address or credentials are wrong.

        Without credentials the client searches them in several places, which may take some seconds.
        """
        for location in locations:
            if urlsplit(location).scheme in _CONNECTING:
                load_file_io(dict(given), location).new_input(location).exists()

    def _no_place(self, what: str, words: str) -> AirflowFtError:
        remedy = "Correct warehouse in the extra of the connection."
        if not self.connection.extra.get("warehouse"):
            remedy = "Set warehouse in the extra of the connection, or correct the location of the namespace or table."
        return invalid(self.connection, f"{what}: {words}.", remedy, "warehouse")

    def close(self) -> None:
        catalog, self._catalog = self._catalog, None
        if catalog is not None:
            with suppress(Exception):  # nothing is under way in it
                catalog.close()

    def failure(self, error: Exception) -> AirflowFtError | None:
        place, words = str(self), _words(error, self.connection)
        if isinstance(error, UnauthorizedError | OAuthError):
            remedy = "Correct login and password of the connection, or the credentials in its extra."
            return ServerFault.LOGIN.error(f"the catalog of {place}", words, remedy, table=place)
        if isinstance(error, ForbiddenError):
            remedy = "Grant the connection's user to load, create and commit the table."
            return ServerFault.PRIVILEGE.error(f"the catalog of {place}", words, remedy, table=place)
        if isinstance(error, NotInstalledError | ImportError):
            return SinkAccessError(
                f"{place} needs a package that is not installed: {words}.",
                code="package_missing",
                remedy="Install it where tasks run.",
                table=place,
            )
        if "password authentication failed" in words:
            return ServerFault.LOGIN.error(
                f"the catalog of {place}", words, "Correct user and password in the uri of the connection.", table=place
            )
        if _NO_DATABASE.search(words):
            return SinkAccessError(
                f"the database of the catalog of {place} cannot be opened: {words}.",
                code="database_missing",
                remedy="Create the database, or the folder of its file; or correct uri in the extra of the connection.",
                table=place,
            )
        if "ermission denied" in words or "readonly database" in words or "ACCESS_DENIED" in words:
            remedy = "Let the tasks' user, or the connection's, write the table's files and the catalog's database."
            return ServerFault.PRIVILEGE.error(f"catalog or storage of {place}", words, remedy, table=place)
        if (what := next((what for said, what in _UNSET.items() if said in words), None)) is not None:
            return self._no_place(what, words)
        if isinstance(error, FileNotFoundError) and ".metadata.json" in words:
            return SinkAccessError(
                f"the catalog names a metadata file of {place} that is gone: {words}. The catalog was restored from a"
                " backup, the file was deleted, or the warehouse is not mounted here.",
                code="metadata_missing",
                remedy="Make sure that this worker reaches the warehouse. Only if the file is really gone, point the"
                " catalog at the right *.metadata.json, as docs/iceberg.md shows.",
                table=place,
            )
        if _LOCKED in words:
            return SinkUnavailableError(
                f"the database of the catalog of {place} is locked by another process: {words}.",
                code="lock_timeout",
                remedy="Wait for the retry. If it fails too, end the process that holds a transaction open on the file"
                " (`fuser FILE`). To wait longer, add ?timeout=60 to the uri in the connection.",
                table=place,
            )
        if _is_one_of(error, _SILENT):
            remedy = "Check that the catalog runs and that the connection is right."
            if "SSL" in words:
                remedy = "If the catalog has no TLS, begin the host with http://. Else let workers trust its"
                remedy += " certificate."
            return ServerFault.SILENT.error(f"the catalog of {place}", words, remedy, table=place)
        if isinstance(error, OSError | ValueError) or type(error).__module__.partition(".")[0] in _CLIENTS:
            remedy = "Wait for the retry, which reads the marker. If it fails too, look at the catalog and its storage."
            return ServerFault.FAILED.error(place, f"{type(error).__name__}: {words}", remedy, table=place)
        return None


def _is_one_of(error: Exception, names: Sequence[str]) -> bool:
    """Return whether one of the error's classes has such a name, of whichever package."""
    return any(each.__name__ in names for each in type(error).__mro__)


def _words(error: Exception, connection: ConnectionInfo) -> str:
    """Return the client's words in one line, without secrets."""
    text = next(filter(None, map(str.strip, str(error).splitlines())), type(error).__name__).rstrip(".")
    for secret in secrets(connection):
        text = text.replace(secret, "***")
    return text
