"""What a folder must have, and the checks that find it out; see `airflow_ft.sinks.base.requirements`."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from functools import partial

import pyarrow as pa

from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.errors import AirflowFtError
from airflow_ft.protocol.model import ParticipantPlan
from airflow_ft.protocol.numbers import count_text
from airflow_ft.sinks.base.places import is_object_store, only_sink, room
from airflow_ft.sinks.base.requirements import Finding, Requirement
from airflow_ft.sinks.files.columns import schema_problems as column_problems_of
from airflow_ft.sinks.files.failures import telling
from airflow_ft.sinks.files.ledger import Ledger, refused
from airflow_ft.sinks.files.objects import Objects
from airflow_ft.sinks.files.spec import FilesSink
from airflow_ft.wal.filesystem import is_hdfs
from airflow_ft.wal.local import local_path


def required(pipeline: str, plan: ParticipantPlan, connection: ConnectionInfo) -> Generator[Requirement]:
    """Yield what must be there before `prepare`: a place that can be written, and is no other pipeline's."""
    name, settings = only_sink(plan, "folder")
    sink = FilesSink.from_settings(plan.name, settings)
    look = partial(_folder, pipeline, plan, sink, connection)
    yield Requirement("folder", look, name, partial(_described, look, pipeline, sink, connection))


def _folder(pipeline: str, plan: ParticipantPlan, sink: FilesSink, connection: ConnectionInfo) -> Finding:
    with telling(sink.folder):
        owner = Ledger.of(sink.folder, connection).pipeline()
        free = ""
        if not is_object_store(sink.folder) and not is_hdfs(sink.folder):
            free = f", {room(local_path(sink.folder)):,} bytes are free"
    if (error := refused(sink.folder, owner, pipeline, plan.former)) is not None:
        raise error
    return Finding(free)


def _described(look: Callable[[], Finding], pipeline: str, sink: FilesSink, connection: ConnectionInfo) -> Finding:
    free = look().text
    with telling(sink.folder):
        ledger = Ledger.of(sink.folder, connection)
        owner = ledger.pipeline()
        many = count_text(len(ledger.visible()), "checkpoint is", "checkpoints are")
        text = f"{sink.folder}, {sink.format}, {many} visible"
        if owner not in ("", pipeline):
            text += f", and the next checkpoint takes it over from {owner!r}"
        if isinstance(ledger.files, Objects):
            ledger.require_folder()
    return Finding(text + free)


def schema_problems(
    plan: ParticipantPlan, connection: ConnectionInfo, schemas: Mapping[str, pa.Schema]
) -> Sequence[AirflowFtError]:
    """Return what speaks against the sink's schema; see `airflow_ft.sinks.fitting`."""
    found: list[AirflowFtError] = []
    for name, schema in schemas.items():
        sink = FilesSink.from_settings(plan.name, plan.sinks[name])
        with telling(sink.folder, participant=plan.name):
            before = Ledger.of(sink.folder, connection).newest_layout()
        found += column_problems_of(sink, schema, before, name)
    return found
