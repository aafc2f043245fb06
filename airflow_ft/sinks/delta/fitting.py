"""Would the table take rows of these schemas? Asked before Spark computes any."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.errors import AirflowFtError, UnfitTargetError
from airflow_ft.protocol.model import ParticipantPlan
from airflow_ft.sinks.delta.columns import is_placeholder
from airflow_ft.sinks.delta.columns import schema_problems as column_problems_of
from airflow_ft.sinks.delta.place import Place
from airflow_ft.sinks.delta.spec import DeltaSink
from airflow_ft.sinks.delta.table import Snapshot, told


def schema_problems(
    plan: ParticipantPlan, connection: ConnectionInfo, schemas: Mapping[str, pa.Schema]
) -> Sequence[AirflowFtError]:
    """See `airflow_ft.sinks.fitting`."""
    found: list[AirflowFtError] = []
    for name, schema in schemas.items():
        sink = DeltaSink.from_settings(plan.name, plan.sinks[name])
        place = Place.of(sink, connection)
        try:
            with told(place, participant=plan.name, sink=name):
                there = Snapshot.newest(place)
        except UnfitTargetError as error:  # it was asked, and what it is does not fit
            found.append(error)
            continue
        if there is not None:
            found += (problem.located(sink=name) for problem in there.oddities())
        columns = there.columns if there is not None and not is_placeholder(there.columns) else None
        partitions = there.partition_by if there is not None else ()
        found += column_problems_of(sink, schema, columns, partitions, name)
    return found
