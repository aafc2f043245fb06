"""Write operator state, in a driver, into a location whose settings name another state store than its origin.

Spark 4.2 has means to rewrite state offline (its `StateRewriter`), but they refuse the HDFS-backed map. So each store
is copied by Spark's own providers, row by row inside the JVM (`StateCopy.java`), and both formats stay Spark's affair:

- RocksDB gets an empty store at the batch, and commits the next version as a full snapshot.
- The map has an empty store only at version 0, so it commits version 1. That file of changes holds all rows, and has
  the format of a full snapshot. It is renamed to a snapshot of the wanted version.

Then a provider of its own reads each written store again. The number of rows and a sum over their hashes must be those
of the source. One state partition is in memory at a time for each core.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.resources import files as resources
from typing import Any, NamedTuple

from airflow_ft.protocol.model import SparkPosition
from airflow_ft.spark.state.schema_paths import store_folder
from airflow_ft.spark.state.settings import FORMAT, PARTITIONS, PROVIDER, kept_settings, unique_ids
from airflow_ft.wal.filesystem import FileSystem, filesystem

_STATE = "org.apache.spark.sql.execution.streaming.state"
_CHANGELOG = "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled"
_DEFAULT = "default"


class _Store(NamedTuple):
    """A state store of an operator, in one partition; `key` and `value` are types of the JVM."""

    operator: int
    name: str
    partition: int
    key: Any
    value: Any
    prefix: int


def main(source: str, target: str, batch: int) -> None:
    """The whole program of a driver; see `copy_state`."""
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.getOrCreate()
    assert not spark.streams.active  # also starts what Spark's state stores report to
    print(f"{copy_state(spark, source, target, batch)} rows of state are copied, and read again")  # noqa: T201
    spark.stop()


def copy_state(spark: Any, source: str, target: str, batch: int) -> int:
    """Copies the state after `batch` of one location into another; the number of rows. SystemExit if they differ."""
    before = spark.conf.get(FORMAT)
    spark.conf.set(FORMAT, kept_settings(SparkPosition(source, batch)).get(FORMAT, "1"))
    try:
        stores = list(_stores(spark, source, batch))
        _require_all(source, batch, stores)
    finally:
        spark.conf.set(FORMAT, before)
    copier = _Copier(spark, source, target, batch)
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        return sum(threads.map(copier.copy, stores))


def _stores(spark: Any, source: str, batch: int) -> Any:
    """Return all stores of a location, as Spark lists them, with the number of partitions from the settings.

    Spark's metadata keep the old number of partitions after a repartitioning.
    """
    partitions = int(kept_settings(SparkPosition(source, batch))[PARTITIONS])
    of_json = spark._jvm.org.apache.spark.sql.types.DataType.fromJson
    path = filesystem(source).hadoop_path(source)
    for row in spark.read.format("state-metadata").load(path).select("*", "_numColsPrefixKey").collect():
        options = {"operatorId": row.operatorId, "batchId": batch}
        if row.stateStoreName != _DEFAULT:
            options["storeName"] = row.stateStoreName
        schema = spark.read.format("statestore").options(**options).load(path).schema
        key, value = (of_json(schema[name].dataType.json()) for name in ("key", "value"))
        for partition in range(partitions):
            yield _Store(row.operatorId, row.stateStoreName, partition, key, value, row._numColsPrefixKey)


def _require_all(location: str, batch: int, stores: Sequence[_Store]) -> None:
    """SystemExit when the location has state after `batch` in a partition that is not among the stores."""
    files = filesystem(location)
    known = {(str(store.operator), str(store.partition)) for store in stores}
    for path in files.tree(files.uri(location, "state")):
        operator, partition, *_, name = path.split("/")
        is_state = partition.isdigit() and name.startswith((f"{batch + 1}.", f"{batch + 1}_"))
        if is_state and (operator, partition) not in known:
            raise SystemExit(f"Error: nothing is known of state/{path}, which would not be copied.")


class _Copier:
    """Shared part of both copiers."""

    def __init__(self, spark: Any, source: str, target: str, batch: int) -> None:
        self._spark, self._jvm, self._version = spark, spark._jvm, batch + 1
        self._source, self._target = source, target
        self._kept = {each: kept_settings(SparkPosition(each, batch)) for each in (source, target)}
        self._ids = unique_ids(source, batch)
        self._none = self._module("scala.None")
        compiler = self._jvm.org.codehaus.janino.SimpleCompiler()
        compiler.setParentClassLoader(self._jvm.java.lang.Thread.currentThread().getContextClassLoader())
        text = (resources("airflow_ft.spark.state") / "StateCopy.java").read_text(encoding="utf-8")
        compiler.cook("StateCopy.java", self._jvm.java.io.StringReader(text))
        self._loops = compiler.getClassLoader().loadClass("airflow_ft.StateCopy").newInstance()

    def copy(self, store: _Store) -> int:
        """Copies a store, and reads it again; the number of its rows."""
        id = self._id(store)
        to_map = self._kept[self._target][PROVIDER].endswith(".HDFSBackedStateStoreProvider")
        at = 0 if to_map else self._version - 1
        source, target = self._provider(store, self._source), self._provider(store, self._target)
        try:
            copied = self._loops.copy(source, self._version, id, target, at, not to_map)
        finally:
            source.close()
            target.close()
        if to_map:
            self._rename(store)
        again = self._provider(store, self._target)
        try:
            found = self._loops.sum(again, self._version, self._none)
        finally:
            again.close()
        what = f"partition {store.partition} of store {store.name} of operator {store.operator}"
        if found != copied:
            raise SystemExit(f"Error: {what} had rows and digest {copied}, and has {found}.")
        rows = int(copied.partition(" ")[0])
        print(f"{what}: {rows} rows", flush=True)  # noqa: T201
        return rows

    def _rename(self, store: _Store) -> None:
        """Rename the map's first committed version to a full snapshot of the wanted version."""
        files = filesystem(self._target)
        folder = files.hadoop_path(_folder(files, self._target, store))
        names = ("1.delta", f"{self._version}.snapshot")
        made, wanted = (self._jvm.org.apache.hadoop.fs.Path(folder, name) for name in names)
        conf = self._spark._jsparkSession.sessionState().newHadoopConf()
        if not made.getFileSystem(conf).rename(made, wanted):  # with Hadoop's checksum
            raise SystemExit(f"Error: {made} cannot be renamed to {wanted.getName()}.")

    def _id(self, store: _Store) -> Any:
        """The unique id of the version that counts (checkpoint format 2); none in format 1."""
        if not self._ids:
            return self._none
        files = filesystem(self._source)
        names = files.names(_folder(files, self._source, store))
        known = self._ids[str(store.operator)][store.partition]
        of_it = {id for id in known if any(name.startswith(f"{self._version}_{id}") for name in names)}
        if len(of_it) != 1:
            raise SystemExit(f"Error: {store[:3]} has {len(of_it)} versions {self._version} that Spark has committed.")
        return self._jvm.scala.Some(of_it.pop())

    def _provider(self, store: _Store, location: str) -> Any:
        """Return a separate provider for a store, existing or new, in a location."""
        state, session = getattr(self._jvm, _STATE), self._spark._jsparkSession.sessionState()
        conf = session.conf().clone()
        # With the change log it would commit all rows as changes, and leave the snapshot to a later maintenance.
        for name, value in {**self._kept[location], _CHANGELOG: str(location == self._source).lower()}.items():
            conf.setConfString(name, value)
        folder = filesystem(location).hadoop_path(filesystem(location).uri(location, "state"))
        id = state.StateStoreId(folder, store.operator, store.partition, store.name)
        encoder = (
            state.PrefixKeyScanStateEncoderSpec(store.key, store.prefix)
            if store.prefix
            else state.NoPrefixKeyStateEncoderSpec(store.key)
        )
        return self._module(f"{_STATE}.StateStoreProvider").createAndInit(
            state.StateStoreProviderId(id, self._jvm.java.util.UUID.fromString(str(uuid.uuid4()))),
            store.key,
            store.value,
            encoder,
            False,  # no column families: only `transformWithState` and joins of format 3 have them
            state.StateStoreConf(conf, self._module("scala.collection.immutable.Map").empty()),
            session.newHadoopConf(),
            False,
            self._none,
        )

    def _module(self, name: str) -> Any:
        """An object of Scala."""
        return self._jvm.java.lang.Class.forName(f"{name}$").getField("MODULE$").get(None)


def _folder(files: FileSystem, location: str, store: _Store) -> str:
    return store_folder(files, location, str(store.operator), store.partition, store.name)
