"""Delivery: the votes, the decision, the proofs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from airflow_ft.protocol.errors import StateConflictError
from airflow_ft.protocol.model import Checkpoint, CheckpointState, Plan, Promise
from airflow_ft.protocol.numbers import count_text, numbers_text
from airflow_ft.protocol.set_aside import of_checkpoint, of_proof
from airflow_ft.protocol.timing import Timing
from airflow_ft.protocol.votes import Outcome, Proof
from airflow_ft.store.checkpoint_rows import proof_text
from airflow_ft.store.database import Database
from airflow_ft.store.events import EventKind
from airflow_ft.store.planning import remember_delivery
from airflow_ft.store.quarantine import require_nothing_quarantined
from airflow_ft.store.rows import json_text, to_time
from airflow_ft.store.writing import PipelineWrite, pipeline_write

S = CheckpointState


class DeliveryOperations:
    """The part of the store that delivers."""

    _database: Database

    def begin_attempt(
        self, pipeline: str, epoch: int, number: int, participant: str, *, quarantined: bool = False
    ) -> int:
        """See `DeliveryLog.begin_attempt`; also PipelineHaltedError.

        Before the decision it takes back the vote of a TWO_PHASE participant. The new attempt may roll back what the
        older one prepared, so no decision may still count the older vote (R7).
        """
        with pipeline_write(self._database, pipeline) as write:
            write.require_epoch(epoch)
            write.require_active()
            checkpoint = write.checkpoint(number)
            states = {S.STAGED, S.PREPARED, S.COMMITTING} | ({S.QUARANTINED} if quarantined else set())
            if checkpoint.state not in states and not checkpoint.rollback_pending:
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
        """See `DeliveryLog.vote`; repeated: no effect. In PREPARED it renews a vote that `begin_attempt` took back."""
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
            if checkpoint.state is S.STAGED and set(_prepared(checkpoint)) == set(plan.names):
                write.move(
                    checkpoint,
                    S.PREPARED,
                    f"every participant is prepared ({_attempts_text(_prepared(checkpoint))}), by epoch {epoch}",
                    prepared_at=write.now,
                )
            return write.checkpoint(number)

    def decide(
        self, pipeline: str, epoch: int, number: int, prepared: Mapping[str, int], proof: Proof | None = None
    ) -> Checkpoint:
        """See `DeliveryLog.decide`."""
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
            if proof is not None and proof.participant == plan.commit_point:
                _require_committed(write, number, plan, proof)  # it is decided, with or without votes
            elif set(votes) != set(plan.names) or dict(prepared) != votes:
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
            remember_delivery(write, plan)
            return decided

    def record_proof(self, pipeline: str, epoch: int, number: int, proof: Proof) -> Checkpoint:
        """See `DeliveryLog.record_proof`."""
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
            if all(checkpoint.votes[name].proof is not None for name in plan.names):
                _complete(write, checkpoint, plan)
            return write.checkpoint(number)


def _require_participant(write: PipelineWrite, checkpoint: Checkpoint, participant: str) -> Plan:
    if checkpoint.plan is None:
        raise write.conflict(checkpoint.number, "it has no plan yet.", code="plan_conflict")
    if participant not in checkpoint.plan.names:
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
        delivered_rows=rows,
    )
    write.confirmed += len({*numbers, checkpoint.number})
    completed = replace(checkpoint, state=S.COMPLETED, completed_at=to_time(write.now))
    size = sum(segment.bytes for segment in plan.segments)
    write.completed.append(Timing.of(completed)._replace(rows=rows, bytes=size))
    for number in numbers:
        part = write.checkpoint(number)
        if part.delivered_by is not None:
            # I2: `plan` has excluded it. If it happens all the same, no process may continue.
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
