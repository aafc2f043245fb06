"""A connection to a Hive metastore, and what its errors mean. The client repeats nothing by itself."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from thriftpy2.protocol import TCyBinaryProtocol
from thriftpy2.protocol.cybin import ProtocolError  # type: ignore[attr-defined]
from thriftpy2.protocol.exc import TProtocolException
from thriftpy2.thrift import TApplicationException, TClient, TException
from thriftpy2.transport import TCyBufferedTransport, TSocket, TTransportException

from airflow_ft.clients.foreign_connections import PROTECTION, invalid, refuse_misspelt, refuse_unread, require_type
from airflow_ft.protocol.errors import AirflowFtError, SinkAccessError, UnfitTargetError
from airflow_ft.sinks.base.failures import ServerFault
from airflow_ft.sinks.base.table_checks import CatalogTable
from airflow_ft.sinks.files.failures import file_failure
from airflow_ft.sinks.hive.lineage import PORT
from airflow_ft.sinks.hive.thrift import API

_CONNECT_SECONDS, ANSWER_SECONDS = 5.0, 300.0
_LONGEST = 300
_AT_ONCE = 200
"""Partitions in one answer."""
_NO_FOLDER = re.compile(
    r"(\S.*) is not a directory or unable to create one|Unable to create database path (.*), failed to create"
    r"|Failed to create external path (.*) for database"
    r"|(?:ParentNotDirectory|FileAlreadyExists)Exception (?:(/.*) \(is not a directory\)|.*: (\S.*))"
)
"""What a metastore says of a folder of a table, a partition or a schema."""


@dataclass
class Connected(CatalogTable):
    """A table's name in the metastore of a connection."""

    seconds: float = ANSWER_SECONDS
    aws_conn_id: str = ""
    """The Airflow connection that reaches tables in a bucket; "": the keys of the environment."""
    seen: dict[str, int] = field(default_factory=dict)
    """The newest memory of each participant that was seen here, by its name."""
    _client: TClient | None = field(default=None, repr=False)
    _wire: Any = field(default=None, repr=False)

    @property
    def server(self) -> str:
        """Host and port, for errors."""
        return f"{self.connection.host or 'localhost'}:{self.connection.port or PORT}"

    @property
    def client(self) -> TClient:
        """The metastore. SinkAccessError: the connection does not lead to one that this client can reach."""
        if self._client is None:
            require_type(self.connection, "hive_metastore")
            extra, read = self.connection.extra, ("auth_mechanism", "authMechanism")
            refuse_misspelt(self.connection, read)
            mechanism = extra.get("auth_mechanism") or extra.get("authMechanism") or "NOSASL"
            if mechanism != "NOSASL":
                what = f"the connection asks for auth_mechanism {mechanism!r}, and this sink supports only NOSASL."
                remedy = "Use a metastore without SASL, and remove auth_mechanism from the connection's extra."
                raise invalid(self.connection, what, remedy, "auth_mechanism")
            refuse_unread(self.connection, read, PROTECTION)
            make: Any = TSocket  # it has no types
            self._wire = TCyBufferedTransport(
                make(
                    self.connection.host or "localhost",
                    self.connection.port or PORT,
                    socket_timeout=int(self.seconds * 1000),
                    connect_timeout=int(min(self.seconds, _CONNECT_SECONDS) * 1000),
                )
            )
            self._wire.open()
            protocol: Any = TCyBinaryProtocol
            self._client = TClient(API.Metastore, protocol(self._wire))
        return self._client

    def close(self) -> None:
        wire, self._wire, self._client = self._wire, None, None
        if wire is not None:
            with suppress(Exception):  # nothing is under way in it
                wire.close()

    def table(self) -> Any | None:
        """The table as it is now. None: there is none."""
        schema, name = self.identifier
        try:
            return self.client.get_table_req(API.GetTableRequest(dbName=schema, tblName=name)).table
        except API.NoSuchObjectException:
            return None

    def partitions(self, names: Sequence[str]) -> Iterator[Any]:
        """Yield those of the named partitions that there are."""
        for first in range(0, len(names), _AT_ONCE):
            yield from self.client.get_partitions_by_names(*self.identifier, list(names[first : first + _AT_ONCE]))

    def failure(self, error: Exception) -> AirflowFtError | None:
        if not isinstance(error, TException | ProtocolError | OSError | EOFError):
            return None
        words = _words(error)
        if isinstance(error, TTransportException | ConnectionError | TimeoutError | EOFError):
            return ServerFault.SILENT.error(f"the Hive metastore at {self.server}", words, server=self.server)
        if isinstance(error, TApplicationException | TProtocolException | ProtocolError):
            return SinkAccessError(
                f"the server at {self.server} does not speak the protocol of a Hive metastore: {words}.",
                code="connection_invalid",
                remedy="Name a metastore (Thrift over TCP, without SASL and TLS; Hive 3 or 4) in the connection.",
                server=self.server,
            )
        if isinstance(error, PermissionError):  # of a file: not the metastore's answer
            refusing = _refusing(Path(str(error.filename))) if error.filename else "of the table"
            return SinkAccessError(
                f"the user who runs this task cannot write the files of {self}: {words}.",
                code="folder_unusable",
                remedy=f"Let that user, and the metastore's, enter and write the folder {refusing}.",
                path=str(error.filename),
            )
        if isinstance(error, OSError) and error.filename:
            return file_failure(str(error.filename), error)
        if "ermission denied" in words or "AccessControl" in words:
            remedy = "Let the metastore's user write the table's folder, and this user change the table."
            return ServerFault.PRIVILEGE.error(f"the Hive metastore, asked for {self},", words, remedy, table=str(self))
        if isinstance(error, API.InvalidObjectException | API.InvalidOperationException):
            return UnfitTargetError(
                f"the Hive metastore refuses a change of {self}: {words}.",
                code="table_unsupported",
                remedy="Compare the table with what docs/hive.md says a table must be.",
                table=str(self),
            )
        if folder := lacking_folder(error):
            return SinkAccessError(
                f"the Hive metastore cannot create the folder {folder} of {self}: {words}.",
                code="folder_unusable",
                remedy=f"Look at {folder} on the metastore's machine: move away a file of that name, mount the"
                " disk, or let the metastore's user write the folder above it.",
                path=folder,
            )
        words = f"{type(error).__name__}: {words}"
        return ServerFault.FAILED.error(f"a request for {self}", words, table=str(self))


def lacking_folder(error: Exception) -> str:
    """Return the folder that the metastore cannot create; "": the error is another one."""
    found = _NO_FOLDER.search(_line(error))
    return next(filter(None, found.groups())).removeprefix("file:") if found else ""


def _words(error: Exception) -> str:
    """Return what the server says, in one line."""
    return _line(error)[:_LONGEST] or type(error).__name__


def _line(error: Exception) -> str:
    return str(getattr(error, "message", None) or error).strip().partition("\n")[0].rstrip(".")


def _refusing(file: Path) -> Path:
    """Return the highest folder above the file that this user cannot enter, or else the file's own."""
    return next((each for each in reversed(file.parents) if not os.access(each, os.X_OK)), file.parent)
