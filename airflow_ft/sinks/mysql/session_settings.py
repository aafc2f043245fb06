"""The session settings that exactness rests on: set on every connection, read back, and read again in transactions.

A server, an account or `init_connect` may set each of them otherwise, and a proxy may hand a statement to another
connection than the one that was set up. So each value is compared with what the server says of it, and an error names a
setting that is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pymysql

from airflow_ft.protocol.errors import SinkAccessError
from airflow_ft.sinks.mysql.failures import Meaning, describe, meaning
from airflow_ft.sinks.mysql.limits import Limits

SQL_MODE = (
    "STRICT_TRANS_TABLES,STRICT_ALL_TABLES,NO_ZERO_IN_DATE,NO_ZERO_DATE,ERROR_FOR_DIVISION_BY_ZERO,"
    "NO_ENGINE_SUBSTITUTION,NO_AUTO_VALUE_ON_ZERO"
)
"""Strict, and 0 in an AUTO_INCREMENT column stays 0."""

_NO_LIMIT = "18446744073709551615"

WANTED: Mapping[str, str] = {
    "autocommit": "1",  # else a statement waits in a transaction that never ends
    "sql_mode": SQL_MODE,
    "time_zone": "+00:00",
    "character_set_client": "utf8mb4",
    "character_set_connection": "utf8mb4",
    "character_set_results": "utf8mb4",
    "transaction_isolation": "READ-COMMITTED",
    "tx_isolation": "READ-COMMITTED",
    "transaction_read_only": "0",
    "tx_read_only": "0",
    "completion_type": "NO_CHAIN",
    "foreign_key_checks": "1",
    "unique_checks": "1",
    "check_constraint_checks": "1",
    "sql_notes": "1",  # notes report digits that are cut off
    "note_verbosity": "basic",
    "sql_safe_updates": "0",
    "sql_auto_is_null": "0",
    "sql_big_selects": "1",
    "sql_select_limit": _NO_LIMIT,  # else lists of markers, columns and branches are cut short
    "sql_log_bin": "1",
    "max_statement_time": "0",
    "max_execution_time": "0",
    "old_mode": "",  # some of its flags keep warnings back
    "system_versioning_asof": "DEFAULT",
}
"""By name, each where the server has it. Switches are "1" and "0"."""

_SWITCHES = frozenset(name for name, value in WANTED.items() if value in ("0", "1") and "time" not in name)
_HARMLESS_OLD_MODES = frozenset({"", "UTF8_IS_UTF8MB3"})
_IDLE = ("idle_transaction_timeout", "idle_write_transaction_timeout", "idle_readonly_transaction_timeout")

_known: dict[str, tuple[str, ...]] = {}  # names that servers of a version have, by what the server calls itself

Rows = Callable[[str], Sequence[Sequence[Any]]]
Run = Callable[[str], object]


def statements(limits: Limits) -> Iterator[str]:
    """Yield the first statements of every connection; each supported server knows these settings."""
    yield "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED"
    yield (
        f"SET SESSION autocommit=1, sql_mode='{SQL_MODE}', time_zone='+00:00', lc_messages='en_US', sql_notes=1,"
        f" completion_type=0, foreign_key_checks=1, unique_checks=1, sql_safe_updates=0, sql_auto_is_null=0,"
        f" sql_big_selects=1, sql_select_limit={_NO_LIMIT},"
        f" innodb_lock_wait_timeout={limits.lock_wait}, lock_wait_timeout={limits.metadata_wait},"
        f" wait_timeout={limits.idle}, net_read_timeout={limits.idle}, net_write_timeout={limits.idle}"
    )


def ensure(rows: Rows, run: Run, server: str, limits: Limits) -> None:
    """Reads the settings back, and sets what only some servers have.

    `server` is what the server calls itself. SinkAccessError names a setting that is wrong.
    """
    for name, found in _wrong(rows, server, limits):
        value = _wanted(name, limits)
        try:
            run(f"SET SESSION {name} = {value if value.isdigit() or value == 'DEFAULT' else repr(value)}")
        except pymysql.err.MySQLError as error:
            if meaning(error) is Meaning.LOST:
                raise
            raise _refused(name, found, value, describe(error)) from error
        for still, left in _wrong(rows, server, limits):
            if still == name:
                raise _refused(name, left, value, "it was set, and the server still has the other value.")


def require(rows: Rows, server: str, limits: Limits, *, autocommit: bool) -> None:
    """In a transaction that has begun: SinkAccessError unless the settings are those of this connection.

    `autocommit`: whether it is on (a branch), or off (a transaction).
    """
    for name, found in _wrong(rows, server, limits, autocommit=autocommit):
        raise SinkAccessError(
            f"{name} is {found!r} inside a transaction, and this connection has set it to"
            f" {_wanted(name, limits) if name != 'autocommit' else int(autocommit)!r}. A proxy or pool spreads the"
            " statements over several connections.",
            code="server_unsupported",
            remedy="Connect to the server itself, or let the proxy keep one connection for each session (ProxySQL:"
            " multiplexing off).",
            setting=name,
            value=found,
        )


def _wrong(rows: Rows, server: str, limits: Limits, *, autocommit: bool = True) -> list[tuple[str, str]]:
    """Settings that are not as they have to be, and their values."""
    found = _values(rows, server)
    return [
        (name, value)
        for name, value in found.items()
        if not (_is_right(name, value, limits) if name != "autocommit" else is_on(value) is autocommit)
    ]


def _values(rows: Rows, server: str) -> Mapping[str, str]:
    names = _known.get(server)
    if names:
        try:
            [row] = rows(f"SELECT {', '.join(f'@@SESSION.{name}' for name in names)}")
        except pymysql.err.MySQLError as error:
            if meaning(error) is Meaning.LOST:
                raise
            _known.pop(server, None)  # another server behind the same words
        else:
            return {name: as_text(value) for name, value in zip(names, row, strict=True)}
    listed = ", ".join(f"'{name}'" for name in (*WANTED, *_IDLE))
    found = {
        str(name).lower(): as_text(value)
        for name, value in rows(f"SHOW SESSION VARIABLES WHERE Variable_name IN ({listed})")
    }
    _known[server] = tuple(found)
    return found


def _wanted(name: str, limits: Limits) -> str:
    return str(limits.idle) if name in _IDLE else WANTED[name]


def _is_right(name: str, value: str, limits: Limits) -> bool:
    if name in _IDLE:
        return float(value) == 0 or float(value) >= limits.idle
    wanted = WANTED[name]
    if name == "sql_mode":
        return set(value.upper().split(",")) == set(wanted.split(","))
    if name == "old_mode":
        return set(value.upper().split(",")) <= _HARMLESS_OLD_MODES
    if name == "note_verbosity":
        return not {"BASIC", "ALL"}.isdisjoint(value.upper().split(","))
    if name in _SWITCHES:
        return is_on(value) is (wanted == "1")
    if wanted.isdigit():
        return float(value) == float(wanted)
    return value.upper() == wanted.upper() or (name == "completion_type" and value == "0")


def is_on(value: str) -> bool:
    """Reads a boolean server variable."""
    return value.strip().lower() not in ("0", "off", "")


def as_text(value: Any) -> str:
    """Return a value of information_schema or a variable, which some servers send as bytes."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _refused(name: str, found: str, wanted: str, why: str) -> SinkAccessError:
    return SinkAccessError(
        f"the session setting {name} is {found!r} and must be {wanted!r}: {why}",
        code="server_setting_unsafe",
        remedy=f"Run SET GLOBAL {name} = {wanted!r}, or correct the server's init_connect or the proxy that sets it. Or"
        " run GRANT SESSION_VARIABLES_ADMIN ON *.* (MySQL) to the connection's user.",
        setting=name,
        value=found,
    )
