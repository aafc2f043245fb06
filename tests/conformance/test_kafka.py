"""Kafka does what the protocol demands, by every strategy."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from airflow_ft.core.ports import ConnectionInfo
from airflow_ft.sinks.kafka.spec import KafkaSink
from airflow_ft.testing import ParticipantConformance, Target
from tests.conftest import TopicFactory
from tests.integration.kafka_world import read, value
from tools.servers import Kafka

pytestmark = [pytest.mark.server, pytest.mark.rotating]


class Topic(Target):
    """A topic."""

    def __init__(self, kafka: Kafka, topic: str, strategy: str) -> None:
        self.bootstrap, self.topic = kafka.bootstrap, topic
        self.sink = KafkaSink(topic=topic, conn_id="broker", strategy=strategy)
        extra = {"bootstrap.servers": kafka.bootstrap, "airflow_ft_timeout": 60}
        self.connection = ConnectionInfo("broker", "kafka", extra=extra)

    def ids(self) -> list[int]:
        return sorted(value(each)["id"] for each in read(self.bootstrap, self.topic))


@pytest.mark.parametrize("strategy", ["transaction", "held"])
class TestKafka(ParticipantConformance):
    @pytest.fixture
    def target(self, kafka: Kafka, topic_factory: TopicFactory, strategy: str) -> Iterator[Target]:
        yield Topic(kafka, topic_factory(2), strategy)
