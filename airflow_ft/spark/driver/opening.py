"""`open_attempt`: the checkpoint location in which an attempt works, changed to what the job reads and keeps now."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from airflow_ft.jobs.uids import Identity
from airflow_ft.protocol.errors import ConfigurationError
from airflow_ft.protocol.model import SparkPosition
from airflow_ft.spark.driver.folders import refuse_other_folders
from airflow_ft.spark.driver.inputs import declared_source
from airflow_ft.spark.driver.topics import Topics, by_topic
from airflow_ft.spark.request import StageRequest
from airflow_ft.spark.state.beginnings import Beginnings
from airflow_ft.spark.state.catching_up import catch_up, is_planned
from airflow_ft.spark.state.evolution import carry_out, evolution, is_known
from airflow_ft.spark.state.location_files import KINDS_FILE, keep, note
from airflow_ft.spark.state.locations import (
    SparkLocation,
    begins_at,
    check_sources,
    has_places,
    open_location,
    remember_incarnation,
    set_places,
)
from airflow_ft.spark.state.meaning import Memory, remember_meaning
from airflow_ft.spark.state.operators import remember
from airflow_ft.spark.state.schemas import refuse_lost, states
from airflow_ft.spark.state.source_changes import SourceChange, change_sources, keep_left_out
from airflow_ft.spark.state.status import LocationStatus, leave_out, location_status, record_ids

log = logging.getLogger("airflow_ft.spark")

_KEPT = ("kind", "data_source")
"""Without options: templates give them other values in each run."""


@dataclass(frozen=True, slots=True)
class JobPlan:
    """Parts of the job's query, in Spark's order: sources by name, their uses, stateful operators."""

    sources: list[str]
    places: list[int]
    operators: tuple[Identity, ...]
    memory: Memory | None
    """The meaning of the operators' state; None: unknown."""


def open_attempt(
    request: StageRequest,
    plan: JobPlan,
    change: SourceChange | None,
    frozen: Beginnings,
    begins: Mapping[int, str],
    topics: Topics,
    bear: Callable[..., None],
    on_compute: Callable[[], None],
) -> SparkLocation:
    """Return where this attempt works, without the positions of topics that are no longer what they were.

    `bear` computes a planned micro-batch (`compute_planned`); `on_compute` hears that the job begins to compute.
    """
    refuse_other_kinds(request, plan.sources)
    begun = frozen.read(begins)
    before = LocationStatus() if request.base is None else location_status(request.base)
    if change is not None:
        before = change.location_status(before)
    before = before.beside(frozen.location_status(begun))
    void = topics.begin(before)
    step = (
        None if request.starts_from_scratch else evolution(request.pipeline, request.base, plan.operators, plan.memory)
    )
    # What others may have to go back to is changed in a copy only.
    behind = is_planned(request.base)
    fits = step is None and change is None and has_places(request.base, plan.places)
    fits = fits and is_known(request.base, plan.operators, plan.memory)
    fits = fits and are_noted(request, plan.sources)
    in_place = request.base_is_clean and fits and not void and not behind
    location = open_location(request.wal_root, request.pipeline, request.epoch, request.attempt, request.base, in_place)
    log.info("Spark's checkpoint location: %s (%s)", location.uri, location.how)
    if request.starts_from_scratch:
        remember_incarnation(location, f"{request.pipeline}/{location.uri.rsplit('/', 1)[1]}")
        log.info("mode AT_MOST_ONCE: reading from the sources' present end; rows that are not published are lost")
        check_sources(location, plan.sources)
        set_places(location, plan.places)
        if request.former_base is not None:
            keep_left_out(request.former_base, location)
        keep_kinds(location, request, plan.sources)
        return location
    if behind and (void or change is not None):
        raise ConfigurationError(
            f"{'topics were recreated' if void else 'the sources of the job changed'} after the savepoint, so the"
            " checkpoints delivered after it cannot be computed again.",
            code="rebuild_impossible",
            pipeline=request.pipeline,
            remedy="Restore the savepoint again with `--later write-again`, or choose another savepoint.",
        )
    if request.base is None:
        remember_incarnation(location, request.incarnation)
    if change is not None:
        change_sources(change, location, plan.places)
    frozen.restore(location, begun, topics.known, void)
    check_sources(location, plan.sources)
    set_places(location, plan.places)
    keep_kinds(location, request, plan.sources)
    refuse_other_folders(location, [declared_source(request, name) for name in plan.sources])
    if request.base is None:
        remember(location, plan.operators)
        remember_meaning(location, plan.memory)
        return location
    if void:
        leave_out(location, void)
    if step is not None:
        carry_out(step, location, plan.operators, partial(bear, whole=True))
    remember(location, plan.operators)
    remember_meaning(location, plan.memory)
    if behind:
        on_compute()
        held = states(location)
        location = catch_up(location, bear)
        refuse_lost(held, location)
    ids = topics.ids_of(by_topic(location.offsets(location.batch)), before.ids)
    if ids != before.ids:
        record_ids(location, location.batch, ids)
    return location


def refuse_other_kinds(request: StageRequest, names: Sequence[str]) -> None:
    """Compare the job's sources with those of the same names in the checkpoints it continues: one of another kind
    cannot continue at such a position.

    Raises:
        ConfigurationError: one is of another kind, or of another class, so the position would mean something else.
    """
    if request.base is None:
        return
    before: Mapping[str, Any] = note(request.base.location, KINDS_FILE) or {}
    for name, now in _kinds(request, names).items():
        old = before.get(name, now)
        if _what(old) != _what(now) and not _has_begun_nowhere(request.base, name):
            raise ConfigurationError(
                f"source {name!r} is {_what(now)}, but its position in the checkpoints is that of {_what(old)}.",
                code="sources_changed",
                pipeline=request.pipeline,
                remedy="Declare the new source under another name in sources={...}: it starts at its beginning, and"
                " the position of the former one is kept. If a class was only moved or renamed, keep it importable"
                " under the former name, and declare that one.",
                source=name,
                before=_what(old),
                after=_what(now),
            )


def are_noted(request: StageRequest, names: Sequence[str]) -> bool:
    """Return whether the base has a note of each declared source, so that none is added.

    Notes are added to a copy only: if the job then fails, its author can go back to the former sources.
    """
    if request.base is None:
        return True
    noted: Mapping[str, Any] = note(request.base.location, KINDS_FILE) or {}
    return all(name in noted and _what(noted[name]) == _what(now) for name, now in _kinds(request, names).items())


def keep_kinds(location: SparkLocation, request: StageRequest, names: Sequence[str]) -> None:
    """Note the job's sources in an attempt's location. Sources that are left out keep their notes."""
    before: dict[str, Any] = note(location.uri, KINDS_FILE) or {}
    found = {**before, **_kinds(request, names)}
    if found != before:
        keep(location.uri, KINDS_FILE, found)


def _kinds(request: StageRequest, names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return what is kept of each declared source that the job reads."""
    declared = {name: request.sources[name] for name in names if name in request.sources}
    return {name: {key: each[key] for key in _KEPT if key in each} for name, each in declared.items()}


def _has_begun_nowhere(base: SparkPosition, name: str) -> bool:
    """Return whether the job of `base` read the source, and it has no position yet."""
    location = SparkLocation.of(base)
    places = dict(enumerate(location.offsets(base.batch)))
    for index, each in enumerate(location.sources()):
        if each == name:
            return index in places and places[index] is None and not begins_at(base.location, index)
    return False  # left out: its position is kept elsewhere


def _what(kept: Mapping[str, Any]) -> str:
    named = f" ({kept['data_source']})" if "data_source" in kept else ""
    return f"a source of kind {kept['kind']}{named}"
