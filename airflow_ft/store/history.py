"""Deletion of old history: events of old numbers. The numbers stay, with their decisions and proofs."""

from __future__ import annotations

from airflow_ft.store.database import Database, Row
from airflow_ft.store.errors import UnknownPipelineError
from airflow_ft.store.writing import pipeline_write

_BOUNDS = (
    "SELECT published, told_from, (SELECT number FROM checkpoint WHERE pipeline = ? AND is_open = 1"
    " ORDER BY number LIMIT 1) AS oldest_open FROM pipeline WHERE name = ?"
)


class HistoryOperations:
    """The part of the store that forgets."""

    _database: Database

    def forget_events(self, pipeline: str, keep: int, limit: int) -> int:
        """See `Store.forget_events`. When there is nothing to delete, it is one look, and no write."""
        rows = self._database.read(_BOUNDS, pipeline, pipeline)
        if not rows:
            raise UnknownPipelineError(pipeline)
        if not _old(rows[0], keep, limit):
            return 0
        with pipeline_write(self._database, pipeline) as write:
            row = write.rows(_BOUNDS, pipeline, pipeline)[0]
            if numbers := _old(row, keep, limit):
                write.change(
                    "DELETE FROM event WHERE pipeline = ? AND number >= ? AND number < ?",
                    pipeline,
                    numbers.start,
                    numbers.stop,
                )
                write.set_pipeline(told_from=numbers.stop)
            return len(numbers)


def _old(row: Row, keep: int, limit: int) -> range:
    """The next numbers whose events go. A number that is settled and finalised is never open again."""
    begin: int = row["told_from"]
    end: int = row["published"] - keep + 1
    if row["oldest_open"] is not None:
        end = min(end, row["oldest_open"])
    return range(begin, max(begin, min(end, begin + limit)))
