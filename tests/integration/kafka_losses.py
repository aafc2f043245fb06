"""A broker behind a proxy that loses requests and replies, and a delivery through such losses."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from airflow_ft.protocol.errors import SinkUnavailableError
from airflow_ft.sinks.kafka import KafkaSink
from airflow_ft.testing.relay import Fate
from tests.integration.kafka_proxy import API_NAMES, KafkaProxy
from tests.integration.kafka_world import World, expected_ids, read_ids
from tools.servers import Kafka, processes

Proxied = tuple[Kafka, KafkaProxy, str]
"""The broker, the proxy before it, and the address that clients are told."""


@contextmanager
def proxied_broker(folder: Path, kind: type[Kafka] = Kafka) -> Iterator[Proxied]:
    """A broker of this kind that tells its clients to come through the proxy."""
    port = processes.free_port()
    bootstrap = f"127.0.0.1:{port}"
    server = kind(folder, options={"advertised.listeners": f"PLAINTEXT://{bootstrap}"})
    with KafkaProxy(port, server.port) as proxy, server:
        server.create_topic("airflow_ft.tokens", 1)
        yield server, proxy, bootstrap


@contextmanager
def proxied_world(proxied: Proxied, folder: Path, strategy: str) -> Iterator[World]:
    """A pipeline into a topic of its own behind the proxy, which loses nothing any more afterwards."""
    server, proxy, bootstrap = proxied
    topic = f"t-{random.randrange(10**9)}"
    server.create_topic(topic, 2)
    yield World(folder, bootstrap, {"alerts": KafkaSink(topic=topic, strategy=strategy)})
    proxy.fate = lambda api: Fate.DELIVER


def check_delivery_through_losses(seed: int, world: World, proxied: Proxied) -> None:
    """One of five requests or replies is lost while five numbers are delivered: each row arrives exactly once."""
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
