"""The decision log in one SQLite file: the embedded default, for all processes of one machine."""

from __future__ import annotations

import ctypes
import os
import re
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from airflow_ft.clients.mounts import network_file_system
from airflow_ft.protocol.errors import ConfigurationError, StoreCorruptError, StoreUnavailableError
from airflow_ft.protocol.meter import Meter
from airflow_ft.store.database import OF_ANOTHER_SCHEMA, Pool, Row, Transaction, asked, by_name
from airflow_ft.store.decision_log import DecisionLog
from airflow_ft.store.url import sqlite_url

BUSY_TIMEOUT = 30.0
"""Seconds to wait for another writer."""

_LOCKED = (
    "lock_timeout",
    "Another process holds the write lock. Find the process that is stopped or hangs (`fuser -v FILE`), and kill it.",
)
_DISK = ("disk_failed", "Check the disk: its free space, and the kernel log (`dmesg`).")
_REMEDIES = {
    sqlite3.SQLITE_BUSY: _LOCKED,
    sqlite3.SQLITE_LOCKED: _LOCKED,
    sqlite3.SQLITE_FULL: ("disk_full", "Free space on the disk. Nothing else is needed."),
    sqlite3.SQLITE_IOERR: _DISK,
    sqlite3.SQLITE_CANTOPEN: (
        "store_file_missing",
        "Check that the file and its folder exist and belong to the user of the workers.",
    ),
    sqlite3.SQLITE_READONLY: ("store_read_only", "Let the user of the workers write the file and its folder."),
    sqlite3.SQLITE_PERM: ("store_read_only", "Let the user of the workers own the file and its folder."),
    sqlite3.SQLITE_CORRUPT: (
        "store_file_damaged",
        "Keep a copy of the file, and restore a backup as docs/recovery.md says.",
    ),
    sqlite3.SQLITE_NOTADB: (
        "store_file_damaged",
        "Check the path: it names a file that is not a SQLite database. Correct the path, or restore a backup.",
    ),
    sqlite3.SQLITE_PROTOCOL: ("lock_timeout", "Too many processes opened the file at once. Try again."),
}
"""Code and remedy by SQLite's primary result code."""


class SqliteStore(DecisionLog):
    """The decision log in the file `path`, created with its folder when it is not there.

    Safe for several processes and threads of one machine. A writer that is stopped (SIGSTOP) in its transaction keeps
    all others out until it continues or is killed: they get StoreUnavailableError. Back it up and restore it with
    SQLite's own commands (`.backup`, `.restore`), never by copying the file alone. ConfigurationError on a relative
    path or a network file system, StoreUnavailableError when it cannot be opened.
    """

    def __init__(self, path: str | Path) -> None:
        super().__init__(SqliteDatabase(Path(path)))


class _SqliteTransaction:
    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def rows(self, sql: str, *values: object) -> list[Row]:
        return _rows(self._connection, sql, values)

    def locked(self, sql: str, *values: object) -> tuple[list[Row], int]:
        return self.rows(sql, *values), self.now()  # BEGIN IMMEDIATE locks out every other writer

    def change(self, sql: str, *values: object) -> int:
        return self._connection.execute(sql, values).rowcount

    def now(self) -> int:
        return time.time_ns() // 1000


_Inode = tuple[int, int] | None


class _Connection(sqlite3.Connection):
    """`opened`: the file and journal (-wal) that it has open, even if others have replaced them since."""

    opened: tuple[_Inode, _Inode] = (None, None)


class SqliteDatabase:
    """Connections to one file: write-ahead journal, synchronous FULL, BEGIN IMMEDIATE for every write."""

    def __init__(self, path: Path) -> None:
        if not path.is_absolute():
            raise ConfigurationError(
                f"the path {str(path)!r} of the decision log is relative: each process would open another file.",
                code="path_invalid",
                remedy="Give an absolute path (sqlite:////abs/path/ft.db).",
                path=str(path),
            )
        self.meter = Meter()
        self._path = path
        self.url = sqlite_url(path)
        self._pool: Pool[_Connection] = Pool(self._connect, self._close)
        self._create()

    def read(self, sql: str, *values: object) -> list[Row]:
        """One query, in SQLite's snapshot of that statement."""
        asked(values)
        connection = self._take()
        try:
            rows = _rows(connection, sql, values)
        except BaseException as error:
            self._pool.drop(connection)
            if isinstance(error, sqlite3.Error) and (unavailable := self._unavailable(error)) is not None:
                raise unavailable from error
            raise
        self._pool.give(connection)
        return rows

    @contextmanager
    def write(self) -> Iterator[Transaction]:
        """BEGIN IMMEDIATE ... COMMIT; synced to the disk when it returns."""
        connection = self._take()
        try:
            try:
                connection.execute("BEGIN IMMEDIATE")
                yield _SqliteTransaction(connection)
            except sqlite3.Error as error:
                if (unavailable := self._unavailable(error)) is None:
                    raise
                raise unavailable from error
            try:
                connection.execute("COMMIT")
            except sqlite3.Error as error:
                # A commit frame may be in the journal although its sync failed: a recovery could still find it.
                raise self._unanswered(error) from error
        except BaseException as error:
            self._roll_back(connection, error)
            raise
        self._pool.give(connection)

    def now(self) -> int:
        """The clock of this process."""
        return time.time_ns() // 1000

    def has_schema(self) -> bool:
        """Return whether the version table exists."""
        return bool(self.read("SELECT 1 AS found FROM sqlite_master WHERE type = 'table' AND name = 'schema_version'"))

    def lock_schema(self, tx: Transaction) -> None:
        """BEGIN IMMEDIATE has done it."""

    def close(self) -> None:
        """Closes all connections."""
        self._pool.close()

    def _create(self) -> None:
        folder = self._path.parent
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if (kind := network_file_system(self._path.resolve().parent)) is not None:  # the file may be a link
                raise ConfigurationError(
                    f"the decision log {self._path} is on a network file system ({kind}), where SQLite's locks do not"
                    " work.",
                    code="path_invalid",
                    remedy="Move it to a local disk. If several machines run tasks, use PostgreSQL for the decision"
                    " log.",
                    path=str(self._path),
                    file_system=kind,
                )
            # O_EXCL: never open and close the file of a running store here, that would drop this process's locks on
            # it (POSIX locks belong to the process). SQLite gives its -wal and -shm files the same mode.
            os.close(os.open(self._path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        except FileExistsError:
            pass
        except OSError as error:
            raise StoreUnavailableError(
                f"the decision log {self.url} cannot be created: {error.strerror}.",
                code="store_file_missing",
                remedy="Check that its folder exists and belongs to the user of the workers.",
                store=self.url,
            ) from error

    def _take(self) -> _Connection:
        connection, reused = self._pool.take()
        if reused and self._lost_journal(connection):
            self._pool.give(connection)
            raise StoreUnavailableError(
                f"the decision log {self.url} was overwritten, and its -wal file deleted, while it was open.",
                code="store_replaced",
                remedy="Stop all Airflow processes that were running then, and restore the backup as docs/recovery.md"
                " says.",
                store=self.url,
            )
        if reused and _inode(self._path) != connection.opened[0]:
            # Another file was moved here (a restored backup), so writes to the old one would be lost.
            self._pool.drop(connection)
            self._pool.drop_idle()
            connection, _ = self._pool.take(fresh=True)
        return connection

    def _journal(self) -> _Inode:
        return _inode(Path(f"{self._path}-wal"))

    def _lost_journal(self, connection: _Connection) -> bool:
        """Return whether only the journal was replaced. SQLite itself keeps the journal of an open file."""
        file, journal = connection.opened
        return file is not None and file == _inode(self._path) and journal != self._journal()

    def _close(self, connection: _Connection) -> None:
        """Close a connection, but not if it lost its journal: SQLite would copy old pages into the new file."""
        if self._lost_journal(connection):
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))  # stays open until the process ends
        else:
            connection.close()

    def _connect(self) -> _Connection:
        file = _inode(self._path)
        try:
            # mode=rw: a store that vanished is an error, never a new empty one.
            connection = sqlite3.connect(
                f"{self._path.as_uri()}?mode=rw",
                uri=True,
                timeout=BUSY_TIMEOUT,
                isolation_level=None,
                check_same_thread=False,
                factory=_Connection,
            )
            try:
                connection.execute("PRAGMA foreign_keys = ON")
                connection.execute("PRAGMA synchronous = FULL")
                _set_write_ahead_journal(connection)
                synchronous = connection.execute("PRAGMA synchronous").fetchone()[0]
                journal = connection.execute("PRAGMA journal_mode").fetchone()[0]
                connection.execute("SELECT 1 FROM sqlite_master").fetchone()  # makes the journal's file
            except BaseException:
                connection.close()
                raise
        except sqlite3.Error as error:
            if (unavailable := self._unavailable(error)) is None:
                raise
            raise unavailable from error
        if (synchronous, journal) != (2, "wal"):
            connection.close()
            raise ConfigurationError(
                f"SQLite opens the decision log {self.url} with journal mode {journal!r} and synchronous"
                f" {synchronous}. To survive a crash, decisions need 'wal' and 2 (FULL).",
                code="server_setting_unsafe",
                remedy="Move it to a local disk that supports shared memory maps.",
                store=self.url,
                journal=journal,
                synchronous=synchronous,
            )
        connection.opened = file, self._journal()  # which was made by now
        return connection

    def _roll_back(self, connection: _Connection, error: BaseException) -> None:
        """Ends the transaction of a failed write; a connection in an unknown state is closed."""
        if isinstance(error, StoreUnavailableError):
            self._pool.drop(connection)
            return
        try:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
        except sqlite3.Error:
            self._pool.drop(connection)  # closing rolls back
        else:
            self._pool.give(connection)

    def _unavailable(self, error: sqlite3.Error) -> StoreUnavailableError | None:
        """The store's error for one of SQLite's; None for what no environment can cause (a mistake in a statement)."""
        if column := re.search(r"Could not decode to UTF-8 column '(\w+)'", str(error)):
            raise StoreCorruptError(
                f"{self.url} has bytes that are not text in the column {column[1]}", store=self.url, at_column=column[1]
            ) from error
        if "JSON cannot hold BLOB values" in str(error):
            raise StoreCorruptError(f"{self.url} has bytes that are not text in a vote", store=self.url) from error
        if (found := _remedy(error)) is None:
            return None
        code, remedy = found
        remedy = remedy.replace("FILE", str(self._path))
        return StoreUnavailableError(
            f"the decision log {self.url} failed: {error}.", code=code, remedy=remedy, store=self.url
        )

    def _unanswered(self, error: sqlite3.Error) -> StoreUnavailableError:
        return StoreUnavailableError(
            f"the decision log {self.url} failed during COMMIT, so the write may or may not have happened: {error}.",
            code="commit_unanswered",
            unanswered=True,
            remedy=(_remedy(error) or _DISK)[1].replace("FILE", str(self._path)),
            store=self.url,
        )


def _remedy(error: sqlite3.Error) -> tuple[str, str] | None:
    """Code and remedy; None for what no environment can cause."""
    if str(error).startswith(("no such table: ", "no such column: ")):
        return "store_replaced", OF_ANOTHER_SCHEMA
    code: int | None = getattr(error, "sqlite_errorcode", None)
    return None if code is None else _REMEDIES.get(code & 0xFF)  # the low byte is the primary code


def _set_write_ahead_journal(connection: sqlite3.Connection) -> None:
    """Switches the file to its write-ahead journal, once in its life.

    SQLite does not wait for other openers at this statement (it returns BUSY at once), so this waits here.
    """
    deadline = time.monotonic() + BUSY_TIMEOUT
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def _inode(path: Path) -> _Inode:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _rows(connection: sqlite3.Connection, sql: str, values: tuple[object, ...]) -> list[Row]:
    cursor = connection.execute(sql, values)
    return by_name((column[0] for column in cursor.description), cursor.fetchall())
