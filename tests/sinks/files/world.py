"""A folder that is not there yet, and its readers."""

from __future__ import annotations

import json
import os
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.dataset as ds

from airflow_ft import FilesSink
from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.sinks.files.participant import FilesParticipant
from airflow_ft.testing.world import Target, World


class Folder(Target):
    """Read by listing it."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self._in(folder / "orders", FilesSink(folder=str(folder / "orders"), **settings))

    def anew(self) -> Folder:
        """A folder belongs to one pipeline."""
        other, path = copy(self), self.path.with_name(f"orders-{uuid4().hex[:8]}")
        other._in(path, replace(self.sink, folder=str(path)))
        return other

    def _in(self, path: Path, sink: FilesSink) -> None:
        self.path, self.sink = path, sink
        self.connection = ConnectionInfo(sink.participant, "")
        self.staged = path.with_name(f"_{path.name}.airflow_ft")

    def files(self) -> list[str]:
        """What readers see, by name: nothing that begins with an underscore or a dot."""
        found = []
        for folder, folders, names in os.walk(self.path):
            folders[:] = [name for name in folders if name[0] not in "._"]
            found += [str(Path(folder, name).relative_to(self.path)) for name in names if name[0] not in "._"]
        return sorted(found)

    def ids(self) -> list[int]:
        """By PyArrow."""
        if not self.path.is_dir():
            return []
        found = ds.dataset(self.path, format=self.sink.format).files
        tables = [ds.dataset(file, format=self.sink.format).to_table() for file in found]
        return sorted(id for table in tables for id in table["id"].to_pylist())

    def ids_in(self, name: str) -> list[int]:
        """Of one file that readers see."""
        found: list[int] = ds.dataset(self.path / name, format=self.sink.format).to_table()["id"].to_pylist()
        return found

    def manifest(self, number: int) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.path / f"checkpoint={number:010}" / "_airflow_ft").read_text())
        return found


def world_of(folder: Path, **settings: Any) -> World:
    return World(Folder(folder, **settings), folder)


def folder_of(world: World) -> Folder:
    assert isinstance(world.target, Folder)
    return world.target


def participant_of(world: World, plan: Any) -> FilesParticipant:
    opened = world.participant(plan)
    assert isinstance(opened, FilesParticipant)
    return opened


def read(folder: Folder, number: int = 1, **options: Any) -> pa.Table:
    """The rows of one checkpoint, by PyArrow's own reader of datasets."""
    where = folder.path / f"checkpoint={number:010}"
    return ds.dataset(where, format=folder.sink.format, **options).to_table()
