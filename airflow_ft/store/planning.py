"""The plan of a checkpoint: which segments are delivered together, and to whom."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from airflow_ft.protocol.errors import ConfigurationError, StateConflictError
from airflow_ft.protocol.model import (
    AfterAbort,
    Checkpoint,
    CheckpointState,
    Former,
    Plan,
    Segment,
)
from airflow_ft.store.database import Database
from airflow_ft.store.events import EventKind, plan_text
from airflow_ft.store.quarantine import require_nothing_quarantined
from airflow_ft.store.rows import json_text, to_pipeline
from airflow_ft.store.writing import PipelineWrite, pipeline_write

S = CheckpointState


class PlanningOperations:
    """The part of the store that plans."""

    _database: Database
    _installation: str

    def plan(self, pipeline: str, epoch: int, plan: Plan) -> Plan:
        """See `DeliveryLog.plan`; ConfigurationError for a plan that no state of the store could accept."""
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

    def _check_shape(self, pipeline: str, plan: Plan) -> None:
        """Check what a plan shows without reading anything."""
        numbers = [segment.number for segment in plan.segments]
        names = plan.names
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
    for name in plan.names:
        write.change(
            "INSERT INTO vote (pipeline, number, participant, attempt, prepared) VALUES (?, ?, ?, 0, 0)",
            write.name,
            plan.number,
            name,
        )
    write.move(
        checkpoint,
        S.COMMITTING,
        f"will be committed everywhere, without votes ({plan.mode.value}), by epoch {write.row['epoch']}",
        detail={"digest": plan.digest},
        decided_at=write.now,
    )
    remember_delivery(write, plan)


def remember_delivery(write: PipelineWrite, plan: Plan) -> None:
    """The number is the last one of each participant that keeps markers."""
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
