"""Pipelines that need a person: which, why, and what to do. The words are those of the errors that tasks raise."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

from airflow_ft.protocol.decision_log import QueryLog
from airflow_ft.protocol.errors import NewerReleaseError, PipelineHaltedError, QuarantinedError, StoreCorruptError
from airflow_ft.protocol.failure import with_fix
from airflow_ft.protocol.overview import Condition, Overview, failed_text
from airflow_ft.protocol.pipelines import PipelineStatus
from airflow_ft.protocol.steps import require_active
from airflow_ft.protocol.sweep import health

log = logging.getLogger(__name__)

URGENT = (
    Condition.HALTED,
    Condition.QUARANTINED,
    Condition.FAILED,
    Condition.NOT_RUNNING,
    Condition.LATE,
)
"""Conditions that are reported to a person, the most urgent first."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Problem of a pipeline with its `condition`; `cause` and `remedy` are sentences.

    An error of no single pipeline, such as a decision log that does not answer, has the pipeline "" and no condition.
    """

    pipeline: str
    condition: Condition | None
    cause: str
    remedy: str

    @property
    def headline(self) -> str:
        """Return `pipeline orders is HALTED`, for example; without a pipeline the first line of the cause."""
        if not self.pipeline:
            return self.cause.partition("\n")[0].rstrip(":")
        return f"pipeline {self.pipeline} is {self.condition}"

    @property
    def text(self) -> str:
        """All of it."""
        return with_fix(f"{self.headline}: {self.cause}" if self.pipeline else self.cause, self.remedy)


def problems(
    store: QueryLog,
    pipelines: Collection[str] | None = None,
    conditions: Collection[Condition] = URGENT,
    late_after: timedelta | None = None,
    patience: timedelta | None = None,
    judged: Callable[[Sequence[Overview]], Sequence[Overview]] = list,
) -> Iterator[Problem]:
    """Yield one problem for each pipeline that has any, by name; `pipelines`: only these.

    A pipeline is late by its own `late_after`, or if it has none, by this argument. The argument does not apply to
    retired pipelines and stopped streams. With `patience`, a pipeline whose published rows wait longer for delivery has
    a problem, too (WAITING, or IN_DOUBT), unless it is retired.
    `judged` adds what Airflow knows of runs (`protocol.judging`). A stream that was stopped on purpose has no problem.
    A pipeline with a damaged row counts as HALTED.
    """
    for each in judged([each for each in store.overviews() if pipelines is None or each.name in pipelines]):
        try:
            found = _problem(store, each, conditions, late_after, patience)
        except (NewerReleaseError, StoreCorruptError) as error:  # report the other pipelines anyway
            log.warning("%s", error)
            if isinstance(error, NewerReleaseError) or Condition.HALTED not in conditions:
                continue
            found = Problem(each.name, Condition.HALTED, error.what, error.remedy)
        if found is not None:
            yield found


def _problem(
    store: QueryLog,
    overview: Overview,
    conditions: Collection[Condition],
    late_after: timedelta | None,
    patience: timedelta | None,
) -> Problem | None:
    name = overview.name
    try:
        require_active(store, name)
    except (PipelineHaltedError, QuarantinedError, NewerReleaseError) as error:
        row = store.pipeline(name)
        if row.status is PipelineStatus.RENAMED:  # it must not run
            return None
        if isinstance(error, NewerReleaseError) and not row.newer:
            raise
        condition = Condition.QUARANTINED if isinstance(error, QuarantinedError) else Condition.HALTED
        return Problem(name, condition, error.what, error.remedy) if condition in conditions else None
    if (trouble := overview.trouble) is not None and trouble in conditions and not overview.is_stopped:
        return _trouble(overview, trouble)
    late = overview.late
    if overview.late_after is None and late_after is not None and not (overview.retired or overview.is_stopped):
        late = store.late(name, late_after)
    if late is not None and Condition.LATE in conditions:
        return Problem(
            name,
            Condition.LATE,
            f"nothing was confirmed for {timedelta(seconds=round(late.total_seconds()))}.",
            f"Run `airflow ft pipelines`. It shows whether a run of {name} works, what it waits for (`held_back`), and"
            " its last error. Check whether its DAG is paused.",
        )
    if patience is None or overview.retired:
        return None
    if (needs := health(store, name, patience)).undelivered > patience:
        cause, _, remedy = needs.needs.partition("\nFix: ")
        look = f"Run `airflow ft in-doubt --pipeline {name}`: it shows what each sink has and waits for."
        condition = Condition.IN_DOUBT if needs.in_doubt else Condition.WAITING
        return Problem(name, condition, f"{cause.removesuffix('.')}.", remedy or look)
    return None


def _trouble(overview: Overview, condition: Condition) -> Problem:
    failure = overview.failure
    if failure is not None and condition is Condition.FAILED:
        cause, remedy = f"{failed_text(replace(failure, remedy=''))}{overview.no_run_follows}", failure.remedy
    else:
        cause, _, remedy = overview.text_of(condition).partition("\nFix: ")
    log_of = f"Look at the log of the task {failure.task_id}." if failure is not None and failure.task_id else ""
    return Problem(overview.name, condition, cause, f"{remedy} {log_of}".strip() or "Look at the logs of its tasks.")
