"""What a Kafka user must be allowed: what is said to be enough is enough, and each lack is told before it hurts."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.doctor import Check, Verdict
from airflow_ft.protocol.errors import SinkAccessError
from airflow_ft.protocol.verify import Delivered
from airflow_ft.sinks.base.requirements import lacks
from airflow_ft.sinks.kafka import KafkaSink
from airflow_ft.sinks.kafka.doctor import examine
from airflow_ft.sinks.kafka.permissions import Grant, helpful, needed
from airflow_ft.sinks.kafka.requirements import required as required_of
from airflow_ft.sinks.kafka.verify import verify
from airflow_ft.sources import KafkaSource
from airflow_ft.sources.doctor import examine_source
from airflow_ft.wal import open_wal
from tests.integration.guarded_kafka import PASSWORD, GuardedKafka
from tests.integration.kafka_world import CONN_ID, World

pytestmark = pytest.mark.server

TOPIC, TOKENS = "alerts", "airflow_ft.tokens"


@pytest.fixture(scope="module")
def guarded(servers_folder: Path) -> Iterator[GuardedKafka]:
    server = GuardedKafka(servers_folder / "guarded-kafka")
    with server:
        server.create_topic(TOPIC, 1)
        yield server
    shutil.rmtree(server.folder, ignore_errors=True)


@pytest.fixture(params=["transaction", "held"])
def world(guarded: GuardedKafka, tmp_path: Path, request: pytest.FixtureRequest) -> World:
    return make_world(guarded, tmp_path, request.param)


def make_world(guarded: GuardedKafka, folder: Path, strategy: str, **changed: Any) -> World:
    sink = KafkaSink(topic=TOPIC, conn_id=CONN_ID, strategy=strategy, slots=2)
    token_topic = f"tokens-{uuid.uuid4().hex[:8]}"
    extra = {**guarded.extra, "airflow_ft_token_topic": token_topic, **changed}
    return World(folder, guarded.guarded, {"alerts": sink}, extra=extra)


def grants(world: World, *, create: bool = True) -> list[Grant]:
    token_topic = world.extra["airflow_ft_token_topic"]
    extras = [grant for grant in helpful(token_topic, [TOPIC]) if create or "Create" not in grant.operations]
    return [*needed(world.pipeline, CONN_ID, token_topic, [TOPIC]), *extras]


def examined(world: World) -> Sequence[Check]:
    checks = examine(world.pipeline, world.plan(1).participants[0], world.connection, [])
    assert PASSWORD not in repr(checks)
    return checks


def problems(world: World) -> list[Check]:
    return [check for check in examined(world) if check.verdict is Verdict.PROBLEM]


def test_what_is_said_to_be_enough_is_enough(guarded: GuardedKafka, world: World) -> None:
    guarded.allow(*grants(world))
    assert problems(world) == []
    assert lacks(required_of(world.pipeline, world.plan(1).participants[0], world.connection)) == []
    for number in (1, 2):
        plan = world.checkpoint(number, 20)
        world.prepare(plan)
        assert problems(world) == []
        proof = world.commit(plan)
        assert proof.counts == {"alerts": 20}
    [report] = verify([Delivered(plan, proof, None)], plan.participants[0], world.connection, open_wal())
    assert (report.expected, report.missing) == (20, 0)


def test_reading_a_topic_needs_no_right_to_a_group(guarded: GuardedKafka, world: World) -> None:
    guarded.allow(*grants(world))
    plan = world.checkpoint(1, 20)
    world.prepare(plan)
    proof = world.commit(plan)
    guarded.allow(*(grant for grant in grants(world) if grant.resource == "topic"))
    [report] = verify([Delivered(plan, proof, None)], plan.participants[0], world.connection, open_wal())
    assert (report.expected, report.missing) == (20, 0)


@pytest.mark.parametrize(("operations", "verdict"), [(("Describe",), Verdict.PROBLEM), (("Read",), Verdict.OK)])
def test_a_source_needs_the_right_to_read(guarded: GuardedKafka, operations: Sequence[str], verdict: Verdict) -> None:
    guarded.allow(Grant("topic", TOPIC, tuple(operations), "reading"))
    connection = ConnectionInfo("kafka", "kafka", extra={"bootstrap.servers": guarded.guarded, **guarded.extra})
    [check] = examine_source("orders", KafkaSource(topics=[TOPIC], conn_id="kafka"), lambda _: connection)
    assert check.verdict is verdict


@pytest.mark.parametrize("lacking", range(4), ids=["transactional-id", "group", "token topic", "topic"])
def test_each_lack_is_told_before_it_is_met(guarded: GuardedKafka, world: World, lacking: int) -> None:
    token_topic = world.extra["airflow_ft_token_topic"]
    guarded.create_topic(token_topic, 1)
    required = needed(world.pipeline, CONN_ID, token_topic, [TOPIC])
    lacked = required[lacking]
    guarded.allow(*(grant for grant in grants(world) if grant.name != lacked.name or grant.resource != lacked.resource))
    found = problems(world)
    if lacked.resource == "topic":  # Kafka does not say of a hidden topic whether it is there
        assert any(lacked.name in check.text for check in found), found
    else:
        assert [lacked.command() in check.remedy for check in found] == [True], found
    if lacked.is_prefix:
        [error] = lacks(required_of(world.pipeline, world.plan(1).participants[0], world.connection))
        assert (error.code, error.fields["resource"], error.fields["name"]) == (
            "privilege_missing",
            lacked.resource,
            lacked.name,
        )
    with pytest.raises(SinkAccessError):
        plan = world.checkpoint(1, 20)
        world.prepare(plan)
        world.commit(plan)


def test_a_topic_that_may_only_be_described(guarded: GuardedKafka, world: World) -> None:
    token_topic = world.extra["airflow_ft_token_topic"]
    guarded.create_topic(token_topic, 1)
    for name, words in ((TOPIC, "may not write"), (token_topic, "may not read")):
        others = [grant for grant in grants(world) if grant.name != name]
        guarded.allow(*others, Grant("topic", name, ("Describe", "DescribeConfigs"), "looking"))
        [check] = problems(world)
        assert words in check.text and name in check.remedy


def test_a_token_topic_that_nobody_made(guarded: GuardedKafka, world: World) -> None:
    guarded.allow(*grants(world, create=False))
    [check] = problems(world)
    assert "may not create it" in check.text and "kafka-topics.sh" in check.remedy
    guarded.allow(*grants(world))
    assert problems(world) == []
    assert world.extra["airflow_ft_token_topic"] not in guarded.admin().list_topics(timeout=30).topics


def test_asking_leaves_an_open_transaction_and_its_token_alone(guarded: GuardedKafka, tmp_path: Path) -> None:
    world = make_world(guarded, tmp_path, "held")
    guarded.allow(*grants(world))
    plan = world.checkpoint(1, 20)
    world.prepare(plan)
    for _ in range(3):
        assert problems(world) == []
    proof = world.commit(plan)
    assert proof.detail["attempt"] == world.votes[1].prepared, "what was held was committed, not sent again"


def test_a_connection_that_only_librdkafka_knows(guarded: GuardedKafka, tmp_path: Path) -> None:
    world = make_world(guarded, tmp_path, "transaction", **{"sasl.kerberos.service.name": "unused"})
    guarded.allow(*grants(world))
    [check] = [check for check in examined(world) if check.name == "permissions"]
    assert check.verdict is Verdict.WARNING
    assert "is not known whether" in check.text and "--transactional-id" in check.remedy
