"""A disk that is full, and a folder that may not be written: told, nothing half is seen, and the next try delivers."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

import pytest

from airflow_ft.protocol.errors import SinkUnavailableError, StoreUnavailableError
from airflow_ft.protocol.model import Plan
from airflow_ft.protocol.pipelines import HaltReason
from airflow_ft.protocol.votes import Outcome
from airflow_ft.store.sqlite import SqliteStore
from airflow_ft.testing.world import World
from tests.disks import TMPFS, Disk, obeying
from tests.raising import raises
from tests.sinks.delta.world import Table
from tests.sinks.files.world import Folder
from tests.sinks.postgres.world import Table as PostgresTable
from tests.sinks.sqlite.test_sqlite import File
from tests.store.scene import PIPELINE, Scene
from tools.servers import Database
from tools.servers.processes import unprivileged_ids

TARGETS: dict[str, Callable[[Path], Folder | File | Table]] = {
    "files": Folder,
    "JSON files": lambda folder: Folder(folder, format="json"),
    "SQLite": File,
    "Delta": Table,
}


def mounted(folder: Path, size: str, owner: tuple[int, int] | None = None) -> Iterator[Disk]:
    disk = Disk(folder, size, owner=owner)
    if disk.kind != TMPFS:
        pytest.skip("to mount a small disk takes root, and the right to mount")
    try:
        yield disk
    finally:
        disk.close()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    yield from mounted(tmp_path / "disk", "8m")


@pytest.mark.parametrize("kind", TARGETS)
def test_a_full_disk_of_a_sink_is_told_and_the_next_try_delivers(disk: Disk, tmp_path: Path, kind: str) -> None:
    world = World(TARGETS[kind](disk.folder), tmp_path / "log")
    first = world.plan()
    with disk.full(), pytest.raises(SinkUnavailableError) as caught:
        world.deliver(first)
    assert "disk" in caught.value.headline and caught.value.remedy
    world.deliver(first)
    assert world.target.ids() == world.ids_of(1)
    plan = world.plan(world.table(1000, 20_000))
    both = world.ids_of(1) + list(range(1000, 21_000))
    with disk.full(), pytest.raises(SinkUnavailableError) as caught:
        world.deliver(plan)
    assert "disk" in caught.value.headline
    assert world.target.ids() == world.ids_of(1)
    vote = world.prepare(plan)
    with disk.full(), pytest.raises(SinkUnavailableError) as caught:
        world.commit(plan, vote)
    assert "disk" in caught.value.headline
    assert world.target.ids() == world.ids_of(1), "it was decided when the disk became full"
    assert world.commit(plan, vote).outcome is Outcome.COMMITTED
    assert world.target.ids() == both
    assert world.commit(plan, vote).outcome is Outcome.COMMITTED and world.target.ids() == both


def test_a_full_disk_of_the_decision_log_changes_nothing(disk: Disk) -> None:
    with SqliteStore(disk.folder / "ft.db") as store:
        scene = Scene(store)
        scene.stage(1, continues=True)
        before = scene.event_texts()
        with disk.full(), pytest.raises(StoreUnavailableError) as caught:
            for number in range(2000):
                store.halt(PIPELINE, HaltReason.TOKEN_LOST, "x" * 500 + str(number))
        assert "disk is full" in caught.value.headline and "disk" in caught.value.remedy
        store.resume(PIPELINE, "ada")
        assert scene.event_texts()[: len(before)] == before and scene.trigger() == 2


@pytest.mark.server
@pytest.mark.parametrize("strategy", ["local", "prepared"])
def test_a_full_postgres_disk_is_reported_and_a_retry_delivers(
    servers_folder: Path, postgres_database: Database, tmp_path: Path, strategy: str
) -> None:
    """That of the table's tablespace: the server itself lives on."""
    place = servers_folder / f"tablespace-{postgres_database.name}"
    for disk in mounted(place, "8m", unprivileged_ids()):
        target = PostgresTable(postgres_database, strategy=strategy)
        target.sql(f"CREATE TABLESPACE {place.name.replace('-', '_')} LOCATION '{place}'")
        target.sql(f"CREATE TABLE orders (id BIGINT, text TEXT) TABLESPACE {place.name.replace('-', '_')}")
        try:
            world = World(target, tmp_path)
            world.deliver(world.plan())
            plan = world.plan(world.table(1000, 20_000))
            with disk.full(), raises(SinkUnavailableError, "disk_full", sqlstate="53100") as caught:
                world.deliver(plan)
            assert caught.error is not None and "disk" in caught.error.remedy
            assert target.ids() == world.ids_of(1) and target.prepared(world) == []
            world.deliver(plan)
            assert target.ids() == world.ids_of(1) + list(range(1000, 21_000))
            world.close()
        finally:
            target.sql("DROP TABLE orders")
            target.sql(f"DROP TABLESPACE {place.name.replace('-', '_')}")


@pytest.mark.parametrize("kind", TARGETS)
def test_a_read_only_folder_is_reported_and_a_retry_delivers(tmp_path: Path, kind: str) -> None:
    """Root passes modes of files by, so it is tried in a process without that right."""
    place = tmp_path / "sink"
    place.mkdir()
    world = World(TARGETS[kind](place), tmp_path / "log")
    world.deliver(world.plan())
    plan = world.plan()
    folders = [place, *(each for each in place.rglob("*") if each.is_dir())]
    files = [each for each in place.rglob("*") if each.is_file()]
    for each, mode in [*((folder, 0o555) for folder in folders), *((file, 0o444) for file in files)]:
        each.chmod(mode)
    message = _tried(world, plan)
    assert message.startswith("SinkAccessError"), message
    assert str(place) in message and "writ" in message, message
    for each in (*folders, *files):
        each.chmod(0o755)
    assert world.target.ids() == world.ids_of(1)
    assert _tried(world, plan) == "done"
    world.deliver(plan)
    assert world.target.ids() == world.ids_of(1, 2)


def _tried(world: World, plan: Plan) -> str:
    """What a process says that prepares it, which modes of files hold for."""
    attempt = world.attempt()
    given = {
        "plan": plan.to_json(),
        "connection": asdict(world.target.connection),
        "step": "prepare",
        "attempt": attempt,
        "notes": {},
        "prepared": 0,
        "stop": "",
        "at": 0,
        "below": "",
        "calls": "",
    }
    program = "import json, sys; from airflow_ft.testing.processes import run; run(json.load(sys.stdin))"
    command = [*obeying(), sys.executable, "-c", program]
    done = subprocess.run(command, input=json.dumps(given), capture_output=True, text=True, timeout=120)
    return done.stdout.splitlines()[-1] if done.stdout else done.stderr
