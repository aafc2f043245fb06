"""Every preflight of a MySQL participant, in words: nothing is created that stays, no head is raised, no row sent."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace

import pymysql

from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.doctor import Check, Examination
from airflow_ft.protocol.model import ParticipantPlan
from airflow_ft.protocol.numbers import count_text
from airflow_ft.protocol.write_ahead_log import SegmentReader
from airflow_ft.sinks.base.sql_ledger import HEAD, LEDGER
from airflow_ft.sinks.mysql.failures import telling
from airflow_ft.sinks.mysql.ledger import Ledger, ledger_of
from airflow_ft.sinks.mysql.limits import Limits
from airflow_ft.sinks.mysql.load import HEADROOM, Way, path
from airflow_ft.sinks.mysql.preflight import (
    check_insert,
    check_ledger,
    check_privileges,
    check_server,
    has_ledger,
    require_creatable,
    triggers_that_fire,
)
from airflow_ft.sinks.mysql.server import new_nonce
from airflow_ft.sinks.mysql.session import Session
from airflow_ft.sinks.mysql.spec import MySqlSink
from airflow_ft.sinks.mysql.upsert import fit_target, judged_rows
from airflow_ft.sinks.mysql.vote import Target, all_short, check_rows, check_segment, read_target
from airflow_ft.sinks.mysql.xa_preflight import check_listing, try_xa

CLOCK_TOLERANCE = 60.0  # seconds
_LIMITS = re.compile(r"\b(MAX_(?:QUERIES|UPDATES|CONNECTIONS)_PER_HOUR|MAX_USER_CONNECTIONS) (\d+)", re.IGNORECASE)


def examine(
    pipeline: str,
    plan: ParticipantPlan,
    connection: ConnectionInfo,
    rows: Sequence[SegmentReader],
    installation: str | None = None,
) -> list[Check]:
    """Return the checks of one server. `rows` are published segments, to be judged as `prepare` would.

    Without `installation` (the decision log cannot be read) no branch is prepared, because its owner would be unknown.
    """
    exam = Examination(f"connection {plan.name}")
    sinks = exam.attempt("settings", lambda: MySqlSink.all_of(plan))
    session = exam.attempt("connect", telling("connecting")(lambda: Session(connection, Limits())))
    if sinks is None or session is None:
        return exam.checks

    @telling("reading the ledger")
    def look() -> Ledger | None:
        return _ledger(exam, session, ledger_of(sinks, connection.schema, pipeline, plan.name))

    with closing(session):
        exam.attempt("examination", telling("examining")(lambda: _server(exam, session, sinks)))
        ledger = exam.attempt("ledger", look)
        if plan.strategy == "xa":
            _branches(exam, session, connection, ledger, installation)
        for name, sink in sinks.items():
            _table(exam, session, connection, name, sink, rows)
    return exam.checks


def _server(exam: Examination, session: Session, sinks: dict[str, MySqlSink]) -> None:
    user, now = session.rows("SELECT CURRENT_USER(), UNIX_TIMESTAMP()")[0]
    exam.ok("connect", f"{session.product}, as {user}")
    unsafe = any(sink.allow_unsafe_durability for sink in sinks.values())
    warnings = exam.attempt("durability", lambda: check_server(session, allow_unsafe_durability=unsafe))
    if warnings:
        exam.warn(
            "durability",
            "; ".join(warnings),
            "Set what docs/configuration.md recommends. allow_unsafe_durability allows the present settings.",
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
            f"LOAD DATA LOCAL is off {where}: rows go by INSERT, which takes a quarter longer (docs/performance.md)."
            " If it is on, the server reads rows from one stream, and never gets another file",
            "Run SET PERSIST local_infile = ON."
            if session.local_infile_allowed
            else 'Remove "local_infile": false from the extra.',
        )
    _limits(exam, session, 1 + max([1, *(sink.branches for sink in sinks.values())]))
    difference = float(now) - time.time()
    if abs(difference) > CLOCK_TOLERANCE:
        exam.warn("clock", f"it differs from this machine's by {difference:+.0f} s", "Let both follow NTP.")


def _limits(exam: Examination, session: Session, needed: int) -> None:
    """Limits of the account that end deliveries (error 1226); `needed` connections are open at a time."""
    try:
        created = str((session.row("SHOW CREATE USER CURRENT_USER()") or [""])[0])
    except pymysql.err.MySQLError:  # some servers answer privileged users alone
        return
    found = {name.upper(): int(most) for name, most in _LIMITS.findall(created) if int(most)}
    if not found:
        return
    listed = ", ".join(f"{name} {most}" for name, most in found.items())
    remedy = f"Run ALTER USER ... WITH {' '.join(f'{name} 0' for name in found)}."
    if found.get("MAX_USER_CONNECTIONS", needed) < needed:
        exam.problem("limits of the account", f"{listed}; this pipeline needs {needed} connections at a time", remedy)
    else:
        exam.warn("limits of the account", f"{listed}: deliveries fail while one is used up", remedy)


def _ledger(exam: Examination, session: Session, ledger: Ledger) -> Ledger | None:
    """The ledger, when it is there and can be used."""
    if not has_ledger(session, ledger):
        missing = f"{LEDGER} and {HEAD} are not there yet; the first prepare creates them"
        exam.passes("ledger", missing, lambda: require_creatable(session, ledger))
        return None
    what = f"{LEDGER} and {HEAD} in schema {ledger.schema}, with all privileges"
    return ledger if exam.passes("ledger", what, lambda: check_ledger(session, ledger)) else None


def _branches(
    exam: Examination, session: Session, connection: ConnectionInfo, ledger: Ledger | None, installation: str | None
) -> None:
    """Check whether prepared branches are safe here: prepare one, and roll it back over another connection."""
    name = "prepared branches"
    if ledger is None or installation is None:
        lacking = "the ledger" if ledger is None else "the decision log"
        exam.passes(
            name,
            f"versions and the right to list them are fine; none was prepared, because {lacking} is missing",
            telling("listing prepared branches")(lambda: check_listing(session)),
        )
        return
    limits = Limits(head_wait=10)

    @telling("preparing a branch")
    def attempt() -> float:
        return try_xa(lambda: Session(connection, limits), session, ledger, installation, new_nonce, limits)

    took = exam.attempt(name, attempt)
    if took is not None:
        exam.ok(name, f"one outlived its connection; another connection found it and rolled it back, in {took} ms")


def _table(
    exam: Examination,
    session: Session,
    connection: ConnectionInfo,
    name: str,
    sink: MySqlSink,
    rows: Sequence[SegmentReader],
) -> None:
    @telling("reading the table")
    def read() -> Target:
        target = read_target(session, name, sink, connection.schema)
        return fit_target(session, target, sink) if sink.strategy == "upsert" else target

    target = exam.attempt(f"table {sink.table}", read)
    if target is None:
        return
    where = target.table.name
    keys = f"primary key {', '.join(target.table.key)}" if target.table.key else "no primary key"
    exam.ok(f"table {where}", f"InnoDB, {count_text(len(target.table.columns), 'column')}, {keys}")
    if firing := triggers_that_fire(target, sink):
        exam.warn(f"table {where}", firing, "Check that they may fire for each row.")
    judged = [reader for reader in rows if name in reader.sinks()]
    for reader in judged:

        @telling("checking rows")
        def judge(reader: SegmentReader = reader) -> None:
            whole = target.to_judge(session, lambda: Session(connection, Limits()))
            room = session.max_allowed_packet - HEADROOM
            if sink.strategy == "upsert" and not all_short(target, reader, room):
                whole = replace(whole, row_limit=room)
            parts = judged_rows(reader, whole, sink) if sink.strategy == "upsert" else [(whole, reader)]
            for part, view in parts:
                verdict = check_segment(part, view)
                check_privileges(session, part, verdict.columns)
                check_rows(part, view, verdict)

        number = reader.segment.number
        exam.passes(f"rows for {where}", f"the table takes those of checkpoint {number}", judge)
    if not judged:
        exam.attempt(f"table {where}", telling("checking privileges")(lambda: check_insert(session, target)))
        exam.warn(
            f"rows for {where}",
            "there are no published rows, so types were not compared",
            "Run the pipeline once.",
        )
