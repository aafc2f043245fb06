"""The meaning of a server's error, by SQLSTATE (postgresql.org/docs/current/errcodes-appendix.html) and context.

The context names the row of a COPY, or the function that ran for one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg2

from airflow_ft.clients.postgres import WRONG_PARAMETERS
from airflow_ft.protocol.errors import AirflowFtError
from airflow_ft.sinks.base.failures import Meaning as Meaning
from airflow_ft.sinks.base.failures import Unanswered as Unanswered
from airflow_ft.sinks.base.failures import failure_of
from airflow_ft.sinks.refused import OfTarget

FEATURE_NOT_SUPPORTED = "0A000"
INSUFFICIENT_PRIVILEGE = "42501"
UNDEFINED_OBJECT = "42704"
UNIQUE_VIOLATION = "23505"
NOT_IN_PREREQUISITE_STATE = "55000"

# What libpq says before there is a session has no SQLSTATE. Where the words are translated it is tried again.
_LET_IN = re.compile(
    r"password authentication failed|no password supplied|no pg_hba\.conf entry|authentication failed"
    r"|role .* does not exist|database .* does not exist|not permitted to (log|connect)|permission denied"
    r"|not currently accepting connections"
    rf"|certificate|does not support SSL|{WRONG_PARAMETERS.pattern}"
)
_NO_DATABASE = re.compile(r"database .* does not exist")
_FULL = re.compile(r"too many (clients|connections)|connection slots are reserved")
"""Messages of a server that refuses a new session. They come without an SQLSTATE."""
_NAMED = {UNIQUE_VIOLATION, "23503", "23P01"}  # whose detail names the key, and nothing else of the row


# What no row can cause, wherever it happens: the next try may succeed.
_PASSING: dict[Meaning, re.Pattern[str]] = {
    # connection, shutting down, crash, starting, dropped database, idle session, idle in or too long a transaction
    Meaning.LOST: re.compile(r"08...|57P0[12345]|25P0[34]"),
    # state of the transaction, resources, operator, system, damaged data or index, unreachable server of a wrapper
    Meaning.UNAVAILABLE: re.compile(r"25P0[12]|53...|57P..|58...|XX00[12]|HV00N"),
}
# The same of the server itself; a function may raise these to refuse a row.
_PASSING_UNLESS_RAISED: dict[Meaning, re.Pattern[str]] = {
    # serialisation, deadlock, lock not available
    Meaning.BUSY: re.compile(r"40001|40P01|55P03"),
    # the other rollbacks, statement time-out, object in use
    Meaning.UNAVAILABLE: re.compile(r"40...|57...|55006"),
}
# What a statement is refused for as a whole. While a row is read or a function runs for it, that row is refused.
# Feature, authorisation, database, schema, transaction (read only), access rules, state, settings.
_ACCESS = re.compile(r"0A...|28...|3D...|3F...|25...|42...|55...|22023")
_RAISED = {"exec_stmt_raise", "PLy_elog_impl", "PLy_output"}  # of PL/pgSQL and PL/Python (the server's own names)
_OF_ROWS = {"ExecWithCheckOptions"}  # a policy or view refuses a row by its values, as INSUFFICIENT_PRIVILEGE
# A function lacks a privilege, table, column, function or schema. Perhaps only for some rows: it may make up names.
_LACKING = {INSUFFICIENT_PRIVILEGE, "42P01", "42703", "42883", "3F000"}


_MORE_RESOURCES = "Give the server more disk space, memory or connections."
_TOO_MANY = (
    "limit_reached",
    "Close other sessions, or raise max_connections of the server, or the CONNECTION LIMIT of the role or database.",
)
_LOGIN = (
    "login_refused",
    "Correct login and password of the connection, or the entry for this user in the server's pg_hba.conf.",
)
_DATABASE = (
    "database_missing",
    "Correct the schema of the connection, which is the name of the database, or create the database.",
)
_BY_SQLSTATE = {
    re.compile(r"3D000"): _DATABASE,
    re.compile(r"28..."): _LOGIN,
    re.compile(r"42P01"): ("table_missing", ""),
    re.compile(r"42703"): ("column_missing", ""),
    re.compile(r"53300"): _TOO_MANY,
    re.compile(r"53100"): ("disk_full", _MORE_RESOURCES),
    re.compile(r"53..."): ("limit_reached", _MORE_RESOURCES),
    re.compile(r"57014"): (
        "",
        "If the statement took too long, speed it up: drop indexes and triggers that are not needed, or give the server"
        " more resources. The rows wait.",
    ),
    re.compile(r"57P04"): ("", "Restore the database, or correct the connection. The rows wait."),
    re.compile(r"XX00[12]|58P01|58030"): (  # data, an index or a file is damaged or missing: retries do not help
        "",
        "Look at the server's log. Rebuild the index (REINDEX), or restore the table or file that it names. The rows"
        " wait.",
    ),
}
"""Codes and remedies of our errors, by SQLSTATE; "": those of the meaning."""
_NOT_NULL_VIOLATION = "23502"


def meaning(error: BaseException) -> Meaning:
    """Sorts an error. Where rows are sent, any code without another known meaning refuses rows:
    extensions and triggers choose their own. A privilege that a function lacks is no row's fault.
    """
    code: str | None = getattr(error, "pgcode", None)
    found: Meaning
    if isinstance(error, Unanswered):
        return Meaning.LOST
    if code is None:
        if isinstance(error, psycopg2.OperationalError) and _LET_IN.search(str(error)):
            return Meaning.ACCESS
        # A plain DatabaseError: libpq has lost the server's answer.
        lost = isinstance(error, psycopg2.OperationalError | psycopg2.InterfaceError)
        return Meaning.LOST if lost or type(error) is psycopg2.DatabaseError else Meaning.ACCESS
    raised, context = _of(error, "source_function") in _RAISED, _of(error, "context")
    for kinds in (_PASSING, *(() if raised else (_PASSING_UNLESS_RAISED,))):
        for found, codes in kinds.items():
            if codes.fullmatch(code):
                return found
    if code == INSUFFICIENT_PRIVILEGE and _lacks(error):
        return Meaning.ACCESS
    return Meaning.ACCESS if _ACCESS.fullmatch(code) and not raised and not context else Meaning.ROWS


def refusal(error: BaseException) -> str | None:
    """Return why rows are refused, while those that are not at fault go in alone; None: the error is of another kind.

    `OfTarget`: the target may be at fault, which shows when no row goes in.
    """
    if _of(error, "context") and _lacks(error):
        return OfTarget(describe(error))
    return describe(error) if meaning(error) is Meaning.ROWS else None


def _lacks(error: BaseException) -> bool:
    """Return whether the server, and no function's RAISE, says that something is lacking."""
    return getattr(error, "pgcode", None) in _LACKING and _of(error, "source_function") not in _RAISED | _OF_ROWS


def _of(error: BaseException, field: str) -> str:
    return str(getattr(getattr(error, "diag", None), field, None) or "")


def is_without_place(error: psycopg2.Error) -> bool:
    """Return whether PREPARE TRANSACTION was refused since the server has no place for one more."""
    return error.pgcode == "53200" and _of(error, "source_function") == "MarkAsPreparing"


_LIBPQ_ASKS = " Is the server running on that host and accepting TCP/IP connections?"


def describe(error: BaseException) -> str:
    """The server's own words with its SQLSTATE; of the row it shows the key at most."""
    code = getattr(error, "pgcode", None)
    if not isinstance(error, psycopg2.Error) or code is None:
        words = " ".join(str(error).split()).replace(_LIBPQ_ASKS, "")
        return f"{words.rstrip('.') or type(error).__name__}."
    detail = f" {error.diag.message_detail}" if code in _NAMED and error.diag.message_detail else ""
    hint = f". {error.diag.message_hint}" if code[:2] in ("53", "55") and error.diag.message_hint else ""
    words = f"{error.diag.message_primary}{detail}{hint}".rstrip(".")
    return f"{words} (SQLSTATE {code})."


def failure(error: BaseException, doing: str) -> AirflowFtError:
    """The error to raise for one met while `doing`, and not while rows were sent (`load` declines those)."""
    found, state = meaning(error), getattr(error, "pgcode", None) or ""
    code, remedy = _code_and_remedy(error, found, state)
    fields = {"sqlstate": state} if state else {}
    return failure_of(error, doing, found, describe(error), remedy, code, **fields)


def _code_and_remedy(error: BaseException, found: Meaning, state: str) -> tuple[str, str]:
    """Return code and remedy for an error of the server; "": those of its meaning."""
    if _of(error, "source_function") == "check_enable_rls":  # row-level security would hide rows (row_security=off)
        return (
            "row_security_active",
            "Run `ALTER ROLE ... BYPASSRLS` for the connection's user, or deliver into a table without policies.",
        )
    if state == INSUFFICIENT_PRIVILEGE and _of(error, "context"):
        return (
            "privilege_missing",
            "Grant the privilege to the connection's user: a trigger or function of the table needs it. The rows wait.",
        )
    if state == INSUFFICIENT_PRIVILEGE:
        return (
            "privilege_missing",
            "Grant the privilege. `airflow ft setup PIPELINE --dag FILE --print` prints those that deliveries need.",
        )
    if found is Meaning.BUSY:
        return "", "End the transaction that holds the lock: look in pg_stat_activity and pg_prepared_xacts."
    if not state and _FULL.search(str(error)):
        return _TOO_MANY
    if not state and found is Meaning.ACCESS and isinstance(error, psycopg2.OperationalError):
        return _DATABASE if _NO_DATABASE.search(str(error)) else _LOGIN
    return next((known for states, known in _BY_SQLSTATE.items() if states.fullmatch(state)), ("", ""))


def code_of_refusal(error: BaseException) -> str:
    """Return the code of an error by which the server refuses rows."""
    state = getattr(error, "pgcode", None) or ""
    if state == _NOT_NULL_VIOLATION:
        return "null_refused"
    return "value_unfit" if state.startswith("22") else "row_refused"


@contextmanager
def translated_errors(doing: str, **where: Any) -> Iterator[None]:
    """The driver's errors as ours, and all of ours with their place."""
    try:
        yield
    except psycopg2.Error as error:
        raise failure(error, doing).located(**where) from shown(error)
    except AirflowFtError as error:
        raise error.located(**where) from error.__cause__


def shown(error: BaseException) -> BaseException | None:
    """Return the error as the cause to show; None if it may quote secrets or rows.

    Errors of libpq may quote the connection's parameters. The server quotes a row that it refuses, and the row at which
    COPY was when anything else happened.
    """
    if not isinstance(error, psycopg2.Error) or error.pgcode is None:
        return None
    quotes = meaning(error) is Meaning.ROWS or "COPY " in (error.diag.context or "")
    return None if quotes else error
