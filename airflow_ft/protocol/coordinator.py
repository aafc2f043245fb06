"""One checkpoint, step by step: plan, prepare, decide, commit; `airflow_ft.protocol.settling` has its end.

Tasks, recovery and the command line all go through `Coordinator`. It works from the store and the stored plan alone:
no DAG, no job code. Each method reads the state first, does what is still missing and may be repeated for ever.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from datetime import timedelta

from airflow_ft.protocol.delivery_log import DeliveryLog
from airflow_ft.protocol.errors import (
    AirflowFtError,
    DeclinedError,
    SinkAccessError,
    SinkUnavailableError,
    StateConflictError,
    UnfitTargetError,
    WalCorruptError,
)
from airflow_ft.protocol.lease import LEASE_SECONDS, LeaseKeeper, Worker, new_epoch
from airflow_ft.protocol.model import (
    AfterAbort,
    Checkpoint,
    CheckpointState,
    ParticipantPlan,
    Plan,
    RunKey,
    Segment,
)
from airflow_ft.protocol.noting import warn_of_kills
from airflow_ft.protocol.participant import Expiring, ParticipantFactory
from airflow_ft.protocol.planning import (
    Delivery,
    check_sinks_of_segments,
    group,
    idle_carriers,
    is_proven,
    live_plans,
    quarantined,
    stranded,
    wants_vote,
)
from airflow_ft.protocol.preparing import Preparing
from airflow_ft.protocol.reasons import AbortReason
from airflow_ft.protocol.sharing import require_own_targets

S = CheckpointState
PLANNING_TRIES = 20
_CHANGE_THE_TARGET = "The rows are decided, and no change of the job or the DAG reaches them: change the target."
VOTES_LAST = timedelta(hours=1)
"""An older vote is asked for again before the decision, where the sink has forgotten the pipeline since."""


class Coordinator(Preparing):
    """Acts on one pipeline with one epoch. FencedError from any method ends the process."""

    # --- plan ----------------------------------------------------------------------------------------------------

    def carry_stranded(self, run: RunKey | None = None) -> None:
        """Publishes a number of carried segments alone when nothing newer can carry them."""
        if stranded(self._store.open_checkpoints(self._pipeline)):
            predecessor = self._store.pipeline(self._pipeline).last_published
            number = self._store.trigger(self._pipeline, self.epoch, run)
            self._store.publish(self._pipeline, self.epoch, number, predecessor, None, None, {})

    def plan(self, delivery: Delivery, max_rows: int) -> list[int]:
        """Store a plan for everything staged and free. Returns all numbers to deliver, ascending.

        `max_rows`: of checkpoints that are delivered together, unless the sinks take fewer.

        A plan that was made for other sinks and is not yet PREPARED gives way: its rows are carried (SUPERSEDED).
        """
        for _ in range(PLANNING_TRIES):
            checkpoints = self._store.open_checkpoints(self._pipeline)
            for checkpoint in checkpoints:
                self._roll_back(checkpoint)  # what an aborted number still holds may block these rows
            outdated = [
                c for c in live_plans(checkpoints) if c.state is S.STAGED and c.plan and not delivery.matches(c.plan)
            ]
            if outdated:
                self.abort(outdated[0].number, AbortReason.SUPERSEDED, "the sinks were changed.", AfterAbort.CARRIED)
                self.carry_stranded()
                continue
            if not delivery.mode.waits and any(c.state is S.PREPARED for c in live_plans(checkpoints)):
                break  # I4: to plan another one would be to decide it, and these come before it
            for decided in live_plans(checkpoints) if delivery.mode.waits else ():
                if decided.state is S.COMMITTING and decided.plan and not decided.plan.mode.waits:
                    self.deliver(decided.number)  # without votes: a sink that never saw it would miss its own head
            try:
                groups = [each for each in group(checkpoints, delivery.at_once(max_rows)) if each.segments]
                # Before a later number is planned, which would be aborted with it.
                for idle in idle_carriers(checkpoints, groups):
                    self.abort(idle, AbortReason.SUPERSEDED, "another checkpoint takes its rows.", AfterAbort.CARRIED)
                for wanted in groups:
                    check_sinks_of_segments(self._pipeline, delivery, wanted.segments)
                    self._require_own_targets(delivery.participants)
                    plan = self._make_plan(delivery, wanted.number, wanted.segments)
                    self._store.plan(self._pipeline, self.epoch, plan)
            except StateConflictError:  # the sibling task planned at the same time: take its plan
                continue
            break
        else:
            raise StateConflictError(
                f"another process changed the staged checkpoints during each of {PLANNING_TRIES} attempts to plan.",
                remedy="Clear the task, or wait for its retry.",
                pipeline=self._pipeline,
            )
        return [c.number for c in live_plans(self._store.open_checkpoints(self._pipeline))]

    def _require_own_targets(self, participants: tuple[ParticipantPlan, ...]) -> None:
        """UnfitTargetError, before a plan is stored: another pipeline fills one of these tables or topics."""
        if participants != self._compared:
            require_own_targets(self._store, self._pipeline, participants, self._participants)
            self._compared = participants

    def _make_plan(self, delivery: Delivery, number: int, segments: tuple[Segment, ...]) -> Plan:
        planned: dict[str, int] = {}
        before = number
        # One look, unless the sinks were changed: whatever waits for delivery, the plan just before this one counts.
        while missing := [p.name for p in delivery.participants if p.keeps_markers and p.name not in planned]:
            other = self._store.planned_before(self._pipeline, before)
            if other is None or other.plan is None:
                break
            before = other.number
            remembered = {p.name for p in other.plan.participants if p.keeps_markers}
            planned.update(dict.fromkeys(set(missing) & remembered, other.number))

        def predecessor(participant: ParticipantPlan) -> int:
            if not participant.keeps_markers:
                return 0
            return max(self._store.last_delivered(self._pipeline, participant.name), planned.get(participant.name, 0))

        return Plan(
            pipeline=self._pipeline,
            installation=self._store.installation,
            number=number,
            segments=segments,
            participants=tuple(replace(p, predecessor=predecessor(p)) for p in delivery.participants),
            commit_point=delivery.commit_point,
            reasons=delivery.reasons,
            mode=delivery.mode,
        )

    # --- decide and commit ---------------------------------------------------------------------------------------

    def commit(self, number: int, participant: str, *, set_aside: bool = False) -> Checkpoint:
        """Deliver one participant's rows if the checkpoint is decided, or if this participant carries the commit
        point.

        Returns the checkpoint's new state. Participants after the commit point do nothing before the decision. With
        `set_aside`, at a person's request, rows of a decided checkpoint that the participant refuses are set aside
        (I2).
        """
        checkpoint = self._store.checkpoint(self._pipeline, number)
        plan = checkpoint.plan
        if checkpoint.state not in (S.PREPARED, S.COMMITTING) or plan is None or participant not in plan.names:
            return checkpoint
        earlier = self._require_order(checkpoint, participant)
        if checkpoint.state is S.PREPARED:
            if participant != (plan.commit_point or plan.participants[0].name):
                return checkpoint
            for name in plan.names:
                # A late attempt may have taken a vote back: without it what the carrier commits could not be decided.
                if wants_vote(checkpoint, name):
                    checkpoint = self.prepare(number, name)
                elif self._has_forgotten(checkpoint, plan, name):
                    checkpoint = self.prepare(number, name, again=True)
                    del self._forgotten[name]
            self._require_in_time(checkpoint)
            if plan.commit_point is None and checkpoint.state is S.PREPARED:
                checkpoint = self._decide(checkpoint)
        if checkpoint.votes[participant].proof is not None:
            return checkpoint
        self._require_delivered(earlier, checkpoint, participant)
        warn_of_kills(self._store, checkpoint, participant)
        attempt = self._store.begin_attempt(self._pipeline, self.epoch, number, participant)
        with self._open(plan, participant) as sink:
            # Only what is decided: before that a refusal aborts, and the rows are computed again.
            set_aside = set_aside and checkpoint.state is S.COMMITTING
            try:
                if not plan.mode.waits:  # no vote was requested before
                    # What it refuses is set aside by `commit`, or refused again.
                    with suppress(*(DeclinedError, UnfitTargetError) if set_aside else ()):
                        sink.prepare(plan, self._fence(attempt))
                sink.commit(plan, self._fence(attempt), checkpoint.votes[participant], set_aside=set_aside)
            except DeclinedError as error:
                if checkpoint.state is S.PREPARED:
                    self._decline(number, error)
                    raise
                # Decided: it can only be redone (I3). Show it and retry until the target is repaired.
                raise SinkUnavailableError(
                    f"it is decided, but the sink refuses it: {error.what}",
                    code="refused_after_decision",
                    remedy=f"{error.remedy or 'Correct the target.'} {_CHANGE_THE_TARGET} The next retry or run then"
                    f" delivers it. To leave out the refused rows, run `airflow ft in-doubt --pipeline {self._pipeline}"
                    f" --dead-letter {number}`: it sets them aside and delivers the rest.",
                    pipeline=self._pipeline,
                    checkpoint=number,
                    participant=participant,
                    sink=error.sink,
                    column=error.column,
                    **{**error.fields, "cause": error.code},
                ) from error
            except (UnfitTargetError, WalCorruptError) as error:
                if checkpoint.state is S.COMMITTING:
                    error.remedy = _remedy_of_decided(error)
                    error.fields["decided"] = True
                raise
            proof = sink.proof(plan)  # I6: read in a fresh snapshot, not taken from the transaction's own answer
        if proof is None:
            raise SinkUnavailableError(
                "the sink acknowledged the commit, but its marker cannot be read.",
                code="commit_unproven",
                remedy="Check the server. The next retry or run reads the marker again.",
                pipeline=self._pipeline,
                checkpoint=number,
                participant=participant,
            )
        return self._settle(checkpoint, plan, proof)

    def _has_forgotten(self, checkpoint: Checkpoint, plan: Plan, participant: str) -> bool:
        """Return whether a follower with an old vote has lost the memory that its delivery needs: tokens expire.

        If so, the coordinator asks for a new vote before the decision. After it a loss would look like a delivery, and
        only the commit point's rows would be visible. Age only triggers the look; the sink's answer decides (I6).
        """
        at = checkpoint.prepared_at
        if participant == plan.commit_point or at is None or abs(self._store.now() - at) < VOTES_LAST:
            return False
        if participant not in self._forgotten:
            with self._open(plan, participant) as sink:
                if isinstance(sink, Expiring):
                    remembers = sink.remembers(self._pipeline)
                else:
                    head = sink.head(self._pipeline)
                    remembers = head is not None and not head.lost
                self._forgotten[participant] = not remembers
        return self._forgotten[participant]

    def _require_order(self, checkpoint: Checkpoint, participant: str) -> list[Checkpoint]:
        """I4: an earlier number that is not decided goes first, and nothing goes past a QUARANTINED one.

        Returns the planned ones before it that may still wait in the participant; `_require_delivered` checks them.
        """
        opened = self._store.open_checkpoints(self._pipeline, ahead_of=(checkpoint.number, participant))
        for earlier in [*live_plans(opened), *quarantined(opened)]:
            undecided = earlier.state is not S.COMMITTING and checkpoint.state is S.PREPARED
            if undecided or earlier.state is S.QUARANTINED:
                raise StateConflictError(
                    f"checkpoint {earlier.number} comes first and is {earlier.state}.",
                    code="earlier_first",
                    remedy=f"Run `airflow ft in-doubt --pipeline {self._pipeline}` to see what checkpoint"
                    f" {earlier.number} waits for. The next retry or run repeats this step.",
                    earlier=earlier.number,
                    state=earlier.state.value,
                    pipeline=self._pipeline,
                    checkpoint=checkpoint.number,
                )
        return live_plans(opened)

    def _require_delivered(self, earlier: Iterable[Checkpoint], checkpoint: Checkpoint, participant: str) -> None:
        """I4: within a sink the numbers before this one go first, or the sink would take its own head for lost."""
        for before in earlier:
            if not is_proven(before, participant):
                raise StateConflictError(
                    f"checkpoint {before.number} comes first and is not delivered there yet.",
                    code="earlier_first",
                    remedy="Do nothing: the next retry or run delivers both in order.",
                    earlier=before.number,
                    state=before.state.value,
                    pipeline=self._pipeline,
                    checkpoint=checkpoint.number,
                    participant=participant,
                )

    def deliver(self, number: int, *, set_aside: bool = False) -> Checkpoint:
        """All that is left to do for a planned number: votes, the decision, every commit in the plan's order.

        Of an ABORTED one what TWO_PHASE participants still hold is rolled back. `set_aside`: see `commit`.
        """
        checkpoint = self._store.checkpoint(self._pipeline, number)
        if checkpoint.rollback_pending:
            return self._roll_back(checkpoint)
        names = checkpoint.plan.names if checkpoint.plan else ()
        if checkpoint.state is not S.COMMITTING:
            for name in names:
                checkpoint = self.prepare(number, name)
        away: AirflowFtError | None = None
        for name in names:
            try:
                checkpoint = self.commit(number, name, set_aside=set_aside)
            except (SinkUnavailableError, SinkAccessError, StateConflictError) as error:
                # Once it is decided, a sink that is away does not hold up the others (I3, I7); it takes them in order.
                if self._store.checkpoint(self._pipeline, number).state is not S.COMMITTING:
                    raise
                away = away or error
        if away is not None:
            raise away
        return checkpoint


def _remedy_of_decided(error: UnfitTargetError | WalCorruptError) -> str:
    if isinstance(error, UnfitTargetError):
        return f"{error.remedy} {_CHANGE_THE_TARGET}"
    return (
        f"Restore {error.fields.get('path', 'the file')} from a backup. Then the next retry or run delivers it. The"
        " checkpoint is decided, so its rows are not computed again. If there is no backup, read 'Decided rows are"
        " lost' in docs/recovery.md."
    )


@contextmanager
def coordinating(
    store: DeliveryLog,
    pipeline: str,
    participants: ParticipantFactory,
    worker: Worker,
    why: str,
    lease_seconds: float = LEASE_SECONDS,
) -> Iterator[tuple[Coordinator, LeaseKeeper]]:
    """A coordinator with a new epoch of its own, and the keeper of its lease; see `new_epoch` for the errors."""
    with (
        new_epoch(store, pipeline, worker, why, lease_seconds) as (epoch, keeper),
        closing(Coordinator(store, pipeline, epoch, participants)) as coordinator,
    ):
        yield coordinator, keeper
