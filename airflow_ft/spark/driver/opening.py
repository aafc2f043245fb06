"""`open_attempt`: the checkpoint location in which an attempt works, changed to what the job reads and keeps now."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from airflow_ft.jobs.uids import Identity
from airflow_ft.protocol.errors import ConfigurationError
from airflow_ft.spark.driver.folders import refuse_other_folders
from airflow_ft.spark.driver.inputs import declared_source
from airflow_ft.spark.driver.kinds import are_noted, keep_kinds, refuse_other_kinds
from airflow_ft.spark.driver.topics import Topics, by_topic
from airflow_ft.spark.request import StageRequest
from airflow_ft.spark.state.beginnings import Beginnings
from airflow_ft.spark.state.catching_up import catch_up, is_planned
from airflow_ft.spark.state.evolution import carry_out, evolution, is_known
from airflow_ft.spark.state.locations import (
    SparkLocation,
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
