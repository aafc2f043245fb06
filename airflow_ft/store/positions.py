"""Queries for the positions of rows that programs of the author have computed (`airflow_ft.protocol.position`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from airflow_ft.protocol.model import Checkpoint
from airflow_ft.store.checkpoint_rows import select_checkpoints, to_checkpoints
from airflow_ft.store.database import Database
from airflow_ft.store.reading import nothing
from airflow_ft.store.rows import json_text

_LIVE = "segment_digest IS NOT NULL AND (after_abort IS NULL OR after_abort <> 'rewound')"
_AT = f"pipeline = ? AND positions = ? AND {_LIVE} ORDER BY number DESC LIMIT 1"
_NEWEST = f"pipeline = ? AND positions <> '{{}}' AND {_LIVE} ORDER BY number DESC LIMIT 1"
_LEFT = (
    "pipeline = ? AND after_abort = 'rewound' AND segment_digest IS NOT NULL AND positions <> '{}'"
    " AND NOT EXISTS (SELECT 1 FROM checkpoint again WHERE again.pipeline = checkpoint.pipeline"
    " AND again.number > checkpoint.number AND again.positions = checkpoint.positions"
    " AND again.segment_digest IS NOT NULL AND (again.after_abort IS NULL OR again.after_abort <> 'rewound'))"
    " ORDER BY number LIMIT 1"
)


class PositionOperations:
    """The part of the store that finds checkpoints by their positions. Each query reads all numbers of a pipeline."""

    _database: Database

    def published_at(self, pipeline: str, positions: Mapping[str, Any]) -> Checkpoint | None:
        """Return the published checkpoint with exactly these positions; None: there is none, or it was rewound."""
        return self._one(_AT, pipeline, json_text(dict(positions)))

    def newest_position(self, pipeline: str) -> Checkpoint | None:
        """Return the newest published checkpoint that has positions. Rewound ones do not count."""
        return self._one(_NEWEST, pipeline)

    def rewound_position(self, pipeline: str) -> Checkpoint | None:
        """Return the first rewound checkpoint whose positions have not been published again since."""
        return self._one(_LEFT, pipeline)

    def _one(self, where: str, pipeline: str, *values: object) -> Checkpoint | None:
        found: Sequence[Checkpoint] = to_checkpoints(
            self._database.read(select_checkpoints(where), pipeline, *values)
        ) or nothing(self._database, pipeline)
        return found[0] if found else None
