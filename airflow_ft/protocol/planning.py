"""Planning: who carries the commit point, in which order participants commit, which numbers are delivered together.

Pure functions over values; the coordinator stores what they return.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from airflow_ft.protocol.errors import ConfigurationError
from airflow_ft.protocol.formats import member
from airflow_ft.protocol.model import (
    AfterAbort,
    Checkpoint,
    CheckpointingMode,
    CheckpointState,
    ParticipantPlan,
    Plan,
    Promise,
    Segment,
)
from airflow_ft.protocol.numbers import count_text
from airflow_ft.protocol.position import SOURCE
from airflow_ft.protocol.reasons import Reason, reason_of
from airflow_ft.protocol.sink_spec import LimitedSinkSpec, SinkSpec, UnconnectedSinkSpec


@dataclass(frozen=True, slots=True)
class Delivery:
    """The DAG's declaration: participants in commit order, the carrier of the commit point, and the reasons."""

    participants: tuple[ParticipantPlan, ...]
    commit_point: str | None
    reasons: tuple[str, ...]
    mode: CheckpointingMode = CheckpointingMode.EXACTLY_ONCE
    most_rows: int | None = None
    """The most rows that its sinks take at once; None: any number."""

    @property
    def names(self) -> tuple[str, ...]:
        """The participants' names in commit order."""
        return tuple(participant.name for participant in self.participants)

    def at_once(self, max_rows: int) -> int:
        """Return how many rows several checkpoints may have together, if the pipeline permits `max_rows`."""
        return max_rows if self.most_rows is None else min(max_rows, self.most_rows)

    def matches(self, plan: Plan) -> bool:
        """Return whether a stored plan delivers into the same sinks in the same way.

        The order of a participant's sinks does not count: a plan that it makes fail is declined, and made again.
        """

        def essence(participants: Iterable[ParticipantPlan]) -> list[ParticipantPlan]:
            return [replace(participant, predecessor=0, former=None) for participant in participants]

        same = (plan.commit_point, plan.mode) == (self.commit_point, self.mode)
        return same and essence(plan.participants) == essence(self.participants)


def participant_name(sink: SinkSpec) -> str:
    """The participant that a sink belongs to: its connection's id, or, where it needs none, the name it has itself."""
    return sink.conn_id or cast(UnconnectedSinkSpec, sink).participant


def plan_delivery(
    sinks: Mapping[str, SinkSpec],
    commit_point: str | None = None,
    mode: CheckpointingMode = CheckpointingMode.EXACTLY_ONCE,
) -> Delivery:
    """Group sinks into participants, and choose the carrier of the commit point and the order of commits.

    `commit_point` is the connection id of the ATOMIC participant that carries it; by default the first declared one.

    Raises:
        ConfigurationError: the declaration cannot work.
    """
    if not sinks:
        raise ConfigurationError(
            "the pipeline has no sinks.",
            code="argument_missing",
            remedy="Declare at least one: sinks={name: Sink(...)}.",
            argument="sinks",
        )
    grouped: dict[str, list[tuple[str, SinkSpec]]] = {}
    for name, sink in sinks.items():
        grouped.setdefault(participant_name(sink), []).append((name, sink))
    participants = []
    for participant, members in grouped.items():
        first = members[0][1]
        for name, sink in members[1:]:
            if not (first.conn_id and sink.conn_id):
                raise ConfigurationError(
                    f"sinks {members[0][0]!r} and {name!r} have the same name {participant!r}, and a sink without a"
                    " connection needs a name of its own.",
                    code="name_taken",
                    remedy="Set another name= on a sink that has no connection.",
                    name=participant,
                    sinks=[members[0][0], name],
                )
            if (sink.kind, sink.strategy) != (first.kind, first.strategy):
                raise ConfigurationError(
                    f"sinks {members[0][0]!r} ({first.kind} {first.strategy!r}) and {name!r} ({sink.kind}"
                    f" {sink.strategy!r}) share the connection {participant!r}. Sinks of one connection need the same"
                    " kind and strategy.",
                    code="connection_shared",
                    remedy="Use the same strategy for both, or create a second connection.",
                    conn_id=participant,
                    sinks=[members[0][0], name],
                )
        participants.append(
            ParticipantPlan(
                name=participant,
                kind=first.kind,
                strategy=first.strategy,
                promise=first.promise if mode.waits else first.at_least_once(),
                predecessor=0,
                sinks={name: dict(sink.settings()) for name, sink in members},
            )
        )
    limits = [each.most_rows for each in sinks.values() if isinstance(each, LimitedSinkSpec)]
    most_rows = min((limit for limit in limits if limit is not None), default=None)
    if not mode.waits:
        return replace(_at_least_once(participants, commit_point), most_rows=most_rows)
    carrier, why = _carrier(participants, commit_point)
    order = {Promise.ATOMIC: 0, Promise.TWO_PHASE: 1, Promise.REDO: 2, Promise.IDEMPOTENT: 3}
    participants.sort(key=lambda p: (p.name != carrier, order[p.promise]))  # stable: else as declared
    return Delivery(tuple(participants), carrier, (why, *_roles(participants, carrier)), most_rows=most_rows)


def _at_least_once(participants: Sequence[ParticipantPlan], commit_point: str | None) -> Delivery:
    if commit_point is not None:
        raise ConfigurationError(
            f"commit_point is {commit_point!r}, but CheckpointingMode.AT_LEAST_ONCE has no commit point.",
            code="arguments_conflict",
            remedy="Leave out commit_point, or use CheckpointingMode.EXACTLY_ONCE.",
            arguments=["commit_point", "mode"],
        )
    reasons = ["A checkpoint is decided as soon as it is planned (AT_LEAST_ONCE). Each sink commits as soon as it can."]
    for participant in participants:
        if participant.promise is Promise.AT_LEAST_ONCE:
            reasons.append(
                f"{participant.name} keeps no marker: an interrupted delivery is repeated, so rows may arrive twice."
            )
        else:
            reasons.append(
                f"{participant.name} ({participant.strategy}) is repeated under its marker, so rows arrive once."
            )
    return Delivery(tuple(participants), None, tuple(reasons), CheckpointingMode.AT_LEAST_ONCE)


def _carrier(participants: Sequence[ParticipantPlan], wanted: str | None) -> tuple[str | None, str]:
    atomic = [p.name for p in participants if p.promise is Promise.ATOMIC]
    if wanted is not None:
        if wanted not in atomic:
            raise ConfigurationError(
                f"commit_point is {wanted!r}, which is not the connection of an ATOMIC sink of this pipeline.",
                code="argument_invalid",
                remedy=f"Give one of {', '.join(atomic)}."
                if atomic
                else "Leave out commit_point: the decision log decides.",
                argument="commit_point",
                value=repr(wanted),
            )
        return wanted, f"{wanted} carries the commit point, as commit_point says."
    if not atomic:
        return None, "The decision log is the commit point: no participant commits in one local transaction."
    text = f"{atomic[0]} carries the commit point: one local transaction has marker and rows, and may still refuse"
    return atomic[0], text + (" (the first of several)." if len(atomic) > 1 else ".")


def _roles(participants: Sequence[ParticipantPlan], carrier: str | None) -> Iterable[str]:
    for participant in participants:
        if participant.promise is Promise.TWO_PHASE:
            yield f"{participant.name} ({participant.strategy}) is prepared, invisibly, before the decision."
        elif participant.name != carrier:
            yield f"{participant.name} ({participant.strategy}) follows: repeated under its marker until it succeeds."


def live_plans(checkpoints: Iterable[Checkpoint]) -> list[Checkpoint]:
    """Numbers with a plan that is neither delivered nor aborted, ascending."""
    live = {CheckpointState.STAGED, CheckpointState.PREPARED, CheckpointState.COMMITTING}
    return sorted((c for c in checkpoints if c.plan is not None and c.state in live), key=lambda c: c.number)


def quarantined(checkpoints: Iterable[Checkpoint]) -> list[Checkpoint]:
    """Numbers that are kept for a person; they hold their segments, and nothing later is delivered."""
    return [c for c in checkpoints if c.state is CheckpointState.QUARANTINED]


def free_segments(checkpoints: Iterable[Checkpoint]) -> list[Segment]:
    """Published, undelivered segments that no live plan holds: staged, carried, or left by an aborted successor."""
    checkpoints = list(checkpoints)
    holders = [*live_plans(checkpoints), *quarantined(checkpoints)]
    taken = {segment.number for c in holders if c.plan for segment in c.plan.segments}
    free = [c.segment for c in checkpoints if c.is_undelivered and c.segment and c.number not in taken]
    return sorted(free, key=lambda segment: segment.number)


def unplanned(checkpoints: Iterable[Checkpoint]) -> list[Checkpoint]:
    """STAGED numbers without a plan, ascending: each may become the number that delivers a group."""
    return sorted(
        (c for c in checkpoints if c.state is CheckpointState.STAGED and c.plan is None), key=lambda c: c.number
    )


def stranded(checkpoints: Iterable[Checkpoint]) -> list[Segment]:
    """Free segments that no STAGED number follows: a number of carried segments alone must deliver them."""
    checkpoints = list(checkpoints)
    newest = max((c.number for c in unplanned(checkpoints)), default=0)
    return [segment for segment in free_segments(checkpoints) if segment.number > newest]


@dataclass(frozen=True, slots=True)
class Group:
    """Segments that one number delivers, in order."""

    number: int
    segments: tuple[Segment, ...]


def group(checkpoints: Iterable[Checkpoint], max_rows: int) -> list[Group]:
    """Divides what is free among the unplanned STAGED numbers: consecutive ones together up to `max_rows` rows.

    Positions of a program get a plan each, so that a refusal concerns one of them.
    """
    checkpoints = list(checkpoints)
    if any(SOURCE in checkpoint.positions for checkpoint in checkpoints):
        max_rows = 0
    free = deque(free_segments(checkpoints))
    groups: list[Group] = []
    pending: list[Segment] = []
    owner = waiting = 0  # rows that are pending
    for checkpoint in unplanned(checkpoints):
        segments = []
        while free and free[0].number <= checkpoint.number:
            segments.append(free.popleft())
        rows = sum(s.total_rows for s in segments)
        if owner and (max_rows == 0 or waiting + rows > max_rows):
            groups.append(Group(owner, tuple(pending)))
            pending, waiting = [], 0
        pending += segments
        waiting += rows
        owner = checkpoint.number
    if owner:
        groups.append(Group(owner, tuple(pending)))
    return groups


def idle_carriers(checkpoints: Iterable[Checkpoint], groups: Iterable[Group]) -> list[int]:
    """Unplanned numbers without rows of their own, whose carried rows other numbers deliver (`groups`)."""
    owners = {each.number for each in groups}
    return [c.number for c in unplanned(checkpoints) if c.segment is None and c.number not in owners]


def check_sinks_of_segments(pipeline: str, delivery: Delivery, segments: Iterable[Segment]) -> None:
    """Staged rows of a sink that the DAG no longer declares would be lost: ConfigurationError (I10)."""
    declared = {name for participant in delivery.participants for name in participant.sinks}
    for segment in segments:
        for sink, rows in segment.rows.items():
            if rows and sink not in declared:
                raise ConfigurationError(
                    f"it has {count_text(rows, 'staged row')} for a sink that the pipeline no longer declares.",
                    code="sink_undeclared",
                    remedy="Declare the sink again until the rows are delivered. Or run `airflow ft rewind"
                    f" {pipeline}`: the next run computes them again.",
                    rows=rows,
                    pipeline=pipeline,
                    checkpoint=segment.number,
                    sink=sink,
                )


def wants_vote(checkpoint: Checkpoint, participant: str) -> bool:
    """STAGED; or PREPARED, and a later attempt that got lost has taken the vote back (`DeliveryLog.begin_attempt`)."""
    vote = checkpoint.votes.get(participant)
    taken_back = vote is not None and vote.prepared == 0
    return checkpoint.state is CheckpointState.STAGED or (checkpoint.state is CheckpointState.PREPARED and taken_back)


def may_be_heuristic(checkpoint: Checkpoint, participant: ParticipantPlan) -> bool:
    """Return whether the participant may hold undecided prepared rows: if those are committed, a person did it.

    After asking the sink, read the checkpoint again: it may be decided meanwhile.
    """
    undecided = checkpoint.decided_at is None and checkpoint.state is not CheckpointState.SUBSUMED
    settled = checkpoint.state is CheckpointState.ABORTED and not checkpoint.rollback_pending
    asked = participant.promise is Promise.TWO_PHASE and participant.name in checkpoint.votes
    return asked and undecided and not settled


def is_half_prepared(checkpoint: Checkpoint) -> bool:
    """Return whether it is STAGED, and a TWO_PHASE participant may hold prepared rows of it, which keep locks."""
    asked = [p for p in checkpoint.participants if p.name in checkpoint.votes]
    return checkpoint.state is CheckpointState.STAGED and any(p.promise is Promise.TWO_PHASE for p in asked)


def not_rolled_back(checkpoint: Checkpoint) -> list[ParticipantPlan]:
    """Return the TWO_PHASE participants that may still hold prepared rows of an ABORTED number, in commit order."""
    holding = {name for name, vote in checkpoint.votes.items() if not vote.rolled_back}
    return [p for p in checkpoint.participants if p.promise is Promise.TWO_PHASE and p.name in holding]


def is_proven(checkpoint: Checkpoint, participant: str) -> bool:
    """The participant has no part in the checkpoint's plan, or is proven to have delivered it."""
    concerned = any(each.name == participant for each in checkpoint.participants)
    return not concerned or checkpoint.proof_of(participant) is not None


def tombstone_detail(reason: Reason, message: str, after: AfterAbort) -> dict[str, Any]:
    """Return the content of a tombstone, from which any process can finish the abort."""
    return {"reason": reason.value, "message": message, "after": after.value}


def read_tombstone(detail: Mapping[str, Any]) -> tuple[Reason, str, AfterAbort]:
    """The inverse of `tombstone_detail`. NewerReleaseError for rows that go where this release knows nothing of."""
    after = member(AfterAbort, detail["after"], "what becomes of the rows of a tombstone")
    return reason_of(detail["reason"]), str(detail["message"]), after
