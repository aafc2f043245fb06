"""Requirements on a server and its tables, and their checks; see `airflow_ft.sinks.base.requirements`.

Settings that decide whether a commit is for ever, ledger, tables with keys and privileges, and for `xa` prepared
branches. Without rows (`required`), with their columns (`schema_problems`), and check by check for the vote.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial

import pyarrow as pa
import pymysql

from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.errors import AirflowFtError, SinkAccessError, UnfitTargetError
from airflow_ft.protocol.model import ParticipantPlan
from airflow_ft.protocol.numbers import count_text
from airflow_ft.sinks.base.changes import missing_kind
from airflow_ft.sinks.base.requirements import ASK_SECONDS, Finding, Requirement, ledger_finding
from airflow_ft.sinks.base.sql_ledger import HEAD, LEDGER, PRIVILEGES, cannot_create
from airflow_ft.sinks.mysql.encoding import Form, TargetColumn
from airflow_ft.sinks.mysql.failures import (
    PRIVILEGE_MISSING,
    Meaning,
    code_for,
    code_of,
    describe,
    is_used_up,
    meaning,
    remedy_for,
    translated_errors,
)
from airflow_ft.sinks.mysql.keys import check_keys
from airflow_ft.sinks.mysql.ledger import Ledger, ledger_of
from airflow_ft.sinks.mysql.limits import Limits
from airflow_ft.sinks.mysql.naming import quote
from airflow_ft.sinks.mysql.session import Session
from airflow_ft.sinks.mysql.session_settings import is_on
from airflow_ft.sinks.mysql.spec import MySqlSink
from airflow_ft.sinks.mysql.vote import Target, read_target
from airflow_ft.sinks.mysql.vote import schema_problems as problems_of
from airflow_ft.sinks.mysql.xa_preflight import check_listing

LIMITS = Limits(connect=ASK_SECONDS, login=ASK_SECONDS, answer=ASK_SECONDS, metadata_wait=1, lock_wait=1)
"""Of a session that only asks, and does not wait for it."""

log = logging.getLogger(__name__)

BRANCHES = "prepared branches"
_CREATES = re.compile(r"\bALL PRIVILEGES\b|\bCREATE(?:,| ON)")
_DENIED = re.compile(r"(?P<privileges>[A-Z, ]+) command denied to user .* for table (?P<table>\S+)")


def required(pipeline: str, plan: ParticipantPlan, connection: ConnectionInfo) -> Generator[Requirement]:
    """Yield what the server must have before `prepare`, as a quick look finds it. Changes nothing.

    Raises:
        SinkUnavailableError, SinkAccessError: the server cannot be asked now.
    """
    with translated_errors("checking the server"), closing(Session(connection, LIMITS)) as session:
        yield from requirements_of(session, pipeline, plan, connection.schema)


def requirements_of(session: Session, pipeline: str, plan: ParticipantPlan, schema: str) -> Generator[Requirement]:
    """Yield them, as one session finds them; `schema` is the connection's."""
    asking, sinks = translated_errors("checking the server"), MySqlSink.all_of(plan)
    unsafe = any(sink.allow_unsafe_durability for sink in sinks.values())
    yield Requirement("durability", asking(partial(_durability, session, unsafe)))
    yield Requirement("ledger", asking(partial(_ledger, session, pipeline, plan, sinks, schema)))
    if plan.strategy == "xa":
        yield Requirement(BRANCHES, asking(partial(_branches, session)))
    for name, sink in sinks.items():
        yield Requirement(f"table {sink.table}", asking(partial(_table, session, name, sink, schema)), name)


def schema_problems(
    plan: ParticipantPlan, connection: ConnectionInfo, schemas: Mapping[str, pa.Schema]
) -> Sequence[AirflowFtError]:
    """Return what speaks against each sink's schema. Reads information_schema alone.

    Raises:
        SinkUnavailableError, SinkAccessError: the server cannot be asked now.
    """
    found: list[AirflowFtError] = []
    sinks = MySqlSink.all_of(plan)
    with (
        translated_errors("reading the tables", participant=plan.name),
        closing(Session(connection, LIMITS)) as session,
    ):
        for name, schema in schemas.items():
            try:
                target = read_target(session, name, sinks[name], connection.schema)
            except SinkAccessError as error:  # there is no such table, or another engine's
                found.append(error)
                continue
            found += [problem.located(sink=name) for problem in _of_columns(session, target, sinks[name], schema)]
    return found


def _durability(session: Session, unsafe: bool) -> Finding:
    warnings = check_server(session, allow_unsafe_durability=unsafe)
    if not warnings:
        return Finding("acknowledged commits survive a power cut, and the server takes writes")
    remedy = "Set what docs/configuration.md recommends. allow_unsafe_durability allows the present settings."
    return Finding(warnings=[("; ".join(warnings), remedy)])


def _ledger(
    session: Session, pipeline: str, plan: ParticipantPlan, sinks: Mapping[str, MySqlSink], schema: str
) -> Finding:
    ledger = ledger_of(sinks, schema, pipeline, plan.name)
    check, creatable = partial(check_ledger, session, ledger), partial(require_creatable, session, ledger)
    return ledger_finding(ledger.on(session).exists(), ledger.schema, check, creatable, ledger.on(session).head)


def _branches(session: Session) -> Finding:
    check_listing(session)
    return Finding("versions and the right to list them are fine")


def _table(session: Session, name: str, sink: MySqlSink, schema: str) -> Finding:
    target = read_target(session, name, sink, schema)
    table = target.table
    keys = f"primary key {', '.join(table.key)}" if table.key else "no primary key"
    firing = triggers_that_fire(target, sink)
    text = f"InnoDB, {count_text(len(table.columns), 'column')}, {keys}"
    warnings = [(firing, "Check that they may fire for each row.")] if firing else []
    try:
        check_insert(session, fit_target(session, target, sink))
    except AirflowFtError as error:
        return Finding(text, [error], warnings, f"table {table.name}")
    return Finding(text, (), warnings, f"table {table.name}")


def _of_columns(session: Session, target: Target, sink: MySqlSink, schema: pa.Schema) -> Sequence[AirflowFtError]:
    found: list[AirflowFtError] = []
    if sink.strategy == "upsert":
        try:
            check_keys(session, target, sink)
        except UnfitTargetError as error:
            found.append(error)
        target = keyed_target(target, sink)
    if sink.change_column is not None and sink.change_column not in schema.names:
        found.append(missing_kind(sink.change_column, schema.names))
    return [*found, *problems_of(target, schema)]


def fit_target(session: Session, target: Target, sink: MySqlSink) -> Target:
    """Return the target as its strategy writes it.

    For an upsert it raises what `check_keys` raises, also for a missing privilege.
    """
    if sink.strategy != "upsert":
        return target
    check_keys(session, target, sink)
    check_changes_allowed(session, target, sink)
    return keyed_target(target, sink)


def keyed_target(target: Target, sink: MySqlSink) -> Target:
    """The target with what an upsert makes of its columns; nothing is asked of the server."""
    assert sink.version_column is not None
    return replace(
        target,
        ignored=frozenset([sink.change_column] if sink.change_column else []),
        own=frozenset([sink.version_column.lower()]),
        required=frozenset(key.lower() for key in sink.key_columns),
    )


# --- the checks ------------------------------------------------------------------------------------------------------


def check_server(session: Session, *, allow_unsafe_durability: bool) -> list[str]:
    """Refuses a server that is read-only, cannot do READ COMMITTED, or may forget commits; returns warnings."""
    value = session.variables
    for name in ("read_only", "super_read_only", "innodb_read_only"):
        if is_on(value.get(name, "OFF")):
            raise SinkAccessError(
                f"{name} is {value[name]}: the server is a replica or takes no writes.",
                code="server_read_only",
                remedy="Point the connection at the primary.",
                setting=name,
                value=value[name],
            )
    binary_log = is_on(value.get("log_bin", "OFF"))
    if binary_log and value.get("binlog_format", "ROW").upper() == "STATEMENT":
        raise SinkAccessError(
            "binlog_format is STATEMENT, which InnoDB refuses under READ COMMITTED.",
            code="server_setting_unsafe",
            remedy="Run SET GLOBAL binlog_format = 'ROW', and write it into the server's configuration.",
            settings=["binlog_format"],
        )
    unsafe = {}
    # MariaDB's 3 writes through at each commit as 1 does, and once more when a group of them is prepared.
    if (flush := value.get("innodb_flush_log_at_trx_commit")) not in (("1", "3") if session.is_mariadb else ("1",)):
        unsafe[f"innodb_flush_log_at_trx_commit={flush}"] = "SET GLOBAL innodb_flush_log_at_trx_commit = 1"
    if binary_log and (sync := value.get("sync_binlog")) != "1":
        unsafe[f"sync_binlog={sync}"] = "SET GLOBAL sync_binlog = 1"
    if not session.has_redo_log:
        unsafe["the redo log is disabled"] = "ALTER INSTANCE ENABLE INNODB REDO_LOG"
    if not unsafe:
        return []
    found = ", ".join(unsafe)
    text = f"{found}: the server may lose rows or markers in a power cut, although it has acknowledged them"
    if not allow_unsafe_durability:
        raise SinkAccessError(
            f"{text}.",
            code="server_setting_unsafe",
            remedy=f"Run {'; '.join(unsafe.values())}, and write the settings into the server's configuration."
            " Or accept the loss with MySqlSink(allow_unsafe_durability=True).",
            settings=list(unsafe),
        )
    log.warning("%s (allowed by allow_unsafe_durability)", text)
    return [text]


def ensure_ledger(session: Session, ledger: Ledger) -> str:
    """Creates ledger and head where they are lacking, and checks the privileges on both; says what it created.

    Raises:
        SinkAccessError: with the statements that a privileged person has to run.
    """
    created = ""
    if not ledger.on(session).exists():
        try:
            ledger.on(session).create()
        except pymysql.err.MySQLError as error:
            if meaning(error) is not Meaning.ACCESS or is_used_up(error):
                raise
            why = f"creating them failed: {describe(error)}"
            raise cannot_create(ledger.schema, why, ledger.ddl()) from error
        created = f"{LEDGER} and {HEAD} in schema {ledger.schema}"
    check_ledger(session, ledger)
    return created


def require_creatable(session: Session, ledger: Ledger) -> None:
    """Raise what `ensure_ledger` would where the ledger is missing and no grant lets this user create it.

    Grants of roles do not show here, so a user with roles passes.
    """
    grants = [str(row[0]).upper() for row in session.rows("SHOW GRANTS")]
    has_roles = any(" ON " not in grant for grant in grants)
    if not has_roles and not any(_CREATES.search(grant) for grant in grants):
        raise cannot_create(ledger.schema, "no grant lets this user create them.", ledger.ddl())


def is_usable(session: Session, ledger: Ledger) -> bool:
    """Return whether the ledger is there, and this user may use it."""
    try:
        if there := ledger.on(session).exists():
            check_ledger(session, ledger)
    except SinkAccessError:
        return False
    return there


def check_ledger(session: Session, ledger: Ledger) -> None:
    """SinkAccessError unless both tables have transactions, and this user may use them."""
    for name, engine in _engines(session, ledger).items():
        if engine.upper() != "INNODB":
            raise SinkAccessError(
                f"{name} is a table of engine {engine}, and markers need transactions.",
                code="table_unsupported",
                remedy=f"Run ALTER TABLE {quote(ledger.schema)}.{quote(name)} ENGINE=InnoDB.",
                table=name,
                engine=engine,
            )
    for probe in ledger.probes():
        _probe(session, probe, f"GRANT {', '.join(PRIVILEGES)} on {ledger.table} and {ledger.head_table}")


def check_privileges(session: Session, target: Target, columns: Sequence[TargetColumn]) -> None:
    """INSERT on every column that is written, also on those that the sink fills itself; deletes write none."""
    if not columns or target.only_keys:
        return
    own = [column.name for name in sorted(target.own) if (column := target.table.column(name)) is not None]
    written = [*(column.name for column in columns), *own]
    names = ", ".join(map(quote, written))
    nulls = ", ".join("NULL" for _ in written)
    _probe(
        session,
        f"INSERT INTO {target.table.name.sql} ({names}) SELECT {nulls} FROM DUAL WHERE 1 = 0",
        f"GRANT INSERT on {target.table.name.sql}",
        target.sink,
    )


def check_insert(session: Session, target: Target) -> None:
    """Check INSERT on any column of the table, for rows with unknown columns. Unclear grants pass."""
    names = [column.name for column in target.table.columns.values() if not column.generated]
    try:
        check_privileges(session, target, [TargetColumn(name, name, Form.PLAIN) for name in names[:1]])
    except SinkAccessError as error:
        some = session.rows(
            "SELECT 1 FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s"
            " AND FIND_IN_SET('insert', PRIVILEGES) LIMIT 1",
            (target.table.name.schema, target.table.name.name),
        )
        if error.code == PRIVILEGE_MISSING and not some:
            raise
    except pymysql.err.MySQLError as error:
        if meaning(error) is Meaning.LOST:
            raise
        log.debug("INSERT into %s could not be judged: %s", target.table.name, describe(error))


def check_changes_allowed(session: Session, target: Target, sink: MySqlSink) -> None:
    """UPDATE (tried with the version column), and where they may come DELETE, on the table."""
    name, column = target.table.name.sql, quote(sink.version_column or "")
    _probe(session, f"UPDATE {name} SET {column} = {column} WHERE 1 = 0", f"GRANT UPDATE on {name}", target.sink)
    if sink.change_column is not None:
        _probe(session, f"DELETE FROM {name} WHERE 1 = 0", f"GRANT DELETE on {name}", target.sink)


def triggers_that_fire(target: Target, sink: MySqlSink) -> str:
    """A note for people about the table's triggers that a delivery sets off, or ""."""
    events = ["INSERT"]
    if sink.strategy == "upsert":
        events += ["UPDATE", "DELETE"] if sink.change_column is not None else ["UPDATE"]
    found = {event: names for event in events if (names := target.table.triggers.get(event))}
    named = "; ".join(
        ", ".join(names) + ("" if event == "INSERT" else f" (on {event})") for event, names in found.items()
    )
    return f"triggers fire for each row: {named}" if named else ""


def _engines(session: Session, ledger: Ledger) -> dict[str, str]:
    rows = session.rows(
        "SELECT TABLE_NAME, ENGINE FROM information_schema.TABLES WHERE TABLE_SCHEMA = %s AND TABLE_NAME IN (%s, %s)",
        (ledger.schema, LEDGER, HEAD),
    )
    return {str(name).lower(): str(engine) for name, engine in rows}


def _probe(session: Session, statement: str, grant: str, sink: str = "") -> None:
    try:
        session.run(statement)
    except pymysql.err.MySQLError as error:
        if meaning(error) is not Meaning.ACCESS or is_used_up(error):
            raise
        description = describe(error)
        denied = _DENIED.search(description)
        # Another table than the statement's: the sequence of a default, or what a trigger writes.
        if denied and _quoted_name(denied["table"]).lower() not in statement.lower():
            grant = f"GRANT {denied['privileges']} on {denied['table']}"
        code = code_for(error) or PRIVILEGE_MISSING
        lacking = "a privilege" if code == PRIVILEGE_MISSING else "a privilege, or the table differs"
        other = "" if code == PRIVILEGE_MISSING else f" {remedy_for(code)}"
        raise SinkAccessError(
            f"the connection's user lacks {lacking}: {description}",
            code=code,
            remedy=f"Run {grant} to the connection's user.{other}",
            sink=sink,
            grant=grant,
            errno=code_of(error),
        ) from error


def _quoted_name(description: str) -> str:
    """Return the last part of a table's name in a message, quoted: `a`.`b` of MariaDB, 'b' of MySQL."""
    return quote(description.rpartition(".")[2].strip("`'"))
