"""Whether a file could be delivered into now, as far as that shows without rows; see `airflow_ft.sinks.ready`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from airflow_ft.core.errors import PROPOSED, AirflowFtError, UnfitTargetError
from airflow_ft.core.model import ParticipantPlan
from airflow_ft.core.ports import ConnectionInfo
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
                        f"there is no table {sink.table} in {file.path}, and it is not made: create=False.",
                        remedy=f"create it, or name another one. {PROPOSED}",
                        sink=name,
                    )
                )
    return found
