"""A table that is not there yet, and the world around it. It is read by the sink's own reader."""

from __future__ import annotations

import uuid
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_ft import PaimonSink
from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.sinks.paimon.binary_row import EMPTY
from airflow_ft.sinks.paimon.keyed_rows import INSERT, KIND, NUMBER
from airflow_ft.sinks.paimon.manifests import Slot, entry
from airflow_ft.sinks.paimon.participant import PaimonParticipant
from airflow_ft.sinks.paimon.place import Place
from airflow_ft.sinks.paimon.reading import batches
from airflow_ft.sinks.paimon.table import Version
from airflow_ft.testing.world import Target, World


class Table(Target):
    def __init__(self, folder: Path, **settings: Any) -> None:
        self.path = folder / "shop.db" / "orders"
        self.sink: PaimonSink = PaimonSink(table=str(self.path), **settings)
        self.connection = ConnectionInfo(self.sink.participant, "")

    def fresh(self) -> Table:
        """One that is made."""
        other = copy(self)
        other.path = self.path.with_name(f"orders_{uuid.uuid4().hex[:8]}")
        other.sink = replace(self.sink, table=str(other.path))
        other.connection = ConnectionInfo(other.sink.participant, "")
        return other

    @property
    def place(self) -> Place:
        return Place.of(self.path)

    def version(self) -> Version:
        found = Version.newest(self.place)
        assert found is not None
        return found

    def read(self) -> pa.Table:
        return rows_of(self.path)

    def foreign(self, rows: pa.Table) -> None:
        """Another writer's commit of these rows, into a table without partitions."""
        version = self.version()
        assert version.schema is not None
        name = f"data-{uuid.uuid4()}-0.parquet"
        path = self.path / "bucket-0" / name
        path.parent.mkdir(exist_ok=True)
        pq.write_table(rows, path)
        manifests = version.manifests
        added = entry(Slot(EMPTY), name, path.stat().st_size, rows.num_rows, version.schema["id"])
        listed = [manifests.write([added], (), version.schema["id"])]
        snapshot = version._next(manifests, listed, rows.num_rows, str(uuid.uuid4()), {})
        self.place.create("snapshot", snapshot)

    def expire(self, keep: int) -> None:
        """Remove all but the newest snapshots, as Paimon's writers do, also those that a consumer needs."""
        for number in self.place.numbers("snapshot")[:-keep]:
            (self.path / "snapshot" / f"snapshot-{number}").unlink()

    def ids(self) -> list[int]:
        found = self.read()
        return sorted(found["id"].to_pylist()) if "id" in found.column_names else []


def rows_of(path: Path) -> pa.Table:
    """All rows of a table with all its columns; no columns: there is no table."""
    version = Version.newest(Place.of(path))
    names = [column.name for column in version.columns or ()] if version is not None else []
    found = [pa.Table.from_batches([batch]) for batch in batches(version, names)]
    if not found:
        return pa.table({})
    whole = pa.concat_tables(found, promote_options="permissive")
    return whole.select([name for name in names if name in whole.column_names])


def current_of(path: Path, key: str) -> dict[Any, dict[str, Any]]:
    """The rows of a table with a primary key: of each the last change."""
    version = Version.newest(Place.of(path))
    names = [column.name for column in version.columns or ()] if version is not None else []
    found: dict[Any, dict[str, Any]] = {}
    for batch in batches(version, names, (NUMBER, KIND)):
        for row in batch.to_pylist():
            if row[NUMBER] >= found.get(row[key], {NUMBER: -1})[NUMBER]:
                found[row[key]] = row
    return {one: row for one, row in found.items() if row[KIND] == INSERT}


def world_of(folder: Path, **settings: Any) -> World:
    folder.mkdir(exist_ok=True)
    return World(Table(folder, **settings), folder)


def table_of(world: World) -> Table:
    assert isinstance(world.target, Table)
    return world.target


def participant_of(world: World, plan: Any) -> PaimonParticipant:
    opened = world.participant(plan)
    assert isinstance(opened, PaimonParticipant)
    return opened
