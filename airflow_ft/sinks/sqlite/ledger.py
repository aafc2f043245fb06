"""The tables `airflow_ft_head` and `airflow_ft_ledger` of a SQLite file."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import ClassVar

from airflow_ft.protocol.model import canonical_json
from airflow_ft.sinks.base.memory import damaged
from airflow_ft.sinks.base.sql_ledger import MARKER, MINE, DbApiLedger, statements


class Ledger(DbApiLedger):
    """A file's memory of one pipeline."""

    __slots__ = ()

    listed: ClassVar[str] = "SELECT count(*) FROM sqlite_master WHERE name IN ('{head}', '{ledger}')"
    ddl: ClassVar[Sequence[str]] = statements(integer="INTEGER", at="TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP")

    def filled(self, pipeline: str) -> set[str]:
        """Return the sinks that have had rows of a pipeline."""
        rows = self.rows(f"SELECT counts FROM {{ledger}} WHERE {MINE}", pipeline, self.participant)
        with damaged(f"a row of the ledger of {pipeline}"):
            return {sink for (counts,) in rows for sink, count in json.loads(counts).items() if count}

    def keep_filled(self, sinks: Iterable[str]) -> None:
        """Store the sinks that have had rows: in a marker with the number 0, which no checkpoint has."""
        counts = canonical_json(dict.fromkeys(sinks, 1))
        self.run(
            f"INSERT OR REPLACE INTO {{ledger}} (pipeline, participant, number, {MARKER})"
            " VALUES (?, ?, 0, '', 'pruned', 0, 0, '', ?, '{{}}')",
            *self.key,
            counts,
        )

    def prune(self, floor: int) -> None:
        sinks = self.filled(self.pipeline)
        super().prune(floor)
        self.keep_filled(sinks)
