"""A connection to the server. Each transaction sets what exactness rests on (`airflow_ft.clients.postgres`).

So a pooler may pool sessions or transactions.
"""

from __future__ import annotations

import io
import os
import re
import socket
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from threading import Timer
from typing import Any, TypeVar

import psycopg2
from psycopg2.extensions import TRANSACTION_STATUS_IDLE

from airflow_ft.clients.foreign_connections import refuse_misspelt, require_type
from airflow_ft.clients.postgres import LIBPQ, Settings, libpq_parameters
from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.errors import SinkAccessError
from airflow_ft.sinks.ahead import kept_awake
from airflow_ft.sinks.postgres.failures import Meaning, Unanswered, describe, meaning

T = TypeVar("T")
Row = tuple[Any, ...]

_OLDEST = 120000
_IDLES = 140000  # knows idle_session_timeout, which would end a session that waits for another one
_LONGEST = 2_000_000  # seconds: the server's settings are milliseconds of 31 bits
_CONTROL = re.compile(r"BEGIN\b|COMMIT\b|ROLLBACK\b|PREPARE TRANSACTION\b")


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of waits (seconds) and repetitions.

    `idle` is the server's time-out for a session that is idle in a transaction, so that a stopped process holds its
    locks no longer than that. `head_wait` is larger, so that waiting for such a session ends (I7). `answer` limits
    each statement, or `row` for each row of the transaction if that is longer: one statement may apply all of them.
    """

    connect: float = 10
    answer: float = 900
    row: float = 0.01
    margin: float = 30
    lock_wait: float = 5
    idle: float = 60
    head_wait: float = 90
    tries: int = 4


class Session:
    """One connection, used for one purpose and closed. Not thread-safe.

    It begins in autocommit mode. `label` is its application_name. Every method may raise `psycopg2.Error`.
    """

    def __init__(self, info: ConnectionInfo, limits: Limits, label: str = "airflow_ft") -> None:
        self._limits = limits
        self._answer = limits.answer
        self._label = label
        answer, lock_wait, idle = (max(1, int(each * 1000)) for each in (limits.answer, limits.lock_wait, limits.idle))
        self._settings = Settings(answer, lock_wait, idle)
        self._synchronous = "on"
        self._connection = psycopg2.connect(**_arguments(info, limits), application_name=label)
        try:
            self._set_up()
        except BaseException:
            self.close()
            raise

    def _set_up(self) -> None:
        connection = self._connection
        if connection.server_version < _OLDEST:
            raise SinkAccessError(
                f"PostgreSQL {self.product} is too old.",
                code="server_version",
                remedy="Use PostgreSQL 12 or later.",
                version=self.product,
            )
        connection.autocommit = True
        connection.set_client_encoding("UTF8")
        if connection.server_version >= _IDLES:  # it concerns the time between transactions, so none can set it
            self.run("SET idle_session_timeout TO 0")
        self.begin()
        self.end("ROLLBACK")

    @property
    def label(self) -> str:
        """Its application_name."""
        return self._label

    @label.setter
    def label(self, label: str) -> None:
        if label != self._label:
            self.run("SELECT set_config('application_name', %s, false)", (label,))
            self._label = label

    @property
    def is_free(self) -> bool:
        """It is there, as far as is known, and no transaction is open."""
        connection = self._connection
        return not connection.closed and connection.get_transaction_status() == TRANSACTION_STATUS_IDLE

    @property
    def product(self) -> str:
        """The server's version, for people."""
        return str(self._connection.get_parameter_status("server_version"))

    def run(self, sql: str, args: tuple[object, ...] | None = None) -> tuple[int, str]:
        """Executes a statement; the rows that it has changed, and the server's word for what it did."""
        with self._answered(), self._connection.cursor() as cursor:
            if sql.startswith("COMMIT PREPARED"):  # it can be in no transaction: the session itself waits for standbys
                cursor.execute(f"SET synchronous_commit TO '{self._synchronous}'")
            cursor.execute(self._with_settings(sql), args)
            return int(cursor.rowcount), str(cursor.statusmessage)

    def rows(self, sql: str, args: tuple[object, ...] | None = None) -> list[Row]:
        """Executes a query."""
        with self._answered(), self._connection.cursor() as cursor:
            cursor.execute(self._with_settings(sql), args)
            return list(cursor.fetchall())

    def value(self, sql: str, args: tuple[object, ...] | None = None) -> Any:
        """The first value of a query's first row."""
        return self.rows(sql, args)[0][0]

    def copy(self, sql: str, data: bytes | memoryview) -> int:
        """Executes COPY ... FROM STDIN; how many rows the server has put into the table."""
        if self.is_free:  # settings and COPY cannot be one text
            self.begin()
            count = self.copy(sql, data)
            self.end()
            return count
        with self._answered(), self._connection.cursor() as cursor:
            cursor.copy_expert(sql, io.BytesIO(data), size=1 << 20)
            return int(cursor.rowcount)

    def awaiting(self, items: Iterator[T]) -> Generator[T]:
        """Yield the items; a thread makes the next one meanwhile. Close the generator after use.

        Keeps the open transaction awake: the log checks a whole file before its first row, and the caller may send no
        statement for the items.
        """
        return kept_awake(items, partial(self.value, "SELECT 1"), self._limits.idle / 4, self._limits.answer)

    def begin(self) -> None:
        """Opens a transaction with the settings that exactness rests on.

        SinkAccessError: the server does not have one of them for this user. No transaction is open then.
        """
        self._answer = self._limits.answer
        row = self.rows(self._settings.begin)[0]
        if refused := self._settings.refused(row):
            self.end("ROLLBACK")
            raise SinkAccessError(
                f"a setting of the session is unsafe: {refused}.",
                code="server_setting_unsafe",
                remedy="Find where it is set (`SELECT * FROM pg_db_role_setting`, postgresql.conf, `options` of the"
                " connection), and reset it there for the connection's user.",
                setting=refused.partition(" ")[0],
            )
        self._synchronous = self._settings.synchronous(row)

    def allow(self, rows: int) -> None:
        """Extend the time-out of the open transaction's statements to what this number of rows may take."""
        longer = min(rows * self._limits.row, _LONGEST)
        if longer > self._answer:
            self.run(f"SET LOCAL statement_timeout = {int(longer * 1000)}")
            self._answer = longer

    def _with_settings(self, sql: str) -> str:
        """A statement outside of a transaction, with the settings; what ends one cannot have any."""
        free = self._connection.get_transaction_status() == TRANSACTION_STATUS_IDLE
        return f"{self._settings.alone}{sql}" if free and not _CONTROL.match(sql) else sql

    def end(self, sql: str = "COMMIT") -> None:
        """Ends it with COMMIT or PREPARE TRANSACTION. Unanswered: in doubt; psycopg2.Error: refused.

        Of a transaction that has failed the server says ROLLBACK, and raises nothing.
        """
        try:
            _, done = self.run(sql)
        except psycopg2.Error as error:
            if meaning(error) is Meaning.LOST:
                raise Unanswered(describe(error)) from error
            raise
        if not sql.startswith(done):
            raise Unanswered(f"the server answered {done}.")

    def close(self) -> None:
        """Close the connection, which rolls back uncommitted work."""
        self._connection.close()

    @contextmanager
    def _answered(self) -> Iterator[None]:
        """Cuts the connection when the server does not answer in time: psycopg2 itself would wait for ever."""
        descriptor = os.dup(self._connection.fileno())
        with socket.socket(fileno=descriptor) as own:
            timer = Timer(self._answer + self._limits.margin, own.shutdown, (socket.SHUT_RDWR,))
            timer.daemon = True
            timer.start()
            try:
                yield
            finally:
                timer.cancel()


def _arguments(info: ConnectionInfo, limits: Limits) -> Mapping[str, Any]:
    require_type(info, "postgres")
    refuse_misspelt(info, LIBPQ)
    given = {
        "host": info.host or "localhost",
        "port": info.port or 5432,
        "user": info.login,
        "password": info.password,
        "dbname": info.schema,
        "connect_timeout": max(2, int(limits.connect)),
        "keepalives_idle": 30,
        "keepalives_interval": 10,
        "keepalives_count": 3,
        "tcp_user_timeout": 60_000,
    }
    return {name: value for name, value in given.items() if value} | libpq_parameters(info.extra)
