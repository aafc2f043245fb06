"""The steps of a delivery by many tasks, over a real decision log and real servers: kills, and a task that wakes up."""

from __future__ import annotations

import json
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
from tests.integration.test_mysql_branches_chaos import LEDGER, OF_ROWS
from tools.servers import Database

pytestmark = [pytest.mark.sampled, pytest.mark.server]


class Mapped:
    """A world, and the URL of its decision log for processes."""

    def __init__(self, world: MappedWorld, url: str) -> None:
        self.world, self.url = world, url

    def process(self, step: str, stop: str, **given: Any) -> Step:
        return Step(self.world, self.url, step, stop=stop, **given)

    def load(self, announced: Any) -> None:
        self.world.load(announced)

    def finish(self, numbers: list[int]) -> None:
        """Each row once, nothing prepared, nothing delivered from the log again."""
        self.world.deliver()
        assert self.world.ids() == expected(numbers)
        assert self.world.server.sql("XA RECOVER") == []
        self.world.check_proven(numbers)


@pytest.fixture
def mapped(any_mysql_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Mapped]:
    monkeypatch.setattr(slices, "MIN_ROWS", 2)
    url = f"sqlite:///{tmp_path / 'ft.db'}"
    any_mysql_database.sql("CREATE TABLE orders (id BIGINT, name VARCHAR(100)) ENGINE=InnoDB")
    with closing(open_store(url)) as store:
        yield Mapped(MappedWorld(store, tmp_path / "wal", any_mysql_database), url)
    any_mysql_database.server.end_prepared()


def test_a_checkpoint_loaded_by_other_tasks_is_delivered(mapped: Mapped) -> None:
    world = mapped.world
    numbers = world.stage()
    announced = world.step("announce")
    assert announced["branches"] == ["0001", "0002", "0003"]
    mapped.load(announced)
    assert world.ids() == [] and len(world.server.sql("XA RECOVER")) == 3
    attempt = world.store.checkpoint(world.pipeline, 1).votes["shop"].attempt
    assert world.step("prepare", announced) == numbers
    assert world.store.checkpoint(world.pipeline, 1).votes["shop"].prepared == attempt == announced["attempt"]
    mapped.finish(numbers)


def test_an_announcement_in_xcom_reveals_no_branch_or_password(mapped: Mapped) -> None:
    mapped.world.stage()
    text = json.dumps(mapped.world.step("announce"))
    [(nonce,)] = mapped.world.database.sql("SELECT session FROM airflow_ft_head")
    assert len(nonce) == 24 and nonce not in text  # on MySQL anyone who knows an xid may end the branch
    assert mapped.world.server.password not in text


def test_prepare_also_takes_checkpoints_that_are_not_announced(mapped: Mapped) -> None:
    world = mapped.world
    numbers = [*world.stage(rows=20), *world.stage(rows=20)]
    announced = world.step("announce")
    assert announced["number"] == 1  # of equal ones the first
    mapped.load(announced)
    assert world.step("prepare", announced) == numbers
    assert world.store.checkpoint(world.pipeline, 1).votes["shop"].prepared == announced["attempt"]
    mapped.finish(numbers)


def test_an_announcement_ends_with_its_epoch(mapped: Mapped) -> None:
    """Another process takes an epoch: `prepare` then begins an attempt of its own."""
    world = mapped.world
    numbers = world.stage()
    announced = world.step("announce")
    assert world.step("load", announced, "0001") is True
    with new_epoch(world.store, world.pipeline, Worker("a person"), "test", world.lease_seconds):
        pass
    assert world.step("load", announced, "0002") is False
    assert world.step("prepare", announced) == numbers
    assert world.store.checkpoint(world.pipeline, 1).votes["shop"].prepared > announced["attempt"]
    assert world.step("load", announced, "0002") is False
    mapped.finish(numbers)


@pytest.mark.chaos
@pytest.mark.parametrize("end", ["killed", "woken"])
@pytest.mark.parametrize(
    ("step", "stop"),
    [
        ("announce", "before UPDATE .*airflow_ft_head"),
        ("announce", "after UPDATE .*airflow_ft_head.* SET epoch"),
        ("load", f"before XA START {OF_ROWS}"),
        ("load", f"after {LEDGER}"),
        ("load", f"before XA PREPARE {OF_ROWS}"),
        ("load", f"after XA PREPARE {OF_ROWS}"),
        ("prepare", f"before XA PREPARE {OF_ROWS}"),
        ("prepare", "vote"),
    ],
)
def test_the_next_try_finishes_a_task_stopped_anywhere(mapped: Mapped, step: str, stop: str, end: str) -> None:
    """A woken one has slept beside its next try, and beside the next checkpoint."""
    world, url = mapped.world, mapped.url
    numbers = stopped_anywhere(world, url, step, stop, end, branch="0002", finish=mapped.finish)
    mapped.finish(numbers)


@pytest.mark.chaos
def test_a_load_that_sleeps_does_not_stop_its_next_try(mapped: Mapped) -> None:
    """It wakes up before the vote, when its branch was loaded by the other one: both succeed."""
    world = mapped.world
    numbers = world.stage()
    announced = world.step("announce")
    stop = f"before XA PREPARE {OF_ROWS}"
    with mapped.process("load", stop, announced=announced, branch="0002") as other:
        other.wait_until_stopped()
        mapped.load(announced)
        assert other.wake() == {"result": True}
    assert len(world.server.sql("XA RECOVER")) == 3
    world.step("prepare", announced)
    mapped.finish(numbers)
