"""Figures for people, which no decision uses: summaries of all pipelines, and durations of checkpoints."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from operator import itemgetter

from airflow_ft.protocol.overview import CheckpointCounts, Noted, Only, Origin, Overview
from airflow_ft.protocol.pipelines import Event
from airflow_ft.protocol.timing import Delivered, Timing
from airflow_ft.protocol.transitions import UNFINISHED
from airflow_ft.store.checkpoint_rows import to_delivered, to_timing
from airflow_ft.store.database import Database
from airflow_ft.store.errors import UnknownPipelineError
from airflow_ft.store.reading import ONLY, by_pipeline, first, nothing
from airflow_ft.store.rows import from_time, to_event, to_late, to_overview
from airflow_ft.store.summary import LISTED, MARK, MARK_OF_ONE, MARKS, TIMES_OF_ONE

# Looked up where there are others between first and last. In the order of the index of runs: else PostgreSQL
# takes a scan of the table for the shortest way to the first one.
_OF_DAG = (
    " WHERE first_dag = ? OR last_dag = ? OR (first_dag <> last_dag AND"
    " (SELECT run_id FROM checkpoint WHERE pipeline = name AND dag_id = ? ORDER BY run_id LIMIT 1) IS NOT NULL)"
)
_ORIGINS = "SELECT dag_id, spec FROM checkpoint WHERE pipeline = ? ORDER BY number DESC LIMIT ?"
_TIMINGS = (
    "SELECT number, state, reason, segment_rows, segment_bytes, triggered_at, staged_at, prepared_at, decided_at,"
    " completed_at, lag, state_sizes FROM checkpoint WHERE pipeline = ?{only} ORDER BY number DESC LIMIT ?"
)
_RECENT = (
    "SELECT * FROM (SELECT pipeline, number, delivered_rows, completed_at FROM checkpoint WHERE pipeline = ?"
    " AND state = 'COMPLETED' ORDER BY number DESC LIMIT ?) AS newest"
)
_DOING = "SELECT pipeline, doing FROM lease WHERE pipeline IN ({some}) AND doing <> '' ORDER BY pipeline, holder"
_COUNTS = (
    "SELECT completed, subsumed, aborted AS failed, (SELECT count(*) FROM checkpoint WHERE pipeline = name"
    " AND is_open = 1 AND state IN ({unfinished})) AS in_progress,"
    " (SELECT count(*) FROM event WHERE pipeline = name AND kind = 'RESTORED') AS restored FROM pipeline WHERE name = ?"
).format(unfinished=", ".join(f"'{state.value}'" for state in sorted(UNFINISHED)))
# Numbers are triggered in their order.
_AROUND = "SELECT number, triggered_at FROM checkpoint WHERE pipeline = ? AND number <= ? ORDER BY number DESC LIMIT ?"
# As text, since an index is of this kind alone.
_NOTED = "SELECT * FROM event WHERE pipeline = ? AND kind = '{kind}' ORDER BY id DESC LIMIT 1"


class OverviewOperations:
    """The part of the store for those who look. UnknownPipelineError (a KeyError) for a pipeline that is not there."""

    _database: Database

    def overviews(self, dag_id: str = "") -> Sequence[Overview]:
        """See `QueryLog.overviews`."""
        return self._overview(_OF_DAG, *[dag_id] * 3) if dag_id else self._overview("")

    def overview(self, pipeline: str) -> Overview:
        """See `QueryLog.overview`."""
        for found in self._overview(" WHERE name = ?", pipeline):
            return found
        raise UnknownPipelineError(pipeline)

    def late(self, pipeline: str, after: timedelta) -> timedelta | None:
        """See `QueryLog.late`."""
        for row in self._database.read(TIMES_OF_ONE, pipeline):
            return to_late(row, self._database.now(), after)
        raise UnknownPipelineError(pipeline)

    def mark(self, pipeline: str = "") -> str:
        """Return a version token that changes on every write to the pipeline, or to any ("").

        A client compares it to decide whether to query again. Reads one entry at the end of an index.
        """
        rows = self._database.read(MARK_OF_ONE, pipeline) if pipeline else self._database.read(MARK)
        if pipeline and not rows:
            raise UnknownPipelineError(pipeline)
        return " ".join(f"{row['name']}:{row['changed_at']}" for row in rows)

    def marks(self) -> Mapping[str, str]:
        """Return the version token of each pipeline, by name; it changes on every write to the pipeline."""
        return {row["name"]: str(row["changed_at"]) for row in self._database.read(MARKS)}

    def origins(self, pipeline: str, limit: int) -> Sequence[Origin]:
        """See `QueryLog.origins`."""
        rows = self._database.read(_ORIGINS, pipeline, limit)
        return [Origin(row["dag_id"] or "", row["spec"]) for row in rows] or nothing(self._database, pipeline)

    def timings(self, pipeline: str, limit: int, only: Only | None = None) -> Sequence[Timing]:
        """Return the timings of the newest checkpoints, newest first, filtered by `only`. Reads no plan and no vote."""
        rows = self._database.read(_TIMINGS.format(only=ONLY[only]), pipeline, limit)
        return [to_timing(row) for row in rows] or nothing(self._database, pipeline)

    def recent(self, pipelines: Collection[str], limit: int) -> Mapping[str, Sequence[Delivered]]:
        """The newest completed checkpoints of each of these pipelines (100 at most), newest first. One statement."""
        found: defaultdict[str, list[Delivered]] = defaultdict(list)
        if pipelines:
            sql = " UNION ALL ".join([_RECENT] * len(pipelines))
            for row in self._database.read(sql, *(value for name in pipelines for value in (name, limit))):
                found[row["pipeline"]].append(to_delivered(row))
        # Not by the query: each row would go through as many merges as there are pipelines.
        return {name: sorted(each, reverse=True) for name, each in found.items()}

    def doing(self, pipelines: Collection[str]) -> Mapping[str, Sequence[str]]:
        """Return the progress texts of lease holders on these pipelines, by holder; omits holders without one."""
        return by_pipeline(self._database, _DOING, pipelines, itemgetter("doing"))

    def checkpoint_counts(self, pipeline: str) -> CheckpointCounts:
        """Count the ended checkpoints by outcome; the cost does not depend on the length of the history.

        Events of a whole pipeline, as those of restoring, are never forgotten.
        """
        for row in self._database.read(_COUNTS, pipeline):
            return CheckpointCounts(**row)
        raise UnknownPipelineError(pipeline)

    def number_at(self, pipeline: str, at: datetime) -> int:
        """Up to which number all were triggered at that time or before; 0: none was. Some 20 look-ups of a million."""
        found = self._database.read("SELECT next_number FROM pipeline WHERE name = ?", pipeline)
        if not found:
            raise UnknownPipelineError(pipeline)
        time, low, high = from_time(at), 0, found[0]["next_number"] - 1
        while low < high:
            middle = (low + high + 1) // 2
            rows = self._database.read(_AROUND, pipeline, middle, 1)
            if not rows or rows[0]["triggered_at"] <= time:
                low = middle
            else:
                high = rows[0]["number"] - 1
        return low

    def noted(self, pipeline: str, kind: Noted) -> Event | None:
        """See `QueryLog.noted`."""
        rows = self._database.read(_NOTED.format(kind=kind), pipeline)
        return first([to_event(row) for row in rows], self._database, pipeline)

    def _overview(self, where: str, *values: object) -> list[Overview]:
        rows = self._database.read(f"{LISTED}{where}", *values)
        rows.sort(key=itemgetter("name"))  # by the query it would be a look-up of each
        now = self._database.now()
        return [to_overview(row, now) for row in rows]
