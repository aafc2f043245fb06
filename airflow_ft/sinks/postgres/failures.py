"""What an error of the server means: by SQLSTATE (postgresql.org/docs/current/errcodes-appendix.html)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg2

from airflow_ft.core.errors import AirflowFtError
from airflow_ft.sinks.base.failures import Meaning as Meaning
from airflow_ft.sinks.base.failures import Unanswered as Unanswered
from airflow_ft.sinks.base.failures import failure_of

INSUFFICIENT_PRIVILEGE = "42501"
UNDEFINED_OBJECT = "42704"
UNIQUE_VIOLATION = "23505"
NOT_IN_PREREQUISITE_STATE = "55000"

# What libpq says before there is a session has no SQLSTATE. Where the words are translated it is tried again.
_LET_IN = re.compile(
    r"password authentication failed|no password supplied|no pg_hba\.conf entry|authentication failed"
    r"|role .* does not exist|database .* does not exist|not permitted to (log|connect)|permission denied"
    r"|certificate|does not support SSL|invalid (sslmode|connection option|port|integer|channel|target)"
)
_NAMED = {UNIQUE_VIOLATION, "23503", "23P01"}  # whose detail names the key, and nothing else of the row


_CODES = {
    # connection, shutting down, crash, starting, idle session, idle in transaction
    Meaning.LOST: re.compile(r"08...|57P0[1235]|25P03"),
    # serialisation, deadlock, lock not available
    Meaning.BUSY: re.compile(r"40001|40P01|55P03"),
    # feature, authorisation, database, schema, read only, access rules, state (prepared transactions), settings
    Meaning.ACCESS: re.compile(r"0A...|28...|3D...|3F...|25006|42...|55000|55P02|22023"),
    # data, constraints, view with check option, a limit of the program (an index row too large), raised by a trigger
    Meaning.ROWS: re.compile(r"22...|23...|44...|54...|P0001"),
}


def meaning(error: BaseException) -> Meaning:
    """Sorts an error. What is not known is UNAVAILABLE: the rows stay, and it is tried again."""
    code = getattr(error, "pgcode", None)
    if isinstance(error, Unanswered):
        return Meaning.LOST
    if code is None:
        if isinstance(error, psycopg2.OperationalError) and _LET_IN.search(str(error)):
            return Meaning.ACCESS
        return (
            Meaning.LOST if isinstance(error, psycopg2.OperationalError | psycopg2.InterfaceError) else Meaning.ACCESS
        )
    return next((found for found, codes in _CODES.items() if codes.fullmatch(code)), Meaning.UNAVAILABLE)


def describe(error: BaseException) -> str:
    """The server's own words with its SQLSTATE; of the row it shows the key at most."""
    code = getattr(error, "pgcode", None)
    if not isinstance(error, psycopg2.Error) or code is None:
        return f"{' '.join(str(error).split()).rstrip('.') or type(error).__name__}."
    detail = f" {error.diag.message_detail}" if code in _NAMED and error.diag.message_detail else ""
    hint = f". {error.diag.message_hint}" if code[:2] in ("53", "55") and error.diag.message_hint else ""
    words = f"{error.diag.message_primary}{detail}{hint}".rstrip(".")
    return f"{words} (SQLSTATE {code})."


def failure(error: BaseException, doing: str) -> AirflowFtError:
    """The error to raise for one met while `doing`, and not while rows were sent (`load` declines those)."""
    found, code = meaning(error), getattr(error, "pgcode", None) or ""
    remedy = ""
    if code == INSUFFICIENT_PRIVILEGE:
        remedy = "grant it: `airflow ft setup` prints all that the user needs."
    elif found is Meaning.BUSY:
        remedy = "another transaction holds a lock it needs (see pg_stat_activity); it is tried again."
    elif code.startswith("53"):
        remedy = "give the server disk space, memory or connections; it is tried again."
    return failure_of(error, doing, found, describe(error), remedy)


@contextmanager
def telling(doing: str, **where: Any) -> Iterator[None]:
    """The driver's errors as ours, and all of ours with their place."""
    try:
        yield
    except psycopg2.Error as error:
        raise failure(error, doing).located(**where) from shown(error)
    except AirflowFtError as error:
        raise error.located(**where) from error.__cause__


def shown(error: BaseException) -> BaseException | None:
    """The cause to be shown: not what libpq raises, which may quote the connection's parameters, nor what quotes a row:
    the server does so of one that it refuses, and of one at which COPY was when anything else happened.
    """
    if not isinstance(error, psycopg2.Error) or error.pgcode is None:
        return None
    quotes = meaning(error) is Meaning.ROWS or "COPY " in (error.diag.context or "")
    return None if quotes else error
