"""Strategy `held`: rows in the topic before the decision, seen by nobody, and committed by another process."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from kafka.admin import KafkaAdminClient

from airflow_ft.clients.kafka.client import KafkaClients, KafkaSettings
from airflow_ft.clients.kafka.errors import is_fenced
from airflow_ft.protocol.doctor import Check, Verdict
from airflow_ft.protocol.errors import (
    FencedError,
    SinkAccessError,
    SinkUnavailableError,
    StoreBehindSinkError,
    TokenLostError,
)
from airflow_ft.protocol.votes import Outcome
from airflow_ft.sinks.kafka import KafkaSink
from airflow_ft.sinks.kafka.doctor import examine
from airflow_ft.sinks.kafka.held import HeldParticipant
from airflow_ft.sinks.kafka.records import RecordColumns
from airflow_ft.sinks.kafka.sending import AckCounter, ProducerLostError
from airflow_ft.sinks.kafka.slot import Slot
from airflow_ft.sinks.kafka.transaction import ProducerIdentity, Transaction
from airflow_ft.sinks.kafka.transaction_coordinator import Description, Ending, TransactionCoordinator
from tests.conftest import TopicFactory
from tests.integration.kafka_world import World, expected_ids, read, read_ids, token_numbers
from tests.raising import raises
from tools.servers import Kafka

Make = Callable[..., World]


@pytest.fixture
def make(kafka: Kafka, topic: str, tmp_path: Path) -> Make:
    def world(**settings: Any) -> World:
        return World(
            tmp_path, kafka.bootstrap, {"alerts": KafkaSink(**{"topic": topic, "strategy": "held", **settings})}
        )

    return world


def described(world: World, slot: int = 0) -> Description | None:
    coordinator = TransactionCoordinator(KafkaClients(KafkaSettings.from_connection(world.connection)))
    try:
        return coordinator.describe(f"airflow_ft.{world.pipeline}.kafka_default.{slot}")
    finally:
        coordinator.close()


def is_open(world: World, slot: int = 0) -> bool:
    found = described(world, slot)
    return found is not None and found.is_open


def test_held_rows_are_sent_before_the_decision_and_seen_after(make: Make, kafka: Kafka, topic: str) -> None:
    world = make()
    plan = world.checkpoint(1, 1000)
    notes = world.prepare(plan)
    assert len(read(kafka.bootstrap, topic, "read_uncommitted")) == 1000
    assert read_ids(kafka.bootstrap, topic) == []
    assert is_open(world)
    participant = world.open(plan)
    with raises(SinkUnavailableError, "transaction_open"):
        participant.proof(plan)
    participant.close()
    ((group, held),) = notes["held"].items()
    assert group == f"airflow_ft.{world.pipeline}.kafka_default.0"
    found = described(world)
    assert found is not None
    assert (held["producer_id"], held["epoch"]) == (found.producer.producer_id, found.producer.epoch)
    assert sum(held["records"][topic].values()) == 1000
    assert held["timeout_ms"] == 900_000, "what the brokers allow"
    proof = world.commit(plan)
    assert (proof.outcome, proof.digest, proof.counts) == (Outcome.COMMITTED, plan.digest, {"alerts": 1000})
    assert proof.detail["attempt"] == world.votes[1].prepared, "delivered by the prepare, not once more"
    assert read_ids(kafka.bootstrap, topic) == expected_ids((1, 1000))
    assert world.commit(plan) == proof


def test_checkpoints_follow_each_other(make: Make, kafka: Kafka, topic: str) -> None:
    world = make()
    for number in (1, 2, 3):
        world.deliver(number, 100 * number)
    world.deliver(4, 0)
    assert read_ids(kafka.bootstrap, topic) == expected_ids((1, 100), (2, 200), (3, 300))
    participant = world.open(world.checkpoint(5, 1))
    assert token_numbers(participant, world.pipeline) == [4]
    participant.close()


def test_every_slot_holds_its_own_transaction(make: Make, kafka: Kafka, topic_factory: TopicFactory) -> None:
    topic = topic_factory(2)
    world = make(topic=topic, slots=3)
    plan = world.checkpoint(1, 50_000)
    notes = world.prepare(plan)
    assert len(notes["held"]) == 3
    assert all(is_open(world, slot) for slot in range(3))
    assert read_ids(kafka.bootstrap, topic) == []
    assert world.commit(plan).counts == {"alerts": 50_000}
    assert read_ids(kafka.bootstrap, topic) == expected_ids((1, 50_000))


def test_when_one_slot_cannot_be_held_the_others_are_let_go(
    make: Make, kafka: Kafka, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make(slots=2)
    plan = world.checkpoint(1, 1000)
    require_open = HeldParticipant._require_open

    def refuse(self: HeldParticipant, slot: Slot, *rest: Any) -> None:
        if slot.index == 1:
            raise SinkUnavailableError("the coordinator does not answer.", code="a_test")
        require_open(self, slot, *rest)

    monkeypatch.setattr(HeldParticipant, "_require_open", refuse)
    with raises(SinkUnavailableError, "a_test"):
        world.prepare(plan)
    assert not any(is_open(world, slot) for slot in range(2)), "no reader waits for what nobody will commit"
    monkeypatch.undo()
    world.prepare(plan)
    world.commit(plan)
    assert read_ids(kafka.bootstrap, topic) == expected_ids((1, 1000))


def test_what_was_prepared_can_be_aborted(make: Make, kafka: Kafka, topic: str) -> None:
    world = make()
    world.deliver(1, 10)
    plan = world.checkpoint(2, 1000)
    world.prepare(plan)
    assert world.abort(plan).outcome is Outcome.ABORTED
    assert not is_open(world)
    assert world.abort(plan).outcome is Outcome.ABORTED
    third = world.checkpoint(3, 20, predecessor=1)
    world.prepare(third)
    world.commit(third)
    assert read_ids(kafka.bootstrap, topic) == expected_ids((1, 10), (3, 20))


def test_an_abort_with_nothing_prepared_needs_no_token_topic(make: Make, topic: str) -> None:
    """Its attempt had begun and got no further, while another sink refused the rows (found by the simulator)."""
    world = make()
    world.extra["airflow_ft_token_topic"] = f"{topic}.tokens"
    assert world.abort(world.checkpoint(1, 10)).outcome is Outcome.ABORTED


def test_a_delivered_number_that_the_store_calls_aborted_halts(make: Make) -> None:
    world = make()
    plan = world.deliver(1, 10)
    with raises(StoreBehindSinkError, "store_behind_sink", checkpoint=1):
        world.abort(plan)


def test_preparing_again_ends_what_the_older_attempt_held(make: Make, kafka: Kafka, topic: str) -> None:
    world = make()
    plan = world.checkpoint(1, 1000)
    first = world.prepare(plan)["held"]
    second = world.prepare(plan)["held"]
    assert [note["epoch"] for note in first.values()] < [note["epoch"] for note in second.values()]
    world.commit(plan)
    assert read_ids(kafka.bootstrap, topic) == expected_ids((1, 1000))
    assert len(read(kafka.bootstrap, topic, "read_uncommitted")) == 2000


def test_a_checkpoint_behind_a_held_one_is_sent_at_its_commit(make: Make, kafka: Kafka, topic: str) -> None:
    world = make()
    first, second = world.checkpoint(1, 100), world.checkpoint(2, 200)
    world.prepare(first)
    notes = world.prepare(second)
    assert "held" not in notes
    assert "checkpoint 1 is not delivered yet" in notes["deferred"]
    assert is_open(world), "the first one is not disturbed"
    assert world.commit(first).detail["attempt"] == world.votes[1].prepared
    assert world.commit(second).counts == {"alerts": 200}
    assert read_ids(kafka.bootstrap, topic) == expected_ids((1, 100), (2, 200))


def test_a_waiting_vote_notices_a_lost_delivery(make: Make, kafka: Kafka, topic: str) -> None:
    world = make()
    world.deliver(1, 100)
    waiting = world.checkpoint(4, 100)
    assert "checkpoint 3 is not delivered yet" in world.prepare(waiting, delivered=1)["deferred"]
    with raises(TokenLostError, "token_lost", number=1, delivered=2):
        world.prepare(waiting, delivered=2)
    assert read_ids(kafka.bootstrap, topic) == expected_ids((1, 100))


def test_aborting_a_waiting_checkpoint_keeps_the_held_one(make: Make, kafka: Kafka, topic: str) -> None:
    world = make()
    first, second = world.checkpoint(1, 100), world.checkpoint(2, 200)
    world.prepare(first)
    world.prepare(second)
    assert world.abort(second).outcome is Outcome.ABORTED
    assert is_open(world)
    assert world.commit(first).detail["attempt"] == world.votes[1].prepared
    assert read_ids(kafka.bootstrap, topic) == expected_ids((1, 100))


def test_a_held_transaction_that_others_ended_is_sent_again(make: Make, kafka: Kafka, topic: str) -> None:
    world = make()
    plan = world.checkpoint(1, 1000)
    world.prepare(plan)
    clients = KafkaClients(KafkaSettings.from_connection(world.connection))
    intruder = clients.producer(f"airflow_ft.{world.pipeline}.kafka_default.0", {})
    intruder.init_transactions(30)
    assert not is_open(world)
    proof = world.commit(plan)
    assert proof.detail["attempt"] > world.votes[1].prepared, "sent once more"
    assert world.commit(plan) == proof
    assert read_ids(kafka.bootstrap, topic) == expected_ids((1, 1000))


def test_ending_a_transaction_fences_its_producer(make: Make, kafka: Kafka, topic: str) -> None:
    """Version 5 of EndTxn raises the epoch; with an older one these late records would be taken."""
    world = make()
    clients = KafkaClients(KafkaSettings.from_connection(world.connection))
    slot, coordinator = Slot(clients, world.pipeline, 0), TransactionCoordinator(clients)
    producer = Transaction(clients, slot, {}, hold={"transaction.timeout.ms": 60_000})
    producer.begin()
    counter = AckCounter(topic)
    producer.send(topic, records(10), counter)
    producer.flush([counter])
    assert coordinator.end(slot.group, producer.identity(), commit=True) is Ending.DONE
    assert coordinator.end(slot.group, producer.identity(), commit=True) is Ending.DONE, "asked again"
    with pytest.raises(ProducerLostError) as caught:
        producer.send(topic, records(10), counter)
        producer.flush([counter])
    assert is_fenced(caught.value.error)
    assert coordinator.end(slot.group, producer.identity(), commit=False) is Ending.GONE, "an abort comes too late"
    producer.discard()
    coordinator.close()
    slot.close()
    assert len(read(kafka.bootstrap, topic)) == len(read(kafka.bootstrap, topic, "read_uncommitted")) == 10


def records(count: int) -> RecordColumns:
    return RecordColumns(pa.array([b"{}"] * count, pa.large_binary()), None, None, None, None)


def test_an_older_owner_does_not_commit_and_does_not_disturb(make: Make, kafka: Kafka, topic: str) -> None:
    world = make()
    plan = world.checkpoint(1, 100)
    old = world.fence()
    world.epoch = 2
    world.prepare(plan)
    participant = world.open(plan)
    for step in (
        lambda: participant.prepare(plan, old),
        lambda: participant.commit(plan, old, world.votes[1]),
        lambda: participant.abort(plan, old, {}),
    ):
        with pytest.raises(FencedError):
            step()
    participant.close()
    assert is_open(world)
    assert world.commit(plan).detail["attempt"] == world.votes[1].prepared
    assert read_ids(kafka.bootstrap, topic) == expected_ids((1, 100))


def test_renewing_tokens_leaves_a_held_transaction_alone(
    make: Make, kafka: Kafka, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make()
    plan = world.checkpoint(1, 100)
    world.prepare(plan)
    monkeypatch.setattr("airflow_ft.sinks.kafka.token.RENEW_AFTER", timedelta(0))
    participant = world.open(plan)
    participant.renew(world.fence())
    participant.close()
    assert is_open(world)
    assert world.commit(plan).detail["attempt"] == world.votes[1].prepared


def test_a_transaction_is_not_held_longer_than_the_brokers_allow(make: Make) -> None:
    world = make(transaction_timeout=timedelta(minutes=20))
    with raises(SinkAccessError, "limit_reached", value=1_200_000, limit=900_000):
        world.prepare(world.checkpoint(1, 1))


def test_the_doctor_says_whether_transactions_can_be_held(make: Make) -> None:
    def found(world: World) -> Check:
        participant = world.plan(1).participants[0]
        checks = examine(world.pipeline, participant, world.connection, [])
        return next(check for check in checks if check.name == "held transactions")

    well, badly = found(make()), found(make(transaction_timeout=timedelta(minutes=20)))
    assert well.verdict is Verdict.OK and "900000 ms" in well.text
    assert badly.verdict is Verdict.PROBLEM
    assert "1200000 ms" in badly.text
    assert "Raise transaction.max.timeout.ms" in badly.remedy


def test_the_time_out_defaults_to_that_of_the_connection(make: Make) -> None:
    world = make()
    world.extra["transaction.timeout.ms"] = 123_000
    ((_, held),) = world.prepare(world.checkpoint(1, 1))["held"].items()
    assert held["timeout_ms"] == 123_000


def test_two_phase_commit_is_refused_if_brokers_lack_it(make: Make) -> None:
    world = make(two_phase_commit=True)
    with raises(SinkAccessError, "server_version", feature="two_phase_commit", version=5):
        world.prepare(world.checkpoint(1, 1))


@pytest.mark.sampled(among="servers of their own")
def test_brokers_that_cannot_fence_a_late_producer_are_refused(own_server: Callable[..., Any], tmp_path: Path) -> None:
    server: Kafka = own_server(Kafka)
    server.create_topic("alerts", 1)
    admin = KafkaAdminClient(bootstrap_servers=server.bootstrap)
    admin.update_features({"transaction.version": ("SAFE_DOWNGRADE", 1)})
    admin.close()
    world = World(tmp_path, server.bootstrap, {"alerts": KafkaSink(topic="alerts", strategy="held")})
    with raises(SinkAccessError, "server_version", feature="transaction.version", version=1):
        world.prepare(world.checkpoint(1, 1))
    assert read(server.bootstrap, "alerts", "read_uncommitted") == []


@pytest.mark.sampled(among="servers of their own")
def test_two_phase_commit_is_refused_if_the_client_lacks_it(own_server: Callable[..., Any], tmp_path: Path) -> None:
    """Brokers that show their unstable versions know InitProducerId 6; librdkafka has no such setting yet."""
    server: Kafka = own_server(Kafka, **{"unstable.api.versions.enable": "true"})
    server.create_topic("alerts", 1)
    sink = KafkaSink(topic="alerts", strategy="held", two_phase_commit=True)
    world = World(tmp_path, server.bootstrap, {"alerts": sink})
    setting = "transaction.two.phase.commit.enable"
    with raises(SinkAccessError, "connection_invalid", settings=[setting]):
        world.prepare(world.checkpoint(1, 1))
    assert read(server.bootstrap, "alerts", "read_uncommitted") == []


@pytest.mark.parametrize("given", [timedelta(minutes=14), None])
def test_a_lost_transaction_is_resent_with_the_same_time_out(
    make: Make, kafka: Kafka, topic: str, monkeypatch: pytest.MonkeyPatch, given: timedelta | None
) -> None:
    world = make(transaction_timeout=given)
    plan = world.checkpoint(1, 10)
    notes = world.prepare(plan)
    held = next(iter(notes["held"].values()))
    coordinator = TransactionCoordinator(KafkaClients(KafkaSettings.from_connection(world.connection)))
    identity = ProducerIdentity(held["producer_id"], held["epoch"])
    assert coordinator.end(next(iter(notes["held"])), identity, commit=False) is Ending.DONE
    coordinator.close()
    timeouts = []
    make_producer = KafkaClients._new_producer

    def seen(self: KafkaClients, limits: Any, strategy: Any) -> Any:
        timeouts.append(limits["transaction.timeout.ms"])
        return make_producer(self, limits, strategy)

    monkeypatch.setattr(KafkaClients, "_new_producer", seen)
    world.commit(plan)
    assert set(timeouts) == {840_000 if given else 900_000}
    assert read_ids(kafka.bootstrap, topic) == expected_ids((1, 10))
