"""Unsettled checkpoints, and each sink's answer about them: nothing stays silently in doubt.

Only reads, the decision log and the sinks; never an epoch, so it may run beside anything. What it finds is of this
moment: that a marker is *absent* proves nothing while a transaction may still be open (I6).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from airflow_ft.protocol.decision_log import QueryLog
from airflow_ft.protocol.errors import (
    AbortedHeuristicCommitError,
    AirflowFtError,
    HaltError,
    NewerReleaseError,
    StoreCorruptError,
)
from airflow_ft.protocol.explaining import is_refused, refuses_rows, waiting_for
from airflow_ft.protocol.failure import Halt
from airflow_ft.protocol.model import Checkpoint, CheckpointState, Plan
from airflow_ft.protocol.numbers import count_text
from airflow_ft.protocol.participant import Participant, ParticipantFactory
from airflow_ft.protocol.pipelines import HaltReason
from airflow_ft.protocol.planning import is_half_prepared, may_be_heuristic
from airflow_ft.protocol.set_aside import of_proof
from airflow_ft.protocol.transitions import MAY_BE_VISIBLE
from airflow_ft.protocol.votes import Outcome, SinkHead

THREADS = 8


class Finding(StrEnum):
    """State of a number according to the sink itself."""

    DELIVERED = "delivered"
    REFUSED = "refused"  # the sink holds its abort marker
    ABSENT = "absent"  # nothing is there now, and everything before it is
    WAITING = "waiting"  # something before it is not there yet
    HEURISTIC = "heuristic"  # prepared rows were committed by hand before a decision
    CONTRADICTION = "contradiction"  # the sink and the decision log have different histories
    UNKNOWN = "unknown"  # it cannot be read


@dataclass(frozen=True, slots=True)
class Evidence:
    """A finding, and how it is known."""

    finding: Finding
    text: str


@dataclass(frozen=True, slots=True)
class Doubt:
    """One unsettled thing: a number in one participant, or (number 0) a whole pipeline that is HALTED.

    `age` is how long it has been in this state, by the store's clock. `last_error` is the error of the participant's
    newest attempt, `last_error_code` its stable code; "": no known error. Of a halt `evidence` and `advice` are message
    and remedy of the error, and `last_error_code` is its code.
    """

    pipeline: str
    number: int
    participant: str
    state: str
    age: timedelta
    evidence: Evidence
    advice: str
    last_error: str = ""
    last_error_code: str = ""


def unsettled(checkpoints: Iterable[Checkpoint]) -> list[Checkpoint]:
    """Numbers of which a sink may hold something that is not proven yet, or prepared rows, which keep locks."""
    return [c for c in checkpoints if c.state in MAY_BE_VISIBLE or c.rollback_pending or is_half_prepared(c)]


def doubts(
    store: QueryLog, pipelines: Sequence[str], participants: ParticipantFactory, resting: Collection[str] = ()
) -> list[Doubt]:
    """Everything unsettled in these pipelines, in their order, then by number and in the plan's order.

    `resting`: those without a next run, because they are retired or their DAG is paused or deleted. Participants are
    asked side by side; one that does not answer is asked once. Raises what the store raises: without the decision log
    nothing is known.
    """
    found: list[Doubt | tuple[Checkpoint, str]] = []
    halts: dict[str, Halt] = {}
    for name in pipelines:
        try:
            row = store.pipeline(name)
            if row.halt is not None:
                halts[name] = row.halt
                found.append(_halted(store, name, row.halt))
            opened = store.open_checkpoints(name)
        except (NewerReleaseError, StoreCorruptError) as error:  # report those of the others anyway
            unknown = Evidence(Finding.UNKNOWN, error.what)
            found.append(Doubt(name, error.checkpoint, "", "not known", timedelta(0), unknown, error.remedy))
            continue
        for checkpoint in unsettled(opened):
            done = {name for name, vote in checkpoint.votes.items() if vote.rolled_back}
            found += [(checkpoint, p.name) for p in checkpoint.participants if p.name not in done]
    questions: dict[tuple[str, str], list[Checkpoint]] = {}
    for each in found:
        if isinstance(each, tuple):
            questions.setdefault((each[0].pipeline, each[1]), []).append(each[0])
    with ThreadPoolExecutor(THREADS, thread_name_prefix="airflow-ft-doubt") as pool:
        asked = pool.map(lambda item: _ask(item[0][1], item[1], participants), questions.items())
        answers = dict(zip(questions, asked, strict=True))
    for (name, _), found_there in answers.items():
        for number, evidence in found_there.items():
            if evidence.finding is Finding.HEURISTIC and store.checkpoint(name, number).decided_at is not None:
                found_there[number] = Evidence(Finding.ABSENT, "it was decided just now and is being delivered")
    now = store.now()
    return [
        each
        if isinstance(each, Doubt)
        else _doubt(*each, answers, now, halts.get(each[0].pipeline), rests=each[0].pipeline in resting)
        for each in found
    ]


def _halted(store: QueryLog, pipeline: str, halt: Halt) -> Doubt:
    events = store.events(pipeline, 0)
    now = store.now()
    age = max(timedelta(0), now - next((event.at for event in events if event.kind == "HALTED"), now))
    evidence, state = Evidence(Finding.CONTRADICTION, halt.message), f"HALTED ({halt.reason})"
    return Doubt(pipeline, 0, "", state, age, evidence, halt.remedy, last_error_code=halt.code)


def _doubt(
    checkpoint: Checkpoint,
    name: str,
    answers: dict[tuple[str, str], dict[int, Evidence]],
    now: datetime,
    halt: Halt | None,
    *,
    rests: bool,
) -> Doubt:
    age = max(timedelta(0), now - checkpoint.in_doubt_since)  # the log's clock may have been ahead
    state = checkpoint.state.value + (", rollback pending" if checkpoint.rollback_pending else "")
    evidence = answers[checkpoint.pipeline, name][checkpoint.number]
    deciding = checkpoint.plan.commit_point if checkpoint.plan else None
    decided = answers[checkpoint.pipeline, deciding][checkpoint.number] if deciding else evidence
    aborted = decided.finding is Finding.REFUSED
    if halt is not None and evidence.finding is not Finding.HEURISTIC:
        advice = _advice_of_halted(checkpoint, halt)
    else:
        advice = _advice(checkpoint, evidence, aborted=aborted, rests=rests, halted=halt is not None)
    problem = checkpoint.problem_of(name)
    error, code = (problem.text, problem.code) if problem is not None else ("", "")
    return Doubt(checkpoint.pipeline, checkpoint.number, name, state, age, evidence, advice, error, code)


def _advice_of_halted(checkpoint: Checkpoint, halt: Halt) -> str:
    """Nothing is delivered before the halt has ended. Two of its reasons are ended by an action on the checkpoint."""
    ways = [f"`airflow ft resume {checkpoint.pipeline}`"]
    if halt.reason in (HaltReason.STORE_BEHIND_SINK, HaltReason.FOREIGN_OWNER):
        ways.append(f"`airflow ft adopt {checkpoint.pipeline}` if that is impossible")
    if halt.reason == HaltReason.TOKEN_LOST and checkpoint.decided_at is not None:
        ways.append("--redeliver if the sink has none of its rows")
    if halt.reason == HaltReason.HEURISTIC_COMMIT and halt.code != AbortedHeuristicCommitError.code:
        ways.append("--commit")
    return f"nothing is delivered while the pipeline is HALTED: remove the cause, then {', or '.join(ways)}"


def _advice(checkpoint: Checkpoint, evidence: Evidence, *, aborted: bool, rests: bool, halted: bool) -> str:
    """`aborted`: the deciding sink holds the abort marker. `rests`: no run follows."""
    cause = f"{checkpoint.message.rstrip('.')}."
    delivering = "no run follows: --commit" if rests else "the next retry or run, or --commit,"
    recovering = "no run follows: `airflow ft recover`" if rests else "the next run, or `airflow ft recover`,"
    if evidence.finding is Finding.CONTRADICTION:
        return "find out whether sink or log is right before anything else"
    if evidence.finding is Finding.HEURISTIC and (aborted or checkpoint.state is CheckpointState.ABORTED):
        return "delete the visible rows as described, then run `airflow ft resume`"
    if evidence.finding is Finding.HEURISTIC:
        then = "run `airflow ft resume`" if halted else "--abort"  # only an ACTIVE pipeline gives --abort its epoch
        return f"--commit delivers the rest; or delete the visible rows as described, then {then}"
    match checkpoint.state:
        case CheckpointState.QUARANTINED if checkpoint.decided_at is not None:
            advice = f"{cause} It is decided, so it can only be delivered: remove the cause, then --commit"
            return f"{advice}, or --dead-letter to leave out the refused rows" if refuses_rows(checkpoint) else advice
        case CheckpointState.QUARANTINED:
            return f"{cause} It is not decided: --commit delivers it, --abort gives it up"
        case CheckpointState.COMMITTING:
            if evidence.finding is Finding.DELIVERED:
                who = "no run follows: --commit" if rests else "do nothing: the next retry or run"
                return f"{who} records it"
            problems = [problem for problem in waiting_for(checkpoint).values() if problem is not None]
            if not problems:
                return f"{delivering} delivers it"
            if not any(is_refused(problem) for problem in problems):
                return f"{delivering} delivers it when its sinks answer"
            aside = " (--dead-letter without the refused rows)" if refuses_rows(checkpoint) else ""
            return f"remove the cause of last_error; then {delivering} delivers it{aside}"
        case CheckpointState.PREPARED:
            return f"{delivering} delivers it; --abort gives it up"
        case CheckpointState.STAGED:
            return f"prepared rows may hold locks: {recovering} delivers it; --abort gives it up"
        case _:
            gone = (
                "; --give-up with --sink stops asking, if the sink is gone"
                if evidence.finding is Finding.UNKNOWN
                else ""
            )
            return f"{recovering} rolls back the prepared rows{gone}"


# --- asking a sink -----------------------------------------------------------------------------------------------


def _ask(name: str, checkpoints: Sequence[Checkpoint], participants: ParticipantFactory) -> dict[int, Evidence]:
    """One participant's evidence by number."""
    answers: dict[int, Evidence] = {}
    silent: Evidence | None = None
    for checkpoint in checkpoints:
        plan = checkpoint.plan
        assert plan is not None  # `doubts` asks planned numbers only
        if (proof := checkpoint.proof_of(name)) is not None:
            text = f"committed by epoch {proof.epoch}, as recorded in the decision log"
            answers[checkpoint.number] = Evidence(Finding.DELIVERED, text)
        elif silent is not None:
            answers[checkpoint.number] = silent
        else:
            undecided = may_be_heuristic(checkpoint, plan.participant(name))
            answers[checkpoint.number] = evidence = read_evidence(plan, name, participants, undecided=undecided)
            silent = evidence if evidence.finding is Finding.UNKNOWN else None
    return answers


def read_evidence(plan: Plan, name: str, participants: ParticipantFactory, *, undecided: bool = False) -> Evidence:
    """Return the evidence of a planned number from a participant's marker, token and head. Sink errors become
    evidence.

    `undecided`: the number has no decision, so committed rows there were committed by hand.
    """
    try:
        with closing(participants(plan.participant(name))) as sink:
            if undecided and (text := sink.heuristic(plan)):
                return Evidence(Finding.HEURISTIC, text)
            return _read(plan, name, sink)
    except HaltError as error:
        return Evidence(Finding.CONTRADICTION, f"{error.reason}: {error.what}")
    except AirflowFtError as error:  # its server may answer, but refuse a login or lack replicas
        return Evidence(Finding.UNKNOWN, f"not known, the sink cannot be read: {error.what}")


def _read(plan: Plan, name: str, sink: Participant) -> Evidence:
    # The marker goes before the head: a number that is delivered in between shows in the head only.
    proof = sink.proof(plan)
    if proof is not None and proof.digest != plan.digest:
        text = f"its marker has other rows under this number (epoch {proof.epoch}): was the log restored?"
        return Evidence(Finding.CONTRADICTION, text)
    if proof is not None and proof.outcome is Outcome.COMMITTED:
        counts = ", ".join(f"{count_text(count, 'row')} into {sink_name}" for sink_name, count in proof.counts.items())
        aside = "".join(f"; {each.text(sink_name)}" for sink_name, each in of_proof(proof).items())
        return Evidence(Finding.DELIVERED, f"marker: committed by epoch {proof.epoch} ({counts or 'no rows'}{aside})")
    if proof is not None:
        return Evidence(
            Finding.REFUSED, f"abort marker of epoch {proof.epoch}: {proof.detail.get('message', 'no reason given')}"
        )
    if not plan.participant(name).keeps_markers:
        return Evidence(Finding.ABSENT, "it keeps no markers (AT_LEAST_ONCE): all rows are sent, perhaps a second time")
    return _without_marker(plan, name, sink.head(plan.pipeline))


def _without_marker(plan: Plan, name: str, head: SinkHead | None) -> Evidence:
    planned = plan.participant(name)
    predecessor = planned.predecessor
    if head is None:
        if predecessor:
            text = f"it has lost its markers of the pipeline: it had delivered checkpoint {predecessor}"
            return Evidence(Finding.CONTRADICTION, text)
        return Evidence(Finding.ABSENT, "it has no marker of the pipeline, so nothing is delivered yet")
    if head.lost:
        text = f"its fence is gone, or older than its marker of checkpoint {head.number}"
        return Evidence(Finding.CONTRADICTION, text)
    if head.installation != plan.installation:
        return Evidence(Finding.CONTRADICTION, f"it belongs to the decision log {head.installation}")
    if planned.former is not None and head.number == planned.former.number:
        predecessor = head.number  # of the pipeline that this one replaces
    has = f"its newest checkpoint is {head.number}" if head.number else "it has delivered nothing"
    newest = f"{has} (epoch {head.epoch})"
    if head.number == predecessor and predecessor < plan.number:
        return Evidence(Finding.ABSENT, f"{newest}, so this one is not delivered yet")
    if head.number < predecessor:
        return Evidence(Finding.WAITING, f"{newest}, and checkpoint {predecessor} comes first")
    text = f"{newest}, which is newer than the decision log knows, and it has no marker of this one"
    return Evidence(Finding.CONTRADICTION, text)
