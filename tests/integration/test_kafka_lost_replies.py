"""Requests and replies that are lost on the way: in doubt is ended by reading the token, never by guessing (I6)."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_ft.core.errors import SinkUnavailableError
from airflow_ft.sinks.kafka import KafkaSink
from tests.integration.kafka_proxy import API_NAMES, END_TXN, Fate, KafkaProxy
from tests.integration.kafka_world import World, expected_ids, read_ids
from tools.servers import Kafka, processes


@pytest.fixture(scope="module")
def proxied(servers_folder: Path) -> Iterator[tuple[Kafka, KafkaProxy, str]]:
    """A broker that tells its clients to come through the proxy."""
    port = processes.free_port()
    bootstrap = f"127.0.0.1:{port}"
    server = Kafka(servers_folder / "kafka-proxied", options={"advertised.listeners": f"PLAINTEXT://{bootstrap}"})
    with KafkaProxy(port, server.port) as proxy, server:
        server.create_topic("airflow_ft.tokens", 1)
        yield server, proxy, bootstrap


@pytest.fixture
def world(proxied: tuple[Kafka, KafkaProxy, str], tmp_path: Path) -> Iterator[World]:
    server, proxy, bootstrap = proxied
    topic = f"t-{random.randrange(10**9)}"
    server.create_topic(topic, 2)
    yield World(tmp_path, bootstrap, {"alerts": KafkaSink(topic=topic)})
    proxy.fate = lambda api: Fate.DELIVER


@pytest.mark.parametrize("fate", [Fate.LOSE_REQUEST, Fate.LOSE_REPLY])
def test_a_commit_whose_answer_never_comes_is_settled_by_its_token(
    fate: Fate, world: World, proxied: tuple[Kafka, KafkaProxy, str]
) -> None:
    _, proxy, bootstrap = proxied
    plan = world.checkpoint(1, 1000)
    world.prepare(plan)
    world.extra["airflow_ft_timeout"] = 5
    proxy.fate = lambda api: fate if api == END_TXN else Fate.DELIVER
    with pytest.raises(SinkUnavailableError, match="committing the transaction"):
        world.commit(plan)
    assert ("EndTxn", fate) in proxy.lost
    proxy.fate = lambda api: Fate.DELIVER
    world.extra["airflow_ft_timeout"] = 60
    assert world.commit(plan).counts == {"alerts": 1000}
    assert read_ids(bootstrap, world.sinks["alerts"].topic) == expected_ids((1, 1000))


@pytest.mark.chaos
@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_whatever_is_lost_on_the_way_rows_arrive_exactly_once(
    seed: int, world: World, proxied: tuple[Kafka, KafkaProxy, str]
) -> None:
    _, proxy, bootstrap = proxied
    chance = random.Random(seed)
    before = len(proxy.lost)

    def fate(api: int) -> Fate:
        if api not in API_NAMES or chance.random() > 0.2:
            return Fate.DELIVER
        return chance.choice([Fate.LOSE_REQUEST, Fate.LOSE_REPLY])

    numbers = range(1, 6)
    world.extra["airflow_ft_timeout"] = 10
    for number in numbers:
        plan = world.checkpoint(number, 3000)
        for step in (world.prepare, world.commit):
            proxy.fate = fate
            for _ in range(20):
                try:
                    step(plan)
                    break
                except SinkUnavailableError:
                    continue  # as an Airflow retry would
            else:
                pytest.fail("twenty tries were not enough")
            proxy.fate = lambda api: Fate.DELIVER
    assert len(proxy.lost) > before, "something was lost"
    assert read_ids(bootstrap, world.sinks["alerts"].topic) == expected_ids(*((n, 3000) for n in numbers))
