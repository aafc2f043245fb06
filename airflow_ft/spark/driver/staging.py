"""Writing one micro-batch into the write-ahead log: each row computed once, every sink from the same values (I1)."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache, partial
from threading import Lock
from typing import TYPE_CHECKING, Any, cast

from airflow_ft.protocol.errors import SealError, StageError
from airflow_ft.protocol.model import Segment
from airflow_ft.protocol.reasons import AbortReason
from airflow_ft.spark.driver.executors import lost, storage_level
from airflow_ft.spark.driver.same_values import with_same_values
from airflow_ft.spark.driver.types import check_types
from airflow_ft.spark.request import FIXED_CONF, StageRequest
from airflow_ft.wal.filesystem import another_history, refuse_another_history
from airflow_ft.wal.writer import (
    COMPRESSION,
    DICTIONARY_BYTES,
    ROW_GROUP_BYTES,
    ROWS_A_FILE,
    SegmentFolder,
    write_table,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession

    from airflow_ft.spark.driver.columns import SinkColumns
    from airflow_ft.spark.driver.job import Job

# Of FileOutputCommitter: where tasks of a job's first attempt have theirs.
_COMMITTER_FOLDERS = ("_temporary", "0", "_temporary")

FEW_ROWS, FEW_BYTES = 32_768, 4 << 20
"""Rows, and bytes in the log, over all sinks. After a batch within both limits, the next is expected to be small."""
_MANY = "airflow_ft: more rows than expected"

_fixing: dict[object, Lock] = {}
"""By session; it grows by a lock for each session of the process."""

log = logging.getLogger("airflow_ft.spark")


class ManyRowsError(StageError):
    """A micro-batch that was expected to be small is not. A new attempt must compute it again."""

    abort_reason = AbortReason.ATTEMPT_ENDED


def is_small(segment: Segment | None) -> bool:
    """Return whether what follows this micro-batch is expected to be small; None: nothing is known."""
    return segment is not None and segment.total_rows <= FEW_ROWS and segment.bytes <= FEW_BYTES


@dataclass(frozen=True, slots=True)
class Written:
    """The files of a batch, and how many rows Spark has counted in them, by sink; None: the job returned nothing."""

    folder: SegmentFolder
    number: int
    counted: Mapping[str, int | None]
    positions: Mapping[str, Any]
    lineage: Mapping[str, Any]

    def seal(self) -> Segment:
        """Seals the segment; SealError when its files hold other rows than Spark has counted."""
        returned = {sink: count is not None for sink, count in self.counted.items()}
        segment = self.folder.seal(self.number, returned, self.positions, self.lineage)
        counted = {sink: count or 0 for sink, count in self.counted.items()}
        if dict(segment.rows) != counted:
            raise SealError(
                f"Spark counted {counted} rows, but its files have {dict(segment.rows)}.",
                checkpoint=self.number,
                pipeline=self.folder.pipeline,
                remedy="Check the disk of wal_root. Nothing was published: the next attempt computes the rows again.",
                counted=counted,
                found=dict(segment.rows),
            )
        return segment


def write_batch(
    request: StageRequest,
    job: Job,
    batch: DataFrame,
    batch_id: int,
    number: int,
    positions: Mapping[str, Any],
    *,
    few: bool = False,
    bounded: bool = False,
    made_of: SinkColumns | None = None,
) -> Written:
    """Split a batch and write the rows of each sink.

    `few`: the batch is expected to be small. Then this process collects the rows and writes them itself, because
    Spark's own writer takes 0.1 s for any number of rows. `bounded`: offsets and plan prove that it is small, so
    Spark does not count the rows. `made_of` returns the lineage of the sinks' columns.

    With a `split` the batch is first materialised on the local disks, and its lineage cut. So every use in the split
    sees the same rows, and a lost block fails the job instead of computing other rows (I1). Without one there is a
    single action, which writes the rows as they are computed.

    Raises:
        ManyRowsError: `few`, but the batch was not small.
        JobError: the job has returned the wrong thing, or sinks would get different values (`with_same_values`).
    """
    folder = SegmentFolder(request.wal_root, request.pipeline, request.epoch, request.attempt, batch_id)
    refuse_another_history(folder.files, folder.location, request.pipeline)
    with materialised(batch) if job.has_split else nullcontext(batch) as found:
        frames: Mapping[str, DataFrame] = job.split(found, request.sinks, request.optional_sinks)
        for sink, frame in frames.items():  # all of them before a row of one is written
            check_types(frame.schema, sink)
        lineage = made_of.lineage(found, frames) if made_of is not None else {}
        frames = with_same_values(frames, job.reference)
        collect = partial(_collect, bounded=bounded)
        ways = {sink: collect if few and _is_flat(frame) else _write for sink, frame in frames.items()}
        counted = {
            sink: ways[sink](frames[sink], folder, sink) if sink in frames else None
            for sink in (*request.sinks, *request.optional_sinks)
        }
    if (dead := request.dead_letters) is not None:
        count, rows = counted[dead.sink] or 0, sum(filter(None, counted.values()))
        dead.check(request.pipeline, number, count, rows)
        if count:  # for people and metrics: `airflow_ft.spark.task.launcher` reads this line
            log.info("checkpoint %d: %d of %d rows are dead letters (%s)", number, count, rows, dead.sink)
    return Written(folder, number, counted, positions, lineage)


@contextmanager
def materialised(batch: DataFrame) -> Iterator[DataFrame]:
    """A batch as computed once, on the local disks of the executors, without lineage; released behind the block.

    ExecutorLostError when they die with it.
    """
    spark = batch.sparkSession
    frozen = batch.localCheckpoint(eager=True, storageLevel=storage_level(spark))
    try:
        yield frozen
    except Exception as error:
        if (gone := lost(error, spark)) is not None:
            raise gone from error
        raise
    finally:
        _release(frozen)


def fix_conf(spark: SparkSession, prefix: str) -> None:
    """Set the settings again that every driver must have: the job may have changed them at run time."""
    for name, value in FIXED_CONF.items():
        if name.startswith(prefix):
            spark.conf.set(name, value)


@contextmanager
def fixed_conf(spark: SparkSession, *prefixes: str) -> Iterator[None]:
    """Apply `fix_conf` inside the block to a session of the user, and then restore its own settings.

    Another thread with the same session waits for the end of the block.
    """
    with _alone(spark):
        before = {name: spark.conf.get(name, None) for name in FIXED_CONF if name.startswith(prefixes)}
        try:
            for prefix in prefixes:
                fix_conf(spark, prefix)
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    spark.conf.unset(name)
                else:
                    spark.conf.set(name, value)


@contextmanager
def _alone(spark: SparkSession) -> Iterator[None]:
    java: Any = getattr(spark, "_jsparkSession", None)  # several objects of Python may have one session of the JVM
    lock = _fixing.setdefault(cast(Any, spark).session_id if java is None else java.hashCode(), Lock())
    if not lock.acquire(blocking=False):
        log.info("another thread writes rows with this Spark session. This one waits until they are written.")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _write(frame: DataFrame, folder: SegmentFolder, sink: str) -> int:
    """Writes the rows of a sink in one action; how many Spark counted, to be compared with what the files hold."""
    from pyspark.sql import Observation

    fix_conf(frame.sparkSession, "spark.sql.parquet.")
    _make_folder(folder, sink)
    # Spark's committer would make and remove them: for each that lacks, Hadoop starts a process (`local_files`).
    folder.files.make_folder(folder.files.uri(folder.sink(sink), *_COMMITTER_FOLDERS))
    observation = Observation()
    (
        frame.observe(observation, _counting())
        .write.mode("append")  # to nothing: `_make_folder`
        .option("parquet.block.size", str(ROW_GROUP_BYTES))
        .option("parquet.dictionary.page.size", str(DICTIONARY_BYTES))
        .option("maxRecordsPerFile", str(ROWS_A_FILE))
        .option("compression", COMPRESSION)
        .parquet(folder.files.hadoop_path(folder.sink(sink)))
    )
    return int(observation.get["rows"])


def _collect(frame: DataFrame, folder: SegmentFolder, sink: str, *, bounded: bool) -> int:
    """Fetch the few rows of a sink and write them as one file. Returns how many there were.

    Unless the rows are `bounded`, Spark counts them, and fails if there are many. It plans a query for that (15 ms).
    """
    import pyarrow as pa

    _make_folder(folder, sink)
    try:
        table = _table(frame if bounded else frame.filter(_few()))
    except Exception as error:
        if _MANY in str(error):
            raise ManyRowsError(
                "the micro-batch has far more rows than the one before it.",
                remedy="Do nothing: Spark computes it again and writes it itself.",
            ) from error
        raise
    file = pa.BufferOutputStream()
    write_table(table, file)
    folder.files.write(folder.files.uri(folder.sink(sink), "part-00000.parquet"), file.getvalue().to_pybytes())
    return int(table.num_rows)


def _is_flat(frame: DataFrame) -> bool:
    """Without columns of columns: Arrow writes no null above what is never null. Nor TIME, which Arrow has in ns."""
    return not any(field.dataType.typeName() in ("struct", "array", "map", "time") for field in frame.schema.fields)


def _table(frame: DataFrame) -> pa.Table:
    """The rows, in the types that Spark's Parquet has. Not by `DataFrame.toArrow`, which casts them to others."""
    import pyarrow as pa
    from pyspark.sql.classic.dataframe import DataFrame as Classic

    batches = cast(Classic, frame)._collect_as_arrow(empty_list_if_zero_records=False)
    return pa.Table.from_batches(batches)


@cache
def _few() -> Column:
    """True; it raises for a partition's row behind the first `FEW_ROWS`."""
    from pyspark.sql import functions as F

    index = F.monotonically_increasing_id().bitwiseAND((1 << 33) - 1)
    return F.when(index < FEW_ROWS, F.lit(True)).otherwise(F.raise_error(_MANY).cast("boolean"))


@cache
def _counting() -> Column:
    """Made once: it takes some fifteen calls of the JVM."""
    from pyspark.sql import functions as F

    return F.count(F.lit(1)).alias("rows")


def _make_folder(folder: SegmentFolder, sink: str) -> None:
    """Makes the folder of a sink; StageError when it is there: an attempt's folder is written once (I1)."""
    try:
        folder.files.make_folder(folder.sink(sink))
    except FileExistsError as error:
        raise another_history(folder.location, folder.pipeline) from error


def _release(frame: DataFrame) -> None:
    """Frees the blocks of a local checkpoint now, not at some later garbage collection of the JVM."""
    plan = frame._jdf.queryExecution().analyzed()
    plan.rdd().unpersist(False)
