"""Summary of each pipeline for lists: stored in its row by every write, in the statement that changes the row anyway.

So a list of a thousand pipelines reads a thousand rows, for any number of checkpoints. One read at the end of an index
shows whether any pipeline has changed. The summary is computed again from open checkpoints, and from the ends of
indexes. Only while many are open (a stage may publish a hundred thousand before one is delivered) they are counted up
and down. An error of the count is corrected when few are open again, at the latest with the next epoch then.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Self

from airflow_ft.protocol.model import AfterAbort, Checkpoint, CheckpointState
from airflow_ft.store.reading import WAITS

FEW = 100
"""Up to this many open checkpoints are counted again with each write that changes a count."""
_COUNTS = (
    "(quarantined, committing, undelivered) = (SELECT"
    f" CASE WHEN count(*) > {FEW} THEN quarantined + ? ELSE COALESCE(sum(is_quarantined), 0) END,"
    f" CASE WHEN count(*) > {FEW} THEN committing + ? ELSE COALESCE(sum(is_committing), 0) END,"
    f" CASE WHEN count(*) > {FEW} THEN undelivered + ? ELSE COALESCE(sum(is_waiting), 0) END"
    " FROM (SELECT CASE WHEN state = 'QUARANTINED' THEN 1 ELSE 0 END AS is_quarantined,"
    " CASE WHEN state = 'COMMITTING' THEN 1 ELSE 0 END AS is_committing,"
    f" CASE WHEN {WAITS} THEN 1 ELSE 0 END AS is_waiting"
    f" FROM checkpoint WHERE pipeline = name AND is_open = 1 LIMIT {FEW + 1}) c)"
)
# One function each: of both in one query SQLite would read all of the index, and not its end.
_TIMES = {
    "confirmed_at": "(SELECT completed_at FROM checkpoint WHERE pipeline = name AND state = 'COMPLETED'"
    " ORDER BY number DESC LIMIT 1)",
    "read_at": "(SELECT max(read_as_of) FROM run WHERE pipeline = name AND read_as_of IS NOT NULL)",
    "complete_at": "(SELECT max(stage_began) FROM run WHERE pipeline = name AND complete = 1)",
}
TIMES_OF_ONE = (
    f"SELECT name, created_at, undelivered, {', '.join(f'{query} AS {name}' for name, query in _TIMES.items())}"
    " FROM pipeline WHERE name = ?"
)
"""Columns that `rows.to_late` reads, of a pipeline in whose row they may not be."""
NEWEST = 50
"""The most recently changed pipelines, which are read to notice a change. On PostgreSQL a write may become visible
after a later one. A write that this many others overtake is noticed with the next write to its pipeline."""
MARK = f"SELECT name, changed_at FROM pipeline ORDER BY changed_at DESC, name DESC LIMIT {NEWEST}"
MARKS = "SELECT name, changed_at FROM pipeline ORDER BY name"
MARK_OF_ONE = "SELECT name, changed_at FROM pipeline WHERE name = ?"
LISTED = (
    "SELECT name, status, halt_reason, halt_code, halt_message, halt_remedy, renamed_to, turn_dag_id, turn_run_id,"
    " turn_map_index, first_dag, last_dag, quarantined, committing, undelivered, late_after, created_at, confirmed_at,"
    " read_at, complete_at, failure, streaming, retired, late_default, changed_at,"
    " (SELECT count(*) FROM lease WHERE lease.pipeline = pipeline.name) AS leases,"
    " (SELECT max(renewed_at) FROM lease WHERE lease.pipeline = pipeline.name) AS renewed_at,"
    " (SELECT max(renewed_at + lease_time) FROM lease WHERE lease.pipeline = pipeline.name) AS expires_at"
    " FROM pipeline"
)
"""Columns that `rows.to_overview` reads."""


def kept(*, counts: bool, may_be_late: bool) -> list[str]:
    """Return the assignments of a write that update it. `counts`: the write may have changed counts, which takes
    `Counts` as values; `may_be_late`: the pipeline has a `late_after`.
    """
    return [_COUNTS] * counts + [f"{name} = {query}" for name, query in _TIMES.items()] * may_be_late


class Counts(NamedTuple):
    """Changes of the counts since a write began."""

    quarantined: int
    committing: int
    undelivered: int

    def moved(self, checkpoint: Checkpoint, columns: Mapping[str, object]) -> Self:
        """After a change of these columns of a checkpoint."""
        after = checkpoint.after_abort
        was: dict[str, object] = {
            "state": checkpoint.state.value,
            "segment_digest": None if checkpoint.segment is None else checkpoint.segment.digest,
            "delivered_by": checkpoint.delivered_by,
            "after_abort": None if after is None else after.value,
        }
        each = zip(self, _counted({**was, **columns}), _counted(was), strict=True)
        return type(self)(*(count + now - before for count, now, before in each))


def _counted(row: Mapping[str, object]) -> tuple[bool, bool, bool]:
    """Return how a row of `checkpoint` counts, as in the statement above."""
    waits = row["segment_digest"] is not None and row["delivered_by"] is None
    return (
        row["state"] == CheckpointState.QUARANTINED.value,
        row["state"] == CheckpointState.COMMITTING.value,
        waits and row["after_abort"] != AfterAbort.REWOUND.value,
    )
