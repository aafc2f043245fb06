"""Records every statement that the store sends, so that the databases can be asked how they would run it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

from airflow_ft.protocol.failure import Failure
from airflow_ft.protocol.lag import Lag, Unit
from airflow_ft.protocol.model import AfterAbort, Promise, StateSizes
from airflow_ft.protocol.overview import Noted, Only
from airflow_ft.protocol.pipelines import HaltReason, RequestKind
from airflow_ft.protocol.position import Position
from airflow_ft.protocol.reasons import AbortReason
from airflow_ft.protocol.warning import PipelineWarning
from airflow_ft.store.database import Row
from airflow_ft.store.decision_log import DecisionLog
from tests.store.scene import LATER_RUN, PIPELINE, RUN, Scene, a_lease, a_position

Statement = tuple[str, tuple[object, ...]]


# The index that each of these look-ups must go through: a search by pipeline alone would read its whole history.
INDEXES = {
    "is_open = 1": "checkpoint_open",
    "is_prunable = 1": "checkpoint_prunable",
    "is_base = 1": "checkpoint_base",
    "is_referenced = 1": "checkpoint_referenced",
    "is_delivered = 1": "checkpoint_delivered",
    "AND state = 'COMPLETED'": "checkpoint_completed",
    "FROM checkpoint WHERE pipeline = ? AND dag_id = ?": "checkpoint_run",
    "c.dag_id = ?": "checkpoint_run",
    "after_abort = 'rewound' LIMIT 1": "checkpoint_rewound",
    "AND position_digest = ?": "checkpoint_position",
    "after_abort = 'rewound' AND segment_digest IS NOT NULL AND NOT EXISTS": "checkpoint_position_left",
    "after_abort = 'rewound' AND NOT EXISTS": "checkpoint_position_left",
    "segment_digest IS NULL AND NOT EXISTS": "checkpoint_position_unpublished",
    "ORDER BY stage_began": "run_complete_began",
    "ORDER BY as_of": "checkpoint_as_of",
    "ORDER BY read_as_of": "run_read",
    "max(read_as_of) FROM run WHERE pipeline = ?": "run_read",
    "AS stage_below": "run_complete_through",
    "AS stream_below": "checkpoint_covering",
    "AS stage_as_of": "run_complete_through",
    "AS stream_as_of": "checkpoint_covering",
    "AND reason IS NOT NULL": "checkpoint_failed",
    "AND reason = ?": "checkpoint_reason",
    "AND dag_id = ? AND run_id = ? AND map_index = ? AND number < ?": "checkpoint_run",
    "kind = 'SAVEPOINT'": "event_savepoint",
    "kind = 'RESTORED'": "event_restored",
    "kind = 'HALTED'": "event_halted",
    "complete = 0": "run_incomplete_began",
    "outcome IS NULL": "request_open",
    "ORDER BY injected_at": "barrier_at",
    "FROM event WHERE pipeline = ? AND number = ?": "event_number",
    "ORDER BY changed_at": "pipeline_changed",
}


class _RecordingTransaction:
    def __init__(self, tx: Any, statements: list[Statement]) -> None:
        self._tx, self._statements = tx, statements

    def rows(self, sql: str, *values: object) -> list[Row]:
        self._statements.append((sql, values))
        found: list[Row] = self._tx.rows(sql, *values)
        return found

    def locked(self, sql: str, *values: object) -> tuple[list[Row], int]:
        self._statements.append((sql, values))
        found: tuple[list[Row], int] = self._tx.locked(sql, *values)
        return found

    def change(self, sql: str, *values: object) -> int:
        self._statements.append((sql, values))
        changed: int = self._tx.change(sql, *values)
        return changed

    def now(self) -> int:
        now: int = self._tx.now()
        return now


class _RecordingDatabase:
    def __init__(self, database: Any) -> None:
        self._database = database
        self.statements: list[Statement] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database, name)

    def read(self, sql: str, *values: object) -> list[Row]:
        self.statements.append((sql, values))
        found: list[Row] = self._database.read(sql, *values)
        return found

    @contextmanager
    def write(self) -> Iterator[_RecordingTransaction]:
        with self._database.write() as tx:
            yield _RecordingTransaction(tx, self.statements)


def recorded(store: Any, work: Callable[[DecisionLog], None]) -> list[Statement]:
    """The distinct statements that `work` makes the store send."""
    plain = store._database
    recording = _RecordingDatabase(plain)
    store._database = recording
    try:
        work(store)
    finally:
        store._database = plain
    return list({sql: (sql, values) for sql, values in recording.statements}.values())


def every_operation(store: DecisionLog) -> None:
    """Calls each operation of the protocol in each of its ways."""
    scene = Scene(store)
    scene.stage(4, continues=True)
    scene.complete(2, [1, 2])
    scene.abort(3)
    scene.prepare(4, [3, 4])
    scene.abort(4)
    store.hold_lease(PIPELINE, 1, a_lease("task"))
    store.renew_lease(PIPELINE, 1, "task")
    store.release_lease(PIPELINE, "task")
    scene.trigger()
    scene.take("other")
    store.adopt_run(PIPELINE, 2, RUN)
    scene.complete(scene.carry(), [3, 4])
    scene.stage(3, continues=True)
    scene.plan(8, [7, 8])
    scene.abort(8)
    scene.trigger()
    scene.abort(9, AfterAbort.REWOUND, 7)
    scene.promises = {"xa": Promise.TWO_PHASE}
    number = scene.stage(1)[0]
    scene.prepare(number)
    scene.abort(number, AfterAbort.REWOUND, number)
    scene.rolled_back(number, "xa")
    kept = scene.stage(2)[0]
    scene.prepare(kept)
    scene.quarantine(kept)
    scene.release(kept)
    scene.abort(kept)
    store.rewind(PIPELINE, 2, 1, None, "a test")
    store.discard_kept(PIPELINE, 2, "a test")
    store.reset_state(PIPELINE, 2, a_position(0), "a test")
    store.retire(PIPELINE, "a test")
    store.restore(PIPELINE, 2, a_position(0), "a test")
    store.note_savepoint(PIPELINE, 1, "a test", {})
    store.remember_root("file:///wal", "an id")
    store.root("file:///wal")
    store.locations_below("file:///wal")
    store.marks()
    store.prune(PIPELINE, 1)
    store.enter_turn(PIPELINE, RUN, store.now())
    store.enter_turn(PIPELINE, LATER_RUN, None, ended=[RUN])
    store.record_warning(PIPELINE, PipelineWarning("SEEN", "orders", "a test"))
    store.warnings([PIPELINE])
    store.record_failure(PIPELINE, LATER_RUN, Failure("JobError", "JOB_FAILED", "a test"))
    store.record_problem(PIPELINE, 2, kept, "xa", Failure("DeclinedError", "DECLINED", "a test"))
    store.leave_turn(PIPELINE, LATER_RUN, confirmed=True)
    store.count_run(PIPELINE, LATER_RUN)
    store.halt(PIPELINE, HaltReason.TOKEN_LOST, "a test")
    store.adopt(PIPELINE, 5, {"db": 20}, "a test", expected=2)
    store.resume(PIPELINE, "a test")
    store.rename("old", Scene(store, "old").take(), 0, "new", Scene(store, "new").take(), a_position(0), "a test")
    store.resume("old", "a test")
    epoch = store.pipeline(PIPELINE).epoch
    store.begin_stage(PIPELINE, epoch, RUN)
    store.begin_again(PIPELINE, epoch, RUN)
    store.trigger(PIPELINE, epoch, RUN)
    store.give_up(PIPELINE, epoch, AbortReason.STOPPED, "a test")
    store.read_all(PIPELINE, epoch, RUN, store.now())
    store.record_lags(PIPELINE, epoch, 1, [Lag("orders", Unit.RECORDS, 7)])
    store.record_state_sizes(PIPELINE, epoch, 1, StateSizes(1, 2, 3))
    given = Position.of("2026-11-24").to_json()
    store.published_at(PIPELINE, given)
    store.newest_position(PIPELINE)
    store.rewound_position(PIPELINE)
    store.left_positions(PIPELINE)
    list(store.rewound_positions(PIPELINE))
    store.unpublished_positions(PIPELINE)
    store.pipelines()
    store.run(PIPELINE, RUN)
    store.runs(PIPELINE, RUN.dag_id, RUN.run_id)
    store.read_through(PIPELINE, store.now())
    asked = store.ask(PIPELINE, RequestKind.STOP, {}, "a test")
    store.open_requests(PIPELINE)
    store.requests_by(PIPELINE, "a test")
    store.answer(PIPELINE, asked, "stopped")
    store.request(PIPELINE, asked)
    store.inject("closing", [PIPELINE], "a test")
    store.barrier("closing")
    store.barriers()
    store.read_as_of(PIPELINE, 2)
    store.delivered_with(PIPELINE, 2)
    store.complete_around(PIPELINE, 2)
    with suppress(KeyError):
        store.spec("digest")
    store.is_rewound(PIPELINE, 0, 2)
    store.checkpoints(PIPELINE)
    store.checkpoints(PIPELINE, 5, before=3)
    store.checkpoints(PIPELINE, 5, before=3, reason=AbortReason.DECLINED)
    store.checkpoints(PIPELINE, 5, before=3, run=RUN)
    store.checkpoint_counts(PIPELINE)
    store.number_at(PIPELINE, store.now())
    store.overviews()
    store.overviews(RUN.dag_id)
    store.overview(PIPELINE)
    store.late(PIPELINE, timedelta(0))
    store.mark()
    store.mark(PIPELINE)
    store.lags([PIPELINE, "other"])
    store.recent([PIPELINE, "other"], 5)
    store.doing([PIPELINE, "other"])
    store.origins(PIPELINE, 5)
    store.timings(PIPELINE, 5)
    for only in Only:
        store.checkpoints(PIPELINE, 5, 3, only)
        store.timings(PIPELINE, 5, only)
    for kind in Noted:
        store.noted(PIPELINE, kind)
    store.open_checkpoints(PIPELINE)
    store.open_checkpoints(PIPELINE, ahead_of=(3, "db"))
    store.unsettled(PIPELINE, run=RUN, through=3)
    store.unsettled(PIPELINE, limit=1)
    store.planned_before(PIPELINE, 3)
    store.first_unproven(PIPELINE, 3, "db")
    store.undelivered(PIPELINE)
    store.fillings(PIPELINE)
    store.run_checkpoints(PIPELINE, RUN)
    store.last_published(PIPELINE, RUN)
    store.confirmed(PIPELINE, RUN)
    store.counted(PIPELINE, RUN)
    store.proven(PIPELINE, RUN, "db")
    store.forget_events(PIPELINE, 1, 10)
    store.prunable(PIPELINE, 1, 10)
    store.position_before(PIPELINE, 3)
    store.overtaken_by(PIPELINE, RUN)
    store.referenced_locations(PIPELINE)
    store.latest_confirmed(PIPELINE)
    store.failed_in_a_row(PIPELINE)
    store.last_delivered(PIPELINE, "db")
    store.events(PIPELINE)
    store.events(PIPELINE, 2)
    store.events(PIPELINE, kinds=("STAGED", "STATE_RESET"))
