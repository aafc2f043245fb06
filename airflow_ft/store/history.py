"""What of the history goes: what is told of old numbers. The numbers stay, with what was decided of them and proven."""

from __future__ import annotations

from airflow_ft.store.database import Database
from airflow_ft.store.errors import UnknownPipelineError

_BOUNDS = (
    "SELECT published, (SELECT number FROM checkpoint WHERE pipeline = ? AND is_open = 1 ORDER BY number LIMIT 1)"
    " AS oldest_open, (SELECT number FROM event WHERE pipeline = ? AND number > 0 ORDER BY number LIMIT 1)"
    " AS oldest_told FROM pipeline WHERE name = ?"
)


class HistoryOperations:
    """The part of the store that forgets."""

    _database: Database

    def forget_events(self, pipeline: str, keep: int, limit: int) -> int:
        """See `Store.forget_events`. Nothing to delete costs one look, and no write.

        It needs no lock: a number that is settled and finalised is never open again.
        """
        rows = self._database.read(_BOUNDS, pipeline, pipeline, pipeline)
        if not rows:
            raise UnknownPipelineError(pipeline)
        [row] = rows
        oldest, through = row["oldest_told"], row["published"] - keep
        if row["oldest_open"] is not None:
            through = min(through, row["oldest_open"] - 1)
        if oldest is None or oldest > through:
            return 0
        through = min(through, oldest + limit - 1)
        with self._database.write() as tx:
            tx.change("DELETE FROM event WHERE pipeline = ? AND number >= ? AND number <= ?", pipeline, oldest, through)
        return int(through - oldest + 1)
