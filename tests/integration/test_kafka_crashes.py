"""Processes that are killed, stopped or come late, and brokers that vanish: exactly once all the same (I2, I5)."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_ft.protocol.errors import FencedError, SinkUnavailableError
from airflow_ft.protocol.votes import Outcome
from airflow_ft.sinks.kafka import KafkaSink
from tests.integration.kafka_children import Children, await_stopped, await_working, children, kill, outcome, wake
from tests.integration.kafka_world import World, expected_ids, read, read_ids
from tests.raising import raises
from tools.servers import Kafka

pytestmark = pytest.mark.sampled


@pytest.fixture
def world(kafka: Kafka, topic: str, tmp_path: Path) -> World:
    if not kafka.running:
        kafka.start()
    return World(tmp_path, kafka.bootstrap, {"alerts": KafkaSink(topic=topic)})


@pytest.fixture
def start() -> Iterator[Children]:
    with children() as started:
        yield started


def test_a_zombie_that_wakes_in_its_transaction_changes_nothing(
    world: World, kafka: Kafka, topic: str, start: Children
) -> None:
    plan = world.checkpoint(1, 50_000)
    world.prepare(plan)
    zombie = start(world, plan, world.fence(), stop_before_batch=40)
    await_stopped(zombie)
    world.epoch = 2
    world.commit(plan)
    world.deliver(2, 10)
    wanted = expected_ids((1, 50_000), (2, 10))
    assert read_ids(kafka.bootstrap, topic) == wanted
    wake(zombie)
    assert outcome(zombie) == "FencedError"
    assert read_ids(kafka.bootstrap, topic) == wanted
    uncommitted = len(read(kafka.bootstrap, topic, "read_uncommitted"))
    world.deliver(3, 1)
    assert read_ids(kafka.bootstrap, topic) == [*wanted, *expected_ids((3, 1))]
    assert uncommitted >= len(wanted), "the zombie's first rows are there, aborted"


def test_a_take_over_alone_shuts_out_a_stopped_transaction(
    world: World, kafka: Kafka, topic: str, start: Children
) -> None:
    plan = world.checkpoint(1, 50_000)
    world.prepare(plan)
    zombie = start(world, plan, world.fence(), stop_before_batch=40)
    await_stopped(zombie)
    world.epoch = 2
    participant = world.open(plan)
    assert participant.abort(plan, world.fence(), {"why": "test"}).outcome is Outcome.ABORTED
    wake(zombie)
    assert outcome(zombie) == "FencedError"
    assert read_ids(kafka.bootstrap, topic) == []
    assert participant.proof(plan) is None
    assert participant.commit(plan, world.fence()).counts == {"alerts": 50_000}
    participant.close()
    assert read_ids(kafka.bootstrap, topic) == expected_ids((1, 50_000))


def test_a_late_twin_of_the_same_epoch_is_fenced(world: World, kafka: Kafka, topic: str, start: Children) -> None:
    """An older attempt of the same epoch is treated like an older epoch."""
    plan = world.checkpoint(1, 20_000)
    world.prepare(plan)
    twin = start(world, plan, world.fence(), stop_before_batch=10)
    await_stopped(twin)
    world.commit(plan)
    wake(twin)
    assert outcome(twin) == "FencedError"
    assert read_ids(kafka.bootstrap, topic) == expected_ids((1, 20_000))


def test_two_processes_that_deliver_at_once_deliver_once(
    world: World, kafka: Kafka, topic: str, start: Children
) -> None:
    plan = world.checkpoint(1, 30_000)
    world.prepare(plan)
    both = [start(world, plan, world.fence()) for _ in range(2)]
    outcomes = sorted(outcome(process) for process in both)
    assert set(outcomes) <= {"committed", "FencedError"}
    assert world.commit(plan).counts == {"alerts": 30_000}
    assert read_ids(kafka.bootstrap, topic) == expected_ids((1, 30_000))


@pytest.mark.chaos
@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_a_delivery_killed_at_any_moment_arrives_exactly_once(
    seed: int, world: World, kafka: Kafka, topic: str, start: Children
) -> None:
    chance = random.Random(seed)
    wanted: list[tuple[int, int]] = []
    for number in range(1, 7):
        plan = world.checkpoint(number, 30_000)
        for step in ("prepare", "commit"):
            if step == "commit":
                world.prepare(plan)
            process = start(world, plan, world.fence(), step)
            await_working(process)
            time.sleep(chance.uniform(0, 0.06 if step == "prepare" else 0.5))  # the seeded moment, not a wait
            kill(process)
        assert world.commit(plan).counts == {"alerts": 30_000}
        wanted.append((number, 30_000))
    assert read_ids(kafka.bootstrap, topic) == expected_ids(*wanted)


@pytest.mark.release
@pytest.mark.chaos
@pytest.mark.slow
def test_a_broker_killed_mid_delivery_loses_and_doubles_nothing(own_server: Callable[..., Any], tmp_path: Path) -> None:
    server: Kafka = own_server(Kafka)
    server.create_topic("alerts", 4)
    world = World(tmp_path, server.bootstrap, {"alerts": KafkaSink(topic="alerts")})
    chance = random.Random(3)
    wanted: list[tuple[int, int]] = []
    for number in range(1, 4):
        plan = world.checkpoint(number, 40_000)
        world.prepare(plan)
        world.extra["airflow_ft_timeout"] = 8
        crash = threading.Timer(chance.uniform(0.05, 0.4), server.kill)
        crash.start()
        try:
            world.commit(plan)
        except SinkUnavailableError as error:
            assert error.participant == "kafka_default"
        crash.join()
        server.start()
        world.extra["airflow_ft_timeout"] = 60
        assert world.commit(plan).counts == {"alerts": 40_000}
        wanted.append((number, 40_000))
        assert read_ids(server.bootstrap, "alerts") == expected_ids(*wanted)


def test_a_server_that_is_down_is_reported_within_the_time_out(own_server: Callable[..., Any], tmp_path: Path) -> None:
    server: Kafka = own_server(Kafka)
    server.create_topic("alerts", 1)
    world = World(tmp_path, server.bootstrap, {"alerts": KafkaSink(topic="alerts")})
    plan = world.checkpoint(1, 10)
    world.prepare(plan)
    server.kill()
    world.extra["airflow_ft_timeout"] = 2
    for step in (world.prepare, world.commit):
        began = time.monotonic()
        with raises(SinkUnavailableError, "server_unreachable", participant="kafka_default"):
            step(plan)
        assert time.monotonic() - began < 50, "the default is 60"
    server.start()
    world.extra["airflow_ft_timeout"] = 60
    world.commit(plan)
    assert read_ids(server.bootstrap, "alerts") == expected_ids((1, 10))


def test_a_frozen_broker_is_given_up_and_delivered_to_later(own_server: Callable[..., Any], tmp_path: Path) -> None:
    server: Kafka = own_server(Kafka)
    server.create_topic("alerts", 2)
    world = World(tmp_path, server.bootstrap, {"alerts": KafkaSink(topic="alerts")})
    plan = world.checkpoint(1, 60_000)
    world.prepare(plan)
    world.extra["airflow_ft_timeout"] = 3
    freeze = threading.Timer(0.15, server.pause)
    freeze.start()
    began = time.monotonic()
    with pytest.raises(SinkUnavailableError):
        while True:  # until the freeze hits one of them
            world.commit(plan)
            plan = world.checkpoint(plan.number + 1, 60_000)
            world.prepare(plan)
    freeze.join()
    assert time.monotonic() - began < 55
    server.resume()
    world.extra["airflow_ft_timeout"] = 60
    world.prepare(plan)  # it may have been hit in either step, with its transaction open
    world.commit(plan)
    assert len(read_ids(server.bootstrap, "alerts")) == 60_000 * plan.number


def test_an_older_owner_does_not_disturb_a_newer_transaction(
    world: World, kafka: Kafka, topic: str, start: Children
) -> None:
    plan = world.checkpoint(1, 50_000)
    world.prepare(plan)
    old = world.fence(epoch=1)
    owner_world = world
    owner_world.epoch = 2
    world.prepare(plan)
    owner = start(world, plan, world.fence(), stop_before_batch=20)
    await_stopped(owner)
    participant = world.open(plan, airflow_ft_timeout=3)
    # The owner's transaction has not written its token yet: the head that stands there refuses the older one.
    with pytest.raises(FencedError):
        participant.commit(plan, old)
    with pytest.raises(FencedError):
        participant.prepare(plan, old)
    with pytest.raises(FencedError):
        participant.abort(plan, old, {})
    participant.close()
    wake(owner)
    assert outcome(owner) == "committed"
    assert read_ids(kafka.bootstrap, topic) == expected_ids((1, 50_000))
