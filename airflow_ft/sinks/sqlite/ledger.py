"""The tables `airflow_ft_head` and `airflow_ft_ledger` of a SQLite file."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from airflow_ft.core.model import Fence, Outcome, Plan, canonical_json
from airflow_ft.sinks.base.memory import Head, Marker

_DDL = (
    """CREATE TABLE IF NOT EXISTS airflow_ft_head (
    pipeline TEXT NOT NULL, participant TEXT NOT NULL, installation TEXT NOT NULL, epoch INTEGER NOT NULL,
    attempt INTEGER NOT NULL, last_delivered INTEGER NOT NULL, floor INTEGER NOT NULL,
    PRIMARY KEY (pipeline, participant))""",
    """CREATE TABLE IF NOT EXISTS airflow_ft_ledger (
    pipeline TEXT NOT NULL, participant TEXT NOT NULL, number INTEGER NOT NULL, installation TEXT NOT NULL,
    kind TEXT NOT NULL, epoch INTEGER NOT NULL, attempt INTEGER NOT NULL, digest TEXT NOT NULL, counts TEXT NOT NULL,
    detail TEXT NOT NULL, at TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP, PRIMARY KEY (pipeline, participant, number))""",
)
_MINE = "pipeline = ? AND participant = ?"
_MARKER = "installation, kind, epoch, attempt, digest, counts, detail"


@dataclass(frozen=True, slots=True)
class Ledger:
    """What a file remembers of one pipeline. Its methods belong to the transaction of `db`."""

    db: sqlite3.Connection
    pipeline: str
    participant: str

    @property
    def _key(self) -> tuple[str, str]:
        return (self.pipeline, self.participant)

    def create(self) -> None:
        """The tables, where they are lacking."""
        for statement in _DDL:
            self.db.execute(statement)

    def exists(self) -> bool:
        """Whether the tables are there."""
        sql = "SELECT count(*) FROM sqlite_master WHERE name IN ('airflow_ft_head', 'airflow_ft_ledger')"
        return bool(self.db.execute(sql).fetchone()[0] == len(_DDL))

    def head(self) -> Head | None:
        sql = f"SELECT installation, epoch, attempt, last_delivered, floor FROM airflow_ft_head WHERE {_MINE}"
        row = self.db.execute(sql, self._key).fetchone()
        if row is None:
            return None
        return Head(installation=row[0], epoch=row[1], attempt=row[2], last_delivered=row[3], floor=row[4])

    def write_head(self, head: Head) -> None:
        """In place of what is there."""
        self.db.execute(
            "INSERT OR REPLACE INTO airflow_ft_head VALUES (?, ?, ?, ?, ?, ?, ?)",
            (*self._key, head.installation, head.epoch, head.attempt, head.last_delivered, head.floor),
        )

    def marker(self, number: int) -> Marker | None:
        sql = f"SELECT {_MARKER} FROM airflow_ft_ledger WHERE {_MINE} AND number = ?"
        row = self.db.execute(sql, (*self._key, number)).fetchone()
        return None if row is None else _marker(row)

    def newest(self) -> int:
        """The highest number with a marker; 0: there is none."""
        return int(
            self.db.execute(f"SELECT max(number) FROM airflow_ft_ledger WHERE {_MINE}", self._key).fetchone()[0] or 0
        )

    def write_marker(
        self, plan: Plan, fence: Fence, outcome: Outcome, counts: Mapping[str, int], detail: Mapping[str, Any]
    ) -> None:
        """Takes the number's place; sqlite3.IntegrityError when it is taken."""
        told = (canonical_json(dict(counts)), canonical_json(dict(detail)))
        columns = f"pipeline, participant, number, {_MARKER}"
        self.db.execute(
            f"INSERT INTO airflow_ft_ledger ({columns}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (*self._key, plan.number, fence.installation, outcome.value, *fence.rank, plan.digest, *told),
        )

    def markers_of_others(self, above: int, installation: str) -> list[tuple[int, Marker]]:
        """What other installations have written above a number, ascending."""
        sql = f"SELECT number, {_MARKER} FROM airflow_ft_ledger WHERE {_MINE} AND number > ? AND installation <> ?"
        rows = self.db.execute(f"{sql} ORDER BY number", (*self._key, above, installation))
        return [(row[0], _marker(row[1:])) for row in rows.fetchall()]

    def drop_markers_of_others(self, above: int, installation: str) -> None:
        """Deletes what `markers_of_others` lists."""
        sql = f"DELETE FROM airflow_ft_ledger WHERE {_MINE} AND number > ? AND installation <> ?"
        self.db.execute(sql, (*self._key, above, installation))

    def prune(self, floor: int) -> None:
        """Deletes the markers at or below `floor`."""
        self.db.execute(f"DELETE FROM airflow_ft_ledger WHERE {_MINE} AND number <= ?", (*self._key, floor))


def _marker(row: Any) -> Marker:
    return Marker(row[0], Outcome(row[1]), row[2], row[3], row[4], json.loads(row[5]), json.loads(row[6]))
