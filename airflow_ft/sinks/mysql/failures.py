"""Meaning of the server's errors, by number."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pymysql

from airflow_ft.protocol.errors import PROPOSED, AirflowFtError, DeclinedError
from airflow_ft.sinks.base.failures import Meaning as Meaning
from airflow_ft.sinks.base.failures import Unanswered as Unanswered
from airflow_ft.sinks.base.failures import failure_of
from airflow_ft.sinks.base.memory import ledger_lost
from airflow_ft.sinks.base.sql_ledger import HEAD, LEDGER

DUPLICATE_KEY = 1062
DUPLICATE_XID = 1440
LOCK_WAIT_TIMEOUT = 1205
DEADLOCK = 1213
RESOURCE_EXCEEDED = 1226
TOO_MANY_OF_THE_USER = 1203
NO_SUCH_TABLE = 1146
NOT_ALLOWED = 1142  # a privilege on the table
NO_SUCH_SAVEPOINT = 1305
NO_SUCH_THREAD = 1094
OUT_OF_TIME = frozenset({1969, 3024})  # max_statement_time of MariaDB, max_execution_time of MySQL
# 1148: not allowed (MySQL 5.7), 3948: disabled in the server (MySQL), 4166: in server or client (MariaDB).
LOCAL_INFILE_REFUSED = frozenset({1148, 3948, 4166})

_LOST = frozenset(
    {
        0,  # PyMySQL: the connection is closed
        1053,  # the server is shutting down
        1079,  # shutdown complete
        1080,  # forcing close of thread
        1152,  # aborted connection
        1158, 1159, 1160, 1161,  # error or time-out reading or writing packets
        1317,  # query execution was interrupted
        1927,  # connection was killed (MariaDB)
        2002, 2003,  # cannot connect
        2006, 2013, 2014, 2055,  # gone away, lost, out of sync
        4031,  # disconnected for inactivity (MySQL 8.0.24 and later)
    }
)  # fmt: skip

_REFUSED_ROWS = frozenset(
    {
        1022, DUPLICATE_KEY, 1169, 1557, 1586, 1761, 1762, 1859,  # duplicate keys
        1048, 1121, 1138, 1171, 1263, 1364,  # NULL where none may be, no default
        1216, 1451, 1452,  # foreign keys
        1118, 1162, 1301, 1406,  # too long
        1264, 1265, 1292, 1365, 1366, 1367, 1411, 1426, 1441, 1690,  # out of range, truncated, not a value of the type
        1300,  # not a string of the character set
        1261, 1262,  # fewer or more columns than expected
        1369, 3819, 4025,  # check option, check constraint
        1526, 1591, 1748,  # no partition for the value
        1643, 1644,  # SIGNAL in a trigger
        3140, 3141, 3144, 3156, 3157, 4037, 4038,  # not JSON, or nested too deeply
    }
)  # fmt: skip

_REFUSED_ACCESS = frozenset(
    {
        1044, 1045, 1095, 1130, 1131, 1133, 1142, 1143, 1227, 1251, 1370, 1396, 1410, 1524, 1698, 1820, 1862, 3118,
        3159, 4151,  # wrong password, host, privilege, plugin, expired password, TLS demanded
        1049, 1054, 1146, 1136, 1149, 1064, 1347, 1471,  # no such schema, table or column; a view
        1153,  # max_allowed_packet
        1290, 1792, 1836, 4091,  # read-only server
        1665,  # statement-based binary log with READ COMMITTED
        1785,  # a trigger writes into MyISAM, which GTIDs forbid
        2026, 2049, 2058, 2059, 2061,  # TLS, authentication plugins
    }
)  # fmt: skip


_OWN_WORDS = {
    1020: "Record has changed since last read",
    1021: "Disk full",
    1037: "Out of memory",
    1030: "Got error",
    1038: "Out of sort memory",
    1040: "Too many connections",
    1041: "Out of memory",
    1053: "Server shutdown in progress",
    1114: "The table '",
    1180: "Got error",
    TOO_MANY_OF_THE_USER: "User ",
    LOCK_WAIT_TIMEOUT: "Lock wait timeout exceeded",
    1206: "The total number of locks exceeds",
    DEADLOCK: "Deadlock found",
    RESOURCE_EXCEEDED: "User '",
    1296: "Got error",
    1297: "Got temporary error",
    1317: "Query execution was interrupted",
    1412: "Table definition has changed",
    1461: "Can't create more than max_prepared_stmt_count",
    1615: "Prepared statement needs to be re-prepared",
    1637: "Too many active concurrent transactions",
    1927: "Connection was killed",
    1969: "Query execution was interrupted",  # MariaDB: max_statement_time
    3024: "Query execution was interrupted",  # MySQL: max_execution_time
    3101: "Plugin instructed the server to rollback",
}
"""Beginnings of the server's own messages for errors that do not concern rows: a trigger may SIGNAL any number."""

_OF_THE_SERVER = frozenset(
    {
        1004, 1006, 1015, 1016, 1017, 1023, 1024, 1026, 1034, 1194, 1195, 1712, 1812, 1813, 1814, 1815, 1877, 1878,
        1932, 3185,  # files, indexes, tablespaces and their keys
        1036, 1874, 1881, 3989,  # a table, an engine or a schema that is read-only for now
        1047, 1243, 1295, 1390, 1835,  # a node that is not ready, statements that it does not know
        1099, 1100, 1192, 1223,  # LOCK TABLES
        1197, 1598,  # the binary log's cache is full, or nothing can be logged
        3100,  # a hook of the replication
        *range(9000, 9010),  # ProxySQL: no server behind it
        *LOCAL_INFILE_REFUSED,
    }
)  # fmt: skip
"""Further errors of a statement that say nothing of the rows."""

_OF_FILES = range(1, 1000)
"""The server's library for files and memory counts from 1: a full disk below tmpdir is error 3 or 20."""

_DAMAGED = frozenset({1034, 1194, 1195, 1712, 1812, 1813, 1814, 1815, 1877, 1878, 1932})
"""Indexes, tables and their files are broken or missing: retries alone do not help."""
_KEYRING_MISSING = 3185

LOGIN_REFUSED, PRIVILEGE_MISSING, ROW_REFUSED = "login_refused", "privilege_missing", "row_refused"

_CODES: Mapping[int, str] = {
    **dict.fromkeys(
        (1045, 1130, 1131, 1133, 1251, 1396, 1410, 1524, 1698, 1820, 1862, 2026, 2049, 2058, 2059, 2061, 3118, 3159,
         4151),
        LOGIN_REFUSED,
    ),
    **dict.fromkeys((1044, 1095, 1142, 1143, 1227, 1370), PRIVILEGE_MISSING),
    1049: "database_missing",
    NO_SUCH_TABLE: "table_missing",
    **dict.fromkeys((1054, 1136), "column_missing"),
    **dict.fromkeys((1347, 1471, 1785), "table_unsupported"),
    **dict.fromkeys((1290, 1792, 1836, 1874, 3989, 4091), "server_read_only"),
    1665: "server_setting_unsafe",
    **dict.fromkeys((1021, 1114), "disk_full"),
    **dict.fromkeys((1040, 1153, 1197, 1206, 1461, 1637, TOO_MANY_OF_THE_USER, RESOURCE_EXCEEDED), "limit_reached"),
}  # fmt: skip
"""Codes of errors that say more than their `Meaning`, by the server's number."""

_REMEDIES = {
    LOGIN_REFUSED: "Correct login, password or TLS settings of the connection, or the account on the server.",
    PRIVILEGE_MISSING: "Grant it. `airflow ft setup PIPELINE --dag FILE --print` prints all that the user needs.",
    "database_missing": "Create the database, or correct the schema of the connection or the sink.",
    "table_missing": f"Create the table. {PROPOSED}",
    "column_missing": "Add the column to the table, or leave it out in the job.",
    "table_unsupported": "Name an InnoDB base table in the sink, and use only InnoDB tables in its triggers.",
    "server_read_only": "Let the connection lead to the primary, or let the server take writes again.",
    "server_setting_unsafe": "Run SET GLOBAL binlog_format = 'ROW', and write it into the server's configuration.",
    "disk_full": "Free space on the disk of the server.",
    "limit_reached": "Raise the limit of the server that the message names.",
}

_NULLS = frozenset({1048, 1121, 1138, 1263})
_VALUES = frozenset(
    {1264, 1265, 1292, 1300, 1365, 1366, 1367, 1406, 1411, 1426, 1441, 1690, 3140, 3141, 3144, 3156, 3157, 4037, 4038}
)

_LIMITS = {
    "max_questions": "MAX_QUERIES_PER_HOUR",
    "max_queries_per_hour": "MAX_QUERIES_PER_HOUR",
    "max_updates": "MAX_UPDATES_PER_HOUR",
    "max_updates_per_hour": "MAX_UPDATES_PER_HOUR",
    "max_connections_per_hour": "MAX_CONNECTIONS_PER_HOUR",
    "max_user_connections": "MAX_USER_CONNECTIONS",
    "max_statement_time": "MAX_STATEMENT_TIME",
}
"""Names in ALTER USER for the resources that error 1226 names."""


def code_of(error: BaseException) -> int:
    """The number of the server's or the driver's error; -1 when it has none."""
    if isinstance(error, OSError):
        return 2013
    args = getattr(error, "args", ())
    return args[0] if args and isinstance(args[0], int) else -1


def meaning(error: BaseException) -> Meaning:
    """Sorts an error of a statement. What is not known is UNAVAILABLE: the rows stay, and it is tried again."""
    code = code_of(error)
    if code in _LOST or isinstance(error, Unanswered) or (code == -1 and isinstance(error, pymysql.err.InternalError)):
        return Meaning.LOST  # the last is PyMySQL's own: what came is not of the protocol
    if code in (LOCK_WAIT_TIMEOUT, DEADLOCK):
        return Meaning.BUSY
    if is_certain(error):  # also in the words of a trigger, which may SIGNAL any number
        return Meaning.ROWS
    if code in _REFUSED_ACCESS or is_used_up(error):
        return Meaning.ACCESS
    return Meaning.UNAVAILABLE


def meaning_of_rows(error: BaseException) -> Meaning:
    """Sorts an error of a statement that sends rows: they are refused, unless it is known to speak of something else.

    Triggers, functions, CHECKs and generated columns raise errors of any number, and a statement that is repeated for
    one of these would be repeated for ever.
    """
    code = code_of(error)
    if not _is_answer(error):
        return meaning(error)
    if _is_about_rows(error):
        return Meaning.ROWS
    if code in _OWN_WORDS:
        message = str(error.args[1]) if len(error.args) > 1 else ""
        return meaning(error) if message.startswith(_OWN_WORDS[code]) else Meaning.ROWS
    if code in _OF_THE_SERVER or code in _OF_FILES:
        return Meaning.UNAVAILABLE
    return Meaning.ACCESS if code in _REFUSED_ACCESS and not 2000 <= code < 3000 else Meaning.ROWS


def is_certain(error: BaseException) -> bool:
    """Return whether the error speaks of values, keys or constraints, by its number or its SQLSTATE."""
    return code_of(error) in _REFUSED_ROWS or _is_about_rows(error)


def _is_about_rows(error: BaseException) -> bool:
    """Return whether SQLSTATE says so: 22 is data, 23 constraints, 45 raised by a user."""
    return str(getattr(error, "sqlstate", None) or "")[:2] in ("22", "23", "45")


def _is_answer(error: BaseException) -> bool:
    """Return whether the server has sent the error; the numbers from 2000 to 2999 are the driver's, unless it did."""
    code = code_of(error)
    sqlstate = getattr(error, "sqlstate", None)
    return isinstance(error, pymysql.err.MySQLError) and code > 0 and (bool(sqlstate) or not 2000 <= code < 3000)


_LEDGER = re.compile(rf"\.({HEAD}|{LEDGER})'")
_LACKING = re.compile(
    r"Table '.*' doesn't exist|Unknown column '|(FUNCTION|PROCEDURE) \S+ does not exist|The user specified as a definer"
    r"|[\w, ]+ command denied to user "
)
"""Beginnings of messages about what a trigger lacks. It has no dynamic SQL, so no row chooses these names."""


def is_lacking(error: BaseException | None) -> bool:
    """Return whether the server says, in its own words, that a table, column, function or privilege is missing."""
    args: tuple[object, ...] = getattr(error, "args", ())
    return len(args) > 1 and _LACKING.match(str(args[1])) is not None


def refuses_rows(code: int) -> bool:
    """Return whether this code (of an error or a warning) speaks of the rows."""
    return code in _REFUSED_ROWS


def describe(error: BaseException) -> str:
    """The server's own words with its number. They never contain a password."""
    if isinstance(error, pymysql.err.MySQLError):
        text = str(error.args[1]) if len(error.args) > 1 and error.args[1] else type(error).__name__
        return f"{text.rstrip('.')} (error {code_of(error)})."
    return f"{error!r}."


def failure(error: BaseException, doing: str, *, rows: bool = False) -> AirflowFtError:
    """The error to raise for an error met while `doing`; only statements that send rows may be declined."""
    found = meaning(error)
    if rows and meaning_of_rows(error) is Meaning.ROWS:
        return declined(error, f"{doing} failed")
    if code_of(error) == NO_SUCH_TABLE and _LEDGER.search(describe(error)):
        return ledger_lost()
    code = code_for(error)
    remedy = _remedy_of_limit(error) or _REMEDIES.get(code, "") or _remedy_of_damage(error)
    return failure_of(error, doing, found, describe(error), remedy, code, errno=code_of(error))


def code_for(error: BaseException) -> str:
    """Return our code for a server's error; "" if its number adds nothing to its meaning."""
    if code_of(error) == 1030 and re.search(r"\b28\b|[Nn]o space", describe(error)):  # an error of a storage engine
        return "disk_full"
    return _CODES.get(code_of(error), "")


def remedy_for(code: str) -> str:
    """Return what helps against errors of this code; "" where it depends."""
    return _REMEDIES.get(code, "")


def code_for_rows(number: int) -> str:
    """Return our code for an error or warning about rows, by the server's number."""
    if number in _NULLS:
        return "null_refused"
    return "value_unfit" if number in _VALUES else ROW_REFUSED


def declined(error: BaseException, what: str) -> DeclinedError:
    """Return the error for rows that the server refuses; `what` is the beginning of the message."""
    return DeclinedError(
        f"{what}: {describe(error)}",
        code=code_for_rows(code_of(error)),
        remedy="Correct the rows in the job, or the table (its keys, constraints and triggers). Then run again.",
        errno=code_of(error),
    )


def is_used_up(error: BaseException) -> bool:
    """Return whether the account has used up one of its limits."""
    return code_of(error) in (RESOURCE_EXCEEDED, TOO_MANY_OF_THE_USER)


def _remedy_of_limit(error: BaseException) -> str:
    if not is_used_up(error):
        return ""
    found = re.search(r"'(max_\w+)'", describe(error))
    limit = _LIMITS.get(found[1].lower() if found else "", "MAX_USER_CONNECTIONS")
    return (
        f"Run ALTER USER ... WITH {limit} 0 (no limit), or give a higher number. Limits by the hour are free again"
        " after an hour, or after FLUSH USER_RESOURCES."
    )


def _remedy_of_damage(error: BaseException) -> str:
    if code_of(error) == _KEYRING_MISSING:
        return "Load the server's keyring, without which it cannot read the table."
    if code_of(error) not in _DAMAGED:
        return ""
    return (
        "Run CHECK TABLE on the server, and look at its error log. Repair the table (REPAIR TABLE, ALTER TABLE ..."
        " FORCE) or restore its files. The rows wait."
    )


@contextmanager
def suppressed(code: int) -> Iterator[None]:
    """Ends the block at an error of this number, as `contextlib.suppress` does."""
    try:
        yield
    except pymysql.err.MySQLError as error:
        if code_of(error) != code:
            raise


@contextmanager
def translated_errors(doing: str, **where: Any) -> Iterator[None]:
    """The driver's errors as ours, and all of ours with their place."""
    try:
        yield
    except pymysql.err.MySQLError as error:
        raise failure(error, doing).located(**where) from error
    except AirflowFtError as error:
        raise error.located(**where) from error.__cause__
