"""Find out whether a micro-batch is a slice: only a part of what its sources had, by their declared limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from airflow_ft.sources import CustomSource, FileSource, KafkaSource, Source
from airflow_ft.spark.driver.listing import Listing


def has_known_bounds(sources: Mapping[str, Source | None]) -> bool:
    """Return whether every source has a known limit. Sources that the job opened, and custom classes, have none."""
    return not any(source is None or isinstance(source, CustomSource) for source in sources.values())


def is_slice(
    sources: Mapping[str, Source | None], start: Sequence[Any], end: Sequence[Any], read: Sequence[Listing]
) -> bool:
    """Return whether a source was bounded in this micro-batch, and may have more."""
    sizes = [size for listing in read for size, _ in listing.files.values()]
    for index, source in enumerate(sources.values()):
        is_full = False
        if isinstance(source, KafkaSource):
            limit = source.max_offsets_per_trigger
            is_full = isinstance(limit, int) and not _is_below(limit, _at(start, index), _at(end, index))
        elif isinstance(source, FileSource):
            files, most = source.max_files_per_trigger, source.max_bytes_per_trigger
            is_full = isinstance(files, int) and len(sizes) >= files
            if isinstance(most, int) and sizes:  # one more like the largest would not have gone in
                is_full = sum(sizes) + max(sizes) > most
        if is_full:
            return True
    return False


def is_bounded_in_bytes(sources: Mapping[str, Source | None], read: Sequence[Listing]) -> bool:
    """Return whether a source with a limit in bytes gave files, so that the batch may be a slice.

    Spark stops before the first file that does not fit, even if later ones would. A source that gave no file has
    none left, since its first file always fits.
    """
    bounded = any(
        isinstance(source, FileSource) and source.max_bytes_per_trigger is not None for source in sources.values()
    )
    return bounded and any(listing.files for listing in read)


def is_at_most(rows: int, sources: Mapping[str, Source | None], start: Sequence[Any], end: Sequence[Any]) -> bool:
    """Return whether the offsets bound the rows that a micro-batch reads. Only those of Kafka count rows."""
    if not all(isinstance(source, KafkaSource) for source in sources.values()):
        return False
    return sum(sum(offsets_between(_at(start, index), _at(end, index))) for index in range(len(sources))) <= rows


def _at(offsets: Sequence[Any], index: int) -> Mapping[str, Mapping[str, int]]:
    found = offsets[index] if index < len(offsets) else None
    return found if isinstance(found, dict) else {}


def _is_below(limit: int, start: Mapping[str, Mapping[str, int]], end: Mapping[str, Mapping[str, int]]) -> bool:
    """Spark divides the limit among the partitions, and may round each part down."""
    counts = offsets_between(start, end)
    return sum(counts) < limit - len(counts)


def offsets_between(start: Mapping[str, Mapping[str, int]], end: Mapping[str, Mapping[str, int]]) -> list[int]:
    """Return the offsets between these positions, partition by partition. A new partition counts from offset 0."""
    return [
        max(0, offset - start.get(topic, {}).get(partition, 0))  # a topic that was cut short ends before its start
        for topic, partitions in end.items()
        for partition, offset in partitions.items()
    ]
