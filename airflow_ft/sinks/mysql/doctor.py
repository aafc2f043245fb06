"""Every preflight of a MySQL participant, in words: nothing is created that stays, no head is raised, no row sent."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import TypeVar

import pymysql

from airflow_ft.core.doctor import Check, Examination
from airflow_ft.core.model import ParticipantPlan
from airflow_ft.core.ports import ConnectionInfo, SegmentReader
from airflow_ft.sinks.mysql.failures import failure
from airflow_ft.sinks.mysql.ledger import HEAD, LEDGER, Ledger
from airflow_ft.sinks.mysql.limits import Limits
from airflow_ft.sinks.mysql.load import Way, path
from airflow_ft.sinks.mysql.preflight import _engines, _probe, check_privileges, check_server, triggers_that_fire
from airflow_ft.sinks.mysql.server import new_nonce
from airflow_ft.sinks.mysql.session import Session
from airflow_ft.sinks.mysql.spec import MySqlSink
from airflow_ft.sinks.mysql.upsert import fit_target, judged_rows
from airflow_ft.sinks.mysql.verify import read_target
from airflow_ft.sinks.mysql.vote import check_rows, check_segment
from airflow_ft.sinks.mysql.xa_preflight import check_listing, try_xa

T = TypeVar("T")
CLOCK_TOLERANCE = 60.0  # seconds


def examine(
    pipeline: str,
    plan: ParticipantPlan,
    connection: ConnectionInfo,
    rows: Sequence[SegmentReader],
    installation: str | None = None,
) -> list[Check]:
    """The checks of one server. `rows` are published segments, to be judged as `prepare` would.

    Without `installation` (the decision log cannot be read) no branch is prepared: nobody would know whose it is.
    """
    exam = Examination(f"connection {plan.name}")
    sinks = exam.attempt("settings", lambda: _sinks(plan))
    session = exam.attempt("connect", lambda: _translated("connecting", lambda: Session(connection, Limits())))
    if sinks is None or session is None:
        return exam.checks
    with closing(session):
        exam.attempt("examination", lambda: _translated("examining", lambda: _server(exam, session, sinks)))
        ledger = exam.attempt(
            "ledger", lambda: _translated("the ledger", lambda: _ledger(exam, session, pipeline, plan, sinks))
        )
        if plan.strategy == "xa":
            _branches(exam, session, connection, ledger, installation)
        for name, sink in sinks.items():
            _table(exam, session, name, sink, rows, lambda: Session(connection, Limits()))
    return exam.checks


def _sinks(plan: ParticipantPlan) -> dict[str, MySqlSink]:
    return {name: MySqlSink.from_settings(plan.name, plan.strategy, dict(given)) for name, given in plan.sinks.items()}


def _translated(doing: str, step: Callable[[], T]) -> T:
    """The driver's errors as ours."""
    try:
        return step()
    except pymysql.err.MySQLError as error:
        raise failure(error, doing) from error


def _server(exam: Examination, session: Session, sinks: dict[str, MySqlSink]) -> None:
    row = session.row("SELECT CURRENT_USER(), UNIX_TIMESTAMP()")
    assert row is not None
    exam.ok("connect", f"{session.product}, as {row[0]}")
    unsafe = any(sink.allow_unsafe_durability for sink in sinks.values())
    warnings = exam.attempt("durability", lambda: check_server(session, allow_unsafe_durability=unsafe))
    if warnings:
        exam.warn(
            "durability",
            "; ".join(warnings),
            "it is allowed by allow_unsafe_durability; docs/operations.md says what the server should have.",
        )
    elif warnings is not None:
        exam.ok("durability", "acknowledged commits survive a power cut, and the server takes writes")
    way = exam.attempt("local_infile", lambda: path(session, Way()))
    if way == "load":
        exam.ok("local_infile", "rows go by LOAD DATA LOCAL")
    elif way == "insert" and session.is_mariadb:
        exam.ok("local_infile", "is not needed: rows go by INSERT, which costs MariaDB less")
    elif way == "insert":
        where = "in the server" if session.local_infile_allowed else "in the connection's extra"
        exam.warn(
            "local_infile",
            f"LOAD DATA LOCAL is switched off {where}: rows go by INSERT, which takes a quarter longer"
            " (docs/performance.md). Switched on, the server reads them from one stream; it is never sent another file",
            "SET PERSIST local_infile = ON."
            if session.local_infile_allowed
            else 'take "local_infile": false out of the extra.',
        )
    difference = float(row[1]) - time.time()
    if abs(difference) > CLOCK_TOLERANCE:
        exam.warn("clock", f"it differs from this machine's by {difference:+.0f} s", "let both follow NTP.")


def _ledger(
    exam: Examination, session: Session, pipeline: str, plan: ParticipantPlan, sinks: dict[str, MySqlSink]
) -> Ledger | None:
    """The ledger, when it is there and can be used."""
    named = next((sink.ledger_schema for sink in sinks.values() if sink.ledger_schema), None)
    row = session.row("SELECT DATABASE()")
    schema = named or (row[0] if row else None)
    if not schema:
        exam.problem("ledger", "neither the connection nor a sink names a schema", "set the connection's schema.")
        return None
    ledger = Ledger(schema, pipeline, plan.name)
    engines = _engines(session, ledger)
    if len(engines) < 2:
        _missing_ledger(exam, session, ledger)
        return None
    wrong = [f"{name} ({engine})" for name, engine in engines.items() if engine.upper() != "INNODB"]
    if wrong:
        exam.problem("ledger", f"not InnoDB: {', '.join(wrong)}", "ALTER TABLE ... ENGINE=InnoDB.")
        return None
    grant = f"GRANT SELECT, INSERT, UPDATE, DELETE on {ledger.table} and {ledger.head_table}"
    usable = exam.passes(
        "ledger",
        f"{LEDGER} and {HEAD} in schema {schema}, with all privileges",
        lambda: _try_all(session, ledger, grant),
    )
    return ledger if usable else None


def _branches(
    exam: Examination, session: Session, connection: ConnectionInfo, ledger: Ledger | None, installation: str | None
) -> None:
    """Whether prepared branches are safe here: one is prepared, found and rolled back by another connection."""
    name = "prepared branches"
    if ledger is None or installation is None:
        lacking = "the ledger" if ledger is None else "the decision log"
        exam.passes(
            name,
            f"versions and the right to list them are as needed; none was prepared, since {lacking} is lacking",
            lambda: _translated("listing prepared branches", lambda: check_listing(session)),
        )
        return
    limits = Limits(head_wait=10)

    def attempt() -> float:
        return try_xa(lambda: Session(connection, limits), session, ledger, installation, new_nonce, limits)

    took = exam.attempt(name, lambda: _translated("preparing a branch", attempt))
    if took is not None:
        exam.ok(name, f"one was prepared, outlived its connection, was found and rolled back by another in {took} ms")


def _try_all(session: Session, ledger: Ledger, grant: str) -> None:
    for probe in ledger.probes():  # each changes nothing
        _probe(session, probe, grant)


def _missing_ledger(exam: Examination, session: Session, ledger: Ledger) -> None:
    """Whether the first prepare could create the tables is read from the grants; roles do not show there."""
    grants = " ".join(str(row[0]).upper() for row in session.rows("SHOW GRANTS"))
    if "ALL PRIVILEGES" in grants or " CREATE," in grants or "CREATE ON" in grants:
        exam.ok("ledger", f"{LEDGER} and {HEAD} are not there yet; the first prepare creates them")
    else:
        exam.problem(
            "ledger",
            f"{LEDGER} and {HEAD} are lacking in schema {ledger.schema!r}, and no grant lets this user create them",
            "have these statements run, and GRANT SELECT, INSERT, UPDATE, DELETE on both tables:\n"
            + ";\n".join(ledger.ddl()),
        )


def _table(
    exam: Examination,
    session: Session,
    name: str,
    sink: MySqlSink,
    rows: Sequence[SegmentReader],
    open_session: Callable[[], Session],
) -> None:
    target = exam.attempt(
        f"table {sink.table}", lambda: _translated("reading the table", lambda: read_target(session, name, sink))
    )
    if target is None:
        return
    if sink.strategy == "upsert":
        found = target
        target = exam.attempt(
            f"table {sink.table}", lambda: _translated("reading its keys", lambda: fit_target(session, found, sink))
        )
        if target is None:
            return
    where = target.table.name
    keys = f"primary key {', '.join(target.table.key)}" if target.table.key else "no primary key"
    exam.ok(f"table {where}", f"InnoDB, {len(target.table.columns)} columns, {keys}")
    if firing := triggers_that_fire(target, sink):
        exam.warn(f"table {where}", firing, "be sure they may.")
    judged = [reader for reader in rows if name in reader.sinks()]
    for reader in judged:

        def judge(reader: SegmentReader = reader) -> None:
            whole = target.to_judge(session, open_session)
            parts = judged_rows(reader, whole, sink) if sink.strategy == "upsert" else [(whole, reader)]
            for part, view in parts:
                verdict = check_segment(part, view)
                check_privileges(session, part, verdict.columns)
                check_rows(part, view, verdict)

        exam.passes(
            f"rows for {where}",
            f"those of checkpoint {reader.segment.number} would be accepted",
            lambda judge=judge: _translated("judging rows", judge),  # type: ignore[misc]
        )
    if not judged:
        exam.warn(
            f"rows for {where}", "no published rows to judge: types and privileges were not compared", "run it once."
        )
