"""Whether the tables of one server would take rows of given schemas; see `airflow_ft.sinks.fitting`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing

import pyarrow as pa

from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.errors import AirflowFtError, SinkAccessError, UnfitTargetError
from airflow_ft.protocol.model import ParticipantPlan
from airflow_ft.sinks.base.changes import missing_kind
from airflow_ft.sinks.mysql import vote
from airflow_ft.sinks.mysql.failures import telling
from airflow_ft.sinks.mysql.keys import check_keys
from airflow_ft.sinks.mysql.ready import LIMITS
from airflow_ft.sinks.mysql.session import Session
from airflow_ft.sinks.mysql.spec import MySqlSink
from airflow_ft.sinks.mysql.upsert import keyed_target


def schema_problems(
    plan: ParticipantPlan, connection: ConnectionInfo, schemas: Mapping[str, pa.Schema]
) -> Sequence[AirflowFtError]:
    """Return what speaks against each sink's schema. Reads information_schema alone.

    Raises:
        SinkUnavailableError, SinkAccessError: the server cannot be asked now.
    """
    found: list[AirflowFtError] = []
    sinks = MySqlSink.all_of(plan)
    with telling("reading the tables", participant=plan.name), closing(Session(connection, LIMITS)) as session:
        for name, schema in schemas.items():
            try:
                target = vote.read_target(session, name, sinks[name], connection.schema)
            except SinkAccessError as error:  # there is no such table, or another engine's
                found.append(error)
                continue
            found += [problem.located(sink=name) for problem in _of_target(session, target, sinks[name], schema)]
    return found


def _of_target(session: Session, target: vote.Target, sink: MySqlSink, schema: pa.Schema) -> Sequence[AirflowFtError]:
    found: list[AirflowFtError] = []
    if sink.strategy == "upsert":
        try:
            check_keys(session, target, sink)
        except UnfitTargetError as error:
            found.append(error)
        target = keyed_target(target, sink)
    if sink.change_column is not None and sink.change_column not in schema.names:
        found.append(missing_kind(sink.change_column))
    return [*found, *vote.schema_problems(target, schema)]
