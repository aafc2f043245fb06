"""Every preflight of a MySQL participant, in words: nothing is created that stays, no head is raised, no row sent."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from itertools import starmap

import pymysql

from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.doctor import Check, Examination
from airflow_ft.protocol.model import ParticipantPlan
from airflow_ft.protocol.write_ahead_log import SegmentReader
from airflow_ft.sinks.base.requirements import Finding, Requirement
from airflow_ft.sinks.mysql.failures import translated_errors
from airflow_ft.sinks.mysql.judging import judge_segment
from airflow_ft.sinks.mysql.ledger import Ledger, ledger_of
from airflow_ft.sinks.mysql.limits import Limits
from airflow_ft.sinks.mysql.load import HEADROOM, Way, path
from airflow_ft.sinks.mysql.requirements import BRANCHES, fit_target, is_usable, requirements_of
from airflow_ft.sinks.mysql.session import Session
from airflow_ft.sinks.mysql.spec import MySqlSink
from airflow_ft.sinks.mysql.vote import Target, check_rows, read_target
from airflow_ft.sinks.mysql.xa_preflight import try_xa

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
    session = exam.attempt("connect", translated_errors("connecting")(lambda: Session(connection, Limits())))
    if sinks is None or session is None:
        return exam.checks
    with closing(session):
        exam.attempt("examination", translated_errors("examining")(lambda: _server(exam, session, sinks)))
        for requirement in requirements_of(session, pipeline, plan, connection.schema):
            if requirement.name == BRANCHES:
                ledger = ledger_of(sinks, connection.schema, pipeline, plan.name)
                _branches(exam, session, connection, requirement, ledger, installation)
            elif requirement.report(exam) and requirement.sink:
                _rows(exam, session, connection, requirement.sink, sinks[requirement.sink], rows)
    return exam.checks


def _server(exam: Examination, session: Session, sinks: dict[str, MySqlSink]) -> None:
    user, now = session.rows("SELECT CURRENT_USER(), UNIX_TIMESTAMP()")[0]
    exam.ok("connect", f"{session.product}, as {user}")
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
            " If it is on, the server gets the rows only, and no file of this machine",
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


def _branches(
    exam: Examination,
    session: Session,
    connection: ConnectionInfo,
    requirement: Requirement,
    ledger: Ledger,
    installation: str | None,
) -> None:
    """Check whether prepared branches are safe here: prepare one, and roll it back over another connection."""
    is_ready = exam.attempt(BRANCHES, translated_errors("reading the ledger")(partial(is_usable, session, ledger)))
    if not is_ready or installation is None:
        missing = "the decision log" if is_ready else "the ledger"

        def only_listed() -> Finding:
            found = requirement.look()
            return replace(found, text=f"{found.text}; none was prepared, because {missing} is missing")

        replace(requirement, look=only_listed).report(exam)
        return
    limits = Limits(head_wait=10)
    attempt = partial(try_xa, lambda: Session(connection, limits), session, ledger, installation, limits)
    took = exam.attempt(BRANCHES, translated_errors("preparing a branch")(attempt))
    if took is not None:
        exam.ok(BRANCHES, f"one outlived its connection; another connection found it and rolled it back, in {took} ms")


def _rows(
    exam: Examination,
    session: Session,
    connection: ConnectionInfo,
    name: str,
    sink: MySqlSink,
    rows: Sequence[SegmentReader],
) -> None:
    """Judge published rows as `prepare` would."""

    def read() -> Target:
        return fit_target(session, read_target(session, name, sink, connection.schema), sink)

    target = exam.attempt(f"table {sink.table}", translated_errors("reading the table")(read))
    if target is None:
        return
    where = target.table.name
    judged = [reader for reader in rows if name in reader.sinks()]
    for reader in judged:

        @translated_errors("checking rows")
        def judge(reader: SegmentReader = reader) -> None:
            whole = target.to_judge(session, lambda: Session(connection, Limits()))
            room = session.max_allowed_packet - HEADROOM if sink.strategy == "upsert" else 0
            judged = list(judge_segment(session, whole, reader, sink, room))
            # The rows take long, and the next check needs the session again.
            with closing(session.awaiting(starmap(check_rows, judged))) as checks:
                for _ in checks:
                    pass

        number = reader.segment.number
        exam.passes(f"rows for {where}", f"the table takes those of checkpoint {number}", judge)
    if not judged:
        exam.ok(f"rows for {where}", "no published rows, so types are not compared")
