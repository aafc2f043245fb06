"""Queries for the positions of rows that programs of the author have computed (`airflow_ft.protocol.position`)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

from airflow_ft.protocol.model import Checkpoint
from airflow_ft.protocol.position import SOURCE, LeftPositions
from airflow_ft.store.checkpoint_rows import select_checkpoints, to_checkpoints
from airflow_ft.store.database import Database
from airflow_ft.store.reading import first, nothing
from airflow_ft.store.rows import json_text

_LIVE = "segment_digest IS NOT NULL AND (after_abort IS NULL OR after_abort <> 'rewound')"
_AT = f"pipeline = ? AND position_digest = ? AND positions = ? AND {_LIVE} ORDER BY number DESC LIMIT 1"
_NEWEST = f"pipeline = ? AND positions <> '{{}}' AND {_LIVE} ORDER BY number DESC LIMIT ?"
NOT_AGAIN = (
    "NOT EXISTS (SELECT 1 FROM checkpoint again WHERE again.pipeline = checkpoint.pipeline"
    " AND again.position_digest = checkpoint.position_digest AND again.number > checkpoint.number"
    " AND again.segment_digest IS NOT NULL AND (again.after_abort IS NULL OR again.after_abort <> 'rewound'))"
)
LEFT = (
    "pipeline = ? AND position_digest IS NOT NULL AND after_abort = 'rewound' AND segment_digest IS NOT NULL"
    f" AND {NOT_AGAIN}"
)
_NEXT_LEFT = f"{LEFT} AND number > ? ORDER BY number LIMIT 1"
_COUNT_LEFT = f"SELECT count(DISTINCT position_digest) AS positions FROM checkpoint WHERE {LEFT}"
_LAST_AT = (
    "pipeline = ? AND position_digest = ? AND segment_digest IS NOT NULL AND positions = ? ORDER BY number DESC LIMIT 1"
)
_LAST_TRY = (
    "NOT EXISTS (SELECT 1 FROM checkpoint later WHERE later.pipeline = checkpoint.pipeline"
    " AND later.position_digest = checkpoint.position_digest AND later.number > checkpoint.number"
    " AND later.segment_digest IS NULL)"
)
_UNPUBLISHED = (
    f"pipeline = ? AND position_digest IS NOT NULL AND segment_digest IS NULL AND {_LAST_TRY} AND {NOT_AGAIN}"
)


def position_digest(positions: Mapping[str, Any]) -> str | None:
    """Return what finds a checkpoint by the position that a program of the author gave; None: these are of a job."""
    return hashlib.sha256(json_text(dict(positions)).encode()).hexdigest() if SOURCE in positions else None


class PositionOperations:
    """The part of the store that finds checkpoints by the positions that programs of the author gave."""

    _database: Database

    def published_at(self, pipeline: str, positions: Mapping[str, Any]) -> Checkpoint | None:
        """Return the published checkpoint with exactly these positions; None: there is none, or it was rewound."""
        return self._one(_AT, pipeline, position_digest(positions), json_text(dict(positions)))

    def newest_position(self, pipeline: str) -> Checkpoint | None:
        """Return the newest published checkpoint that has positions. Rewound ones do not count."""
        return self._one(_NEWEST, pipeline, 1)

    def rewound_position(self, pipeline: str) -> Checkpoint | None:
        """Return the first rewound position that is not published again, as its last publication.

        Positions keep the order of their first publication.
        """
        return next(self.rewound_positions(pipeline), None)

    def rewound_positions(self, pipeline: str) -> Iterator[Checkpoint]:
        """Yield each rewound position as `rewound_position` does, in the order of their first publications.

        Each is looked up when it is asked for. So a caller that publishes one before it asks for the next gets each
        once, and the cost of all grows with their number.
        """
        above = 0
        while (found := self._one(_NEXT_LEFT, pipeline, above)) is not None:
            above = found.number
            last = self._one(_LAST_AT, pipeline, position_digest(found.positions), json_text(dict(found.positions)))
            if last is not None:
                yield last

    def left_positions(self, pipeline: str) -> LeftPositions | None:
        """See `QueryLog.left_positions`."""
        first_left = self.rewound_position(pipeline)
        if first_left is None:
            return None
        [found] = self._database.read(_COUNT_LEFT, pipeline)
        return LeftPositions(first_left, max(1, found["positions"]))  # one may have been published in between

    def unpublished_positions(self, pipeline: str) -> list[Checkpoint]:
        """Return the last try of each position that no checkpoint has published since, newest first."""
        found = self._database.read(select_checkpoints(_UNPUBLISHED, newest_first=True), pipeline)
        return to_checkpoints(found) or nothing(self._database, pipeline)

    def _one(self, where: str, pipeline: str, *values: object) -> Checkpoint | None:
        found = to_checkpoints(self._database.read(select_checkpoints(where), pipeline, *values))
        return first(found, self._database, pipeline)
