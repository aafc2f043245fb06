"""Mistakes in how sources are added, left out, moved and put back, as in `defects`: each must be found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from airflow_ft.protocol.model import CheckpointState
from airflow_ft.spark.driver import opening
from airflow_ft.spark.driver.topics import Topics
from airflow_ft.spark.state import beginnings, locations, source_changes
from airflow_ft.spark.state.beginnings import Beginnings
from airflow_ft.spark.state.status import LocationStatus
from tests.simulation.defect import NAMED, Change, defect
from tests.simulation.model_store import ModelStore

CHANGED = NAMED["sources that change"]
FILES = NAMED["sources that change, of files"]
MOVED = NAMED["sources that move"]
FULL_REFRESH = NAMED["sources that change, and everything is read anew later"]


@defect(CHANGED, "I10", schedule=("B1dq:7:DIE_BEFORE",))
def a_beginning_of_an_added_source_that_nobody_freezes(change: Change) -> None:
    """Each attempt looks it up anew: "latest" is another moment then."""
    change(Beginnings, "freeze", lambda *_: None)


@defect(CHANGED, "I10")
def beginnings_that_are_frozen_for_all_sources_at_once(change: Change) -> None:
    """Those of sources that stay become another moment when one is added, until something is published."""
    digest = beginnings._digest
    of: list[Any] = []

    def with_all(method: Any) -> Any:
        def called(self: Beginnings, *rest: Any) -> Any:
            of[:] = [self.sources]
            return method(self, *rest)

        return called

    for name in ("read", "freeze"):
        change(Beginnings, name, with_all(getattr(Beginnings, name)))
    change(beginnings, "_digest", lambda said: digest([said, [beginnings.start_of(each) for each in of[0].values()]]))


@defect(CHANGED, "I7")
def a_frozen_beginning_that_nobody_is_given(change: Change) -> None:
    """It is kept, and each later attempt begins elsewhere, and is refused."""
    change(Beginnings, "restore", lambda *_: None)


@defect(CHANGED, "I2")
def a_source_that_is_left_out_and_forgotten(change: Change) -> None:
    """It begins once more when it is put back."""
    change(source_changes, "_leave", lambda *_: None)


@defect(CHANGED, "I2", schedule=("C1dp:3:DIE_AFTER",))
def a_position_that_does_not_come_along_into_a_copy(change: Change) -> None:
    """Of a source that is left out, where an attempt has died since."""
    survives = locations._survives
    change(locations, "_survives", lambda name, *of: name.parts[0] != locations.LEFT and survives(name, *of))


@defect(CHANGED, "I2 I10")
def lines_by_their_order_alone(change: Change) -> None:
    """The offsets of one source are given to another one."""
    rewrite = source_changes.rewrite_offsets

    def swapped(location: Any, rewritten: Any, places: Any) -> None:
        rewrite(location, lambda lines: [*rewritten(lines)][::-1], places)

    change(source_changes, "rewrite_offsets", swapped)


@defect(CHANGED, "I7")
def sources_that_are_changed_in_place(change: Change) -> None:
    """What others have to go back to is changed, and not a copy of it."""
    opened = opening.open_location

    def in_place(root: str, pipeline: str, epoch: int, attempt: int, base: Any, clean: bool) -> Any:
        return opened(root, pipeline, epoch, attempt, base, True)

    change(opening, "open_location", in_place)


@defect(MOVED, "I2 I10")
def a_recreated_topic_read_by_offsets_of_the_old_one(change: Change) -> None:
    """Its ids are not compared when an attempt begins."""
    begin = Topics.begin

    def beginning(self: Topics, status: LocationStatus) -> Mapping[int, Mapping[str, str]]:
        return begin(self, replace(status, ids={}))

    change(Topics, "begin", beginning)


@defect(MOVED, "I2 I10", schedule=("B1dq:2:EVENT:returns is recreated",))
def a_topic_that_is_recreated_while_it_is_read(change: Change) -> None:
    """Its ids are not compared again before the publication."""
    change(Topics, "check", lambda _: None)


@defect(CHANGED, "I2 I10", schedule=("B1dq:4:DIE_AFTER", "B2:2:EVENT:refunds is recreated"))
def a_recreated_topic_of_which_only_the_beginning_is_frozen(change: Change) -> None:
    """Its ids are not compared with those of before, so the new one is read from there."""
    change(Beginnings, "location_status", lambda *_: LocationStatus())


@defect(FULL_REFRESH, "I7")
def a_beginning_that_is_of_any_life(change: Change) -> None:
    """A source that is added after everything was read anew begins where it had begun before, which is lost."""
    change(beginnings, "incarnation_in", lambda _: "")


@defect(FILES, "I2 I10")
def a_folder_whose_files_are_forgotten_when_it_is_left_out(change: Change) -> None:
    """Its offset is kept, and not what Spark has logged as read."""
    change(source_changes, "write_source_position", lambda _, __, offset, *more: offset)


@defect(NAMED["a stream, sources that change, at once"], "I3 I5", at=326)
def a_late_attempt_with_the_sources_of_before(change: Change) -> None:
    """Nothing keeps it from publishing."""
    publish = ModelStore.publish

    def anybody(self: Any, pipeline: str, epoch: int, number: int, predecessor: int, *of: Any, **named: Any) -> None:
        known = self.pipeline(pipeline)
        if predecessor == known.last_published < number:
            epoch, row = known.epoch, self._row(number)
            self._rows[number] = replace(row, epoch=epoch, state=CheckpointState.TRIGGERED)
        publish(self, pipeline, epoch, number, predecessor, *of, **named)

    change(ModelStore, "publish", anybody)
