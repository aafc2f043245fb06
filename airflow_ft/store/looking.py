"""Figures for people, which no decision uses: summaries of all pipelines, and durations of checkpoints."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from operator import itemgetter

from airflow_ft.protocol.model import Event
from airflow_ft.protocol.overview import Noted, Only, Origin, Overview, Tally
from airflow_ft.protocol.timing import Delivered, Timing
from airflow_ft.protocol.transitions import UNFINISHED
from airflow_ft.store.errors import UnknownPipelineError
from airflow_ft.store.reading import ONLY, ReadingOperations
from airflow_ft.store.rows import from_time, to_delivered, to_event, to_overview, to_timing
from airflow_ft.store.standing import LISTED, MARK, MARK_OF_ONE, MARKS

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
    "SELECT * FROM (SELECT pipeline, number, segment_rows, completed_at FROM checkpoint WHERE pipeline = ?"
    " AND state = 'COMPLETED' ORDER BY number DESC LIMIT ?) AS newest"
)
_DOING = "SELECT pipeline, doing FROM lease WHERE pipeline IN ({some}) AND doing <> '' ORDER BY pipeline, holder"
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
        return self._overview(_OF_DAG, *[dag_id] * 3) if dag_id else self._overview("")

    def standing(self, pipeline: str) -> Overview:
        """See `Store.standing`."""
        for found in self._overview(" WHERE name = ?", pipeline):
            return found
        raise UnknownPipelineError(pipeline)

    def mark(self, pipeline: str = "") -> str:
        """See `Store.mark`."""
        rows = self._database.read(MARK_OF_ONE, pipeline) if pipeline else self._database.read(MARK)
        if pipeline and not rows:
            raise UnknownPipelineError(pipeline)
        return " ".join(f"{row['name']}:{row['changed_at']}" for row in rows)

    def marks(self) -> Mapping[str, str]:
        """See `Versioned.marks`."""
        return {row["name"]: str(row["changed_at"]) for row in self._database.read(MARKS)}

    def origins(self, pipeline: str, limit: int) -> Sequence[Origin]:
        """See `Store.origins`."""
        rows = self._database.read(_ORIGINS, pipeline, limit)
        return [Origin(row["dag_id"] or "", row["spec"]) for row in rows] or self._nothing(pipeline)

    def timings(self, pipeline: str, limit: int, only: Only | None = None) -> Sequence[Timing]:
        """See `Store.timings`."""
        rows = self._database.read(_TIMINGS.format(only=ONLY[only]), pipeline, limit)
        return [to_timing(row) for row in rows] or self._nothing(pipeline)

    def recent(self, pipelines: Collection[str], limit: int) -> Mapping[str, Sequence[Delivered]]:
        """See `Store.recent`."""
        found: defaultdict[str, list[Delivered]] = defaultdict(list)
        if pipelines:
            sql = " UNION ALL ".join([_RECENT] * len(pipelines))
            for row in self._database.read(sql, *(value for name in pipelines for value in (name, limit))):
                found[row["pipeline"]].append(to_delivered(row))
        # Not by the query: each row would go through as many merges as there are pipelines.
        return {name: sorted(each, reverse=True) for name, each in found.items()}

    def doing(self, pipelines: Collection[str]) -> Mapping[str, Sequence[str]]:
        """See `Store.doing`."""
        found: defaultdict[str, list[str]] = defaultdict(list)
        if pipelines:
            for row in self._database.read(_DOING.format(some=", ".join("?" * len(pipelines))), *pipelines):
                found[row["pipeline"]].append(row["doing"])
        return found

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

    def _overview(self, where: str, *values: object) -> list[Overview]:
        rows = self._database.read(f"{LISTED}{where}", *values)
        rows.sort(key=itemgetter("name"))  # by the query it would be a look-up of each
        now = self._database.now()
        return [to_overview(row, now) for row in rows]
