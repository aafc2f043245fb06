"""What is in doubt on real servers, as their own markers, tokens and heads tell it; and a person's acts there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from airflow_ft.protocol.doubt import Doubt, Finding, doubts
from airflow_ft.protocol.errors import QuarantinedError, TokenLostError, UnfitTargetError
from airflow_ft.protocol.lease import Worker
from airflow_ft.protocol.model import AfterAbort, CheckpointState
from airflow_ft.protocol.pipelines import HaltReason
from airflow_ft.protocol.resolution import Resolver
from airflow_ft.store import open_store
from airflow_ft.store.decision_log import DecisionLog
from tests.integration.kafka_world import read, value
from tests.integration.real_world import RealWorld, expected, make_world
from tests.raising import raises
from tools.servers import Database, Kafka
from tools.servers.processes import free_port

S = CheckpointState


@pytest.fixture
def store(tmp_path: Path) -> Iterator[DecisionLog]:
    with closing(open_store(f"sqlite:///{tmp_path}/ft.db")) as store:
        yield store


@pytest.fixture
def world(store: DecisionLog, tmp_path: Path, any_mysql_database: Database, kafka: Kafka, topic: str) -> RealWorld:
    return make_world(store, tmp_path / "wal", any_mysql_database, kafka, topic)


def found(world: RealWorld) -> dict[tuple[int, str], Doubt]:
    listed = doubts(world.store, [world.pipeline], world.participants)
    return {(doubt.number, doubt.participant): doubt for doubt in listed}


def resolver(world: RealWorld) -> Resolver:
    return Resolver(world.store, world.pipeline, world.participants, "a test by ada", Worker(), 0.1)


def records(world: RealWorld) -> list[int]:
    assert world.kafka is not None
    return sorted(value(message)["id"] for message in read(world.kafka.bootstrap, world.topic))


def test_each_sink_is_told_by_its_own_memory(world: RealWorld) -> None:
    world.stage(1)
    world.deliver()
    world.stage(2)
    world.prepare()
    world.commit("shop")
    listed = found(world)
    assert {key: doubt.evidence.finding for key, doubt in listed.items()} == {
        (2, "shop"): Finding.DELIVERED,
        (2, "cluster"): Finding.ABSENT,
        (3, "shop"): Finding.DELIVERED,
        (3, "cluster"): Finding.WAITING,
    }
    assert "1 (epoch" in listed[2, "cluster"].evidence.text
    assert world.ids() == expected([1, 2, 3])


def test_an_unrecorded_commit_is_read_from_marker_and_token(world: RealWorld) -> None:
    """The sinks have committed, and the process died before it told the decision log."""
    world.stage(1)
    world.prepare()
    plan = world.store.checkpoint(world.pipeline, 1).plan
    assert plan is not None
    from airflow_ft.protocol.model import Fence

    epoch = world.store.pipeline(world.pipeline).epoch
    for name in ("shop", "cluster"):
        attempt = world.store.begin_attempt(world.pipeline, epoch, 1, name)
        with closing(world.participants(plan.participant(name))) as sink:
            sink.commit(plan, Fence(world.pipeline, world.store.installation, epoch, attempt))
    listed = found(world)
    assert listed[1, "shop"].state == "PREPARED"
    assert listed[1, "shop"].evidence.text == f"marker: committed by epoch {epoch} (20 rows into rows)"
    assert listed[1, "cluster"].evidence.text == f"marker: committed by epoch {epoch} (20 rows into copies)"
    assert resolver(world).commit(1).state is S.COMPLETED
    assert world.ids() == records(world) == expected([1])


def test_tombstones_and_unreachable_sinks(world: RealWorld) -> None:
    world.stage(1)
    world.prepare()
    world.overrides = {"shop": {"port": free_port()}}
    dead = found(world)[1, "shop"]
    assert dead.evidence.finding is Finding.UNKNOWN
    assert "the sink cannot be read" in dead.evidence.text
    world.overrides = {}
    assert resolver(world).abort(1, AfterAbort.CARRIED).state is S.ABORTED
    assert found(world) == {}
    world.deliver()
    assert world.ids() == records(world) == expected([1])


def test_rows_wait_for_a_table_that_was_altered_after_the_vote(world: RealWorld) -> None:
    world.stage(1)
    world.prepare()
    world.database.sql("ALTER TABLE orders MODIFY name CHAR(4)")
    for action in (lambda: world.commit("shop"), world.deliver):
        with raises(UnfitTargetError, "value_unfit", changed=True):
            action()
        assert world.store.checkpoint(world.pipeline, 1).state is S.PREPARED
        assert world.ids() == records(world) == []
    world.database.sql("ALTER TABLE orders MODIFY name VARCHAR(100)")
    world.deliver()
    assert world.store.checkpoint(world.pipeline, 1).state is S.COMPLETED
    world.stage(1)
    world.deliver()
    assert world.ids() == records(world) == expected([1, 2])


def test_quarantine_stops_the_pipeline_until_a_person_decides(world: RealWorld) -> None:
    world.stage(2)
    world.prepare()
    world.commit("shop")
    resolver(world).quarantine(1)
    with pytest.raises(QuarantinedError):
        world.deliver()
    assert records(world) == []
    assert found(world)[1, "cluster"].state == "QUARANTINED"
    assert resolver(world).commit(1).state is S.COMPLETED
    world.deliver()
    assert world.ids() == records(world) == expected([1, 2])


def test_a_person_redelivers_a_checkpoint_whose_token_is_lost(world: RealWorld) -> None:
    """Group offsets can expire, or be deleted; then only a person can say whether the records are there."""
    world.stage(1)
    world.deliver()
    world.stage(1)
    world.prepare()
    world.commit("shop")
    from confluent_kafka.admin import AdminClient

    assert world.kafka is not None
    admin = AdminClient({"bootstrap.servers": world.kafka.bootstrap})
    group = f"airflow_ft.{world.pipeline}.cluster.0"
    admin.delete_consumer_groups([group])[group].result(30)
    assert found(world)[2, "cluster"].evidence.finding is Finding.CONTRADICTION
    with pytest.raises(TokenLostError):
        world.commit("cluster")
    assert world.store.pipeline(world.pipeline).halt_reason is HaltReason.TOKEN_LOST
    assert resolver(world).redeliver(2).state is S.COMPLETED
    world.deliver()
    assert world.ids() == records(world) == expected([1, 2])
