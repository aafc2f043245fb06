"""Mistakes that the simulator must find: rules of the protocol switched off, one at a time, in the product's own code.

Each is a function that takes `change(object, attribute, value)`; where the rule stands in a model (the two-phase
participant, Spark's side) the model is changed. `laws` are the invariants whose breach it shows by.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from unittest.mock import patch

from airflow_ft.protocol import coordinator, model, planning
from airflow_ft.protocol.errors import FencedError, SinkUnavailableError, StoreUnavailableError, TokenLostError
from airflow_ft.protocol.model import AfterAbort, CheckpointState, Fence
from airflow_ft.protocol.votes import Outcome, Proof
from airflow_ft.sinks.base.memory import Marker
from airflow_ft.sinks.kafka import token as tokens
from airflow_ft.sinks.kafka.cluster import KafkaParticipant
from airflow_ft.sinks.kafka.slot import Slot
from airflow_ft.sinks.kafka.transaction import Transaction
from airflow_ft.sinks.mysql import fencing
from airflow_ft.sinks.mysql.failures import DUPLICATE_KEY, suppressed
from airflow_ft.sinks.mysql.ledger import Ledger
from airflow_ft.sinks.mysql.server import ServerParticipant
from airflow_ft.store import staging
from airflow_ft.store.writing import PipelineWrite
from tests.simulation.defect import NAMED, Change, defect, everywhere
from tests.simulation.kernel import Deviation, DeviationKind
from tests.simulation.model_store import ModelStore
from tests.simulation.scenarios import ONE_ITEM
from tests.simulation.world import World

BOTH, KAFKA = NAMED["MySQL decides, Kafka follows"], NAMED["Kafka alone: the store decides"]
TWO_PHASE = NAMED["two-phase and Kafka: the store decides"]
RESTORED, FORGETTING = NAMED["a decision log restored from a backup"], NAMED["Kafka forgets its tokens"]
CARRIED = NAMED["a person aborts, the rows are carried"]
GIVEN_UP = NAMED["a stage that was given up beside its delivery"]
DECLINED = Deviation("A1", 1, DeviationKind.EVENT, "prepare declines item 1")
S = CheckpointState


# --- markers and heads: MySQL ------------------------------------------------------------------------------------


@defect(BOTH, "I2 I3 I6")
def marker_outside_the_transaction(change: Change) -> None:
    write = Ledger.write_marker

    def alone(self: Any, *args: Any) -> None:
        self.session.commit()
        self.session.begin()
        write(self, *args)

    change(Ledger, "write_marker", alone)


@defect(BOTH, "I2 I6")
def rows_without_a_marker_when_its_place_is_taken(change: Change) -> None:
    write = Ledger.write_marker

    def shrug(self: Any, *args: Any) -> None:
        with suppressed(DUPLICATE_KEY):
            write(self, *args)

    change(Ledger, "write_marker", shrug)
    change(ServerParticipant, "_is_settled", lambda *_, **__: False)


@defect(CARRIED, "I2 I3 I7")
def kind_of_the_marker_ignored(change: Change) -> None:
    """R1: 'duplicate key' is taken for committed, though a tombstone stands there."""
    proof = Marker.proof
    change(Marker, "proof", lambda *args: replace(proof(*args), outcome=Outcome.COMMITTED, counts={"rows": 1}))


@defect(CARRIED, "I3")
def tombstone_omitted(change: Change) -> None:
    """R3: ABORTED is written while a COMMIT may still be under way."""

    def nothing(self: ServerParticipant, plan: Any, fence: Fence, detail: Any) -> Proof:
        return Proof(self._plan.name, plan.number, Outcome.ABORTED, plan.digest, fence.epoch, {}, dict(detail))

    change(ServerParticipant, "abort", nothing)


@defect(ONE_ITEM, "I3 I7", pairs=True, before=(DECLINED,), at=1340)
def refusal_in_prepare_aborts_what_another_try_has_prepared(change: Change) -> None:
    """A late refusal overtakes a commit: ABORTED without a tombstone, over what was STAGED when it was read."""
    abort = ModelStore.abort
    change(ModelStore, "abort", lambda *args, **named: abort(*args, **{**named, "tombstoned": True}))


@defect(BOTH, "I5", at=172)
def check_before_fence(change: Change) -> None:
    """The head is read, and not locked: it may be raised before the rows are committed (R6)."""
    head = Ledger.head
    change(Ledger, "head", lambda self, **_: head(replace(self, locks_head=False)))


@defect(BOTH, "I5")
def epoch_not_compared_by_the_sink(change: Change) -> None:
    announce = Ledger.announce

    def always(self: Ledger, fence: Fence, nonce: str) -> bool:
        known = self.head()
        if known is None or known.rank <= fence.rank:
            return announce(self, fence, nonce)
        sql = "UPDATE {head} SET epoch = ?, attempt = ?, session = ? WHERE pipeline = ?"
        return bool(self._affected(sql, fence.epoch, fence.attempt, nonce, fence.pipeline))

    change(Ledger, "announce", always)


@defect(NAMED["two runs at once"], "I5 I7")
def only_the_epoch_compared_and_not_the_attempt(change: Change) -> None:
    change(model.Fence, "rank", property(lambda self: (self.epoch, 0)))


@defect(BOTH, "I6")
def markers_pruned_without_raising_the_floor(change: Change) -> None:
    """R13: a number whose marker is gone could be committed again."""
    change(Ledger, "raise_floor", lambda *_: None)


def attempts_not_compared(change: Change) -> None:
    """Within an epoch: what stops most schedules of a restored log, before another rule is asked."""
    behind = coordinator.Coordinator._halt_if_store_is_behind

    def of_epochs_alone(self: coordinator.Coordinator, error: FencedError) -> None:
        if error.head_epoch > self.epoch:
            behind(self, error)

    change(coordinator.Coordinator, "_halt_if_store_is_behind", of_epochs_alone)


@defect(RESTORED, "I2 I3 I9 I10", seed=2)
def digest_not_compared(change: Change) -> None:
    """R11: a restored log gives a number out again, and the rows that stand there are taken for the new ones."""
    everywhere(change, model.plan_digest, lambda segments: "0" * 64)
    attempts_not_compared(change)


@defect(BOTH, "I1 I2 I3 I7 I9", seed=15)
def absent_taken_as_committed(change: Change) -> None:
    commit, read = ServerParticipant.commit, ServerParticipant.proof

    def swallow(self: Any, plan: Any, fence: Fence, vote: Any = None, **rest: Any) -> Any:
        try:
            return commit(self, plan, fence, vote, **rest)
        except SinkUnavailableError:
            return None

    change(ServerParticipant, "commit", swallow)
    change(ServerParticipant, "proof", lambda self, plan: read(self, plan) or invented(self, plan))


def invented(sink: Any, plan: Any) -> Proof:
    name = sink._plan.name
    counts = {s: sum(segment.rows.get(s, 0) for segment in plan.segments) for s in plan.participant(name).sinks}
    return Proof(name, plan.number, Outcome.COMMITTED, plan.digest, 1, counts)


# --- tokens: Kafka -----------------------------------------------------------------------------------------------


@defect(BOTH, "I2 I3 I6")
def token_outside_the_transaction_of_the_rows(change: Change) -> None:
    def twice(self: Transaction, token: Any) -> None:
        self._until_done("committing the rows", self._producer.commit_transaction)
        self._producer.begin_transaction()
        self.write(token)
        self._until_done("committing the token", self._producer.commit_transaction)
        self._open = False

    change(Transaction, "commit", twice)


@defect(BOTH, "I2 I3 I5")
def token_read_before_the_producer_is_initialised(change: Change) -> None:
    """'Init -> token -> rows' in another order: what was read before may have changed since."""
    read, glance = Slot.read_token, Slot.last_committed

    def stale(self: Any, fence: Any = None, patience: Any = None) -> Any:
        return self.__dict__.pop("stale") if "stale" in self.__dict__ else read(self, fence, patience)

    def look(self: Any, *args: Any) -> Any:
        found = glance(self, *args)
        self.__dict__["stale"] = found
        return found

    change(Slot, "read_token", stale)
    change(Slot, "last_committed", look)


@defect(KAFKA, "I2 I3", at=86)
def lost_reply_taken_as_failure(change: Change) -> None:
    """A commit without an answer is sent again, whatever the token says."""
    judge = tokens.judge

    def again(token: Any, expected: Any, fence: Fence, *, may_wait: bool) -> Any:
        status = judge(token, expected, fence, may_wait=may_wait)
        return tokens.TokenStatus.READY if status is tokens.TokenStatus.DONE else status

    everywhere(change, judge, again)


@defect(FORGETTING, "I2 I3 I4", seed=10)
def vanished_token_taken_for_never(change: Change) -> None:
    """R12: group offsets expire, and then look as if nothing had been delivered."""
    judge, read = tokens.judge, Slot.read_token

    def lenient(token: Any, expected: Any, fence: Fence, *, may_wait: bool) -> Any:
        try:
            return judge(token, expected, fence, may_wait=may_wait)
        except TokenLostError:
            return tokens.TokenStatus.READY

    def made_up(self: Any, fence: Any = None, patience: Any = None) -> Any:
        found = read(self, fence, patience)
        return found or (tokens.genesis(fence, 1, datetime.now(UTC)) if fence else None)

    everywhere(change, judge, lenient)
    change(Slot, "read_token", made_up)


@defect(replace(RESTORED, sinks=KAFKA.sinks), "I2 I3 I9", seed=55)
def token_at_or_above_taken_for_delivered(change: Change) -> None:
    """R12: '>=' in place of 'this number, with this digest'."""
    judge = tokens.judge

    def above(token: Any, expected: Any, fence: Fence, *, may_wait: bool) -> Any:
        if token is not None and token.number >= expected.number:
            return tokens.TokenStatus.DONE
        return judge(token, expected, fence, may_wait=may_wait)

    attempts_not_compared(change)
    everywhere(change, judge, above)
    change(tokens.Token, "delivery", lambda self, number: tokens.Delivery(number, _digest_of(self), {"copies": 1}))
    change(KafkaParticipant, "proof", lambda self, plan: invented(self, plan))


def _digest_of(token: Any) -> str:
    return str(token.history[-1].digest) if token.history else ""


@defect(BOTH, "I2 I9")
def failed_commit_swallowed_and_confirmed_without_proof(change: Change) -> None:
    commit = KafkaParticipant.commit

    def swallow(self: Any, plan: Any, fence: Fence, vote: Any = None, **rest: Any) -> Any:
        try:
            return commit(self, plan, fence, vote, **rest)
        except SinkUnavailableError:
            return None

    change(KafkaParticipant, "commit", swallow)
    change(KafkaParticipant, "proof", lambda self, plan: invented(self, plan))


# --- decisions ---------------------------------------------------------------------------------------------------


@defect(BOTH, "I3")
def followers_commit_before_the_decision(change: Change) -> None:
    def eager(self: Any, number: int, participant: str, **rest: Any) -> Any:
        checkpoint = self._store.checkpoint(self._pipeline, number)
        if checkpoint.state is S.PREPARED:
            for name in [p.name for p in checkpoint.plan.participants if p.name != checkpoint.plan.commit_point]:
                attempt = self._store.begin_attempt(self._pipeline, self.epoch, number, name)
                with self._open(checkpoint.plan, name) as sink:
                    sink.commit(checkpoint.plan, self._fence(attempt), checkpoint.votes[name])
        return commit(self, number, participant, **rest)

    commit = coordinator.Coordinator.commit
    change(coordinator.Coordinator, "commit", eager)


@defect(replace(TWO_PHASE, runs=(1,), parallel=True), "I3", pairs=True, at=669)
def decision_that_counts_no_attempts(change: Change) -> None:
    """R7: a decision lands on branches that a newer attempt has rolled back."""
    decide = ModelStore.decide

    def unchecked(self: ModelStore, pipeline: str, epoch: int, number: int, *based_on: Any) -> Any:
        self._require_epoch(pipeline, epoch)
        row = self._row(number)
        if row.state is not S.PREPARED:
            return decide(self, pipeline, epoch, number, *based_on)
        assert row.plan is not None
        self.version += 1
        self._delivered |= {p.name: number for p in row.plan.participants}
        return self._move(row, S.COMMITTING)

    change(ModelStore, "decide", unchecked)


@defect(NAMED["a person aborts what is prepared"], "I7")
def prepared_branches_left_behind_by_an_abort(change: Change) -> None:
    change(coordinator.Coordinator, "_roll_back", lambda self, checkpoint: checkpoint)


@defect(BOTH, "I5", real_store=True)
def epoch_not_compared_by_the_decision_log(change: Change) -> None:
    change(PipelineWrite, "require_epoch", lambda self, epoch: None)


@defect(NAMED["several numbers delivered as one"], "I2 I3 I4 I7")
def prepared_number_subsumed(change: Change) -> None:
    """R9: only what no sink can have seen may travel with another number."""
    live = planning.live_plans

    def committing(checkpoints: Any) -> Any:
        return [c for c in live(checkpoints) if c.state is S.COMMITTING]

    free = planning.free_segments

    def freer(checkpoints: Any) -> Any:
        with patch.object(planning, "live_plans", committing):
            return free(checkpoints)

    everywhere(change, free, freer)
    change(ModelStore, "_require_deliverable", lambda *_: None)


@defect(CARRIED, "I4 I7")
def later_prepared_numbers_not_aborted_with_an_earlier_one(change: Change) -> None:
    def alone(self: Any, number: int, reason: Any, message: str, after: AfterAbort) -> Any:
        return self._abort_one(self._store.checkpoint(self._pipeline, number), reason, message, after)

    change(coordinator.Coordinator, "abort", alone)


@defect(CARRIED, "I4 I7 I9 I10")
def carried_segments_forgotten(change: Change) -> None:
    """R2: Spark's positions have passed the rows of an aborted number."""
    free = planning.free_segments
    lost = {S.ABORTED, S.SUBSUMED}
    everywhere(change, free, lambda checkpoints: free([c for c in checkpoints if c.state not in lost]))


# --- staging and retention ---------------------------------------------------------------------------------------


@defect(BOTH, "I4 I9 I10", real_store=True)
def publication_without_a_predecessor(change: Change) -> None:
    """An attempt goes on after a publication without an answer, and the log does not ask what it follows."""
    change(staging, "_require_order", lambda *_: None)
    stage = World._stage

    def stubborn(self: World, context: Any, items: int) -> None:
        publish = self.store.publish

        def shrug(*args: Any) -> None:
            with suppress(StoreUnavailableError):
                publish(*args)

        with patch.object(self.store, "publish", shrug):
            stage(self, context, items)

    change(World, "_stage", stubborn)


@defect(replace(GIVEN_UP, events=("db refuses item 1",), event_weight=20), "I1 I3 I4 I9 I10", seed=5)
def rewind_without_forbidding_publication(change: Change) -> None:
    abort = ModelStore.abort

    def forgetful(self: ModelStore, *args: Any, **kwargs: Any) -> Any:
        result = abort(self, *args, **kwargs)
        self._needs_stage = False
        return result

    change(ModelStore, "abort", forgetful)
    write = PipelineWrite.set_pipeline

    def in_the_real_log(self: PipelineWrite, **columns: object) -> None:
        write(self, **{**columns, **({"needs_stage": 0} if "needs_stage" in columns else {})})

    change(PipelineWrite, "set_pipeline", in_the_real_log)


@defect(BOTH, "I1 I4 I9 I10")
def location_of_a_dead_attempt_continued_as_it_is(change: Change) -> None:
    """R4: without the copy cut back to the last published batch, what was only computed counts as published."""
    change(World, "cut_back", False)


@defect(NAMED["two-phase and Kafka, side by side"], "I10")
def segments_deleted_before_they_are_delivered(change: Change) -> None:
    change(ModelStore, "prunable", lambda self, *_: [c for c in self._rows.values() if c.segment])
    change(ModelStore, "prune", lambda *_: None)


@defect(NAMED["tasks side by side"], "I7", seed=10, at=118)
def sinks_not_kept_in_order(change: Change) -> None:
    """A task that passed an undecided number by goes on with the next one (found by the simulator)."""
    change(coordinator.Coordinator, "_require_delivered", lambda *_: None)


@defect(TWO_PHASE, "I3 I7", seed=2)
def vote_taken_back_and_never_given_again(change: Change) -> None:
    """A late attempt takes a vote back after PREPARED (found by the simulator)."""
    everywhere(change, planning.wants_vote, lambda checkpoint, _: checkpoint.state is S.STAGED)


@defect(replace(BOTH, name="the first delivery"), "I7", at=137)
def markers_without_a_head_taken_for_a_lost_head(change: Change) -> None:
    """A zombie found no head; its successor made one, and a marker (found by the simulator)."""

    def refuse(session: Any, ledger: Ledger) -> None:
        with patch.object(Ledger, "head", lambda *_, **__: None):
            original(session, ledger)

    original = fencing._refuse_markers_without_head
    change(fencing, "_refuse_markers_without_head", refuse)
