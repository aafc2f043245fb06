"""Results of an examination: checks with remedies. An examination only reads, and changes no system.

Each system has a module `doctor` (such as `airflow_ft.sinks.<kind>.doctor`), which fills an `Examination`.
`airflow_ft.pipeline.doctor` combines them for a pipeline.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeVar

from airflow_ft.protocol.decision_log import QueryLog
from airflow_ft.protocol.errors import AirflowFtError, require_runnable
from airflow_ft.protocol.lookup import known_text
from airflow_ft.protocol.numbers import count_text
from airflow_ft.protocol.planning import is_half_prepared, quarantined
from airflow_ft.protocol.transitions import IN_DOUBT

T = TypeVar("T")
_OF_DAG = "`airflow ft doctor {} --dag FILE`"


class Verdict(StrEnum):
    """Result of a check. A PROBLEM would stop the pipeline, a WARNING would not."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Check:
    """One result: `subject` is the system ("connection shop"), `remedy` is "" if all is well.

    `code`, `sink`: of an error.
    """

    subject: str
    name: str
    verdict: Verdict
    text: str
    remedy: str = ""
    code: str = ""
    sink: str = ""

    @property
    def coded(self) -> str:
        """The name, with the code as logs show it."""
        return f"{self.name} [{self.code}]" if self.code else self.name

    def to_json(self) -> dict[str, str]:
        """Plain data for tables and XCom."""
        return {
            "subject": self.subject,
            "check": self.name,
            "verdict": self.verdict.value,
            "text": self.text,
            "remedy": self.remedy,
            "code": self.code,
        }


@dataclass(slots=True)
class Examination:
    """Collects the checks of one subject. An error of ours is a PROBLEM with the error's own words and remedy."""

    subject: str
    checks: list[Check] = field(default_factory=list)

    def ok(self, name: str, text: str) -> None:
        """All is well."""
        self.checks.append(Check(self.subject, name, Verdict.OK, text))

    def warn(self, name: str, text: str, remedy: str, code: str = "") -> None:
        """It works, but."""
        self.checks.append(Check(self.subject, name, Verdict.WARNING, text, remedy, code))

    def problem(self, name: str, text: str, remedy: str, code: str = "", sink: str = "") -> None:
        """It would fail."""
        self.checks.append(Check(self.subject, name, Verdict.PROBLEM, text, remedy, code, sink))

    def failed(self, name: str, error: AirflowFtError) -> None:
        """One of our errors, with where it is as far as the subject does not say that."""
        named = error.participant in self.subject or repr(error.participant) in error.what
        where = "" if named else f"connection {error.participant!r}: "
        where += f"sink {error.sink}: " if error.sink else ""
        where += f"column {error.column}: " if error.column else ""
        self.problem(name, f"{where}{error.what}", error.remedy, error.code, error.sink)

    def attempt(self, name: str, step: Callable[[], T]) -> T | None:
        """The step's result; None when it raised one of our errors, which is then a PROBLEM under this name."""
        try:
            return step()
        except AirflowFtError as error:
            self.failed(name, error)
            return None

    def passes(self, name: str, text: str, step: Callable[[], object]) -> bool:
        """Return whether the step raised nothing; then `text` says what is well."""
        before = len(self.checks)
        self.attempt(name, step)
        if len(self.checks) > before:
            return False
        self.ok(name, text)
        return True


def worst(checks: Iterable[Check]) -> Verdict:
    """The worst verdict; OK when there are none."""
    found = {check.verdict for check in checks}
    return next((verdict for verdict in (Verdict.PROBLEM, Verdict.WARNING) if verdict in found), Verdict.OK)


def examine_state(store: QueryLog, pipeline: str, *, is_declared: bool = True) -> list[Check]:
    """Check the pipeline's condition in the decision log: halted, quarantined, in doubt, active.

    `is_declared`: a DAG declares it, so it may be one that never ran.
    """
    exam = Examination(f"pipeline {pipeline}")
    try:
        row = store.pipeline(pipeline)
    except KeyError:
        text, names = "the decision log has no such pipeline: it never ran", [each.name for each in store.pipelines()]
        if is_declared:
            exam.ok("history", text)
            return exam.checks
        other = f" Otherwise correct the name or --store. {known_text(names, pipeline)}" if names else ""
        exam.problem("history", text, f"If it is new, run {_OF_DAG.format(pipeline)}.{other}")
        return exam.checks

    exam.passes("status", "it is ACTIVE", lambda: require_runnable(row))
    opened = store.open_checkpoints(pipeline)
    look = f"Run `airflow ft in-doubt --pipeline {pipeline}`: it shows what each sink has."
    for checkpoint in quarantined(opened):
        exam.problem("quarantine", f"checkpoint {checkpoint.number} is QUARANTINED: {checkpoint.message}", look)
    doubtful = [c for c in opened if c.state in IN_DOUBT or c.rollback_pending or is_half_prepared(c)]
    if doubtful:
        numbers = ", ".join(f"{c.number} ({c.state})" for c in doubtful[:5]) + (" ..." if len(doubtful) > 5 else "")
        exam.warn(
            "in doubt", f"{count_text(len(doubtful), 'checkpoint is', 'checkpoints are')} in doubt: {numbers}", look
        )
    else:
        exam.ok("in doubt", "no checkpoint is in doubt")
    if left := store.left_positions(pipeline):
        exam.warn("positions", left.what, left.remedy)
    for warning in store.warnings([pipeline]).get(pipeline, ()):
        of = f"{warning.subject}: " if warning.subject else ""
        exam.warn(warning.code, f"{of}{warning.message}", warning.remedy or "Do nothing: this is for information.")
    latest = store.latest_confirmed(pipeline)
    exam.ok(
        "history", f"checkpoint {latest.number} was confirmed last" if latest else "no checkpoint was confirmed yet"
    )
    working = [lease.task or lease.holder for lease in store.leases(pipeline)]
    if working or row.turn:
        who = ", ".join(working) or f"run {row.turn}, between two tasks"
        exam.ok("active", f"{who} (epoch {row.epoch})")
    return exam.checks
