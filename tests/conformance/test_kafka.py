"""Kafka does what the protocol demands, by every strategy."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from confluent_kafka import Producer

from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.sink_spec import SinkSpec
from airflow_ft.sinks.kafka.spec import KafkaSink
from airflow_ft.testing import Bag, ParticipantConformance, Target, Values
from airflow_ft.testing.relay import Fate
from airflow_ft.testing.tables import Row
from tests.conformance.values import AS_JSON, CLOCK, FINITE, NESTED, REFUSED_BY_JSON
from tests.integration.guarded_kafka import GuardedKafka
from tests.integration.kafka_losses import Proxied, proxied_broker
from tests.integration.kafka_proxy import API_NAMES
from tests.integration.kafka_world import read, value
from tools.servers import processes

pytestmark = [pytest.mark.server, pytest.mark.sampled]


LARGEST = 500_000
REFUSED = pa.table({"id": [1, 2, 3], "text": ["a", "b" * LARGEST, "c"]})
"""Whatever JSON cannot hold is refused before the decision, always; the largest record is the topic's to say."""


class Topic(Target):
    """A topic, behind a proxy."""

    def __init__(self, proxied: Proxied, topic: str, strategy: str) -> None:
        self.broker, self.proxy, self.bootstrap = proxied
        self.topic, self.refused, self.taken, broker = topic, REFUSED, (1, 3), self.broker
        limit = {"max.message.bytes": str(LARGEST)}
        broker.create_topic(topic, 1, limit)  # a copy behind the last delivered record of a partition is not looked at
        self.sink = KafkaSink(topic=topic, conn_id="broker", strategy=strategy)
        self.connection = self._reached(60)

    def _reached(self, seconds: float, bootstrap: str = "") -> ConnectionInfo:
        extra = {"bootstrap.servers": bootstrap or self.bootstrap, "airflow_ft_timeout": seconds}
        return ConnectionInfo("broker", "kafka", extra=extra)

    def ids(self) -> list[int]:
        return sorted(value(each)["id"] for each in read(self.bootstrap, self.topic))

    def plant(self, what: str, id: int) -> bool:
        if what != "double":
            return False  # records are neither changed nor deleted one by one
        [record] = [each for each in read(self.bootstrap, self.topic) if value(each)["id"] == id]
        producer = Producer({"bootstrap.servers": self.bootstrap})
        producer.produce(self.topic, record.value(), record.key())
        return producer.flush(60) == 0

    @contextmanager
    def losing(self, fate: Fate, skip: int) -> Iterator[tuple[ConnectionInfo, Callable[[], bool]]]:
        """Of requests that write."""
        asked = itertools.count()
        self.proxy.lost.clear()
        self.proxy.fate = lambda api: fate if api in API_NAMES and next(asked) == skip else Fate.DELIVER
        try:
            yield self._reached(10), lambda: bool(self.proxy.lost)
        finally:
            self.proxy.fate = lambda _: Fate.DELIVER

    def bag(self) -> Bag:
        topic = f"{self.topic}-bag"
        self.broker.create_topic(topic, 1)

        def rows() -> list[Row]:
            found = [value(each) for each in read(self.bootstrap, topic)]
            return [(each["id"], each["text"], each.get("note")) for each in found]

        return Bag(replace(self.sink, topic=topic), rows)

    def mistaken(self) -> dict[str, tuple[SinkSpec, ConnectionInfo]]:
        missing = replace(self.sink, topic="no-orders")
        assert isinstance(self.broker, GuardedKafka)
        who = {**self.broker.extra, "bootstrap.servers": self.broker.guarded, "airflow_ft_timeout": 5}
        wrong = ConnectionInfo("broker", "kafka", extra={**who, "sasl.password": "n0t-the-One"})
        return {
            "a wrong password": (self.sink, wrong),
            "nobody listens there": (self.sink, self._reached(5, f"127.0.0.1:{processes.free_port()}")),
            "no such topic": (missing, self.connection),
        }

    def values(self) -> Values:
        topic = f"{self.topic}-kinds"
        self.broker.create_topic(topic, 1)
        return Values(
            replace(self.sink, topic=topic),
            {**FINITE, **CLOCK, **NESTED, "unsigned": pa.array([0, 2**64 - 1], pa.uint64())},
            lambda: [value(each) for each in read(self.bootstrap, topic)],
            AS_JSON,
            REFUSED_BY_JSON,
        )


@pytest.fixture(scope="module")
def proxied(servers_folder: Path) -> Iterator[Proxied]:
    with proxied_broker(servers_folder / "kafka-conformance", GuardedKafka) as found:
        yield found


@pytest.mark.parametrize("strategy", ["transaction", "held"])
class TestKafka(ParticipantConformance):
    @pytest.fixture
    def target(self, proxied: Proxied, strategy: str) -> Iterator[Target]:
        yield Topic(proxied, f"t-{uuid.uuid4().hex[:8]}", strategy)
