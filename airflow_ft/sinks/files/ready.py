"""Whether a folder could be delivered into now, as far as that shows without rows; see `airflow_ft.sinks.ready`."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.errors import AirflowFtError
from airflow_ft.protocol.model import ParticipantPlan
from airflow_ft.sinks.base.places import is_object_store, only_sink, room
from airflow_ft.sinks.files.failures import telling
from airflow_ft.sinks.files.ledger import Ledger, refused
from airflow_ft.sinks.files.spec import FilesSink
from airflow_ft.wal.filesystem import is_hdfs
from airflow_ft.wal.local import local_path


def lacks(pipeline: str, plan: ParticipantPlan, connection: ConnectionInfo) -> Sequence[AirflowFtError]:
    """Return what `prepare` would refuse: a place that cannot be reached or written, or is another pipeline's."""
    name, settings = only_sink(plan, "folder")
    folder = FilesSink.from_settings(plan.name, settings).folder
    with telling(folder, sink=name):
        owner = Ledger.of(folder, connection).pipeline()
        if not is_object_store(folder) and not is_hdfs(folder):
            room(local_path(folder))
    error = refused(folder, owner, pipeline, plan.former)
    return [] if error is None else [error.located(sink=name)]
