"""Whether a server could be delivered into now, as far as that shows without rows; see `airflow_ft.sinks.ready`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from functools import partial

from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.errors import AirflowFtError
from airflow_ft.protocol.model import ParticipantPlan
from airflow_ft.sinks.fitting import ASK_SECONDS
from airflow_ft.sinks.mysql.failures import telling
from airflow_ft.sinks.mysql.ledger import ledger_of
from airflow_ft.sinks.mysql.limits import Limits
from airflow_ft.sinks.mysql.preflight import check_insert, check_ledger, check_server, has_ledger, require_creatable
from airflow_ft.sinks.mysql.session import Session
from airflow_ft.sinks.mysql.spec import MySqlSink
from airflow_ft.sinks.mysql.upsert import fit_target
from airflow_ft.sinks.mysql.vote import read_target
from airflow_ft.sinks.mysql.xa_preflight import check_listing
from airflow_ft.sinks.ready import raised

LIMITS = Limits(connect=ASK_SECONDS, answer=ASK_SECONDS, metadata_wait=1, lock_wait=1)
"""Of who only asks, and does not wait for it."""


def lacks(pipeline: str, plan: ParticipantPlan, connection: ConnectionInfo) -> Sequence[AirflowFtError]:
    """Return what `prepare` would refuse: server settings, privileges, ledger and tables. Changes nothing."""
    sinks = MySqlSink.all_of(plan)
    unsafe = any(sink.allow_unsafe_durability for sink in sinks.values())
    with telling("checking the server"), closing(Session(connection, LIMITS)) as session:
        steps: list[tuple[str, Callable[[], object]]] = [
            ("", partial(check_server, session, allow_unsafe_durability=unsafe)),
            ("", partial(_ledger, session, pipeline, plan, sinks, connection.schema)),
            *((name, partial(_table, session, name, sink, connection.schema)) for name, sink in sinks.items()),
        ]
        if plan.strategy == "xa":
            steps.append(("", partial(check_listing, session)))
        return list(raised(steps))


def _ledger(
    session: Session, pipeline: str, plan: ParticipantPlan, sinks: Mapping[str, MySqlSink], schema: str
) -> None:
    ledger = ledger_of(sinks, schema, pipeline, plan.name)
    if has_ledger(session, ledger):
        check_ledger(session, ledger)
    else:
        require_creatable(session, ledger)


def _table(session: Session, name: str, sink: MySqlSink, schema: str) -> None:
    target = read_target(session, name, sink, schema)
    check_insert(session, fit_target(session, target, sink) if sink.strategy == "upsert" else target)
