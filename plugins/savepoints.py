"""The page's API on savepoints: those of `[airflow_ft] savepoint_dir`, and what one could be taken of.

Nothing is done here: the page starts runs of the DAGs of `[airflow_ft] maintenance_dags` by Airflow's own API.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow.api_fastapi.core_api.security import GetUserDep

from airflow_ft.pipeline import settings
from airflow_ft.protocol.errors import AirflowFtError
from airflow_ft.protocol.lookup import retained
from airflow_ft.spark.savepoints.metadata import Savepoint, of_pipeline, read_metadata, verify
from airflow_ft.store.events import EventKind
from airflow_ft.wal.filesystem import filesystem

from . import state_answers
from .access import configured, seen, visible_dags
from .handles import turn
from .refused import RefusedError
from .routes import router as conditional

if TYPE_CHECKING:
    from airflow_ft.protocol.decision_log import QueryLog

MOST = 100
"""Savepoints, checkpoints and events that are looked at for an answer."""

router = conditional()


@router.get("/pipelines/{name}/savepoints")
def savepoints(name: str, user: GetUserDep) -> state_answers.Savepoints:
    """A pipeline's savepoints, newest first; then what is unfinished or damaged."""
    with seen(name, visible_dags(user)) as (store, _), turn():
        folder = _folder(store, name)
        found, left_out = of_pipeline(folder, name, store.installation, MOST)
        return {
            "folder": folder,
            "savepoints": [
                _row(folder, each, metadata) if isinstance(metadata, Savepoint) else _damaged(folder, each, metadata)
                for each, metadata in found
            ],
            "left_out": left_out,
            "checkpoints": [
                {"number": each.number, "at": (each.completed_at or each.triggered_at).isoformat()}
                for each in retained(store, name, MOST)
            ],
        }


@router.get("/pipelines/{name}/savepoints/{folder}")
def savepoint(name: str, folder: str, user: GetUserDep) -> state_answers.SavepointWhole:
    """Describe a savepoint. Compares names and sizes of its files, not their contents."""
    with seen(name, visible_dags(user)) as (store, _), turn():
        parent = _folder(store, name)
        if folder not in filesystem(parent).names(parent):
            raise _unknown(name, folder)
        uri = filesystem(parent).uri(parent, folder)
        metadata = read_metadata(uri)
        if (metadata.pipeline, metadata.installation) != (name, store.installation):
            raise _unknown(name, folder)
        return _whole(_row(parent, folder, metadata, _damage(uri, metadata)), metadata)


def _folder(store: QueryLog, name: str) -> str:
    """The folder of savepoints; 503 when it is not there, although a savepoint of the pipeline was put into it."""
    with configured():
        folder = settings.savepoint_dir()
        files = filesystem(folder)
        folder = files.uri(folder)
        found = files.exists(folder)
    if not found:
        taken = [each for each in store.events(name, limit=MOST) if each.kind == EventKind.SAVEPOINT]
        if any(str(each.detail.get("uri", "")).startswith(f"{folder}/") for each in taken):
            raise RefusedError(
                503,
                f"the API server does not find {folder}, the folder with savepoints of {name}.",
                code="storage_unavailable",
                remedy="Mount it there under the same path. Or run `airflow ft savepoint list` where tasks run.",
            )
    return folder


def _damaged(folder: str, name: str, why: Exception) -> state_answers.SavepointDamaged:
    text = str(why) if isinstance(why, AirflowFtError) else f"the API server cannot read it: {why}"
    return {"name": name, "uri": filesystem(folder).uri(folder, name), "problem": text, "readable": False}


def _row(folder: str, name: str, metadata: Savepoint, problem: str = "") -> state_answers.Savepoint:
    return {
        "name": name,
        "uri": filesystem(folder).uri(folder, name),
        "problem": problem,
        "readable": True,
        "checkpoint": metadata.number,
        "taken_at": metadata.taken_at.isoformat(),
        "taken_by": metadata.taken_by,
        "bytes": metadata.bytes,
        "drained": metadata.drained,
    }


def _whole(row: state_answers.Savepoint, metadata: Savepoint) -> state_answers.SavepointWhole:
    return {
        **row,
        "installation": metadata.installation,
        "batch": metadata.batch,
        "rows": dict(metadata.rows),
        "positions": dict(metadata.positions),
        "operators": metadata.operators,
        "backend": metadata.backend,
        "versions": dict(metadata.versions),
        "files": len(metadata.files),
        "job": str(metadata.spec.get("job", "")),
    }


def _damage(uri: str, metadata: Savepoint) -> str:
    try:
        verify(uri, metadata, contents=False)
    except AirflowFtError as error:
        return str(error)
    return ""


def _unknown(name: str, folder: str) -> RefusedError:
    return RefusedError(
        404, f"there is no savepoint {folder!r} of {name} in [airflow_ft] savepoint_dir.", code="savepoint_missing"
    )
