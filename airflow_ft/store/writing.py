"""One write to the decision log: the pipeline's row locked, conditions checked, rows changed, events appended."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from airflow_ft.core.errors import FencedError, PipelineHaltedError, StateConflictError, require_not_renamed
from airflow_ft.core.model import AbortReason, AfterAbort, Checkpoint, CheckpointState, PipelineStatus, Promise
from airflow_ft.core.ports import Meter
from airflow_ft.core.reasons import failure_text
from airflow_ft.core.timing import Timing
from airflow_ft.core.transitions import is_allowed
from airflow_ft.store.database import Database, Row, Transaction
from airflow_ft.store.errors import UnknownCheckpointError, UnknownPipelineError
from airflow_ft.store.events import EventKind
from airflow_ft.store.rows import clean_text, json_text, select_checkpoints, to_checkpoints

log = logging.getLogger(__name__)

_ONE = select_checkpoints("pipeline = ? AND number = ?")
_OPEN = select_checkpoints("pipeline = ? AND is_open = 1")
_OPEN_IN_STATE = select_checkpoints("pipeline = ? AND is_open = 1 AND state = ?")


_COUNTED = {
    CheckpointState.COMPLETED: "completed",
    CheckpointState.SUBSUMED: "subsumed",
    CheckpointState.ABORTED: "aborted",
}
"""The states that a checkpoint stays in, and the pipeline's columns that count them."""


class PipelineWrite:
    """An open write on one pipeline. `row` is the pipeline's row; change it with `set_pipeline`."""

    def __init__(self, tx: Transaction, row: Row) -> None:
        self.tx = tx
        self.row = row
        self.name: str = row["name"]
        self.now = tx.now()  # read after the row was locked, so times follow the order of the writes
        self.failed: list[tuple[int, AbortReason, str]] = []
        self.confirmed = 0
        self.completed: list[Timing] = []
        self._was = (row["epoch"], row["next_event"])
        self._changed: set[str] = set()

    # conditions
    def require_epoch(self, epoch: int) -> None:
        """The condition of I5: this epoch is the pipeline's own."""
        current = self.row["epoch"]
        if epoch < current:
            raise FencedError(
                f"epoch {epoch} is over, a newer owner holds epoch {current}.",
                remedy="nothing: this process must end; the newer owner finishes or repeats its work.",
                pipeline=self.name,
            )
        if epoch > current:
            raise StateConflictError(
                f"the decision log knows epochs up to {current} only, this process holds {epoch}.",
                remedy="the store was restored from a backup or is another one; end this process, and compare the"
                " sinks with the store before the pipeline goes on.",
                pipeline=self.name,
            )
        if epoch < 1:
            # Two processes that never took an epoch would both be 'current'.
            raise StateConflictError("no epoch was taken yet.", remedy="take an epoch first.", pipeline=self.name)

    def require_active(self) -> None:
        """The pipeline is neither HALTED nor RENAMED."""
        require_not_renamed(PipelineStatus(self.row["status"]), self.row["halt_message"], self.name)
        if self.row["status"] != PipelineStatus.ACTIVE.value:
            raise PipelineHaltedError(
                f"it is HALTED ({self.row['halt_reason']}): {self.row['halt_message']}",
                remedy="settle the cause, then: airflow ft resume.",
                pipeline=self.name,
            )

    def checkpoint(self, number: int) -> Checkpoint:
        """A checkpoint as this write sees it; UnknownCheckpointError when there is none."""
        found = to_checkpoints(self.tx.rows(_ONE, self.name, number))
        if not found:
            raise UnknownCheckpointError(self.name, number)
        return found[0]

    def open_checkpoints(self, state: CheckpointState | None = None) -> list[Checkpoint]:
        """All open ones, or those in this state, ascending."""
        if state is None:
            return to_checkpoints(self.tx.rows(_OPEN, self.name))
        return to_checkpoints(self.tx.rows(_OPEN_IN_STATE, self.name, state.value))

    def conflict(self, number: int, what: str) -> StateConflictError:
        """The error of a condition that does not hold."""
        return StateConflictError(
            what, remedy="read the state again and go on from there.", pipeline=self.name, checkpoint=number
        )

    # changes
    def set_pipeline(self, **columns: object) -> None:
        """Changes columns of the pipeline's row; written at the end of the transaction."""
        self.row.update(columns)
        self._changed.update(columns)

    def draw(self, counter: str) -> int:
        """The value of a counter of the pipeline (`next_number`, `completed`), which is one more from now on."""
        value: int = self.row[counter]
        self.set_pipeline(**{counter: value + 1})
        return value

    def event(self, kind: EventKind, message: str, *, number: int = 0, detail: Mapping[str, Any] | None = None) -> None:
        """Appends a line to the event log."""
        subject = f"checkpoint {number}" if number else f"pipeline {self.name}"
        self.tx.change(
            "INSERT INTO event (pipeline, id, number, at, epoch, kind, message, detail)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            self.name,
            self.draw("next_event"),
            number,
            self.now,
            self.row["epoch"],
            kind.value,
            clean_text(f"{subject} {kind.value}: {message}"),
            json_text(dict(detail or {})),
        )

    def update_checkpoint(self, checkpoint: Checkpoint, **columns: object) -> None:
        """Changes columns of a checkpoint that is still in the state that was read."""
        # Column names are keywords of this package's own calls, never input.
        assignments = ", ".join(f"{name} = ?" for name in columns)
        changed = self.tx.change(
            f"UPDATE checkpoint SET {assignments} WHERE pipeline = ? AND number = ? AND state = ?",
            *columns.values(),
            self.name,
            checkpoint.number,
            checkpoint.state.value,
        )
        if changed != 1:
            raise self.conflict(checkpoint.number, f"it is no longer {checkpoint.state.value}.")

    def move(
        self,
        checkpoint: Checkpoint,
        to: CheckpointState,
        told: str,
        *,
        detail: Mapping[str, Any] | None = None,
        **columns: object,
    ) -> None:
        """One transition of the state machine and its event `told`; StateConflictError when it is not in the table."""
        if not is_allowed(checkpoint.state, to):
            raise self.conflict(checkpoint.number, f"it is {checkpoint.state.value} and cannot become {to.value}.")
        self.update_checkpoint(checkpoint, state=to.value, epoch=self.row["epoch"], **columns)
        if (counter := _COUNTED.get(to)) is not None:
            self.draw(counter)
        self.event(EventKind(to.value), told, number=checkpoint.number, detail=detail)

    def abort(
        self,
        checkpoint: Checkpoint,
        reason: AbortReason,
        message: str,
        after: AfterAbort,
        *,
        rolls_back: bool = True,
    ) -> None:
        """The transition to ABORTED; `after` is kept of what was published.

        `rolls_back`: what TWO_PHASE participants have prepared is still to be ended.
        """
        published = checkpoint.state is not CheckpointState.TRIGGERED
        participants = checkpoint.plan.participants if checkpoint.plan else ()
        prepared = any(p.promise is Promise.TWO_PHASE and p.name in checkpoint.votes for p in participants)
        fate = f", {after.value}" if published else ""
        message = clean_text(message)
        self.move(
            checkpoint,
            CheckpointState.ABORTED,
            f"{reason.value}{fate}, by epoch {self.row['epoch']}: {message}",
            detail={"reason": reason.value, "after": after.value if published else None},
            reason=reason.value,
            message=message,
            after_abort=after.value if published else None,
            rollback_pending=int(prepared and rolls_back),
        )
        self.failed.append((checkpoint.number, reason, message))

    def tell(self, meter: Meter) -> None:
        """Logs and counts what this write has done to checkpoints; to be called when it is done."""
        for number, reason, message in self.failed:
            log.warning("%s", failure_text(self.name, number, reason, message))
            meter.failed(self.name, reason)
        if self.confirmed:
            meter.confirmed(self.name, self.confirmed)
        for timing in self.completed:
            meter.completed(self.name, timing)

    def flush(self) -> None:
        """Writes the pipeline's row, on condition that nobody else did: so even a lost lock could not lose a write."""
        if not self._changed:
            return
        names = sorted(self._changed)
        assignments = ", ".join(f"{name} = ?" for name in names)
        changed = self.tx.change(
            f"UPDATE pipeline SET {assignments} WHERE name = ? AND epoch = ? AND next_event = ?",
            *(self.row[name] for name in names),
            self.name,
            *self._was,
        )
        if changed != 1:
            raise self.conflict(0, "another process wrote at the same moment.")


@contextmanager
def pipeline_write(database: Database, pipeline: str) -> Iterator[PipelineWrite]:
    """A transaction that holds the pipeline's row; UnknownPipelineError when there is none."""
    with database.write() as tx:
        write = lock_pipeline(database, tx, pipeline)
        yield write
        write.flush()
    write.tell(database.meter)


def lock_pipeline(database: Database, tx: Transaction, pipeline: str) -> PipelineWrite:
    """The write of a transaction on one pipeline, to be flushed; UnknownPipelineError when there is none."""
    rows = tx.rows(f"SELECT * FROM pipeline WHERE name = ?{database.row_lock}", pipeline)
    if not rows:
        raise UnknownPipelineError(pipeline)
    return PipelineWrite(tx, rows[0])
