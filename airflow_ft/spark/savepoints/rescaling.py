"""Rescaling: a new savepoint whose state has another number of partitions.

Spark pins `spark.sql.shuffle.partitions` when state is created, and ignores the setting afterwards. Its own
repartitioning of a checkpoint location (4.2, experimental) adds a micro-batch without input that redistributes the
state. A failure damages the location, so it works on a copy: the original savepoint is never changed. The pipeline is
not touched; a person who restores the new savepoint sets the new number in the pipeline too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from airflow_ft.protocol.errors import ConfigurationError, StageError
from airflow_ft.protocol.model import SparkPosition
from airflow_ft.spark.savepoints.metadata import Savepoint, read_metadata
from airflow_ft.spark.savepoints.offline import changed_copy, drive
from airflow_ft.spark.state.locations import SparkLocation
from airflow_ft.spark.state.settings import FORMAT, PARTITIONS, commit_format, give
from airflow_ft.wal.filesystem import filesystem

_ROCKSDB = "RocksDBStateStoreProvider"
_MOST = 10_000


def rescale(
    uri: str, partitions: int, folder: str, by: str, conf: Mapping[str, str], on_line: Callable[[str], None]
) -> tuple[str, Savepoint]:
    """Make a savepoint in `folder` from `uri` with `partitions` state partitions; returns its URI and contents.

    `conf` are Spark settings (memory, for example), `on_line` receives the lines that Spark writes. After an error
    nothing is left.

    Raises:
        ConfigurationError: the savepoint cannot be rescaled.
        WalCorruptError: the savepoint is damaged.
        StageError: Spark failed.
    """
    savepoint = read_metadata(uri)
    _require_rescalable(uri, savepoint, partitions)

    kept = commit_format(SparkPosition(savepoint.location(uri).uri, savepoint.batch)) or "1"

    def distribute(copied: SparkLocation) -> SparkLocation:
        location = filesystem(copied.uri).hadoop_path(copied.uri)
        drive(
            f"{__name__}:main",
            (location, partitions),
            "repartition the state",
            savepoint.pipeline,
            {**conf, PARTITIONS: str(partitions), FORMAT: kept},
            on_line,
            copied.uri,
        )
        batch = savepoint.batch + 1
        rescaled = SparkLocation(copied.root, copied.pipeline, copied.uri, batch)
        if not rescaled.ends_at(batch):
            raise StageError(
                f"Spark has not committed micro-batch {batch}, which repartitions the state.",
                code="state_not_rewritten",
                pipeline=savepoint.pipeline,
                remedy="Read Spark's lines above. The savepoint is unchanged.",
                batch=batch,
            )
        give(copied.uri, PARTITIONS, str(partitions))  # so a pipeline that asks for the old number gets an error
        return rescaled

    return changed_copy(uri, savepoint, folder, by, distribute)


def _require_rescalable(uri: str, savepoint: Savepoint, partitions: int) -> None:
    if not 1 <= partitions <= _MOST:
        raise ConfigurationError(
            f"the number of state partitions is {partitions}.",
            code="argument_invalid",
            remedy=f"Give a number from 1 to {_MOST:,}. Few partitions are fast.",
            argument="partitions",
            value=partitions,
        )
    if not savepoint.operators:
        raise ConfigurationError(
            f"the savepoint {uri} has no operator state to repartition.",
            code="savepoint_unchanged",
            remedy="Restore it as it is. A job without state may have any number of partitions.",
            path=uri,
        )
    if savepoint.backend != _ROCKSDB:
        raise ConfigurationError(
            f"the savepoint {uri} has its state in {savepoint.backend}. Spark can rescale only state in RocksDB.",
            code="state_backend_unsupported",
            remedy=f"Run `airflow ft savepoint convert {uri} --backend rocksdb` first.",
            path=uri,
            backend=savepoint.backend,
        )
    if all(operator.partitions == partitions for operator in savepoint.operators):
        raise ConfigurationError(
            f"the savepoint {uri} already has {partitions} state partitions.",
            code="savepoint_unchanged",
            remedy="Restore it as it is.",
            path=uri,
            partitions=partitions,
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
