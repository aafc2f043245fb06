"""What is on disk before the catalog has the commit."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
from pyiceberg.manifest import DataFile
from sqlalchemy.orm import Session

from airflow_ft.protocol.errors import SinkUnavailableError
from airflow_ft.sinks.base.document import DocumentLedger
from airflow_ft.sinks.iceberg import durable
from airflow_ft.sinks.iceberg.table import Version
from airflow_ft.testing.world import World
from tests.raising import raises
from tests.sinks.iceberg.world import Table, in_file


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with closing(World(Table(in_file(tmp_path)), tmp_path)) as made:
        yield made


def path_of(location: str) -> Path:
    return Path(location.removeprefix("file://"))


def data_of(world: World) -> list[Path]:
    assert isinstance(world.target, Table)
    with world.target.opened() as table:
        assert table is not None
        return [path_of(task.file.file_path) for task in table.scan().plan_files()]


@contextmanager
def synced() -> Iterator[list[Path]]:
    """Paths in the order in which they are synced, with an empty one where the catalog's database commits."""
    seen: list[Path] = []
    sync, commit = durable._sync, Session.commit

    def _sync(path: Path) -> None:
        seen.append(path)
        sync(path)

    def _commit(self: Session) -> None:
        seen.append(Path())
        commit(self)

    with mock.patch.object(durable, "_sync", _sync), mock.patch.object(Session, "commit", _commit):
        yield seen


def test_a_file_of_the_log_is_as_old_as_its_delivery(world: World) -> None:
    plan = world.plan()
    for path in (world.folder / "wal").rglob("*.parquet"):
        os.utime(path, (0, 0))
    world.commit(plan, world.prepare(plan))
    [file] = data_of(world)
    assert file.stat().st_nlink == 2 and time.time() - file.stat().st_mtime < 3600


def test_a_missing_file_is_not_committed(world: World) -> None:
    """Another program has removed it as an orphan. The retry writes it again."""
    world.deliver(world.plan())
    plan = world.plan()
    vote, commit = world.prepare(plan), Version.commit

    def removed(self: Version, branch: str, ledger: DocumentLedger, files: Sequence[DataFile], says: Any) -> None:
        path_of(files[0].file_path).unlink()
        commit(self, branch, ledger, files, says)

    with mock.patch.object(Version, "commit", removed), raises(SinkUnavailableError, "sink_unavailable"):
        world.commit(plan, vote)
    world.shows(world.ids_of(1))
    world.commit(plan, vote)
    world.shows(world.ids_of(1, 2))


@pytest.mark.parametrize("name", ["lake", "my lake%20x"])
def test_all_files_and_new_folders_are_synced_before_the_commit(tmp_path: Path, name: str) -> None:
    given = in_file(tmp_path)
    target = Table(
        replace(given, extra={**given.extra, "warehouse": f"file://{tmp_path}/{name}"}), partition_by=["text"]
    )
    with closing(World(target, tmp_path)) as world:
        plan = world.plan(pa.table({"id": [1, 2, 3], "text": ["plain", "a/b", "\N{SNOWMAN}"]}))
        vote = world.prepare(plan)
        with synced() as seen:
            world.commit(plan, vote)
        with target.opened() as table:
            assert table is not None and path_of(table.metadata_location) in seen[: seen.index(Path())]
        before = set(seen[: seen.index(Path())])
        found = data_of(world)
        assert len(found) == 3
        for file in found:
            assert {file, *(each for each in file.parents if tmp_path in (each, *each.parents))} <= before


def test_a_log_file_is_linked_whatever_its_folder_is_called(tmp_path: Path) -> None:
    given = in_file(tmp_path)
    target = Table(replace(given, extra={**given.extra, "warehouse": f"file://{tmp_path}/my lake%20x"}))
    with closing(World(target, tmp_path)) as world:
        world.deliver(world.plan())
        world.shows(world.ids_of(1))
        [file] = data_of(world)
        assert file.stat().st_nlink == 2
