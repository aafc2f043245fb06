"""The vote on the environment: ledger, privileges, and settings that decide whether a commit is for ever."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import pymysql

from airflow_ft.protocol.errors import SinkAccessError
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
)
from airflow_ft.sinks.mysql.ledger import Ledger
from airflow_ft.sinks.mysql.naming import quote
from airflow_ft.sinks.mysql.session import Session, is_on
from airflow_ft.sinks.mysql.spec import MySqlSink

if TYPE_CHECKING:
    from airflow_ft.sinks.mysql.vote import Target

log = logging.getLogger(__name__)

_CREATES = re.compile(r"\bALL PRIVILEGES\b|\bCREATE(?:,| ON)")
_DENIED = re.compile(r"(?P<privileges>[A-Z, ]+) command denied to user .* for table (?P<table>\S+)")


def check_server(session: Session, *, allow_unsafe_durability: bool) -> list[str]:
    """Refuses a server that is read-only, cannot do READ COMMITTED, or may forget commits; returns warnings."""
    value = session.variables
    for name in ("read_only", "super_read_only", "innodb_read_only"):
        if is_on(value.get(name, "OFF")):
            raise SinkAccessError(
                f"{name} is {value[name]}: the server is a replica or takes no writes.",
                code="server_read_only",
                remedy="Let the connection lead to the primary.",
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
    if not has_ledger(session, ledger):
        try:
            for statement in ledger.ddl():
                session.run(statement)
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


def has_ledger(session: Session, ledger: Ledger) -> bool:
    """Return whether both tables are there."""
    return len(_engines(session, ledger)) == 2


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
    probed = list(target.mapping.values()) if target.mapping is not None else names[:1]
    try:
        check_privileges(session, target, [TargetColumn(name, name, Form.PLAIN) for name in probed])
    except SinkAccessError as error:
        some = session.rows(
            "SELECT 1 FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s"
            " AND FIND_IN_SET('insert', PRIVILEGES) LIMIT 1",
            (target.table.name.schema, target.table.name.name),
        )
        if error.code == PRIVILEGE_MISSING and (target.mapping is not None or not some):
            raise
    except pymysql.err.MySQLError as error:
        if meaning(error) is Meaning.LOST:
            raise
        log.debug("INSERT into %s could not be judged: %s", target.table.name, describe(error))


def check_changes_allowed(session: Session, target: Target, column: str, *, deletes: bool) -> None:
    """UPDATE (tried with `column`), and where they may come DELETE, on the table."""
    name, column = target.table.name.sql, quote(column)
    _probe(session, f"UPDATE {name} SET {column} = {column} WHERE 1 = 0", f"GRANT UPDATE on {name}", target.sink)
    if deletes:
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
        told = describe(error)
        denied = _DENIED.search(told)
        # Another table than the statement's: the sequence of a default, or what a trigger writes.
        if denied and _quoted_name(denied["table"]).lower() not in statement.lower():
            grant = f"GRANT {denied['privileges']} on {denied['table']}"
        code = code_for(error) or PRIVILEGE_MISSING
        lacking = "a privilege" if code == PRIVILEGE_MISSING else "a privilege, or the table differs"
        other = "" if code == PRIVILEGE_MISSING else f" {remedy_for(code)}"
        raise SinkAccessError(
            f"the connection's user lacks {lacking}: {told}",
            code=code,
            remedy=f"Run {grant} to the connection's user.{other}",
            sink=sink,
            grant=grant,
            errno=code_of(error),
        ) from error


def _quoted_name(told: str) -> str:
    """Return the last part of a table's name in a message, quoted: `a`.`b` of MariaDB, 'b' of MySQL."""
    return quote(told.rpartition(".")[2].strip("`'"))
