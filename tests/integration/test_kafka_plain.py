"""Kafka without transactions: what is acknowledged is there, to the last record; what is interrupted comes again."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_ft.clients.kafka.client import KafkaClients, KafkaSettings
from airflow_ft.clients.kafka.topics import cluster_id, longest_transaction
from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.doctor import Verdict
from airflow_ft.protocol.errors import AirflowFtError, SinkUnavailableError
from airflow_ft.protocol.model import CheckpointingMode, Plan
from airflow_ft.protocol.verify import Delivered
from airflow_ft.sinks.kafka import KafkaSink, batches
from airflow_ft.sinks.kafka.doctor import examine
from airflow_ft.sinks.kafka.plain import PlainParticipant
from airflow_ft.sinks.kafka.records import RecordColumns
from airflow_ft.sinks.kafka.sending import AckCounter, ProducerLostError, Sender
from airflow_ft.sinks.kafka.verify import verify
from airflow_ft.testing.relay import Fate
from airflow_ft.wal import open_wal
from tests.conftest import TopicFactory
from tests.integration.kafka_losses import Proxied, proxied_broker, proxied_world
from tests.integration.kafka_world import World, expected_ids, read, read_ids
from tools.servers import Kafka

PRODUCE = 0
AT_LEAST = CheckpointingMode.AT_LEAST_ONCE


@pytest.fixture
def topic(topic_factory: TopicFactory) -> str:
    return topic_factory(partitions=3)


@pytest.fixture
def world(tmp_path: Path, kafka: Kafka, topic: str) -> World:
    return World(tmp_path, kafka.bootstrap, {"alerts": KafkaSink(topic=topic)}, mode=AT_LEAST)


@contextmanager
def opened(world: World, plan: Plan) -> Iterator[PlainParticipant]:
    participant = world.open(plan)
    assert isinstance(participant, PlainParticipant)
    try:
        yield participant
    finally:
        participant.close()


def test_one_producer_delivers_checkpoint_after_checkpoint(world: World, kafka: Kafka, topic: str) -> None:
    plans = [world.checkpoint(number, rows) for number, rows in ((1, 1000), (2, 0), (3, 5))]
    with opened(world, plans[0]) as participant:
        for plan in plans:
            participant.prepare(plan, world.fence())
            proof = participant.commit(plan, world.fence())
            assert participant.proof(plan) == proof
            assert proof.counts == {"alerts": plan.segments[0].total_rows}
            producer = participant._sender
        assert participant._sender is producer
        assert participant.proof(plans[0]) is None, "of former ones it remembers nothing"
    assert read_ids(kafka.bootstrap, topic) == expected_ids((1, 1000), (3, 5))


def test_another_process_knows_of_nothing_and_sends_all_again(world: World, kafka: Kafka, topic: str) -> None:
    plan = world.checkpoint(1, 100)
    for _ in range(2):
        with opened(world, plan) as participant:
            assert participant.proof(plan) is None and participant.head(world.pipeline) is None
            participant.commit(plan, world.fence())
    assert read_ids(kafka.bootstrap, topic) == sorted(2 * expected_ids((1, 100)))


def test_verification_finds_what_is_there_and_what_came_twice(world: World, topic: str) -> None:
    plan = world.checkpoint(1, 100)
    with opened(world, plan) as participant:
        participant.commit(plan, world.fence())
        proof = participant.commit(plan, world.fence())
    [report] = verify([Delivered(plan, proof, None)], plan.participants[0], world.connection, open_wal())
    assert (report.expected, report.missing, report.repeated) == (100, 0, 100)


def test_the_id_of_the_cluster_creates_no_token_topic(own_server: Callable[..., Any]) -> None:
    server: Kafka = own_server(Kafka, **{"auto.create.topics.enable": "true"})
    connection = ConnectionInfo("broker", "kafka", extra={"bootstrap.servers": server.bootstrap})
    clients = KafkaClients(KafkaSettings.from_connection(connection))
    assert cluster_id(clients)
    for later in ("later", "last"):
        server.create_topic(later, 1)  # the controller makes one topic after the other
    assert clients.settings.token_topic not in clients.admin().list_topics(timeout=10).topics


@pytest.mark.parametrize("mode", list(CheckpointingMode))
def test_the_doctor_creates_no_topic(own_server: Callable[..., Any], tmp_path: Path, mode: CheckpointingMode) -> None:
    server: Kafka = own_server(Kafka, **{"auto.create.topics.enable": "true"})
    world = World(tmp_path, server.bootstrap, {"alerts": KafkaSink(topic="alerts")}, mode=mode)
    examine(world.pipeline, world.plan(1).participants[0], world.connection, [])
    longest_transaction(KafkaClients(KafkaSettings.from_connection(world.connection)))
    server.create_topic("later", 1)  # the controller makes one topic after the other
    found = {name for name in server.admin().list_topics(timeout=10).topics if not name.startswith("__")}
    assert found == {"later"}


def test_new_partitions_are_used_without_a_restart(
    tmp_path: Path, kafka: Kafka, topic_factory: TopicFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = topic_factory(1)
    world = World(tmp_path, kafka.bootstrap, {"alerts": KafkaSink(topic=topic, key="k", value="v")}, mode=AT_LEAST)
    keys = pa.array([b"%d" % number for number in range(200)], pa.binary())
    rows = pa.table({"k": keys, "v": keys})
    first, second = (world.plan(number, world.segment(number, {"alerts": rows})) for number in (1, 2))
    with opened(world, first) as participant:
        assert list(participant.commit(first, world.fence()).detail["partitions"][topic]) == ["0"]
        kafka.add_partitions(topic, 4)
        monkeypatch.setattr(batches, "_LOOKED_SECONDS", 0)
        deadline = time.monotonic() + 30
        while len(participant.commit(second, world.fence()).detail["partitions"][topic]) < 4:
            assert time.monotonic() < deadline


def test_a_record_refused_amid_others_never_counts_as_delivered(kafka: Kafka, topic_factory: TopicFactory) -> None:
    """Only the last record of a partition has a report: after a gap nothing may be delivered any more."""
    topic = topic_factory(1, {"max.message.bytes": "5000"})
    connection = ConnectionInfo("broker", "kafka", extra={"bootstrap.servers": kafka.bootstrap})
    clients = KafkaClients(KafkaSettings.from_connection(connection))
    values: list[bytes | None] = [b"%08d" % number for number in range(20_000)]
    values[500] = random.Random(0).randbytes(20_000)
    limits = {"message.max.bytes": 1_000_000, "batch.size": 2_000, "linger.ms": 0}
    sender, counter = Sender(clients, clients.plain_producer(limits)), AckCounter(topic)
    assert sender._batches is not None
    with pytest.raises(ProducerLostError):
        for begin in range(0, len(values), 1000):
            part = pa.array(values[begin : begin + 1000], pa.large_binary())
            sender.send(topic, RecordColumns(part, None, None, None, None), counter)
            time.sleep(0.01)  # the refusal is heard while others are under way
        sender.flush([counter])
    sender.discard()
    found = [message.value() for message in read(kafka.bootstrap, topic)]
    assert found == values[: len(found)] and len(found) <= 500, "nothing behind the gap"


def test_a_row_too_large_for_the_topic_names_the_setting(
    tmp_path: Path, kafka: Kafka, topic_factory: TopicFactory
) -> None:
    topic = topic_factory(1, {"max.message.bytes": "5000"})
    world = World(tmp_path, kafka.bootstrap, {"alerts": KafkaSink(topic=topic, value="v")}, mode=AT_LEAST)
    rows = pa.table({"v": pa.array([b"a", random.Random(0).randbytes(20_000), b"b"], pa.binary())})
    plan = world.plan(1, world.segment(1, {"alerts": rows}))
    with opened(world, plan) as participant, pytest.raises(AirflowFtError) as error:
        participant.prepare(plan, world.fence())
        participant.commit(plan, world.fence())
    assert "max.message.bytes" in f"{error.value}"
    assert not read(kafka.bootstrap, topic)


@pytest.fixture(scope="module")
def proxied(servers_folder: Path) -> Iterator[Proxied]:
    with proxied_broker(servers_folder / "kafka-proxied-plain") as found:
        yield found


@pytest.mark.parametrize("fate", [Fate.LOSE_REQUEST, Fate.LOSE_REPLY])
def test_a_silent_broker_is_reported_and_gets_its_rows_later(fate: Fate, proxied: Proxied, tmp_path: Path) -> None:
    with proxied_world(proxied, tmp_path, "transaction") as world:
        _, proxy, bootstrap = proxied
        # A broker that is busy before or after that is not one that does not answer.
        world.mode, world.extra["airflow_ft_timeout"] = AT_LEAST, 10
        first, second = world.checkpoint(1, 100), world.checkpoint(2, 100)
        with opened(world, first) as participant:
            participant.commit(first, world.fence())
            proxy.fate = lambda api: fate if api == PRODUCE else Fate.DELIVER
            with pytest.raises(SinkUnavailableError) as caught:
                participant.commit(second, world.fence())
            assert "delivering without a transaction" in caught.value.headline
            assert participant.proof(second) is None
            proxy.fate = lambda api: Fate.DELIVER
            participant.commit(second, world.fence())
        found = read_ids(bootstrap, world.sinks["alerts"].topic)
    assert set(found) == set(expected_ids((1, 100), (2, 100)))
    assert len(found) == 200 or fate is Fate.LOSE_REPLY, "what was lost with its request is there once"


@pytest.mark.chaos
@pytest.mark.parametrize("seed", [1, 2])
def test_acknowledged_rows_survive_lost_requests_and_replies(seed: int, proxied: Proxied, tmp_path: Path) -> None:
    with proxied_world(proxied, tmp_path, "transaction") as world:
        _, proxy, bootstrap = proxied
        world.mode, world.extra["airflow_ft_timeout"] = AT_LEAST, 20
        dice = random.Random(seed)
        fates = [Fate.DELIVER] * 8 + [Fate.LOSE_REQUEST, Fate.LOSE_REPLY]
        proxy.fate = lambda api: dice.choice(fates) if api == PRODUCE else Fate.DELIVER
        plans = [world.checkpoint(number, 5_000) for number in range(1, 6)]
        with opened(world, plans[0]) as participant:
            for plan in plans:
                while True:
                    with suppress(SinkUnavailableError):
                        participant.commit(plan, world.fence())
                        break
        assert proxy.lost
        proxy.fate = lambda api: Fate.DELIVER
        found = read_ids(bootstrap, world.sinks["alerts"].topic)
    assert set(found) == set(expected_ids(*((number, 5_000) for number in range(1, 6))))


def test_the_examination_asks_for_no_tokens(world: World, topic: str) -> None:
    plan = world.checkpoint(1, 1)
    checks = examine(world.pipeline, plan.participants[0], world.connection, [])
    assert {"connect", f"topic {topic}"} <= {check.name for check in checks}
    assert not {"token topic", "permissions", "transaction time-out"} & {check.name for check in checks}
    assert not any(check.verdict is Verdict.PROBLEM for check in checks)
