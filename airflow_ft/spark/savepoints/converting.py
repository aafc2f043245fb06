"""Converting: a new savepoint whose state lies in Spark's other state store.

Spark pins the class of the state store when state is born, and ignores the setting afterwards. So the state is copied
store by store (`airflow_ft.spark.state.copying`) into a copy of the location whose settings name the other class, and
read again from there: what differs is refused. The micro-batch stays the same. Of the versions that the savepoint
holds, the new one has the last alone, as a full snapshot.

The copy's checkpoint format is 1 (Spark's default), whatever it was: the HDFS-backed map knows no other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum

from airflow_ft.protocol.errors import ConfigurationError
from airflow_ft.protocol.model import SparkPosition
from airflow_ft.spark.savepoints.metadata import Savepoint, read_metadata
from airflow_ft.spark.savepoints.offline import changed_copy, drive
from airflow_ft.spark.state.files import drop_stores
from airflow_ft.spark.state.locations import SparkLocation
from airflow_ft.spark.state.settings import PROVIDER, forget_unique_ids, kept_settings, pin

_JOIN_FORMAT = "spark.sql.streaming.join.stateFormatVersion"
_LAST_JOIN_FORMAT = 2  # later ones keep all of a join in one store with column families, which the map has not


class Backend(StrEnum):
    """Spark's state stores, by the names of the command line."""

    ROCKSDB = "rocksdb"
    HDFS = "hdfs"
    """The HDFS-backed map: in memory, with its changes and snapshots in files."""

    @property
    def provider(self) -> str:
        """Return what Spark's setting `spark.sql.streaming.stateStore.providerClass` calls it."""
        name = {"rocksdb": "RocksDB", "hdfs": "HDFSBacked"}[self]
        return f"org.apache.spark.sql.execution.streaming.state.{name}StateStoreProvider"

    @property
    def short(self) -> str:
        """Return the name without its package, as savepoints store it."""
        return self.provider.rpartition(".")[2]


def convert(
    uri: str, backend: Backend, folder: str, by: str, conf: Mapping[str, str], on_line: Callable[[str], None]
) -> tuple[str, Savepoint]:
    """A new savepoint in `folder`, and its URI: that of `uri` with its state in another state store.

    `conf` are Spark settings (memory, for example), `on_line` gets the lines that Spark writes. ConfigurationError for
    what cannot be converted; WalCorruptError for a damaged savepoint; StageError when Spark fails, or the state that it
    reads again differs. Then nothing is left.
    """
    savepoint = read_metadata(uri)
    _require_convertible(uri, savepoint, backend)

    def copy_state(copied: SparkLocation) -> SparkLocation:
        prepare(copied.uri, backend)
        source = savepoint.location(uri).uri
        drive(
            "airflow_ft.spark.state.copying:main",
            (source, copied.uri, savepoint.batch),
            f"copy the state into {backend.short}",
            savepoint.pipeline,
            conf,
            on_line,
            source,
            copied.uri,
        )
        return copied

    return changed_copy(uri, savepoint, folder, by, copy_state)


def prepare(location: str, backend: Backend) -> None:
    """Has a copy, which loses its state, name another state store; what has been given to it is to be that one."""
    drop_stores(location)
    pin(location, PROVIDER, backend.provider)
    forget_unique_ids(location)


def _require_convertible(uri: str, savepoint: Savepoint, backend: Backend) -> None:
    if not savepoint.operators:
        raise ConfigurationError(
            f"the savepoint {uri} has no operator state to convert.",
            code="savepoint_unchanged",
            remedy="Restore it as it is. A job without state works with any state store.",
            path=uri,
        )
    if savepoint.backend == backend.short:
        raise ConfigurationError(
            f"the savepoint {uri} already has its state in {backend.short}.",
            code="savepoint_unchanged",
            remedy="Restore it as it is.",
            path=uri,
            backend=backend.short,
        )
    if savepoint.backend not in {each.short for each in Backend}:
        raise ConfigurationError(
            f"the savepoint {uri} has its state in {savepoint.backend}. airflow-ft does not know its files.",
            code="state_backend_unsupported",
            remedy=f"Only state in {' or '.join(each.short for each in Backend)} can be converted. Restore the"
            " savepoint as it is.",
            path=uri,
            backend=savepoint.backend,
        )
    if own := [each.name for each in savepoint.operators if each.name.startswith("transformWithState")]:
        raise ConfigurationError(
            f"the savepoint {uri} has state of {own[0]}, which Spark keeps only in RocksDB.",
            code="state_backend_unsupported",
            remedy="Keep RocksDB. Or write the job without transformWithState, under a new pipeline name.",
            path=uri,
            operator=own[0],
        )
    kept = kept_settings(SparkPosition(savepoint.location(uri).uri, savepoint.batch))
    joins = any(each.name == "symmetricHashJoin" for each in savepoint.operators)
    if joins and int(kept.get(_JOIN_FORMAT, 0)) > _LAST_JOIN_FORMAT:
        raise ConfigurationError(
            f"the savepoint {uri} has state of a join with {_JOIN_FORMAT}={kept[_JOIN_FORMAT]}, which Spark keeps only"
            " in RocksDB.",
            code="state_backend_unsupported",
            remedy=f"Keep RocksDB. Only joins up to format {_LAST_JOIN_FORMAT} can be converted.",
            path=uri,
            setting=_JOIN_FORMAT,
        )
