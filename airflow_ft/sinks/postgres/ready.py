"""Whether a database could be delivered into now, as far as that shows without rows; see `airflow_ft.sinks.ready`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from functools import partial

from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.errors import AirflowFtError, together
from airflow_ft.protocol.model import ParticipantPlan
from airflow_ft.sinks.fitting import ASK_SECONDS
from airflow_ft.sinks.postgres.catalog import read_table
from airflow_ft.sinks.postgres.failures import telling
from airflow_ft.sinks.postgres.fitting import without_rows
from airflow_ft.sinks.postgres.local import ledger_of
from airflow_ft.sinks.postgres.naming import TableName
from airflow_ft.sinks.postgres.preflight import check_server
from airflow_ft.sinks.postgres.session import Limits, Session
from airflow_ft.sinks.postgres.spec import PostgresSink
from airflow_ft.sinks.ready import raised


def lacks(pipeline: str, plan: ParticipantPlan, connection: ConnectionInfo) -> Sequence[AirflowFtError]:
    """Return what `prepare` would refuse: server settings, privileges, ledger and tables. Reads alone."""
    sinks = PostgresSink.all_of(plan)
    unsafe = any(sink.allow_unsafe_durability for sink in sinks.values())
    prepares = plan.strategy == "prepared"
    limits = Limits(connect=ASK_SECONDS, answer=ASK_SECONDS, margin=1)
    with telling("checking the server"), closing(Session(connection, limits)) as session:
        server = partial(check_server, session, allow_unsafe_durability=unsafe, prepares=prepares)
        ledger = partial(_ledger, session, pipeline, plan, sinks)
        tables = [(name, partial(_table, session, name, sink)) for name, sink in sinks.items()]
        return list(raised([("", server), ("", ledger), *tables]))


def _ledger(session: Session, pipeline: str, plan: ParticipantPlan, sinks: Mapping[str, PostgresSink]) -> None:
    ledger = ledger_of(session, sinks, pipeline, plan.name)
    if ledger.exists():
        ledger.check()
    else:
        ledger.require_creatable()


def _table(session: Session, name: str, sink: PostgresSink) -> None:
    table = read_table(session, TableName.parse(sink.table), name)
    if problems := list(without_rows(session, sink, table, name)):
        raise together(problems)
