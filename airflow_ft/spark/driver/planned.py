"""Compare the files that Spark reads for a micro-batch with those that its log names: as multisets, before it
computes.

Spark's file source is not exact for every name. It repeats files in a plan when a name holds a pattern character
(SPARK-58518). It logs a file twice when parts of a declared pattern overlap. It logs but does not read files beside
partition folders, and casts the values in the names of these. It cannot open a local file with ':' in its name. Each
of these ends the attempt, and nothing is published.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_ft.protocol.errors import JobError, StageError
from airflow_ft.sources.files import FileSource
from airflow_ft.sources.names import GLOB, is_pattern, link_of, local, some, twins
from airflow_ft.spark.driver.listing import Listing, changed_error, relations
from airflow_ft.spark.state import source_log
from airflow_ft.wal.filesystem import filesystem

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from airflow_ft.sources import Source
    from airflow_ft.spark.state.locations import SparkLocation

_MOST_PATHS = 100  # paths in an error

Logged = Mapping[int, Sequence[tuple[str, int]]]
"""By index of a source: place and time of modification (milliseconds) of each entry."""


def batch_listings(
    spark: SparkSession, location: SparkLocation, batch: int, query: Any, sources: Sequence[Source | None] = ()
) -> list[Listing]:
    """Return the listings of the batch that `query` has planned. Call it from the batch's function.

    sources: in Spark's order; None for one that the job has opened itself.

    Raises:
        StageError: a file of Spark's log is not in the plan, or has changed; or the plan holds another file.
        JobError: Spark would read a file twice or not at all; the error names it.
    """
    logged = _logged(location, batch)
    plan = query._jsq.streamingQuery().lastExecution().logical()
    found = [(Listing(spark, relation), streams) for relation, streams in relations(plan)]
    check_plan(location.pipeline, logged, [listing for listing, streams in found if streams], sources)
    return [listing for listing, _ in found]


def check_plan(
    pipeline: str, logged: Logged, listings: Sequence[Listing], sources: Sequence[Source | None] = ()
) -> None:
    """See `batch_listings`; `listings` are those of streams alone."""
    for entries in logged.values():
        if twice := _repeated(Counter(place for place, _ in entries)):
            raise _unreadable(
                "file_read_twice",
                twice,
                f"Spark would read {some(twice)} twice, because two parts of the source's path match the same folder.",
                "Write the path so that it matches each folder once, without overlapping alternatives in {}.",
            )
    times = {place: time for entries in logged.values() for place, time in entries}
    planned = {place: time for listing in listings for place, (_, time) in listing.files.items()}
    if missing := times.keys() - planned.keys():
        raise changed_error(pipeline, missing, "disappeared before Spark read {them}")
    if changed := [place for place, time in times.items() if planned[place] != time]:
        raise changed_error(pipeline, changed, "changed before Spark read {them}")
    for listing in listings:
        if twice := _repeated(listing.times):
            _refuse_repeated(twice, listing.files)
        _refuse_left_out(listing)
        _refuse_inexact(listing)
    _refuse_colons(planned)
    _refuse_twins(logged, sources)
    wanted = {index: Counter(place for place, _ in entries) for index, entries in logged.items() if entries}
    for listing in listings:
        if listing.times and listing.times not in wanted.values():
            others = set(listing.times).difference(*wanted.values()) or set(listing.times)
            raise StageError(
                f"Spark plans to read {some(others)}, but its log of this batch names other files.",
                code="file_changed",
                pipeline=pipeline,
                remedy="Retry the task: nothing was published. If it happens again, rename files whose names contain"
                f" one of {GLOB}.",
                paths=sorted(others)[:_MOST_PATHS],
            )
    if unread := [index for index, each in wanted.items() if all(each != listing.times for listing in listings)]:
        raise StageError(
            f"Spark has logged {some(wanted[unread[0]])}, but reads other files for that source.",
            code="file_changed",
            pipeline=pipeline,
            remedy="Retry the task: nothing was published.",
            paths=sorted(wanted[unread[0]])[:_MOST_PATHS],
        )


def refuse_left_out(listings: Sequence[Listing]) -> None:
    """JobError when a static read of a source would lack files, read one twice, or change a value of a folder."""
    for listing in listings:
        if twice := _repeated(listing.times):
            _refuse_repeated(twice, listing.files)
        _refuse_left_out(listing)
        _refuse_inexact(listing)
        for path, other in twins(listing.files):
            raise _twin(path, other)


def _refuse_left_out(listing: Listing) -> None:
    if left := listing.left_out():
        raise _unreadable(
            "file_left_out",
            left,
            f"Spark would skip {some(left)}: it treats the folders named name=value beside it as partitions and reads"
            " only files in them.",
            "Move the file into the folder of a partition, or into a folder (and source) without partitions.",
        )


def _refuse_inexact(listing: Listing) -> None:
    if found := listing.inexact():
        folder, column, kind = found
        raise _unreadable(
            "partition_value_unfit",
            [folder],
            f"the name of the folder {folder} is not an exact {kind} for the column {column}. Spark would read another"
            " value.",
            f"Declare `{column} string` in the source's schema and convert it in the job. Or declare a type that holds"
            " it, such as bigint for 007, or rename the folder.",
            column,
        )


def _refuse_repeated(twice: Collection[str], places: Collection[str]) -> None:
    patterns = [place for place in places if is_pattern(place)]
    if not patterns:
        what = f"Spark plans to read {some(twice)} more than once."
        raise _unreadable("file_read_twice", twice, what, "Trigger a new run.")
    raise _unreadable(
        "file_name_unfit",
        patterns,
        f"Spark plans to read {some(twice)} more than once, because it treats {some(patterns)} as a pattern.",
        f"Rename it, and folders on its path, so that no name contains one of {GLOB}. Then its rows are read.",
    )


def _refuse_colons(places: Collection[str]) -> None:
    if bad := [place for place in places if ":" in place.rpartition("/")[2] and local(place) is not None]:
        raise colon_error(bad)


def colon_error(places: Collection[str]) -> JobError:
    """Return the error for local files that Hadoop cannot open."""
    path = min(places).removeprefix("file://")
    folder, _, name = path.rpartition("/")
    return _unreadable(
        "file_name_unfit",
        places,
        f"Spark cannot read a local file whose name contains ':': {some(places)}.",
        f"Rename it, for example `mv '{path}' '{folder}/{name.replace(':', '-')}'`. Then its rows are read.",
    )


def _refuse_twins(logged: Logged, sources: Sequence[Source | None]) -> None:
    for index, entries in logged.items():
        source = sources[index] if index < len(sources) else None
        root, recursive = (source.path, source.is_recursive) if isinstance(source, FileSource) else ("", False)
        for path, other in twins([place for place, _ in entries], root, recursive=recursive):
            raise _twin(path, other)


def _twin(path: str, other: str) -> JobError:
    link = link_of(path) or path
    by = "" if link == path else f" by {link}"
    return _unreadable(
        "file_read_twice",
        [path],
        f"{path} is a link{by} to {other}, which the same source reads. Its rows would be read twice.",
        f"Remove the link (`rm '{link}'`), or move it out of the source's folder.",
    )


def _repeated(times: Mapping[str, int]) -> list[str]:
    return [place for place, count in times.items() if count > 1]


def _unreadable(code: str, paths: Collection[str], what: str, remedy: str, column: str = "") -> JobError:
    return JobError(
        what,
        code=code,
        remedy=f"{remedy} Nothing of this batch was published.",
        column=column,
        paths=sorted(paths)[:_MOST_PATHS],
    )


def _logged(location: SparkLocation, batch: int) -> Logged:
    """Return the entries of Spark's log for a batch."""
    files = filesystem(location.uri)
    before = [source_log.last_id(offset) for offset in location.offsets(batch - 1)]
    found: dict[int, Sequence[tuple[str, int]]] = {}
    for index, last in enumerate(map(source_log.last_id, location.offsets(batch))):
        if last is not None:
            after = before[index] if index < len(before) else None
            after = source_log.NOTHING_READ if after is None else after
            found[index] = source_log.each_entry(files, location.uri, str(index), after, last)
    return found
