"""Seeded defects of operator state (see `defects`): of what a drain empties, and what a stream deletes at its end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from airflow_ft.protocol.lease import new_epoch
from airflow_ft.protocol.model import AfterAbort, Checkpoint, ExternalizedRetention, SparkPosition
from airflow_ft.protocol.retention import delete_delivered
from airflow_ft.spark.driver import query
from airflow_ft.spark.driver.publisher import Publisher
from airflow_ft.spark.state import draining
from airflow_ft.spark.state.reset import reset_state
from airflow_ft.spark.task import cleanup, stream
from tests.simulation.defect import NAMED, Change, defect, everywhere
from tests.simulation.model_store import ModelStore
from tests.simulation.spark import Location
from tests.simulation.windows import Windows

RESUMED, REFUSED = NAMED["a stream that goes on after a drain"], NAMED["a drain that sinks refuse"]
IDLE, IDLE_RESUMED = NAMED["a drain by a run that reads nothing new"], NAMED["a drain by each run that goes on"]
DELETING = NAMED["a stream that deletes what it leaves when it is stopped"]
FAILING = NAMED["a stream that deletes also when it fails"]
AT_ONCE = NAMED["streams at once that delete what they leave"]


# --- drains -----------------------------------------------------------------------------------------------------


@defect(NAMED["a run after a drain"], "I2")
def a_drain_that_nobody_remembers(change: Change) -> None:
    """The next run goes on, and what was drained comes once more when it closes."""
    change(draining, "drain_of", lambda *_: None)


@defect(REFUSED, "I7 I9")
def a_drain_that_was_refused_taken_for_one(change: Change) -> None:
    """It is rewound, so the next try has to drain anew."""

    def drain_of(store: Any, pipeline: str, _: object = None) -> Checkpoint | None:
        return next((found for found in store.checkpoints(pipeline, 5) if found.drained is not None), None)

    change(draining, "drain_of", drain_of)


@defect(RESUMED, "I1")
def a_run_goes_on_from_the_copy_that_was_drained(change: Change) -> None:
    """What it reads is too late for windows that are closed for ever."""
    copies: list[Location] = []
    terminal_copy, publish = Windows.terminal_copy, Publisher._publish

    def copying(self: Windows, *of: Any) -> Location:
        copies.append(terminal_copy(self, *of))
        return copies[-1]

    def publishing(self: Any, *of: Any) -> None:
        known = self._position
        self._position = lambda batch: known(batch) or copies[-1].position(batch)
        publish(self, *of)

    change(Windows, "terminal_copy", copying)
    change(Publisher, "_publish", publishing)


@defect(IDLE, "I2")
def a_drain_marked_with_a_location_that_no_checkpoint_names(change: Change) -> None:
    """Found by the simulator: nobody recognised it, since the run's base was a copy in which nothing was published."""
    emit, emitting = query.Query.emit_open, list[query.Query]()

    def emit_open(self: query.Query) -> None:
        emitting[:] = [self]
        emit(self)

    def marked(positions: Any, _: SparkPosition) -> Any:
        [by] = emitting
        last = by.publisher.last_batch
        base = by._request.base if last is None else by._location.position(last)
        assert base is not None
        return draining.marked(positions, base)

    change(query.Query, "emit_open", emit_open)
    change(query, "marked", marked)


@defect(
    NAMED["a drain, and all is deleted"],
    "I7",
    schedule=("A1o:29:LOSE_REQUEST", "A1o:82:SLEEP", "A2dp:4:DIE_BEFORE", "A2o2:20:DIE_BEFORE", "A3:38:SLEEP"),
)
def a_drain_that_waits_for_a_run_that_has_given_up(change: Change) -> None:
    """Found by the simulator: every later run was refused, and delivered nothing."""
    deliver = stream._deliver
    change(stream, "_deliver", lambda context, overlap: None if _is_refused(context) else deliver(context, overlap))


@defect(IDLE_RESUMED, "I10", at=629)
def the_state_before_a_drain_swept_as_soon_as_that_is_delivered(change: Change) -> None:
    """Found by the simulator: a drain is the newest number, and a rewind behind it goes to the position before."""

    def referenced(self: Any, pipeline: str) -> frozenset[str]:
        newest: Sequence[Checkpoint] = [row for row in self._rows.values() if row.delivered_by is not None][-1:]
        rows = [row for row in self._rows.values() if row.number not in self._pruned and not _is_rewound(row)]
        found = {row.segment.location for row in rows if row.segment}
        found |= {row.position.location for row in [*rows, *newest] if row.position}
        base = self._known(pipeline).base
        return frozenset(found | ({base.location} if base else set()))

    change(ModelStore, "referenced_locations", referenced)


def _is_refused(context: Any) -> bool:
    drain = draining.drain_of(context.store, context.pipeline)
    return drain is not None and drain.run != context.run


def _is_rewound(row: Checkpoint) -> bool:
    return row.after_abort is AfterAbort.REWOUND


# --- what is deleted --------------------------------------------------------------------------------------------


@defect(DELETING, "I10")
def deleted_also_when_the_stream_has_failed(change: Change) -> None:
    def deletes(config: Any, *, failed: bool) -> bool:
        return config.externalized_retention is not ExternalizedRetention.RETAIN_ON_CANCELLATION

    everywhere(change, cleanup.deletes, deletes)


class _AllDelivered:
    """The decision log for somebody who does not ask what is delivered."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def open_checkpoints(self, _: str) -> list[Checkpoint]:
        return []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


@defect(FAILING, "I10")
def state_dropped_beside_what_is_not_confirmed(change: Change) -> None:
    """All have to be switched off: the end carries stranded rows, who drops the state asks, and so does the log."""
    move = ModelStore._move_base
    change(stream, "stranded", lambda _: [])
    change(cleanup, "reset_state", lambda store, *of, **named: reset_state(_AllDelivered(store), *of, **named))  # type: ignore[arg-type]
    change(ModelStore, "_move_base", lambda self, *of: move(_AllDelivered(self), *of))  # type: ignore[arg-type]


@defect(AT_ONCE, "I5 I10", at=2281)
def an_end_that_does_not_ask_who_was_at_work_since(change: Change) -> None:
    """Neither before it takes an epoch, nor as it does."""
    change(cleanup, "_require_last", lambda *_: None)
    change(cleanup, "new_epoch", lambda *of, after: new_epoch(*of))


@defect(replace(DELETING, runs=(2, 4)), "I5", schedule=("A1:64:SLEEP",))
def a_late_end_deletes_numbers_of_its_successor(change: Change) -> None:
    """It sleeps when the state is dropped; what is delivered since then is not its own."""
    change(cleanup, "delete_delivered", lambda store, name, archive, _: delete_delivered(store, name, archive, 2**62))


@defect(DELETING, "I7")
def nothing_deleted_where_nothing_is_to_be_kept(change: Change) -> None:
    change(stream, "clean_up", lambda *_, **__: "")


_AT_ONCE = NAMED["a drain, and all is deleted, runs at once"]


@defect(_AT_ONCE, "I10", schedule=("A1w:1:YIELD:P2", "A1o:33:STALL", "A1:64:DIE_BEFORE"))
def state_dropped_that_somebody_has_asked_to_drain(change: Change) -> None:
    """Found by the simulator: who was asked to stop before had not heard of it, and died before saying so."""
    change(stream, "is_open", lambda *_: False)


@defect(_AT_ONCE, "I10", schedule=("A1w:1:YIELD:P2", "A1:49:YIELD:P1", "A1:66:DIE_BEFORE"))
def state_dropped_beside_a_request_made_meanwhile(change: Change) -> None:
    change(cleanup, "reset_state", lambda *of, seen_requests, **how: reset_state(*of, **how))
