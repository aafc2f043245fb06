"""Rescaling: a new savepoint whose state lies in another number of partitions.

Spark pins `spark.sql.shuffle.partitions` when state is born, and ignores the setting afterwards. Its own repartitioning
of a checkpoint location (4.2, experimental) adds a micro-batch without input, in which the state is distributed anew.
It spoils a location in which it fails, so it works on a copy: the savepoint that is rescaled is never changed, and a
failure costs the copy alone. The pipeline is not touched; whoever restores the new savepoint gives the pipeline the new
number too.
"""

from __future__ import annotations

import logging
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from airflow_ft.core.errors import ConfigurationError, StageError
from airflow_ft.core.model import RunKey
from airflow_ft.savepoints.metadata import SPARK, Savepoint, read_metadata, verify
from airflow_ft.savepoints.taking import finish, new_folder, removed_on_error
from airflow_ft.spark.locations import SparkLocation, copy_location
from airflow_ft.spark.private import PROPERTIES
from airflow_ft.spark.request import StageRequest
from airflow_ft.spark.state_settings import give
from airflow_ft.spark.submit import MAIN, environment, properties, settings, submit
from airflow_ft.wal.filesystem import filesystem

PARTITIONS = "spark.sql.shuffle.partitions"
_ROCKSDB = "RocksDBStateStoreProvider"
_MOST = 10_000
_TOLD = 40

log = logging.getLogger(__name__)


def rescale(
    uri: str, partitions: int, folder: str, by: str, conf: Mapping[str, str], on_line: Callable[[str], None]
) -> tuple[str, Savepoint]:
    """A new savepoint in `folder`, and its URI: that of `uri` with so many state partitions.

    `conf` are Spark settings (memory, for example), `on_line` gets the lines that Spark writes. ConfigurationError for
    what cannot be rescaled; WalCorruptError for a damaged savepoint; StageError when Spark fails. Then nothing is left.
    """
    files = filesystem(folder)
    savepoint = read_metadata(uri)
    _require_rescalable(uri, savepoint, partitions)
    verify(uri, savepoint)
    id, target = new_folder(folder, savepoint.pipeline, savepoint.number)
    with removed_on_error(folder, target, savepoint.pipeline):
        files.make_folder(target)
        copied = copy_location(savepoint.location(uri), files.uri(target, SPARK))
        _repartition(files.hadoop_path(copied.uri), partitions, savepoint.pipeline, conf, on_line)
        batch = savepoint.batch + 1
        rescaled = SparkLocation(copied.root, copied.pipeline, copied.uri, batch, "rescaled")
        if not rescaled.ends_at(batch):
            raise StageError(
                f"Spark has not committed micro-batch {batch}, which distributes the state anew.",
                pipeline=savepoint.pipeline,
                remedy="see its lines above.",
            )
        give(copied.uri, PARTITIONS, str(partitions))  # then a pipeline that still asks for the old number is told
        told = replace(savepoint, id=id, taken_by=f"{by}, from {uri}")
        return target, finish(target, rescaled, told)


def _require_rescalable(uri: str, savepoint: Savepoint, partitions: int) -> None:
    if not 1 <= partitions <= _MOST:
        raise ConfigurationError(
            f"{partitions} state partitions cannot be made.", remedy=f"give a number from 1 to {_MOST:,}; few are fast."
        )
    if not savepoint.operators:
        raise ConfigurationError(
            f"the savepoint {uri} holds no operator state: there is nothing to distribute.",
            remedy="restore it as it is; a job without state may have any number of partitions.",
        )
    if savepoint.backend != _ROCKSDB:
        raise ConfigurationError(
            f"the savepoint {uri} has its state in {savepoint.backend}, which Spark cannot rescale.",
            remedy="keep its number of partitions; only state in RocksDB can be rescaled.",
        )
    if all(operator.partitions == partitions for operator in savepoint.operators):
        raise ConfigurationError(
            f"the savepoint {uri} has {partitions} state partitions already.", remedy="restore it as it is."
        )


def _repartition(
    location: str, partitions: int, pipeline: str, conf: Mapping[str, str], on_line: Callable[[str], None]
) -> None:
    """Has a Spark driver of its own do it."""
    with tempfile.TemporaryDirectory(prefix="airflow-ft-rescale-") as private:
        request = StageRequest(
            pipeline=pipeline,
            run=RunKey("savepoint", "rescale"),
            epoch=0,
            attempt=0,
            store_url="",
            wal_root=private,
            job=f"{__name__}:main",
            sinks=("none",),
            master="local[*]",
            conf={**conf, PARTITIONS: str(partitions)},
        )
        folder = Path(private)
        (folder / PROPERTIES).write_text(properties(settings(request, folder)))
        program = folder / MAIN
        program.write_text(f"from {__name__} import main\n\nmain({location!r}, {partitions})\n")
        with subprocess.Popen(
            submit(folder, str(program)),
            env=environment(request),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
        ) as driver:
            assert driver.stdout is not None
            last: list[str] = []
            for line in driver.stdout:
                on_line(line.rstrip("\n"))
                last = [*last[1 - _TOLD :], line.strip()]
        if driver.returncode:
            raise StageError(
                f"Spark could not distribute the state anew: {_reason(last)}",
                pipeline=pipeline,
                remedy="see its lines above; the savepoint is as it was.",
            )


def _reason(lines: list[str]) -> str:
    """The line that a person would look for."""
    found = [line for line in lines if "Exception" in line or "Error" in line]
    return (found or lines or ["it said nothing"])[-1][:500]


def main(location: str, partitions: int) -> None:
    """In the driver."""
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.getOrCreate()
    manager = getattr(spark, "_streamingCheckpointManager", None)
    if manager is None:
        raise SystemExit(f"Error: Spark {spark.version} cannot rescale state; 4.2 and later can.")
    assert not spark.streams.active  # also starts what Spark's state stores report to
    manager.repartition(location, partitions)
    spark.stop()
