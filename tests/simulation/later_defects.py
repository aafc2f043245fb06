"""Seeded defects of what is done with a savepoint later: it is changed offline, or what came after it stays."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest.mock import patch

from airflow_ft.protocol.model import SparkPosition
from airflow_ft.spark.driver import opening
from airflow_ft.spark.savepoints import offline, rescaling, restorable, restoring
from airflow_ft.spark.savepoints.metadata import Savepoint
from airflow_ft.spark.state import catching_up, evolution
from airflow_ft.spark.state.catching_up import FOLDER
from airflow_ft.spark.state.location_files import OFFSETS, batches, entry, note, replace_entry
from airflow_ft.spark.state.locations import SparkLocation
from tests.simulation import world
from tests.simulation.defect import NAMED, Change, defect

CONTINUED = NAMED["a savepoint, and what came later stays"]
STREAM = NAMED["a stream, its savepoint, and what came later stays"]
AGAIN = NAMED["savepoints, what came later stays, and again at once"]
RESCALED = NAMED["a savepoint that is rescaled"]
BACK = NAMED["savepoints, rescaled, and what came later stays"]
TO_AND_FRO = NAMED["savepoints, rescaled, to and fro"]
OTHER_JOBS = NAMED["a stream, its savepoint, and jobs that change"]
LEAVING = NAMED["a stream, its savepoint, jobs that leave state"]
UNFINISHED = NAMED["savepoints of what has not caught up"]


# --- what came later stays --------------------------------------------------------------------------------------


@defect(CONTINUED, "I2 I10")
def what_came_later_that_nobody_plans(change: Change) -> None:
    """It was agreed to, and is left out: all of it comes again."""
    change(restoring, "_plan", lambda *_: None)


@defect(CONTINUED, "I10")
def micro_batches_with_another_watermark(change: Change) -> None:
    """They are computed once more by the clock of now: other windows close."""
    read = catching_up._read

    def reading(base: SparkLocation, batch: int) -> Any:
        found = read(base, batch)
        return found and replace(found, metadata={**found.metadata, "batchWatermarkMs": 1})

    change(catching_up, "_read", reading)


@defect(AGAIN, "I2 I10")
def a_plan_that_another_restore_forgets(change: Change) -> None:
    """The pipeline was restored, and has not caught up yet: what it was to catch up with comes again."""
    plan = catching_up.plan

    def planning(*of: Any) -> int:
        with patch.object(catching_up, "batches", lambda *_: []):
            return plan(*of)

    change(restoring, "plan", planning)


@defect(STREAM, "I1 I2 I7 I10")
def state_that_is_brought_on_in_the_base_itself(change: Change) -> None:
    """Who dies meanwhile has changed what everybody goes back to."""
    open_location = opening.open_location

    def in_place(root: str, name: str, epoch: int, attempt: int, base: SparkPosition | None, clean: bool) -> Any:
        return open_location(root, name, epoch, attempt, base, clean or catching_up.is_planned(base))

    change(opening, "open_location", in_place)


@defect(STREAM, "I1 I2")
def rows_of_what_came_later_that_are_delivered(change: Change) -> None:
    """Nothing is computed once more for the state alone: it is read again like anything new."""
    change(opening, "catch_up", lambda location, _: location)
    change(world, "catch_up", lambda location, _: location)


@defect(BACK, "I10")
def settings_of_state_that_is_not_there_any_more(change: Change) -> None:
    """What is planned names the settings of the pipeline, and the savepoint was rescaled since."""
    plan = catching_up.plan

    def planning(here: SparkLocation, base: SparkLocation, since: int) -> int:
        count = plan(here, base, since)
        own = entry(base.uri, OFFSETS, since).metadata["conf"]
        for batch in batches(here.uri, FOLDER):
            log_entry = entry(here.uri, FOLDER, batch)
            replace_entry(here.uri, FOLDER, batch, replace(log_entry, metadata={**log_entry.metadata, "conf": own}))
        return count

    change(restoring, "plan", planning)


@defect(UNFINISHED, "I10")
def a_plan_that_is_lost_in_a_savepoint(change: Change) -> None:
    """It was taken while the pipeline had to catch up: whoever goes on from it reads that again."""
    copied = restoring._copied

    def without(*of: Any) -> SparkLocation:
        found = copied(*of)
        files = catching_up.filesystem(found.uri)
        files.remove_tree(files.uri(found.uri, FOLDER))
        return found

    change(restoring, "_copied", without)


@defect(TO_AND_FRO, "I2")
def a_place_that_is_told_by_micro_batches(change: Change) -> None:
    """A rescaling adds one, so a savepoint seems to be further on than it is."""

    def is_behind(uri: str, savepoint: Savepoint, delivered: SparkPosition | None) -> bool:
        if delivered is None or savepoint.batch >= delivered.batch:
            return False
        location = SparkLocation.of(delivered, savepoint.pipeline)
        return location.offsets(delivered.batch) != savepoint.location(uri).offsets(savepoint.batch)

    change(restorable, "_is_behind", is_behind)


# --- jobs that change -------------------------------------------------------------------------------------------


@defect(LEAVING, "I10")
def state_that_is_left_behind_unasked(change: Change) -> None:
    """The job has no operator for it, and nobody has given it up."""
    change(evolution, "may_be_left", lambda _: True)


@defect(LEAVING, "I10")
def a_permission_to_leave_state_that_outlives_the_restore(change: Change) -> None:
    """It was given for what was restored, and a later checkpoint holds what came since."""

    def may_be_left(location: SparkLocation) -> bool:
        noted = note(location.uri, evolution.RESTORED_FILE)
        return noted is not None and bool(noted["allow_non_restored_state"])

    change(evolution, "may_be_left", may_be_left)


@defect(OTHER_JOBS, "I1 I7 I9 I10")
def operators_that_are_moved_in_the_base_itself(change: Change) -> None:
    """Who dies meanwhile leaves state that is neither the old job's nor the new one's."""
    open_location = opening.open_location

    def in_place(root: str, name: str, epoch: int, attempt: int, base: SparkPosition | None, _: bool) -> Any:
        return open_location(root, name, epoch, attempt, base, True)

    change(opening, "open_location", in_place)


# --- changed offline --------------------------------------------------------------------------------------------


@defect(RESCALED, "I10 -")
def a_savepoint_that_is_changed_itself(change: Change) -> None:
    """There is no copy: what fails has spoilt the only one there is."""
    change(offline, "copy_location", lambda location, _: location)


@defect(RESCALED, "I10")
def a_changed_savepoint_that_is_one_before_it_is_changed(change: Change) -> None:
    """Who dies while Spark is at work leaves a folder that calls itself a savepoint."""
    finish, copy_location = offline.finish, offline.copy_location

    def copying(location: SparkLocation, uri: str) -> SparkLocation:
        copied = copy_location(location, uri)
        finish(uri.rpartition("/")[0], copied, rescaling.read_metadata(location.uri.rpartition("/")[0]))
        return copied

    change(offline, "copy_location", copying)
    change(offline, "finish", lambda uri, changed, metadata: metadata)


@defect(RESCALED, "I1 I10")
def a_changed_savepoint_that_says_where_the_other_one_stood(change: Change) -> None:
    """Its state is a micro-batch further on than `_metadata` tell."""
    changed_copy = rescaling.changed_copy

    def tracing(uri: str, savepoint: Savepoint, folder: str, by: str, make: Any) -> tuple[str, Savepoint]:
        def made(copied: SparkLocation) -> SparkLocation:
            make(copied)
            return copied

        return changed_copy(uri, savepoint, folder, by, made)

    change(rescaling, "changed_copy", tracing)
