"""The files that Spark reads, as it has listed them, are compared with what is there.

Spark logs a file as read when it lists the folder, and looks for it a second time when it plans the batch: whoever is
gone then (a mount that is away for a moment) is left out without a word, and never read again. And it reads a file that
was replaced meanwhile up to the length that it had. So before a batch is computed all that is logged must be planned
as it was logged, and when its rows are written it must still be what was planned. All is asked of Spark itself, since
only its Hadoop file systems know what a URI is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_ft.core.errors import StageError
from airflow_ft.spark.state import source_log
from airflow_ft.spark.state.locations import SparkLocation
from airflow_ft.wal.filesystem import filesystem

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_STATUS = re.compile(r"path=(.*?); isDirectory=false; length=(\d+);.*?modification_time=(\d+);", re.DOTALL)
_SHOWN = 3
_REMEDY = (
    "nothing was published, and the next try lists the folder anew. Files have to appear complete (written elsewhere,"
    " then renamed) and to stay as they are until their checkpoint is published."
)


class Listing:
    """The files of one relation in Spark's plan: place -> (bytes, time of modification in milliseconds)."""

    def __init__(self, spark: SparkSession, relation: Any) -> None:
        self._spark, self._relation = spark, relation
        files = relation.location().allFiles()
        found = _statuses(files.mkString("\n"), files.size(), files.apply)
        self._paths = [path for path, _, _ in found]
        self.files = _by_place(found)

    def check(self, pipeline: str) -> None:
        """StageError when a file is no longer what was listed."""
        if not self._paths:
            return
        changed = [path for path, status in self._now(pipeline).items() if self.files.get(path) != status]
        if changed:
            raise _error(pipeline, changed, "changed while {they} {were} read")

    def _now(self, pipeline: str) -> Mapping[str, tuple[int, int]]:
        from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]

        jvm: Any = self._spark._jvm
        state = self._spark._jsparkSession.sessionState()
        try:
            # By whole names: else py4j asks for each part of one, and Java looks through all jars for a class `org`.
            names = getattr(jvm, "java.util.regex.Pattern").compile("\0").split("\0".join(self._paths))
            paths = getattr(jvm, "org.apache.hadoop.util.StringUtils").stringToPath(names)
            conf = state.newHadoopConfWithOptions(self._relation.options())
            files = self._relation.location().rootPaths().head().getFileSystem(conf).listStatus(paths)
            text = getattr(jvm, "scala.runtime.ScalaRunTime").stringOf(files)
            found = _by_place(_statuses(text, len(files), files.__getitem__))
        except Py4JJavaError as error:
            raise StageError(
                f"a file went while it was read, or cannot be looked at: {error.java_exception.getMessage()}.",
                pipeline=pipeline,
                remedy=_REMEDY,
            ) from error
        if missing := self.files.keys() - found.keys():  # a folder has its name now
            raise _error(pipeline, missing, "went while {they} {were} read")
        return found


def check_listings(listings: Sequence[Listing], pipeline: str) -> None:
    """StageError when a file is no longer what was listed. To be called when all rows have been read."""
    for listing in {frozenset(each.files.items()): each for each in listings}.values():  # each folder once
        listing.check(pipeline)


def static_listings(frame: DataFrame) -> list[Listing]:
    """The listings of a DataFrame that does not stream, as they were made when it was."""
    jframe: Any = frame._jdf
    return [Listing(frame.sparkSession, relation) for relation in _relations(jframe.queryExecution().analyzed())]


def batch_listings(spark: SparkSession, location: SparkLocation, batch: int, query: Any) -> list[Listing]:
    """The listings of the batch that `query` has planned. To be called from the batch's function.

    StageError when a file that Spark's log has for this batch is not in its plan, or not as it was logged.
    """
    logged = _logged(location, batch)
    found = [Listing(spark, each) for each in _relations(query._jsq.streamingQuery().lastExecution().logical())]
    planned = {path: modified for listing in found for path, (_, modified) in listing.files.items()}
    if missing := logged.keys() - planned.keys():
        raise _error(location.pipeline, missing, "went before {they} {were} read")
    if changed := [path for path, modified in logged.items() if planned[path] != modified]:
        raise _error(location.pipeline, changed, "changed before {they} {were} read")
    return found


def _logged(location: SparkLocation, batch: int) -> dict[str, int]:
    """What Spark's log has for a batch: place -> time of modification in milliseconds."""
    files = filesystem(location.uri)
    before = [source_log.last_id(offset) for offset in location.offsets(batch - 1)]
    found: dict[str, int] = {}
    for index, last in enumerate(map(source_log.last_id, location.offsets(batch))):
        if last is not None:
            after = before[index] if index < len(before) else None
            after = source_log.NOTHING_READ if after is None else after
            found |= source_log.entries(files, location.uri, str(index), after, last)
    return found


def _relations(plan: Any) -> Iterator[Any]:
    """The relations over listed files in a plan."""
    leaves = plan.collectLeaves()
    for index in range(leaves.size()):
        leaf = leaves.apply(index)
        relation = leaf.relation() if _kind(leaf) == "LogicalRelation" else None
        if relation and _kind(relation) == "HadoopFsRelation" and _kind(relation.location()) == "InMemoryFileIndex":
            yield relation


def _kind(of: Any) -> str:
    return str(of.getClass().getSimpleName())


def _statuses(text: str, count: int, each: Callable[[int], Any]) -> list[tuple[str, str, str]]:
    """(path, bytes, time of modification) of `count` files, out of what Hadoop prints of them all: one call, not many.

    Where a file system prints something else, each of them is asked.
    """
    found: list[tuple[str, str, str]] = _STATUS.findall(text)
    if len(found) == count:
        return found
    files = (each(index) for index in range(count))
    return [(file.getPath().toString(), str(file.getLen()), str(file.getModificationTime())) for file in files]


def _by_place(statuses: list[tuple[str, str, str]]) -> dict[str, tuple[int, int]]:
    return {source_log.place(path): (int(length), int(modified)) for path, length, modified in statuses}


def _error(pipeline: str, paths: Collection[str], how: str) -> StageError:
    names = sorted(paths)
    shown = ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN:,} more" if len(names) > _SHOWN else "")
    words = {"they": "they", "were": "were"} if len(names) > 1 else {"they": "it", "were": "was"}
    return StageError(
        f"{shown} {how.format(**words)}: the batch would lack rows, or hold others.", pipeline=pipeline, remedy=_REMEDY
    )
