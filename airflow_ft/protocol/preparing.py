"""Ask participants for their votes: in one step, or announced, with branches that other processes store."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from airflow_ft.protocol.announced import Announcement
from airflow_ft.protocol.delivery_log import DeliveryLog
from airflow_ft.protocol.errors import DeclinedError, SinkUnavailableError, TokenLostError, UnfitTargetError
from airflow_ft.protocol.model import Checkpoint, CheckpointState, Fence, Plan, canonical_json
from airflow_ft.protocol.participant import Branching, Expiring, Participant
from airflow_ft.protocol.planning import wants_vote
from airflow_ft.protocol.settling import Settling
from airflow_ft.protocol.sharing import require_own_targets
from airflow_ft.protocol.votes import Outcome, Proof

log = logging.getLogger(__name__)

S = CheckpointState


def last_proven(store: DeliveryLog, pipeline: str, participant: str, through: int | None = None) -> int:
    """Return the highest number up to `through` that a participant is proven to have delivered; 0: none.

    Later numbers may be undecided, or decided and not delivered yet. A sink that lacks those has lost nothing.
    KeyError: the decision log does not know the pipeline.
    """
    # Read in this order, a delivery between both reads only lowers the result.
    decided = store.last_delivered(pipeline, participant)
    decided = decided if through is None else min(decided, through)
    waiting = store.first_unproven(pipeline, decided, participant) if decided else None
    if waiting is None or waiting.plan is None:
        return decided
    return waiting.plan.participant(participant).predecessor


class Preparing(Settling):
    """The part of a coordinator that leads to votes."""

    def prepare(
        self, number: int, participant: str, *, again: bool = False, announced: Announcement | None = None
    ) -> Checkpoint:
        """Asks one participant for its vote; with `again` also of a PREPARED number.

        If `announced` still holds, that attempt votes, with the branches that others have loaded.

        DeclinedError: the checkpoint is ABORTED and the pipeline rewound. UnfitTargetError: it stays STAGED.
        """
        checkpoint = self._store.checkpoint(self._pipeline, number)
        plan = checkpoint.plan
        wanted = wants_vote(checkpoint, participant) or (again and checkpoint.state is S.PREPARED)
        if plan is None or participant not in plan.names or not wanted:
            return checkpoint
        if announced is not None and announced.has_voted(checkpoint, self.epoch) and not again:
            return checkpoint  # a newer attempt would roll back all that others have loaded
        if checkpoint.state is S.PREPARED and plan.commit_point is not None and not again:
            # A late attempt took the vote back. Perhaps the deciding sink had committed: then no vote is needed.
            with self._open(plan, plan.commit_point) as sink:
                proof = sink.proof(plan)
            if proof is not None and proof.outcome is Outcome.COMMITTED:
                return self._settle(checkpoint, plan, proof)
        notes: Mapping[str, Any] | None = None
        attempt = 0
        if announced is not None and announced.holds(checkpoint, self.epoch):
            attempt = announced.attempt
            try:
                with self._open(plan, participant) as sink, self._refusable(number):
                    if isinstance(sink, Branching):
                        notes = sink.conclude(plan, self._fence(attempt), announced.notes)
            except SinkUnavailableError as error:  # what is prepared keeps its locks until a newer attempt begins
                log.warning("checkpoint %d: %s: %s", number, participant, error.what)
            if notes is None:
                log.warning("checkpoint %d: attempt %d of %s no longer holds: preparing it again", number, attempt,
                            participant)  # fmt: skip
        if notes is None:
            fence, checkpoint = self._begin(plan, participant)
            if checkpoint.state not in (S.STAGED, S.PREPARED):
                # Decided before the attempt began, so its vote still counts: what it prepared must not be rolled back.
                return checkpoint
            with self._open(plan, participant) as sink, self._refusable(number):
                notes = self._vote_of(sink, plan, participant, fence)
            attempt = fence.attempt
        for name, note in notes.items():
            if note:
                text = note if isinstance(note, str) else canonical_json(note)
                log.log(self._level, "checkpoint %d: %s: %s: %s", number, participant, name, text)
        checkpoint = self._store.vote(self._pipeline, self.epoch, number, participant, attempt, notes)
        log.log(self._level, "checkpoint %d: %s voted yes; it is %s", number, participant, checkpoint.state)
        return checkpoint

    def announce(self, number: int, participant: str) -> Announcement | None:
        """Begin an attempt whose branches others load. None: there are not several, or no vote is wanted.

        Raises what `prepare` raises.
        """
        checkpoint = self._store.checkpoint(self._pipeline, number)
        plan = checkpoint.plan
        if plan is None or participant not in plan.names or not wants_vote(checkpoint, participant):
            return None
        if (vote := checkpoint.votes.get(participant)) is not None and vote.prepared:
            return None  # a new attempt would take its vote back, and nothing would ask for another one
        with self._open(plan, participant) as sink:
            if not isinstance(sink, Branching) or len(labels := sink.branches(plan)) < 2:
                return None
            fence, checkpoint = self._begin(plan, participant)
            if checkpoint.state not in (S.STAGED, S.PREPARED):
                return None
            with self._refusable(number):
                notes = sink.announce(plan, fence)
        return Announcement(number, participant, self.epoch, fence.attempt, labels, notes) if notes else None

    def load(self, announced: Announcement, branch: str) -> bool:
        """Store one branch of an announced attempt. False: it no longer holds, and another attempt does the work.

        Writes nothing to the decision log. A refused row fails the branch alone: `prepare` meets it again, and aborts.
        """
        checkpoint = self._store.checkpoint(self._pipeline, announced.number)
        plan = checkpoint.plan
        if plan is None or not announced.holds(checkpoint, self.epoch):
            return False
        with self._open(plan, announced.participant) as sink:
            fence = self._fence(announced.attempt)
            return isinstance(sink, Branching) and sink.load(plan, fence, announced.notes, branch)

    def _begin(self, plan: Plan, participant: str) -> tuple[Fence, Checkpoint]:
        """Begin an attempt; returns the fence of its vote, and the checkpoint as it was found afterwards."""
        planned = plan.participant(participant)
        if planned.predecessor == 0:  # another pipeline may have begun at once
            require_own_targets(self._store, self._pipeline, (planned,), self._participants)
        attempt = self._store.begin_attempt(self._pipeline, self.epoch, plan.number, participant)
        checkpoint = self._store.checkpoint(self._pipeline, plan.number)
        before = planned.predecessor
        proven = last_proven(self._store, self._pipeline, participant, before) if before else 0
        return replace(self._fence(attempt), delivered=proven), checkpoint

    @contextmanager
    def _refusable(self, number: int) -> Iterator[None]:
        """Abort the number if the participant declines its rows."""
        try:
            yield
        except DeclinedError as error:
            self._decline(number, error)
            raise
        except UnfitTargetError as error:  # the rows wait for the target, unless a person decides otherwise
            error.remedy += (
                f" The staged rows are kept. To change the rows instead, run `airflow ft rewind {self._pipeline}`."
                " Then the job computes them again, or your program gives their position again."
            )
            raise

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
            settled = not any(
                c.state is S.COMMITTING or (c.state is S.QUARANTINED and c.decided_at is not None)
                for c in self._store.open_checkpoints(self._pipeline)
            )
            if not settled or plan.participant(name).predecessor != delivered:
                raise
            head = sink.head(self._pipeline)
            if head is not None and head.number != delivered:  # of several tokens only some may have vanished yet
                raise
            log.warning("the token of %s expired. Nothing is unsettled, so it is set to %d again", name, delivered)
            sink.seed(fence, delivered, self._last_proof(delivered, name))
            return sink.prepare(plan, fence)

    def _last_proof(self, number: int, participant: str) -> Proof | None:
        try:
            return self._store.checkpoint(self._pipeline, number).proof_of(participant)
        except KeyError:  # a number of a lost log, whose sinks were adopted
            return None
