"""A REST catalog, beside other writers, and as people see it."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import CommitFailedException
from requests.exceptions import ReadTimeout

from airflow_ft.protocol.errors import FencedError, SinkUnavailableError
from airflow_ft.protocol.votes import Outcome
from airflow_ft.testing.world import World
from tests.raising import raises
from tests.sinks.iceberg.world import Table, of_server
from tools.servers import IcebergRest


@contextmanager
def before_the_next_commit(act: Callable[[], object]) -> Iterator[None]:
    """Something happens when the next commit is on its way to the catalog."""
    call, done = RestCatalog.commit_table, list[bool]()

    def commit_table(*of: Any) -> Any:
        if not done:
            done.append(True)
            act()
        return call(*of)

    with mock.patch.object(RestCatalog, "commit_table", commit_table):
        yield
    assert done


@pytest.fixture
def world(iceberg_rest: IcebergRest, tmp_path: Path) -> Iterator[World]:
    with closing(World(Table(of_server(iceberg_rest), f"s{uuid.uuid4().hex[:8]}"), tmp_path)) as made:
        yield made


def test_a_raised_fence_refuses_what_is_on_its_way(world: World) -> None:
    world.deliver(world.plan())
    plan = world.plan()
    vote = world.prepare(plan)
    with before_the_next_commit(lambda: world.prepare(plan, epoch=2)), raises(FencedError, "fenced"):
        world.commit(plan, vote)
    world.shows(world.ids_of(1))


def test_two_pipelines_do_not_meet(world: World) -> None:
    """Another pipeline changes its memory: the server refuses the number of our snapshot, and nothing else."""
    world.deliver(world.plan())
    plan = world.plan()
    vote = world.prepare(plan)
    with closing(World(world.target, world.folder)) as other:
        with before_the_next_commit(lambda: other.prepare(other.plan())):
            world.commit(plan, vote)
        world.shows(world.ids_of(1, 2))


@pytest.mark.parametrize("epoch", [1, 2], ids=["a retry", "another run"])
@pytest.mark.parametrize("reads", [0, 1, 2], ids=["before it reads", "before it commits", "after it committed"])
def test_a_commit_that_lands_late_adds_its_rows_once(world: World, epoch: int, reads: int) -> None:
    """The answer is lost, and the catalog does the commit later, beside the next try.

    See apache/iceberg#14425 and apache/iceberg#16008.
    """
    world.deliver(world.plan())
    plan = world.plan()
    vote = world.prepare(plan)
    call, late, tried = RestCatalog.commit_table, list[Any](), 0

    def lose(*of: Any) -> Any:
        late.extend(of)
        raise ReadTimeout("a test")

    def land() -> None:
        call(*late)

    def between(*of: Any) -> Any:
        nonlocal tried
        tried += 1
        if tried == reads == 1:
            land()
        return call(*of)

    with mock.patch.object(RestCatalog, "commit_table", lose), raises(SinkUnavailableError, "server_unreachable"):
        world.commit(plan, vote)
    if reads == 0:
        land()
    with mock.patch.object(RestCatalog, "commit_table", between):
        vote = world.prepare(plan, epoch=epoch) if epoch == 2 else vote
        assert world.commit(plan, vote, epoch=epoch).outcome is Outcome.COMMITTED
    if reads == 2:
        with pytest.raises(CommitFailedException):
            land()
    world.shows(world.ids_of(1, 2))
