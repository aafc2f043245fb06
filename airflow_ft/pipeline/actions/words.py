"""A checkpoint in few words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_ft.protocol.model import AfterAbort, Checkpoint, CheckpointingMode, CheckpointState
from airflow_ft.protocol.numbers import count_text
from airflow_ft.protocol.set_aside import of_checkpoint

if TYPE_CHECKING:
    from airflow_ft.store.decision_log import DecisionLog


def rows_text(checkpoint: Checkpoint) -> str:
    """Rows over all sinks, with their noun."""
    return count_text(checkpoint.segment.total_rows if checkpoint.segment else 0, "row")


def state_text(checkpoint: Checkpoint) -> str:
    """The state, and what became of the rows."""
    text = checkpoint.state.value
    if checkpoint.reason is not None:
        text += (
            f" ({checkpoint.reason}, {checkpoint.after_abort})" if checkpoint.after_abort else f" ({checkpoint.reason})"
        )
    if checkpoint.state is not CheckpointState.COMPLETED and checkpoint.delivered_by:
        text += f", delivered by {checkpoint.delivered_by}"
    if aside := sum(each.rows for each in of_checkpoint(checkpoint).values()):
        text += f", {count_text(aside, 'row')} set aside"
    return text


def fate_text(store: DecisionLog, pipeline: str, after: AfterAbort) -> str:
    """Return what becomes of the rows of a checkpoint that is given up."""
    return "lost (AT_MOST_ONCE)" if after is AfterAbort.REWOUND and loses_rows(store, pipeline) else after.value


def loses_rows(store: DecisionLog, pipeline: str) -> bool:
    """Return whether what is computed again is lost: its newest checkpoint was made with AT_MOST_ONCE."""
    known = next((found.spec for found in store.checkpoints(pipeline) if found.spec), "")
    made_with = store.spec(known) if known else {}
    return bool(made_with.get("checkpointing", {}).get("mode") == CheckpointingMode.AT_MOST_ONCE)
