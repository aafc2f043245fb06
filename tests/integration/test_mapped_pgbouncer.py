"""A delivery into PostgreSQL by many tasks behind PgBouncer, which gives each transaction one of two backends."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.mapped_step import Step, stopped_anywhere
from tests.integration.test_mapped_postgres import HEAD, MARKER, World
from tests.integration.test_mapped_postgres import world as world  # a fixture
from tools.servers import PgBouncer, Postgres

pytestmark = [pytest.mark.release, pytest.mark.server, pytest.mark.slow]


@pytest.fixture(scope="module")
def pgbouncer(postgres: Postgres, servers_folder: Path) -> Iterator[PgBouncer]:
    with PgBouncer(servers_folder / "pgbouncer", postgres=postgres) as server:
        yield server


@pytest.fixture
def pooled(world: World, pgbouncer: PgBouncer) -> Iterator[World]:
    """All steps connect to the pooler; the test itself connects to the server."""
    world.fields = {**world.fields, "port": pgbouncer.port}
    yield world
    world.finish(list(range(1, len(world.store.checkpoints(world.pipeline)) + 1)))


def test_branches_are_loaded_and_delivered_through_a_pooler(pooled: World) -> None:
    numbers = pooled.stage()
    announced = pooled.step("announce")
    pooled.load(announced)
    assert pooled.ids() == [] and len(pooled.prepared()) == 3
    assert pooled.step("prepare", announced) == numbers
    assert pooled.store.checkpoint(pooled.pipeline, 1).votes["shop"].prepared == announced["attempt"]


def test_prepare_alone_loads_more_branches_than_it_has_backends(pooled: World) -> None:
    numbers = pooled.stage()
    assert pooled.step("prepare") == numbers
    assert len(pooled.prepared()) == 3


@pytest.mark.parametrize("end", ["killed", "woken"])
@pytest.mark.parametrize(
    ("step", "stop"),
    [
        ("announce", f"after {HEAD}"),
        ("load", f"after {MARKER}"),
        ("load", "before PREPARE TRANSACTION"),
        ("load", "after PREPARE TRANSACTION"),
        ("prepare", "before PREPARE TRANSACTION"),
    ],
)
def test_a_task_that_stopped_is_made_good_by_its_next_try(pooled: World, step: str, stop: str, end: str) -> None:
    """It has one of the two backends in a transaction. A woken one has slept beside the next checkpoint."""
    stopped_anywhere(pooled, pooled.url, step, stop, end, branch="0002", finish=pooled.finish)


def test_a_load_that_sleeps_does_not_stop_its_next_try(pooled: World) -> None:
    """It wakes up before the vote: both succeed."""
    pooled.stage()
    announced = pooled.step("announce")
    with Step(pooled, pooled.url, "load", stop=f"after {MARKER}", announced=announced, branch="0002") as other:
        other.wait_until_stopped()
        pooled.load(announced)
        assert other.wake() == {"result": True}
    assert len(pooled.prepared()) == 3
    pooled.step("prepare", announced)
