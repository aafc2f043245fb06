"""Delivery: the plan, the votes, the decision, the proofs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from airflow_ft.protocol.errors import ConfigurationError, StateConflictError
from airflow_ft.protocol.model import (
    AfterAbort,
    Checkpoint,
    CheckpointState,
    Former,
    Outcome,
    Plan,
    Promise,
    Proof,
    Segment,
)
from airflow_ft.protocol.numbers import count_text, numbers_text
from airflow_ft.protocol.set_aside import of_checkpoint, of_proof
from airflow_ft.protocol.timing import Timing
from airflow_ft.store.database import Database
from airflow_ft.store.events import EventKind, plan_text
from airflow_ft.store.quarantine import require_nothing_quarantined
from airflow_ft.store.rows import json_text, proof_text, to_pipeline, to_time
from airflow_ft.store.writing import PipelineWrite, pipeline_write

S = CheckpointState


class DeliveryOperations:
    """The part of the store that delivers."""

    _database: Database
    _installation: str

    def plan(self, pipeline: str, epoch: int, plan: Plan) -> Plan:
        """See `Store.plan`; ConfigurationError for a plan that no state of the store could accept."""
        self._check_shape(pipeline, plan)
        with pipeline_write(self._database, pipeline) as write:
            write.require_epoch(epoch)
            write.require_active()
            checkpoint = write.checkpoint(plan.number)
            if checkpoint.plan is not None and checkpoint.state in (S.STAGED, S.PREPARED, S.COMMITTING, S.COMPLETED):
                return checkpoint.plan
            if checkpoint.state is not S.STAGED:
                raise write.wrong_state(checkpoint, "only a STAGED checkpoint can be planned")
            require_nothing_quarantined(write, plan.number)
            _require_own_segment(write, checkpoint, plan)
            parts = [_require_deliverable(write, plan.number, segment) for segment in plan.segments]
            plan = _with_former(plan, to_pipeline(write.row).former)
            own = {} if checkpoint.segment is None else {"planned_by": plan.number}
            write.update_checkpoint(checkpoint, plan=json_text(plan.to_json()), **own)
            write.event(EventKind.PLANNED, plan_text(plan), number=plan.number, detail={"digest": plan.digest})
            for part in parts:
                if part.number == plan.number:
                    continue
                if part.state is S.STAGED:
                    write.move(
                        part,
                        S.SUBSUMED,
                        f"delivered together with checkpoint {plan.number}",
                        planned_by=plan.number,
                        subsumed_by=plan.number,
                    )
                elif part.state is S.SUBSUMED:  # by a number that was aborted: now by this one
                    write.update_checkpoint(part, planned_by=plan.number, subsumed_by=plan.number)
                else:
                    write.update_checkpoint(part, planned_by=plan.number)
            if not plan.mode.waits:
                _decide_at_once(write, write.checkpoint(plan.number), plan)
            stored = write.checkpoint(plan.number).plan
            assert stored is not None
            return stored

    def begin_attempt(self, pipeline: str, epoch: int, number: int, participant: str) -> int:
        """See `Store.begin_attempt`; also PipelineHaltedError.

        Before the decision it takes back the vote of a TWO_PHASE participant: the new attempt may roll back what the
        older one prepared, so a decision that counts the older vote must not arrive any more (R7).
        """
        with pipeline_write(self._database, pipeline) as write:
            write.require_epoch(epoch)
            write.require_active()
            checkpoint = write.checkpoint(number)
            if checkpoint.state not in (S.STAGED, S.PREPARED, S.COMMITTING) and not checkpoint.rollback_pending:
                raise write.wrong_state(checkpoint, "an attempt needs a STAGED, PREPARED or COMMITTING checkpoint")
            plan = _require_participant(write, checkpoint, participant)
            attempt = write.draw("next_attempt")
            vote = checkpoint.votes.get(participant)
            taken_back = (
                vote is not None
                and vote.prepared > 0
                and checkpoint.state is not S.COMMITTING
                and plan.participant(participant).promise is Promise.TWO_PHASE
            )
            prepared = 0 if vote is None or taken_back else vote.prepared
            write.change(
                "INSERT INTO vote (pipeline, number, participant, attempt, prepared) VALUES (?, ?, ?, ?, 0)"
                " ON CONFLICT (pipeline, number, participant) DO UPDATE SET attempt = excluded.attempt, prepared = ?",
                pipeline,
                number,
                participant,
                attempt,
                prepared,
            )
            write.event(
                EventKind.ATTEMPT,
                f"attempt {attempt} at {participant}, by epoch {epoch}"
                + ("; its earlier vote no longer counts" if taken_back else ""),
                number=number,
                detail={"participant": participant, "attempt": attempt},
            )
            return attempt

    def vote(
        self,
        pipeline: str,
        epoch: int,
        number: int,
        participant: str,
        attempt: int,
        notes: Mapping[str, Any] | None = None,
    ) -> Checkpoint:
        """See `Store.vote`; repeated: no effect. In PREPARED it renews a vote that `begin_attempt` took back."""
        with pipeline_write(self._database, pipeline) as write:
            write.require_epoch(epoch)
            write.require_active()
            checkpoint = write.checkpoint(number)
            plan = _require_participant(write, checkpoint, participant)
            vote = checkpoint.votes.get(participant)
            if vote is None or vote.attempt != attempt:
                newest = "none" if vote is None else str(vote.attempt)
                raise write.conflict(
                    number,
                    f"attempt {attempt} cannot vote: the newest attempt is {newest}.",
                    code="vote_outdated",
                    participant=participant,
                    attempt=attempt,
                    newest=0 if vote is None else vote.attempt,
                )
            if vote.prepared == attempt:
                return checkpoint
            if checkpoint.state not in (S.STAGED, S.PREPARED):
                raise write.wrong_state(checkpoint, "votes count only while it is STAGED or PREPARED")
            write.update_vote(number, participant, prepared=attempt, notes=json_text(dict(notes or {})), problem=None)
            write.event(
                EventKind.VOTED,
                f"{participant} is prepared (attempt {attempt}), by epoch {epoch}",
                number=number,
                detail={"participant": participant, "attempt": attempt},
            )
            checkpoint = write.checkpoint(number)
            if checkpoint.state is S.STAGED and set(_prepared(checkpoint)) == {p.name for p in plan.participants}:
                write.move(
                    checkpoint,
                    S.PREPARED,
                    f"every participant is prepared ({_attempts_text(_prepared(checkpoint))}), by epoch {epoch}",
                    prepared_at=write.now,
                )
            return write.checkpoint(number)

    def decide(self, pipeline: str, epoch: int, number: int, prepared: Mapping[str, int]) -> Checkpoint:
        """See `Store.decide`."""
        with pipeline_write(self._database, pipeline) as write:
            write.require_epoch(epoch)
            checkpoint = write.checkpoint(number)
            if checkpoint.state in (S.COMMITTING, S.COMPLETED):
                return checkpoint
            write.require_active()
            plan = checkpoint.plan
            if checkpoint.state is not S.PREPARED or plan is None:
                raise write.wrong_state(checkpoint, "only a PREPARED checkpoint can be decided")
            require_nothing_quarantined(write, number)
            votes = _prepared(checkpoint)
            if set(votes) != {p.name for p in plan.participants} or dict(prepared) != votes:
                # R7: a decision may only land on the very attempts that it counts.
                raise write.conflict(
                    number,
                    f"the decision counts the votes {_attempts_text(prepared)}, but the decision log has"
                    f" {_attempts_text(votes)}.",
                    code="vote_outdated",
                    counted=dict(prepared),
                    stored=votes,
                )
            write.move(
                checkpoint,
                S.COMMITTING,
                f"will be committed everywhere, counting {_attempts_text(votes)}, by epoch {epoch}",
                detail={"prepared": votes, "digest": plan.digest},
                decided_at=write.now,
            )
            decided = write.checkpoint(number)
            _remember_delivery(write, plan)
            return decided

    def record_proof(self, pipeline: str, epoch: int, number: int, proof: Proof) -> Checkpoint:
        """See `Store.record_proof`."""
        text = proof_text(proof)
        with pipeline_write(self._database, pipeline) as write:
            write.require_epoch(epoch)
            checkpoint = write.checkpoint(number)
            plan = _require_participant(write, checkpoint, proof.participant)
            _require_committed(write, number, plan, proof)
            if checkpoint.state not in (S.COMMITTING, S.COMPLETED):
                raise write.wrong_state(checkpoint, "a proof needs a decided checkpoint")
            if checkpoint.votes[proof.participant].proof is not None:
                return checkpoint
            write.update_vote(number, proof.participant, proof=text)
            counts = "; ".join(f"{sink} {rows:,}" for sink, rows in proof.counts.items())
            aside = of_proof(proof)
            write.event(
                EventKind.PROVEN,
                "; ".join(
                    [
                        f"{proof.participant} has committed it ({counts}), under the marker of epoch {proof.epoch}",
                        *(each.text(sink) for sink, each in aside.items()),
                    ]
                ),
                number=number,
                detail={"participant": proof.participant, "counts": dict(proof.counts)}
                | ({"set_aside": {sink: each.rows for sink, each in aside.items()}} if aside else {}),
            )
            checkpoint = write.checkpoint(number)
            if all(checkpoint.votes[p.name].proof is not None for p in plan.participants):
                _complete(write, checkpoint, plan)
            return write.checkpoint(number)

    def finalise(self, pipeline: str, number: int) -> None:
        """See `Store.finalise`; COMPLETED only, with the numbers that it delivered. Repeated: no effect."""
        with pipeline_write(self._database, pipeline) as write:
            checkpoint = write.checkpoint(number)
            if checkpoint.state is not S.COMPLETED or checkpoint.plan is None:
                raise write.wrong_state(checkpoint, "only a COMPLETED checkpoint can be finalised")
            if checkpoint.finalised:
                return
            for each in sorted({number, *(segment.number for segment in checkpoint.plan.segments)}):
                write.update_checkpoint(write.checkpoint(each), finalised=1)
            write.event(EventKind.FINALISED, "what follows confirmation is done", number=number)

    def prune(self, pipeline: str, number: int) -> None:
        """See `Store.prune`; StateConflictError for what no COMPLETED number has delivered. Repeated: no effect."""
        with pipeline_write(self._database, pipeline) as write:
            checkpoint = write.checkpoint(number)
            if checkpoint.segment is None or checkpoint.delivered_by is None:
                # I10: a segment is deleted only after the number that delivered it is confirmed.
                raise write.conflict(
                    number,
                    "no completed checkpoint has delivered its rows, so its segment stays.",
                    code="checkpoint_unresolved",
                    state=checkpoint.state.value,
                )
            pruned = write.change(
                "UPDATE checkpoint SET pruned_at = ? WHERE pipeline = ? AND number = ? AND pruned_at IS NULL",
                write.now,
                pipeline,
                number,
            )
            if pruned:
                write.event(
                    EventKind.PRUNING,
                    f"its files at {checkpoint.segment.location} are being deleted; checkpoint"
                    f" {checkpoint.delivered_by} has delivered them",
                    number=number,
                )

    def _check_shape(self, pipeline: str, plan: Plan) -> None:
        """Check what a plan shows without reading anything."""
        numbers = [segment.number for segment in plan.segments]
        names = [participant.name for participant in plan.participants]
        part, wrong = "", ""
        if plan.pipeline != pipeline:
            part, wrong = "pipeline", f"its pipeline is {plan.pipeline!r}"
        elif plan.installation != self._installation:
            part, wrong = "installation", f"its installation is {plan.installation}, not {self._installation}"  # I8
        elif not names or len(set(names)) != len(names):
            part, wrong = "participants", "it has no participant, or one twice"
        elif plan.commit_point is not None and plan.commit_point not in names:
            part, wrong = "commit_point", f"its commit point {plan.commit_point!r} is not one of its participants"
        elif not numbers:
            part, wrong = "segments", "it has no segments"
        elif numbers != sorted(set(numbers)) or numbers[-1] > plan.number:
            part, wrong = "order", f"its segments {numbers} are not in ascending order up to {plan.number}"  # I4
        if wrong:
            raise ConfigurationError(
                f"the decision log refuses this plan: {wrong}.",
                code="plan_invalid",
                remedy="Make a new plan from the state in the decision log.",
                part=part,
                pipeline=pipeline,
                checkpoint=plan.number,
            )


def _with_former(plan: Plan, former: Former | None) -> Plan:
    if former is None:
        return plan
    return replace(
        plan,
        participants=tuple(
            replace(each, former=former if each.keeps_markers and not each.predecessor else None)
            for each in plan.participants
        ),
    )


def _decide_at_once(write: PipelineWrite, checkpoint: Checkpoint, plan: Plan) -> None:
    for participant in plan.participants:
        write.change(
            "INSERT INTO vote (pipeline, number, participant, attempt, prepared) VALUES (?, ?, ?, 0, 0)",
            write.name,
            plan.number,
            participant.name,
        )
    write.move(
        checkpoint,
        S.COMMITTING,
        f"will be committed everywhere, without votes ({plan.mode.value}), by epoch {write.row['epoch']}",
        detail={"digest": plan.digest},
        decided_at=write.now,
    )
    _remember_delivery(write, plan)


def _remember_delivery(write: PipelineWrite, plan: Plan) -> None:
    for participant in plan.participants:
        if participant.keeps_markers:
            write.change(
                "INSERT INTO delivery (pipeline, participant, number) VALUES (?, ?, ?)"
                " ON CONFLICT (pipeline, participant) DO UPDATE SET number = excluded.number"
                " WHERE delivery.number < excluded.number",
                write.name,
                participant.name,
                plan.number,
            )


def _require_own_segment(write: PipelineWrite, checkpoint: Checkpoint, plan: Plan) -> None:
    own = checkpoint.segment is not None
    if own != (plan.segments[-1].number == plan.number):
        raise write.conflict(
            plan.number,
            "its own segment must be the last one of its plan." if own else "it has no segment of its own to deliver.",
            code="plan_conflict",
        )


def _require_deliverable(write: PipelineWrite, number: int, segment: Segment) -> Checkpoint:
    """The checkpoint of a segment that `number` may deliver: no other number does, did, or will compute it again."""
    part = write.checkpoint(segment.number)

    def conflict(what: str, **fields: Any) -> StateConflictError:
        return write.conflict(
            number, f"segment {segment.number} {what}.", code="plan_conflict", segment=segment.number, **fields
        )

    if part.segment != segment:
        raise conflict("of the plan differs from the published one")  # I1
    if part.delivered_by is not None:
        raise conflict(f"was delivered by checkpoint {part.delivered_by}", other=part.delivered_by)  # I2
    if part.after_abort is AfterAbort.REWOUND:
        raise conflict("was rewound: a run computes its rows again", state=part.state.value)  # I2
    rows = write.rows(
        "SELECT p.number, p.state FROM checkpoint c"
        " JOIN checkpoint p ON p.pipeline = c.pipeline AND p.number = c.planned_by"
        " WHERE c.pipeline = ? AND c.number = ?",
        write.name,
        segment.number,
    )
    if rows and rows[0]["number"] != number and rows[0]["state"] != S.ABORTED.value:
        raise conflict(f"is in the plan of checkpoint {rows[0]['number']}", other=rows[0]["number"])
    if part.state not in (S.STAGED, S.SUBSUMED, S.ABORTED):
        # R9: only what no sink can have seen travels with another number.
        raise conflict(f"is {part.state.value}: no other checkpoint can deliver it", state=part.state.value)
    return part


def _require_participant(write: PipelineWrite, checkpoint: Checkpoint, participant: str) -> Plan:
    if checkpoint.plan is None:
        raise write.conflict(checkpoint.number, "it has no plan yet.", code="plan_conflict")
    if participant not in {p.name for p in checkpoint.plan.participants}:
        raise write.conflict(
            checkpoint.number,
            "the plan of the checkpoint does not include this participant.",
            code="plan_conflict",
            participant=participant,
        )
    return checkpoint.plan


def _require_committed(write: PipelineWrite, number: int, plan: Plan, proof: Proof) -> None:
    """I6: only a marker of this very plan, saying 'committed', proves anything."""
    if proof.outcome is not Outcome.COMMITTED or proof.number != number or proof.digest != plan.digest:
        raise StateConflictError(
            f"the marker in the sink says {proof.outcome.value}, checkpoint {proof.number}, digest"
            f" {proof.digest[:12]}. The plan has checkpoint {number}, digest {plan.digest[:12]}.",
            code="marker_mismatch",
            remedy="Change nothing. Compare the sink's ledger with `airflow ft show"
            f" {write.name} {number}`, and see docs/recovery.md.",
            pipeline=write.name,
            checkpoint=number,
            participant=proof.participant,
        )


def _complete(write: PipelineWrite, checkpoint: Checkpoint, plan: Plan) -> None:
    numbers = [segment.number for segment in plan.segments]
    aside = sum(each.rows for each in of_checkpoint(checkpoint).values())
    rows = sum(segment.total_rows for segment in plan.segments) - aside
    write.move(
        checkpoint,
        S.COMPLETED,
        f"{count_text(rows, 'row')} of {numbers_text(numbers)} proven in every sink"
        + (f", {count_text(aside, 'was', 'were')} refused and set aside" if aside else "")
        + f", by epoch {write.row['epoch']}",
        completed_at=write.now,
    )
    write.confirmed += len({*numbers, checkpoint.number})
    completed = replace(checkpoint, state=S.COMPLETED, completed_at=to_time(write.now))
    write.completed.append(Timing.of(completed))
    for number in numbers:
        part = write.checkpoint(number)
        if part.delivered_by is not None:
            # I2: `plan` has excluded it; if it happens all the same, nobody may go on.
            raise write.conflict(
                checkpoint.number,
                f"checkpoint {part.delivered_by} has delivered segment {number} already.",
                code="plan_conflict",
                segment=number,
                other=part.delivered_by,
            )
        write.update_checkpoint(part, delivered_by=checkpoint.number)
        if number != checkpoint.number:
            write.event(EventKind.DELIVERED, f"with checkpoint {checkpoint.number}", number=number)


def _prepared(checkpoint: Checkpoint) -> dict[str, int]:
    """The attempt that voted yes, of each participant that has."""
    return {name: vote.prepared for name, vote in sorted(checkpoint.votes.items()) if vote.prepared > 0}


def _attempts_text(attempts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {attempt}" for name, attempt in sorted(attempts.items())) or "none"
