"""Writing one micro-batch into the write-ahead log: each row computed once, every sink from the same values (I1)."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from airflow_ft.core.errors import SealError
from airflow_ft.core.model import Segment
from airflow_ft.spark.request import FIXED_CONF, StageRequest
from airflow_ft.spark.types import check_types
from airflow_ft.wal.filesystem import another_history, refuse_another_history
from airflow_ft.wal.writer import COMPRESSION, DICTIONARY_BYTES, ROW_GROUP_BYTES, ROWS_A_FILE, SegmentFolder

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from airflow_ft.spark.job import Job

# Of FileOutputCommitter: where tasks of a job's first attempt have theirs.
_COMMITTER_FOLDERS = ("_temporary", "0", "_temporary")

log = logging.getLogger("airflow_ft.spark")


@dataclass(frozen=True, slots=True)
class Written:
    """The files of a batch, and how many rows Spark has counted in them, by sink; None: the job returned nothing."""

    folder: SegmentFolder
    number: int
    counted: Mapping[str, int | None]
    positions: Mapping[str, Any]
    began: float

    def seal(self) -> Segment:
        """Seals the segment; SealError when its files hold other rows than Spark has counted."""
        returned = {sink: count is not None for sink, count in self.counted.items()}
        segment = self.folder.seal(self.number, returned, self.positions)
        counted = {sink: count or 0 for sink, count in self.counted.items()}
        if dict(segment.rows) != counted:
            raise SealError(
                f"Spark counted {counted} rows, its files have {dict(segment.rows)}.",
                checkpoint=self.number,
                pipeline=self.folder.pipeline,
                remedy="nothing was published; the next attempt computes the rows again.",
            )
        each = "; ".join(f"{name} {count:,}" for name, count in counted.items())
        seconds = time.monotonic() - self.began
        log.info("checkpoint %d: %s rows staged in %.1f s (%s)", self.number, f"{segment.total_rows:,}", seconds, each)
        return segment


def write_batch(
    request: StageRequest, job: Job, batch: DataFrame, batch_id: int, number: int, positions: Mapping[str, Any]
) -> Written:
    """Splits a batch and writes the rows of each sink.

    With a `split` the batch is first materialised on the local disks, and its lineage cut: whatever the user's split
    does, it sees the same rows, and a lost block fails the job instead of computing other rows (I1). Without one
    there is a single action, which writes the rows as they are computed.
    """
    from pyspark import StorageLevel

    began = time.monotonic()
    folder = SegmentFolder(request.wal_root, request.pipeline, request.epoch, request.attempt, batch_id)
    refuse_another_history(folder.files, folder.location, request.pipeline)
    frozen: DataFrame | None = None
    try:
        if job.has_split:
            frozen = batch.localCheckpoint(eager=True, storageLevel=StorageLevel.DISK_ONLY)
        frames = job.split(batch if frozen is None else frozen, request.sinks, request.optional_sinks)
        for sink, frame in frames.items():  # all of them before a row of one is written
            check_types(frame.schema, sink)
        counted = {
            sink: _write(frames[sink], folder, sink) if sink in frames else None
            for sink in (*request.sinks, *request.optional_sinks)
        }
    finally:
        if frozen is not None:
            _release(frozen)
    return Written(folder, number, counted, positions, began)


def fix_conf(spark: SparkSession, prefix: str) -> None:
    """Sets those of the settings that every driver has to have anew: the job may have changed them at run time."""
    for name, value in FIXED_CONF.items():
        if name.startswith(prefix):
            spark.conf.set(name, value)


def _write(frame: DataFrame, folder: SegmentFolder, sink: str) -> int:
    """Writes the rows of a sink in one action; how many Spark counted, to be compared with what the files hold."""
    from pyspark.sql import Observation

    fix_conf(frame.sparkSession, "spark.sql.parquet.")
    _make_folder(folder, sink)
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


@cache
def _counting() -> Column:
    """Made once: it takes some fifteen calls of the JVM."""
    from pyspark.sql import functions as F

    return F.count(F.lit(1)).alias("rows")


def _make_folder(folder: SegmentFolder, sink: str) -> None:
    """Makes the folder of a sink; StageError when it is there: an attempt's folder is written once (I1).

    And the folders that Spark's committer would make in it, and removes in the end: for each that lacks, Hadoop starts
    a process (`airflow_ft.spark.local_files`).
    """
    try:
        folder.files.make_folder(folder.sink(sink))
    except FileExistsError as error:
        raise another_history(folder.location, folder.pipeline) from error
    folder.files.make_folder(folder.files.uri(folder.sink(sink), *_COMMITTER_FOLDERS))


def _release(frame: DataFrame) -> None:
    """Frees the blocks of a local checkpoint now, not at some later garbage collection of the JVM."""
    plan = frame._jdf.queryExecution().analyzed()
    plan.rdd().unpersist(False)
