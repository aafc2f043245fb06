"""Whether the tables of one server would take rows of given schemas; see `airflow_ft.sinks.fitting`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing

import pyarrow as pa
import pymysql

from airflow_ft.core.errors import AirflowFtError, SinkAccessError, UnfitTargetError
from airflow_ft.core.model import ParticipantPlan
from airflow_ft.core.ports import ConnectionInfo
from airflow_ft.sinks.base.changes import missing_kind
from airflow_ft.sinks.fitting import ASK_SECONDS
from airflow_ft.sinks.mysql import vote
from airflow_ft.sinks.mysql.failures import failure
from airflow_ft.sinks.mysql.keys import check_keys
from airflow_ft.sinks.mysql.limits import Limits
from airflow_ft.sinks.mysql.session import Session
from airflow_ft.sinks.mysql.spec import MySqlSink
from airflow_ft.sinks.mysql.upsert import keyed_target
from airflow_ft.sinks.mysql.verify import read_target

_LIMITS = Limits(connect=ASK_SECONDS, answer=ASK_SECONDS, metadata_wait=1, lock_wait=1)


def misfits(
    plan: ParticipantPlan, connection: ConnectionInfo, schemas: Mapping[str, pa.Schema]
) -> Sequence[AirflowFtError]:
    """What speaks against each sink's schema. Reads information_schema alone.

    Raises:
        SinkUnavailableError, SinkAccessError: the server cannot be asked now.
    """
    found: list[AirflowFtError] = []
    try:
        with closing(Session(connection, _LIMITS)) as session:
            for name, schema in schemas.items():
                sink = MySqlSink.from_settings(plan.name, plan.strategy, plan.sinks[name])
                found += [problem.located(sink=name) for problem in _of_sink(session, name, sink, schema)]
    except pymysql.err.MySQLError as error:
        raise failure(error, "asking for the tables").located(participant=plan.name) from error
    return found


def _of_sink(session: Session, name: str, sink: MySqlSink, schema: pa.Schema) -> Sequence[AirflowFtError]:
    try:
        target = read_target(session, name, sink)
    except SinkAccessError as error:  # there is no such table, or another engine's
        return [error]
    found: list[AirflowFtError] = []
    if sink.strategy == "upsert":
        try:
            check_keys(session, target, sink)
        except UnfitTargetError as error:
            found.append(error)
        target = keyed_target(target, sink)
    if sink.change_column is not None and sink.change_column not in schema.names:
        found.append(missing_kind(sink.change_column))
    return [*found, *vote.misfits(target, schema)]
