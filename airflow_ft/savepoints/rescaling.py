"""Rescaling: a new savepoint whose state lies in another number of partitions.

Spark pins `spark.sql.shuffle.partitions` when state is born, and ignores the setting afterwards. Its own repartitioning
of a checkpoint location (4.2, experimental) adds a micro-batch without input, in which the state is distributed anew.
It spoils a location in which it fails, so it works on a copy: the savepoint that is rescaled is never changed, and a
failure costs the copy alone. The pipeline is not touched; whoever restores the new savepoint gives the pipeline the new
number too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from airflow_ft.core.errors import ConfigurationError, StageError
from airflow_ft.core.model import SparkPosition
from airflow_ft.savepoints.metadata import Savepoint, read_metadata
from airflow_ft.savepoints.offline import changed_copy, drive
from airflow_ft.spark.state.locations import SparkLocation
from airflow_ft.spark.state.settings import FORMAT, PARTITIONS, commit_format, give
from airflow_ft.wal.filesystem import filesystem

_ROCKSDB = "RocksDBStateStoreProvider"
_MOST = 10_000


def rescale(
    uri: str, partitions: int, folder: str, by: str, conf: Mapping[str, str], on_line: Callable[[str], None]
) -> tuple[str, Savepoint]:
    """A new savepoint in `folder`, and its URI: that of `uri` with so many state partitions.

    `conf` are Spark settings (memory, for example), `on_line` gets the lines that Spark writes. ConfigurationError for
    what cannot be rescaled; WalCorruptError for a damaged savepoint; StageError when Spark fails. Then nothing is left.
    """
    savepoint = read_metadata(uri)
    _require_rescalable(uri, savepoint, partitions)

    kept = commit_format(SparkPosition(savepoint.location(uri).uri, savepoint.batch)) or "1"

    def distribute(copied: SparkLocation) -> SparkLocation:
        location = filesystem(copied.uri).hadoop_path(copied.uri)
        drive(
            f"{__name__}:main",
            (location, partitions),
            "distribute the state anew",
            savepoint.pipeline,
            {**conf, PARTITIONS: str(partitions), FORMAT: kept},
            on_line,
        )
        batch = savepoint.batch + 1
        rescaled = SparkLocation(copied.root, copied.pipeline, copied.uri, batch, "rescaled")
        if not rescaled.ends_at(batch):
            raise StageError(
                f"Spark has not committed micro-batch {batch}, which distributes the state anew.",
                pipeline=savepoint.pipeline,
                remedy="see its lines above.",
            )
        give(copied.uri, PARTITIONS, str(partitions))  # then a pipeline that still asks for the old number is told
        return rescaled

    return changed_copy(uri, savepoint, folder, by, distribute)


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
            remedy="only state in RocksDB can be rescaled: `airflow ft savepoint convert` it first.",
        )
    if all(operator.partitions == partitions for operator in savepoint.operators):
        raise ConfigurationError(
            f"the savepoint {uri} has {partitions} state partitions already.", remedy="restore it as it is."
        )


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
