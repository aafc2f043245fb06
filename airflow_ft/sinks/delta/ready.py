"""Whether a table could be delivered into now, as far as that shows without rows; see `airflow_ft.sinks.ready`."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.errors import AirflowFtError
from airflow_ft.protocol.model import ParticipantPlan
from airflow_ft.sinks.base.places import only_sink, room
from airflow_ft.sinks.delta.place import Place
from airflow_ft.sinks.delta.spec import DeltaSink
from airflow_ft.sinks.delta.table import Snapshot, told
from airflow_ft.sinks.files.failures import telling


def lacks(pipeline: str, plan: ParticipantPlan, connection: ConnectionInfo) -> Sequence[AirflowFtError]:
    """Find what `prepare` would refuse: a place that cannot be written, a missing or unsupported table."""
    name, settings = only_sink(plan, "table")
    sink = DeltaSink.from_settings(plan.name, settings)
    place = Place.of(sink, connection)
    with telling(str(place), sink=name):
        if not place.is_bucket:
            room(sink.path)
    with told(place, sink=name):
        there = Snapshot.newest(place)
        if there is not None:
            return [problem.located(sink=name) for problem in there.oddities()]
    return [] if sink.create else [place.lacks_its_table(sink=name)]
