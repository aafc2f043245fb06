"""Whether a file could be delivered into now, as far as that shows without rows; see `airflow_ft.sinks.ready`."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import replace

from airflow_ft.core.errors import PROPOSED, AirflowFtError, UnfitTargetError
from airflow_ft.core.model import ParticipantPlan
from airflow_ft.core.ports import ConnectionInfo
from airflow_ft.sinks.fitting import ASK_SECONDS
from airflow_ft.sinks.sqlite.file import SqliteFile
from airflow_ft.sinks.sqlite.spec import SqliteSink


def lacks(pipeline: str, plan: ParticipantPlan, connection: ConnectionInfo) -> Sequence[AirflowFtError]:
    """What `prepare` would refuse: a file that cannot be written, and tables that are not there and not made."""
    file = replace(SqliteFile.of(connection), wait_seconds=ASK_SECONDS)
    file.require_place()
    needed = {
        name: sink.table
        for name, given in plan.sinks.items()
        if not (sink := SqliteSink.from_settings(plan.name, given)).create
    }
    if not needed:
        return []
    with file.opened() as db:
        there = _tables(db)
    return [
        UnfitTargetError(
            f"there is no table {table} in {file.path}, and it is not made: create=False.",
            remedy=f"create it, or name another one. {PROPOSED}",
            sink=name,
        )
        for name, table in needed.items()
        if table.lower() not in there
    ]


def _tables(db: sqlite3.Connection | None) -> set[str]:
    rows = [] if db is None else db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'").fetchall()
    return {str(name).lower() for (name,) in rows}
