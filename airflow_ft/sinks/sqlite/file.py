"""The file of a connection: how it is opened, and what its errors mean."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from airflow_ft.core.errors import AirflowFtError, ConfigurationError, SinkAccessError, SinkUnavailableError
from airflow_ft.core.ports import ConnectionInfo
from airflow_ft.foreign_connections import require_type

WAIT_SECONDS = 30.0  # for whoever holds the file
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
                f"SQLite {sqlite3.sqlite_version} does not take PRAGMA {name} = {value}: it stays {found}.",
                remedy="run tasks with a Python whose SQLite has this setting.",
            )


@dataclass(frozen=True, slots=True)
class SqliteFile:
    """A file that need not be there yet."""

    path: Path
    wait_seconds: float = WAIT_SECONDS

    @classmethod
    def of(cls, connection: ConnectionInfo) -> Self:
        """That of a connection; ConfigurationError where it names none, SinkAccessError where it leads elsewhere."""
        require_type(connection, "sqlite")
        path = Path(connection.host or connection.schema)
        if not path.is_absolute():
            raise ConfigurationError(
                f"connection {connection.conn_id!r} names the file {str(path)!r}, and a task may run in any folder.",
                remedy='give an absolute path as its host: {"conn_type": "sqlite", "host": "/data/shop.db"}.',
            )
        return cls(path)

    @contextmanager
    def opened(self, *, create: bool = False, **where: Any) -> Iterator[sqlite3.Connection | None]:
        """A connection, which rolls back what is not committed when it is closed; None: there is no file.

        With `create` the file is made. `where` is what the errors name. Raises SinkUnavailableError, SinkAccessError.
        """
        try:
            if not create and not self.path.exists():
                yield None
                return
            if sqlite3.sqlite_version_info < OLDEST:
                raise SinkAccessError(f"SQLite {sqlite3.sqlite_version} is too old.", remedy="3.37 or later is needed.")
            mode = "rwc" if create else "rw"  # also to read: what a process has left that died is rolled back first
            uri = f"{self.path.as_uri()}?mode={mode}"
            with closing(sqlite3.connect(uri, uri=True, timeout=self.wait_seconds, isolation_level=None)) as db:
                _set_up(db)
                yield db
        except AirflowFtError as error:
            raise error.located(**where) from error.__cause__
        except sqlite3.Error as error:
            raise self._told(error).located(**where) from error
        except OSError as error:
            raise self._unreachable(error).located(**where) from error

    def mark(self) -> tuple[int, int] | None:
        """Return the identity of the file of that name; None if it is missing."""
        with suppress(OSError):
            found = self.path.stat()
            return found.st_dev, found.st_ino
        return None

    def require_place(self) -> None:
        """SinkAccessError for a file that cannot be written, or made."""
        try:
            self._require_place()
        except OSError as error:
            raise self._unreachable(error) from error

    def _unreachable(self, error: OSError) -> SinkAccessError:
        return SinkAccessError(
            f"{self.path} cannot be reached: {error.strerror or error}.",
            remedy="let the user who runs tasks into its folder; or name another one.",
        )

    def _require_place(self) -> None:
        if not self.path.exists() and not os.access(self.path.parent, os.W_OK):
            raise SinkAccessError(
                f"{self.path.parent} is no folder that can be written.", remedy="make it, or mend it."
            )
        if self.path.exists() and not os.access(self.path, os.W_OK):
            raise SinkAccessError(f"{self.path} cannot be written.", remedy="let the user who runs tasks own it.")

    def describe(self) -> str:
        """Return what it is, once it could be written; one that is not there is not made. Raises as `opened` does."""
        self.require_place()
        with self.opened() as db:
            if db is None:
                return f"SQLite {sqlite3.sqlite_version}: {self.path} will be made"
            db.execute("BEGIN IMMEDIATE")
            return f"SQLite {sqlite3.sqlite_version}: {self.path}, {self.path.stat().st_size:,} bytes"

    def _told(self, error: sqlite3.Error) -> AirflowFtError:
        """As one of ours; an error of COMMIT too, since the next try reads the marker."""
        name = getattr(error, "sqlite_errorname", "")
        for names, told in self._meanings().items():
            if name.startswith(names):
                return told
        return SinkUnavailableError(f"{self.path}: {error} ({name or 'of Python'}).", remedy="it is tried again.")

    def _meanings(self) -> Mapping[tuple[str, ...], AirflowFtError]:
        return {
            ("SQLITE_BUSY", "SQLITE_LOCKED"): SinkUnavailableError(
                f"{self.path} stayed locked for {self.wait_seconds:.0f} s.",
                remedy="a process holds a transaction open on it: `fuser` tells which; it is tried again.",
            ),
            ("SQLITE_CORRUPT", "SQLITE_NOTADB"): SinkAccessError(
                f"{self.path} is damaged, or no SQLite file.",
                remedy="bring it back from a backup; or name another one.",
            ),
            ("SQLITE_CANTOPEN", "SQLITE_READONLY", "SQLITE_PERM"): SinkAccessError(
                f"{self.path} cannot be opened to write.",
                remedy="its folder has to be there, and both writable by the user who runs tasks.",
            ),
            ("SQLITE_FULL",): SinkUnavailableError(
                f"the disk of {self.path} is full.", remedy="make room; it is tried again, nothing was committed."
            ),
        }
