"""A table that is not there yet, and the world around it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable

from airflow_ft import DeltaSink
from airflow_ft.core.ports import ConnectionInfo
from airflow_ft.sinks.delta.participant import DeltaParticipant
from airflow_ft.testing.world import Target, World


class Table(Target):
    """Read by delta-rs."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.path = folder / "orders"
        self.sink: DeltaSink = DeltaSink(table=str(self.path), **settings)
        self.connection = ConnectionInfo(self.sink.participant, "")

    def read(self) -> pa.Table:
        return DeltaTable(str(self.path)).to_pyarrow_table()

    def ids(self) -> list[int]:
        if not DeltaTable.is_deltatable(str(self.path)):
            return []
        found = self.read()
        return sorted(found["id"].to_pylist()) if "id" in found.column_names else []


def world_of(folder: Path, **settings: Any) -> World:
    folder.mkdir(exist_ok=True)
    return World(Table(folder, **settings), folder)


def table_of(world: World) -> Table:
    assert isinstance(world.target, Table)
    return world.target


def participant_of(world: World, plan: Any) -> DeltaParticipant:
    opened = world.participant(plan)
    assert isinstance(opened, DeltaParticipant)
    return opened
