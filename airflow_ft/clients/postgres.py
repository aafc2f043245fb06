"""Parameters that a connection hands to libpq, and the settings of a PostgreSQL session that exactness rests on.

The settings are SQL that sets them for one transaction.

Roles, databases, `options` of a connection and other clients of a pooler may have set any of them. A pooler that pools
transactions hands each of them to any backend, so what a session sets once may reach another client's backend and miss
the next transaction. So each transaction sets them for itself, and reads them back. Imports no driver.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

WRONG_PARAMETERS = re.compile(
    r"invalid (connection option|port|integer)|invalid \S+ value: |weak sslmode"
    r"|invalid SSL protocol version range|^require_auth method|authentication method requirement .* failed"
)
"""libpq's words, without an SQLSTATE, for parameters of a connection that it cannot use."""

_FIXED = {
    "client_encoding": "UTF8",
    "standard_conforming_strings": "on",
    "array_nulls": "on",  # off: NULL in an array literal is the text 'NULL'
    "transform_null_equals": "off",
    "xmloption": "content",
    "datestyle": "ISO, YMD",
    "intervalstyle": "postgres",
    "timezone": "UTC",
    "bytea_output": "hex",
    "extra_float_digits": "1",  # less: different doubles have one text
    "row_security": "off",  # rows that a policy hides are an error, never left out
}
_OF_VALUES = {"array_nulls", "xmloption", "datestyle", "intervalstyle", "timezone", "bytea_output", "client_encoding",
              "transform_null_equals"}  # fmt: skip
_UNITS = (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1000), ("ms", 1))

# Weaker ones are raised, stronger ones stay.
_SYNCHRONOUS = "synchronous_commit"
_DURABLE = ("on", "remote_apply")
# replica skips foreign keys and triggers. Only a superuser may set it, to any value.
_ROLE = "session_replication_role"
_NORMAL = ("origin", "local")

LIBPQ = frozenset(
    {
        "channel_binding", "connect_timeout", "gssencmode", "keepalives", "keepalives_count", "keepalives_idle",
        "keepalives_interval", "options", "require_auth", "target_session_attrs", "tcp_user_timeout",
    }
)  # fmt: skip


def libpq_parameters(extra: Mapping[str, Any]) -> dict[str, str]:
    """Return the entries of a connection's extra that libpq gets. Airflow's own hook uses the rest.

    libpq gets each name that begins with ssl, and refuses unknown ones. If a misspelled name were dropped, the
    connection would have no TLS.
    """
    return {name: str(value) for name, value in extra.items() if name in LIBPQ or name.startswith("ssl")}


@dataclass(frozen=True)
class Settings:
    """The settings of each transaction of a session. Times are milliseconds, 0 for no limit."""

    statement_timeout: int
    lock_timeout: int
    idle_in_transaction_session_timeout: int
    search_path: str = ""
    """"": as role, database or connection set it, even if other clients of a pooler set another one."""
    plain: bool = False
    """Values are numbers and texts alone: then a statement outside of a transaction needs fewer settings."""

    @cached_property
    def _wanted(self) -> Mapping[str, str]:
        times = {
            name: _shown(getattr(self, name))
            for name in ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout")
        }
        return _FIXED | times | ({"search_path": self.search_path} if self.search_path else {})

    @cached_property
    def _set(self) -> str:
        path = "" if self.search_path else "set_config('search_path', NULL, true), "
        fixed = ", ".join(f"set_config('{name}', '{value}', true)" for name, value in self._wanted.items())
        return (
            f"SELECT {path}CASE WHEN current_setting('transaction_timeout', true) <> '0'"
            " THEN set_config('transaction_timeout', '0', true) END,"  # of PostgreSQL 17
            f" CASE WHEN current_setting('{_SYNCHRONOUS}') IN {_DURABLE} THEN current_setting('{_SYNCHRONOUS}')"
            f" ELSE set_config('{_SYNCHRONOUS}', 'on', true) END,"
            f" CASE WHEN current_setting('{_ROLE}') IN {_NORMAL} OR current_setting('is_superuser') <> 'on'"
            f" THEN current_setting('{_ROLE}') ELSE set_config('{_ROLE}', 'origin', true) END, {fixed}"
        )

    @property
    def begin(self) -> str:
        """Opens a transaction with these settings; its one row is for `refused`. Give it to the server as one text."""
        return f"BEGIN ISOLATION LEVEL READ COMMITTED; {self._set}"

    @cached_property
    def alone(self) -> str:
        """Goes before a statement outside of a transaction, in one text with it: both are one transaction then.

        Nothing is read back. SET costs the server a third of what `set_config` costs it.
        """
        given = {name: value for name, value in self._wanted.items() if not self.plain or name not in _OF_VALUES}
        assignments = [f"{name} TO {value if name == 'search_path' else repr(value)}" for name, value in given.items()]
        assignments += [f"{_SYNCHRONOUS} TO 'on'", *([] if self.search_path else ["search_path TO DEFAULT"])]
        return (
            f"SET TRANSACTION ISOLATION LEVEL READ COMMITTED; {' '.join(f'SET LOCAL {each};' for each in assignments)} "
        )

    def synchronous(self, row: Sequence[str | None]) -> str:
        """The synchronous_commit that a transaction has, by the row of `begin`."""
        return row[1 if self.search_path else 2] or "on"

    def refused(self, row: Sequence[str | None]) -> str:
        """Return which setting is wrong, and how, from what the server read back; "": none."""
        synchronous, role, *fixed = row[1 if self.search_path else 2 :]
        if role not in _NORMAL:
            return f"{_ROLE} is {role}, which skips foreign keys and triggers"
        if synchronous not in _DURABLE:
            return f"{_SYNCHRONOUS} is {synchronous}"
        for (name, value), found in zip(self._wanted.items(), fixed, strict=True):
            if (found or "").lower() != value.lower():
                return f"{name} is {found!r} and must be {value!r}"
        return ""


def _shown(milliseconds: int) -> str:
    """As the server shows it: by the largest unit without a remainder."""
    if milliseconds == 0:
        return "0"
    unit, size = next((unit, size) for unit, size in _UNITS if milliseconds % size == 0)
    return f"{milliseconds // size}{unit}"
