"""A restored pipeline whose later checkpoints stay: compute their micro-batches again, only to rebuild its state.

    airflow_ft_catch_up/<batch>             as Spark's `offsets/<batch>`, with one line a source: what the pipeline had
                                            read in each of them
    airflow_ft_catch_up/sources/<index>/    Spark's log of read files up to the last of them
    airflow_ft_catch_up/topics              ids of topics as of the last of them

Their rows are in the sinks. So each is computed again from the restored state, with its original offsets, watermark
and time, and the results are dropped. Then the state is as if the job had always been as it is now. Windows that close
on the way are closed, and the next rows are the first undelivered ones.

Spark computes planned, uncommitted micro-batches of a location, so they are planned one by one in the attempt's own
copy. The base stays what was restored until a checkpoint is published, or the stage ends. If the process dies before
that, it starts over. Until then a savepoint can be restored again: the planned micro-batches are what the pipeline had
read. A location that was restored to write rows again has no such record (`note_written_again`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import PurePosixPath
from typing import Any

from airflow_ft.protocol.errors import ConfigurationError, StageError, WalCorruptError
from airflow_ft.protocol.model import SparkPosition
from airflow_ft.spark.state import source_log
from airflow_ft.spark.state.location_files import (
    OFFSETS,
    Entry,
    add_entry,
    batches,
    entry,
    has_entry,
    keep,
    note,
    offsets_of,
)
from airflow_ft.spark.state.locations import SparkLocation, by_source, by_use, is_kafka
from airflow_ft.spark.state.status import record_ids, recorded_ids
from airflow_ft.wal.filesystem import filesystem, link_tree

FOLDER = "airflow_ft_catch_up"
_IDS = f"{FOLDER}/topics"
_AGAIN = "airflow_ft_again.json"
_LOG_EACH = 20

log = logging.getLogger("airflow_ft.spark")


def plan(here: SparkLocation, base: SparkLocation, since: int) -> int:
    """Into a restored location: the micro-batches of `base` behind `since`, which is the one that was restored.

    Also those that the base itself still has to catch up with. Returns how many. ConfigurationError where the base does
    not know them any more, or is of another history.
    """
    if batches(here.uri, FOLDER):
        raise _unknown(here, "someone took the savepoint before a restored pipeline had rebuilt its state")
    if base.sources() != here.sources() or since < base.ordered_since:
        raise _unknown(here, "the pipeline has read other sources since then, or used them in another order")
    began, removed = _read(base, since), "the record of what the pipeline had read then was removed"
    if began is None or _offsets(began) != here.offsets(here.batch):
        raise _unknown(here, removed)
    files, others = filesystem(here.uri), filesystem(base.uri)
    logs, offsets = _reached(base)
    last = source_log.last_ids(others, logs, offsets)
    for index, number in source_log.last_ids(files, here.uri, here.offsets(here.batch)).items():
        known = _paths(logs, index, last.get(index, source_log.NOTHING_READ), number)
        if known is None:
            raise _unknown(here, removed)
        if known != _paths(here.uri, index, number, number):  # a full refresh counts from 0 again
            raise _unknown(here, "the pipeline has read its files again since then, in other micro-batches")
    # Settings are pinned to the state: a savepoint may have been rescaled.
    conf = entry(here.uri, OFFSETS, here.batch).metadata.get("conf", {})
    end = max([base.batch, *batches(base.uri, FOLDER)])
    for batch in range(since + 1, end + 1):
        read = _read(base, batch)
        if read is None:
            raise _unknown(here, f"the record of what the pipeline read in Spark's micro-batch {batch} was removed")
        again = replace(read, metadata={**read.metadata, "conf": conf})
        add_entry(here.uri, FOLDER, here.batch + batch - since, again)
    for index in last:
        link_tree(
            others.uri(logs, source_log.FOLDER, index),
            files.uri(here.uri, FOLDER, source_log.FOLDER, index),
            partial(_is_read, index, last),
        )
    keep(here.uri, _IDS, note(base.uri, _IDS) if end > base.batch else list(recorded_ids(base).items()))
    return end - since


def note_written_again(here: SparkLocation, newest: int | None) -> None:
    """Note in a restored location that rows up to the number `newest` are delivered again, so it has not read them.

    None removes the note.
    """
    keep(here.uri, _AGAIN, newest)


def require_all_read(here: SparkLocation, base: SparkPosition, newest: int) -> None:
    """ConfigurationError if `base` lacks input of `newest`, the newest confirmed number (`note_written_again`)."""
    if (note(base.location, _AGAIN) or 0) >= newest:
        raise _unknown(
            here,
            "someone restored a savepoint with write-again, and no checkpoint was confirmed since",
            f"Let a run deliver a checkpoint. Or restore a savepoint of checkpoint {newest} first, one that was taken"
            " before the write-again.",
        )


def is_planned(base: SparkPosition | None) -> bool:
    """Return whether the location of a base holds micro-batches to be computed once more."""
    return base is not None and bool(batches(base.location, FOLDER))


def has_read_all_of(one: SparkLocation, other: SparkLocation) -> bool:
    """Return whether a location, once caught up, has read everything that another has; False if unknown.

    Compares Kafka sources by offsets and files by name, because `reset_state` restarts the ids of Spark's log.
    """
    (mine, offsets), (others, theirs) = _reached(one), _reached(other)
    return one.sources() == other.sources() and (
        offsets == theirs
        or (
            len(offsets) == len(theirs)
            and all(
                _includes(mine, others, str(index), *each)
                for index, each in enumerate(zip(offsets, theirs, strict=True))
                if each[0] != each[1]
            )
        )
    )


def catch_up(location: SparkLocation, compute: Callable[[SparkLocation], None]) -> SparkLocation:
    """Compute them in an attempt's own copy, and return the new location. `compute` has Spark compute the planned
    one.
    """
    files = filesystem(location.uri)
    planned = batches(location.uri, FOLDER)
    if not planned:
        return location
    log.info("rebuilding the state: computing %d delivered micro-batches again, without rows", len(planned))
    folder = files.uri(location.uri, FOLDER, source_log.FOLDER)
    for index in files.names(folder):
        log_of = files.uri(location.uri, source_log.FOLDER, index)
        files.remove_tree(log_of)
        files.link_tree(files.uri(folder, index), log_of, lambda _: True)
    for done, batch in enumerate(planned, start=1):
        log_entry = entry(location.uri, FOLDER, batch)
        # The places are those of the job that continues.
        add_entry(location.uri, OFFSETS, batch, replace(log_entry, lines=by_use(location, log_entry.lines)))
        compute(location)
        if not location.is_committed(batch):
            raise StageError(
                f"Spark has not computed micro-batch {batch} again.",
                code="state_not_rewritten",
                pipeline=location.pipeline,
                remedy="Read Spark's lines above. Nothing was changed.",
                batch=batch,
            )
        if done % _LOG_EACH == 0:
            log.info("rebuilt %d of %d micro-batches", done, len(planned))
    record_ids(location, planned[-1], dict(note(location.uri, _IDS)))
    files.remove_tree(files.uri(location.uri, FOLDER))
    return replace(location, batch=planned[-1])


def _read(base: SparkLocation, batch: int) -> Entry | None:
    """Return what a pipeline had read, or must still catch up on, in a micro-batch, a line a source; None: unknown."""
    if has_entry(base.uri, FOLDER, batch):
        return entry(base.uri, FOLDER, batch)
    if not has_entry(base.uri, OFFSETS, batch):
        return None
    log_entry = entry(base.uri, OFFSETS, batch)
    return replace(log_entry, lines=tuple(by_source(base, log_entry)))


def _offsets(read: Entry) -> list[Any]:
    return [offsets_of(line) for line in read.lines]


def _reached(location: SparkLocation) -> tuple[str, list[Any]]:
    """The folder in which Spark's logs of read files lie, and the offsets, where a location has caught up."""
    if planned := batches(location.uri, FOLDER):
        return filesystem(location.uri).uri(location.uri, FOLDER), _offsets(entry(location.uri, FOLDER, planned[-1]))
    return location.uri, location.offsets(location.batch)


def _includes(mine: str, others: str, index: str, offset: Any, other: Any) -> bool:
    """Return whether all that a source had read at `other` was read at `offset`, too; both are known to differ."""
    if other is None:
        return True
    last, other_last = source_log.last_id(offset), source_log.last_id(other)
    if last is not None and other_last is not None:
        paths, theirs = _paths(mine, index, last, last), _paths(others, index, other_last, other_last)
        return paths is not None and theirs is not None and theirs <= paths
    return (
        is_kafka(offset)
        and is_kafka(other)
        and all(
            end <= offset.get(topic, {}).get(partition, -1)
            for topic, ends in other.items()
            for partition, end in ends.items()
        )
    )


def _paths(logs: str, index: str, last: int, until: int) -> set[str] | None:
    """Return the files that a source had read at the id `until` of a log that ends with `last`; None: unknown."""
    try:
        entries = source_log.all_entries(filesystem(logs), logs, index, last)
    except WalCorruptError:  # Spark has put later ids together, and does not keep these
        return None
    return {each["path"] for each in entries if each["batchId"] <= until or each["batchId"] == source_log.READ_BEFORE}


def _is_read(index: str, last: dict[str, int], name: PurePosixPath) -> bool:
    return source_log.survives(PurePosixPath(source_log.FOLDER, index, name), last)


def _unknown(here: SparkLocation, why: str, remedy: str = "") -> ConfigurationError:
    return ConfigurationError(
        f"`--later continue` cannot rebuild the state: {why}.",
        code="rebuild_impossible",
        remedy=remedy
        or "Deliver the rows again (`--later write-again`), restore under another name (--pipeline), or take a newer"
        " savepoint.",
        pipeline=here.pipeline,
    )
