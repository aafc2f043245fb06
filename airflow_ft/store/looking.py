"""What people look at, and nobody decides by: all pipelines in short, and how long checkpoints took."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from airflow_ft.core.model import Event
from airflow_ft.core.overview import Noted, Only, Origin, Overview, Tally
from airflow_ft.core.timing import Timing
from airflow_ft.core.transitions import UNFINISHED
from airflow_ft.store.database import Row
from airflow_ft.store.errors import UnknownPipelineError
from airflow_ft.store.reading import ONLY, WAITS, ReadingOperations
from airflow_ft.store.rows import from_time, to_event, to_overview, to_timing

# One function each: of both in one query SQLite would read all of the index, and not its ends.
_PIPELINES = (
    "SELECT pipeline.*, (SELECT min(dag_id) FROM checkpoint WHERE pipeline = name) AS first_dag,"
    " (SELECT max(dag_id) FROM checkpoint WHERE pipeline = name) AS last_dag,"
    " CASE WHEN late_after IS NOT NULL THEN (SELECT completed_at FROM checkpoint WHERE pipeline = name"
    " AND state = 'COMPLETED' ORDER BY number DESC LIMIT 1) END AS confirmed_at,"
    " CASE WHEN late_after IS NOT NULL THEN (SELECT max(read_as_of) FROM run WHERE pipeline = name"
    " AND read_as_of IS NOT NULL) END AS read_at,"
    " CASE WHEN late_after IS NOT NULL THEN (SELECT max(stage_began) FROM run WHERE pipeline = name"
    " AND complete = 1) END AS complete_at FROM pipeline"
)
# In the order of the index of runs: else PostgreSQL takes a scan of the table for the shortest way to the first one.
_OF_DAG = (
    " WHERE (SELECT run_id FROM checkpoint WHERE pipeline = name AND dag_id = ? ORDER BY run_id LIMIT 1) IS NOT NULL"
)
_OPEN = (
    "SELECT pipeline, sum(CASE WHEN state = 'QUARANTINED' THEN 1 ELSE 0 END) AS quarantined,"
    " sum(CASE WHEN state = 'COMMITTING' THEN 1 ELSE 0 END) AS committing,"
    f" sum(CASE WHEN {WAITS} THEN 1 ELSE 0 END) AS undelivered"
    " FROM checkpoint WHERE{of} is_open = 1 GROUP BY pipeline"
)
_ORIGINS = "SELECT dag_id, spec FROM checkpoint WHERE pipeline = ? ORDER BY number DESC LIMIT ?"
_TIMINGS = (
    "SELECT number, state, reason, segment_rows, segment_bytes, triggered_at, staged_at, prepared_at, decided_at,"
    " completed_at, lag FROM checkpoint WHERE pipeline = ?{only} ORDER BY number DESC LIMIT ?"
)
_TALLY = (
    "SELECT completed, subsumed, aborted AS failed, (SELECT count(*) FROM checkpoint WHERE pipeline = name"
    " AND is_open = 1 AND state IN ({unfinished})) AS in_progress,"
    " (SELECT count(*) FROM event WHERE pipeline = name AND kind = 'RESTORED') AS restored FROM pipeline WHERE name = ?"
).format(unfinished=", ".join(f"'{state.value}'" for state in sorted(UNFINISHED)))
# Numbers are triggered in their order.
_AROUND = "SELECT number, triggered_at FROM checkpoint WHERE pipeline = ? AND number <= ? ORDER BY number DESC LIMIT ?"
# As text, since an index is of this kind alone.
_NOTED = "SELECT * FROM event WHERE pipeline = ? AND kind = '{kind}' ORDER BY id DESC LIMIT 1"


class LookingOperations(ReadingOperations):
    """The part of the store for those who look. UnknownPipelineError (a KeyError) for a pipeline that is not there."""

    def overview(self, dag_id: str = "") -> Sequence[Overview]:
        """See `Store.overview`."""
        where, values = (_OF_DAG, (dag_id,)) if dag_id else ("", ())
        return self._overview(where, values, self._database.read(_OPEN.format(of="")))

    def standing(self, pipeline: str) -> Overview:
        """See `Store.standing`."""
        counts = self._database.read(_OPEN.format(of=" pipeline = ? AND"), pipeline)
        for found in self._overview(" WHERE name = ?", (pipeline,), counts):
            return found
        raise UnknownPipelineError(pipeline)

    def origins(self, pipeline: str, limit: int) -> Sequence[Origin]:
        """See `Store.origins`."""
        rows = self._database.read(_ORIGINS, pipeline, limit)
        return [Origin(row["dag_id"] or "", row["spec"]) for row in rows] or self._nothing(pipeline)

    def timings(self, pipeline: str, limit: int, only: Only | None = None) -> Sequence[Timing]:
        """See `Store.timings`."""
        rows = self._database.read(_TIMINGS.format(only=ONLY[only]), pipeline, limit)
        return [to_timing(row) for row in rows] or self._nothing(pipeline)

    def tally(self, pipeline: str) -> Tally:
        """See `Store.tally`. Events of a whole pipeline, as those of restoring, are never forgotten."""
        for row in self._database.read(_TALLY, pipeline):
            return Tally(**row)
        raise UnknownPipelineError(pipeline)

    def number_at(self, pipeline: str, at: datetime) -> int:
        """See `Store.number_at`."""
        time, low, high = from_time(at), 0, self.pipeline(pipeline).next_number - 1
        while low < high:
            middle = (low + high + 1) // 2
            rows = self._database.read(_AROUND, pipeline, middle, 1)
            if not rows or rows[0]["triggered_at"] <= time:
                low = middle
            else:
                high = rows[0]["number"] - 1
        return low

    def noted(self, pipeline: str, kind: Noted) -> Event | None:
        """See `Store.noted`."""
        for row in self._database.read(_NOTED.format(kind=kind), pipeline):
            return to_event(row)
        self._nothing(pipeline)
        return None

    def _overview(self, where: str, values: Sequence[object], counts: Sequence[Row]) -> list[Overview]:
        opened = {row.pop("pipeline"): row for row in counts}
        rows = self._database.read(f"{_PIPELINES}{where} ORDER BY name", *values)
        now = self._database.now()
        return [to_overview(row, opened.get(row["name"], {}), now) for row in rows]
