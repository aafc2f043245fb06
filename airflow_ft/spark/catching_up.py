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

import json
import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import PurePosixPath
from typing import Any

from airflow_ft.core.errors import ConfigurationError, StageError
from airflow_ft.core.model import SparkPosition, canonical_json
from airflow_ft.spark import source_log
from airflow_ft.spark.locations import SparkLocation
from airflow_ft.spark.standing import record_ids, recorded_ids
from airflow_ft.wal.filesystem import filesystem

FOLDER = "airflow_ft_catch_up"
_IDS = "topics"
_TOLD = 20

log = logging.getLogger("airflow_ft.spark")


def plan(here: SparkLocation, base: SparkLocation, since: int) -> int:
    """Into a restored location: the micro-batches of `base` behind `since`, which is the one that was restored.

    Returns how many. ConfigurationError where the base does not know them any more, or is of another history.
    """
    files = filesystem(here.uri)
    if _planned(here):
        raise _unknown(here, "the savepoint itself was taken while its pipeline had to catch up")
    if not files.exists(files.uri(base.uri, "offsets", str(since))) or base.offsets(since) != here.offsets(here.batch):
        raise _unknown(here, "the pipeline's own record of what it had read then is not there any more")
    before: dict[str, Any] = json.loads(_lines(here, here.batch)[1])
    places, sources = here.places(), here.offsets(here.batch)
    for batch in range(since + 1, base.batch + 1):
        if not files.exists(files.uri(base.uri, "offsets", str(batch))):
            raise _unknown(here, f"what the pipeline had read in Spark's micro-batch {batch} is not there any more")
        version, metadata, *_ = _lines(base, batch)
        offsets = base.offsets(batch)
        if len(offsets) != len(sources):
            raise _unknown(here, "it has read other sources since then")
        told = [
            "-" if each is None else each if isinstance(each, str) else json.dumps(each, separators=(",", ":"))
            for each in offsets
        ]
        # Settings are pinned to the state: a savepoint may have been rescaled.
        text = json.dumps({**json.loads(metadata), "conf": before.get("conf", {})}, separators=(",", ":"))
        lines = told if places is None else [told[place] for place in places]
        name = str(here.batch + batch - since)
        files.write(files.uri(here.uri, FOLDER, name), "\n".join([version, text, *lines]).encode())
    last = source_log.last_ids(files, base.uri, base.offsets(base.batch))
    for index in last:
        files.link_tree(
            files.uri(base.uri, source_log.FOLDER, index),
            files.uri(here.uri, FOLDER, source_log.FOLDER, index),
            partial(_is_read, index, last),
        )
    files.write(files.uri(here.uri, FOLDER, _IDS), canonical_json(list(recorded_ids(base).items())).encode())
    return base.batch - since


def is_planned(base: SparkPosition | None) -> bool:
    """Whether the location of a base holds micro-batches to be computed once more."""
    return base is not None and bool(_planned(SparkLocation("", "", base.location, base.batch, "")))


def catch_up(location: SparkLocation, compute: Callable[[SparkLocation], None]) -> SparkLocation:
    """In an attempt's own copy: computes them; the location as it stands then. `compute` has Spark do the one that is
    planned.
    """
    files = filesystem(location.uri)
    planned = _planned(location)
    if planned:
        log.info(
            "the state is brought to where the pipeline stands: %d micro-batches, without their rows", len(planned)
        )
        folder = files.uri(location.uri, FOLDER, source_log.FOLDER)
        for index in files.names(folder):
            log_of = files.uri(location.uri, source_log.FOLDER, index)
            files.remove_tree(log_of)
            files.link_tree(files.uri(folder, index), log_of, lambda _: True)
    for done, batch in enumerate(planned, start=1):
        text = files.read(files.uri(location.uri, FOLDER, str(batch)))
        files.write(files.uri(location.uri, "offsets", str(batch)), text)
        compute(location)
        if not location.is_committed(batch):
            raise StageError(
                f"Spark has not computed micro-batch {batch} once more.",
                pipeline=location.pipeline,
                remedy="see its lines above; nothing was changed.",
            )
        if done % _TOLD == 0:
            log.info("%d of %d micro-batches", done, len(planned))
    if planned:
        ids = dict(json.loads(files.read(files.uri(location.uri, FOLDER, _IDS))))
        record_ids(location, planned[-1], ids)
        files.remove_tree(files.uri(location.uri, FOLDER))
        return replace(location, batch=planned[-1])
    return location


def _is_read(index: str, last: dict[str, int], name: PurePosixPath) -> bool:
    return source_log.survives(PurePosixPath(source_log.FOLDER, index, name), last)


def _planned(location: SparkLocation) -> list[int]:
    files = filesystem(location.uri)
    return sorted(int(name) for name in files.names(files.uri(location.uri, FOLDER)) if name.isdigit())


def _lines(location: SparkLocation, batch: int) -> list[str]:
    files = filesystem(location.uri)
    return files.read(files.uri(location.uri, "offsets", str(batch))).decode().split("\n")


def _unknown(here: SparkLocation, why: str) -> ConfigurationError:
    return ConfigurationError(
        f"it cannot go on behind what was delivered after the savepoint: {why}.",
        remedy="have it come again (`--later write-again`), restore under another name (--pipeline), or take a newer"
        " savepoint.",
        pipeline=here.pipeline,
    )
