"""Barriers: a moment that several pipelines have in common, under a name."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from airflow_ft.protocol.arguments import check_barrier
from airflow_ft.protocol.errors import require_not_renamed
from airflow_ft.protocol.pipelines import Barrier
from airflow_ft.store.database import Database, Row
from airflow_ft.store.events import EventKind
from airflow_ft.store.rows import clean_text, to_pipeline, to_time
from airflow_ft.store.writing import PipelineWrite, lock_pipeline

_OF_ONE = "SELECT * FROM barrier WHERE id = ? ORDER BY pipeline"
# When stages began, and up to when streams have read. Given rows may have a position of any time.
_READ = (
    "SELECT (SELECT max(stage_began) FROM run WHERE pipeline = ? AND complete = 1 AND stage_began <= ?) AS stage,"
    " (SELECT max(stage_began) FROM run WHERE pipeline = ? AND complete = 0 AND stage_began <= ?) AS incomplete,"
    " (SELECT as_of FROM checkpoint WHERE pipeline = ? AND as_of IS NOT NULL AND as_of <= ?"
    " AND spark_location IS NOT NULL AND (after_abort IS NULL OR after_abort <> 'rewound')"
    " ORDER BY as_of DESC LIMIT 1) AS stream,"
    " (SELECT max(read_as_of) FROM run WHERE pipeline = ? AND read_as_of IS NOT NULL AND read_as_of <= ?) AS idle"
)


class BarrierOperations:
    """The part of the store that holds barriers."""

    _database: Database

    def inject(self, barrier: str, pipelines: Collection[str], by: str) -> Sequence[Barrier]:
        """Puts a barrier into each of the pipelines, at one moment of the store's clock; those rows, by pipeline.

        The moment is later than all that the pipelines have read, even if the clock went back since.

        All or none: KeyError when one of the pipelines does not exist. The first injection into a pipeline counts.

        UnknownPipelineError names the pipeline that is not there, PipelineHaltedError one that was renamed. Nothing was
        injected then.
        """
        check_barrier(barrier)
        with self._database.write() as tx:
            # Always in the same order: so no two injections wait for each other.
            writes = [lock_pipeline(tx, name) for name in sorted(set(pipelines))]
            moment = max([tx.now(), *(1 + latest for write in writes for latest in _latest(write))])
            for write in writes:
                require_not_renamed(to_pipeline(write.row), "Inject the barrier into the pipeline of the new name.")
                injected = tx.change(
                    "INSERT INTO barrier (id, pipeline, injected_at, injected_by) VALUES (?, ?, ?, ?)"
                    " ON CONFLICT (id, pipeline) DO NOTHING",
                    barrier,
                    write.name,
                    moment,
                    clean_text(by),
                )
                if injected:
                    write.event(EventKind.BARRIER, f"{barrier} injected by {by}", detail={"barrier": barrier})
                write.flush()
            found = [_barrier(row) for row in tx.rows(_OF_ONE, barrier)]
        return [each for each in found if each.pipeline in pipelines]

    def barrier(self, barrier: str) -> Sequence[Barrier]:
        """Return where it was injected, by pipeline."""
        return [_barrier(row) for row in self._database.read(_OF_ONE, barrier)]

    def barriers(self, limit: int = 100) -> Sequence[Barrier]:
        """Newest first: a row for each barrier and pipeline."""
        rows = self._database.read(
            "SELECT * FROM barrier ORDER BY injected_at DESC, id DESC, pipeline DESC LIMIT ?", limit
        )
        return [_barrier(row) for row in rows]


def _latest(write: PipelineWrite) -> list[int]:
    """Return when stages began, and up to when streams have read. Times still to come do not count."""
    [read] = write.rows(_READ, *(write.name, write.now) * 4)
    return [time for time in read.values() if time is not None]


def _barrier(row: Row) -> Barrier:
    return Barrier(row["id"], row["pipeline"], to_time(row["injected_at"]), row["injected_by"])
