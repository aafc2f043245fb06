"""The file of a connection: how it is opened, and what its errors mean."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from airflow_ft.clients.foreign_connections import require_type
from airflow_ft.clients.mounts import network_file_system
from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.errors import AirflowFtError, ConfigurationError, SinkAccessError, SinkUnavailableError
from airflow_ft.sinks.base.places import require_file

WAIT_SECONDS = 30.0  # for the holder of the file
OLDEST = (3, 37, 0)  # has pragma_table_list


_SETTINGS = {
    # FULL would not sync the folder from which a commit removes the journal: with that back, it is undone.
    "synchronous": 3,  # EXTRA
    # SQLite's defaults, which a build may change.
    "foreign_keys": 0,
    "recursive_triggers": 0,
    "ignore_check_constraints": 0,
}
_ENVIRONMENT = frozenset(
    (
        sqlite3.SQLITE_PERM, sqlite3.SQLITE_ABORT, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_NOMEM,
        sqlite3.SQLITE_READONLY, sqlite3.SQLITE_INTERRUPT, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CORRUPT,
        sqlite3.SQLITE_FULL, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PROTOCOL, sqlite3.SQLITE_SCHEMA,
        sqlite3.SQLITE_MISUSE, sqlite3.SQLITE_NOLFS, sqlite3.SQLITE_AUTH, sqlite3.SQLITE_NOTADB,
    )
)  # fmt: skip
"""Primary result codes (sqlite.org/rescode.html) that say nothing about a row."""


def is_of_a_row(error: Exception) -> bool:
    """Return whether an error of an INSERT belongs to its row: not if file, disk or process caused it."""
    if isinstance(error, OverflowError):
        return True
    code = code_of(error)
    return code is not None and code not in _ENVIRONMENT


def code_of(error: Exception) -> int | None:
    """Return SQLite's primary result code; None: Python itself raised the error."""
    code = getattr(error, "sqlite_errorcode", None)
    return None if code is None else int(code) & 0xFF


def _set_up(db: sqlite3.Connection) -> None:
    """Set what exactness rests on, and read it back."""
    for name, value in _SETTINGS.items():
        db.execute(f"PRAGMA {name} = {value}")
        if (found := db.execute(f"PRAGMA {name}").fetchone()) != (value,):
            raise SinkAccessError(
                f"SQLite {sqlite3.sqlite_version} refuses PRAGMA {name} = {value}: the setting stays {found}.",
                code="server_setting_unsafe",
                remedy="Run the tasks with a Python whose SQLite has this setting.",
                setting=name,
            )


@dataclass(frozen=True, slots=True)
class SqliteFile:
    """A file that need not be there yet."""

    path: Path
    wait_seconds: float = WAIT_SECONDS

    @classmethod
    def of(cls, connection: ConnectionInfo) -> Self:
        """Return the file of a connection.

        Raises:
            ConfigurationError: the connection names no file.
            SinkAccessError: it leads to another kind of file.
        """
        require_type(connection, "sqlite")
        path = Path(connection.host or connection.schema)
        if not path.is_absolute():
            raise ConfigurationError(
                f"the host of connection {connection.conn_id!r} is {str(path)!r}, which is not an absolute path. A task"
                " may run in any folder.",
                code="path_invalid",
                remedy='Give an absolute path as the host: {"conn_type": "sqlite", "host": "/data/shop.db"}.',
                path=str(path),
            )
        return cls(path)

    @contextmanager
    def opened(self, *, create: bool = False, **where: Any) -> Iterator[sqlite3.Connection | None]:
        """A connection, which rolls back what is not committed when it is closed; None: there is no file.

        With `create` the file is made. `where` is what the errors name. Raises SinkUnavailableError, SinkAccessError.
        An OSError of the block is raised as it is: it belongs to another file, such as one of the write-ahead log.
        """
        try:
            with self._reaching():
                there = create or self.path.exists()
            if not there:
                yield None
                return
            if sqlite3.sqlite_version_info < OLDEST:
                raise SinkAccessError(
                    f"SQLite {sqlite3.sqlite_version} is too old.",
                    code="server_version",
                    remedy="Run the tasks with a Python that has SQLite 3.37 or later.",
                    version=sqlite3.sqlite_version,
                )
            if create:
                self.require_place()
            mode = "rwc" if create else "rw"  # also to read: what a process has left that died is rolled back first
            uri = f"{self.path.as_uri()}?mode={mode}"
            with closing(sqlite3.connect(uri, uri=True, timeout=self.wait_seconds, isolation_level=None)) as db:
                _set_up(db)
                yield db
        except AirflowFtError as error:
            raise error.located(**where) from error.__cause__
        except sqlite3.Error as error:
            raise self._translated(error).located(**where) from error

    def mark(self) -> tuple[int, int] | None:
        """Return the identity of the file of that name; None if it is missing."""
        with suppress(OSError):
            found = self.path.stat()
            return found.st_dev, found.st_ino
        return None

    def require_place(self) -> None:
        """SinkAccessError for a file that cannot be written, or made, or whose locks do not work."""
        with self._reaching():
            if (kind := network_file_system(self.path.resolve().parent)) is not None:
                raise SinkAccessError(
                    f"the file {self.path} is on a network file system ({kind}), where SQLite's locks do not work.",
                    code="path_invalid",
                    remedy="Move it to a local disk. If several machines run tasks, deliver into a server such as"
                    " PostgreSQL.",
                    path=str(self.path),
                    file_system=kind,
                )
            require_file(self.path)

    @contextmanager
    def _reaching(self) -> Iterator[None]:
        """Around a look at this file: SinkAccessError for an OSError."""
        try:
            yield
        except OSError as error:
            raise SinkAccessError(
                f"cannot reach {self.path}: {error.strerror or error}.",
                code="file_unusable",
                remedy=f"Give the user who runs the tasks access to {self.path.parent}, or choose another file.",
                path=str(self.path),
            ) from error

    def describe(self) -> str:
        """Return what it is, once it could be written; one that is not there is not made. Raises as `opened` does."""
        self.require_place()
        with self.opened() as db:
            if db is None:
                return f"SQLite {sqlite3.sqlite_version}: {self.path} will be created"
            db.execute("BEGIN IMMEDIATE")
            with self._reaching():
                return f"SQLite {sqlite3.sqlite_version}: {self.path}, {self.path.stat().st_size:,} bytes"

    def _translated(self, error: sqlite3.Error) -> AirflowFtError:
        """As one of ours; an error of COMMIT too, since the next try reads the marker."""
        name, path = getattr(error, "sqlite_errorname", ""), str(self.path)
        if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
            return SinkUnavailableError(
                f"{self.path} was locked for {self.wait_seconds:.0f} s.",
                code="lock_timeout",
                remedy=f"Run `fuser {self.path}`, and end the process that holds a transaction open on the file.",
                path=path,
            )
        if name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")):
            return SinkAccessError(
                f"{self.path} is damaged, or is not a SQLite file.",
                code="file_damaged",
                remedy="Restore the file from a backup, or choose another one.",
                path=path,
            )
        if name.startswith(("SQLITE_CANTOPEN", "SQLITE_READONLY", "SQLITE_PERM")):
            return SinkAccessError(
                f"cannot open {self.path} for writing.",
                code="file_unusable",
                remedy=f"Create the folder {self.path.parent} if it is missing, and make folder and file writable by"
                " the user who runs the tasks.",
                path=path,
            )
        if name.startswith("SQLITE_FULL"):
            return SinkUnavailableError(
                f"the disk of {self.path} is full.",
                code="disk_full",
                remedy="Free space. Nothing was committed.",
                path=path,
            )
        return SinkUnavailableError(
            f"{self.path}: {error} ({name or 'error of Python'}).",
            code="sink_unavailable",
            remedy="Look the error up at sqlite.org/rescode.html.",
            path=path,
            error=name,
        )
