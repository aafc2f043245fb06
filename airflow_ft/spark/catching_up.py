"""A restored pipeline whose later checkpoints stay: it computes their micro-batches once more, for its state alone.

    airflow_ft_catch_up/<batch>             as Spark's `offsets/<batch>`: what the pipeline had read in each of them
    airflow_ft_catch_up/sources/<index>/    Spark's log of read files up to the last of them
    airflow_ft_catch_up/topics              ids of topics as of the last of them

Their rows are in the sinks. So each is computed again from the restored state, with the very offsets, watermark and
time that it had, and what comes out is dropped. Then the state is what it would be if the job had always been as it is
now, windows that were closed on the way are closed, and the next rows are the first ones that nobody has delivered.

Spark computes what lies planned and not committed in a location: so the micro-batches are planned one by one, in the
attempt's own copy. The base stays what was restored until a checkpoint is published, or the stage ends: whoever dies
before that begins anew.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import PurePosixPath

from airflow_ft.core.errors import ConfigurationError, StageError
from airflow_ft.core.model import SparkPosition
from airflow_ft.spark import source_log
from airflow_ft.spark.location_files import OFFSETS, Entry, add_entry, batches, entry, has_entry, keep, note
from airflow_ft.spark.locations import SparkLocation, by_source, by_use
from airflow_ft.spark.standing import record_ids, recorded_ids
from airflow_ft.wal.filesystem import filesystem, link_tree

FOLDER = "airflow_ft_catch_up"
_IDS = f"{FOLDER}/topics"
_TOLD = 20

log = logging.getLogger("airflow_ft.spark")


def plan(here: SparkLocation, base: SparkLocation, since: int) -> int:
    """Into a restored location: the micro-batches of `base` behind `since`, which is the one that was restored.

    Returns how many. ConfigurationError where the base does not know them any more, or is of another history.
    """
    if batches(here.uri, FOLDER):
        raise _unknown(here, "the savepoint itself was taken while its pipeline had to catch up")
    sources = here.offsets(here.batch)
    if not has_entry(base.uri, OFFSETS, since) or base.offsets(since) != sources:
        raise _unknown(here, "the pipeline's own record of what it had read then is not there any more")
    # Settings are pinned to the state: a savepoint may have been rescaled.
    conf = entry(here.uri, OFFSETS, here.batch).metadata.get("conf", {})
    for batch in range(since + 1, base.batch + 1):
        if not has_entry(base.uri, OFFSETS, batch):
            raise _unknown(here, f"what the pipeline had read in Spark's micro-batch {batch} is not there any more")
        told = entry(base.uri, OFFSETS, batch)
        lines = by_source(base, told)
        if len(lines) != len(sources):
            raise _unknown(here, "it has read other sources since then")
        again = Entry(told.version, {**told.metadata, "conf": conf}, by_use(here, lines))
        add_entry(here.uri, FOLDER, here.batch + batch - since, again)
    files, others = filesystem(here.uri), filesystem(base.uri)
    last = source_log.last_ids(others, base.uri, base.offsets(base.batch))
    for index in last:
        link_tree(
            others.uri(base.uri, source_log.FOLDER, index),
            files.uri(here.uri, FOLDER, source_log.FOLDER, index),
            partial(_is_read, index, last),
        )
    keep(here.uri, _IDS, list(recorded_ids(base).items()))
    return base.batch - since


def is_planned(base: SparkPosition | None) -> bool:
    """Whether the location of a base holds micro-batches to be computed once more."""
    return base is not None and bool(batches(base.location, FOLDER))


def catch_up(location: SparkLocation, compute: Callable[[SparkLocation], None]) -> SparkLocation:
    """In an attempt's own copy: computes them; the location as it stands then. `compute` has Spark do the one that is
    planned.
    """
    files = filesystem(location.uri)
    planned = batches(location.uri, FOLDER)
    if not planned:
        return location
    log.info("the state is brought to where the pipeline stands: %d micro-batches, without their rows", len(planned))
    folder = files.uri(location.uri, FOLDER, source_log.FOLDER)
    for index in files.names(folder):
        log_of = files.uri(location.uri, source_log.FOLDER, index)
        files.remove_tree(log_of)
        files.link_tree(files.uri(folder, index), log_of, lambda _: True)
    for done, batch in enumerate(planned, start=1):
        add_entry(location.uri, OFFSETS, batch, entry(location.uri, FOLDER, batch))
        compute(location)
        if not location.is_committed(batch):
            raise StageError(
                f"Spark has not computed micro-batch {batch} once more.",
                pipeline=location.pipeline,
                remedy="see its lines above; nothing was changed.",
            )
        if done % _TOLD == 0:
            log.info("%d of %d micro-batches", done, len(planned))
    record_ids(location, planned[-1], dict(note(location.uri, _IDS)))
    files.remove_tree(files.uri(location.uri, FOLDER))
    return replace(location, batch=planned[-1])


def _is_read(index: str, last: dict[str, int], name: PurePosixPath) -> bool:
    return source_log.survives(PurePosixPath(source_log.FOLDER, index, name), last)


def _unknown(here: SparkLocation, why: str) -> ConfigurationError:
    return ConfigurationError(
        f"it cannot go on behind what was delivered after the savepoint: {why}.",
        remedy="have it come again (`--later write-again`), restore under another name (--pipeline), or take a newer"
        " savepoint.",
        pipeline=here.pipeline,
    )
