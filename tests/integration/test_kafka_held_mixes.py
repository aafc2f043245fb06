"""Plans with held transactions through the real coordinator and a real store: dying at every call, and zombies.

Alone, beside a MySQL server whose own transaction decides, and twice. The rows of all worlds are counted at the end,
from outside, in one topic and one table without a key.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.coordinator import Coordinator
from airflow_ft.protocol.errors import AirflowFtError, TokenLostError, TransientError
from airflow_ft.protocol.lease import Worker, new_epoch
from airflow_ft.protocol.model import AfterAbort, CheckpointState, ParticipantPlan, RunKey, SparkPosition
from airflow_ft.protocol.pipelines import HaltReason
from airflow_ft.protocol.planning import plan_delivery
from airflow_ft.protocol.reasons import AbortReason
from airflow_ft.protocol.resolution import Resolver
from airflow_ft.protocol.sink_spec import SinkSpec
from airflow_ft.protocol.steps import Context, prepare_step
from airflow_ft.sinks import open_participant
from airflow_ft.sinks.kafka import KafkaSink
from airflow_ft.sinks.mysql.spec import MySqlSink
from airflow_ft.wal import open_wal
from airflow_ft.wal.writer import SegmentFolder, write_segment
from tests.conftest import TopicFactory
from tests.density import stride
from tests.integration.kafka_world import ids, read_ids
from tests.protocol.world import LEASE_SECONDS, PIPELINE, RUN, Crash, Fault, World, crash
from tests.through import Through
from tools.servers import Database, Kafka

pytestmark = [pytest.mark.sampled, pytest.mark.server, pytest.mark.chaos, pytest.mark.slow]

ROWS = 20
MIXES = {
    "held alone": ("log",),
    "mysql and held": ("db", "log"),
    "held twice": ("log", "other"),  # with a topic each, as two clusters have
}
NUMBERS = {"held alone": 2, "mysql and held": 1, "held twice": 1}
SERIAL = count(1)  # participants and ids of a world are its own: it has an installation of its own too


@dataclass
class RealWorld(World):
    """`sinks` by name, each into a connection of its own; `base` is the first id of its rows."""

    sinks: Mapping[str, SinkSpec] = field(default_factory=dict)
    connections: Mapping[str, ConnectionInfo] = field(default_factory=dict)
    base: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.delivery = plan_delivery(self.sinks)

    def context(self, try_number: int = 1, fault: Fault | None = None, run: RunKey = RUN) -> Context:
        def participants(plan: ParticipantPlan) -> Any:
            opened = open_participant(plan, self.connections.__getitem__, open_wal())
            return Through(opened, fault, plan.kind) if fault else opened

        store: Any = Through(self.store, fault, "store") if fault else self.store
        worker = Worker(f"{run}/step", try_number)
        return Context(store, PIPELINE, run, participants, worker, None, LEASE_SECONDS[run], lambda other: other != run)

    def stage(self, count: int, run: RunKey = RUN, try_number: int = 1) -> list[int]:
        self.store.register(PIPELINE)
        self.store.enter_turn(PIPELINE, run, None)
        numbers = []
        worker = Worker(f"{run}/step", try_number)
        with new_epoch(self.store, PIPELINE, worker, "stage", LEASE_SECONDS[run]) as (epoch, _):
            self.store.begin_stage(PIPELINE, epoch, run)
            for _ in range(count):
                number = self.store.trigger(PIPELINE, epoch, run)
                folder = SegmentFolder(str(self.folder / "wal"), PIPELINE, epoch, 1, number)
                segment = write_segment(folder, number, dict.fromkeys(self.sinks, ids(self.base + number, ROWS)))
                predecessor = self.store.pipeline(PIPELINE).last_published
                position = SparkPosition(f"file:///spark/{epoch}-1", number)
                self.store.publish(PIPELINE, epoch, number, predecessor, segment, position, {})
                numbers.append(number)
            self.store.end_stage(PIPELINE, epoch, run, None)
        return numbers

    def check_confirmed(self, numbers: list[int]) -> None:
        for number in numbers:
            assert self.store.checkpoint(PIPELINE, number).is_confirmed
        left = {c.state for c in self.store.checkpoints(PIPELINE)}
        assert not left & {CheckpointState.STAGED, CheckpointState.PREPARED, CheckpointState.COMMITTING}

    def finish(self, first_try: int = 2) -> None:
        """Retries as Airflow would, with a growing try number, until nothing fails."""
        for try_number in range(first_try, first_try + 5):
            try:
                self.steps(self.context(try_number))
                return
            except TransientError as error:
                last = error
        raise AssertionError(f"did not settle: {last}")


@dataclass
class Worlds:
    """Makes worlds that share the servers, and counts the rows of all of them."""

    folder: Path
    kafka: Kafka
    database: Database
    topics: Mapping[str, str]
    expected: list[int] = field(default_factory=list)

    def __call__(self, mix: str) -> RealWorld:
        serial = next(SERIAL)
        server = self.database.server
        sinks: dict[str, SinkSpec] = {}
        connections = {}
        for name in MIXES[mix]:
            conn_id = f"{name}_{serial}"
            if name == "db":
                sinks[name] = MySqlSink(table="orders", conn_id=conn_id)
                connections[conn_id] = ConnectionInfo(
                    conn_id, "mysql", server.host, server.port, server.user, server.password, self.database.name
                )
            else:
                sinks[name] = KafkaSink(topic=self.topics[name], conn_id=conn_id, strategy="held")
                connections[conn_id] = ConnectionInfo(
                    conn_id, "kafka", extra={"bootstrap.servers": self.kafka.bootstrap}
                )
        folder = self.folder / f"{serial}"
        folder.mkdir()
        return RealWorld(folder, sinks=sinks, connections=connections, base=10 * serial)

    def delivered(self, world: RealWorld, numbers: list[int]) -> None:
        """These numbers are to be found once in every sink of that world."""
        world.check_confirmed(numbers)
        self.expected += [(world.base + number) * 1_000_000 + row for number in numbers for row in range(ROWS)]

    def check(self, mix: str) -> None:
        for name in MIXES[mix]:
            assert self.found(name) == sorted(self.expected)

    def found(self, name: str) -> list[int]:
        """The ids that everybody can see in a sink, sorted."""
        if name == "db":
            return [int(row[0]) for row in self.database.sql("SELECT id FROM orders ORDER BY id")]
        return read_ids(self.kafka.bootstrap, self.topics[name])


@pytest.fixture
def worlds(tmp_path: Path, kafka: Kafka, mariadb_database: Database, topic_factory: TopicFactory) -> Worlds:
    mariadb_database.sql("CREATE TABLE orders (id BIGINT) ENGINE=InnoDB")
    return Worlds(tmp_path, kafka, mariadb_database, {name: topic_factory(2) for name in ("log", "other")})


# Dying after a call is dying before the next one.
def calls_of_a_quiet_run(worlds: Worlds, mix: str) -> int:
    world = worlds(mix)
    numbers = world.stage(NUMBERS[mix])
    fault = Fault(0, "before", crash)
    world.steps(world.context(fault=fault))
    worlds.delivered(world, numbers)
    return fault.calls


@pytest.mark.parametrize("mix", MIXES)
def test_a_death_at_any_call_is_made_good_by_the_next_try(mix: str, worlds: Worlds) -> None:
    for at in range(1, calls_of_a_quiet_run(worlds, mix) + 1, stride(6)):
        world = worlds(mix)
        numbers = world.stage(NUMBERS[mix])
        with pytest.raises(Crash):
            world.steps(world.context(fault=Fault(at, "after", crash)))
            raise Crash  # fewer calls than in the quiet run: nothing struck
        world.finish()
        worlds.delivered(world, numbers)
    worlds.check(mix)


@pytest.mark.parametrize("mix", ["held alone", "mysql and held"])
def test_a_zombie_that_wakes_after_its_successor_changes_nothing(mix: str, worlds: Worlds) -> None:
    for at in range(1, calls_of_a_quiet_run(worlds, mix) + 1, stride(8)):
        world = worlds(mix)
        numbers = world.stage(NUMBERS[mix])
        fault = Fault(at, "after", world.finish)
        try:
            world.steps(world.context(fault=fault))
        except AirflowFtError as error:
            assert isinstance(error, TransientError), f"{fault.struck}: {error!r}"
        world.finish(9)
        worlds.delivered(world, numbers)
    worlds.check(mix)


@pytest.mark.parametrize("mix", MIXES)
def test_what_was_prepared_is_aborted_and_carried(mix: str, worlds: Worlds) -> None:
    world = worlds(mix)
    numbers = world.stage(2)
    for name in world.delivery.names:
        prepare_step(world.context(), world.delivery, world.config, name)
    with new_epoch(world.store, PIPELINE, Worker(f"{RUN}/step", 2), "test") as (epoch, _):
        Coordinator(world.store, PIPELINE, epoch, world.context(2).participants).abort(
            numbers[0], AbortReason.USER, "asked for.", AfterAbort.CARRIED
        )
    assert all(worlds.found(name) == [] for name in MIXES[mix])
    assert not any(c.rollback_pending for c in world.store.checkpoints(PIPELINE))
    world.finish(3)
    assert world.store.checkpoint(PIPELINE, numbers[0]).delivered_by == numbers[1] + 1
    worlds.delivered(world, numbers)
    worlds.check(mix)


def test_a_first_checkpoint_with_a_lost_token_can_be_redelivered(worlds: Worlds) -> None:
    world = worlds("held alone")
    (number,) = world.stage(1)
    (name,) = world.delivery.names
    prepare_step(world.context(), world.delivery, world.config, name)

    def dies(plan: ParticipantPlan) -> Any:
        raise Crash

    with new_epoch(world.store, PIPELINE, Worker(f"{RUN}/step", 2), "test") as (epoch, _), pytest.raises(Crash):
        Coordinator(world.store, PIPELINE, epoch, dies).commit(number, name)
    assert world.store.checkpoint(PIPELINE, number).state is CheckpointState.COMMITTING
    group = f"airflow_ft.{PIPELINE}.{name}.0"
    intruder = Producer({"bootstrap.servers": worlds.kafka.bootstrap, "transactional.id": group, "log_level": 0})
    intruder.init_transactions(30)
    admin = worlds.kafka.admin()  # kept in a variable: its requests end with it
    admin.delete_consumer_groups([group])[group].result(30)
    with pytest.raises(TokenLostError):
        world.steps(world.context(3))
    assert world.store.pipeline(PIPELINE).halt_reason is HaltReason.TOKEN_LOST
    resolver = Resolver(world.store, PIPELINE, world.context(4).participants, "a test", Worker("", 1), 0.03)
    assert resolver.redeliver(number).state is CheckpointState.COMPLETED
    worlds.delivered(world, [number])
    worlds.check("held alone")
