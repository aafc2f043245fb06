"""Going past the sinks of a lost decision log (`airflow_ft.protocol.adoption`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_ft.protocol.model import AfterAbort, CheckpointState
from airflow_ft.protocol.pipelines import PipelineStatus
from airflow_ft.protocol.reasons import AbortReason
from airflow_ft.protocol.transitions import MAY_BE_VISIBLE
from airflow_ft.store.aborting import unresolved
from airflow_ft.store.database import Database
from airflow_ft.store.events import EventKind
from airflow_ft.store.rows import clean_text
from airflow_ft.store.writing import pipeline_write

S = CheckpointState


class AdoptionOperations:
    """The part of the store that takes a pipeline over."""

    _database: Database

    def adopt(
        self,
        pipeline: str,
        epoch: int,
        delivered: Mapping[str, int] | None,
        who: str,
        *,
        expected: int,
        choice: Mapping[str, Any] | None = None,
    ) -> int:
        """See `AdminLog.adopt`."""
        with pipeline_write(self._database, pipeline) as write:
            write.require_understood()
            if write.row["status"] != PipelineStatus.HALTED.value:
                raise write.conflict(
                    0,
                    f"the pipeline is {write.row['status']}, not HALTED: there is nothing to adopt.",
                    code="action_refused",
                    remedy=f"Do nothing. `airflow ft doctor {pipeline}` checks whether the pipeline works.",
                    status=write.row["status"],
                )
            if (current := write.row["epoch"]) != expected:
                raise write.conflict(
                    0,
                    f"the pipeline has epoch {current}, not {expected}: another process worked on it.",
                    code="epoch_taken",
                    remedy=f"Run `airflow ft adopt {pipeline}` again.",
                    epoch=expected,
                    current=current,
                )
            checkpoints = write.open_checkpoints() if delivered is not None else []
            delivered = delivered or {}
            for checkpoint in checkpoints:
                # The sinks may hold its markers. Recovery, or a person, settles it first.
                if checkpoint.state in MAY_BE_VISIBLE:
                    raise unresolved(write, checkpoint, "it must be delivered or aborted before the sinks are adopted")
            mine: int = max(write.row["epoch"], epoch) + 1
            newest = max(delivered.values(), default=0)
            write.change("DELETE FROM lease WHERE pipeline = ?", pipeline)
            write.set_pipeline(epoch=mine, next_number=max(write.row["next_number"], newest + 1))
            for checkpoint in checkpoints:
                published = checkpoint.state is S.STAGED
                # A sink would refuse a number that is not above its fence's floor.
                moves = published and (checkpoint.plan is not None or checkpoint.number <= newest)
                if checkpoint.state is S.TRIGGERED or moves:
                    reason = AbortReason.SUPERSEDED if published else AbortReason.ATTEMPT_ENDED
                    message = "the sinks were adopted; its rows are delivered under a number above theirs."
                    write.abort(checkpoint, reason, message, AfterAbort.CARRIED, rolls_back=False)
            for participant, number in delivered.items():
                write.change(
                    "INSERT INTO delivery (pipeline, participant, number) VALUES (?, ?, ?)"
                    " ON CONFLICT (pipeline, participant) DO UPDATE SET number = excluded.number",
                    pipeline,
                    participant,
                    number,
                )
            delivered_text = ", ".join(f"{name} at {number}" for name, number in sorted(delivered.items()))
            write.event(
                EventKind.ADOPTED,
                clean_text(
                    f"its sinks were adopted by {who} ({delivered_text or 'each number keeps its place'}); epoch {mine}"
                ),
                detail={"delivered": dict(delivered), "epoch": mine} | ({"choice": choice} if choice else {}),
            )
            return mine
