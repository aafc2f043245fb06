"""Whether a file could be delivered into now, as far as that shows without rows; see `airflow_ft.sinks.ready`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.errors import PROPOSED, AirflowFtError, UnfitTargetError
from airflow_ft.protocol.model import ParticipantPlan
from airflow_ft.sinks.fitting import ASK_SECONDS
from airflow_ft.sinks.sqlite.file import SqliteFile
from airflow_ft.sinks.sqlite.judging import exists, shape_problems
from airflow_ft.sinks.sqlite.spec import SqliteSink


def lacks(pipeline: str, plan: ParticipantPlan, connection: ConnectionInfo) -> Sequence[AirflowFtError]:
    """Find what `prepare` would refuse: a file that cannot be written, missing tables, and tables of a wrong shape."""
    file = replace(SqliteFile.of(connection), wait_seconds=ASK_SECONDS)
    file.require_place()
    sinks = {name: SqliteSink.from_settings(plan.name, given) for name, given in plan.sinks.items()}
    found: list[AirflowFtError] = []
    with file.opened() as db:
        for name, sink in sinks.items():
            if db is not None and exists(db, sink.table):
                found += shape_problems(db, sink.table, name)
            elif not sink.create:
                found.append(
                    UnfitTargetError(
                        f"{file.path} has no table {sink.table!r}, and the sink does not create it: create=False.",
                        code="table_missing",
                        remedy=f"Create the table {sink.table}: {PROPOSED}",
                        sink=name,
                        path=str(file.path),
                        table=sink.table,
                    )
                )
    return found
