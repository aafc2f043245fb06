"""Answers of a stream to requests to stop it: what was drained, which savepoints were taken, and what is missing."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_ft.protocol.errors import FencedError
from airflow_ft.protocol.pipelines import Request, RequestKind
from airflow_ft.protocol.steps import Context
from airflow_ft.spark.savepoints.stopping import DRAIN, SAVEPOINT
from airflow_ft.spark.savepoints.taking import TOO_LATE, taken_for, too_late
from airflow_ft.spark.state.draining import drain_of
from airflow_ft.spark.state.files import has_state
from airflow_ft.store.events import run_in

if TYPE_CHECKING:
    from airflow_ft.store.decision_log import DecisionLog
    from airflow_ft.store.requests import RequestOperations

EVENTS = 1000
"""How many events of a pipeline are looked at, newest first."""
_LOOKED_AT = 20

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Stopped:
    """The end of a stopped stream, for people. `savepoints`: for each request for one, whether it was taken.

    `is_open`: whether a drain would have delivered more. `undrained`: why a requested one had nothing to deliver.
    """

    text: str
    savepoints: Mapping[int, bool]
    is_open: bool
    undrained: str


def stops(store: RequestOperations, pipeline: str) -> list[Request]:
    """Open requests to stop."""
    return [request for request in store.open_requests(pipeline) if request.kind is RequestKind.STOP]


def answer_stops(context: Context[DecisionLog], stopped: Stopped) -> None:
    """Answers the open requests to stop, when all that the run has staged is delivered; and says what was drained.

    Not those that a later try, or the next run, is to hear: they are read before it is known that none had begun, and
    answered while it holds (I5).
    """
    store, pipeline = context.store, context.pipeline
    asked = stops(store, pipeline)
    row = store.run(pipeline, context.run)
    if row is None or row.epoch != store.pipeline(pipeline).epoch or not context.is_finished():
        return
    if store.unsettled(pipeline):  # a late try meets the end of a run that came after its own
        return
    newest = store.run_checkpoints(pipeline, context.run, _LOOKED_AT)
    drains = [c.number for c in newest if c.drained is not None and c.is_confirmed]  # not what a sink has refused
    drained = ": ".join(filter(None, ["nothing was drained", stopped.undrained]))
    if drains and not stopped.is_open:
        drained = f"checkpoint {drains[-1]} has drained the state"
    late = too_late(store, pipeline, "open") if asks(asked, DRAIN) else set()
    any_savepoint = any(stopped.savepoints.values())  # of the same state, so it is one for late requests, too
    for request in asked:
        texts, missing = [stopped.text], []
        if request.arguments.get(DRAIN):
            texts.append(f"{TOO_LATE}; {drained}" if request.id in late else drained)
            missing += [DRAIN] if stopped.is_open or request.id in late else []
        if request.arguments.get(SAVEPOINT) and not stopped.savepoints.get(request.id, any_savepoint):
            missing.append(SAVEPOINT)
            if request.id not in stopped.savepoints:
                texts.append("it stopped before the request for a savepoint: trigger one")
        try:
            store.answer(pipeline, request.id, "; ".join(texts), missing=missing, epoch=row.epoch)
        except FencedError as error:
            log.info("a newer run answers request %d: %s", request.id, error)


def answer_early(context: Context[DecisionLog], asked: Sequence[Request]) -> None:
    """Answer the requests from before this run took the turn: they were not meant for it. It obeys later ones."""
    store, pipeline = context.store, context.pipeline
    since: set[int] = set()  # requests; ids of events are compared, since a clock may go back
    for event in store.events(pipeline, 0, EVENTS):
        if event.kind == "TURN" and event.detail.get("has_turn") and run_in(event.detail) == context.run:
            break
        if event.kind == "REQUESTED":
            since.add(event.detail["id"])
    else:
        return
    late = too_late(store, pipeline, "open") if asks(asked, DRAIN) else set()
    for request in asked:
        if request.id in since:
            continue
        texts, missing = ["nothing was running"], []
        if request.arguments.get(DRAIN):
            drain = drain_of(store, pipeline)
            if request.id in late:
                texts.append(TOO_LATE)
                missing.append(DRAIN)
            elif drain is None:
                texts.append("nothing was drained")
                missing += [DRAIN] if is_open(context) else []
            elif drain.is_confirmed:
                texts.append(f"checkpoint {drain.number} has drained the state")
            else:  # a sink may still refuse it
                texts.append(f"checkpoint {drain.number} has drained the state, but is not delivered yet")
                missing.append(DRAIN)
        if request.arguments.get(SAVEPOINT):
            text, is_there = taken_for(store, pipeline, request.id)  # by a run that died before its answer
            texts.append(text)
            missing += [] if is_there else [SAVEPOINT]
        store.answer(pipeline, request.id, "; ".join(texts), missing=missing)


def asks(asked: Sequence[Request], argument: str) -> bool:
    """Return whether one of the requests has this argument."""
    return any(request.arguments.get(argument) for request in asked)


def is_open(context: Context[DecisionLog]) -> bool:
    """Return whether the pipeline has state that was not drained."""
    base = context.store.pipeline(context.pipeline).base
    if base is None or base.batch < 0 or drain_of(context.store, context.pipeline) is not None:
        return False
    return has_state(base.location)
