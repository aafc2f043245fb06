"""The decision log as a stranger sees it: its SQLite file, read by own SQL, nothing of the package under test."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

UNFINISHED = ("TRIGGERED", "STAGED", "PREPARED", "COMMITTING")
NOT_FINALISED = "COMPLETED, not finalised"


@dataclass(frozen=True)
class Event:
    """One line of the event log."""

    id: int
    number: int
    epoch: int
    kind: str
    message: str
    detail: Mapping[str, Any]


@dataclass(frozen=True)
class Checkpoint:
    """What the judging needs of a checkpoint's row; `segments` are (number, digest) in the stored plan, in order."""

    number: int
    state: str
    run: str
    rows: Mapping[str, int]
    published: bool
    rewound: bool
    delivered_by: int | None
    finalised: bool
    positions: Mapping[str, Any]
    segments: Sequence[tuple[int, str]]


class DecisionLog:
    """Reads the file without ever writing to it; every question sees a snapshot of its own."""

    def __init__(self, path: Path, pipeline: str) -> None:
        self._path, self._pipeline = path, pipeline
        self._connection: sqlite3.Connection | None = None

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def last_event(self) -> int:
        """The id of the newest event; 0 when there is none."""
        return int(self._rows("SELECT COALESCE(MAX(id), 0) FROM event WHERE pipeline = ?")[0][0])

    def events(self, after: int = 0) -> list[Event]:
        """All events with a larger id, oldest first."""
        rows = self._rows(
            "SELECT id, number, epoch, kind, message, detail FROM event WHERE pipeline = ? AND id > ? ORDER BY id",
            after,
        )
        return [Event(row[0], row[1], row[2], row[3], row[4], json.loads(row[5])) for row in rows]

    def unfinished(self) -> list[tuple[int, str]]:
        """(number, state) of every checkpoint with which something is left to do, ascending."""
        rows = self._rows(
            "SELECT number, CASE state WHEN 'COMPLETED' THEN ? ELSE state END FROM checkpoint"
            f" WHERE (state IN {UNFINISHED} OR state = 'COMPLETED' AND finalised = 0) AND pipeline = ? ORDER BY number",
            first=(NOT_FINALISED,),
        )
        return [(int(number), str(state)) for number, state in rows]

    def turn(self) -> str:
        """The run that is at work, from its recover to its confirmed; '' when none is."""
        rows = self._rows("SELECT turn_run_id FROM pipeline WHERE name = ?")
        return str(rows[0][0] or "") if rows else ""

    def delivered(self, sink: str) -> int:
        """Rows of `sink` in segments that are said to be delivered."""
        rows = self._rows(
            "SELECT segment_rows FROM checkpoint WHERE pipeline = ? AND delivered_by IS NOT NULL"
            " AND segment_rows IS NOT NULL"
        )
        return sum(json.loads(text).get(sink, 0) for (text,) in rows)

    def checkpoints(self) -> list[Checkpoint]:
        """All of them, ascending."""
        rows = self._rows(
            "SELECT number, state, COALESCE(run_id, ''), segment_rows, segment_digest IS NOT NULL,"
            " COALESCE(after_abort, '') = 'rewound', delivered_by, finalised, positions, plan"
            " FROM checkpoint WHERE pipeline = ? ORDER BY number"
        )
        return [
            Checkpoint(
                number=row[0],
                state=row[1],
                run=row[2],
                rows=json.loads(row[3] or "{}"),
                published=bool(row[4]),
                rewound=bool(row[5]),
                delivered_by=row[6],
                finalised=bool(row[7]),
                positions=json.loads(row[8]),
                segments=[(part["number"], part["digest"]) for part in json.loads(row[9])["segments"]]
                if row[9]
                else [],
            )
            for row in rows
        ]

    def _rows(self, sql: str, *values: Any, first: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        if self._connection is None:
            if not self._path.exists():
                return [(0,)] if "MAX(id)" in sql else []
            self._connection = sqlite3.connect(f"file:{self._path}?mode=ro", uri=True, timeout=30, isolation_level=None)
        try:
            return self._connection.execute(sql, (*first, self._pipeline, *values)).fetchall()
        except sqlite3.OperationalError as problem:
            if "no such table" not in str(problem):  # it is being created at this moment
                raise
            return [(0,)] if "MAX(id)" in sql else []
