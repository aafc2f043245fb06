"""Taking a pipeline over from another installation, on a person's word (`airflow ft adopt`).

After a decision log was lost, the sinks still remember the old installation and refuse the new one (FOREIGN_OWNER), so
that nothing is doubled in silence. Adoption accepts what the sinks hold as delivered and goes on above it. It may be
repeated: dying between any two steps leaves the pipeline HALTED, and the next call begins again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass

from airflow_ft.core.errors import ConfigurationError, StateConflictError, require_understood
from airflow_ft.core.model import Fence, HaltReason, ParticipantPlan, Pipeline, PipelineStatus, SinkHead
from airflow_ft.core.ports import ParticipantFactory, Store
from airflow_ft.core.remnants import PreparedEnding, Remnant, RemnantKind, partly_there
from airflow_ft.core.transitions import MAY_BE_VISIBLE


@dataclass(frozen=True, slots=True)
class Adoption:
    """What the sinks remembered (None: nothing), and the epoch that owns them now."""

    heads: Mapping[str, SinkHead | None]
    epoch: int

    @property
    def uneven(self) -> bool:
        """The sinks stood at different numbers: the lost log had a checkpoint under way, which some sinks lack."""
        return len({head.number if head else 0 for head in self.heads.values()}) > 1


def participants_of(store: Store, pipeline: str) -> Mapping[str, ParticipantPlan]:
    """The participants that the newest planned checkpoint names: those that the halted pipeline delivers into."""
    for checkpoint in store.checkpoints(pipeline):
        if checkpoint.plan is not None:
            return {participant.name: participant for participant in checkpoint.plan.participants}
    raise ConfigurationError(
        "no checkpoint of it was planned yet, so its sinks are not known.",
        remedy="run the DAG once: it stops at the foreign sink and halts the pipeline; then adopt.",
        pipeline=pipeline,
    )


@dataclass(frozen=True, slots=True)
class Estate:
    """What a sink holds of the pipeline: its head (None: it remembers nothing), and what former owners left undone."""

    head: SinkHead | None
    remnants: Sequence[Remnant]

    @property
    def number(self) -> int:
        """The highest number that this log must not give out again: delivered, in parts, or given up in the sink."""
        return max([self.head.number if self.head else 0, *(remnant.number for remnant in self.remnants)])


def look(store: Store, pipeline: str, participants: ParticipantFactory) -> Mapping[str, Estate]:
    """Return what each sink remembers of the pipeline, and what would have to be ended. Only reads."""
    found = {}
    for name, plan in participants_of(store, pipeline).items():
        with closing(participants(plan)) as sink:
            # The head goes first: a number that is delivered between the two readings makes `seed` refuse.
            found[name] = Estate(sink.head(pipeline), tuple(sink.remnants(pipeline, store.installation)))
    return found


def adopt(
    store: Store,
    pipeline: str,
    participants: ParticipantFactory,
    who: str,
    *,
    ending: PreparedEnding | None = None,
    accept_partial: bool = False,
) -> Adoption:
    """Takes every sink of the pipeline over and resumes it; what is staged is delivered under new numbers.

    `ending` says what becomes of what the former owner has left prepared, `accept_partial` that numbers may stay of
    which a part is visible, or becomes visible, and the rest cannot be delivered from here. Neither has a default where
    it is needed.

    A number of this log that is PREPARED or COMMITTING keeps its place: the former owner's marks give way to it.

    Raises:
        ConfigurationError: a choice is lacking; nothing was changed.
        StateConflictError: the pipeline is not HALTED, or for what adopting does not mend; or the former owner is still
            at work.
    """
    plans = participants_of(store, pipeline)
    row = store.pipeline(pipeline)  # first: whoever else adopts, or delivers, while the sinks are looked at, moves it
    require_understood(row)
    found = look(store, pipeline, participants)
    if row.status is not PipelineStatus.HALTED:
        raise StateConflictError("it is not HALTED, so nothing has to be adopted.", pipeline=pipeline)
    if row.halt_reason is HaltReason.HEURISTIC_COMMIT:  # what is visible would be delivered again, under a new number
        raise StateConflictError(
            f"it is HALTED ({row.halt_reason}): no other decision log has done that.",
            remedy=f"`airflow ft in-doubt --pipeline {pipeline}` says what is visible, and how it is settled.",
            pipeline=pipeline,
        )
    _require_choices(pipeline, found, ending, accept_partial)
    heads = {name: estate.head for name, estate in found.items()}
    in_place = _keeps_its_numbers(store, row, heads)
    if in_place:
        epoch = row.epoch
        text = "; ".join(f"{name}: {r.number} {r.text}" for name, each in found.items() for r in each.remnants)
        who = f"{who}, who has let a former owner's marks give way ({text or 'none were left'})"
    else:
        newest = max((head.epoch for head in heads.values() if head), default=0)
        numbers = {name: estate.number for name, estate in found.items()}
        epoch = store.adopt(pipeline, newest, numbers, who, expected=row.epoch)
    fence = Fence(pipeline, store.installation, epoch, 0)
    for name, plan in plans.items():
        if heads[name] is None:  # a sink that remembers nothing begins like a new one
            continue
        with closing(participants(plan)) as sink:
            sink.end_remnants(fence, ending, make_way=in_place)
            if not in_place:
                sink.adopt(fence, found[name].number)
    store.resume(pipeline, who)
    return Adoption(heads, epoch)


def _require_choices(
    pipeline: str, found: Mapping[str, Estate], ending: PreparedEnding | None, accept_partial: bool
) -> None:
    for name, estate in found.items():
        prepared = sorted({r.number for r in estate.remnants if r.kind is RemnantKind.PREPARED})
        dropped = any(r.kind is RemnantKind.PREPARED and not r.commit for r in estate.remnants)
        if prepared and ending is None:
            raise ConfigurationError(
                f"the former owner has left prepared rows there{_of(prepared)}, which keep their locks.",
                remedy="--prepared commit makes them visible (right when another sink shows that checkpoint, or a part"
                " of it is visible here: then it was decided); --prepared rollback drops them (right when nothing of it"
                " is visible anywhere).",
                pipeline=pipeline,
                participant=name,
            )
        if dropped and ending is PreparedEnding.COMMIT and not accept_partial:
            raise ConfigurationError(
                f"what is prepared there can only be dropped{_of(prepared)}, whatever is said: what names it for a"
                " commit was in the lost decision log.",
                remedy="bring the lost log back; or say --accept-partial as well: then other sinks show that"
                " checkpoint, and this one never will.",
                pipeline=pipeline,
                participant=name,
            )
        partial = partly_there(estate.remnants, ending)
        if partial and not accept_partial:
            raise ConfigurationError(
                f"a part of it is visible there{_of(partial)}, and the rest cannot be delivered from here.",
                remedy="bring the lost log back to have it completed; or delete those rows by hand, or add the lacking"
                " ones from the old write-ahead log (copy it before a run sweeps it), and say --accept-partial: then it"
                " is gone past as it is.",
                pipeline=pipeline,
                participant=name,
            )
    for name, estate in found.items():
        numbers = {r.number for r in estate.remnants if r.kind is RemnantKind.PREPARED and r.number}
        unknown = sorted(number for number in numbers if not _was_decided(found, number))
        if unknown and ending is PreparedEnding.COMMIT and not accept_partial:
            raise ConfigurationError(
                f"no sink shows that it was decided{_of(unknown)}, so its owner may have died before all of it was"
                " prepared.",
                remedy="--prepared rollback drops what is prepared. If you know that it was decided, or have counted"
                " its rows, say --accept-partial as well: then what is prepared becomes visible.",
                pipeline=pipeline,
                participant=name,
            )


def _was_decided(found: Mapping[str, Estate], number: int) -> bool:
    """Return whether a sink shows it, or a part of it: then all votes were there, and all of it was prepared."""
    return any(
        (estate.head is not None and estate.head.number >= number)
        or any(r.number == number and r.kind is RemnantKind.COMMITTED for r in estate.remnants)
        for estate in found.values()
    )


def _of(numbers: Sequence[int]) -> str:
    known = [str(number) for number in numbers if number]
    return f" (checkpoint {', '.join(known)} of the lost log)" if known else ""


def _keeps_its_numbers(store: Store, row: Pipeline, heads: Mapping[str, SinkHead | None]) -> bool:
    """Return whether a number of this log may be visible already, so that it must be delivered under that number (I3).

    Then every sink has to be this log's: it was adopted before, and met what the former owner had left.
    """
    kept = [c for c in store.open_checkpoints(row.name) if c.state in MAY_BE_VISIBLE]
    strangers = [name for name, head in heads.items() if head is not None and head.installation != store.installation]
    if kept and strangers:
        raise StateConflictError(
            f"it is {kept[0].state} in this decision log, and {', '.join(strangers)} was taken over by another one"
            " since: two logs have delivered, and neither knows what the other did.",
            remedy="find out which log is right; with the other one's tasks stopped, compare the sinks first.",
            pipeline=row.name,
            checkpoint=kept[0].number,
        )
    if kept and row.halt_reason is not HaltReason.FOREIGN_OWNER:  # no former owner is in its way: nothing to adopt
        raise StateConflictError(
            f"it is {kept[0].state}, and may be visible already, so it cannot be given up.",
            remedy=f"settle it first: `airflow ft in-doubt --pipeline {row.name}` says what each sink holds, and how.",
            pipeline=row.name,
            checkpoint=kept[0].number,
        )
    return bool(kept)
