"""Combine pipelines with what Airflow knows of their runs and DAGs: the decision log alone cannot see that a run is
dead.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Sequence
from datetime import timedelta

from airflow_ft.protocol.model import PLAIN, RunKey
from airflow_ft.protocol.overview import Overview

SILENT = 3
"""Lease times without a write after which a stream without a lease counts as dead."""


def judge(
    found: Sequence[Overview],
    lease_seconds: float,
    ended: Callable[[Collection[RunKey]], Collection[RunKey]],
    paused: Callable[[Collection[str]], Container[str]],
) -> list[Overview]:
    """Return the pipelines with their current `Overview.condition`.

    The turn of a run that cannot continue is free: the next run takes it, whenever it comes.

    Args:
        found: pipelines as the decision log knows them.
        lease_seconds: `[airflow_ft] lease_seconds`.
        ended: selects the runs that failed, succeeded or were deleted.
        paused: selects the DAGs that begin no run, because they are paused or deleted.
    """
    over = ended({each.turn for each in found if each.turn is not None})
    known = [
        each._replace(
            turn=None if each.turn in over else each.turn,
            ended=each.turn if each.turn in over else None,
            silent_after=timedelta(seconds=SILENT * lease_seconds),
        )
        for each in found
    ]
    asked = {each.name: _dags(each) for each in known if not each.is_at_work and _asks(each)}
    waiting = paused({dag for dags in asked.values() for dag in dags}) if any(asked.values()) else ()
    return [
        each._replace(paused=True) if (dags := asked.get(each.name)) and all(dag in waiting for dag in dags) else each
        for each in known
    ]


def _asks(overview: Overview) -> bool:
    """Return whether it matters if a run comes."""
    has_failed = overview.failure is not None or overview.ended is not None
    return has_failed or overview.streaming or overview.committing > 0 or overview.undelivered > 0


def _dags(overview: Overview) -> set[str]:
    """The DAGs by which the pipeline runs: that of its last run, where it is known."""
    last = overview.ended or overview.turn
    dags = {last.dag_id} if last else {overview.failure.dag_id} if overview.failure else set(overview.dags)
    return {dag for dag in dags if dag and not dag.startswith(PLAIN)}
