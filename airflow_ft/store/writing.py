"""One write to the decision log: the pipeline's row locked, conditions checked, rows changed, events appended."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from airflow_ft.protocol.errors import (
    AirflowFtError,
    FencedError,
    StateConflictError,
    require_runnable,
    require_understood,
)
from airflow_ft.protocol.meter import MOST_EVENTS, Meter
from airflow_ft.protocol.model import AfterAbort, Checkpoint, CheckpointState, Promise, RunKey
from airflow_ft.protocol.reasons import Reason, failure_text
from airflow_ft.protocol.timing import Timing
from airflow_ft.protocol.transitions import is_allowed
from airflow_ft.store.checkpoint_rows import change_vote, select_checkpoints, to_checkpoints
from airflow_ft.store.completeness import correct_times
from airflow_ft.store.database import Database, Row, Transaction
from airflow_ft.store.errors import UnknownCheckpointError, UnknownPipelineError
from airflow_ft.store.events import EventKind
from airflow_ft.store.rows import EVENTS_OF_ONE, json_text, shown_text, to_event, to_pipeline
from airflow_ft.store.summary import Counts, kept

log = logging.getLogger(__name__)

READ_AGAIN = "Let the task retry, or run the command again: it reads the new state."
"""The remedy when another process was faster."""

_ONE = select_checkpoints("pipeline = ? AND number = ?")
_OPEN = select_checkpoints("pipeline = ? AND is_open = 1")
_OF_DAG = "SELECT max(epoch) AS epoch, min(restored_from) AS restored FROM run WHERE pipeline = ? AND dag_id = ?"
_OPEN_IN_STATE = select_checkpoints("pipeline = ? AND is_open = 1 AND state = ?")

NO_TURN: Mapping[str, Any] = {"turn_dag_id": None, "turn_run_id": None, "turn_map_index": -1}
"""The pipeline's columns while no run has the turn."""
NO_HALT: Mapping[str, Any] = {"halt_reason": None, "halt_code": "", "halt_message": "", "halt_remedy": ""}
"""The pipeline's columns while it is not HALTED."""
_COUNTED = {
    CheckpointState.COMPLETED: "completed",
    CheckpointState.SUBSUMED: "subsumed",
    CheckpointState.ABORTED: "aborted",
}
"""The states that a checkpoint stays in, and the pipeline's columns that count them."""


class PipelineWrite:
    """An open write on one pipeline. `row` is the pipeline's row; change it with `set_pipeline`."""

    def __init__(self, tx: Transaction, row: Row, now: int) -> None:
        self._tx = tx
        self._seen: dict[int, list[Row]] = {}  # what was read of checkpoints, or written by methods of this class
        self.row = row
        self.name: str = row["name"]
        self.now = now  # read after the row was locked, so times follow the order of the writes
        self.failed: list[tuple[int, Reason, str]] = []
        self.confirmed = 0
        self.completed: list[Timing] = []
        self._was = (row["epoch"], row["next_event"])
        self._changed: set[str] = set()
        self._has_written = False  # any row
        self._more = Counts(0, 0, 0)

    # statements of one's own
    def rows(self, sql: str, *values: object) -> list[Row]:
        """Runs a query."""
        return self._tx.rows(sql, *values)

    def change(self, sql: str, *values: object) -> int:
        """Run a statement; returns how many rows it changed. Checkpoints are read again, since they may be among
        them.
        """
        self._seen.clear()
        changed = self._tx.change(sql, *values)
        self._has_written = self._has_written or changed > 0
        return changed

    # conditions
    def require_epoch(self, epoch: int) -> None:
        """The condition of I5: this epoch is the pipeline's own."""
        current = self.row["epoch"]
        if epoch < current:
            raise FencedError(
                f"epoch {epoch} is over: a newer process holds epoch {current}.",
                remedy="Do nothing: this process ends, and the newer one completes or repeats its work.",
                pipeline=self.name,
                epoch=epoch,
                current=current,
            )
        if epoch > current:
            raise StateConflictError(
                f"this process holds epoch {epoch}, but the decision log knows epochs up to {current} only. The log was"
                " restored from a backup, has failed over to a standby, or is another one.",
                code="epoch_unknown",
                remedy="Do nothing: the next try continues from what the decision log has. If a sink is newer, the"
                " pipeline then halts (docs/recovery.md).",
                pipeline=self.name,
                epoch=epoch,
                current=current,
            )
        if epoch < 1:
            # Two processes that never took an epoch would both be 'current'.
            raise StateConflictError(
                "the pipeline has no epoch yet.",
                code="epoch_unknown",
                remedy="Call `take_epoch` first.",
                pipeline=self.name,
                epoch=epoch,
                current=current,
            )

    def require_understood(self) -> None:
        """NewerReleaseError when a newer release has halted it for what this one does not know."""
        require_understood(to_pipeline(self.row))

    def require_active(self) -> None:
        """The pipeline is neither HALTED nor RENAMED."""
        require_runnable(to_pipeline(self.row))

    def checkpoint(self, number: int) -> Checkpoint:
        """A checkpoint as this write sees it; UnknownCheckpointError when there is none."""
        if number not in self._seen:
            self._seen[number] = self._tx.rows(_ONE, self.name, number)
        found = to_checkpoints(self._seen[number])
        if not found:
            raise UnknownCheckpointError(self.name, number)
        return found[0]

    def open_checkpoints(self, state: CheckpointState | None = None) -> list[Checkpoint]:
        """All open ones, or those in this state, ascending."""
        if state is None:
            return to_checkpoints(self._tx.rows(_OPEN, self.name))
        return to_checkpoints(self._tx.rows(_OPEN_IN_STATE, self.name, state.value))

    def conflict(
        self, number: int, what: str, *, code: str = "", remedy: str = READ_AGAIN, **fields: Any
    ) -> StateConflictError:
        """The error of a condition that does not hold."""
        return StateConflictError(what, code=code, remedy=remedy, pipeline=self.name, checkpoint=number, **fields)

    def wrong_state(self, checkpoint: Checkpoint, why: str) -> StateConflictError:
        """The error for a checkpoint whose state does not allow the write; `why` says which states do."""
        state = checkpoint.state.value
        return self.conflict(checkpoint.number, f"it is {state}: {why}.", code="checkpoint_state", state=state)

    # changes
    def set_pipeline(self, **columns: object) -> None:
        """Changes columns of the pipeline's row; written at the end of the transaction."""
        self.row.update(columns)
        self._changed.update(columns)

    def note_dag(self, run: RunKey) -> None:
        """Remember the DAG of a run that has worked on the pipeline, for `first_dag` and `last_dag`.

        It replaces a DAG that has only restored the pipeline: `_remember_restored` notes one if no other is known.
        """
        dags = {self.row["first_dag"] or run.dag_id, self.row["last_dag"] or run.dag_id}
        if not run.is_plain and run.dag_id not in dags and len(dags) == 1:
            [found] = self.rows(_OF_DAG, self.name, *dags)
            if found["restored"] and not found["epoch"]:
                dags.clear()
        # Of all three: what is stored may be in another order, that of a database.
        dags.add(run.dag_id)
        self.set_pipeline(first_dag=min(dags), last_dag=max(dags))

    def draw(self, counter: str) -> int:
        """The value of a counter of the pipeline (`next_number`, `completed`), which is one more from now on."""
        value: int = self.row[counter]
        self.set_pipeline(**{counter: value + 1})
        return value

    def event(self, kind: EventKind, message: str, *, number: int = 0, detail: Mapping[str, Any] | None = None) -> None:
        """Appends a line to the event log."""
        subject = f"checkpoint {number}" if number else f"pipeline {self.name}"
        self._tx.change(
            "INSERT INTO event (pipeline, id, number, at, epoch, kind, message, detail)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            self.name,
            self.draw("next_event"),
            number,
            self.now,
            self.row["epoch"],
            kind.value,
            shown_text(f"{subject} {kind.value}: {message}"),
            json_text(dict(detail or {})),
        )

    def update_checkpoint(self, checkpoint: Checkpoint, **columns: object) -> None:
        """Changes columns of a checkpoint that is still in the state that was read."""
        # Column names are keywords of this package's own calls, never input.
        self._has_written = True
        assignments = ", ".join(f"{name} = ?" for name in columns)
        changed = self._tx.change(
            f"UPDATE checkpoint SET {assignments} WHERE pipeline = ? AND number = ? AND state = ?",
            *columns.values(),
            self.name,
            checkpoint.number,
            checkpoint.state.value,
        )
        if changed != 1:
            raise self.conflict(
                checkpoint.number,
                f"it is no longer {checkpoint.state.value}: another process changed it.",
                expected=checkpoint.state.value,
            )
        self._more = self._more.moved(checkpoint, columns)
        for row in self._seen.get(checkpoint.number, ()):
            row.update(columns)

    def update_vote(self, number: int, participant: str, **columns: object) -> None:
        """Changes columns of a vote that was read."""
        self._has_written = True
        assignments = ", ".join(f"{name} = ?" for name in columns)
        changed = self._tx.change(
            f"UPDATE vote SET {assignments} WHERE pipeline = ? AND number = ? AND participant = ?",
            *columns.values(),
            self.name,
            number,
            participant,
        )
        if changed != 1:
            raise self.conflict(number, "its vote is gone: another process changed it.", participant=participant)
        for row in self._seen.get(number, ()):
            change_vote(row, participant, columns)

    def move(
        self,
        checkpoint: Checkpoint,
        to: CheckpointState,
        text: str,
        *,
        detail: Mapping[str, Any] | None = None,
        **columns: object,
    ) -> None:
        """One transition of the state machine and its event `text`; StateConflictError when it is not in the table."""
        if not is_allowed(checkpoint.state, to):
            raise self.conflict(
                checkpoint.number,
                f"it is {checkpoint.state.value} and cannot become {to.value}.",
                code="checkpoint_state",
                state=checkpoint.state.value,
                to=to.value,
            )
        self.update_checkpoint(checkpoint, state=to.value, epoch=self.row["epoch"], **columns)
        if (counter := _COUNTED.get(to)) is not None:
            self.draw(counter)
        self.event(EventKind(to.value), text, number=checkpoint.number, detail=detail)

    def abort(
        self,
        checkpoint: Checkpoint,
        reason: Reason,
        message: str,
        after: AfterAbort,
        *,
        rolls_back: bool = True,
    ) -> None:
        """The transition to ABORTED; `after` is kept of what was published.

        `rolls_back`: what TWO_PHASE participants have prepared is still to be ended.
        """
        published = checkpoint.state is not CheckpointState.TRIGGERED
        prepared = any(p.promise is Promise.TWO_PHASE and p.name in checkpoint.votes for p in checkpoint.participants)
        fate = f", {after.value}" if published else ""
        message = shown_text(message)
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

    def report(self, meter: Meter) -> None:
        """Logs and counts what this write has done to checkpoints; to be called when it is done."""
        for number, reason, message in self.failed:
            log.warning("%s", failure_text(self.name, number, reason, message))
            meter.failed(self.name, reason)
        if self.confirmed:
            meter.confirmed(self.name, self.confirmed)
        for timing in self.completed:
            meter.completed(self.name, timing)

    def flush(self) -> None:
        """Write the pipeline's row, on condition that no other process did: even a lost lock could not lose a write.

        Also writes its summary (`summary`), and the time, even if the write changed only other rows.
        """
        if not self._changed and not self._has_written:
            return
        self.set_pipeline(changed_at=max(self.now, self.row["changed_at"] + 1))
        names = sorted(self._changed)
        # Counted again with each epoch, so that no wrong count lasts.
        more = self._more if any(self._more) or self.row["epoch"] != self._was[0] else ()
        derived = kept(counts=bool(more), may_be_late=self.row["late_after"] is not None)
        assignments = ", ".join([*(f"{name} = ?" for name in names), *derived])
        changed = self._tx.change(
            f"UPDATE pipeline SET {assignments} WHERE name = ? AND epoch = ? AND next_event = ?",
            *(self.row[name] for name in names),
            *more,
            self.name,
            *self._was,
        )
        if changed != 1:
            raise self.conflict(0, "another process wrote at the same moment.")


@contextmanager
def pipeline_write(database: Database, pipeline: str) -> Iterator[PipelineWrite]:
    """A transaction that holds the pipeline's row; UnknownPipelineError when there is none."""
    with database.write() as tx:
        write = lock_pipeline(tx, pipeline)
        yield write
        write.flush()
    write.report(database.meter)
    ended = [*(number for number, *_ in write.failed), *(timing.number for timing in write.completed)]
    if ended and database.meter.traces:
        _trace(database, pipeline, ended)


def _trace(database: Database, pipeline: str, numbers: Sequence[int]) -> None:
    try:
        for number in numbers:
            [checkpoint] = to_checkpoints(database.read(_ONE, pipeline, number))
            events = database.read(EVENTS_OF_ONE, pipeline, number, MOST_EVENTS)
            database.meter.ended(checkpoint, [to_event(row) for row in events])
    except AirflowFtError as error:  # the write is done, and its caller must learn that
        log.debug("no trace of checkpoints %s: %s", numbers, error)


def lock_pipeline(tx: Transaction, pipeline: str) -> PipelineWrite:
    """The write of a transaction on one pipeline, to be flushed; UnknownPipelineError when there is none."""
    rows, now = tx.locked("SELECT * FROM pipeline WHERE name = ?", pipeline)
    if not rows:
        raise UnknownPipelineError(pipeline)
    write = PipelineWrite(tx, rows[0], now)
    if now < write.row["changed_at"]:  # the clock went back since the last write
        correct_times(write.change, write.row, now)
    return write
