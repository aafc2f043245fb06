"""Whether a database could be delivered into now, as far as that shows without rows; see `airflow_ft.sinks.ready`."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from functools import partial

from airflow_ft.protocol.errors import AirflowFtError
from airflow_ft.protocol.model import ParticipantPlan
from airflow_ft.protocol.ports import ConnectionInfo
from airflow_ft.sinks.fitting import ASK_SECONDS
from airflow_ft.sinks.postgres.catalog import read_table
from airflow_ft.sinks.postgres.failures import telling
from airflow_ft.sinks.postgres.naming import TableName
from airflow_ft.sinks.postgres.preflight import check_server
from airflow_ft.sinks.postgres.session import Limits, Session
from airflow_ft.sinks.postgres.spec import PostgresSink
from airflow_ft.sinks.ready import raised


def lacks(pipeline: str, plan: ParticipantPlan, connection: ConnectionInfo) -> Sequence[AirflowFtError]:
    """Return what `prepare` would refuse: the server's settings, and tables that are not there. Reads alone."""
    sinks = PostgresSink.all_of(plan)
    unsafe = any(sink.allow_unsafe_durability for sink in sinks.values())
    prepares = plan.strategy == "prepared"
    limits = Limits(connect=ASK_SECONDS, answer=ASK_SECONDS, margin=1)
    with telling("checking the server"), closing(Session(connection, limits)) as session:
        server = partial(check_server, session, allow_unsafe_durability=unsafe, prepares=prepares)
        tables = [(name, partial(read_table, session, TableName.parse(s.table), name)) for name, s in sinks.items()]
        return list(raised([("", server), *tables]))
