"""All pipelines in short, the most urgent first; and what a DAG's run has made."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from airflow.api_fastapi.core_api.security import GetUserDep
from fastapi import Query, Request

from airflow_ft.protocol.errors import NewerReleaseError
from airflow_ft.protocol.explaining import explained
from airflow_ft.protocol.lag import Lag
from airflow_ft.protocol.overview import Condition, Overview
from airflow_ft.protocol.pipelines import Run
from airflow_ft.protocol.timing import Delivered, rate

from . import answers
from .access import at_work, configured, dags_of, decision_log, judged_now, of_dags, visible_dags, visible_part
from .checkpoint import behind, listed
from .routes import holds_until, made_of
from .routes import router as conditional

if TYPE_CHECKING:
    from airflow_ft.store.decision_log import DecisionLog

RECENT = 20
"""Newest completed checkpoints of a pipeline that are drawn, and from which its rate is computed."""

log = logging.getLogger(__name__)
router = conditional()
_ORDER = {condition: place for place, condition in enumerate(Condition)}


@router.get("/pipelines")
def pipelines(
    request: Request,
    user: GetUserDep,
    search: str = "",
    dag: str = "",
    condition: Condition | None = None,
    offset: Annotated[int, Query(ge=0)] = 0,
    limit: Annotated[int, Query(ge=1, le=100)] = 25,
) -> answers.Pipelines:
    """Return pipelines of a DAG, or whose name, or a DAG's name, contains `search`. `conditions` counts them."""
    visible = visible_dags(user)
    with decision_log() as store, configured():
        now = store.now()
        made_of(request, now, store.mark(), *sorted(visible))
        wanted = search.casefold()
        found = [
            each
            for each in judged_now(_overview(store, visible, dag), visible)
            if any(wanted in text.casefold() for text in (each.name, *visible.intersection(each.dags)))
        ]
        for each in found:
            if each.late_at is not None and each.late is None:
                holds_until(request, each.late_at)
            if each.silent_at is not None and not each.is_silent:
                holds_until(request, each.silent_at)
        shown = sorted(
            (each for each in found if condition in (None, each.condition)),
            key=lambda each: (_ORDER[each.condition], each.name),
        )
        page = shown[offset : offset + limit]
        names = [each.name for each in page]
        lags, doing, recent = store.lags(names), store.doing(names), store.recent(names, RECENT)
        warnings = store.warnings(names)
        return {
            "total": len(shown),
            "conditions": Counter(each.condition for each in found),
            "pipelines": [
                _in_short(
                    each,
                    visible,
                    description=explained(store, each, lambda one: visible_part(one, visible)).text,
                    warnings=len(warnings.get(each.name, ())),
                    lags=lags.get(each.name, ()),
                    doing=doing.get(each.name, ()),
                    completed=recent.get(each.name, ()),
                )
                for each in page
            ],
        }


@router.get("/runs")
def runs(dag: str, run: str, user: GetUserDep, limit: Annotated[int, Query(ge=1, le=100)] = RECENT) -> answers.Runs:
    """Return the newest checkpoints of a DAG's run for each pipeline, by map index."""
    visible = visible_dags(user)
    with decision_log() as store, configured():
        found = _overview(store, visible, dag)
        return {
            "pipelines": [
                {
                    "name": each.name,
                    "map_index": of.key.map_index,
                    "checkpoints": _of_run(store, each.name, of, limit),
                }
                for each in found
                for of in store.runs(each.name, dag, run)
            ],
        }


def _of_run(store: DecisionLog, pipeline: str, run: Run, limit: int) -> list[answers.CheckpointListed]:
    """Return no checkpoints if a newer release wrote them, so that the run's other pipelines are still shown."""
    try:
        return [listed(one) for one in reversed(store.run_checkpoints(pipeline, run.key, limit))]
    except NewerReleaseError as error:
        log.warning("%s", error)
        return []


def _overview(store: DecisionLog, visible: frozenset[str], dag: str) -> list[Overview]:
    """Return the pipelines that the user may see; with `dag` only those of this DAG."""
    if dag and dag not in visible:
        return []
    return [each for each in store.overviews(dag) if _may_see(store, each, visible)]


def _may_see(store: DecisionLog, overview: Overview, visible: frozenset[str]) -> bool:
    """As `access.seen`, which is asked where several DAGs have made its checkpoints: then the newest ones count."""
    if len(overview.dags) < 2:
        return visible.issuperset(of_dags(overview.dags))
    return dags_of(store, overview.name) <= visible


def _in_short(
    overview: Overview,
    visible: frozenset[str],
    *,
    description: str,
    warnings: int,
    lags: Sequence[Lag],
    doing: Sequence[str],
    completed: Sequence[Delivered],
) -> answers.PipelineInShort:
    return {
        "name": overview.name,
        "condition": overview.condition,
        "description": description,
        "dags": [dag for dag in overview.dags if dag in visible],
        **at_work(overview, doing, visible),
        "confirmed": completed[0].number if completed else 0,
        "confirmed_at": completed[0].at.isoformat() if completed else "",
        "waiting": overview.undelivered,
        "lag": behind(lags),
        "rate": rate(completed),
        "recent": [{"number": each.number, "rows": each.rows} for each in reversed(completed)],
        "warnings": warnings,
    }
