"""What a list says of each pipeline: kept in its row by every write, in the statement that changes the row anyway.

So whoever looks at a thousand pipelines reads a thousand rows, however many checkpoints they have; and one look at the
end of an index tells that no pipeline has changed. It is read anew from what is open, and from the ends of indexes:
nothing is counted up and down, which could go wrong. Only a publication, which may find many open, counts one more
(`PipelineWrite.published`), until the next write of another kind counts them.
"""

from __future__ import annotations

from airflow_ft.store.reading import WAITS

_COUNTS = (
    "(quarantined, committing, undelivered) = (SELECT"
    " COALESCE(sum(CASE WHEN state = 'QUARANTINED' THEN 1 ELSE 0 END), 0),"
    " COALESCE(sum(CASE WHEN state = 'COMMITTING' THEN 1 ELSE 0 END), 0),"
    f" COALESCE(sum(CASE WHEN {WAITS} THEN 1 ELSE 0 END), 0)"
    " FROM checkpoint WHERE pipeline = name AND is_open = 1)"
)
# One function each: of both in one query SQLite would read all of the index, and not its end.
_TIMES = (
    "confirmed_at = (SELECT completed_at FROM checkpoint WHERE pipeline = name AND state = 'COMPLETED'"
    " ORDER BY number DESC LIMIT 1),"
    " read_at = (SELECT max(read_as_of) FROM run WHERE pipeline = name AND read_as_of IS NOT NULL),"
    " complete_at = (SELECT max(stage_began) FROM run WHERE pipeline = name AND complete = 1)"
)
NEWEST = 50
"""So many of the pipelines that changed last tell of a change. On PostgreSQL a write may be seen after one of a later
time; one that is overtaken by so many others is seen with the next write to its pipeline."""
MARK = f"SELECT name, changed_at FROM pipeline ORDER BY changed_at DESC, name DESC LIMIT {NEWEST}"
MARK_OF_ONE = "SELECT name, changed_at FROM pipeline WHERE name = ?"
LISTED = (
    "SELECT name, status, halt_reason, halt_message, turn_dag_id, turn_run_id, turn_map_index, first_dag, last_dag,"
    " quarantined, committing, undelivered, late_after, created_at, confirmed_at, read_at, complete_at FROM pipeline"
)
"""What `rows.to_overview` reads."""


def kept(*, checkpoints: bool, may_be_late: bool) -> list[str]:
    """The assignments of a write that keep it. `checkpoints`: it has changed any; `may_be_late`: somebody has said when
    the pipeline is late.
    """
    return [_COUNTS] * checkpoints + [_TIMES] * may_be_late
