"""Run all checks of a pipeline, and print them as text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from airflow_ft.pipeline import settings
from airflow_ft.pipeline.actions.actor import Actor
from airflow_ft.pipeline.doctor import Patient, examine
from airflow_ft.protocol.doctor import Check, Verdict
from airflow_ft.protocol.errors import FoundProblemsError
from airflow_ft.protocol.numbers import count_text
from airflow_ft.spark.request import listed

if TYPE_CHECKING:
    from airflow_ft.store.decision_log import DecisionLog


def configured(pipeline: str) -> Patient:
    """A pipeline as the decision log and the configuration know it, without its DAG: its sources are not known."""
    return Patient(
        pipeline=pipeline,
        wal_root=settings.wal_root(),
        spark_master=settings.spark_master(),
        jars=listed(settings.spark_jars()),
        spark_conf=settings.spark_conf(),
    )


def doctor(by: Actor, patient: Patient, open_log: Callable[[], DecisionLog]) -> list[Check]:
    """All checks; writes nothing that stays. The store that `open_log` opens is closed."""
    return examine(patient, open_log, by.connections, by.participants)


def lines(checks: Sequence[Check]) -> Iterator[str]:
    """All of them in lines, by subject, with remedies."""
    subject = ""
    for check in checks:
        if check.subject != subject:
            subject = check.subject
            yield subject
        mark = {Verdict.OK: "ok     ", Verdict.WARNING: "WARNING", Verdict.PROBLEM: "PROBLEM"}[check.verdict]
        yield f"  {mark} {check.coded}: {check.text}"
        if check.remedy:
            yield f"          Fix: {check.remedy}"
    yield _summary(checks)


def _summary(checks: Sequence[Check]) -> str:
    """Return the last line: how many problems and warnings there are, and what to do."""
    problems, warnings = (
        sum(check.verdict is verdict for check in checks) for verdict in (Verdict.PROBLEM, Verdict.WARNING)
    )
    counts = " and ".join(
        count_text(count, word) for count, word in ((problems, "problem"), (warnings, "warning")) if count
    )
    if problems:
        return f"{counts}: a run would fail. Follow the Fix lines, then run this check again."
    if warnings:
        return f"{counts}: nothing that was examined would stop a run."
    return f"{count_text(len(checks), 'check')} passed."


def require(checks: Sequence[Check], pipeline: str, *, warnings: bool = False) -> None:
    """FoundProblemsError when one of them is a problem, or a warning if `warnings` count."""
    bad = (Verdict.PROBLEM, Verdict.WARNING) if warnings else (Verdict.PROBLEM,)
    if problems := [check for check in checks if check.verdict in bad]:
        raise FoundProblemsError(
            "; ".join(f"{check.subject}: {check.coded}: {check.text.rstrip('.')}" for check in problems) + ".",
            remedy=" ".join(dict.fromkeys(check.remedy for check in problems if check.remedy)),
            pipeline=pipeline,
            checks=[check.name for check in problems],
        )
