"""Continue a changed job with other sources: some were added, left out, or are used in another order.

Spark knows the sources of a query only by their order: `offsets/<batch>` has a line for each use, `sources/<index>`
the files of each. This module compares the names of the job's sources with those of the location, and changes an
attempt's own copy to fit. The original location is not changed.

- moved: lines, folders and ids of topics get the source's new place;
- added: no line ("-"): Spark begins where the source says, or where an earlier attempt began
  (`airflow_ft.spark.state.beginnings`);
- left out: its position is kept in `airflow_ft_left/<name>/` of the location from then on. The source continues there
  when it is used again, so no row is lost or read twice.

A crash on the way changes nothing: the copy belongs to that attempt.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_ft.protocol.errors import ConfigurationError
from airflow_ft.protocol.model import SparkPosition
from airflow_ft.spark.state import source_log
from airflow_ft.spark.state.left_sources import OPENED_BY_JOB, keep_left_position, left_folder, left_positions
from airflow_ft.spark.state.location_files import (
    OFFSETS,
    copy_source_notes,
    entry,
    keep,
    offsets_line,
    offsets_of,
)
from airflow_ft.spark.state.locations import (
    SOURCES_FILE,
    START_FILE,
    SparkLocation,
    by_source,
    location_root,
    require_batch,
    rewrite_offsets,
)
from airflow_ft.spark.state.reset import write_source_position
from airflow_ft.spark.state.status import LocationStatus, record_ids, recorded_ids
from airflow_ft.wal.filesystem import filesystem, link_tree

_BEFORE = "airflow_ft_before"

log = logging.getLogger("airflow_ft.spark")


@dataclass(frozen=True, slots=True)
class SourceChange:
    """From the sources of a location to those of the job, in Spark's order."""

    before: tuple[str, ...]
    now: tuple[str, ...]
    left: Mapping[str, Mapping[str, Any]]
    """Sources that were left out earlier and are used again: "line" of the offsets, and "ids" of its topics."""

    @property
    def added(self) -> dict[int, str]:
        """Return the sources that begin, by their places."""
        return {n: name for n, name in enumerate(self.now) if name not in self.before and name not in self.left}

    def location_status(self, of_base: LocationStatus) -> LocationStatus:
        """Return the positions of the job's sources by place; `of_base`: by the places in the location."""
        offsets: dict[int, Mapping[str, Any]] = {}
        ids: dict[int, Mapping[str, str]] = {}
        for new, name in enumerate(self.now):
            if name in self.before:
                old = self.before.index(name)
                offsets |= {new: of_base.offsets[old]} if old in of_base.offsets else {}
                ids |= {new: of_base.ids[old]} if old in of_base.ids else {}
            elif name in self.left:
                found = offsets_of(self.left[name]["line"])
                offsets |= {new: found} if isinstance(found, dict) else {}
                ids |= {new: self.left[name]["ids"]} if self.left[name]["ids"] else {}
        return LocationStatus(offsets, ids)


def known_sources(base: SparkPosition | None) -> frozenset[str]:
    """Return the names of the sources that already have a position in `base`."""
    if base is None:
        return frozenset()
    location = SparkLocation.of(base)
    return frozenset((*location.sources(), *left_positions(location)))


def source_change(pipeline: str, base: SparkPosition | None, names: Sequence[str]) -> SourceChange | None:
    """Return the changes to a copy of `base` that let a job with these sources continue there; None: no changes.

    Raises:
        ConfigurationError: matching the sources would be a guess.
    """
    if base is None:
        return None
    location = SparkLocation.of(base, pipeline, location_root(base.location))
    before = location.sources()
    if not before or before == list(names):
        return None
    for known in (before, names):
        if len(set(known)) < len(known) or any(OPENED_BY_JOB.fullmatch(name) for name in known):
            raise ConfigurationError(
                f"the job reads its sources in the order {list(names)}, but its checkpoints have the order {before},"
                " and the sources cannot be matched.",
                code="sources_changed",
                pipeline=pipeline,
                remedy="Declare each source in sources={...} under its own name. Use them in `transform` as before and"
                " let a checkpoint complete. Then change them.",
                before=list(before),
                after=list(names),
            )
    left = left_positions(location)
    return SourceChange(tuple(before), tuple(names), {name: left[name] for name in names if name in left})


def change_sources(change: SourceChange, location: SparkLocation, places: Sequence[int]) -> None:
    """Changes an attempt's own copy; `places`: which source each line of its offsets is of from now on."""
    files = filesystem(location.uri)
    lines, ids = _lines(location), recorded_ids(location)
    for old, name in enumerate(change.before):
        if name not in change.now and offsets_of(lines[old]) is not None:
            _leave(location, location, old, lines[old], ids.get(old, {}))
    folder, before = (files.uri(location.uri, name) for name in (source_log.FOLDER, _BEFORE))
    _move(location, folder, before)
    new_lines: list[str] = []
    new_ids: dict[int, Mapping[str, str]] = {}
    for new, name in enumerate(change.now):
        target = files.uri(folder, str(new))
        if name in change.before:
            old = change.before.index(name)
            _move(location, files.uri(before, str(old)), target)
            line, topics = lines[old], ids.get(old)
        elif name in change.left:
            line, topics = change.left[name]["line"], change.left[name]["ids"]
            if location.batch < 0 and not change.left[name]["stored"]:
                write_source_position(location, new, offsets_of(line), name, target)  # which cannot be done
            _move(location, left_folder(location, name, source_log.FOLDER), target)
            files.remove_tree(left_folder(location, name))
            log.info("source %s is used again and continues at %s", name, line)
        else:
            line, topics = offsets_line(None), None
            log.info("source %s is new and starts where the DAG declares it", name)
        new_lines.append(line)
        new_ids |= {new: topics} if topics else {}
    files.remove_tree(before)
    if location.batch < 0:
        keep(location.uri, START_FILE, [offsets_of(line) for line in new_lines])
    else:
        rewrite_offsets(location, lambda _: new_lines, places)
    record_ids(location, location.batch, new_ids)
    keep(location.uri, SOURCES_FILE, list(change.now))


def keep_left_out(base: SparkPosition, location: SparkLocation) -> None:
    """Keep the positions of sources that `base` knows and a new location does not read, though it does not continue
    `base` (AT_MOST_ONCE).
    """
    old = SparkLocation.of(base, location.pipeline, location_root(base.location))
    now, before = location.sources(), old.sources()
    for name in left_positions(old).keys() - {*now, *before}:
        link_tree(left_folder(old, name), left_folder(location, name), lambda _: True)
    copy_source_notes(old.uri, location.uri)
    if set(before) <= set(now):
        return
    require_batch(old)
    lines, ids = _lines(old), recorded_ids(old)
    for index, name in enumerate(before):
        is_first = before.index(name) == index and not OPENED_BY_JOB.fullmatch(name)
        if is_first and name not in now and offsets_of(lines[index]) is not None:
            _leave(old, location, index, lines[index], ids.get(index, {}))


def _leave(old: SparkLocation, location: SparkLocation, index: int, line: str, ids: Mapping[str, str]) -> None:
    """Keep the position of a source, with a Spark folder from which it can continue in any micro-batch."""
    name = old.sources()[index]
    try:
        line = offsets_line(
            write_source_position(old, index, offsets_of(line), name, left_folder(location, name, source_log.FOLDER))
        )
        is_stored = True
    except ConfigurationError:  # its offsets are all that there is, and do where others have been read already
        is_stored = False
    keep_left_position(location, name, line, ids, is_stored=is_stored)
    log.warning("the job no longer reads source %s; its position %s is kept in case it does again", name, line)


def _lines(location: SparkLocation) -> list[str]:
    """Return the positions of the sources, one per line."""
    if location.batch < 0:
        return [offsets_line(start) for start in location.offsets(-1)]
    return by_source(location, entry(location.uri, OFFSETS, location.batch))


def _move(location: SparkLocation, source: str, target: str) -> None:
    files = filesystem(location.uri)
    if files.names(source):
        files.link_tree(source, target, lambda _: True)
        files.remove_tree(source)
