"""The decision log in a schema of a PostgreSQL database (12 or newer), by psycopg2.

Connections are used asynchronously. In psycopg2 only that gives *each answer* a deadline without the process-wide wait
callback. A reply that is lost on the way must end as 'unanswered', not hang.

Each transaction, and each query outside of one, sets its schema, durability and time-outs, so a pooler may pool
sessions or transactions.
"""

from __future__ import annotations

import contextlib
import logging
import re
import select
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, NoReturn

import psycopg2
from psycopg2 import errors, extensions

from airflow_ft.clients.postgres import WRONG_PARAMETERS, Settings
from airflow_ft.protocol.errors import ConfigurationError, StoreUnavailableError
from airflow_ft.protocol.meter import Meter
from airflow_ft.store.database import OF_ANOTHER_SCHEMA, Pool, Row, Transaction, asked, by_name
from airflow_ft.store.decision_log import DecisionLog

logger = logging.getLogger(__name__)

STATEMENT_TIMEOUT = 30.0
"""Seconds after which the server gives up a statement or the wait for a lock."""

ANSWER_MARGIN = 5.0
"""Seconds that an answer may take beyond the server's own time-out before it counts as lost."""

CONNECT_TIMEOUT = 10.0
"""Seconds to connect, unless the URL says `connect_timeout`."""

_SCHEMA = re.compile(r"[a-z_][a-z0-9_]{0,62}")
_NOW = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS now"
_CLOCK = f"SELECT {_NOW}"
_SERVER = "SELECT current_setting('fsync') AS fsync, pg_is_in_recovery() AS standby, getdatabaseencoding() AS encoding"
_SCHEMA_LOCK = 0x41465F5354_4F5245  # an arbitrary constant: the key of the advisory lock of migrations
# Classes of SQLSTATE that the environment causes: connection, authorisation, invalid database, rollback, resources,
# lock not available, operator, system, read-only standby; and a table or a column that is not there any more.
_ENVIRONMENT = re.compile(r"08...|28...|3D...|40...|42P01|42703|53...|55P03|57...|58...|25006|XX...")


class PostgresStore(DecisionLog):
    """The decision log in the database that `dsn` names: libpq's parameters, plus `schema` (default airflow_ft).

    The schema and its tables are created when the user may do that. `statement_timeout` are seconds.
    """

    def __init__(self, dsn: Mapping[str, str], *, statement_timeout: float = STATEMENT_TIMEOUT) -> None:
        super().__init__(PostgresDatabase(dsn, statement_timeout=statement_timeout))


class _NoAnswerError(psycopg2.OperationalError):
    """The deadline of an answer passed."""


class _PostgresTransaction:
    def __init__(self, database: PostgresDatabase, connection: extensions.connection) -> None:
        self._database = database
        self._connection = connection

    def rows(self, sql: str, *values: object) -> list[Row]:
        return _rows(self._database.execute(self._connection, sql, values))

    def locked(self, sql: str, *values: object) -> tuple[list[Row], int]:
        # The clock is read for what the inner query has given, so after the lock was had. One answer to wait for.
        locking = f"WITH locked AS MATERIALIZED ({sql} FOR UPDATE) SELECT locked.*, {_NOW} FROM locked"
        rows = self.rows(locking, *values)
        return rows, max([int(row.pop("now")) for row in rows], default=0)

    def change(self, sql: str, *values: object) -> int:
        return self._database.execute(self._connection, sql, values).rowcount

    def now(self) -> int:
        return int(self.rows(_CLOCK)[0]["now"])


class PostgresDatabase:
    """Connections to one schema of one database; synchronous_commit is demanded in every transaction."""

    def __init__(self, dsn: Mapping[str, str], *, statement_timeout: float = STATEMENT_TIMEOUT) -> None:
        self.meter = Meter()
        given = dict(dsn)
        self._schema = given.pop("schema", "airflow_ft")
        if not _SCHEMA.fullmatch(self._schema):
            raise ConfigurationError(
                f"the schema {self._schema!r} of the decision log is not a plain name.",
                code="store_url_invalid",
                remedy="Use lower-case letters, digits and underscores for `schema` in the URL, and no digit first.",
                value=self._schema,
            )
        try:
            self._connect_timeout = float(given.pop("connect_timeout", CONNECT_TIMEOUT))
        except ValueError:
            raise ConfigurationError(
                "connect_timeout in the decision log's URL is not a number of seconds.",
                code="store_url_invalid",
                remedy="Write a number, for example `connect_timeout=10`.",
            ) from None
        self._secrets = [value for name, value in given.items() if "password" in name and value]
        # psycopg2 encodes values as the session is when it begins, which is the database's encoding by default.
        self._dsn: dict[str, Any] = {"application_name": "airflow_ft", **given, "client_encoding": "UTF8"}
        self._statement_timeout = statement_timeout
        milliseconds = int(statement_timeout * 1000)
        # A process that is stopped between two statements holds the pipeline's row: for less than others wait.
        self._settings = Settings(
            milliseconds, milliseconds * 9 // 10, milliseconds // 3, search_path=self._schema, plain=True
        )
        self._answer_margin = ANSWER_MARGIN
        self._warned = False
        where = f"{given.get('host', given.get('hostaddr', ''))}:{given.get('port', '5432')}"
        user = f"{given['user']}@" if "user" in given else ""
        self.url = f"postgresql://{user}{where}/{given.get('dbname', '')}?schema={self._schema}"
        self._pool: Pool[extensions.connection] = Pool(self._connect, extensions.connection.close)

    def read(self, sql: str, *values: object) -> list[Row]:
        """One query in its own snapshot; repeated once when an idle connection turns out to be dead."""
        asked(values)
        connection, reused = self._pool.take()
        try:
            rows = _rows(self.execute(connection, f"{self._settings.alone}{sql}", values))
        except psycopg2.Error as error:
            silent = isinstance(error, _NoAnswerError)
            died = connection.closed != 0 and not silent
            self._pool.drop(connection)
            if reused and (died or silent):  # of a firewall that has forgotten it, the others hear nothing either
                self._pool.drop_idle()
            if reused and died:
                return self.read(sql, *values)
            self._raise(error)
        except BaseException:
            self._pool.drop(connection)
            raise
        self._pool.give(connection)
        return rows

    @contextmanager
    def write(self) -> Iterator[Transaction]:
        """BEGIN ... COMMIT at READ COMMITTED; flushed by the server when it returns."""
        connection = self._begin()
        try:
            try:
                yield _PostgresTransaction(self, connection)
            except psycopg2.Error as error:
                # COMMIT was not sent, so this can never arrive.
                self._raise(error)
            try:
                status = self.execute(connection, "COMMIT").statusmessage
            except psycopg2.Error as error:
                self._raise(error, unanswered=True)
            if status != "COMMIT":
                raise StoreUnavailableError(
                    f"the decision log {self.url} answered COMMIT with {status}: nothing was written.",
                    remedy="Try again. If it happens again, read the server's log.",
                    store=self.url,
                    status=status,
                )
        except BaseException as error:
            self._roll_back(connection, error)
            raise
        self._pool.give(connection)

    def now(self) -> int:
        """The server's clock."""
        return int(self.read(_CLOCK)[0]["now"])

    def has_schema(self) -> bool:
        """Return whether the version table exists."""
        return bool(
            self.read("SELECT to_regclass(?) IS NOT NULL AS found", f"{self._schema}.schema_version")[0]["found"]
        )

    def lock_schema(self, tx: Transaction) -> None:
        """Takes the advisory lock of migrations and creates the schema when it is not there."""
        tx.rows("SELECT pg_advisory_xact_lock(?)", _SCHEMA_LOCK)
        if tx.rows("SELECT 1 AS found FROM pg_namespace WHERE nspname = ?", self._schema):
            return
        try:
            tx.change(f"CREATE SCHEMA {self._schema}")
        except errors.InsufficientPrivilege as error:
            raise ConfigurationError(
                f"the decision log {self.url} has no schema {self._schema!r}, and its user may not create one.",
                code="privilege_missing",
                remedy=f"As the owner of the database, run `CREATE SCHEMA {self._schema} AUTHORIZATION"
                f" {self._dsn.get('user', 'CURRENT_USER')}`.",
                store=self.url,
                schema=self._schema,
            ) from error

    def close(self) -> None:
        """Closes all connections."""
        self._pool.close()

    def execute(
        self, connection: extensions.connection, sql: str, values: tuple[object, ...] = ()
    ) -> extensions.cursor:
        """Runs one statement and waits for its answer, at most the statement time-out and a margin."""
        cursor = connection.cursor()
        cursor.execute(translated(sql), values)
        _wait(connection, self._statement_timeout + self._answer_margin)
        return cursor

    def _begin(self) -> extensions.connection:
        connection, reused = self._pool.take()
        try:
            self._open(connection)
        except psycopg2.Error as error:
            self._pool.drop(connection)
            if not reused:
                self._raise(error)
            # An idle connection died (the server was restarted). BEGIN wrote nothing, so a fresh one may repeat it.
            self._pool.drop_idle()
            return self._begin()
        except BaseException:
            self._pool.drop(connection)
            raise
        return connection

    def _connect(self) -> extensions.connection:
        connection: extensions.connection | None = None
        try:
            connection = psycopg2.connect(async_=True, **self._dsn)
            _wait(connection, self._connect_timeout)
            self._set_up(connection)
            return connection
        except psycopg2.Error as error:
            if connection is not None:
                connection.close()
            wrong = error.pgcode is None and WRONG_PARAMETERS.search(str(error))
            if wrong or isinstance(error, psycopg2.ProgrammingError):
                raise ConfigurationError(
                    f"PostgreSQL's client refuses the parameters of the decision log {self.url}:"
                    f" {self._scrubbed(error)}.",
                    code="store_url_invalid",
                    remedy="Correct the parameters in the URL, or in the extra of its connection.",
                    store=self.url,
                ) from None
            self._raise(error)
        except BaseException:
            if connection is not None:
                connection.close()
            raise

    def _set_up(self, connection: extensions.connection) -> None:
        """Check the session's settings, and that the server keeps what it acknowledges. Refuse a standby."""
        [found] = _rows(self.execute(connection, _SERVER))
        if found["standby"]:
            raise StoreUnavailableError(
                f"the decision log {self.url} is on a standby, which may lack the newest decisions.",
                code="store_read_only",
                remedy=_remedy("25006"),
                store=self.url,
            )
        if found["encoding"] not in ("UTF8", "SQL_ASCII"):
            raise ConfigurationError(
                f"the decision log {self.url} is in a database with encoding {found['encoding']}, not UTF8.",
                code="server_setting_unsafe",
                remedy="Run `createdb --encoding=UTF8 --template=template0 --lc-collate=C --lc-ctype=C NEW`. Move an"
                " old log with pg_dump and pg_restore ('Move the decision log to UTF8' in docs/recovery.md).",
                encoding=found["encoding"],
            )
        self._open(connection)
        self.execute(connection, "ROLLBACK")
        if found["fsync"] != "on" and not self._warned:
            self._warned = True
            logger.warning(
                "The server of the decision log %s has fsync=off: a power failure can lose acknowledged decisions."
                " Set fsync=on, except for tests.",
                self.url,
            )

    def _open(self, connection: extensions.connection) -> None:
        """Begins a transaction with its settings. ConfigurationError: the server does not have one of them."""
        # READ WRITE: also where default_transaction_read_only is on.
        begin = self._settings.begin.replace("READ COMMITTED;", "READ COMMITTED READ WRITE;", 1)
        row = self.execute(connection, begin).fetchall()[0]
        if refused := self._settings.refused(row):
            self.execute(connection, "ROLLBACK")
            raise ConfigurationError(
                f"the decision log {self.url} has a wrong session setting: {refused}.",
                code="server_setting_unsafe",
                remedy="Find where it is set (pg_db_role_setting, postgresql.conf, or `options` in the URL), and RESET"
                " it there for the user of the decision log.",
                store=self.url,
                refused=str(refused),
            )

    def _roll_back(self, connection: extensions.connection, error: BaseException) -> None:
        """Ends the transaction of a failed write; a connection in an unknown state is closed (which rolls back)."""
        if isinstance(error, Exception) and not isinstance(error, StoreUnavailableError) and not connection.closed:
            with contextlib.suppress(psycopg2.Error):
                self.execute(connection, "ROLLBACK")
                self._pool.give(connection)
                return
        self._pool.drop(connection)

    def _raise(self, error: psycopg2.Error, *, unanswered: bool = False) -> NoReturn:
        """Raises the store's error for one of the driver's; what no environment can cause is raised as it is."""
        code = error.pgcode
        cause = None if any(secret in str(error) for secret in self._secrets) else error
        lost = isinstance(error, psycopg2.OperationalError | psycopg2.InterfaceError)
        if unanswered or lost or (code is not None and _ENVIRONMENT.fullmatch(code)):
            raise StoreUnavailableError(
                f"the decision log {self.url} {_what(code, unanswered)}: {self._scrubbed(error)}.",
                code="commit_unanswered" if unanswered else _code(code, str(error)),
                unanswered=unanswered,
                remedy=_remedy(code),
                store=self.url,
                sqlstate=code or "",
            ) from cause
        if isinstance(error, errors.InsufficientPrivilege):
            raise ConfigurationError(
                f"the user of the decision log {self.url} lacks a privilege: {self._scrubbed(error)}.",
                code="privilege_missing",
                remedy=f"Grant the user all privileges on schema {self._schema} and its tables.",
                store=self.url,
                schema=self._schema,
            ) from cause
        raise error

    def _scrubbed(self, error: BaseException) -> str:
        text = " ".join(str(error).split()).rstrip(".") or type(error).__name__
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return text


def _what(code: str | None, unanswered: bool) -> str:
    if unanswered:
        return "did not answer COMMIT, so the write may or may not have happened"
    if code in ("57014", "55P03"):
        return "did not answer in time"
    if code == "25006":
        return "is read-only (a standby?)"
    return "cannot be reached" if code is None else "failed"


_CODES = (
    (re.compile(r"57014|55P03"), "lock_timeout"),
    (re.compile(r"42P01|42703"), "store_replaced"),
    (re.compile(r"25006"), "store_read_only"),
    (re.compile(r"53100"), "disk_full"),
    (re.compile(r"53..."), "limit_reached"),
    (re.compile(r"28..."), "login_refused"),
    (re.compile(r"08..."), "server_unreachable"),
    (re.compile(r"57P0."), "server_unreachable"),
)
"""Our codes by SQLSTATE; the first that matches."""


def _code(code: str | None, text: str) -> str:
    if code is None:  # an error of connecting has no SQLSTATE
        return "login_refused" if "authentication failed" in text else "server_unreachable"
    return next((ours for pattern, ours in _CODES if pattern.fullmatch(code)), StoreUnavailableError.code)


def _remedy(code: str | None) -> str:
    if code in ("57014", "55P03"):
        return "Find the session that holds the locks (pg_stat_activity) and end it. The next try continues."
    if code in ("42P01", "42703"):
        return OF_ANOTHER_SCHEMA
    if code == "25006":
        return "Let the URL name the primary. If it names several hosts, add target_session_attrs=read-write."
    if code is not None and code.startswith("53"):
        return "Give the server disk space, memory or connections. The next try continues."
    return "Check that the server runs, and check host, port, user and password in the URL. The next try continues."


def _wait(connection: extensions.connection, seconds: float) -> None:
    """Wait until the connection has finished; _NoAnswerError after `seconds`."""
    deadline = time.monotonic() + seconds
    while (state := connection.poll()) != extensions.POLL_OK:
        remaining = deadline - time.monotonic()
        if remaining <= 0:
            raise _NoAnswerError(f"no answer within {seconds:g} s")
        poll = select.poll()  # unlike select(), for any number of open files
        poll.register(connection.fileno(), select.POLLIN if state == extensions.POLL_READ else select.POLLOUT)
        poll.poll(remaining * 1000)


@lru_cache(maxsize=256)
def translated(sql: str) -> str:
    """Return the statement with psycopg2's placeholder for `?`, and PostgreSQL's names for SQLite's JSON functions.

    No statement of the store contains a literal ? or %.
    """
    return sql.replace("?", "%s").replace("json_group_array(json_array(", "json_agg(json_build_array(")


def _rows(cursor: extensions.cursor) -> list[Row]:
    return by_name((column[0] for column in cursor.description or ()), cursor.fetchall())
