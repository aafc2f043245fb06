"""The steps of a delivery into PostgreSQL by many tasks, over a real decision log: kills, and a task that wakes up."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from airflow_ft.protocol.lease import Worker, new_epoch
from airflow_ft.sinks.base import slices
from airflow_ft.store import open_store
from tests.integration.mapped_step import MappedWorld, Step, stopped_anywhere
from tests.integration.real_world import expected
from tools.servers import Database, Postgres

pytestmark = [pytest.mark.sampled, pytest.mark.server]

HEAD, MARKER = "INSERT INTO .*airflow_ft_head", "INSERT INTO .*airflow_ft_ledger.* branch,"


class World(MappedWorld):
    """See `MappedWorld`."""

    url = ""

    def ids(self) -> list[int]:
        return [row[0] for row in self.database.sql("SELECT id FROM orders ORDER BY id")]

    def prepared(self) -> list[Any]:
        return self.database.sql("SELECT gid FROM pg_prepared_xacts WHERE database = current_database()")

    def finish(self, numbers: list[int]) -> None:
        """Each row once, nothing prepared, nothing delivered from the log again."""
        self.deliver()
        assert self.ids() == expected(numbers) and self.prepared() == []
        self.check_proven(numbers)


@pytest.fixture
def world(postgres_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setattr(slices, "MIN_ROWS", 2)
    server = postgres_database.server
    assert isinstance(server, Postgres)
    postgres_database.sql("CREATE TABLE orders (id BIGINT, name VARCHAR(100))")
    url = f"sqlite:///{tmp_path / 'ft.db'}"
    with closing(open_store(url)) as store:
        made = World(store, tmp_path / "wal", postgres_database)
        made.url = url
        made.fields = {
            "conn_id": "shop", "conn_type": "postgres", "host": server.host, "port": server.port, "login": server.user,
            "password": server.password, "schema": postgres_database.name,
        }  # fmt: skip
        yield made
    for (gid,) in made.prepared():
        postgres_database.sql(f"ROLLBACK PREPARED '{gid}'")


def test_a_checkpoint_loaded_by_other_tasks_is_delivered(world: World) -> None:
    numbers = world.stage()
    announced = world.step("announce")
    assert announced["branches"] == ["0001", "0002", "0003"]
    assert world.fields["password"] not in str(announced)
    world.load(announced)
    assert world.ids() == [] and len(world.prepared()) == 3
    assert world.step("prepare", announced) == numbers
    assert world.store.checkpoint(world.pipeline, 1).votes["shop"].prepared == announced["attempt"]
    world.finish(numbers)


def test_an_announcement_ends_with_its_epoch(world: World) -> None:
    """Another process takes an epoch: `prepare` then begins an attempt of its own."""
    numbers = world.stage()
    announced = world.step("announce")
    assert world.step("load", announced, "0001") is True
    with new_epoch(world.store, world.pipeline, Worker("a person"), "test", world.lease_seconds):
        pass
    assert world.step("load", announced, "0002") is False
    assert world.step("prepare", announced) == numbers
    assert world.store.checkpoint(world.pipeline, 1).votes["shop"].prepared > announced["attempt"]
    world.finish(numbers)


def test_no_checkpoint_is_announced_behind_an_undelivered_one(world: World) -> None:
    """Nothing is held behind a number that is not delivered: the larger second one is not announced."""
    numbers = [*world.stage(rows=20), *world.stage(rows=40)]
    assert world.step("announce") is None
    assert world.step("prepare") == numbers
    assert len(world.prepared()) == 3
    world.commit("shop")
    assert world.prepared() == []


@pytest.mark.chaos
@pytest.mark.parametrize("end", ["killed", "woken"])
@pytest.mark.parametrize(
    ("step", "stop"),
    [
        ("announce", f"before {HEAD}"),
        ("announce", f"after {HEAD}"),
        ("load", f"before {MARKER}"),
        ("load", f"after {MARKER}"),
        ("load", "before PREPARE TRANSACTION"),
        ("load", "after PREPARE TRANSACTION"),
        ("prepare", "before PREPARE TRANSACTION"),
        ("prepare", "vote"),
    ],
)
def test_the_next_try_finishes_a_task_stopped_anywhere(world: World, step: str, stop: str, end: str) -> None:
    """A woken one has slept beside its next try, and beside the next checkpoint."""
    numbers = stopped_anywhere(world, world.url, step, stop, end, branch="0002", finish=world.finish)
    world.finish(numbers)


@pytest.mark.chaos
@pytest.mark.parametrize("stop", [f"after {MARKER}", "before PREPARE TRANSACTION"])
def test_a_load_that_sleeps_does_not_stop_its_next_try(world: World, stop: str) -> None:
    """It wakes up before the vote, when its branch was loaded by the other one: both succeed."""
    numbers = world.stage()
    announced = world.step("announce")
    with Step(world, world.url, "load", stop=stop, announced=announced, branch="0002") as other:
        other.wait_until_stopped()
        world.load(announced)
        assert other.wake() == {"result": True}
    assert len(world.prepared()) == 3
    world.step("prepare", announced)
    world.finish(numbers)
