"""Compare the files that Spark listed with the files that exist.

Spark logs a file as read when it lists the folder, and looks for it again when it plans the batch. If a file is
missing then (a mount that is unavailable for a moment), Spark skips it silently and never reads it again. And it reads
a file that was replaced meanwhile only up to its old length.

Therefore, before a batch is computed, its plan must contain everything that is logged (`planned.check_plan`). After
its rows are written, the files must still be the planned ones. All questions go to Spark itself, since only its Hadoop
file systems can resolve a URI.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_ft.protocol.errors import StageError
from airflow_ft.sources.files import DECLARED
from airflow_ft.sources.names import some
from airflow_ft.spark.driver import folder_values
from airflow_ft.spark.driver.plan_facts import items, kind
from airflow_ft.spark.state import source_log

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_STATUS = re.compile(r"path=(.*?); isDirectory=false; length=(\d+);.*?modification_time=(\d+);", re.DOTALL)
_MOST_PATHS = 100
_REMEDY = (
    "Write each file elsewhere, then rename it into the folder, and do not change it until its checkpoint is published."
    " Nothing was published: the next try lists the folder again."
)


class Listing:
    """The files of one relation in Spark's plan: place -> (bytes, time of modification in milliseconds)."""

    def __init__(self, spark: SparkSession, relation: Any) -> None:
        self._spark, self._relation = spark, relation
        files = relation.location().allFiles()
        found = _statuses(files.mkString("\n"), files.size(), files.apply)
        self._paths = list(dict.fromkeys(path for path, _, _ in found))
        self.files = _by_place(found)
        self.times = Counter(source_log.place(path) for path, _, _ in found)
        """Count reads of each place: Spark repeats files when a name looks like a pattern (SPARK-58518)."""

    def left_out(self) -> list[str]:
        """Return the places of files with rows that Spark lists and does not read: those beside partition folders."""
        location = self._relation.location()
        if location.partitionSpec().partitionColumns().isEmpty():
            needs = not self._relation.partitionSchema().isEmpty()
            return sorted(self.files) if needs else []
        nothing = location.rootPaths().take(0)
        read: set[str] = set()
        for folder in items(location.listFiles(nothing, nothing)):
            files = folder.files()
            read |= _by_place(_statuses(files.mkString("\n"), files.size(), files.apply)).keys()
        return sorted(place for place, (length, _) in self.files.items() if length and place not in read)

    def inexact(self) -> tuple[str, str, str] | None:
        """Folder, column and type of a partition whose column cannot hold exactly what the folder's name says."""
        schema = self._relation.partitionSchema()
        if schema.isEmpty():
            return None
        from pyspark.sql.types import StructType

        kinds = {field.name: field.dataType.simpleString() for field in StructType.fromJson(json.loads(schema.json()))}
        given = self._relation.options().get(DECLARED)
        declared = json.loads(given.get()) if given.isDefined() else None  # None: the job opened it itself
        return next(folder_values.inexact(self.files, kinds, declared), None)

    def check(self, pipeline: str) -> None:
        """StageError when a file is no longer what was listed."""
        if not self._paths:
            return
        changed = [path for path, status in self._now(pipeline).items() if self.files.get(path) != status]
        if changed:
            raise changed_error(pipeline, changed, "changed while Spark read {them}")

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
                f"a file disappeared while Spark read it, or cannot be checked: {error.java_exception.getMessage()}.",
                code="file_changed",
                pipeline=pipeline,
                remedy=_REMEDY,
            ) from error
        if missing := self.files.keys() - found.keys():  # a folder has its name now
            raise changed_error(pipeline, missing, "disappeared while Spark read {them}")
        return found


def check_listings(listings: Sequence[Listing], pipeline: str) -> None:
    """StageError when a file is no longer what was listed. To be called when all rows have been read."""
    for listing in {frozenset(each.files.items()): each for each in listings}.values():  # each folder once
        listing.check(pipeline)


def static_listings(frame: DataFrame) -> list[Listing]:
    """The listings of a DataFrame that does not stream, as they were made when it was."""
    jframe: Any = frame._jdf
    return [Listing(frame.sparkSession, relation) for relation, _ in relations(jframe.queryExecution().analyzed())]


def relations(plan: Any) -> Iterator[tuple[Any, bool]]:
    """Yield the relations over listed files in a plan, and whether a stream read each of them for a micro-batch."""
    for relation, streams in all_relations(plan):
        if kind(relation.location()) == "InMemoryFileIndex":
            yield relation, streams


def all_relations(plan: Any) -> Iterator[tuple[Any, bool]]:
    """Yield the relations over files in a plan, and whether a stream read each of them for a micro-batch."""
    for leaf in items(plan.collectLeaves()):
        relation = leaf.relation() if kind(leaf) == "LogicalRelation" else None
        if relation and kind(relation) == "HadoopFsRelation":
            yield relation, bool(leaf.isStreaming())


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


def changed_error(pipeline: str, paths: Collection[str], how: str) -> StageError:
    """Return the error for files that are not as they were listed; `how` may name them as {them}."""
    how = how.format(them="them" if len(paths) > 1 else "it")
    return StageError(
        f"{some(paths)} {how}. The batch would lack rows or have others.",
        code="file_changed",
        pipeline=pipeline,
        remedy=_REMEDY,
        paths=sorted(paths)[:_MOST_PATHS],
    )
