"""Seeded defects of requests to stop (see `defects`): wrong answers, and missing savepoints or drains."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from airflow_ft.spark.savepoints import taking
from airflow_ft.spark.task import answers, stream
from tests.simulation.defect import NAMED, Change, defect
from tests.simulation.model_store import ModelStore

SAVING = NAMED["a stream that keeps a savepoint and deletes the rest"]
AT_ONCE = NAMED["savepoints and drains, runs at once"]
TASKS = NAMED["a task that stops a stream, and people"]


@defect(AT_ONCE, "I9")
def a_savepoint_without_the_state_that_was_deleted_before(change: Change) -> None:
    """The stream died after it deleted its state and before it answered. The request came in between."""
    change(taking, "too_late", lambda *_: set())


@defect(AT_ONCE, "I10")
def a_drain_of_state_that_was_deleted_before(change: Change) -> None:
    change(answers, "too_late", lambda *_: set())


@defect(NAMED["a task that drains a stream"], "I9")
def a_savepoint_whose_state_a_person_drops_meanwhile(change: Change) -> None:
    """Found by the simulator: only requests made after the deletion were looked for."""
    late = taking.too_late

    def since(store: Any, pipeline: str, lost: str) -> set[int | None]:
        found = [event for event in store.events(pipeline, limit=1000) if event.kind in ("REQUESTED", "STATE_RESET")]
        kinds = [event.kind for event in found]
        newer = found[: kinds.index("STATE_RESET")] if "STATE_RESET" in kinds else found
        return late(store, pipeline, lost) & {None, *(event.detail["id"] for event in newer)}

    change(taking, "too_late", since)


@defect(TASKS, "I9")
def only_open_state_is_missed_by_a_savepoint(change: Change) -> None:
    """Found by the simulator: state that was drained and deleted counted as saved."""
    late = taking.too_late
    change(taking, "too_late", lambda store, pipeline, _: late(store, pipeline, "open"))


@defect(SAVING, "I9")
def a_savepoint_that_failed_called_taken(change: Change) -> None:
    take = stream._take_savepoints

    def hopeful(context: Any, asked: Sequence[Any]) -> tuple[list[str], dict[int, bool]]:
        texts, taken = take(context, asked)
        return texts, dict.fromkeys(taken, True)

    change(stream, "_take_savepoints", hopeful)


@defect(TASKS, "I9")
def a_request_that_is_answered_twice(change: Change) -> None:
    """The second answer replaces the first."""
    answer = ModelStore.answer

    def again(self: Any, pipeline: str, id: int, outcome: str, **how: Any) -> None:
        if id in self._requests:
            self._requests[id] = replace(self._requests[id], outcome="")
        answer(self, pipeline, id, outcome, **how)

    change(ModelStore, "answer", again)


@defect(AT_ONCE, "I7")
def a_request_from_before_the_turn_that_nobody_answers(change: Change) -> None:
    stops = answers.stops

    def since_the_turn(store: Any, pipeline: str) -> list[Any]:
        kinds = [event.kind for event in store.events(pipeline, 0, 1000)]
        newer = kinds[: kinds.index("TURN")].count("REQUESTED") if "TURN" in kinds else 0
        asked = stops(store, pipeline)
        return asked[len(asked) - newer :] if newer else []

    change(stream, "answer_early", lambda *_: None)
    change(answers, "stops", since_the_turn)
