"""Reading the decision log. Every query is a look-up in an index, whatever the length of the history."""

from __future__ import annotations

import json
import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeVar

from airflow_ft.protocol.formats import SENSELESS
from airflow_ft.protocol.model import Checkpoint, ParticipantPlan, RunKey, SparkPosition
from airflow_ft.protocol.overview import Only
from airflow_ft.protocol.pipelines import Event, Filling, Lease, Pipeline, Run
from airflow_ft.protocol.reasons import AbortReason
from airflow_ft.store.checkpoint_rows import select_checkpoints, to_checkpoints
from airflow_ft.store.database import Database, Row
from airflow_ft.store.errors import UnknownCheckpointError, UnknownPipelineError, UnknownSpecError
from airflow_ft.store.rows import (
    digest_of_source,
    key_of,
    spec_of,
    to_event,
    to_lease,
    to_pipeline,
    to_position,
    to_run,
)

log = logging.getLogger(__name__)

T = TypeVar("T")
_LATEST_CONFIRMED = select_checkpoints(
    "pipeline = ? AND number = (SELECT number FROM checkpoint WHERE pipeline = ? AND state = 'COMPLETED'"
    " ORDER BY number DESC LIMIT 1)"
)
_POSITION_BEFORE = (
    "SELECT spark_location, spark_batch FROM checkpoint WHERE pipeline = ? AND number < ? AND is_base = 1"
    " ORDER BY number DESC LIMIT 1"
)
_ORIGIN = "SELECT origin_location AS spark_location, origin_batch AS spark_batch FROM pipeline WHERE name = ?"
_FAILED = (
    "SELECT count(*) AS failures FROM checkpoint WHERE pipeline = ? AND number > COALESCE((SELECT number"
    " FROM checkpoint WHERE pipeline = ? AND state = 'COMPLETED' ORDER BY number DESC LIMIT 1), 0)"
    f" AND reason IN ({', '.join(repr(reason.value) for reason in AbortReason if reason.counts)})"
)
# What `Checkpoint.is_settled` denies; it implies that the number is open.
UNSETTLED = (
    "pipeline = ? AND is_open = 1 AND state <> 'COMPLETED' AND delivered_by IS NULL"
    " AND (after_abort IS NULL OR after_abort <> 'rewound') AND (state <> 'ABORTED' OR segment_digest IS NOT NULL)"
)
# Written so that other indexes are out of the question, and their ends, at which PostgreSQL would look while it plans:
# the open ones are few, those of a run may not be.
_OF_RUN_AMONG_THE_OPEN = "dag_id || '' = ? AND run_id || '' = ? AND map_index + 0 = ?"
_THROUGH_AMONG_THE_OPEN = "number + 0 <= ?"
_BEFORE_AMONG_THE_OPEN = "number + 0 < ?"
_PLANNED = (
    f"pipeline = ? AND is_open = 1 AND {_BEFORE_AMONG_THE_OPEN} AND plan IS NOT NULL"
    " AND state IN ('STAGED', 'PREPARED', 'COMMITTING')"
)
WAITS = "segment_digest IS NOT NULL AND delivered_by IS NULL AND (after_abort IS NULL OR after_abort <> 'rewound')"
_AHEAD = (
    f"pipeline = ? AND is_open = 1 AND {_BEFORE_AMONG_THE_OPEN} AND plan IS NOT NULL"
    " AND (state IN ('STAGED', 'PREPARED', 'QUARANTINED') OR (state = 'COMMITTING' AND NOT EXISTS (SELECT 1 FROM vote"
    " WHERE vote.pipeline = checkpoint.pipeline AND vote.number = checkpoint.number AND vote.participant = ?"
    " AND vote.proof IS NOT NULL)))"
)
_FIRST_UNPROVEN = (
    f"pipeline = ? AND is_open = 1 AND {_THROUGH_AMONG_THE_OPEN} AND plan IS NOT NULL"
    " AND state IN ('STAGED', 'PREPARED', 'COMMITTING', 'QUARANTINED') AND EXISTS (SELECT 1 FROM vote"
    " WHERE vote.pipeline = checkpoint.pipeline AND vote.number = checkpoint.number AND vote.participant = ?"
    " AND vote.proof IS NULL) ORDER BY number LIMIT 1"
)
_UNDELIVERED = f"SELECT count(*) AS count FROM checkpoint WHERE pipeline = ? AND is_open = 1 AND {WAITS}"
OF_RUN = "pipeline = ? AND dag_id = ? AND run_id = ? AND map_index = ?"
_LAST_PUBLISHED = (
    f"SELECT number FROM checkpoint WHERE {OF_RUN} AND segment_digest IS NOT NULL"
    " AND (after_abort IS NULL OR after_abort <> 'rewound') ORDER BY number DESC LIMIT 1"
)
# Each is the condition of an index.
ONLY = {
    None: "",
    Only.OPEN: " AND is_open = 1",
    Only.COMPLETED: " AND state = 'COMPLETED'",
    Only.FAILED: " AND reason IS NOT NULL",
}
_PROVEN = (
    "SELECT c.number FROM checkpoint c JOIN vote v ON v.pipeline = c.pipeline AND v.number = c.number"
    " WHERE c.pipeline = ? AND c.dag_id = ? AND c.run_id = ? AND c.map_index = ? AND v.participant = ?"
    " AND v.proof IS NOT NULL ORDER BY c.number DESC LIMIT ?"
)
# Each pipeline's newest plan for each participant that it ever delivered into, its newest one that is COMPLETED (of
# participants that keep no marker), and what is planned. Each is a look-up of some rows a pipeline.
_FILLINGS = """
SELECT p.name AS pipeline, p.status AS status, p.first_dag AS first_dag, p.last_dag AS last_dag, d.number AS number,
    (SELECT plan FROM checkpoint WHERE pipeline = d.pipeline AND number = d.number) AS plan
FROM pipeline AS p JOIN delivery AS d ON d.pipeline = p.name WHERE p.name <> ?
UNION ALL
SELECT p.name, p.status, p.first_dag, p.last_dag,
    (SELECT number FROM checkpoint WHERE pipeline = p.name AND state = 'COMPLETED' ORDER BY number DESC LIMIT 1),
    (SELECT plan FROM checkpoint WHERE pipeline = p.name AND state = 'COMPLETED' ORDER BY number DESC LIMIT 1)
FROM pipeline AS p WHERE p.name <> ?
UNION ALL
SELECT p.name, p.status, p.first_dag, p.last_dag, 0, c.plan
FROM pipeline AS p JOIN checkpoint AS c ON c.pipeline = p.name AND c.is_open = 1
WHERE p.name <> ? AND c.plan IS NOT NULL AND c.state IN ('STAGED', 'PREPARED', 'COMMITTING', 'QUARANTINED')
"""


class ReadingOperations:
    """The part of the store that reads. UnknownPipelineError (a KeyError) for a pipeline that is not there."""

    _database: Database

    def pipeline(self, pipeline: str) -> Pipeline:
        """The pipeline's row."""
        rows = self._database.read("SELECT * FROM pipeline WHERE name = ?", pipeline)
        if not rows:
            raise UnknownPipelineError(pipeline)
        return to_pipeline(rows[0])

    def pipelines(self) -> Sequence[Pipeline]:
        """All pipelines by name."""
        return [to_pipeline(row) for row in self._database.read("SELECT * FROM pipeline ORDER BY name")]

    def leases(self, pipeline: str) -> Sequence[Lease]:
        """All leases on the pipeline, by holder."""
        rows = self._database.read("SELECT * FROM lease WHERE pipeline = ? ORDER BY holder", pipeline)
        return [to_lease(row) for row in rows] or nothing(self._database, pipeline)

    def spec(self, digest: str) -> Mapping[str, Any]:
        """See `QueryLog.spec`."""
        rows = self._database.read("SELECT text FROM spec WHERE digest = ?", digest)
        if not rows:
            raise UnknownSpecError(digest)
        found = spec_of(rows[0])
        source = digest_of_source(found)
        return {**found, **self.spec(source)} if source else found

    def run(self, pipeline: str, run: RunKey) -> Run | None:
        """The run's row, or None."""
        rows = self._database.read(f"SELECT * FROM run WHERE {OF_RUN}", pipeline, *key_of(run))
        return first([to_run(row) for row in rows], self._database, pipeline)

    def runs(self, pipeline: str, dag_id: str, run_id: str) -> Sequence[Run]:
        """The runs of a DAG run, by map index."""
        rows = self._database.read(
            "SELECT * FROM run WHERE pipeline = ? AND dag_id = ? AND run_id = ? ORDER BY map_index",
            pipeline,
            dag_id,
            run_id,
        )
        return [to_run(row) for row in rows] or nothing(self._database, pipeline)

    def checkpoint(self, pipeline: str, number: int) -> Checkpoint:
        """One checkpoint with its votes; UnknownCheckpointError (a KeyError) when there is none."""
        found = self._checkpoints("pipeline = ? AND number = ?", pipeline, number)
        if not found:
            nothing(self._database, pipeline)
            raise UnknownCheckpointError(pipeline, number)
        return found[0]

    def checkpoints(
        self,
        pipeline: str,
        limit: int = 100,
        before: int | None = None,
        only: Only | None = None,
        *,
        reason: AbortReason | None = None,
        run: RunKey | None = None,
    ) -> Sequence[Checkpoint]:
        """See `QueryLog.checkpoints`."""
        where, values = ONLY[only], list[object]()
        if run is not None:
            where, values = f"{where} AND dag_id = ? AND run_id = ? AND map_index = ?", [*values, *key_of(run)]
        if reason is not None:
            where, values = f"{where} AND reason = ?", [*values, reason.value]
        if before is not None:
            where, values = f"{where} AND number < ?", [*values, before]
        sql = f"pipeline = ?{where} ORDER BY number DESC LIMIT ?"
        return self._checkpoints(sql, pipeline, *values, limit, newest_first=True) or nothing(self._database, pipeline)

    def open_checkpoints(self, pipeline: str, ahead_of: tuple[int, str] | None = None) -> Sequence[Checkpoint]:
        """See `QueryLog.open_checkpoints`."""
        where = "pipeline = ? AND is_open = 1" if ahead_of is None else _AHEAD
        return self._checkpoints(where, pipeline, *(ahead_of or ())) or nothing(self._database, pipeline)

    def unsettled(
        self, pipeline: str, *, run: RunKey | None = None, through: int | None = None, limit: int = 100
    ) -> Sequence[Checkpoint]:
        """See `QueryLog.unsettled`."""
        where = UNSETTLED
        values: list[object] = [pipeline]
        if through is not None:
            where, values = f"{where} AND {_THROUGH_AMONG_THE_OPEN}", [*values, through]
        if run is not None:
            where, values = f"{where} AND {_OF_RUN_AMONG_THE_OPEN}", [*values, *key_of(run)]
        found = self._checkpoints(f"{where} ORDER BY number LIMIT ?", *values, limit)
        return found or nothing(self._database, pipeline)

    def planned_before(self, pipeline: str, number: int) -> Checkpoint | None:
        """See `DeliveryLog.planned_before`."""
        found = self._checkpoints(f"{_PLANNED} ORDER BY number DESC LIMIT 1", pipeline, number)
        return first(found, self._database, pipeline)

    def first_unproven(self, pipeline: str, number: int, participant: str) -> Checkpoint | None:
        """See `DeliveryLog.first_unproven`."""
        found = self._checkpoints(_FIRST_UNPROVEN, pipeline, number, participant)
        return first(found, self._database, pipeline)

    def undelivered(self, pipeline: str) -> int:
        """See `RunLog.undelivered`."""
        [row] = self._database.read(_UNDELIVERED, pipeline)
        return row["count"] or len(nothing(self._database, pipeline))

    def run_checkpoints(self, pipeline: str, run: RunKey, newest: int = 1000) -> Sequence[Checkpoint]:
        """See `RunLog.run_checkpoints`."""
        found = self._checkpoints(f"{OF_RUN} ORDER BY number DESC LIMIT ?", pipeline, *key_of(run), newest)
        return found or nothing(self._database, pipeline)

    def last_published(self, pipeline: str, run: RunKey) -> int:
        """See `RunLog.last_published`."""
        rows = self._database.read(_LAST_PUBLISHED, pipeline, *key_of(run))
        row = first(rows, self._database, pipeline)
        return int(row["number"]) if row else 0

    def proven(self, pipeline: str, run: RunKey, participant: str, newest: int = 1000) -> Sequence[int]:
        """The newest numbers staged in a run that the participant has proof of, ascending."""
        rows = self._database.read(_PROVEN, pipeline, *key_of(run), participant, newest)
        return [row["number"] for row in reversed(rows)] or nothing(self._database, pipeline)

    def position_before(self, pipeline: str, number: int) -> SparkPosition | None:
        """See `QueryLog.position_before`. Numbers without a position (they only carry) are passed over."""
        rows = self._database.read(_POSITION_BEFORE, pipeline, number)
        if not rows:
            rows = self._database.read(_ORIGIN, pipeline)
        if not rows:
            raise UnknownPipelineError(pipeline)
        return to_position(rows[0]["spark_location"], rows[0]["spark_batch"])

    def latest_confirmed(self, pipeline: str) -> Checkpoint | None:
        """See `QueryLog.latest_confirmed`."""
        found = to_checkpoints(self._database.read(_LATEST_CONFIRMED, pipeline, pipeline))
        return first(found, self._database, pipeline)

    def failed_in_a_row(self, pipeline: str) -> int:
        """See `RunLog.failed_in_a_row`."""
        [row] = self._database.read(_FAILED, pipeline, pipeline)
        return int(row["failures"])

    def last_delivered(self, pipeline: str, participant: str) -> int:
        """See `QueryLog.last_delivered`."""
        rows = self._database.read(
            "SELECT number FROM delivery WHERE pipeline = ? AND participant = ?", pipeline, participant
        )
        row = first(rows, self._database, pipeline)
        return int(row["number"]) if row else 0

    def events(
        self, pipeline: str, number: int | None = None, limit: int = 100, *, kinds: Collection[str] = ()
    ) -> Sequence[Event]:
        """See `QueryLog.events`."""
        where, values = "pipeline = ?", list[object]([pipeline, *kinds])
        if kinds:
            where += f" AND kind IN ({', '.join('?' * len(kinds))})"
        if number is not None:
            where += " AND number = ?"
            values.append(number)
        rows = self._database.read(f"SELECT * FROM event WHERE {where} ORDER BY id DESC LIMIT ?", *values, limit)
        return [to_event(row) for row in rows] or nothing(self._database, pipeline)

    def fillings(self, pipeline: str) -> Sequence[Filling]:
        """See `DeliveryLog.fillings`."""
        found = []
        for row in self._database.read(_FILLINGS, *[pipeline] * 3):
            if row["plan"] is None:  # nothing is COMPLETED yet
                continue
            try:
                participants = tuple(map(ParticipantPlan.from_json, json.loads(row["plan"])["participants"]))
            except SENSELESS as error:  # damaged, or of a newer release: it says so where it is delivered
                log.warning(
                    "A plan of pipeline %s cannot be read (%r): its targets are not compared.", row["pipeline"], error
                )
                continue
            dags = frozenset((row["first_dag"], row["last_dag"])) - {None}
            found.append(Filling(row["pipeline"], row["status"], int(row["number"]), participants, dags))
        return found

    def _checkpoints(self, where: str, *values: object, newest_first: bool = False) -> list[Checkpoint]:
        return to_checkpoints(self._database.read(select_checkpoints(where, newest_first=newest_first), *values))


def by_pipeline(
    database: Database, sql: str, pipelines: Collection[str], read: Callable[[Row], T]
) -> Mapping[str, Sequence[T]]:
    """Return what `read` makes of each row, by pipeline. `sql` has `{some}` in place of their names."""
    found: defaultdict[str, list[T]] = defaultdict(list)
    if pipelines:
        for row in database.read(sql.format(some=", ".join("?" * len(pipelines))), *pipelines):
            found[row["pipeline"]].append(read(row))
    return found


def first(found: Sequence[T], database: Database, pipeline: str) -> T | None:
    """Return the first of these; None: there is none. UnknownPipelineError if the pipeline does not exist."""
    if found:
        return found[0]
    nothing(database, pipeline)
    return None


def nothing(database: Database, pipeline: str) -> list[Any]:
    """An empty answer, once it is known that the pipeline exists."""
    if not database.read("SELECT name FROM pipeline WHERE name = ?", pipeline):
        raise UnknownPipelineError(pipeline)
    return []
