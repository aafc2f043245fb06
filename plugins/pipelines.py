"""All pipelines in short, the most urgent first; one of them with its newest checkpoints."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Annotated, Any

from airflow.api_fastapi.core_api.security import GetUserDep
from fastapi import APIRouter, HTTPException, Query

from airflow_ft.core.model import Checkpoint, Pipeline, RunKey
from airflow_ft.core.overview import Condition, Overview, rate
from airflow_ft.core.ports import Store
from airflow_ft.core.set_aside import of_checkpoint

from .access import NEWEST, configured, dags_of, decision_log, seen, visible_dags

RECENT = 20
"""So many completed checkpoints of a pipeline are drawn, and tell its rate."""

router = APIRouter()
_ORDER = {condition: place for place, condition in enumerate(Condition)}


@router.get("/pipelines")
def pipelines(
    user: GetUserDep,
    search: str = "",
    dag: str = "",
    condition: Condition | None = None,
    offset: Annotated[int, Query(ge=0)] = 0,
    limit: Annotated[int, Query(ge=1, le=100)] = 25,
) -> dict[str, Any]:
    """Those of a DAG; those whose name, or that of a DAG of theirs, has `search` in it. `conditions` counts them."""
    visible = visible_dags(user)
    with decision_log() as store, configured():
        wanted = search.casefold()
        found = [
            each
            for each in _overview(store, visible, dag)
            if any(wanted in text.casefold() for text in (each.name, *visible.intersection(each.dags)))
        ]
        shown = sorted(
            (each for each in found if condition in (None, each.condition)),
            key=lambda each: (_ORDER[each.condition], each.name),
        )
        return {
            "now": store.now().isoformat(),
            "total": len(shown),
            "conditions": Counter(each.condition for each in found),
            "pipelines": [_in_short(store, each, visible) for each in shown[offset : offset + limit]],
        }


@router.get("/pipelines/{name}")
def pipeline(
    name: str,
    user: GetUserDep,
    limit: Annotated[int, Query(ge=1, le=100)] = NEWEST,
    before: Annotated[int | None, Query(ge=1)] = None,
) -> dict[str, Any]:
    """Its newest checkpoints, or those before a number."""
    visible = visible_dags(user)
    with seen(name, visible) as (store, _), configured():
        row = store.pipeline(name)
        latest = store.latest_confirmed(name)
        return {
            "now": store.now().isoformat(),
            "name": name,
            "halted": row.halted,
            "confirmed": latest.number if latest else 0,
            **_at_work(store, row, visible),
            "checkpoints": [
                _checkpoint(replace(each, run=_shown(each.run, visible)))
                for each in store.checkpoints(name, limit, before)
            ],
        }


@router.get("/runs")
def runs(dag: str, run: str, user: GetUserDep, limit: Annotated[int, Query(ge=1, le=100)] = RECENT) -> dict[str, Any]:
    """What a DAG's run has to do with each pipeline: its newest checkpoints, by map index."""
    visible = visible_dags(user)
    with decision_log() as store, configured():
        found = _overview(store, visible, dag)
        return {
            "now": store.now().isoformat(),
            "pipelines": [
                {
                    "name": each.name,
                    "map_index": of.key.map_index,
                    "checkpoints": [
                        _checkpoint(one) for one in reversed(store.run_checkpoints(each.name, of.key, limit))
                    ],
                }
                for each in found
                for of in store.runs(each.name, dag, run)
            ],
        }


@router.get("/pipelines/{name}/checkpoints/{number}/spec")
def spec(name: str, number: int, user: GetUserDep) -> dict[str, Any]:
    """What a checkpoint was made with."""
    visible = visible_dags(user)
    with seen(name, visible) as (store, _), configured():
        try:
            checkpoint = store.checkpoint(name, number)
            if checkpoint.run is not None and checkpoint.run.dag_id not in visible:
                raise KeyError(name)
            return dict(store.spec(checkpoint.spec))
        except KeyError as error:
            raise HTTPException(404, f"it is not known what checkpoint {number} of {name} was made with") from error


def _overview(store: Store, visible: frozenset[str], dag: str) -> list[Overview]:
    """Those that the user may see; with `dag` of this DAG alone."""
    if dag and dag not in visible:
        return []
    return [each for each in store.overview(dag) if _may_see(store, each, visible)]


def _may_see(store: Store, overview: Overview, visible: frozenset[str]) -> bool:
    """As `access.seen`, which is asked where several DAGs have made its checkpoints: then the newest ones count."""
    if len(overview.dags) < 2:
        return visible.issuperset(overview.dags)
    return dags_of(store.checkpoints(overview.name, NEWEST)) <= visible


def _shown(run: RunKey | None, visible: frozenset[str]) -> RunKey | None:
    """None: of a DAG that the user may not see, which was the pipeline's long ago, say."""
    return run if run is not None and run.dag_id in visible else None


def _at_work(store: Store, of: Pipeline | Overview, visible: frozenset[str]) -> dict[str, Any]:
    turn = _shown(of.turn, visible)
    doing = [lease.doing for lease in store.leases(of.name) if lease.doing] if of.turn else []
    return {"at_work": str(turn) if turn else "", "doing": doing}


def _in_short(store: Store, overview: Overview, visible: frozenset[str]) -> dict[str, Any]:
    completed = store.completed(overview.name, RECENT)
    return {
        "name": overview.name,
        "condition": overview.condition,
        "told": overview.halted or overview.condition.told,
        "dags": [dag for dag in overview.dags if dag in visible],
        **_at_work(store, overview, visible),
        "confirmed": completed[0].number if completed else 0,
        "confirmed_at": completed[0].at.isoformat() if completed else "",
        "waiting": overview.undelivered,
        "rate": rate(completed),
        "recent": [{"number": each.number, "rows": each.rows} for each in reversed(completed)],
    }


def _checkpoint(checkpoint: Checkpoint) -> dict[str, Any]:
    plan = checkpoint.plan
    at = checkpoint.completed_at or checkpoint.decided_at or checkpoint.prepared_at or checkpoint.staged_at
    return {
        "number": checkpoint.number,
        "state": checkpoint.state.value,
        "delivered_by": checkpoint.delivered_by or checkpoint.subsumed_by or 0,
        "dag_id": checkpoint.run.dag_id if checkpoint.run else "",
        "run_id": checkpoint.run.run_id if checkpoint.run else "",
        "map_index": checkpoint.run.map_index if checkpoint.run else -1,
        "rows": dict(checkpoint.segment.rows) if checkpoint.segment else {},
        "at": (at or checkpoint.triggered_at).isoformat(),
        "message": " ".join(
            text
            for text in (
                checkpoint.message,
                *(f"{aside.text(sink)}." for sink, aside in of_checkpoint(checkpoint).items()),
            )
            if text
        ),
        "reason": checkpoint.reason.value if checkpoint.reason else "",
        "cause": checkpoint.reason.cause if checkpoint.reason else "",
        "fate": checkpoint.reason.rows if checkpoint.reason else "",
        "remedy": checkpoint.reason.remedy if checkpoint.reason else "",
        "delivers": [segment.number for segment in plan.segments] if plan else [],
        "reasons": list(plan.reasons) if plan else [],
        "spec": checkpoint.spec,
        "participants": [
            {
                "name": participant.name,
                "kind": participant.kind,
                "strategy": participant.strategy,
                "sinks": sorted(participant.sinks),
                "proof": (vote := checkpoint.votes.get(participant.name)) is not None and vote.proof is not None,
            }
            for participant in (plan.participants if plan else ())
        ],
    }
