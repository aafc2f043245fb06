"""Adopt a pipeline from another decision log when a person asks for it (`airflow ft adopt`).

After a decision log was lost, the sinks still remember it and refuse the new one (FOREIGN_OWNER).
That prevents silent duplicates. Adoption accepts what the sinks hold as delivered and continues with higher numbers.
It is repeatable: if the process dies between two steps, the pipeline stays HALTED and the next call starts over. How
prepared rows end is written down before the first of them ends, and later calls must agree (`estate.require_choices`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass

from airflow_ft.protocol.decision_log import QueryLog
from airflow_ft.protocol.delivery_log import AdminLog
from airflow_ft.protocol.errors import (
    AirflowFtError,
    ConfigurationError,
    FencedError,
    StateConflictError,
    StoreBehindSinkError,
    require_understood,
)
from airflow_ft.protocol.estate import Estate, choice_of, require_choices
from airflow_ft.protocol.model import Checkpoint, Fence, ParticipantPlan
from airflow_ft.protocol.orphans import PreparedEnding
from airflow_ft.protocol.overview import Noted
from airflow_ft.protocol.participant import Expiring, ParticipantFactory
from airflow_ft.protocol.pipelines import HaltReason, Pipeline, PipelineStatus
from airflow_ft.protocol.planning import not_rolled_back
from airflow_ft.protocol.preparing import last_proven
from airflow_ft.protocol.transitions import MAY_BE_VISIBLE
from airflow_ft.protocol.votes import SinkHead

_FAILED = "FAILED"
"""Kind of the event of a failed run."""


@dataclass(frozen=True, slots=True)
class Adoption:
    """The head of each sink before the adoption (None: no memory of the pipeline), and the epoch that owns the sinks
    now. `forgetful`: sinks that had lost deliveries, or their markers. They continue with the next one.
    """

    heads: Mapping[str, SinkHead | None]
    epoch: int
    forgetful: tuple[str, ...] = ()

    @property
    def uneven(self) -> bool:
        """Return whether the sinks that lost nothing differ: only some of them hold a checkpoint of the lost log."""
        others = (head for name, head in self.heads.items() if name not in self.forgetful)
        return len({head.number if head else 0 for head in others}) > 1


def participants_of(store: QueryLog, pipeline: str) -> Mapping[str, ParticipantPlan]:
    """Return the sinks that the pipeline delivers into: those of the newest plan.

    While the pipeline is halted, they are those that the event of the halt names, since sinks may have been added and
    removed since the newest plan. If rows of an open checkpoint may be visible, the newest plan is used all the same.
    """
    halt = store.noted(pipeline, Noted.HALTED)
    named = halt.detail.get("participants", ()) if halt is not None else ()
    noted = {each["name"]: ParticipantPlan.from_json(each) for each in named}
    is_halted = store.pipeline(pipeline).status is PipelineStatus.HALTED
    if noted and is_halted and not any(c.state in MAY_BE_VISIBLE for c in store.open_checkpoints(pipeline)):
        return noted
    for checkpoint in store.checkpoints(pipeline):
        if checkpoint.plan is not None:
            return {participant.name: participant for participant in checkpoint.plan.participants}
    if noted:
        return noted
    first = f"Run `airflow ft resume {pipeline}`, then run" if is_halted else "Run"
    raise ConfigurationError(
        "no checkpoint was planned yet, so the sinks of the pipeline are not known.",
        code="sinks_unknown",
        remedy=f"{first} the DAG once. If a sink contradicts the decision log, the run halts the pipeline. Then run"
        f" `airflow ft adopt {pipeline}`.",
        pipeline=pipeline,
    )


def declared_sinks(store: QueryLog, pipeline: str) -> Mapping[str, ParticipantPlan]:
    """Return the sinks of the newest run if it failed without a DAG, else those of `participants_of`.

    A run that is refused before it publishes anything has no plan.
    """
    found = store.overview(pipeline)
    if found.failure is not None and found.halt is None:
        newest = next((event for event in store.events(pipeline) if event.kind == _FAILED), None)
        if newest is not None and (named := newest.detail.get("participants")):
            return {each["name"]: ParticipantPlan.from_json(each) for each in named}
    return participants_of(store, pipeline)


def require_adoptable(row: Pipeline) -> None:
    """StateConflictError unless the pipeline is HALTED for a reason that an adoption ends."""
    if row.status is not PipelineStatus.HALTED:
        renamed = row.status is PipelineStatus.RENAMED
        raise StateConflictError(
            f"the pipeline is {row.status}. Only a HALTED pipeline can be adopted.",
            code="action_refused",
            remedy="Use its new name."
            if renamed
            else "If its runs fail, follow the fix in the log of the task that failed. Otherwise do nothing.",
            pipeline=row.name,
            status=row.status.value,
        )
    if row.halt_reason is HaltReason.HEURISTIC_COMMIT:  # what is visible would be delivered again, under a new number
        raise StateConflictError(
            f"the pipeline is HALTED ({row.halt_reason}). Another decision log does not cause that.",
            code="action_refused",
            remedy=f"Run `airflow ft in-doubt --pipeline {row.name}`. It says what is visible and how to settle it.",
            pipeline=row.name,
            status=row.status.value,
            reason=str(row.halt_reason),
        )


def look(store: QueryLog, pipeline: str, participants: ParticipantFactory) -> Mapping[str, Estate]:
    """Return what each sink remembers of the pipeline, and what would have to be ended. Only reads."""
    found = {}
    for name, plan in participants_of(store, pipeline).items():
        with closing(participants(plan)) as sink:
            # The head goes first: a number that is delivered between the two readings makes `seed` refuse.
            found[name] = Estate(sink.head(pipeline), tuple(sink.orphans(pipeline, store.installation)))
    return found


def judge(
    store: QueryLog,
    row: Pipeline,
    found: Mapping[str, Estate],
    ending: PreparedEnding | None = None,
    accept_partial: bool = False,
) -> tuple[Mapping[str, int], bool]:
    """Return the sinks that have forgotten deliveries, each with the last number that it had, and whether numbers of
    this log keep their places. Only reads; raises what `adopt` raises before it changes anything.
    """
    require_adoptable(row)
    require_choices(store, row.name, found, ending, accept_partial)
    heads = {name: estate.head for name, estate in found.items()}
    kept = [c for c in store.open_checkpoints(row.name) if c.state in MAY_BE_VISIBLE]
    forgotten = _forgotten(row, kept, heads, store.installation)
    return forgotten, not forgotten and _keeps_its_numbers(store, row, kept, heads)


def adopt(
    store: AdminLog,
    pipeline: str,
    participants: ParticipantFactory,
    who: str,
    *,
    ending: PreparedEnding | None = None,
    accept_partial: bool = False,
) -> Adoption:
    """Take over every sink of the pipeline and resume it. Staged rows are delivered under new numbers.

    `ending` decides how the former owner's prepared rows end. `accept_partial` accepts numbers of which only a part is
    or becomes visible, because the rest cannot be delivered from here. The caller must choose both where they are
    needed.

    A number of this log that is PREPARED or COMMITTING keeps its place: the former owner's marks are removed. A sink
    that has forgotten earlier deliveries (an older backup, a lost ledger) remembers them again, without their rows.

    Raises:
        ConfigurationError: a choice is missing, or differs from that of an earlier adoption; nothing was changed.
        StateConflictError: the pipeline is not HALTED, or its reason needs another remedy, or the former owner is
            still active, or another adoption was faster.
        StoreBehindSinkError: a number keeps its place, but this log is older than a sink; nothing was changed.
        FencedError: the same, found at a sink.
    """
    plans = participants_of(store, pipeline)
    row = store.pipeline(pipeline)  # read first: another adoption or delivery meanwhile changes it
    require_understood(row)
    found = look(store, pipeline, participants)
    forgotten, in_place = judge(store, row, found, ending, accept_partial)
    heads = {name: estate.head for name, estate in found.items()}
    if forgotten:
        epoch = _remind(store, row, participants, who, plans, forgotten)
        behind = [name for name, number in forgotten.items() if (h := heads[name]) is None or h.number < number]
        return Adoption(heads, epoch, tuple(behind))
    if in_place:
        text = "; ".join(f"{name}: {r.number} {r.text}" for name, each in found.items() for r in each.orphans)
        who = f"{who}, who has let a former owner's marks give way ({text or 'none were left'})"
    behind = [] if in_place else [n for n, plan in plans.items() if _lacks_proven(store, pipeline, plan, heads[n])]
    newest = max((head.epoch for head in heads.values() if head), default=0)
    numbers = None if in_place else {name: estate.number for name, estate in found.items()}
    epoch = store.adopt(pipeline, newest, numbers, who, expected=row.epoch, choice=choice_of(found, ending))
    fence = Fence(pipeline, store.installation, epoch, 0)
    with _overtaken(pipeline):
        for name, plan in plans.items():
            if heads[name] is None:  # a sink that remembers nothing begins like a new one
                continue
            with closing(participants(plan)) as sink:
                sink.end_orphans(fence, ending, make_way=in_place)
                if not in_place:
                    sink.adopt(fence, found[name].number)
        _give_up_rollbacks(store, pipeline, participants, epoch, who)
    # A newer adoption may be done, and the pipeline HALTED once more, or for another reason.
    store.resume(pipeline, who, row.halt_reason, epoch=epoch)
    return Adoption(heads, epoch, tuple(behind))


def _lacks_proven(store: AdminLog, pipeline: str, plan: ParticipantPlan, head: SinkHead | None) -> bool:
    """Return whether the sink has lost deliveries of this log, or their markers; False if another log owns it."""
    if not plan.keeps_markers or (head is not None and head.installation != store.installation):
        return False
    return (head.number if head is not None else 0) < last_proven(store, pipeline, plan.name)


@contextmanager
def _overtaken(pipeline: str) -> Iterator[None]:
    """Say in a FencedError what a person does: the remedies of sinks are for tasks."""
    try:
        yield
    except FencedError as error:
        error.remedy = (
            f"Another adoption, or a run after it, is newer. Look at `airflow ft pipelines`. If {pipeline} is HALTED,"
            f" run `airflow ft adopt {pipeline}` again. Otherwise do nothing."
        )
        raise


def _give_up_rollbacks(store: AdminLog, pipeline: str, participants: ParticipantFactory, epoch: int, who: str) -> None:
    """Give up pending rollbacks in sinks that remember nothing: each run would halt at them again.

    A sink raises its head before it prepares anything, so what it held went with the head.
    """
    for checkpoint in store.open_checkpoints(pipeline):
        if not checkpoint.rollback_pending:
            continue
        for participant in not_rolled_back(checkpoint):
            try:
                with closing(participants(participant)) as sink:
                    head = sink.head(pipeline)
            except FencedError:
                raise
            except AirflowFtError:  # the next run names the way out
                continue
            if head is None:
                why = f"{who} adopted the pipeline, which the sink does not remember"
                store.record_rollback(pipeline, epoch, checkpoint.number, participant.name, why)


def _forgotten(
    row: Pipeline, kept: Sequence[Checkpoint], heads: Mapping[str, SinkHead | None], installation: str
) -> Mapping[str, int]:
    """Return the sinks whose heads are behind the number that must be delivered, with the last number that they had.

    Empty if nothing must be delivered under its number, or a sink belongs to another log, or is ahead of this one.
    """
    if row.halt_reason is not HaltReason.STORE_BEHIND_SINK or not kept or (plan := kept[0].plan) is None:
        return {}
    found = {}
    for participant in plan.participants:
        if participant.name not in heads:  # the newest plan has other sinks, and this one was not asked
            continue
        head, predecessor = heads[participant.name], participant.predecessor
        number = head.number if head is not None else 0
        if head is not None and head.installation != installation and not (head.lost and number <= predecessor):
            return {}
        if not participant.keeps_markers or kept[0].proof_of(participant.name) is not None:
            continue
        if number > kept[-1].number:
            return {}
        if head is None or head.lost or number < predecessor:
            found[participant.name] = max(number, predecessor)
    return found


def _remind(
    store: AdminLog,
    row: Pipeline,
    participants: ParticipantFactory,
    who: str,
    plans: Mapping[str, ParticipantPlan],
    forgotten: Mapping[str, int],
) -> int:
    """Let each sink remember the number that it had, under an epoch above its head. Returns that epoch.

    Repeatable after a death: a sink that is still behind halts the next run.
    """
    store.resume(row.name, who, HaltReason.STORE_BEHIND_SINK, epoch=row.epoch)
    epoch = row.epoch + 1  # for this reason `resume` raises it by one
    for name, number in forgotten.items():
        with closing(participants(plans[name])) as sink, _overtaken(row.name):
            if not isinstance(sink, Expiring):  # `--redeliver` seeds those
                sink.adopt(Fence(row.name, store.installation, epoch, 0), number)
    return epoch


def _keeps_its_numbers(
    store: QueryLog, row: Pipeline, kept: Sequence[Checkpoint], heads: Mapping[str, SinkHead | None]
) -> bool:
    """Return whether a number of this log may be visible already, so that it must be delivered under that number (I3).

    Then every sink has to be this log's: it was adopted before, and met what the former owner had left.
    """
    strangers = [name for name, head in heads.items() if head is not None and head.installation != store.installation]
    if kept and strangers:
        raise StateConflictError(
            f"it is {kept[0].state} in this decision log, but another log has taken over {', '.join(strangers)}. Both"
            " logs have delivered, and neither knows what the other did.",
            code="action_refused",
            remedy="Find out which log is right. Stop the tasks of the other one and compare the sinks first.",
            state=kept[0].state.value,
            participants=strangers,
            pipeline=row.name,
            checkpoint=kept[0].number,
        )
    if kept and row.halt_reason is not HaltReason.FOREIGN_OWNER:  # no former owner is in its way: nothing to adopt
        raise StateConflictError(
            f"it is {kept[0].state}. A sink may already show its rows, so it cannot be given up.",
            code="action_refused",
            remedy=f"Settle it first: `airflow ft in-doubt --pipeline {row.name}` shows what each sink has and how.",
            state=kept[0].state.value,
            pipeline=row.name,
            checkpoint=kept[0].number,
        )
    epoch = store.pipeline(row.name).epoch  # read after the heads: an adoption raises the log's epoch before theirs
    newer = [name for name, head in heads.items() if head is not None and not head.lost and head.epoch > epoch]
    if kept and newer:  # its later numbers are not known here, and would be given out again
        raise StoreBehindSinkError(
            f"the decision log has reached epoch {epoch}, and is older than {', '.join(newer)}. It was restored from a"
            " backup.",
            remedy=f"Bring back the newer decision log, then run `airflow ft resume {row.name}`.",
            participants=newer,
            pipeline=row.name,
            checkpoint=kept[0].number,
        )
    return bool(kept)
