"""What `airflow ft doctor` tells of a folder."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_ft.core.doctor import Check, Examination
from airflow_ft.core.errors import UnfitTargetError
from airflow_ft.core.model import ParticipantPlan
from airflow_ft.core.ports import ConnectionInfo, SegmentReader
from airflow_ft.sinks.base.places import room
from airflow_ft.sinks.files.failures import telling
from airflow_ft.sinks.files.fitting import misfits
from airflow_ft.sinks.files.ledger import Ledger
from airflow_ft.sinks.files.objects import Objects
from airflow_ft.sinks.files.spec import FilesSink
from airflow_ft.sinks.fitting import of_rows
from airflow_ft.wal.filesystem import is_hdfs, local_path


def examine(
    pipeline: str,
    plan: ParticipantPlan,
    connection: ConnectionInfo,
    rows: Sequence[SegmentReader],
    installation: str | None = None,
) -> list[Check]:
    """The checks of one folder. `rows` are published segments, whose columns are judged as `prepare` would."""
    exam = Examination(f"participant {plan.name}")
    for name, settings in plan.sinks.items():
        described = exam.attempt("folder", lambda of=settings: _described(pipeline, plan.name, of, connection))  # type: ignore[misc]
        if described is not None:
            exam.ok("folder", f"{name}: {described}")
    published = rows if exam.checks[-1].verdict == "ok" else ()
    for problem in of_rows(exam, plan, connection, published, misfits):
        exam.problem("columns", problem.what, problem.remedy)
    return exam.checks


def _described(pipeline: str, participant: str, settings: dict[str, object], connection: ConnectionInfo) -> str:
    sink = FilesSink.from_settings(participant, settings)
    with telling(sink.folder):
        ledger = Ledger.of(sink.folder, connection)
        owner = ledger.pipeline()
        if owner and owner != pipeline:
            raise UnfitTargetError(f"{sink.folder} is the folder of pipeline {owner!r}.", remedy="name another one.")
        told = f"{sink.folder}, {sink.format}, {len(ledger.visible()):,} checkpoints are visible"
        if isinstance(ledger.files, Objects):
            ledger.require_folder()
            return told
        return told if is_hdfs(sink.folder) else f"{told}, {room(local_path(sink.folder)):,} bytes are free"
