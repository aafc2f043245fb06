"""The real decision log over SQLite in memory: no file, no sync, one connection (one process is at work at a time)."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import cache

from airflow_ft.protocol.meter import Meter
from airflow_ft.store.database import Row, Transaction
from airflow_ft.store.decision_log import DecisionLog

INSTALLATION = "11111111-2222-4333-8444-555555555555"


class _MemoryTransaction:
    def __init__(self, connection: sqlite3.Connection, clock: Callable[[], int]) -> None:
        self._connection = connection
        self._clock = clock

    def rows(self, sql: str, *values: object) -> list[Row]:
        cursor = self._connection.execute(sql, values)
        names = [column[0] for column in cursor.description]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]

    def locked(self, sql: str, *values: object) -> tuple[list[Row], int]:
        return self.rows(sql, *values), self.now()

    def change(self, sql: str, *values: object) -> int:
        return self._connection.execute(sql, values).rowcount

    def now(self) -> int:
        return self._clock()


class MemoryDatabase:
    """See `airflow_ft.store.database.Database`; `clock` gives microseconds."""

    url = "sqlite::memory:"

    def __init__(self, clock: Callable[[], int], contents: bytes = b"") -> None:
        self.meter = Meter()
        self._clock = clock
        self._connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        if contents:
            self._connection.deserialize(contents)
        self._tx = _MemoryTransaction(self._connection, clock)
        self.version = 0  # grows with every transaction

    def read(self, sql: str, *values: object) -> list[Row]:
        return self._tx.rows(sql, *values)

    @contextmanager
    def write(self) -> Iterator[Transaction]:
        self._connection.execute("BEGIN")
        try:
            yield self._tx
        except BaseException:
            self._connection.execute("ROLLBACK")
            raise
        self._connection.execute("COMMIT")
        self.version += 1

    def now(self) -> int:
        return self._clock()

    def has_schema(self) -> bool:
        return bool(self.read("SELECT 1 AS found FROM sqlite_master WHERE type = 'table' AND name = 'schema_version'"))

    def lock_schema(self, tx: Transaction) -> None:
        pass

    def close(self) -> None:
        self._connection.close()

    def snapshot(self) -> bytes:
        """A backup."""
        return self._connection.serialize()

    def put_back(self, backup: bytes) -> None:
        """The backup in place of what is there."""
        self._connection.deserialize(backup)
        self.version += 1


class RealStore(DecisionLog):
    """The real decision log, its code and its statements, over SQLite in memory."""

    def __init__(self, clock: Callable[[], int]) -> None:
        self._memory = MemoryDatabase(clock, _empty_log())
        super().__init__(self._memory)

    @property
    def version(self) -> int:
        """Grows with every write."""
        return self._memory.version

    def snapshot(self) -> bytes:
        """A backup."""
        return self._memory.snapshot()

    def put_back(self, backup: bytes) -> None:
        """The backup in place of what is there."""
        self._memory.put_back(backup)


@cache
def _empty_log() -> bytes:
    """A decision log with its tables and nothing in them."""
    database = MemoryDatabase(lambda: 0)
    with closing(DecisionLog(database)):
        with database.write() as tx:
            tx.change("UPDATE meta SET value = ? WHERE name = 'installation'", INSTALLATION)
        return database.snapshot()
