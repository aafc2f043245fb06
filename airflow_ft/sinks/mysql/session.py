"""A connection to the server with every setting that exactness rests on, and the ways to send it rows."""

from __future__ import annotations

import json
import re
import ssl
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pymysql

from airflow_ft.core.errors import SinkAccessError
from airflow_ft.core.ports import ConnectionInfo
from airflow_ft.sinks.mysql.wire import WireConnection

Row = tuple[Any, ...]

SQL_MODE = (
    "STRICT_TRANS_TABLES,STRICT_ALL_TABLES,NO_ZERO_IN_DATE,NO_ZERO_DATE,ERROR_FOR_DIVISION_BY_ZERO,"
    "NO_ENGINE_SUBSTITUTION,NO_AUTO_VALUE_ON_ZERO"
)
"""Strict, and 0 in an AUTO_INCREMENT column stays 0."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How long (seconds) and how often things are tried.

    `idle` bounds the server's patience with a session that stands still, so that a stopped process holds its locks no
    longer than that; `head_wait` is larger, so that waiting for such a session ends (I7). `answer` bounds ours.
    """

    connect: float = 10
    answer: float = 900
    lock_wait: int = 5
    metadata_wait: int = 30
    idle: int = 60
    head_wait: float = 90
    tries: int = 4
    insert_bytes: int = 4 << 20  # size of one INSERT, or of one packet of the bulk protocol
    slice_bytes: int = 8 << 20  # rows encoded at a time
    prune_batch: int = 1000


@dataclass(frozen=True, slots=True)
class Statement:
    """What the server said of one statement; `records` of an INSERT with several rows only."""

    affected: int
    warnings: int
    records: int = 0


class Session:
    """One connection, used for one purpose and closed. Not thread-safe.

    It begins in autocommit mode with READ COMMITTED, strict SQL, UTC, utf8mb4 and short time-outs; `begin` turns
    autocommit off for good. Every method may raise `pymysql.err.MySQLError`.

    Raises:
        SinkAccessError: the connection's TLS settings cannot be used.
        pymysql.err.MySQLError: the server cannot be reached, or refuses user, schema or settings.
    """

    def __init__(self, info: ConnectionInfo, limits: Limits) -> None:
        self._limits = limits
        self._prepared: tuple[str, int] | None = None  # a statement for `bulk`, and the server's number of it
        self.local_infile_allowed = _flag(info.extra.get("local_infile"), default=True)
        arguments = _arguments(info, limits, self.local_infile_allowed)
        try:
            self._connection = WireConnection(bulk=_flag(info.extra.get("bulk_protocol"), default=True), **arguments)
        except RuntimeError as error:  # PyMySQL's way to say that `cryptography` is lacking
            raise SinkAccessError(f"connecting: {error}", participant=info.conn_id) from error
        try:
            self._set_up()
        except BaseException:
            self.close()
            raise

    def _set_up(self) -> None:
        limits = self._limits
        self.run("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
        self.run(
            f"SET SESSION sql_mode='{SQL_MODE}', time_zone='+00:00', lc_messages='en_US', sql_notes=1,"
            f" completion_type=0, foreign_key_checks=1, unique_checks=1, sql_safe_updates=0,"
            f" innodb_lock_wait_timeout={limits.lock_wait}, lock_wait_timeout={limits.metadata_wait},"
            f" wait_timeout={limits.idle}, net_read_timeout={limits.idle}, net_write_timeout={limits.idle}"
        )

    @property
    def id(self) -> int:
        """The server's number of this connection."""
        connection: Any = self._connection
        return int(connection.thread_id())

    @property
    def is_open(self) -> bool:
        """Whether the socket is there; says nothing of the server."""
        return bool(self._connection.open)

    def run(self, sql: str, args: Iterable[Any] | None = None) -> Statement:
        """Executes a statement that returns no rows. Without `args` a percent sign is just that."""
        with self._connection.cursor() as cursor:
            affected = cursor.execute(sql, tuple(args) if args is not None else None)
        return Statement(int(affected), self._warning_count())

    def run_bytes(self, sql: bytes) -> Statement:
        """Executes a statement given as utf8mb4 text that may be large."""
        connection: Any = self._connection
        affected = connection.query(sql)
        message = getattr(connection._result, "message", None) or b""
        records = re.search(rb"Records: (\d+)", message if isinstance(message, bytes) else message.encode())
        return Statement(int(affected), self._warning_count(), int(records[1]) if records else 0)

    def load(self, sql: str, stream: Iterable[bytes | memoryview]) -> Statement:
        """Executes LOAD DATA LOCAL, sending `stream`. Raises what `stream` raises, with the connection cut."""
        connection: Any = self._connection
        connection.packet_bytes = max(1024, min(1 << 20, self.max_allowed_packet // 2))
        connection.stream = stream
        try:
            affected = connection.query(sql)
        finally:
            connection.stream = None
        return Statement(int(affected), self._warning_count())

    def bulk(self, sql: str, types: bytes, rows: bytes | memoryview) -> Statement:
        """Executes an INSERT of one row for each of `rows`; see `bulk`. All or none of them, when it returns or raises.

        The statement is prepared once for calls that follow each other with the same text.
        """
        connection: Any = self._connection
        if self._prepared is None or self._prepared[0] != sql:
            if self._prepared is not None:
                connection.forget(self._prepared[1])
                self._prepared = None
            self._prepared = sql, connection.prepare(sql)
        affected = connection.execute_bulk(self._prepared[1], types, rows)
        return Statement(int(affected), self._warning_count())

    def rows(self, sql: str, args: Iterable[Any] | None = None) -> list[Row]:
        """Executes a query and returns all its rows."""
        with self._connection.cursor() as cursor:
            cursor.execute(sql, tuple(args) if args is not None else None)
            return list(cursor.fetchall())

    def row(self, sql: str, args: Iterable[Any] | None = None) -> Row | None:
        """The first row of a query, or None."""
        found = self.rows(sql, args)
        return found[0] if found else None

    def _warning_count(self) -> int:
        result: Any = self._connection._result
        return int(result.warning_count or 0) if result is not None else 0

    def begin(self) -> None:
        """From here on everything is one transaction, until `commit`."""
        self._connection.autocommit(False)
        self._connection.begin()

    def commit(self) -> None:
        """COMMIT. An error leaves the outcome in doubt."""
        self._connection.commit()

    def close(self) -> None:
        """Rolls back what is open (a lock wait time-out leaves the transaction open!) and closes; never raises."""
        try:
            if self._connection.open:
                self._connection.rollback()
                self._connection.close()
        except (pymysql.err.MySQLError, OSError):
            # The server rolls back when the socket is gone; closing it is all that is left to do here.
            self._connection._force_close()  # type: ignore[attr-defined]

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
    def max_allowed_packet(self) -> int:
        """Bytes."""
        return int(self.variables.get("max_allowed_packet", str(1 << 20)))

    @property
    def can_bulk(self) -> bool:
        """Whether rows can be sent by MariaDB's bulk protocol."""
        return self._connection.can_bulk and self.variables.get("max_prepared_stmt_count") != "0"

    @property
    def can_load_local(self) -> bool:
        """Whether both the connection and the server allow LOAD DATA LOCAL."""
        return self.local_infile_allowed and is_on(self.variables.get("local_infile", "OFF"))


def is_on(value: str) -> bool:
    """Reads a boolean server variable."""
    return value.strip().lower() not in ("0", "off", "")


def _flag(value: Any, *, default: bool) -> bool:
    if value is None:
        return default
    return value if isinstance(value, bool) else str(value).strip().lower() in ("1", "true", "yes", "on")


def _arguments(info: ConnectionInfo, limits: Limits, local_infile: bool) -> dict[str, Any]:
    """What PyMySQL is called with. `charset` of the connection is ignored: the sink needs utf8mb4."""
    extra = info.extra
    arguments: dict[str, Any] = {
        "host": info.host or "localhost",
        "port": info.port or 3306,
        "user": info.login or None,
        "password": info.password,
        "database": info.schema or None,
        "charset": "utf8mb4",
        "autocommit": True,
        "local_infile": local_infile,
        "connect_timeout": limits.connect,
        "read_timeout": limits.answer,
        "write_timeout": limits.answer,
        "program_name": "airflow-ft",
    }
    if extra.get("unix_socket"):
        arguments["unix_socket"] = str(extra["unix_socket"])
    return arguments | _tls(extra, info.conn_id)


def _tls(extra: Mapping[str, Any], conn_id: str) -> dict[str, Any]:
    """`ssl` (a mapping, or JSON text of one: ca, capath, cert, key, cipher, check_hostname, verify_mode), `ssl_ca`,
    `ssl_cert`, `ssl_key`, `ssl_verify_cert`, `ssl_verify_identity`, `ssl_disabled`, and `ssl_mode` in MySQL's words.
    """
    given = {key: extra[key] for key in ("ssl_ca", "ssl_cert", "ssl_key", "ssl_key_password") if extra.get(key)}
    for key in ("ssl_verify_cert", "ssl_verify_identity", "ssl_disabled"):
        if key in extra:
            given[key] = _flag(extra[key], default=False)
    settings = extra.get("ssl")
    mode = str(extra.get("ssl_mode") or "").upper()
    try:
        if isinstance(settings, str):
            settings = json.loads(settings)
        if settings is not None and not isinstance(settings, (Mapping, bool)):
            raise ValueError("it is neither a mapping nor true or false")
        if settings is False or mode == "DISABLED":
            return {"ssl_disabled": True}
        if given.get("ssl_disabled"):
            return {"ssl_disabled": True}
        if isinstance(settings, Mapping) and settings:
            return {"ssl": _context(settings, mode)}
        if mode in ("REQUIRED", "VERIFY_CA", "VERIFY_IDENTITY") or settings is True:
            named = {key.removeprefix("ssl_"): value for key, value in given.items() if not key.startswith("ssl_ver")}
            return {"ssl": _context(named, mode)}
        if mode not in ("", "PREFERRED"):
            raise ValueError(f"ssl_mode {mode!r} is not one of MySQL's")
    except (ValueError, OSError) as error:  # OSError: a certificate that cannot be read
        raise SinkAccessError(
            f"the TLS settings of the connection cannot be used: {error}.",
            remedy="mend 'ssl' in the connection's extra: a mapping with ca, cert, key, cipher, check_hostname.",
            participant=conn_id,
        ) from error
    return given


def _context(settings: Mapping[str, Any], mode: str) -> ssl.SSLContext:
    """A TLS context; without a CA the server's certificate is not verified, as with MySQL's REQUIRED."""
    file, folder = settings.get("ca"), settings.get("capath")
    context = ssl.create_default_context(cafile=file, capath=folder)
    if hasattr(ssl, "VERIFY_X509_STRICT"):  # certificates that MySQL makes for itself do not pass it
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    verify = settings.get("verify_mode")
    verified = mode.startswith("VERIFY") or (bool(file or folder) and mode != "REQUIRED")
    if verify is not None:
        verified = str(verify).lower() not in ("none", "0", "false", "no", "cert_none")
    identity = settings.get("check_hostname", mode != "VERIFY_CA")
    context.check_hostname = verified and _flag(identity, default=True)
    context.verify_mode = ssl.CERT_REQUIRED if verified else ssl.CERT_NONE
    if settings.get("cert"):
        context.load_cert_chain(settings["cert"], settings.get("key"), settings.get("key_password"))
    if settings.get("cipher"):
        context.set_ciphers(settings["cipher"])
    return context
