"""Target topics and consumer groups that somebody deletes, or makes anew, while a checkpoint is on its way to them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from airflow_ft.protocol.doubt import Finding, doubts
from airflow_ft.protocol.errors import SinkAccessError, SinkUnavailableError, TokenLostError
from airflow_ft.protocol.lease import Worker
from airflow_ft.protocol.model import CheckpointState, Plan
from airflow_ft.protocol.pipelines import HaltReason
from airflow_ft.protocol.resolution import Resolver
from airflow_ft.protocol.verify import Delivered
from airflow_ft.protocol.votes import Outcome, Vote
from airflow_ft.sinks.kafka import KafkaSink, participant
from airflow_ft.sinks.kafka.content import PlanContent
from airflow_ft.sinks.kafka.held import HeldParticipant
from airflow_ft.sinks.kafka.transaction_coordinator import TransactionCoordinator
from airflow_ft.sinks.kafka.verify import verify
from airflow_ft.store import open_store
from airflow_ft.wal import open_wal
from tests.integration.kafka_world import World, expected_ids, read, read_ids
from tests.integration.real_world import RealWorld, expected, make_world
from tests.integration.test_kafka_held import described, is_open
from tests.raising import raises
from tools.servers import Database, Kafka


@pytest.fixture(params=["transaction", "held"])
def world(kafka: Kafka, topic: str, tmp_path: Path, request: pytest.FixtureRequest) -> World:
    return World(tmp_path, kafka.bootstrap, {"alerts": KafkaSink(topic=topic, strategy=request.param)})


@pytest.fixture
def held(kafka: Kafka, topic: str, tmp_path: Path) -> World:
    return World(tmp_path, kafka.bootstrap, {"alerts": KafkaSink(topic=topic, strategy="held")})


def recreate(kafka: Kafka, topic: str, partitions: int = 4) -> None:
    kafka.delete_topic(topic)
    kafka.create_topic(topic, partitions)


def delete_group(bootstrap: str, group: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})  # kept in a variable: its requests end with it
    admin.delete_consumer_groups([group])[group].result(30)


def group_of(world: World) -> str:
    return f"airflow_ft.{world.pipeline}.kafka_default.0"


def test_held_rows_are_sent_again_into_a_recreated_topic(held: World, kafka: Kafka, topic: str) -> None:
    plan = held.checkpoint(1, 50)
    held.prepare(plan)
    recreate(kafka, topic)
    proof = held.commit(plan)
    assert (proof.outcome, proof.counts) == (Outcome.COMMITTED, {"alerts": 50})
    assert proof.detail["attempt"] > held.votes[1].prepared, "sent once more, under the same token"
    assert read_ids(kafka.bootstrap, topic) == expected_ids((1, 50))
    assert held.commit(plan) == proof
    held.deliver(2, 10)
    assert read_ids(kafka.bootstrap, topic) == expected_ids((1, 50), (2, 10))


def test_a_held_transaction_waits_for_a_topic_that_is_gone(held: World, kafka: Kafka, topic: str) -> None:
    plan = held.checkpoint(1, 50)
    held.prepare(plan)
    kafka.delete_topic(topic)
    with raises(SinkAccessError, "topic_missing", topic=topic):
        held.commit(plan)
    assert is_open(held), "neither committed nor given up: it may come back, or be recreated"
    kafka.create_topic(topic)
    held.commit(plan)
    assert read_ids(kafka.bootstrap, topic) == expected_ids((1, 50))


def test_a_topic_recreated_during_a_send_receives_every_row(
    world: World, kafka: Kafka, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first records are acknowledged by the old topic: no token may speak for them."""
    send, done = PlanContent.send, []

    def recreating(self: PlanContent, *arguments: Any) -> Any:
        counters = send(self, *arguments)
        if not done:
            done.append(True)
            recreate(kafka, topic)
        return counters

    monkeypatch.setattr(PlanContent, "send", recreating)
    plan = world.checkpoint(1, 50)
    with raises(SinkUnavailableError, "topic_recreated", topics=[topic]):
        world.prepare(plan)
        world.commit(plan)
    world.prepare(plan)
    world.commit(plan)
    assert read_ids(kafka.bootstrap, topic) == expected_ids((1, 50))


def test_a_topic_recreated_between_checkpoints_gets_the_next_one(world: World, kafka: Kafka, topic: str) -> None:
    """The task has kept what the topic was; its token would name the topic that is gone."""
    fence = world.fence()
    first, second = world.checkpoint(1, 50), world.checkpoint(2, 30)
    participant = world.open(first)

    def deliver(plan: Plan) -> None:
        notes = participant.prepare(plan, fence)
        participant.commit(plan, fence, Vote("kafka_default", fence.attempt, fence.attempt, None, notes))

    deliver(first)
    recreate(kafka, topic)
    with raises(SinkUnavailableError, "topic_recreated", topics=[topic]):
        deliver(second)
    deliver(second)
    participant.close()
    assert read_ids(kafka.bootstrap, topic) == expected_ids((2, 30))


def test_a_delivery_is_not_proven_after_its_topic_is_recreated(
    world: World, kafka: Kafka, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the end of the transaction and the proof; the new topic is longer than what was acknowledged."""
    plan = world.checkpoint(1, 5)
    world.prepare(plan)

    def vanish(self: Any, *arguments: Any) -> Any:
        raise SinkUnavailableError("the process dies here.")

    with monkeypatch.context() as patched:
        patched.setattr(participant.KafkaParticipant, "_proof", vanish)
        with raises(SinkUnavailableError, "sink_unavailable"):
            world.commit(plan)
    assert read_ids(kafka.bootstrap, topic) == expected_ids((1, 5))
    recreate(kafka, topic)
    other = World(world.root / "other", kafka.bootstrap, world.sinks)
    other.deliver(1, 500)
    sink = world.open(plan)
    with closing(sink), raises(TokenLostError, "topic_recreated") as caught:
        sink.proof(plan)
    assert caught.error is not None and f"'{topic}'" in caught.error.headline
    with raises(TokenLostError, "topic_recreated") as caught:
        world.commit(plan)
    assert caught.error is not None and "--delete-offsets" in caught.error.remedy


def test_a_topic_that_lost_acknowledged_records_proves_nothing(world: World, kafka: Kafka, topic: str) -> None:
    """By the offsets alone, as for a token that had no room for the topics' ids."""
    plan = world.deliver(1, 50)
    sink = world.open(plan, airflow_ft_timeout=15)
    with closing(sink):
        (token,) = [slot.last_committed() for slot in sink._tokens.slots(world.pipeline)]
        assert token is not None and set(token.topics) == {topic}
        object.__setattr__(token, "topics", {})
        recreate(kafka, topic)
        with raises(TokenLostError, "records_lost"):
            sink._proof(plan, [token])


def test_commit_aborts_a_transaction_whose_group_was_deleted(held: World, kafka: Kafka, topic: str) -> None:
    held.deliver(1, 10)
    plan = held.checkpoint(2, 50)
    held.prepare(plan)
    delete_group(kafka.bootstrap, group_of(held))
    sink = held.open(plan)
    with closing(sink), raises(TokenLostError, "token_lost", group=group_of(held)):
        sink.proof(plan)
    with raises(TokenLostError, "token_lost", group=group_of(held), is_aborted=True):
        held.commit(plan)
    assert not is_open(held), "readers do not wait for it"
    assert read_ids(kafka.bootstrap, topic) == expected_ids((1, 10))


def test_a_commit_does_not_wait_for_a_group_deleted_meanwhile(
    held: World, kafka: Kafka, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = held.checkpoint(1, 50)
    held.prepare(plan)
    end = TransactionCoordinator.end

    def late(self: TransactionCoordinator, *arguments: Any, **more: Any) -> Any:
        delete_group(kafka.bootstrap, group_of(held))
        return end(self, *arguments, **more)

    monkeypatch.setattr(TransactionCoordinator, "end", late)
    with raises(TokenLostError, "token_lost", group=group_of(held)):
        held.commit(plan)
    assert len(read(kafka.bootstrap, topic)) == 50, "the rows are visible, which the error says"


class Held(RealWorld):
    """`copies` is held."""

    @property
    def sinks(self) -> dict[str, Any]:
        sinks = super().sinks
        return {**sinks, "copies": KafkaSink(topic=self.topic, conn_id="cluster", key="name", strategy="held")}


@pytest.fixture
def mixed(tmp_path: Path, mariadb_database: Database, kafka: Kafka, topic: str) -> Iterator[Held]:
    with closing(open_store(f"sqlite:///{tmp_path}/ft.db")) as store:
        made = make_world(store, tmp_path / "wal", mariadb_database, kafka, topic)
        yield Held(store, made.root, mariadb_database, kafka, topic)


def _names(mixed: Held) -> list[str]:
    assert mixed.kafka is not None
    return sorted((message.key() or b"").decode() for message in read(mixed.kafka.bootstrap, mixed.topic))


def test_a_person_can_redeliver_rows_after_a_topic_is_recreated(
    mixed: Held, kafka: Kafka, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the remedy that the error names."""
    mixed.stage(1)
    mixed.prepare()
    mixed.commit("shop")

    def vanish(self: Any, *arguments: Any) -> Any:
        raise SinkUnavailableError("the process dies here.")

    with monkeypatch.context() as patched:
        patched.setattr(HeldParticipant, "_proof", vanish)
        with pytest.raises(SinkUnavailableError):
            mixed.commit("cluster")
    assert len(_names(mixed)) == 20
    recreate(kafka, topic)
    (doubt,) = [d for d in doubts(mixed.store, [mixed.pipeline], mixed.participants) if d.participant == "cluster"]
    assert doubt.evidence.finding is Finding.CONTRADICTION
    with raises(TokenLostError, "topic_recreated") as caught:
        mixed.commit("cluster")
    assert caught.error is not None and "--redeliver" in caught.error.remedy
    assert mixed.store.pipeline(mixed.pipeline).halt_reason is HaltReason.TOKEN_LOST
    delete_group(kafka.bootstrap, f"airflow_ft.{mixed.pipeline}.cluster.0")
    resolver = Resolver(mixed.store, mixed.pipeline, mixed.participants, "a test", Worker(), 0.1)
    assert resolver.redeliver(1).state is CheckpointState.COMPLETED
    assert _names(mixed) == sorted(f"order {i}" for i in expected([1]))
    assert mixed.ids() == expected([1])


def test_a_person_can_redeliver_held_rows_after_a_group_is_lost(mixed: Held, kafka: Kafka) -> None:
    mixed.stage(1)
    mixed.prepare()
    mixed.commit("shop")
    delete_group(kafka.bootstrap, f"airflow_ft.{mixed.pipeline}.cluster.0")
    (doubt,) = [d for d in doubts(mixed.store, [mixed.pipeline], mixed.participants) if d.participant == "cluster"]
    assert doubt.evidence.finding is Finding.CONTRADICTION, "not 'nothing to do'"
    with pytest.raises(TokenLostError):
        mixed.commit("cluster")
    assert _names(mixed) == []
    resolver = Resolver(mixed.store, mixed.pipeline, mixed.participants, "a test", Worker(), 0.1)
    assert resolver.redeliver(1).state is CheckpointState.COMPLETED
    assert _names(mixed) == sorted(f"order {i}" for i in expected([1]))


def test_verify_says_that_a_topic_was_recreated(world: World, kafka: Kafka, topic: str) -> None:
    plans, proofs = [], []
    for number, rows in ((1, 40), (2, 5)):
        if number == 2:
            recreate(kafka, topic)
        plan = world.checkpoint(number, rows)
        world.prepare(plan)
        proofs.append(world.commit(plan))
        plans.append(plan)
    both = [Delivered(plans[0], proofs[0], None), Delivered(plans[1], proofs[1], proofs[0])]
    (report,) = verify(both, plans[1].participants[0], world.connection, open_wal())
    assert (report.expected, report.missing, report.repeated, report.other) == (45, 40, 0, 0)
    assert any("recreated" in note and "checkpoint 1" in note for note in report.notes)
    (report,) = verify(both[1:], plans[1].participants[0], world.connection, open_wal())
    assert (report.missing, report.repeated, report.other, report.notes) == (0, 0, 0, ())
    assert described(world) is None or not is_open(world)
