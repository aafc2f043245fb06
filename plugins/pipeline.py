"""One pipeline: its state, its checkpoints, their durations, and its specification."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, cast

from airflow.api_fastapi.core_api.security import GetUserDep
from fastapi import Query, Request
from pydantic import AwareDatetime

from airflow_ft.pipeline import settings
from airflow_ft.pipeline.spec import defaults
from airflow_ft.protocol.backpressure import held_back
from airflow_ft.protocol.errors import filled
from airflow_ft.protocol.explaining import checkpoint_actions, explained, pipeline_actions
from airflow_ft.protocol.model import Checkpoint, RunKey
from airflow_ft.protocol.overview import Noted, Only
from airflow_ft.protocol.pipelines import Event, Pipeline
from airflow_ft.protocol.reasons import AbortReason
from airflow_ft.protocol.timing import Timing, summary
from airflow_ft.store.database import LARGEST

from . import answers
from . import checkpoint as views
from .access import (
    HIDDEN,
    NEWEST,
    at_work,
    configured,
    judged_now,
    may_read_code,
    of_dags,
    seen,
    shown,
    visible_dags,
    visible_part,
)
from .actions import offered
from .configuration import settings_of
from .refused import RefusedError
from .routes import Number, made_of
from .routes import router as conditional

if TYPE_CHECKING:
    from airflow.api_fastapi.auth.managers.models.base_user import BaseUser

    from airflow_ft.protocol.decision_log import QueryLog
    from airflow_ft.protocol.delivery_log import RunLog
    from airflow_ft.store.decision_log import DecisionLog

OPEN = 10
"""Most open checkpoints that are shown."""
COUNTED = 20
"""Newest checkpoints whose dead letters are counted."""
SUMMED = 1000
"""Newest checkpoints that are summed up."""

router = conditional()


@router.get("/pipelines/{name}")
def pipeline(name: str, user: GetUserDep) -> answers.Pipeline:
    """Return its state: the run that works, open checkpoints, the last results, and the user's actions by DAG."""
    visible = visible_dags(user)
    with seen(name, visible) as (store, dags), configured():
        row = store.pipeline(name)
        [overview] = judged_now([store.overview(name)], visible)
        opened = store.checkpoints(name, OPEN, only=Only.OPEN)
        completed = store.timings(name, 1, Only.COMPLETED)
        failed = store.timings(name, 1, Only.FAILED)
        counts = store.checkpoint_counts(name)
        made_with = _made_with(store, name)
        return {
            "name": name,
            "condition": overview.condition,
            "description": explained(store, overview, lambda one: visible_part(one, visible)).text,
            "halt": views.halt(row.halt) if row.halt else None,
            "dags": sorted(dags),
            **at_work(overview, store.doing([name]).get(name, ()), visible),
            "confirmed": completed[0].number if completed else 0,
            "waiting": overview.undelivered,
            "held_back": _held_back(store, name),
            "lag": views.behind(store.lags([name]).get(name, ())),
            "triggered": row.next_number - 1,
            "epoch": row.epoch,
            "streaming": bool(made_with.get("streaming")),
            "failure": views.failure(overview.failure) if overview.failure else None,
            "warnings": views.warned(store.warnings([name]).get(name, ())),
            "fitting": pipeline_actions(overview),
            "open": _opened(store, row, opened, visible, is_held=overview.is_held),
            "completed": views.timed(completed[0]) if completed else None,
            "failed": _failed(failed, name),
            "savepoint": _event(store.noted(name, Noted.SAVEPOINT)),
            "restored": _event(store.noted(name, Noted.RESTORED)),
            "counts": cast("answers.CheckpointCounts", {"triggered": counts.triggered, **asdict(counts)}),
            "dead_letters": _dead_letters(store, name, made_with.get("dead_letters")),
            **offered(user, visible),
        }


@router.get("/pipelines/{name}/checkpoints")
def checkpoints(
    name: str,
    request: Request,
    user: GetUserDep,
    limit: Annotated[int, Query(ge=1, le=100)] = NEWEST,
    before: Annotated[Number | None, Query(ge=1)] = None,
    only: Only | None = None,
    reason: AbortReason | None = None,
    until: AwareDatetime | None = None,
    dag: str = "",
    run: str = "",
    map_index: Annotated[int, Query(ge=-1, le=LARGEST)] = -1,
) -> answers.Checkpoints:
    """Return its newest checkpoints, or those before a number.

    only: these alone. reason: those that failed for it. until: those that were triggered at this time, with its zone,
    or before. dag, run, map_index: those that this run staged.
    """
    visible = visible_dags(user)
    with seen(name, visible) as (store, _), configured():
        of = RunKey(dag, run, map_index) if dag and run else None
        if of is not None and shown(of, visible) is None:
            return {"checkpoints": []}
        made_of(request, datetime.now(UTC), store.mark(name), *sorted(visible))
        if until is not None:
            before = min(before or LARGEST, store.number_at(name, until) + 1)
        found = store.checkpoints(name, limit, before, only, reason=reason, run=of)
        return {"checkpoints": _listed(found, visible)}


@router.get("/pipelines/{name}/checkpoints/{number}")
def checkpoint(name: str, number: Number, user: GetUserDep) -> answers.CheckpointWhole:
    """One with its plan, votes, proofs and events."""
    visible = visible_dags(user)
    with seen(name, visible) as (store, _), configured():
        found = _one(store, name, number)
        visible_checkpoint = visible_part(found, visible)
        events = list(reversed(store.events(name, number)))
        if visible_checkpoint.run != found.run:  # the messages name it
            events = [replace(each, message=HIDDEN) for each in events]
        return views.whole(
            visible_checkpoint,
            events,
            _task(store, visible_checkpoint),
            settings.spark_history_url(),
        )


@router.get("/pipelines/{name}/checkpoints/{number}/spec")
def spec(name: str, number: Number, user: GetUserDep) -> dict[str, Any]:
    """Return what a checkpoint was made with."""
    visible = visible_dags(user)
    with seen(name, visible) as (store, dags), configured():
        found = _one(store, name, number)
        if shown(found.run, visible) == found.run and (made_with := _spec(store, found.spec)):
            return _readable(made_with, user, dags | of_dags([found.run.dag_id] if found.run else []))
        raise RefusedError(
            404,
            f"checkpoint {number} of {name} has no recorded specification that you may see.",
            code="checkpoint_unknown",
        )


@router.get("/pipelines/{name}/timings")
def timings(
    name: str,
    request: Request,
    user: GetUserDep,
    limit: Annotated[int, Query(ge=1, le=SUMMED)] = SUMMED,
    each: bool = True,
) -> answers.Timings:
    """Return how long its newest checkpoints took, oldest first, and in short; `each=false`: in short alone."""
    with seen(name, visible_dags(user)) as (store, _), configured():
        made_of(request, datetime.now(UTC), store.mark(name))
        found = store.timings(name, limit)
        return {
            "states": Counter(each.state.value for each in found),
            "reasons": Counter(each.reason.value for each in found if each.reason),
            "summary": dict(summary(found)),
            "checkpoints": [views.timed(one) for one in reversed(found)] if each else [],
        }


@router.get("/pipelines/{name}/job")
def job(name: str, user: GetUserDep) -> answers.Job:
    """Return what reads what and writes where, as of the newest checkpoint that says so; and how far it has read."""
    visible = visible_dags(user)
    with seen(name, visible) as (store, dags), configured():
        newest = [each for each in store.checkpoints(name, NEWEST) if shown(each.run, visible) == each.run]
        made_with = next((each for each in newest if each.spec), None)
        read = next((each for each in newest if each.positions and each.segment), None)  # not of a failed try
        spec = _readable(_spec(store, made_with.spec), user, dags) if made_with else {}
        confirmed = store.latest_confirmed(name)
        usual = defaults()
        return {
            "checkpoint": made_with.number if made_with else 0,
            "spec": spec,
            "defaults": sorted(name for name, value in spec.items() if name in usual and value == usual[name]),
            "settings": settings_of(spec) if spec else [],
            "confirmed": _positions(confirmed and visible_part(confirmed, visible)),
            "read": _positions(read),
        }


def _listed(found: Sequence[Checkpoint], visible: frozenset[str]) -> list[answers.CheckpointListed]:
    return [views.listed(visible_part(each, visible)) for each in found]


def _opened(
    store: QueryLog, row: Pipeline, found: Sequence[Checkpoint], visible: frozenset[str], *, is_held: bool
) -> list[answers.CheckpointOpen]:
    before = store.unsettled(row.name, limit=OPEN)  # the oldest: what an action waits for
    rows = zip(found, _listed(found, visible), strict=True)
    return [{**listed, "fitting": () if is_held else checkpoint_actions(row, each, before)} for each, listed in rows]


def _one(store: QueryLog, name: str, number: int) -> Checkpoint:
    try:
        return store.checkpoint(name, number)
    except KeyError:
        raise RefusedError(404, f"pipeline {name} has no checkpoint {number}.", code="checkpoint_unknown") from None


def _spec(store: QueryLog, digest: str) -> Mapping[str, Any]:
    try:
        return store.spec(digest) if digest else {}
    except KeyError:
        return {}


def _readable(spec: Mapping[str, Any], user: BaseUser, dags: Collection[str]) -> dict[str, Any]:
    """Return a specification, without the job's source if the user may not read the code of these DAGs."""
    found = dict(spec)
    if "job_source" in found and not may_read_code(user, dags):
        del found["job_source"]
    return found


def _task(store: RunLog, checkpoint: Checkpoint) -> str:
    """The id of the task that has staged it, without the map index; "": not known, or a program."""
    run = checkpoint.run
    staged = store.run(checkpoint.pipeline, run) if run is not None and not run.is_plain else None
    return (
        staged.stage_task.removeprefix(f"{staged.key.dag_id}/{staged.key.run_id}/").partition("[")[0] if staged else ""
    )


def _made_with(store: DecisionLog, name: str) -> Mapping[str, Any]:
    return _spec(store, next((each.spec for each in store.origins(name, NEWEST) if each.spec), ""))


def _dead_letters(store: QueryLog, name: str, given: object) -> answers.DeadLetters | None:
    if not isinstance(given, Mapping):
        return None
    newest = [each.segment for each in store.checkpoints(name, COUNTED) if each.segment is not None]
    return {
        "sink": given["sink"],
        "max_rows": given["max_rows"],
        "max_share": given["max_share"],
        "checkpoints": len(newest),
        "rows": sum(each.rows.get(given["sink"], 0) for each in newest),
        "of": sum(each.total_rows for each in newest),
    }


def _failed(found: Sequence[Timing], name: str) -> answers.Failed | None:
    return {**views.timed(found[0]), **views.explained(found[0].reason, name)} if found else None


def _held_back(store: QueryLog, name: str) -> answers.HeldBack | None:
    if (found := held_back(store, name)) is None:
        return None
    reason = found.reason
    remedy = filled(reason.remedy, name)
    return {"reason": reason, "since": found.since.isoformat(), "cause": reason.cause, "remedy": remedy}


def _event(event: Event | None) -> answers.Noted | None:
    return {"number": event.number, "at": event.at.isoformat(), "message": event.message} if event else None


def _positions(checkpoint: Checkpoint | None) -> answers.Positions:
    if checkpoint is None:
        return {"checkpoint": 0, "sources": {}}
    return {"checkpoint": checkpoint.number, "sources": dict(checkpoint.positions)}
