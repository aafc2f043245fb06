"""The steps of a delivery into Kafka by many tasks, over a real decision log: kills, and a task that wakes up."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_ft.clients.kafka.client import KafkaClients, KafkaSettings
from airflow_ft.protocol.lease import Worker, new_epoch
from airflow_ft.protocol.model import Segment
from airflow_ft.sinks.base import slices
from airflow_ft.sinks.kafka.transaction import ProducerIdentity
from airflow_ft.sinks.kafka.transaction_coordinator import Ending, TransactionCoordinator
from airflow_ft.store import open_store
from airflow_ft.wal.writer import SegmentFolder, rows_a_group, write_table
from tests.integration import real_world
from tests.integration.kafka_world import read_ids
from tests.integration.mapped_step import MappedWorld, Step, stopped_anywhere
from tests.integration.real_world import expected
from tools.servers import Kafka

pytestmark = [pytest.mark.sampled, pytest.mark.server]

FILES = 6


def write_files(folder: SegmentFolder, number: int, tables: Mapping[str, pa.Table]) -> Segment:
    """A segment with several files a sink: a slot sends whole files."""
    for name, table in tables.items():
        folder.files.make_folder(folder.sink(name))
        for part in range(FILES):
            first, end = part * table.num_rows // FILES, (part + 1) * table.num_rows // FILES
            with folder.files.create(folder.files.uri(folder.sink(name), f"part-{part:05}.parquet")) as file:
                write_table(table.slice(first, end - first), file, rows_a_group(table))
    return folder.seal(number, dict.fromkeys(tables, True), {}, None)


class World(MappedWorld):
    """See `MappedWorld`."""

    url = ""

    @property
    def bootstrap(self) -> str:
        return f"{self.fields['host']}:{self.fields['port']}"

    def ids(self) -> list[int]:
        return read_ids(self.bootstrap, self.fields["schema"])

    def vote(self, number: int = 1) -> Any:
        return self.store.checkpoint(self.pipeline, number).votes["shop"]

    def expire(self, slot: int) -> None:
        """End a held transaction as the brokers do after its time-out."""
        group = f"airflow_ft.{self.pipeline}.shop.{slot}"
        coordinator = TransactionCoordinator(KafkaClients(KafkaSettings.from_connection(self.connections("shop"))))
        with closing(coordinator):
            found = coordinator.describe(group)
            assert found is not None and found.is_open
            identity = ProducerIdentity(found.producer.producer_id, found.producer.epoch)
            assert coordinator.end(group, identity, commit=False) is Ending.DONE

    def finish(self, numbers: list[int], *, again: bool = False) -> None:
        """Each row once. Unless it was sent `again`, the transactions of the vote were committed."""
        self.deliver()
        assert self.ids() == expected(numbers)
        self.check_proven(numbers)
        if not again:
            vote = self.vote(numbers[-1])
            assert len(vote.notes["held"]) == 3
            assert vote.proof.detail["attempt"] == vote.prepared


@pytest.fixture
def world(kafka: Kafka, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setattr(slices, "MIN_ROWS", 2)
    monkeypatch.setattr(real_world, "write_segment", write_files)
    if not kafka.running:
        kafka.start()
    host, _, port = kafka.bootstrap.rpartition(":")
    url = f"sqlite:///{tmp_path / 'ft.db'}"
    with closing(open_store(url)) as store:
        made = World(store, tmp_path / "wal", None)  # type: ignore[arg-type]  # it has no database
        made.url = url
        made.fields = {"conn_id": "shop", "conn_type": "kafka", "host": host, "port": int(port), "schema": topic}
        yield made


def test_a_checkpoint_filled_by_other_tasks_is_delivered(world: World) -> None:
    numbers = world.stage()
    announced = world.step("announce")
    assert announced["branches"] == ["0", "1", "2"]
    world.load(announced)
    assert world.ids() == []
    assert world.step("prepare", announced) == numbers
    assert world.vote().prepared == announced["attempt"]
    world.finish(numbers)


def test_prepare_fills_what_a_load_has_left(world: World) -> None:
    """A `load` that fails for good costs time only."""
    numbers = world.stage()
    announced = world.step("announce")
    assert world.step("load", announced, "2") is True
    assert world.step("prepare", announced) == numbers
    assert world.vote().prepared == announced["attempt"]
    world.finish(numbers)


def test_a_load_that_is_repeated_finds_its_transaction(world: World) -> None:
    numbers = world.stage()
    announced = world.step("announce")
    world.load(announced)
    world.load(announced)
    world.step("prepare", announced)
    held = world.vote().notes["held"]
    assert {note["epoch"] for note in held.values()} == {note["epoch"] for note in [*held.values()][:1]}
    world.finish(numbers)


def test_an_announcement_ends_with_its_epoch(world: World) -> None:
    numbers = world.stage()
    announced = world.step("announce")
    assert world.step("load", announced, "0") is True
    with new_epoch(world.store, world.pipeline, Worker("a person"), "test", world.lease_seconds):
        pass
    assert world.step("load", announced, "1") is False
    assert world.step("prepare", announced) == numbers
    assert world.vote().prepared > announced["attempt"]
    world.finish(numbers)


@pytest.mark.parametrize("when", ["before the vote", "after the vote"])
def test_a_transaction_that_expires_is_sent_again(world: World, when: str) -> None:
    numbers = world.stage()
    announced = world.step("announce")
    world.load(announced)
    if when == "before the vote":
        world.expire(1)
    world.step("prepare", announced)
    assert world.vote().prepared == announced["attempt"]
    if when == "after the vote":
        world.expire(1)
    world.finish(numbers, again=when == "after the vote")


@pytest.mark.parametrize("when", ["before the vote", "after the vote"])
def test_a_broker_that_restarts_keeps_filled_slots(world: World, kafka: Kafka, when: str) -> None:
    numbers = world.stage()
    announced = world.step("announce")
    world.load(announced)
    if when == "after the vote":
        world.step("prepare", announced)
    kafka.stop()
    kafka.start()
    if when == "before the vote":
        world.step("prepare", announced)
    world.finish(numbers)


@pytest.mark.chaos
@pytest.mark.parametrize("end", ["killed", "woken"])
@pytest.mark.parametrize(
    ("step", "stop"),
    [
        ("announce", "before the head"),
        ("announce", "after the head"),
        ("load", "before the token"),
        ("load", "after the token"),
        ("load", "before the note"),
        ("load", "after the note"),
        ("prepare", "before the note"),
        ("prepare", "vote"),
    ],
)
def test_the_next_try_finishes_a_task_stopped_anywhere(world: World, step: str, stop: str, end: str) -> None:
    """A woken one has slept beside its next try, and beside the next checkpoint."""
    numbers = stopped_anywhere(world, world.url, step, stop, end, branch="1", finish=world.finish)
    world.finish(numbers, again=end == "woken")


@pytest.mark.chaos
@pytest.mark.parametrize("stop", ["before the token", "before the note", "after the note"])
def test_a_load_that_sleeps_does_not_stop_its_next_try(world: World, stop: str) -> None:
    """It wakes up before the vote, when the other one has filled its slot. Its late note costs time only."""
    numbers = world.stage()
    announced = world.step("announce")
    with Step(world, world.url, "load", stop=stop, announced=announced, branch="1") as other:
        other.wait_until_stopped()
        world.load(announced)
        assert other.wake() == {"result": stop != "before the token"}
    world.step("prepare", announced)
    assert world.vote().prepared == announced["attempt"]
    world.finish(numbers)
