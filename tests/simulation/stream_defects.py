"""Seeded defects of streams (see `defects`): of a driver and a delivery that share an epoch, and of who waits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

from airflow_ft.pipeline import checkpoints
from airflow_ft.protocol import coordinator, transitions
from airflow_ft.protocol.config import CheckpointConfig
from airflow_ft.protocol.model import AfterAbort, Checkpoint, CheckpointState
from airflow_ft.protocol.overlap import Overlap
from airflow_ft.protocol.reasons import AbortReason
from airflow_ft.spark.driver import capacity, idle, job_restarts, query
from airflow_ft.spark.driver.moments import Moment
from airflow_ft.spark.driver.publisher import Publisher
from airflow_ft.spark.task import answers, stream
from tests.simulation import model_store, streams
from tests.simulation.defect import NAMED, Change, defect
from tests.simulation.model_store import ModelStore
from tests.simulation.spark import Location

S = CheckpointState
STREAM, GATES = NAMED["a stream into MySQL and Kafka"], NAMED["a stream that gates wait for"]
EXPIRING = NAMED["a stream whose checkpoints expire"]
EXPIRING_XA = NAMED["a stream whose checkpoints expire, into xa"]
STOPPED = NAMED["a stream that a person stops"]
AHEAD = NAMED["a stream that runs ahead"]
FAILING = NAMED["a stream, the job fails"]
PAUSING = NAMED["a stream that pauses between checkpoints"]
JUMPING = NAMED["a stream that pauses, clocks jump"]
BACK = ("A1o:133:LOSE_REPLY", "A1d:7:EVENT:clock jumps back", "A1dq2:5:STALL")


# --- what expires -----------------------------------------------------------------------------------------------


@defect(EXPIRING, "I4 I7")
def stranded_rows_carried_by_the_delivery_beside_its_driver(change: Change) -> None:
    """A number between two of the driver's: its next publication is refused."""
    deliver = Overlap.deliver

    def carrying(self: Overlap) -> None:
        self._coordinator.carry_stranded(self._context.run)
        deliver(self)

    change(Overlap, "deliver", carrying)


@defect(EXPIRING, "I7")
def stranded_rows_carried_by_nobody(change: Change) -> None:
    change(Publisher, "carry", lambda self: None)


@defect(EXPIRING, "I3")
def expiry_after_the_decision(change: Change) -> None:
    """Both have to be switched off: the coordinator leaves alone what is decided, and the log refuses it."""
    in_time, allowed = coordinator.Coordinator._require_in_time, transitions.is_allowed

    def of_what_is_decided(self: coordinator.Coordinator, checkpoint: Checkpoint) -> None:
        decided = checkpoint.state is S.COMMITTING
        in_time(self, replace(checkpoint, state=S.STAGED) if decided else checkpoint)

    def expire(self: coordinator.Coordinator) -> None:
        for found in self._store.open_checkpoints(self._pipeline):
            self._require_in_time(found)

    change(coordinator.Coordinator, "_require_in_time", of_what_is_decided)
    change(coordinator.Coordinator, "expire", expire)
    change(model_store, "is_allowed", lambda old, new: allowed(old, new) or (old, new) == (S.COMMITTING, S.ABORTED))


@defect(replace(EXPIRING, event_weight=16), "I3", at=3709)
def expiry_without_a_tombstone(change: Change) -> None:
    """R3: the clock of the decision log says nothing of a COMMIT that is under way."""
    abort = coordinator.Coordinator._abort_one

    def at_once(self: Any, checkpoint: Checkpoint, reason: AbortReason, message: str, after: AfterAbort) -> Checkpoint:
        if reason is not AbortReason.EXPIRED:
            return abort(self, checkpoint, reason, message, after)
        aborted = self._write_abort(checkpoint, reason, message, after, tombstoned=True)
        rolled_back: Checkpoint = self._roll_back(aborted)
        return rolled_back

    change(coordinator.Coordinator, "_abort_one", at_once)


@defect(EXPIRING_XA, "I7")
def expiry_that_leaves_prepared_branches_behind(change: Change) -> None:
    roll_back = coordinator.Coordinator._roll_back

    def only_others(self: Any, checkpoint: Checkpoint) -> Checkpoint:
        return checkpoint if checkpoint.reason is AbortReason.EXPIRED else roll_back(self, checkpoint)

    change(coordinator.Coordinator, "_roll_back", only_others)


@defect(EXPIRING, "I4 I7 I9 I10")
def expired_rows_taken_for_computed_again(change: Change) -> None:
    """What was staged is frozen: Spark's positions have passed it, and it has to be carried."""
    abort = ModelStore.abort

    def forget(self: ModelStore, *args: Any, **named: Any) -> Checkpoint:
        found = abort(self, *args, **named)
        expired = found.reason is AbortReason.EXPIRED and found.segment is not None
        return self._change(found, after_abort=AfterAbort.REWOUND) if expired else found

    change(ModelStore, "abort", forget)


# --- attempts that begin again in their process ------------------------------------------------------------------


@defect(FAILING, "I1 I2 I3 I4 I9 I10")
def a_restart_in_the_location_of_the_attempt_that_failed(change: Change) -> None:
    """R4: it is not cut back to what was published."""
    change(
        job_restarts, "replace", lambda request, **changes: replace(request, **{**changes, "attempt": request.attempt})
    )


@defect(FAILING, "I7")
def a_wait_for_what_a_query_has_failed_to_publish(change: Change) -> None:
    """It ends by the checkpoint's time-out, long after the job has raised."""
    change(query.Query, "_settle", lambda self, _: self.publisher.settle())


@defect(FAILING, "I1 I2 I3 I4 I9 I10")
def a_restart_from_the_base_of_the_attempt_that_failed(change: Change) -> None:
    change(job_restarts, "replace", lambda request, **changes: replace(request, **{**changes, "base": request.base}))


class _ReadBefore:
    """The decision log for an attempt that looks where to go on before it begins."""

    def __init__(self, store: Any) -> None:
        self._store, self._row = store, None

    def begin_again(self, pipeline: str, *args: Any) -> Any:
        self._row = self._store.pipeline(pipeline)
        return self._store.begin_again(pipeline, *args)

    def pipeline(self, _: str) -> Any:
        return self._row

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


@defect(
    NAMED["a stream into xa and Kafka"],
    "I4",
    schedule=(
        "A1w:1:EVENT:maria refuses item 1",
        "A1dq:7:EVENT:job fails",
        "A1o:73:STALL",
        "A1d:3:YIELD:A1o",
        "A1o:81:STALL",
    ),
)
def a_restart_that_reads_its_base_and_then_begins(change: Change) -> None:
    """Found by the formal model: a rewind between the two is forgotten, and its rows are left out."""
    restart = job_restarts.JobRestarts.after
    change(job_restarts.JobRestarts, "after", lambda self, store, *args: restart(self, _ReadBefore(store), *args))


@defect(STREAM, "I1 I4 I9 I10")
def published_before_spark_has_committed(change: Change) -> None:
    """R4: what a dead driver has published without state, its successor cannot go on from."""
    change(Location, "is_committed", lambda *_: True)


@defect(AHEAD, "I10")
def room_for_more_than_spark_keeps_state_for(change: Change) -> None:
    left = capacity.capacity
    change(capacity, "capacity", lambda store, pipeline, config, retained: left(store, pipeline, config, 100))


@defect(PAUSING, "I7")
def a_pause_that_is_not_awaited(change: Change) -> None:
    left = capacity.capacity

    def at_once(store: Any, pipeline: str, config: CheckpointConfig, retained: int) -> Any:
        return left(store, pipeline, replace(config, min_pause=timedelta(0), max_concurrent=1), retained)

    change(capacity, "capacity", at_once)


@defect(PAUSING, "I7")
def a_pause_beside_other_checkpoints(change: Change) -> None:
    """Between the triggers of two, and not since the one before was confirmed."""
    change(CheckpointConfig, "concurrent", property(lambda self: self.max_concurrent))


# --- gates ------------------------------------------------------------------------------------------------------


@defect(STREAM, "I9")
def all_is_read_before_it_is_published(change: Change) -> None:
    def drain(self: query.Query, is_over: Any) -> None:
        wait = self.publisher.settle
        self.publisher.settle = lambda: None  # type: ignore[method-assign]
        try:
            original(self, is_over)
        finally:
            self.publisher.settle = wait  # type: ignore[method-assign]

    original = query.Query.drain
    change(query.Query, "drain", drain)


@defect(STREAM, "I9")
def as_of_taken_after_the_offsets(change: Change) -> None:
    compute = query.Query._compute

    def late(self: query.Query, *args: Any) -> None:
        if self._cut is not None:
            self._cut = Moment.now(self._store)
        compute(self, *args)

    change(query.Query, "_compute", late)


@defect(STREAM, "I9")
def a_slice_counts_as_all_there_was(change: Change) -> None:
    change(query, "is_slice", lambda *_: False)


@defect(STREAM, "I9")
def an_interval_without_anything_new_vouches_for_what_came_after_it(change: Change) -> None:
    read = idle.Idle.read_as_of

    def now(self: idle.Idle) -> Any:
        return Moment.now(self._store) if read(self) is not None else None

    change(idle.Idle, "read_as_of", now)


@defect(JUMPING, "I9", schedule=BACK)
def a_wall_clock_whose_steps_nobody_notices(change: Change) -> None:
    change(idle.Idle, "_has_stepped", lambda self: False)


@defect(GATES, "I9", at=1339)
def a_gate_that_does_not_look_twice(change: Change) -> None:
    """A rewind between its two reads sets aside what the first one has found."""

    def once(store: Any, pipeline: str, at: Any) -> int | None:
        through: int | None = store.read_through(pipeline, at)
        return None if through is None or store.unsettled(pipeline, through=through, limit=1) else through

    change(checkpoints, "confirmed_as_of", once)


# --- the end ----------------------------------------------------------------------------------------------------


@defect(STOPPED, "I9")
def a_stop_answered_before_the_rest_is_delivered(change: Change) -> None:
    step = stream.stream_step

    def hasty(context: Any, *args: Any, **named: Any) -> Any:
        result = step(context, *args, **named)
        answer_all(context.store)
        return result

    change(streams, "stream_step", hasty)


@defect(NAMED["a stream that a person stops at once"], "I9")
def a_stop_answered_while_the_driver_is_at_work(change: Change) -> None:
    look = stream._Stopping.look

    def hasty(self: Any, driver: Any) -> None:
        look(self, driver)
        if self._asked:
            answer_all(self._store)

    change(stream._Stopping, "look", hasty)


@defect(NAMED["streams one after another"], "I9", schedule=("A1:55:SLEEP", "B1o:1:YIELD:P2", "B1o:2:YIELD:A1"))
def a_stop_of_a_later_run_answered_by_an_earlier_one(change: Change) -> None:
    """Found by the simulator: the later run never hears of it, and goes on."""
    change(streams, "answer_stops", lambda context, _: answer_all(context.store))


@defect(NAMED["a drain, and all is deleted"], "I9", schedule=("A1dq2:3:STALL", "A1:98:SLEEP", "A2o:118:STALL"))
def a_stop_answered_without_asking_whose_turn_it_is(change: Change) -> None:
    """Found by the simulator: it slept between looking whether it may answer, and answering."""
    answer = answers.answer_stops
    change(streams, "answer_stops", lambda of, said: answer(replace(of, store=_Unfenced(of.store)), said))


@defect(
    NAMED["a drain by a run that reads nothing new"],
    "I9",
    schedule=("A1dq2:4:EVENT:source grows", "A1dq2:6:DELAY", "A1:77:YIELD:A1dq2~6"),
)
def a_number_triggered_when_the_stage_has_ended(change: Change) -> None:
    """Found by the simulator: the request of a driver that had ended was still under way."""
    change(ModelStore, "_require_open_stage", lambda self, epoch, run: None)


class _Unfenced:
    """The decision log for somebody who answers whatever has happened since."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def answer(self, pipeline: str, id: int, outcome: str, *, missing: Sequence[str], epoch: int | None) -> None:
        self._store.answer(pipeline, id, outcome, missing=missing)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def answer_all(store: Any) -> None:
    for request in answers.stops(store, "orders"):
        store.answer("orders", request.id, "stopped")


@defect(
    AHEAD,
    "I7",
    schedule=("A1o:31:LOSE_REQUEST", "A1o:32:EVENT:store-clock passes the time-out", "A1o:34:STALL"),
)
def rows_that_were_given_up_fill_the_room_for_ever(change: Change) -> None:
    """Found by the simulator: the driver waits for room, and they wait for a number that only the driver gives."""
    take = capacity.Capacity.take
    change(capacity.Capacity, "take", lambda self, is_over=lambda: False, carry=None: take(self, is_over))
