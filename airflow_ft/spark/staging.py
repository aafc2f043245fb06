"""Writing one micro-batch into the write-ahead log: each row computed once, every sink from the same values (I1)."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_ft.core.errors import StageError
from airflow_ft.core.model import Segment
from airflow_ft.spark.locations import refuse_another_history
from airflow_ft.spark.request import FIXED_CONF, StageRequest
from airflow_ft.wal.writer import DICTIONARY_BYTES, ROW_GROUP_BYTES, ROWS_A_FILE, SegmentFolder

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from airflow_ft.spark.job import Job


@dataclass(frozen=True, slots=True)
class Staged:
    """A sealed segment, not yet published, and the seconds it took."""

    segment: Segment
    seconds: float

    def line(self) -> str:
        """One line for people."""
        rows = self.segment.rows
        each = "; ".join(f"{name} {count:,}" for name, count in rows.items())
        return f"checkpoint {self.segment.number}: {sum(rows.values()):,} rows staged in {self.seconds:.1f} s ({each})"


def stage_batch(
    request: StageRequest, job: Job, batch: DataFrame, batch_id: int, number: int, positions: Mapping[str, Any]
) -> Staged:
    """Splits a batch, writes the rows of each sink and seals the segment.

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
        counted = {
            sink: _write(frames[sink], folder, sink) if sink in frames else 0
            for sink in (*request.sinks, *request.optional_sinks)
        }
    finally:
        if frozen is not None:
            _release(frozen)
    segment = folder.seal(number, {sink: sink in frames for sink in counted}, positions)
    if dict(segment.rows) != counted:
        raise StageError(
            f"Spark counted {counted} rows, its files have {dict(segment.rows)}.",
            checkpoint=number,
            pipeline=request.pipeline,
            remedy="nothing was published; the next attempt computes the rows again.",
        )
    return Staged(segment, time.monotonic() - began)


def _write(frame: DataFrame, folder: SegmentFolder, sink: str) -> int:
    """Writes the rows of a sink in one action; how many Spark counted, to be compared with what the files hold."""
    from pyspark.sql import Observation
    from pyspark.sql import functions as F

    for name, value in FIXED_CONF.items():  # the job may have changed them at run time
        if name.startswith("spark.sql.parquet."):
            frame.sparkSession.conf.set(name, value)
    observation = Observation()
    (
        frame.observe(observation, F.count(F.lit(1)).alias("rows"))
        .write.mode("error")  # an attempt's folder is written once
        .option("parquet.block.size", str(ROW_GROUP_BYTES))
        .option("parquet.dictionary.page.size", str(DICTIONARY_BYTES))
        .option("maxRecordsPerFile", str(ROWS_A_FILE))
        .option("compression", "snappy")
        .parquet(folder.files.hadoop_path(folder.sink(sink)))
    )
    return int(observation.get["rows"])


def _release(frame: DataFrame) -> None:
    """Frees the blocks of a local checkpoint now, not at some later garbage collection of the JVM."""
    plan = frame._jdf.queryExecution().analyzed()
    plan.rdd().unpersist(False)
