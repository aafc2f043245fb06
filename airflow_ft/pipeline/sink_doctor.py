"""Examine one sink of a pipeline: its system, its targets, and whether it remembers what the decision log does."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from airflow_ft.protocol.doctor import Check, Examination
from airflow_ft.protocol.errors import AirflowFtError, DeclinedError
from airflow_ft.protocol.participant import Expiring, Judging
from airflow_ft.protocol.planning import may_be_heuristic
from airflow_ft.protocol.preparing import last_proven
from airflow_ft.protocol.sharing import require_own_targets
from airflow_ft.protocol.transitions import IN_DOUBT
from airflow_ft.sinks.doctor import examine, is_examined
from airflow_ft.sinks.registry import system

if TYPE_CHECKING:
    from airflow_ft.protocol.connections import ConnectionResolver
    from airflow_ft.protocol.decision_log import QueryLog
    from airflow_ft.protocol.model import CheckpointState, ParticipantPlan
    from airflow_ft.protocol.participant import Participant, ParticipantFactory
    from airflow_ft.protocol.write_ahead_log import SegmentReader
    from airflow_ft.store.decision_log import DecisionLog


def examine_sink(
    pipeline: str,
    plan: ParticipantPlan,
    connections: ConnectionResolver,
    rows: Sequence[SegmentReader],
    opener: ParticipantFactory,
    store: DecisionLog | None,
    *,
    values: bool = False,
) -> list[Check]:
    """All checks of a sink, and whether it would take the columns of these rows; never raises for what it finds.

    `values`: judge each row, too, if the columns fit and the system can (`Judging`).
    """
    subject = f"connection {plan.name}"
    try:
        of_kind = system(plan.kind)
        subject = of_kind.called(plan)
        if not is_examined(plan.kind):
            exam = Examination(subject)
            exam.warn(
                "examination", f"sinks of kind {plan.kind!r} have none", "Run the pipeline: prepare reports problems."
            )
            return exam.checks
        installation = store.installation if store is not None else None
        if store is not None:
            with suppress(KeyError):  # it never ran
                plan = replace(plan, former=store.pipeline(pipeline).former)
        checks = examine(pipeline, plan, of_kind.connection(plan, connections), rows, installation)
    except AirflowFtError as error:
        exam = Examination(subject)
        exam.failed("examination", error)
        return exam.checks
    checks += _shared(subject, pipeline, plan, opener, store)
    if all(check.verdict != "problem" for check in checks):
        checks += _memory(subject, pipeline, plan, opener, store)
        checks += _values(subject, pipeline, plan, opener, rows) if values and rows else []
    return checks


def _values(
    subject: str, pipeline: str, plan: ParticipantPlan, opener: ParticipantFactory, rows: Sequence[SegmentReader]
) -> list[Check]:
    """Return the first row that the sink would refuse."""
    exam = Examination(subject)
    sink = exam.attempt("rows", lambda: opener(plan))
    if sink is not None:
        with closing(sink):
            if isinstance(sink, Judging):
                exam.attempt("rows", partial(_judge, sink, pipeline, rows))
    return exam.checks


def _judge(sink: Judging, pipeline: str, rows: Sequence[SegmentReader]) -> None:
    """Judge rows whose files are about to be deleted: the error names no file."""
    from airflow_ft.sinks.refused import TO_SEE

    try:
        sink.judge(pipeline, rows)
    except DeclinedError as error:
        if path := error.fields.get("path"):
            error.what = error.what.replace(path, "a computed file")
        error.remedy = error.remedy.partition(TO_SEE)[0]
        raise


def _shared(
    subject: str, pipeline: str, plan: ParticipantPlan, opener: ParticipantFactory, store: DecisionLog | None
) -> list[Check]:
    """Return whether another pipeline fills one of its tables or topics."""
    exam = Examination(subject)
    if store is not None:
        exam.attempt("target", lambda: require_own_targets(store, pipeline, (plan,), opener, staged=False))
    return exam.checks


def _memory(
    subject: str, pipeline: str, plan: ParticipantPlan, opener: ParticipantFactory, store: DecisionLog | None
) -> list[Check]:
    """Return whether the sink remembers the pipeline as the decision log does."""
    exam = Examination(subject)
    sink = exam.attempt("memory", lambda: opener(plan))
    if sink is None:
        return exam.checks
    head = exam.attempt("memory", lambda: (sink.head(pipeline),))
    if store is not None:
        _by_hand(exam, pipeline, plan.name, sink, store)
    if head is None or store is None:
        sink.close()
        return exam.checks
    [found] = head
    # Read before what is delivered: a run may record the proof of it meanwhile.
    state = _doubt(store, pipeline, found.number) if found is not None else None
    try:
        proven, delivered = last_proven(store, pipeline, plan.name), store.last_delivered(pipeline, plan.name)
        row = store.pipeline(pipeline)
    except KeyError:
        proven, delivered, epoch = 0, 0, 0
    else:
        epoch = row.epoch
        if found is not None and row.former is not None and found.number == row.former.number:
            proven = delivered = found.number  # by the pipeline that this one replaces
    remembers = plan.keeps_markers and not isinstance(sink, Expiring)
    lags = remembers and (0 if found is None else found.number) < proven
    if lags:  # unless a run has delivered since
        again = exam.attempt("memory", lambda: [sink.head(pipeline)])
        lags = again is None or again[0] == found
    sink.close()
    if found is not None and found.lost:
        exam.problem(
            "memory",
            f"its fence is gone, or older than its marker of checkpoint {found.number}",
            "Restore the fence (in databases, the row of airflow_ft_head). If that is impossible, run the pipeline,"
            f" which halts it, and then `airflow ft adopt {pipeline}`.",
        )
    elif lags and (found is None or found.installation == store.installation):
        has = "has no marker" if found is None else f"has delivered checkpoint {found.number} last"
        exam.problem(
            "memory",
            f"it {has}, but the decision log has checkpoint {proven} as delivered: the sink was restored from a"
            " backup, or its ledger was deleted",
            "Restore the newer state of the sink. If that is impossible, compare the rows (`airflow ft verify"
            f" {pipeline}`). The next run halts the pipeline; `airflow ft adopt {pipeline}` then takes the sink as it"
            " is.",
        )
    elif found is None and proven:
        exam.warn(
            "memory",
            f"it has no marker, although the decision log has checkpoint {proven} as delivered",
            "Do nothing if no checkpoint is open: the next run renews an expired token. Otherwise restore the ledger.",
        )
    elif found is None:
        exam.ok("memory", "it has no marker of the pipeline")
    elif found.installation != store.installation:
        exam.problem(
            "memory",
            f"it belongs to the decision log {found.installation}, but this decision log is {store.installation}",
            f"Bring the right decision log back. Run `airflow ft adopt {pipeline}` only if that one is gone for good.",
        )
    elif found.epoch <= epoch and found.number > delivered and state is not None:
        exam.warn(
            "memory",
            f"its newest checkpoint is {found.number}, which is {state} in the decision log and not proven yet",
            "Do nothing while a run is active. Otherwise the next run settles it: see"
            f" `airflow ft in-doubt --pipeline {pipeline}`.",
        )
    elif found.epoch > epoch or found.number > delivered:
        exam.problem(
            "memory",
            f"its newest checkpoint is {found.number} (epoch {found.epoch}), and that of the decision log is"
            f" {delivered} (epoch {epoch}): the log was restored from a backup, or is another one",
            "Bring the newer decision log back. If it is gone for good, run the pipeline, which halts it, and then"
            f" `airflow ft adopt {pipeline}`.",
        )
    else:
        exam.ok("memory", f"its newest checkpoint is {found.number}, epoch {found.epoch}")
    return exam.checks


def _doubt(store: QueryLog, pipeline: str, number: int) -> CheckpointState | None:
    """The state of a checkpoint that a sink may have delivered before the log knows of it; None: it is no such one."""
    try:
        state = store.checkpoint(pipeline, number).state
    except KeyError:
        return None
    return state if state in IN_DOUBT else None


def _by_hand(exam: Examination, pipeline: str, name: str, sink: Participant, store: QueryLog) -> None:
    """Check whether prepared rows were committed before the decision."""
    try:
        opened = store.open_checkpoints(pipeline)
    except KeyError:
        return
    for checkpoint in opened:
        plan = checkpoint.plan
        if plan is None or all(p.name != name or not may_be_heuristic(checkpoint, p) for p in plan.participants):
            continue
        found = exam.attempt("prepared rows", lambda plan=plan: sink.heuristic(plan))  # type: ignore[misc]
        if found and may_be_heuristic(store.checkpoint(pipeline, checkpoint.number), plan.participant(name)):
            exam.problem(
                "prepared rows",
                f"checkpoint {checkpoint.number}: {found}",
                f"Run `airflow ft in-doubt --pipeline {pipeline}`: it shows how to settle it.",
            )
