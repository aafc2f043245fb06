"""A release that meets plans or tokens of a later one refuses them, and changes nothing."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from airflow_ft.protocol.errors import NewerReleaseError
from airflow_ft.protocol.model import PLAN_FORMAT, CheckpointState
from airflow_ft.sinks.kafka.token import FORMAT
from airflow_ft.store import open_store
from tests.integration.kafka_world import read, value
from tests.integration.real_world import RealWorld, expected, make_world
from tests.raising import raises
from tools.servers import Database, Kafka

pytestmark = [pytest.mark.server, pytest.mark.slow]
Change = Callable[[dict[str, Any]], dict[str, Any]]


@pytest.fixture
def world(tmp_path: Path, mariadb_database: Database, kafka: Kafka, topic: str) -> RealWorld:
    """Its first checkpoint is delivered, and the second one PREPARED."""
    made = make_world(open_store(f"sqlite:///{tmp_path / 'ft.db'}"), tmp_path / "wal", mariadb_database, kafka, topic)
    made.stage()
    made.deliver()
    made.stage()
    made.prepare()
    assert made.store.checkpoint(made.pipeline, 2).state is CheckpointState.PREPARED
    return made


def change_plans(world: RealWorld, change: Change) -> None:
    """Change the plans in the decision log, and open it again."""
    world.store.close()
    with closing(sqlite3.connect(world.store.url.removeprefix("sqlite:///"))) as db:
        for number, plan in db.execute("SELECT number, plan FROM checkpoint WHERE plan IS NOT NULL").fetchall():
            db.execute(
                "UPDATE checkpoint SET plan = ? WHERE number = ?", (json.dumps(change(json.loads(plan))), number)
            )
        db.commit()
    world.store = open_store(world.store.url)


def change_token(world: RealWorld, change: Change) -> None:
    """As it stands in the consumer group."""
    assert world.kafka is not None
    group = f"airflow_ft.{world.pipeline}.cluster.0"
    consumer = Consumer({"bootstrap.servers": world.kafka.bootstrap, "group.id": group, "log_level": 0})
    [token] = consumer.committed([TopicPartition("airflow_ft.tokens", 0)], 30)
    changed = json.dumps(change(json.loads(token.metadata)))
    consumer.commit(offsets=[TopicPartition(token.topic, 0, token.offset, changed)], asynchronous=False)
    consumer.close()


def of_format(number: int | None) -> Change:
    return lambda found: {name: each for name, each in {**found, "format": number}.items() if each is not None}


def copies(world: RealWorld) -> list[int]:
    assert world.kafka is not None
    return sorted(value(record)["id"] for record in read(world.kafka.bootstrap, world.topic))


def test_a_plan_of_a_later_release_is_refused_without_changes(world: RealWorld) -> None:
    change_plans(world, of_format(PLAN_FORMAT + 1))
    for name in world.delivery.names:
        with raises(NewerReleaseError, "newer_release") as refused:
            world.commit(name)
        assert "checkpoint 2" in refused.error.headline and f"format {PLAN_FORMAT + 1}" in refused.error.headline
    change_plans(world, of_format(PLAN_FORMAT))
    assert world.ids() == copies(world) == expected([1])
    for name in world.delivery.names:
        world.commit(name)
    assert world.ids() == copies(world) == expected([1, 2])


def test_a_token_of_a_later_release_is_refused_without_sending(world: RealWorld) -> None:
    change_token(world, of_format(FORMAT + 1))
    first, second = world.delivery.names
    world.commit(first)  # carries the commit point: it is decided
    with raises(NewerReleaseError, "newer_release", pipeline=world.pipeline, participant="cluster") as caught:
        world.commit(second)
    assert f"format {FORMAT + 1}" in caught.error.headline
    assert (world.ids(), copies(world)) == (expected([1, 2]), expected([1]))
    change_token(world, of_format(FORMAT))
    world.commit(second)
    assert world.ids() == copies(world) == expected([1, 2])
