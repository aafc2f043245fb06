"""Pipelines that need a person: which, why, and what to do. The words are those of the errors that tasks raise."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import timedelta

from airflow_ft.core.errors import PipelineHaltedError, QuarantinedError
from airflow_ft.core.model import PipelineStatus
from airflow_ft.core.overview import Condition
from airflow_ft.core.ports import Store
from airflow_ft.core.steps import require_active
from airflow_ft.core.sweep import health

URGENT = (Condition.HALTED, Condition.QUARANTINED, Condition.LATE)
"""What a person is told of, the most urgent first."""


@dataclass(frozen=True, slots=True)
class Problem:
    """`condition` says how the pipeline stands; `cause` and `remedy` are sentences."""

    pipeline: str
    condition: Condition
    cause: str
    remedy: str

    @property
    def headline(self) -> str:
        """In few words: `pipeline orders is HALTED`."""
        return f"pipeline {self.pipeline} is {self.condition}"

    @property
    def text(self) -> str:
        """All of it."""
        return f"{self.headline}: {self.cause} Remedy: {self.remedy}"


def problems(
    store: Store,
    pipelines: Collection[str] | None = None,
    conditions: Collection[Condition] = URGENT,
    late_after: timedelta | None = None,
    patience: timedelta | None = None,
) -> Iterator[Problem]:
    """One for each pipeline that has any, by name; `pipelines`: only these.

    A pipeline is late by its own `late_after`; where it has none, by this one: counted from its last confirmation. With
    `patience` one whose published rows are not delivered for longer has a problem, too (WAITING, or IN_DOUBT).
    """
    for each in store.overview():
        if pipelines is not None and each.name not in pipelines:
            continue
        try:
            require_active(store, each.name)
        except (PipelineHaltedError, QuarantinedError) as error:
            if store.pipeline(each.name).status is PipelineStatus.RENAMED:  # nobody is to run it
                continue
            halted = isinstance(error, PipelineHaltedError)
            condition = Condition.HALTED if halted else Condition.QUARANTINED
            if condition in conditions:
                yield Problem(each.name, condition, error.what, error.remedy)
            continue
        late = each.late if each.late_after is not None else _late(store, each.name, late_after)
        if late is not None and Condition.LATE in conditions:
            yield Problem(
                each.name,
                Condition.LATE,
                f"nothing was confirmed for {timedelta(seconds=round(late.total_seconds()))}.",
                f"see what its newest run waits for or failed of (`airflow ft checkpoints {each.name}`), and whether"
                " its DAG is paused.",
            )
        elif patience is not None and (needs := health(store, each.name, patience)).undelivered > patience:
            yield Problem(
                each.name,
                Condition.IN_DOUBT if needs.in_doubt else Condition.WAITING,
                f"{needs.needs}.",
                f"`airflow ft in-doubt --pipeline {each.name}` says what each sink holds, and what it waits for.",
            )


def _late(store: Store, pipeline: str, late_after: timedelta | None) -> timedelta | None:
    latest = store.latest_confirmed(pipeline) if late_after is not None else None
    if late_after is None or latest is None or latest.completed_at is None:
        return None
    since = store.now() - latest.completed_at
    return since if since > late_after else None
