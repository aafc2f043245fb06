"""The stateful operators at a position: what states they have, and in which folders these lie."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from airflow_ft.protocol.model import SparkPosition
from airflow_ft.spark.state.locations import SparkLocation
from airflow_ft.spark.state.operators import operator_file
from airflow_ft.spark.state.schema_paths import schema_file, store_folder
from airflow_ft.spark.state.settings import PARTITIONS, PROVIDER, kept_settings, unique_ids
from airflow_ft.state.layout import Table, require_readable, table
from airflow_ft.state.positions import Position
from airflow_ft.state.schemas import families
from airflow_ft.state.versions import gone, has_version
from airflow_ft.wal.checksums import read_checked
from airflow_ft.wal.filesystem import filesystem
from airflow_ft.wal.parsing import parsing


@dataclass(frozen=True, slots=True)
class Catalog:
    """An operator at a position: its states by name, and its folders."""

    tables: Mapping[str, Table]
    stores: tuple[str, ...]
    folders: Folders


def numbers(position: Position) -> frozenset[int]:
    """Return the numbers of the stateful operators."""
    files = filesystem(position.spark.uri)
    return frozenset(int(name) for name in files.names(files.uri(position.spark.uri, "state")) if name.isdigit())


def require_whole(position: Position, operator: int) -> None:
    """Raise WalCorruptError if a file that describes the operator's state is not as Spark wrote it."""
    spark = position.spark
    files = filesystem(spark.uri)
    for log in ("offsets", "commits"):
        if files.exists(uri := files.uri(spark.uri, log, str(spark.batch))):
            read_checked(files, uri)
    folder = files.uri(spark.uri, "state", str(operator), "_metadata")
    for name in files.tree(folder):
        if not name.endswith(".crc"):
            read_checked(files, files.uri(folder, *name.split("/")))


def catalog(position: Position, operator: int) -> Catalog:
    """ConfigurationError when its state was written in a way that is not known here."""
    spark = position.spark
    files = filesystem(spark.uri)
    conf = kept_settings(SparkPosition(spark.uri, spark.batch))
    require_whole(position, operator)
    require_readable(conf)
    metadata = operator_file(files, spark, str(operator))
    if metadata is None:
        raise gone(spark.uri, f"operator {operator}")
    with parsing(files.uri(spark.uri, "state", str(operator))):
        rocks = conf[PROVIDER].endswith("RocksDBStateStoreProvider")
        properties: dict[str, Any] = json.loads(metadata.get("operatorPropertiesJson") or "{}")
        variables = {each["stateName"]: each for each in properties.get("stateVariables", ())}
        found: dict[str, Table] = {}
        stores = metadata["stateStoreInfo"]
        for store in stores:
            name = str(store["storeName"])
            uri = schema_file(files, spark.uri, str(operator), store)
            for family in families(read_checked(files, uri), uri):
                state = table(
                    name,
                    family,
                    rocks=rocks,
                    variable=variables.get(family.name, {"stateVariableType": ""} if variables else None),
                    prefix=int(store.get("numColsPrefixKey", 0)),
                )
                if state is not None:
                    found[state.name] = state
        names = tuple(str(store["storeName"]) for store in stores)
        partitions = int(stores[0]["numPartitions"])
        return Catalog(found, names, _folders(position, operator, partitions, names[0], conf.get(PARTITIONS)))


@dataclass(frozen=True, slots=True)
class Folders:
    """Folders of an operator's stores at a position."""

    position: Position
    operator: int
    partitions: int

    def of(self, partition: int, store: str) -> str:
        """The folder of a store."""
        return _folder(self.position.spark, self.operator, partition, store)

    def unique_id(self, partition: int, store: str, stores: tuple[str, ...]) -> str:
        """Return the unique id in the names of its files, from Spark's commit with `checkpointFormatVersion` 2; else
        "".
        """
        spark = self.position.spark
        found = unique_ids(spark.uri, spark.batch).get(str(self.operator))
        return str(found[partition][stores.index(store)]) if found else ""


def _folders(position: Position, operator: int, partitions: int, store: str, pinned: str | None) -> Folders:
    """Return the folders of an operator; `partitions` is their number by its own file, `pinned` by Spark's
    settings.

    Only folders with the version count: after a repartitioning, folders of earlier ones stay.
    """
    spark = position.spark
    files = filesystem(spark.uri)
    numbers = [int(name) for name in files.names(files.uri(spark.uri, "state", str(operator))) if name.isdigit()]
    there = sorted(n for n in numbers if has_version(_folder(spark, operator, n, store), position.version))
    expected = {partitions, int(pinned or partitions)} if len(numbers) > 1 else {1}  # without a key all is in the first
    if there != list(range(len(there))) or len(there) not in expected:
        raise gone(files.uri(spark.uri, "state", str(operator)), f"version {position.version}")
    return Folders(position, operator, len(there))


def _folder(spark: SparkLocation, operator: int, partition: int, store: str) -> str:
    return store_folder(filesystem(spark.uri), spark.uri, str(operator), partition, store)
