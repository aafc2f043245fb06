"""Whether a server could be delivered into now, as far as that shows without rows; see `airflow_ft.sinks.ready`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial

from airflow_ft.protocol.errors import AirflowFtError
from airflow_ft.protocol.model import ParticipantPlan
from airflow_ft.protocol.ports import ConnectionInfo
from airflow_ft.sinks.fitting import ASK_SECONDS
from airflow_ft.sinks.mysql.catalog import read_table, whole_name
from airflow_ft.sinks.mysql.failures import telling
from airflow_ft.sinks.mysql.limits import Limits
from airflow_ft.sinks.mysql.preflight import check_server
from airflow_ft.sinks.mysql.session import Session
from airflow_ft.sinks.mysql.spec import MySqlSink
from airflow_ft.sinks.mysql.xa_preflight import check_listing
from airflow_ft.sinks.ready import raised

LIMITS = Limits(connect=ASK_SECONDS, answer=ASK_SECONDS, metadata_wait=1, lock_wait=1)
"""Of who only asks, and does not wait for it."""


def lacks(pipeline: str, plan: ParticipantPlan, connection: ConnectionInfo) -> Sequence[AirflowFtError]:
    """Return what `prepare` would refuse: the server's settings, and tables that are not there. Reads alone."""
    sinks = MySqlSink.all_of(plan)
    unsafe = any(sink.allow_unsafe_durability for sink in sinks.values())
    with telling("checking the server"), closing(Session(connection, LIMITS)) as session:

        def look(table: str) -> object:
            return read_table(session, whole_name(table, connection.schema))

        steps: list[tuple[str, Callable[[], object]]] = [
            ("", partial(check_server, session, allow_unsafe_durability=unsafe)),
            *((name, partial(look, sink.table)) for name, sink in sinks.items()),
        ]
        if plan.strategy == "xa":
            steps.append(("", partial(check_listing, session)))
        return list(raised(steps))
