"""A connection to the server with every setting that exactness rests on, and the ways to send it rows."""

from __future__ import annotations

import re
import secrets
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, TypeVar

import pymysql

from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.errors import SinkAccessError, SinkUnavailableError
from airflow_ft.sinks.ahead import kept_awake
from airflow_ft.sinks.mysql import session_settings
from airflow_ft.sinks.mysql.arguments import arguments, flag
from airflow_ft.sinks.mysql.failures import NO_SUCH_SAVEPOINT, Meaning, code_of, meaning
from airflow_ft.sinks.mysql.limits import Limits
from airflow_ft.sinks.mysql.wire import WireConnection

if TYPE_CHECKING:
    from airflow_ft.sinks.mysql.parameters import Parameters

Row = tuple[Any, ...]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Statement:
    """Result of one statement; `records` of an INSERT with several rows only."""

    affected: int
    warnings: int
    records: int = 0


@dataclass(frozen=True, slots=True)
class Insert:
    """An `insert_statement` and its values; `types` are those of one row."""

    sql: str
    types: bytes
    given: Parameters

    @property
    def rows(self) -> int:
        """Rows that the server must count."""
        return int(self.given.rows.num_rows)


@dataclass(frozen=True, slots=True)
class Changes:
    """A statement in utf8mb4 that changes `rows` rows at most."""

    sql: bytes
    rows: int


@dataclass(frozen=True, slots=True)
class Load:
    """A LOAD DATA LOCAL of `rows` rows, given as lines."""

    sql: str
    lines: Sequence[bytes | memoryview]
    rows: int


Request = Insert | Changes | Load


class Session:
    """One connection, used for one purpose and closed. Not thread-safe.

    It begins in autocommit mode with READ COMMITTED, strict SQL, UTC, utf8mb4 and short time-outs
    (`session_settings`); `begin` turns autocommit off for good. Every method may raise `pymysql.err.MySQLError`.

    Raises:
        SinkAccessError: the connection's TLS settings cannot be used, or a session setting is wrong.
        pymysql.err.MySQLError: the server cannot be reached, or refuses user, schema or settings.
    """

    def __init__(self, info: ConnectionInfo, limits: Limits) -> None:
        self._limits = limits
        self._prepared: dict[str, tuple[int, bytes]] = {}  # by statement: the server's number of it, the types it knows
        self._sent: deque[int] = deque()  # statements that are not answered, see `WireConnection.receive`
        self.local_infile_allowed = flag(info.extra.get("local_infile"), default=True)
        self.pipelining_allowed = flag(info.extra.get("pipelining"), default=True)
        given = arguments(info, limits, self.local_infile_allowed)
        try:
            self._connection: Any = WireConnection(**given)
        except RuntimeError as error:  # PyMySQL raises it if a package is missing
            named = re.match(r"'(\w+)' package", str(error))
            package = named[1] if named else "cryptography"
            raise SinkAccessError(
                f"PyMySQL cannot log in without the package {package}: {error}.",
                code="package_missing",
                participant=info.conn_id,
                remedy=f"Run `pip install {package}` where tasks run.",
                package=package,
            ) from error
        try:
            self._set_up()
        except BaseException:
            self.close()
            raise

    def _set_up(self) -> None:
        for statement in session_settings.statements(self._limits):
            self.run(statement)
        session_settings.ensure(self.rows, self.run, self._calls_itself, self._limits)
        self._connection.wait_for_answers(self._limits.answer)

    def require_settings(self, *, autocommit: bool = True) -> None:
        """In a transaction or branch that has begun: SinkAccessError when the server has other settings there."""
        session_settings.require(self.rows, self._calls_itself, self._limits, autocommit=autocommit)

    @property
    def _calls_itself(self) -> str:
        return str(self._connection.get_server_info())

    @property
    def id(self) -> int:
        """The server's number of this connection."""
        return int(self._connection.thread_id())

    @property
    def can_kill(self) -> bool:
        """Return whether KILL ends the session that IS_USED_LOCK names; a proxy would end one of its own numbers."""
        return self._number_of_locks == self.id

    @property
    def is_proxied(self) -> bool:
        """Return whether the server knows this session by another number than the one that it was given."""
        return self._number_of_locks not in (None, self.id)

    @cached_property
    def _number_of_locks(self) -> int | None:
        """The number of this session as IS_USED_LOCK names it; None: the server gives no user-level locks."""
        name = f"airflow_ft.{secrets.token_hex(20)}"
        try:
            self.rows("SELECT GET_LOCK(%s, 0)", (name,))
            found = self.value("SELECT IS_USED_LOCK(%s)", (name,))
        except pymysql.err.MySQLError as error:  # clusters may forbid it
            if meaning(error) is Meaning.LOST:
                raise
            return None
        return None if found is None else int(found)

    @property
    def is_open(self) -> bool:
        """Return whether the socket is there; says nothing of the server."""
        return bool(self._connection.open)

    def run(self, sql: str, args: Iterable[Any] | None = None) -> Statement:
        """Executes a statement that returns no rows. A percent sign in a quoted name is just that."""
        with self._free.cursor() as cursor:
            affected = cursor.execute(*_formatted(sql, args))
        return Statement(int(affected), self._warning_count())

    def load(self, sql: str, stream: Iterable[bytes | memoryview]) -> Statement:
        """Executes LOAD DATA LOCAL, sending `stream`. Raises what `stream` raises, with the connection cut."""
        connection = self._free
        connection.packet_bytes = max(1024, min(1 << 20, self.max_allowed_packet // 2))
        connection.stream = stream
        try:
            affected = connection.query(sql)
        finally:
            connection.stream = None
        return Statement(int(affected), self._warning_count())

    def send(self, requests: Iterable[Request], *, ahead: bool) -> Iterator[tuple[Request, Statement]]:
        """Executes them in order; yields what the server said of each.

        With `ahead` the next one is sent before the present one is answered, so that the server need not wait for it.
        So when one fails, or is questioned by a warning, the next may have been executed: roll both back. When one
        fails, nothing is left to be answered.

        An INSERT is prepared once, and stays so until `forget_statements`: there are few (`parameters`).
        """
        waiting: Request | None = None
        given = iter(requests)
        while (request := self._next(given)) is not None:
            if waiting and not (ahead and self.pipelining_allowed and self._may_follow(request)):
                yield waiting, self.answer()
                waiting = None
            if isinstance(request, Load):
                yield request, self.load(request.sql, request.lines)
                continue
            self.post(request)
            if waiting:
                yield waiting, self.answer()
            waiting = request
        if waiting:
            yield waiting, self.answer()

    def _next(self, requests: Iterator[Request]) -> Request | None:
        try:
            return next(requests, None)
        except Exception:
            while self._sent:
                self.answer()  # what the server says of the rows before comes first
            raise

    @property
    def is_ahead(self) -> bool:
        """Return whether a statement was sent that is not answered: nothing else can be asked."""
        return bool(self._sent)

    def _may_follow(self, request: Request) -> bool:
        """Return what needs an answer before its end cannot be sent while another answer is awaited."""
        return isinstance(request, Changes) or (isinstance(request, Insert) and request.sql in self._prepared)

    def post(self, request: Insert | Changes) -> None:
        """Send a statement; `answer` returns its result."""
        if isinstance(request, Changes):
            self._sent.append(self._connection.send_query(request.sql))
            return
        given = request.given
        number, known = self._prepared.get(request.sql) or (self._connection.prepare(request.sql), b"")
        # The server keeps them from the last execution; another segment may have others for the same columns.
        changed = request.types * given.rows.num_rows if request.types != known else b""
        self._sent.append(self._connection.send_execute(number, given.nulls, changed, given.values))
        self._prepared[request.sql] = number, request.types

    def answer(self) -> Statement:
        """Return the result of the oldest posted statement. If it failed, the others are dropped."""
        try:
            affected = self._connection.receive(self._sent.popleft())
        except pymysql.err.MySQLError:
            self._receive_all()
            raise
        message = getattr(self._connection._result, "message", None) or b""
        records = re.search(rb"Records: (\d+)", message if isinstance(message, bytes) else message.encode())
        return Statement(int(affected), self._warning_count(), int(records[1]) if records else 0)

    def _receive_all(self) -> None:
        """Read and drop outstanding answers."""
        while self._sent and self.is_open:
            with suppress(pymysql.err.MySQLError):
                self._connection.receive(self._sent.popleft())

    def forget_statements(self) -> None:
        """Frees what `send` has prepared."""
        while self._prepared:
            number, _ = self._prepared.popitem()[1]
            self._connection.forget(number)

    def rows(self, sql: str, args: Iterable[Any] | None = None) -> list[Row]:
        """Executes a query and returns all its rows."""
        with self._free.cursor() as cursor:
            cursor.execute(*_formatted(sql, args))
            return list(cursor.fetchall())

    def row(self, sql: str, args: Iterable[Any] | None = None) -> Row | None:
        """The first row of a query, or None."""
        found = self.rows(sql, args)
        return found[0] if found else None

    def value(self, sql: str, args: Iterable[Any] | None = None) -> Any:
        """The first value of a query's first row."""
        return self.rows(sql, args)[0][0]

    def awaiting(self, items: Iterator[T]) -> Generator[T]:
        """Yield the items; a thread makes the next one meanwhile. Close the generator after use.

        Keeps the session awake. Every statement must be answered before the next item is taken.
        """
        return kept_awake(items, partial(self.row, "SELECT 1"), self._limits.idle / 4, self._limits.answer)

    @property
    def _free(self) -> Any:
        """Return the connection if no answer is pending: otherwise it would be taken for that of another request."""
        if self._sent:
            raise RuntimeError("a statement on this connection still waits for its answer")
        return self._connection

    def _warning_count(self) -> int:
        result = self._connection._result
        return int(result.warning_count or 0) if result is not None else 0

    def begin(self) -> None:
        """From here on everything is one transaction, until `commit`."""
        self._free.autocommit(False)
        self._connection.begin()
        self.require_settings(autocommit=False)
        self.run("SAVEPOINT airflow_ft_begin")

    def require_begun(self) -> None:
        """SinkUnavailableError if the transaction that `begin` opened has ended unnoticed.

        A proxy may switch to another connection, which may commit each statement by itself. So this must come before
        the marker, which would count rows that are gone, and again before COMMIT.
        """
        try:
            self.run("RELEASE SAVEPOINT airflow_ft_begin")
        except pymysql.err.MySQLError as error:
            if code_of(error) != NO_SUCH_SAVEPOINT:
                raise
            raise SinkUnavailableError(
                "the transaction ended before it was committed. A proxy or pool switched to another connection.",
                code="server_unsupported",
                remedy="Wait for the retry. If it fails too, connect to the server itself, or let the proxy keep one"
                " connection for each session (ProxySQL: multiplexing off).",
            ) from error
        self.run("SAVEPOINT airflow_ft_begin")

    def commit(self) -> None:
        """COMMIT. An error leaves the outcome in doubt."""
        self._free.commit()

    def close(self) -> None:
        """Rolls back what is open (a lock wait time-out leaves the transaction open!) and closes; never raises."""
        try:
            if self.is_open:
                self._receive_all()
                self._connection.rollback()
                self._connection.close()
        except (pymysql.err.MySQLError, OSError):
            # The server rolls back when the socket is gone; closing it is all that is left to do here.
            self._connection._force_close()

    @cached_property
    def variables(self) -> Mapping[str, str]:
        """The server's global variables that this sink looks at, in lower case."""
        names = (
            "version", "version_comment", "local_infile", "max_allowed_packet", "read_only", "super_read_only",
            "innodb_flush_log_at_trx_commit", "log_bin", "sync_binlog", "binlog_format", "lower_case_table_names",
            "innodb_read_only", "wsrep_on", "max_prepared_stmt_count",
        )  # fmt: skip
        listed = ", ".join(f"'{name}'" for name in names)
        found = self.rows(f"SHOW GLOBAL VARIABLES WHERE Variable_name IN ({listed})")
        return {str(name).lower(): str(value) for name, value in found}

    @property
    def is_mariadb(self) -> bool:
        """MariaDB, not MySQL."""
        return "mariadb" in self.variables.get("version", "").lower()

    @property
    def version(self) -> tuple[int, ...]:
        """(10, 11, 6) of MariaDB or (9, 7, 4) of MySQL."""
        match = re.match(r"(\d+)\.(\d+)\.(\d+)", self.variables.get("version", ""))
        return tuple(int(part) for part in match.groups()) if match else (0, 0, 0)

    @property
    def product(self) -> str:
        """For people: 'MariaDB 10.11.6'."""
        return f"{'MariaDB' if self.is_mariadb else 'MySQL'} {'.'.join(map(str, self.version))}"

    @property
    def has_redo_log(self) -> bool:
        """False when MySQL's redo log is disabled (ALTER INSTANCE): a crash then costs the whole server."""
        row = self.row("SHOW GLOBAL STATUS LIKE 'Innodb_redo_log_enabled'")
        return row is None or session_settings.is_on(str(row[1]))

    @property
    def max_allowed_packet(self) -> int:
        """Bytes."""
        return int(self.variables.get("max_allowed_packet", str(1 << 20)))

    @property
    def can_prepare(self) -> bool:
        """Return whether the server allows prepared statements."""
        return self.variables.get("max_prepared_stmt_count") != "0"

    @property
    def can_load_local(self) -> bool:
        """Return whether both the connection and the server allow LOAD DATA LOCAL."""
        return self.local_infile_allowed and session_settings.is_on(self.variables.get("local_infile", "OFF"))


_QUOTED = re.compile(r"`(?:[^`]|``)*`")


def _formatted(sql: str, args: Iterable[Any] | None) -> tuple[str, tuple[Any, ...] | None]:
    """Return what PyMySQL takes: where there are values it formats the whole statement, also the names in it."""
    if args is None:
        return sql, None  # then it leaves percent signs alone
    return _QUOTED.sub(lambda name: name[0].replace("%", "%%"), sql), tuple(args)
