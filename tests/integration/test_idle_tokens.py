"""Pipelines that rest for days: Kafka forgets tokens and transactional ids; no row is lost, and no run halts for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from airflow_ft.clients.kafka.client import KafkaClients, KafkaSettings
from airflow_ft.protocol import coordinator, steps
from airflow_ft.protocol.adoption import adopt
from airflow_ft.protocol.errors import TokenLostError
from airflow_ft.protocol.lease import Worker
from airflow_ft.protocol.model import CheckpointState, Fence
from airflow_ft.protocol.pipelines import HaltReason
from airflow_ft.protocol.resolution import Resolver
from airflow_ft.protocol.sweep import recover_all
from airflow_ft.sinks.kafka.spec import KafkaSink
from airflow_ft.sinks.kafka.transaction import ProducerIdentity
from airflow_ft.sinks.kafka.transaction_coordinator import TransactionCoordinator
from airflow_ft.sinks.mysql.spec import MySqlSink
from airflow_ft.store import open_store
from airflow_ft.store.decision_log import DecisionLog
from tests.integration.kafka_world import read
from tests.integration.real_world import RealWorld, expected, make_world
from tests.raising import raises
from tests.waiting import wait_for
from tools.servers import Database, Kafka

pytestmark = pytest.mark.server


@dataclass
class Slotted(RealWorld):
    """Kafka with two transactional ids, so that it has two tokens, beside a MySQL server that decides."""

    strategy: str = "transaction"
    timeout: timedelta | None = None

    @property
    def sinks(self) -> dict[str, Any]:
        kafka = KafkaSink(
            topic=self.topic,
            conn_id="cluster",
            key="name",
            strategy=self.strategy,
            slots=2,
            transaction_timeout=self.timeout,
        )
        return {"rows": MySqlSink(table="orders", conn_id="shop"), "copies": kafka}

    @property
    def groups(self) -> list[str]:
        return [f"airflow_ft.{self.pipeline}.cluster.{slot}" for slot in (0, 1)]

    def lose(self, *groups: str) -> None:
        """As offsets.retention.minutes would."""
        assert self.kafka is not None
        admin = self.kafka.admin()
        for future in admin.delete_consumer_groups(list(groups)).values():
            future.result(60)

    def lose_held(self) -> None:
        """As the brokers' time-out would."""
        clients = KafkaClients(KafkaSettings.from_connection(self.connections("cluster")))
        with closing(TransactionCoordinator(clients)) as held:
            for checkpoint in self.store.open_checkpoints(self.pipeline):
                for group, note in checkpoint.votes["cluster"].notes.get("held", {}).items():
                    held.end(group, ProducerIdentity(note["producer_id"], note["epoch"]), commit=False)

    def check_exactly_once(self, numbers: list[int]) -> None:
        assert self.kafka is not None
        assert self.ids() == expected(numbers)
        keys = sorted(str(message.key(), "utf-8") for message in read(self.kafka.bootstrap, self.topic))  # type: ignore[arg-type]
        assert keys == sorted(f"order {i}" for i in expected(numbers))
        assert all(self.store.checkpoint(self.pipeline, n).state is CheckpointState.COMPLETED for n in numbers)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[DecisionLog]:
    with closing(open_store(f"sqlite:///{tmp_path}/ft.db")) as store:
        yield store


@pytest.fixture(params=["transaction", "held"])
def world(
    store: DecisionLog,
    tmp_path: Path,
    mariadb_database: Database,
    kafka: Kafka,
    topic: str,
    request: pytest.FixtureRequest,
) -> Slotted:
    made = make_world(store, tmp_path / "wal", mariadb_database)
    return Slotted(store, made.root, mariadb_database, kafka, topic, strategy=request.param)


@pytest.mark.parametrize("gone", [(0,), (1,), (0, 1)], ids=["first", "second", "both"])
def test_tokens_that_vanish_one_after_the_other_stop_nothing(world: Slotted, gone: tuple[int, ...]) -> None:
    """Each is a group of its own, so a weekly run may find that only some of them have expired by now."""
    world.stage(1)
    world.deliver()
    world.lose(*(world.groups[slot] for slot in gone))
    world.stage(2)
    world.deliver()
    world.check_exactly_once([1, 2, 3])


def test_a_token_that_went_back_still_stops_the_pipeline(world: Slotted) -> None:
    """One slot stands at an older number than was delivered: nobody can tell what else the cluster has lost."""
    world.stage(2)
    world.deliver()
    world.lose(*world.groups)
    plan = world.store.checkpoint(world.pipeline, 1).plan
    assert plan is not None
    with closing(world.participants(plan.participants[1])) as sink:
        fence = Fence(world.pipeline, world.store.installation, 1, 0)
        sink.seed(fence, 1)
    world.lose(world.groups[1])
    world.stage(1)
    with pytest.raises(TokenLostError):
        world.deliver()
    assert world.store.pipeline(world.pipeline).halt_reason is HaltReason.TOKEN_LOST


def wait_prepared(world: Slotted, gone: tuple[int, ...] = (0, 1)) -> list[int]:
    """Number 1 is delivered, 2 and 3 are PREPARED, and everybody goes on holiday until tokens have vanished."""
    world.stage(1)
    world.deliver()
    numbers = world.stage(2)
    steps.recover_step(world.context())
    world.prepare()
    if world.strategy == "held":  # by then the brokers have long aborted it
        world.lose_held()
    world.lose(*(world.groups[slot] for slot in gone))
    return numbers


@pytest.mark.parametrize("gone", [(0,), (1,), (0, 1)], ids=["first", "second", "both"])
def test_votes_that_outlived_their_tokens_are_asked_for_again(
    world: Slotted, monkeypatch: pytest.MonkeyPatch, gone: tuple[int, ...]
) -> None:
    wait_prepared(world, gone)
    monkeypatch.setattr(coordinator, "VOTES_LAST", timedelta(0))
    world.deliver()
    world.check_exactly_once([1, 2, 3])


def test_an_old_vote_does_not_wait_for_what_is_held_open(world: Slotted, monkeypatch: pytest.MonkeyPatch) -> None:
    """The token that an open transaction is about to write has no stable value (found by the simulator)."""
    world.stage(1)
    world.deliver()
    [number] = world.stage(1)
    steps.recover_step(world.context())
    world.prepare()
    before = {name: vote.prepared for name, vote in world.store.checkpoint(world.pipeline, number).votes.items()}
    monkeypatch.setattr(coordinator, "VOTES_LAST", timedelta(0))
    world.deliver()
    world.check_exactly_once([1, number])
    votes = world.store.checkpoint(world.pipeline, number).votes
    assert {name: vote.prepared for name, vote in votes.items()} == before, "nobody was asked again"


def test_without_a_new_vote_only_one_sink_shows_the_rows(world: Slotted, monkeypatch: pytest.MonkeyPatch) -> None:
    wait_prepared(world)
    monkeypatch.setattr(coordinator, "VOTES_LAST", timedelta(days=999))
    with pytest.raises(TokenLostError):
        world.deliver()
    assert world.ids() == expected([1, 2])
    assert world.store.pipeline(world.pipeline).halt_reason is HaltReason.TOKEN_LOST


def test_no_row_goes_to_another_cluster_before_an_adoption(
    own_server: Any, store: DecisionLog, tmp_path: Path, mariadb_database: Database, kafka: Kafka, topic: str
) -> None:
    made = make_world(store, tmp_path / "wal", mariadb_database)
    world = Slotted(store, made.root, mariadb_database, kafka, topic)
    world.stage(1)
    world.deliver()
    world.kafka = other = own_server(Kafka)
    other.create_topic(topic, 1)
    for _ in range(2):
        world.stage(1)
        with raises(TokenLostError, "cluster_changed", participant="cluster", number=1):
            world.deliver()
        assert read(other.bootstrap, topic) == []
        store.resume(world.pipeline, "ada")
    world.kafka = kafka
    world.deliver()
    world.check_exactly_once([1, 2, 3])
    world.kafka = other
    world.stage(1)
    with pytest.raises(TokenLostError):
        world.deliver()
    adopt(store, world.pipeline, world.participants, "ada")
    world.deliver()
    assert len(read(other.bootstrap, topic)) == len(expected([4]))


def test_a_decided_row_goes_to_no_other_cluster(
    own_server: Any, store: DecisionLog, tmp_path: Path, mariadb_database: Database, kafka: Kafka, topic: str
) -> None:
    made = make_world(store, tmp_path / "wal", mariadb_database)
    world = Slotted(store, made.root, mariadb_database, kafka, topic)
    other = own_server(Kafka)
    other.create_topic(topic, 1)
    for number in (1, 2):
        world.kafka = kafka
        world.stage(1)
        world.prepare()
        world.commit("shop")
        world.kafka = other
        with raises(TokenLostError, "cluster_changed", participant="cluster", checkpoint=number):
            world.commit("cluster")
        assert read(other.bootstrap, topic) == []
        if number == 1:
            store.resume(world.pipeline, "ada")
            world.kafka = kafka
            world.deliver()
            world.check_exactly_once([1])
    resolver = Resolver(store, world.pipeline, world.participants, "ada", Worker("", 1))
    assert resolver.redeliver(2).state is CheckpointState.COMPLETED, "the other cluster is there for good"
    assert len(read(other.bootstrap, topic)) == len(expected([2]))


@pytest.mark.release
@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_broker_that_forgets_tokens_and_transactional_ids(
    own_server: Any, store: DecisionLog, tmp_path: Path, mariadb_database: Database
) -> None:
    """For real, with the shortest times that it knows; the sweep finishes what is in doubt, and renews nothing."""
    kafka = own_server(
        Kafka,
        **{
            "offsets.retention.minutes": 1,
            "offsets.retention.check.interval.ms": 500,
            "transactional.id.expiration.ms": 2_000,
            "transaction.remove.expired.transaction.cleanup.interval.ms": 500,
            "transaction.abort.timed.out.transaction.cleanup.interval.ms": 500,
        },
    )
    kafka.create_topic("copies", 1)
    made = make_world(store, tmp_path / "wal", mariadb_database)
    second = timedelta(seconds=1)
    world = Slotted(store, made.root, mariadb_database, kafka, "copies", strategy="held", timeout=second)
    world.stage(1)
    world.deliver()
    world.stage(1)
    world.prepare()
    steps.commit_step(world.context(), "shop")  # decided and held; nobody ends it in time
    clients = KafkaClients(KafkaSettings.from_connection(world.connections("cluster")))
    with closing(TransactionCoordinator(clients)) as ids:

        def forgotten() -> bool:
            return all(ids.describe(group) is None for group in world.groups)

        wait_for(forgotten, 60, "the transactional ids expire, and what was held has timed out")
        swept = recover_all(
            store, world.participants, Worker("recovery", 1), orphan_age=timedelta(0), lease_seconds=0.1
        )
        assert [each.recovery.completed for each in swept] == [(2,)], swept
        world.check_exactly_once([1, 2])
        wait_for(forgotten, 60, "the transactional ids expire again")
    plan = store.checkpoint(world.pipeline, 2).plan
    assert plan is not None
    with closing(world.participants(plan.participants[1])) as sink:
        wait_for(lambda: sink.head(world.pipeline) is None, 200, "the tokens expire")
    swept = recover_all(store, world.participants, Worker("recovery", 1), orphan_age=timedelta(0), lease_seconds=0.1)
    assert [each.error for each in swept] == [None]
    world.stage(1)
    world.deliver()
    world.check_exactly_once([1, 2, 3])
