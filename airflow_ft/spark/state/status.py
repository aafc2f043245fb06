"""Positions of a location's Kafka sources: offsets by topic, and the ids of the topics that these offsets count.

Spark keeps offsets only by the names of topics. The ids are beside them, in `airflow_ft_topics/<batch>`: those of that
batch and of all later ones up to the next such file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from airflow_ft.protocol.model import SparkPosition, canonical_json
from airflow_ft.spark.state.location_files import OFFSETS, entry, keep, note, offsets_of, replace_entry, replace_file
from airflow_ft.spark.state.locations import (
    START_FILE,
    TOPICS,
    SparkLocation,
    begins_at,
    by_source,
    by_use,
    first_offsets,
)
from airflow_ft.wal.checksums import read_checked
from airflow_ft.wal.filesystem import filesystem

Ids = Mapping[int, Mapping[str, str]]
"""Topic ids by topic name, by the source's place among those of the query."""
Offsets = Mapping[int, Mapping[str, Any]]
"""Offsets of partitions by topic, by the source's place."""


@dataclass(frozen=True, slots=True)
class LocationStatus:
    """Positions that an attempt starts from; empty for the first one. A source that is not in `ids` has no recorded
    ids.
    """

    offsets: Offsets = field(default_factory=dict)
    ids: Ids = field(default_factory=dict)

    def beside(self, other: LocationStatus) -> LocationStatus:
        """With that of other sources."""
        return LocationStatus({**self.offsets, **other.offsets}, {**self.ids, **other.ids})


def location_status(base: SparkPosition) -> LocationStatus:
    """Return the positions of the last published batch."""
    location = SparkLocation.of(base)
    offsets = {}
    for index, found in enumerate(location.offsets(base.batch)):
        if isinstance(found, dict):
            offsets[index] = found
        elif found is None and (first := begins_at(base.location, index)):
            offsets[index] = first
    return LocationStatus(offsets, recorded_ids(location))


def recorded_ids(location: SparkLocation) -> Ids:
    """The ids that count for the location's batch; empty where none were recorded."""
    files = filesystem(location.uri)
    names = files.names(files.uri(location.uri, TOPICS))
    batches = [int(name) for name in names if name.isdigit() or name == "-1"]  # -1: state was dropped there
    newest = max((batch for batch in batches if batch <= location.batch), default=None)
    found = {} if newest is None else note(location.uri, f"{TOPICS}/{newest}")
    return {int(index): dict(topics) for index, topics in found.items()}


def record_ids(location: SparkLocation, batch: int, ids: Ids) -> None:
    """Ids of a batch, before it is published; what a batch has left that was not published gives way."""
    keep(location.uri, f"{TOPICS}/{batch}", {str(index): dict(topics) for index, topics in ids.items()})


def leave_out(location: SparkLocation, topics: Ids) -> None:
    """Remove topics from the last offsets of a fresh copy. Spark reads a topic without offsets from its beginning.

    Files are replaced, never changed: the original location shares them. Spark's checksum beside a file would no
    longer fit and is removed first; Spark reads a file without one.
    """
    files = filesystem(location.uri)
    for index, gone in topics.items():
        first = files.uri(location.uri, "sources", str(index), "0")
        if files.exists(first):
            head, offsets = first_offsets(read_checked(files, first).decode())
            text = head + canonical_json(without(offsets, gone))
            replace_file(location.uri, ("sources", str(index), "0"), text.encode())
    if location.batch < 0:  # state was dropped: Spark begins at the first positions, which are stored separately
        starts = location.offsets(-1)
        for index, gone in topics.items():
            if isinstance(starts[index], dict):
                starts[index] = without(starts[index], gone)
        keep(location.uri, START_FILE, starts)
        return
    log_entry = entry(location.uri, OFFSETS, location.batch)
    lines = by_source(location, log_entry)
    for index, gone in topics.items():
        if isinstance(found := offsets_of(lines[index]), dict):
            lines[index] = canonical_json(without(found, gone))
    replace_entry(location.uri, OFFSETS, location.batch, replace(log_entry, lines=by_use(location, lines)))


def without(offsets: Mapping[str, Any], topics: Mapping[str, str]) -> dict[str, Any]:
    """Return a mapping without these topics."""
    return {topic: each for topic, each in offsets.items() if topic not in topics}
