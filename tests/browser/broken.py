"""Pipelines that need somebody: what was delivered into folders by the real steps, until something went wrong."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds

from airflow_ft import FilesSink
from airflow_ft.core import steps
from airflow_ft.core.errors import NotDeliveredError, SinkUnavailableError, StoreBehindSinkError
from airflow_ft.core.model import ParticipantPlan
from airflow_ft.core.ports import ConnectionInfo, Participant, Store
from airflow_ft.core.resolution import Resolver
from airflow_ft.wal import open_archive
from tests.integration.real_world import RealWorld


@dataclass
class Broken(RealWorld):
    """A pipeline into a folder of its name, which can be away."""

    away: bool = False

    @property
    def folder(self) -> Path:
        return self.root.parent / self.pipeline

    @property
    def sinks(self) -> dict[str, Any]:
        return {"rows": FilesSink(folder=str(self.folder))}

    def connections(self, conn_id: str) -> ConnectionInfo:
        return ConnectionInfo(conn_id, "")

    def participants(self, plan: ParticipantPlan) -> Participant:
        if self.away:
            raise SinkUnavailableError("it is away.", remedy="bring it back.", participant=plan.name)
        return super().participants(plan)

    @property
    def head(self) -> Path:
        """What the folder remembers of the pipeline."""
        return self.folder / "_airflow_ft"

    def ids(self) -> list[int]:
        """What readers find; duplicates stay visible."""
        files = ds.dataset(self.folder, format="parquet").files if self.folder.is_dir() else []
        return sorted(id for file in files for id in ds.dataset(file).to_table()["id"].to_pylist())

    def give_up(self) -> None:
        """The run ends without having delivered all."""
        with suppress(NotDeliveredError):
            steps.confirm_step(self.context(), self.config, open_archive(str(self.root)))


def halted(store: Store, folder: Path) -> Broken:
    """One whose folder has lost its memory while its second checkpoint was delivered; `bring_back` mends that."""
    world = _staged(store, folder, "halted")
    world.deliver()
    world.stage()
    world.prepare()
    world.head.rename(folder / "lost")
    with suppress(StoreBehindSinkError):
        world.commit(*world.delivery.names)
    world.give_up()
    return world


def in_doubt(store: Store, folder: Path) -> Broken:
    """One whose folder was away when its checkpoint had been decided."""
    world = _staged(store, folder, "in-doubt")
    world.prepare()
    world.away = True
    with suppress(SinkUnavailableError):
        world.commit(*world.delivery.names)
    world.away = False
    world.give_up()
    return world


def quarantined(store: Store, folder: Path) -> Broken:
    """One whose checkpoint a person has set aside."""
    world = _staged(store, folder, "quarantined")
    world.prepare()
    Resolver(store, world.pipeline, world.participants, "a test", world.context().worker).quarantine(1)
    world.give_up()
    return world


def prepared(store: Store, folder: Path) -> Broken:
    """One whose run died before the decision."""
    world = _staged(store, folder, "prepared")
    world.prepare()
    world.give_up()
    return world


def bring_back(world: Broken) -> None:
    """Ends what has halted it."""
    (world.root.parent / "lost").rename(world.head)


def _staged(store: Store, folder: Path, name: str) -> Broken:
    world = Broken(store, folder / "wal", None, pipeline=name)  # type: ignore[arg-type] - there is no database
    world.stage()
    return world
