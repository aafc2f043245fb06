"""Checks of `airflow ft doctor` for a folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.doctor import Check
from airflow_ft.protocol.model import ParticipantPlan
from airflow_ft.protocol.numbers import count_text
from airflow_ft.protocol.write_ahead_log import SegmentReader
from airflow_ft.sinks.base.examination import examine_places
from airflow_ft.sinks.base.places import room
from airflow_ft.sinks.files.failures import telling
from airflow_ft.sinks.files.fitting import schema_problems
from airflow_ft.sinks.files.ledger import Ledger, refused
from airflow_ft.sinks.files.objects import Objects
from airflow_ft.sinks.files.spec import FilesSink
from airflow_ft.wal.filesystem import is_hdfs
from airflow_ft.wal.local import local_path


def examine(
    pipeline: str,
    plan: ParticipantPlan,
    connection: ConnectionInfo,
    rows: Sequence[SegmentReader],
    installation: str | None = None,
) -> list[Check]:
    """The checks of one folder. `rows` are published segments, whose columns are judged as `prepare` would."""
    described = partial(_described, pipeline, plan, connection)
    return examine_places(f"participant {plan.name}", "folder", plan, connection, rows, described, schema_problems)


def _described(pipeline: str, plan: ParticipantPlan, connection: ConnectionInfo, settings: Mapping[str, Any]) -> str:
    sink = FilesSink.from_settings(plan.name, settings)
    with telling(sink.folder):
        ledger = Ledger.of(sink.folder, connection)
        owner = ledger.pipeline()
        if (error := refused(sink.folder, owner, pipeline, plan.former)) is not None:
            raise error
        many = count_text(len(ledger.visible()), "checkpoint is", "checkpoints are")
        text = f"{sink.folder}, {sink.format}, {many} visible"
        if owner not in ("", pipeline):
            text += f", and the next checkpoint takes it over from {owner!r}"
        if isinstance(ledger.files, Objects):
            ledger.require_folder()
            return text
        return text if is_hdfs(sink.folder) else f"{text}, {room(local_path(sink.folder)):,} bytes are free"
