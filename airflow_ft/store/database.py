"""What the store needs from a database: reads, write transactions and a clock. SQLite and PostgreSQL provide it."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from itertools import repeat
from typing import Any, Generic, Protocol, TypeVar

from airflow_ft.protocol.errors import ConfigurationError, StoreUnavailableError
from airflow_ft.protocol.meter import Meter

Row = dict[str, Any]
"""A row by column name."""


OF_ANOTHER_SCHEMA = (
    "Check which database is there: it is empty, or of another version. Then restart this process: it updates the"
    " schema."
)
"""What to do when a table or a column is missing, which was there when the log was opened."""
LARGEST = (1 << 63) - 1
"""The largest number that a database keeps."""


def by_name(names: Iterable[str], rows: Iterable[tuple[Any, ...]]) -> list[Row]:
    """Each row by the names of the columns. A list of pipelines has thousands: not a step of Python for each."""
    return list(map(dict, map(zip, repeat(tuple(names)), rows)))


def asked(values: tuple[object, ...]) -> None:
    """ConfigurationError for values of a query that no database can be asked for: nothing is there under them."""
    for value in values:
        if isinstance(value, int) and abs(value) > LARGEST:
            raise ConfigurationError(
                f"{value} is too large: the decision log keeps numbers up to {LARGEST}.",
                code="argument_invalid",
                remedy=f"Give a number of at most {LARGEST}.",
                value=value,
            )
        if isinstance(value, str) and ("\0" in value or not _is_utf8(value)):
            raise ConfigurationError(
                f"{value[:80]!r} has characters that the decision log cannot store (NUL, or half of a surrogate pair).",
                code="argument_invalid",
                remedy="Remove these characters.",
                value=value[:80],
            )


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:  # half of a pair of surrogates
        return False
    return True


class Transaction(Protocol):
    """An open write transaction. Statements use `?` for values."""

    def rows(self, sql: str, *values: object) -> list[Row]:
        """Runs a query; all of its rows."""

    def locked(self, sql: str, *values: object) -> tuple[list[Row], int]:
        """Runs a query and locks its rows until the end of the transaction; its rows, and `now` after that."""

    def change(self, sql: str, *values: object) -> int:
        """Runs a statement; the number of rows it changed."""

    def now(self) -> int:
        """The store's clock: microseconds since 1970, UTC."""


class Database(Protocol):
    """One database. Every method raises StoreUnavailableError when it cannot be reached or does not answer.

    `unanswered` is set on that error only from the moment on when COMMIT was sent: before it, nothing can arrive.
    Nothing is retried but what wrote nothing (a read, or BEGIN on an idle connection that turns out dead).
    """

    meter: Meter
    """See `EpochLog.meter`."""

    @property
    def url(self) -> str:
        """Return where it is, without secrets."""

    def read(self, sql: str, *values: object) -> list[Row]:
        """One query in its own snapshot."""

    def write(self) -> AbstractContextManager[Transaction]:
        """A durable transaction: commits when the block ends, rolls back when it raises."""

    def now(self) -> int:
        """The store's clock: microseconds since 1970, UTC."""

    def has_schema(self) -> bool:
        """Return whether the version table exists."""

    def lock_schema(self, tx: Transaction) -> None:
        """Keeps every other migration out until the end of this transaction."""

    def close(self) -> None:
        """Closes all connections."""


Connection = TypeVar("Connection")


class Pool(Generic[Connection]):
    """Idle connections of this process, for any number of threads; each is used by one thread at a time.

    A forked child begins with an empty pool: a connection belongs to the process that opened it (SQLite's locks and
    PostgreSQL's socket would be shared otherwise).
    """

    def __init__(
        self, open_connection: Callable[[], Connection], close_connection: Callable[[Connection], None], keep: int = 4
    ) -> None:
        self._open = open_connection
        self._close = close_connection
        self._keep = keep
        self._closed = False
        self._idle: list[Connection] = []
        self._lock = threading.Lock()
        _POOLS.add(self)

    def take(self, *, fresh: bool = False) -> tuple[Connection, bool]:
        """A connection for the caller alone, and whether it was idle before (it may have died meanwhile)."""
        with self._lock:
            if self._closed:
                raise StoreUnavailableError(
                    "this process has closed the decision log.",
                    code="store_closed",
                    remedy="Open it again with `open_store()`.",
                )
            if self._idle and not fresh:
                return self._idle.pop(), True
        return self._open(), False

    def give(self, connection: Connection) -> None:
        """Takes back a connection that is in good order and outside a transaction."""
        with self._lock:
            if not self._closed and len(self._idle) < self._keep:
                self._idle.append(connection)
                return
        self._close(connection)

    def drop(self, connection: Connection) -> None:
        """Closes a connection whose state is not known."""
        self._close(connection)

    def drop_idle(self) -> None:
        """Closes the idle ones: when one has died, they most likely all have."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            self._close(connection)

    def close(self) -> None:
        """Closes all; those in use are closed when they are given back."""
        with self._lock:
            self._closed = True
        self.drop_idle()

    def after_fork(self) -> None:
        """In a forked child: forgets the parent's connections without closing them, and its lock, which may be held."""
        _PARENTS_CONNECTIONS.extend(self._idle)
        self._idle = []
        self._lock = threading.Lock()


_POOLS: weakref.WeakSet[Pool[Any]] = weakref.WeakSet()
_PARENTS_CONNECTIONS: list[object] = []
"""Kept, so that the garbage collector does not close them: closing would act on the parent's file or socket."""


def _after_fork_in_child() -> None:
    for pool in list(_POOLS):
        pool.after_fork()


os.register_at_fork(after_in_child=_after_fork_in_child)
