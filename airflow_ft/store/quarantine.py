"""QUARANTINED: what cannot be settled without a person is kept whole, and nothing goes past it (I3, I4, I10)."""

from __future__ import annotations

from airflow_ft.protocol.errors import StateConflictError
from airflow_ft.protocol.model import Checkpoint, CheckpointState
from airflow_ft.protocol.transitions import MAY_BE_VISIBLE
from airflow_ft.store.database import Database
from airflow_ft.store.epochs import require_no_other_lease
from airflow_ft.store.rows import shown_text
from airflow_ft.store.writing import PipelineWrite, pipeline_write

S = CheckpointState


class QuarantineOperations:
    """The part of the store that sets a checkpoint aside for a person, and takes it back."""

    _database: Database

    def quarantine(self, pipeline: str, epoch: int, number: int, message: str, *, if_idle: bool = False) -> Checkpoint:
        """See `DeliveryLog.quarantine`. It works on a HALTED pipeline too: it delivers nothing."""
        with pipeline_write(self._database, pipeline) as write:
            write.require_epoch(epoch)
            if if_idle:
                require_no_other_lease(write, {})
            checkpoint = write.checkpoint(number)
            if checkpoint.state is S.QUARANTINED:
                return checkpoint
            for earlier in write.open_checkpoints():
                # I4: the later ones wait for it anyway, and so there is one at most.
                planned = earlier.state is S.STAGED and earlier.plan is not None
                if earlier.number < number and (planned or earlier.state in MAY_BE_VISIBLE):
                    raise earlier_first(write, number, earlier.number, earlier.state.value)
            write.move(
                checkpoint,
                S.QUARANTINED,
                f"kept for a person, from {checkpoint.state}; nothing later is delivered. {message}",
                detail={"from": checkpoint.state.value},
                message=shown_text(message),
            )
            return write.checkpoint(number)

    def release(self, pipeline: str, epoch: int, number: int, message: str) -> Checkpoint:
        """See `AdminLog.release`; also PipelineHaltedError."""
        with pipeline_write(self._database, pipeline) as write:
            write.require_epoch(epoch)
            write.require_active()
            checkpoint = write.checkpoint(number)
            # I3: one that was decided stays decided, one that was not can still be aborted.
            was = S.PREPARED if checkpoint.decided_at is None else S.COMMITTING
            if checkpoint.state is was:
                return checkpoint
            if checkpoint.state is not S.QUARANTINED:
                raise write.wrong_state(checkpoint, "only a QUARANTINED checkpoint can be released")
            write.move(checkpoint, was, f"taken out of quarantine. {message}", message="")
            return write.checkpoint(number)


def require_nothing_quarantined(write: PipelineWrite, number: int) -> None:
    """I4: nothing is planned or decided past a QUARANTINED number."""
    found = write.rows(
        "SELECT number FROM checkpoint WHERE pipeline = ? AND is_open = 1 AND state = ? AND number < ?",
        write.name,
        S.QUARANTINED.value,
        number,
    )
    for row in found:
        raise earlier_first(write, number, row["number"], S.QUARANTINED.value)


def earlier_first(write: PipelineWrite, number: int, earlier: int, state: str) -> StateConflictError:
    """The error for a checkpoint that must wait until an earlier one is delivered or aborted."""
    return write.conflict(
        number,
        f"checkpoint {earlier} is {state} and must be resolved first.",
        code="checkpoint_unresolved",
        remedy=f"Run `airflow ft in-doubt --pipeline {write.name}`: it says what to do.",
        earlier=earlier,
        state=state,
    )
