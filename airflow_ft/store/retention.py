"""The work after a checkpoint is COMPLETED: it deletes what the checkpoint no longer needs.

The numbers stay, with their decisions and proofs. Files of the write-ahead log and events of old numbers go.
"""

from __future__ import annotations

from collections.abc import Sequence

from airflow_ft.protocol.model import DRAINED, Checkpoint, CheckpointState
from airflow_ft.protocol.retention import POSITIONS_KEPT
from airflow_ft.store.checkpoint_rows import select_checkpoints, to_checkpoints
from airflow_ft.store.database import Database, Row
from airflow_ft.store.errors import UnknownPipelineError
from airflow_ft.store.events import HAS_TURN, LAST_TURN, EventKind
from airflow_ft.store.positions import NOT_AGAIN
from airflow_ft.store.reading import nothing
from airflow_ft.store.writing import pipeline_write

_CUTOFF = "SELECT number FROM checkpoint WHERE pipeline = ? AND is_delivered = 1 ORDER BY number DESC LIMIT 1 OFFSET ?"
_PRUNABLE = select_checkpoints("pipeline = ? AND is_prunable = 1 AND delivered_by < ? ORDER BY number LIMIT ?")
# A Kafka source with thousands of partitions has long positions, so about the newest 100 numbers keep theirs: each
# pruned number visits one number once. Those that a program gave find their rows again, and those of a drain tell that
# its state was drained.
_FORGET_POSITIONS = (
    "UPDATE checkpoint SET positions = '{}' WHERE pipeline = ? AND number = ? AND pruned_at IS NOT NULL"
    " AND position_digest IS NULL AND positions <> '{}' AND positions NOT LIKE ?"
)
_REFERENCED = (
    "SELECT base_location AS one, NULL AS other FROM pipeline WHERE name = ?"
    " UNION SELECT segment_location, spark_location FROM checkpoint WHERE pipeline = ? AND is_referenced = 1"
    # Rows that a program gave, until their position is published again (`protocol.position.is_kept`). What is rewound
    # has a segment: to ask for it would tempt SQLite to go through all positions.
    " UNION SELECT segment_location, NULL FROM checkpoint WHERE pipeline = ? AND position_digest IS NOT NULL"
    f" AND after_abort = 'rewound' AND {NOT_AGAIN}"
    # Where a rewind goes to, also when its rows are pruned (`core.retention`). A drain is newer, and has no position.
    " UNION SELECT NULL, spark_location FROM checkpoint WHERE pipeline = ? AND number = (SELECT number FROM checkpoint"
    " WHERE pipeline = ? AND is_base = 1 AND delivered_by IS NOT NULL ORDER BY number DESC LIMIT 1)"
    # Not EXISTS: of that PostgreSQL makes a scan of the table.
    " UNION SELECT NULL, origin_location FROM pipeline WHERE name = ? AND (SELECT number FROM checkpoint"
    " WHERE pipeline = ? AND is_base = 1 AND delivered_by IS NOT NULL ORDER BY number DESC LIMIT 1) IS NULL"
)
_NO_CUTOFF = 2**62
FEWEST_EPOCHS = 1_000
"""Least number of newest epochs whose events are kept: a task reads events of its earlier tries."""
KEPT_TURNS = 2
"""Runs whose newest turn is kept, however old: the last run, and the last one before it (`overtaken_by`)."""
# Kinds that runs write. People write EPOCH with each command that takes one, and BARRIER, whose row keeps their name.
# All other kinds that tell of a person's action stay.
_OF_RUNS = ", ".join(
    f"'{kind.value}'"
    for kind in (
        EventKind.TURN,
        EventKind.EPOCH,
        EventKind.RUN_ADOPTED,
        EventKind.STAGE_BEGUN,
        EventKind.STAGE_ENDED,
        EventKind.FAILED,
        EventKind.WARNING,
        EventKind.BARRIER,
    )
)
# The oldest epoch: after as many events as are kept for `overtaken_by`, which may be older than all others.
_BOUNDS = (
    "SELECT published, told_from, epoch, (SELECT number FROM checkpoint WHERE pipeline = ? AND is_open = 1"
    " ORDER BY number LIMIT 1) AS oldest_open, (SELECT epoch FROM event WHERE pipeline = ? AND number = ?"
    f" AND kind IN ({_OF_RUNS}) ORDER BY id LIMIT 1 OFFSET {KEPT_TURNS}) AS oldest_epoch FROM pipeline WHERE name = ?"
)
# Up to the first event of a later epoch: the events of all later epochs need not be read.
_FORGET_EPOCHS = (
    f"DELETE FROM event WHERE pipeline = ? AND number = 0 AND kind IN ({_OF_RUNS}) AND id <"
    " (SELECT id FROM event WHERE pipeline = ? AND number = ? AND epoch >= ? ORDER BY id LIMIT 1)"
    " AND id NOT IN (?, ?)"
)

S = CheckpointState


class RetentionOperations:
    """The part of the store that deletes."""

    _database: Database

    def prunable(self, pipeline: str, retain: int, limit: int) -> Sequence[Checkpoint]:
        """See `QueryLog.prunable`. What was delivered together with a retained number is retained with it."""
        cutoff = _NO_CUTOFF
        if retain > 0:
            rows = self._database.read(_CUTOFF, pipeline, retain - 1)
            if not rows:
                return nothing(self._database, pipeline)
            cutoff = rows[0]["number"]
        # A number is at most the one that delivered it: `delivered_by` below the cutoff implies `number` below it.
        return to_checkpoints(self._database.read(_PRUNABLE, pipeline, cutoff, limit)) or nothing(
            self._database, pipeline
        )

    def referenced_locations(self, pipeline: str) -> frozenset[str]:
        """See `QueryLog.referenced_locations`; the base is of the same moment as the numbers."""
        rows = self._database.read(_REFERENCED, *(pipeline,) * 7)
        if not rows:
            raise UnknownPipelineError(pipeline)
        return frozenset(location for row in rows for location in row.values() if location is not None)

    def finalise(self, pipeline: str, number: int) -> None:
        """See `DeliveryLog.finalise`; COMPLETED only, with the numbers that it delivered. Repeated: no effect."""
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
        """See `DeliveryLog.prune`; StateConflictError where no COMPLETED number has delivered it. Repeatable."""
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
                write.change(_FORGET_POSITIONS, pipeline, number - POSITIONS_KEPT, f'%"{DRAINED}"%')

    def forget_events(self, pipeline: str, keep: int, limit: int) -> int:
        """See `DeliveryLog.forget_events`. When there is nothing to delete, it is one look, and no write."""
        asked = (_BOUNDS, pipeline, pipeline, 0, pipeline)
        rows = self._database.read(*asked)
        if not rows:
            raise UnknownPipelineError(pipeline)
        if not _old(rows[0], keep, limit) and not _later_epoch(rows[0], keep, limit):
            return 0
        with pipeline_write(self._database, pipeline) as write:
            row = write.rows(*asked)[0]
            if numbers := _old(row, keep, limit):
                write.change(
                    "DELETE FROM event WHERE pipeline = ? AND number >= ? AND number < ?",
                    pipeline,
                    numbers.start,
                    numbers.stop,
                )
                write.set_pipeline(told_from=numbers.stop)
            count = len(numbers)
            if later := _later_epoch(row, keep, limit):
                kept = write.rows(LAST_TURN, pipeline, HAS_TURN, "")
                for last in kept[:]:
                    kept += write.rows(LAST_TURN, pipeline, HAS_TURN, last["detail"])
                ids = [*(each["id"] for each in kept), 0, 0][:KEPT_TURNS]
                count += write.change(_FORGET_EPOCHS, pipeline, pipeline, 0, later, *ids)
            return count


def _old(row: Row, keep: int, limit: int) -> range:
    """The next numbers whose events go. A number that is settled and finalised is never open again."""
    begin: int = row["told_from"]
    end: int = row["published"] - keep + 1
    if row["oldest_open"] is not None:
        end = min(end, row["oldest_open"])
    return range(begin, max(begin, min(end, begin + limit)))


def _later_epoch(row: Row, keep: int, limit: int) -> int | None:
    """Return the epoch before which events of runs go. None: fewer than `limit` epochs have events to delete."""
    begin: int | None = row["oldest_epoch"]
    end: int = row["epoch"] - max(keep, FEWEST_EPOCHS) + 1
    return begin + limit if begin is not None and begin + limit <= end else None
