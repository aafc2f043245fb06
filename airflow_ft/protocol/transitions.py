"""The state machine of a checkpoint, as one table. The stores refuse every other step."""

from __future__ import annotations

from airflow_ft.protocol.model import CheckpointState as S

TRANSITIONS: frozenset[tuple[S, S]] = frozenset(
    {
        (S.TRIGGERED, S.STAGED),  # published: one conditional write, after Spark's own commit of the batch
        (S.TRIGGERED, S.ABORTED),  # never published; computed again
        (S.STAGED, S.PREPARED),  # the last vote
        (S.STAGED, S.COMMITTING),  # AT_LEAST_ONCE: its plan, which waits for no vote
        (S.STAGED, S.SUBSUMED),  # delivered together with a later number; only from STAGED (R9)
        (S.STAGED, S.ABORTED),
        (S.PREPARED, S.COMMITTING),  # the decision, or the record of the carrier's own transaction
        (S.PREPARED, S.ABORTED),  # after the tombstone of the carrier; else it is the decision itself
        (S.COMMITTING, S.COMPLETED),  # every proof was read
        (S.COMMITTING, S.QUARANTINED),  # a person decides; gates stay closed
        (S.PREPARED, S.QUARANTINED),
        (S.QUARANTINED, S.COMMITTING),  # taken back by a person: to where it came from, and nowhere else
        (S.QUARANTINED, S.PREPARED),
        (S.QUARANTINED, S.ABORTED),  # by a person, and undecided; after the tombstone of the carrier, as from PREPARED
    }
)

UNFINISHED = frozenset({S.TRIGGERED, S.STAGED, S.PREPARED, S.COMMITTING, S.QUARANTINED})
IN_DOUBT = frozenset({S.PREPARED, S.COMMITTING})
MAY_BE_VISIBLE = IN_DOUBT | {S.QUARANTINED}
"""A sink may hold a marker, or rows: only proof settles it, and nothing may be computed again past it."""


def is_allowed(old: S, new: S) -> bool:
    """Return whether a checkpoint may go from `old` to `new`."""
    return (old, new) in TRANSITIONS
