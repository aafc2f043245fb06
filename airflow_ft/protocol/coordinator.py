"""One checkpoint, step by step: plan, prepare, decide, commit, abort.

Tasks, recovery and the command line all go through `Coordinator`. It works from the store and the stored plan alone:
no DAG, no job code. Each method reads the state first, does what is still missing and may be repeated for ever.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any, NoReturn

from airflow_ft.protocol.delivery_log import DeliveryLog, RecoveryLog
from airflow_ft.protocol.errors import (
    AirflowFtError,
    CheckpointExpiredError,
    DeclinedError,
    FencedError,
    HaltError,
    HeuristicCommitError,
    SinkAccessError,
    SinkUnavailableError,
    StateConflictError,
    StoreBehindSinkError,
    TerminalError,
    TokenLostError,
    UnfitTargetError,
)
from airflow_ft.protocol.lease import LEASE_SECONDS, LeaseKeeper, Worker, new_epoch
from airflow_ft.protocol.model import (
    AbortReason,
    AfterAbort,
    Checkpoint,
    CheckpointState,
    Fence,
    Outcome,
    ParticipantPlan,
    Plan,
    Promise,
    Proof,
    Reason,
    RunKey,
    Segment,
    canonical_json,
)
from airflow_ft.protocol.noting import note_problem
from airflow_ft.protocol.numbers import count_text
from airflow_ft.protocol.participant import Expiring, Participant, ParticipantFactory
from airflow_ft.protocol.planning import (
    Delivery,
    check_sinks_of_segments,
    group,
    is_proven,
    live_plans,
    may_be_heuristic,
    quarantined,
    read_tombstone,
    stranded,
    tombstone_detail,
    wants_vote,
)
from airflow_ft.protocol.set_aside import of_proof
from airflow_ft.protocol.sharing import require_own_targets

log = logging.getLogger(__name__)

S = CheckpointState
PLANNING_TRIES = 20
VOTES_LAST = timedelta(hours=1)
"""An older vote is asked for again before the decision, where the sink has forgotten the pipeline since."""


class Coordinator:
    """Acts on one pipeline with one epoch. FencedError from any method ends the process.

    A participant whose step went well stays open for the next one, and until `close`.
    """

    def __init__(
        self,
        store: DeliveryLog,
        pipeline: str,
        epoch: int,
        participants: ParticipantFactory,
        *,
        timeout: timedelta | None = None,
        level: int = logging.INFO,
    ) -> None:
        """`timeout`: from TRIGGERED to the decision; a checkpoint that takes longer is ABORTED(EXPIRED), its rows are
        delivered with another. `level`: of what is logged of each step that went well.
        """
        self._timeout, self._level = timeout, level
        self._store = store
        self._pipeline = pipeline
        self.epoch = epoch
        self._participants = participants
        self._opened: dict[str, tuple[ParticipantPlan, Participant]] = {}
        self._compared: tuple[ParticipantPlan, ...] = ()  # whose places are known to be the pipeline's own
        self._forgotten: dict[str, bool] = {}  # by participant, as read when a decision came late

    def close(self) -> None:
        """Closes the participants."""
        while self._opened:
            self._opened.popitem()[1][1].close()

    # --- plan ----------------------------------------------------------------------------------------------------

    def carry_stranded(self, run: RunKey | None = None) -> int | None:
        """Publishes a number of carried segments alone when nothing newer can carry them; returns it."""
        if not stranded(self._store.open_checkpoints(self._pipeline)):
            return None
        predecessor = self._store.pipeline(self._pipeline).last_published
        number = self._store.trigger(self._pipeline, self.epoch, run)
        self._store.publish(self._pipeline, self.epoch, number, predecessor, None, None, {})
        return number

    def plan(self, delivery: Delivery, max_rows: int) -> list[int]:
        """Stores a plan for everything staged and free; returns all numbers that are to be delivered, ascending.

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
                for wanted in group(checkpoints, max_rows):
                    if not wanted.segments:  # a number that was to carry what another carries now
                        self.abort(
                            wanted.number,
                            AbortReason.SUPERSEDED,
                            "another checkpoint took its rows.",
                            AfterAbort.CARRIED,
                        )
                        continue
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

    # --- prepare -------------------------------------------------------------------------------------------------

    def prepare(self, number: int, participant: str, *, again: bool = False) -> Checkpoint:
        """Asks one participant for its vote; with `again` also of a PREPARED number.

        DeclinedError: the checkpoint is ABORTED and the pipeline rewound. UnfitTargetError: it stays STAGED.
        """
        checkpoint = self._store.checkpoint(self._pipeline, number)
        plan = checkpoint.plan
        wanted = wants_vote(checkpoint, participant) or (again and checkpoint.state is S.PREPARED)
        if plan is None or participant not in _names(plan) or not wanted:
            return checkpoint
        if (first := plan.participant(participant)).predecessor == 0:  # another pipeline may have begun at once
            require_own_targets(self._store, self._pipeline, (first,), self._participants)
        attempt = self._store.begin_attempt(self._pipeline, self.epoch, number, participant)
        checkpoint = self._store.checkpoint(self._pipeline, number)
        if checkpoint.state not in (S.STAGED, S.PREPARED):
            # Decided before the attempt began, so its vote still counts: what it prepared must not be rolled back.
            return checkpoint
        with self._open(plan, participant) as sink:
            try:
                notes = self._vote_of(sink, plan, participant, self._fence(attempt))
            except DeclinedError as error:
                self.abort(number, AbortReason.DECLINED, str(error), AfterAbort.REWOUND)
                raise
            except UnfitTargetError as error:  # the rows wait for the target, unless a person decides otherwise
                error.remedy += (
                    f" The staged rows are kept. If you change the job instead, `airflow ft rewind {self._pipeline}`"
                    " computes them again."
                )
                raise
        for name, note in notes.items():
            if note:
                text = note if isinstance(note, str) else canonical_json(note)
                log.log(self._level, "checkpoint %d: %s: %s: %s", number, participant, name, text)
        checkpoint = self._store.vote(self._pipeline, self.epoch, number, participant, attempt, notes)
        log.log(self._level, "checkpoint %d: %s voted yes; it is %s", number, participant, checkpoint.state)
        return checkpoint

    def _vote_of(self, sink: Participant, plan: Plan, name: str, fence: Fence) -> Mapping[str, Any]:
        """Return the participant's notes. Seeds a vanished token again if every earlier checkpoint is settled.

        Group offsets expire some days after their last commit, so each run of a monthly DAG meets this.
        """
        try:
            return sink.prepare(plan, fence)
        except TokenLostError:
            if not isinstance(sink, Expiring):
                raise
            delivered = self._store.last_delivered(self._pipeline, name)
            settled = all(c.state is not S.COMMITTING for c in self._store.open_checkpoints(self._pipeline))
            if not settled or plan.participant(name).predecessor != delivered:
                raise
            head = sink.head(self._pipeline)
            if head is not None and head.number != delivered:  # of several tokens only some may have vanished yet
                raise
            log.warning("the token of %s expired. Nothing is unsettled, so it is set to %d again", name, delivered)
            sink.seed(fence, delivered)
            return sink.prepare(plan, fence)

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
        if checkpoint.state not in (S.PREPARED, S.COMMITTING) or plan is None or participant not in _names(plan):
            return checkpoint
        earlier = self._require_order(checkpoint)
        if checkpoint.state is S.PREPARED:
            if participant != (plan.commit_point or plan.participants[0].name):
                return checkpoint
            for name in _names(plan):
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
        attempt = self._store.begin_attempt(self._pipeline, self.epoch, number, participant)
        with self._open(plan, participant) as sink:
            # Only what is decided: before that a refusal aborts, and the rows are computed again.
            set_aside = set_aside and checkpoint.state is S.COMMITTING
            try:
                if not plan.mode.waits:  # no vote was requested before
                    sink.prepare(plan, self._fence(attempt))
                sink.commit(plan, self._fence(attempt), checkpoint.votes[participant], set_aside=set_aside)
            except DeclinedError as error:
                if checkpoint.state is S.PREPARED:
                    self.abort(number, AbortReason.DECLINED, str(error), AfterAbort.REWOUND)
                    raise
                # Decided: it can only be redone (I3). Shown and tried again until the target is mended.
                raise SinkUnavailableError(
                    f"it is decided, but the sink refuses it: {error.what}",
                    code="refused_after_decision",
                    remedy=f"{error.remedy or 'Correct the target.'} The next retry or run then delivers it. To leave"
                    f" out the refused rows, run `airflow ft in-doubt --pipeline {self._pipeline} --dead-letter"
                    f" {number}`: it sets them aside and delivers the rest.",
                    pipeline=self._pipeline,
                    checkpoint=number,
                    participant=participant,
                    sink=error.sink,
                    column=error.column,
                    **{**error.fields, "cause": error.code},
                ) from error
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
        if participant == plan.commit_point or at is None or self._store.now() - at < VOTES_LAST:
            return False
        if participant not in self._forgotten:
            with self._open(plan, participant) as sink:
                lasting = sink.remembers if isinstance(sink, Expiring) else sink.head
                self._forgotten[participant] = not lasting(self._pipeline)
        return self._forgotten[participant]

    def _settle(self, checkpoint: Checkpoint, plan: Plan, proof: Proof) -> Checkpoint:
        """Records in the store what a sink's own marker says."""
        number = checkpoint.number
        if proof.digest != plan.digest:
            self._halt(
                StoreBehindSinkError(
                    "the sink has another delivery under this number. The decision log was restored from a backup, or"
                    " is not the one that delivered there.",
                    remedy=f"Compare the sink with the decision log. Then run `airflow ft resume {self._pipeline}`.",
                    pipeline=self._pipeline,
                    checkpoint=number,
                    participant=proof.participant,
                )
            )
        if proof.outcome is Outcome.ABORTED:
            reason, message, after = read_tombstone(proof.detail)
            log.info("checkpoint %d: %s has its tombstone: %s", number, proof.participant, message)
            return self.abort(number, reason, message, after)
        self._check_counts(plan, proof)
        if checkpoint.state is S.PREPARED:
            self._decide(checkpoint)
        checkpoint = self._store.record_proof(self._pipeline, self.epoch, number, proof)
        log.log(
            self._level,
            "checkpoint %d: %s committed %s; it is %s",
            number,
            proof.participant,
            ", ".join(f"{count_text(rows, 'row')} into {sink}" for sink, rows in proof.counts.items()) or "no rows",
            checkpoint.state,
        )
        for sink, aside in of_proof(proof).items():
            log.warning("checkpoint %d: %s", number, aside.text(sink))
        return checkpoint

    def _decide(self, checkpoint: Checkpoint) -> Checkpoint:
        prepared = {name: vote.prepared for name, vote in checkpoint.votes.items()}
        return self._store.decide(self._pipeline, self.epoch, checkpoint.number, prepared)

    def _require_order(self, checkpoint: Checkpoint) -> list[Checkpoint]:
        """I4: an earlier number that is not decided goes first, and nothing goes past a QUARANTINED one.

        Returns the earlier ones that are decided and not delivered everywhere.
        """
        opened = self._store.open_checkpoints(self._pipeline, before=checkpoint.number)
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

    def _check_counts(self, plan: Plan, proof: Proof) -> None:
        found = of_proof(proof)
        for sink in plan.participant(proof.participant).sinks:
            expected = sum(segment.rows.get(sink, 0) for segment in plan.segments)
            aside = found[sink].rows if sink in found else 0
            if proof.counts.get(sink, 0) + aside != expected:
                raise TerminalError(
                    f"the sink's marker counts {count_text(proof.counts.get(sink, 0), 'row')} and"
                    f" {count_text(aside, 'row')} set aside, but the plan has {expected}.",
                    code="counts_differ",
                    remedy="Change nothing and report this: it is a defect of airflow-ft or of the sink.",
                    counted=proof.counts.get(sink, 0),
                    set_aside=aside,
                    expected=expected,
                    pipeline=self._pipeline,
                    checkpoint=plan.number,
                    participant=proof.participant,
                    sink=sink,
                )

    def deliver(self, number: int, *, set_aside: bool = False) -> Checkpoint:
        """All that is left to do for a planned number: votes, the decision, every commit in the plan's order.

        Of an ABORTED one what TWO_PHASE participants still hold is rolled back. `set_aside`: see `commit`.
        """
        checkpoint = self._store.checkpoint(self._pipeline, number)
        if checkpoint.rollback_pending:
            return self._roll_back(checkpoint)
        names = _names(checkpoint.plan) if checkpoint.plan else ()
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

    # --- deadline ------------------------------------------------------------------------------------------------

    def expire(self) -> None:
        """Aborts all that is undecided after its time-out; CheckpointExpiredError names the first.

        A carrier that is away cannot be asked whether it has decided: then its number stays (SinkUnavailableError).
        """
        first: CheckpointExpiredError | None = None
        for found in self._store.open_checkpoints(self._pipeline) if self._timeout is not None else ():
            # What was aborted before it has taken some of the later ones with it.
            checkpoint = self._store.checkpoint(self._pipeline, found.number) if first else found
            try:
                self._require_in_time(checkpoint)
            except CheckpointExpiredError as error:
                first = first or error
        if first is not None:
            raise first

    def _require_in_time(self, checkpoint: Checkpoint) -> None:
        if self._timeout is None or checkpoint.state not in (S.STAGED, S.PREPARED):
            return
        age = self._store.now() - checkpoint.triggered_at
        if age <= self._timeout:
            return
        timeout = self._timeout.total_seconds()
        self.abort(checkpoint.number, AbortReason.EXPIRED, f"not decided within {timeout:g} s", AfterAbort.CARRIED)
        raise CheckpointExpiredError(
            f"it was not decided within CheckpointConfig.timeout ({timeout:g} s), so it is aborted (EXPIRED). No sink"
            " shows its rows. The next checkpoint delivers them.",
            pipeline=self._pipeline,
            checkpoint=checkpoint.number,
            remedy="Look in the task's log why the sinks are slow. Or raise CheckpointConfig(timeout=...).",
            seconds=timeout,
        )

    # --- abort ---------------------------------------------------------------------------------------------------

    def abort(self, number: int, reason: Reason, message: str, after: AfterAbort) -> Checkpoint:
        """Abort a number and first, newest first, every later planned one, since they expect it as their predecessor.

        Raises:
            HeuristicCommitError: prepared rows of one of them were committed by hand. Nothing is aborted.
        """
        later_ones = [c for c in live_plans(self._store.open_checkpoints(self._pipeline)) if c.number > number]
        for concerned in [self._store.checkpoint(self._pipeline, number), *later_ones]:
            self._refuse_heuristic(concerned, message)
        for later in reversed(live_plans(self._store.open_checkpoints(self._pipeline))):
            if later.number > number:
                why = f"checkpoint {number} was aborted."
                self._abort_one(later, AbortReason.PREDECESSOR_ABORTED, why, AfterAbort.CARRIED)
        return self._abort_one(self._store.checkpoint(self._pipeline, number), reason, message, after)

    def _abort_one(self, checkpoint: Checkpoint, reason: Reason, message: str, after: AfterAbort) -> Checkpoint:
        plan = checkpoint.plan
        tombstoned = False
        if checkpoint.state is S.PREPARED and plan is not None and plan.commit_point is not None:
            # The tombstone goes first (R3): a COMMIT that is still under way must not find the place free.
            attempt = self._store.begin_attempt(self._pipeline, self.epoch, checkpoint.number, plan.commit_point)
            with self._open(plan, plan.commit_point) as sink:
                proof = sink.abort(plan, self._fence(attempt), tombstone_detail(reason, message, after))
            if proof.outcome is Outcome.COMMITTED:
                self._settle(checkpoint, plan, proof)
                raise StateConflictError(
                    f"it cannot be aborted, because {plan.commit_point} has committed it.",
                    code="already_committed",
                    remedy="Do nothing: the next retry or run delivers it to the other sinks.",
                    pipeline=self._pipeline,
                    checkpoint=checkpoint.number,
                )
            reason, message, after = read_tombstone(proof.detail)
            tombstoned = True
        aborted = self._write_abort(checkpoint, reason, message, after, tombstoned=tombstoned)
        try:
            return self._roll_back(aborted)
        except (SinkUnavailableError, SinkAccessError) as error:  # decided all the same: rolled back by what comes next
            log.warning(
                "checkpoint %d is ABORTED, but a sink has not rolled back yet (the next run does): %s",
                checkpoint.number,
                error,
            )
            return aborted

    def _refuse_heuristic(self, checkpoint: Checkpoint, why: str) -> None:
        """I3: what a sink shows already is not aborted. One that is away is asked by the rollback, after the abort."""
        for participant in checkpoint.plan.participants if checkpoint.plan else ():
            plan = checkpoint.plan
            if plan is None or checkpoint.state is S.ABORTED or not may_be_heuristic(checkpoint, participant):
                continue
            try:
                with self._open(plan, participant.name) as sink:
                    found = sink.heuristic(plan)
            except (SinkUnavailableError, SinkAccessError) as error:
                log.warning("checkpoint %d: cannot look for commits by hand: %s", checkpoint.number, error)
                continue
            # Read after the sink: commits follow the decision, so what is undecided now was committed by hand.
            now = self._store.checkpoint(self._pipeline, checkpoint.number)
            if found and now.state in (S.STAGED, S.PREPARED):
                self._halt(
                    HeuristicCommitError(
                        f"it cannot be aborted ({why.rstrip('.')}): {found}",
                        remedy=f"Run `airflow ft in-doubt --pipeline {self._pipeline} --commit {checkpoint.number}`: it"
                        " delivers the rest, so that all sinks have the rows. Or delete the visible rows as described"
                        f" above, then run `airflow ft resume {self._pipeline}`.",
                        pipeline=self._pipeline,
                        checkpoint=checkpoint.number,
                        participant=participant.name,
                    )
                )

    def _roll_back(self, checkpoint: Checkpoint) -> Checkpoint:
        """Ends what TWO_PHASE participants hold of an ABORTED number: the decision went before it."""
        plan = checkpoint.plan
        if not checkpoint.rollback_pending or plan is None:
            return checkpoint
        detail = tombstone_detail(
            checkpoint.reason or AbortReason.USER, checkpoint.message, checkpoint.after_abort or AfterAbort.CARRIED
        )
        for participant in plan.participants:
            if participant.promise is not Promise.TWO_PHASE or participant.name not in checkpoint.votes:
                continue
            name = participant.name
            attempt = self._store.begin_attempt(self._pipeline, self.epoch, checkpoint.number, name)
            with self._open(plan, name) as sink:
                sink.abort(plan, self._fence(attempt), detail)
            checkpoint = self._store.record_rollback(self._pipeline, self.epoch, checkpoint.number, name)
        return checkpoint

    def _write_abort(
        self, checkpoint: Checkpoint, reason: Reason, message: str, after: AfterAbort, *, tombstoned: bool
    ) -> Checkpoint:
        number = checkpoint.number
        if after is AfterAbort.CARRIED:
            return self._store.abort(self._pipeline, self.epoch, number, reason, message, after, tombstoned=tombstoned)
        # Later PREPARED numbers are out of the way (abort() saw to that, or order (I4) forbids them a marker).
        segments = checkpoint.plan.segments if checkpoint.plan else ()
        first = min([number, *(segment.number for segment in segments)])
        base = self._store.position_before(self._pipeline, first)
        return self._store.abort(
            self._pipeline, self.epoch, number, reason, message, after, first, base, tombstoned=tombstoned
        )

    # --- small things --------------------------------------------------------------------------------------------

    def _fence(self, attempt: int) -> Fence:
        return Fence(self._pipeline, self._store.installation, self.epoch, attempt)

    @contextmanager
    def _open(self, plan: Plan, participant: str) -> Iterator[Participant]:
        """An open participant; errors leave with their place filled in, contradictions halt the pipeline."""
        try:
            # Each step takes these two from its plan.
            wanted = replace(plan.participant(participant), predecessor=0, former=None)
            before, sink = self._opened.pop(participant, (None, None))
            if sink is not None and before != wanted:
                sink.close()
                sink = None
            if sink is None:
                sink = self._participants(wanted)
            try:
                yield sink
            except BaseException:
                sink.close()
                raise
            self._opened[participant] = wanted, sink
        except AirflowFtError as error:
            error.located(pipeline=self._pipeline, checkpoint=plan.number, participant=participant)
            note_problem(self._store, self._pipeline, self.epoch, plan.number, participant, error)
            if isinstance(error, HaltError):
                self._halt(error)
            if isinstance(error, FencedError) and error.head_epoch >= self.epoch:
                self._halt_if_store_is_behind(error)
            raise

    def _halt_if_store_is_behind(self, error: FencedError) -> None:
        """The head has a rank that this store has not given out yet: the store is the older one.

        A store draws an attempt before a sink hears of it, so it is read after the head and cannot be too early.
        """
        row = self._store.pipeline(self._pipeline)
        if (row.epoch, row.last_attempt) >= (error.head_epoch, error.head_attempt):
            return
        where: Mapping[str, str | int] = {
            "pipeline": error.pipeline,
            "checkpoint": error.checkpoint,
            "participant": error.participant,
        }
        behind = StoreBehindSinkError(
            f"the sink knows epoch {error.head_epoch}, attempt {error.head_attempt}, but the decision log has only"
            f" reached epoch {row.epoch}, attempt {row.last_attempt}. The log was restored from a backup.",
            remedy="Bring back the newer decision log. Or compare the sinks, then run `airflow ft resume`.",
        )
        behind.located(**where)
        self._halt(behind)

    def _halt(self, error: HaltError) -> NoReturn:
        self._store.halt(self._pipeline, error.reason, str(error))
        raise error


@contextmanager
def coordinating(
    store: RecoveryLog,
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


def _names(plan: Plan) -> tuple[str, ...]:
    return tuple(participant.name for participant in plan.participants)
