"""Measure what the sources have, and how much of it is behind a position: of Kafka in offsets, of folders in files.

A look at a folder also finds files that changed after they were read: Spark never reads what was added to them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from airflow_ft.protocol.lag import Unit
from airflow_ft.protocol.warning import PipelineWarning
from airflow_ft.sources import FileSource, KafkaSource, Source
from airflow_ft.sources.names import some
from airflow_ft.spark.driver.folders import unreadable_names
from airflow_ft.spark.driver.listing import static_listings
from airflow_ft.spark.driver.slices import offsets_between
from airflow_ft.spark.driver.topics import Topics
from airflow_ft.spark.state import source_log
from airflow_ft.spark.state.locations import SparkLocation, begins_at
from airflow_ft.wal.filesystem import filesystem

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_MANY_FILES = 100_000  # listing more takes seconds and hundreds of megabytes, so it is not repeated


Times = Mapping[str, int]
"""Files by place, with their time of modification in milliseconds."""


class Gauge(Protocol):
    """One source. Its position is its part of `SparkLocation.offsets`."""

    unit: Unit

    def measure(self, position: Any) -> tuple[int, int] | None:
        """Return how much is behind `position`, and how much was read before it in this attempt; None: unknown."""


class KafkaGauge:
    """Offsets of a source's topics. `latest(topics)` gives their ends, `start()` where this attempt began."""

    unit = Unit.RECORDS

    def __init__(
        self,
        topics: Sequence[str],
        latest: Callable[[Sequence[str]], Mapping[str, Mapping[str, int]]],
        start: Callable[[], Mapping[str, Mapping[str, int]] | None],
    ) -> None:
        self._topics, self._latest, self._find_start = topics, latest, start
        self._start: Mapping[str, Mapping[str, int]] | None = None

    def measure(self, position: Any) -> tuple[int, int] | None:
        """See `Gauge.measure`. Of a partition that has come since, all is behind."""
        if self._start is None:
            self._start = self._find_start()
        if self._start is None:
            return None
        read = self._start if position is None else position
        behind = sum(offsets_between(read, self._latest(self._topics or sorted(read))))
        return behind, sum(offsets_between(self._start, read))


class FilesGauge:
    """Files of a folder. `listed()` returns all of them, as Spark lists them.

    `begun()` returns those that were read when this attempt began (None: too many). `read(after, last)` returns those
    in Spark's log after one id up to another. `begin` is the id at which it began. `changed` receives changed files
    when there are new ones.
    """

    unit = Unit.FILES

    def __init__(
        self,
        listed: Callable[[], Times],
        begun: Callable[[], Times | None],
        read: Callable[[int, int], Times],
        begin: int,
        changed: Callable[[Collection[str]], None] = lambda _: None,
    ) -> None:
        self._listed, self._begun, self._read, self._last = listed, begun, read, begin
        self._changed, self._warned_of = changed, set[str]()
        self._known: dict[str, int] | None = None
        self._done = 0
        self._are_too_many = False

    def measure(self, position: Any) -> tuple[int, int] | None:
        """See `Gauge.measure`. Stops for good once there are too many files."""
        found = None if self._are_too_many else self._measured(position)
        if found is None:
            self._are_too_many, self._known = True, None
        return found

    def _measured(self, position: Any) -> tuple[int, int] | None:
        if self._known is None:
            begun = self._begun()
            if begun is None:
                return None
            self._known = dict(begun)
        if (last := source_log.last_id(position)) is not None and last > self._last:
            new = self._read(self._last, last)
            self._known.update(new)
            self._last, self._done = last, self._done + len(new)
        if len(self._known) > _MANY_FILES:
            return None
        files = self._listed()
        if len(files) > _MANY_FILES:
            return None
        self._look_for_changed(files, self._known)
        return len(files.keys() - self._known.keys()), self._done

    def _look_for_changed(self, files: Times, read: Times) -> None:
        found = {place for place in files.keys() & read.keys() if files[place] != read[place]}
        if found and found != self._warned_of:
            self._warned_of = found
            self._changed(found)


def changed_files(source: str, places: Collection[str]) -> PipelineWarning:
    """The warning that files of a source changed after they were read."""
    they = "they were" if len(places) > 1 else "it was"
    return PipelineWarning(
        code="SOURCE_FILE_CHANGED",
        subject=source,
        message=f"{some(places)} changed after {they} read. Spark never reads rows that were added or replaced since.",
        remedy="Write new rows into new files, and rename each into the folder when it is complete. To read the changed"
        " file as a whole, copy it under another name: its old rows are then delivered a second time.",
    )


def unreadable_files(source: str, paths: Collection[str]) -> PipelineWarning:
    """The warning that Java leaves files of a source out."""
    return PipelineWarning(
        code="SOURCE_FILE_UNREADABLE",
        subject=source,
        message=f"Java cannot decode the names of {some(paths)}, so Spark leaves them out. The next run is refused.",
        remedy="Rename them in UTF-8.",
    )


def gauges_of(
    spark: SparkSession,
    location: SparkLocation,
    sources: Mapping[str, Source | None],
    topics: Topics,
    warn: Callable[[PipelineWarning], None] = lambda _: None,
) -> dict[str, Gauge]:
    """Return a gauge for each source that can be measured, by name; `sources` in Spark's order."""
    offsets = location.offsets(location.batch)
    found: dict[str, Gauge] = {}
    for index, (name, source) in enumerate(sources.items()):
        begin = offsets[index] if index < len(offsets) else None
        if isinstance(source, KafkaSource):
            found[name] = _of_kafka(location, index, source, topics, begin)
        elif isinstance(source, FileSource):
            found[name] = _of_files(spark, location, index, name, source, begin, warn)
    return found


def _of_kafka(location: SparkLocation, index: int, source: KafkaSource, topics: Topics, begin: Any) -> KafkaGauge:
    def start() -> Any:
        return (begins_at(location.uri, index) or None) if begin is None else begin

    return KafkaGauge(source.topics, lambda names: topics.latest(index, names), start)


def _of_files(
    spark: SparkSession,
    location: SparkLocation,
    index: int,
    name: str,
    source: FileSource,
    begin: Any,
    warn: Callable[[PipelineWarning], None],
) -> FilesGauge:
    found = source_log.last_id(begin)
    last = source_log.NOTHING_READ if found is None else found
    files = filesystem(location.uri)
    unreadable: list[str] = []

    def listed() -> dict[str, int]:
        if (names := unreadable_names(spark, source)) and names != unreadable:
            unreadable[:] = names
            warn(unreadable_files(name, names))
        found = static_listings(source.read(spark, streaming=False))
        return {place: modified for each in found for place, (_, modified) in each.files.items()}

    def begun() -> dict[str, int] | None:
        if source_log.count(files, location.uri, str(index), last) > _MANY_FILES:
            return None
        entries = source_log.all_entries(files, location.uri, str(index), last)
        return {source_log.place(each["path"], encoded=True): int(each["timestamp"]) for each in entries}

    def read(after: int, last: int) -> dict[str, int]:
        return source_log.entries(files, location.uri, str(index), after, last)

    return FilesGauge(listed, begun, read, last, lambda places: warn(changed_files(name, places)))
