"""Tokens in a real broker: what stops a pipeline, and how it goes on."""

from __future__ import annotations

import uuid
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from airflow_ft.protocol.errors import (
    AirflowFtError,
    FencedError,
    ForeignOwnerError,
    SinkUnavailableError,
    StoreBehindSinkError,
    TokenLostError,
)
from airflow_ft.protocol.model import Segment
from airflow_ft.protocol.votes import Outcome
from airflow_ft.protocol.write_ahead_log import SegmentReader
from airflow_ft.sinks.kafka import KafkaSink, tokens
from airflow_ft.sinks.kafka.cluster import KafkaParticipant
from airflow_ft.sinks.kafka.sending import ProducerLostError
from airflow_ft.sinks.kafka.token import Token
from airflow_ft.sinks.kafka.transaction import Transaction
from airflow_ft.wal import open_wal
from tests.conftest import TopicFactory
from tests.integration.kafka_world import CONN_ID, World, expected_ids, ids, read, read_ids, token_numbers
from tests.raising import raises
from tools.servers import Kafka


@pytest.fixture
def world(kafka: Kafka, topic: str, topic_factory: TopicFactory, tmp_path: Path) -> World:
    own_tokens = {"airflow_ft_token_topic": topic_factory(partitions=1)}
    return World(tmp_path, kafka.bootstrap, {"alerts": KafkaSink(topic=topic)}, extra=own_tokens)


def lose_tokens(world: World, kafka: Kafka) -> None:
    """As offsets.retention.minutes would."""
    name = world.extra["airflow_ft_token_topic"]
    kafka.delete_topic(name)
    kafka.create_topic(name, 1)


def numbers(world: World) -> list[int | None]:
    part = world.open(world.plan(99))
    try:
        return token_numbers(part, world.pipeline)
    finally:
        part.close()


def test_a_vanished_token_stops_prepare_and_commit(world: World, kafka: Kafka, topic: str) -> None:
    world.deliver(1, 5)
    plan = world.checkpoint(2, 5)
    world.prepare(plan)
    lose_tokens(world, kafka)
    for step in (world.commit, world.prepare):
        with raises(TokenLostError, "token_lost", predecessor=1):
            step(plan)
    assert read_ids(kafka.bootstrap, topic) == expected_ids((1, 5))


def test_recovery_seeds_a_vanished_token_and_goes_on(world: World, kafka: Kafka, topic: str) -> None:
    world.deliver(1, 5)
    lose_tokens(world, kafka)
    plan = world.checkpoint(2, 5)
    part = world.open(plan)
    world.epoch = 2
    part.seed(world.fence(), 1)
    part.seed(world.fence(), 1)
    with pytest.raises(FencedError):
        part.seed(world.fence(epoch=1), 1)
    part.close()
    assert numbers(world) == [1]
    world.prepare(plan)
    world.commit(plan)
    assert read_ids(kafka.bootstrap, topic) == expected_ids((1, 5), (2, 5))


def test_only_an_adoption_overwrites_an_existing_marker(world: World) -> None:
    world.deliver(1, 5)
    world.deliver(2, 5)
    part = world.open(world.plan(3))
    with raises(TokenLostError, "token_lost", number=2):
        part.seed(world.fence(), 1)
    part.adopt(world.fence(), 1)
    part.close()
    assert numbers(world) == [1]


def test_a_token_behind_the_predecessor_stops_the_commit(world: World, kafka: Kafka, topic: str) -> None:
    world.deliver(1, 5)
    plan = world.checkpoint(3, 5, predecessor=2)
    world.prepare(plan)
    with raises(TokenLostError, "token_lost", number=1, predecessor=2):
        world.commit(plan)
    assert read_ids(kafka.bootstrap, topic) == expected_ids((1, 5))


def test_a_vote_notices_a_token_that_went_back(world: World, kafka: Kafka, topic: str) -> None:
    world.deliver(1, 5)
    world.deliver(2, 5)
    part = world.open(world.plan(3))
    part.adopt(world.fence(), 1)  # as a cluster from a backup has it
    part.close()
    with raises(TokenLostError, "token_lost", number=1, delivered=2):
        world.prepare(world.checkpoint(3, 5), delivered=2)
    assert numbers(world) == [1]


def test_a_store_from_a_backup_drops_no_rows_in_silence(world: World, kafka: Kafka, topic: str) -> None:
    """Numbers 2 and 3 are given out again by a store that remembers number 1 only."""
    for number in (1, 2, 3):
        world.deliver(number, 5)
    again = world.plan(2, world.segment(2, {"alerts": ids(7, 5)}), predecessor=1)
    for step in (world.prepare, world.commit):
        with pytest.raises(StoreBehindSinkError):
            step(again)
    assert read_ids(kafka.bootstrap, topic) == expected_ids((1, 5), (2, 5), (3, 5))


def test_a_later_marker_still_proves_an_earlier_delivery(world: World) -> None:
    plans = [world.deliver(number, number) for number in (1, 2, 3)]
    for plan in plans:
        part = world.open(plan)
        proof = part.proof(plan)
        part.close()
        assert proof is not None
        assert (proof.number, proof.digest, proof.counts) == (plan.number, plan.digest, {"alerts": plan.number})
    part = world.open(plans[0])
    assert part.commit(plans[0], world.fence()).counts == {"alerts": 1}
    part.close()


def test_another_decision_log_is_stopped_until_it_adopts(world: World, kafka: Kafka, topic: str) -> None:
    world.deliver(1, 5)
    world.installation = str(uuid.uuid4())
    plan = world.checkpoint(2, 5)
    for step in (world.prepare, world.commit):
        with raises(ForeignOwnerError, "foreign_owner") as caught:
            step(plan)
        assert caught.error is not None and "airflow ft adopt" in caught.error.remedy
    part = world.open(plan)
    with pytest.raises(ForeignOwnerError):
        part.abort(plan, world.fence(), {})
    assert part.proof(plan) is None, "number 2 was never delivered by anybody"
    with pytest.raises(ForeignOwnerError):
        part.seed(world.fence(), 1)
    part.adopt(world.fence(), 1)
    part.close()
    world.prepare(plan)
    world.commit(plan)
    assert read_ids(kafka.bootstrap, topic) == expected_ids((1, 5), (2, 5))


def test_a_group_offset_of_somebody_else_is_not_a_token(world: World, kafka: Kafka) -> None:
    group = f"airflow_ft.{world.pipeline}.{CONN_ID}.0"
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": group, "log_level": 0})
    consumer.commit(
        offsets=[TopicPartition(world.extra["airflow_ft_token_topic"], 0, 0, metadata="mine")], asynchronous=False
    )
    consumer.close()
    plan = world.checkpoint(1, 5)
    with raises(ForeignOwnerError, "foreign_owner", group=group):
        world.prepare(plan)


def test_an_older_epoch_or_attempt_changes_nothing(world: World, kafka: Kafka, topic: str) -> None:
    world.epoch = 5
    plan = world.checkpoint(1, 5)
    world.prepare(plan)
    newest = world.attempt
    part = world.open(plan)
    for old in (world.fence(epoch=4), world.fence(attempt=newest - 1)):
        for step in (part.prepare, part.commit):
            with pytest.raises(FencedError):
                step(plan, old)
        with pytest.raises(FencedError):
            part.abort(plan, old, {})
    part.close()
    assert read(kafka.bootstrap, topic, "read_uncommitted") == []
    world.attempt = newest
    world.commit(plan)
    assert read_ids(kafka.bootstrap, topic) == expected_ids((1, 5))


def test_a_commit_fenced_twice_under_its_own_epoch_delivers_once(world: World, kafka: Kafka, topic: str) -> None:
    """Fenced while epoch and attempt are still mine: begin again, and deliver once."""
    plan = world.checkpoint(1, 5)
    world.prepare(plan)
    intruders: list[Producer] = []

    class Disturbed:
        """A log whose reading is disturbed twice by another producer of the same transactional id."""

        def open(self, segment: Segment) -> SegmentReader:
            if len(intruders) < 2:
                producer = Producer(
                    {
                        "bootstrap.servers": kafka.bootstrap,
                        "transactional.id": f"airflow_ft.{world.pipeline}.{CONN_ID}.0",
                        "log_level": 0,
                    }
                )
                producer.init_transactions(30)
                intruders.append(producer)
            return open_wal().open(segment)

    part = world.open(plan, Disturbed())
    assert part.commit(plan, world.fence()).counts == {"alerts": 5}
    part.close()
    assert len(intruders) == 2
    assert read_ids(kafka.bootstrap, topic) == expected_ids((1, 5))


def test_abort_finds_what_was_delivered(world: World, kafka: Kafka, topic: str) -> None:
    first = world.deliver(1, 5)
    part = world.open(first)
    assert part.abort(first, world.fence(), {"reason": "x"}).outcome is Outcome.COMMITTED
    part.close()
    second = world.checkpoint(2, 5)
    part = world.open(second)
    proof = part.abort(second, world.fence(), {"reason": "x"})
    part.close()
    assert (proof.outcome, proof.digest, proof.detail) == (Outcome.ABORTED, second.digest, {"reason": "x"})
    third = world.plan(3, second.segments[0], world.segment(3, {"alerts": ids(3, 5)}), predecessor=1)
    world.prepare(third)
    world.commit(third)
    assert read_ids(kafka.bootstrap, topic) == expected_ids((1, 5), (2, 5), (3, 5))


def test_an_old_token_is_renewed_and_a_fresh_one_left_alone(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = world.deliver(1, 5)
    part = world.open(plan)
    slot = part._tokens.slots(world.pipeline)[0]
    before = slot.read_token()
    assert before is not None
    housekeeping = world.fence(attempt=0)  # retention has no attempt of its own
    part.renew(housekeeping)
    assert slot.read_token() == before
    later = datetime.now(UTC) + timedelta(hours=2)
    monkeypatch.setattr(tokens, "now", lambda: later)
    with pytest.raises(FencedError):
        part.renew(replace(housekeeping, epoch=0))
    part.renew(housekeeping)
    after = slot.read_token()
    assert after is not None
    assert after == replace(before, written_at=after.written_at)
    assert after.written_at - before.written_at > timedelta(hours=1)
    part.close()


def test_a_pending_token_gives_no_proof(world: World, kafka: Kafka) -> None:
    plan = world.deliver(1, 5)
    group, token_topic = f"airflow_ft.{world.pipeline}.{CONN_ID}.0", world.extra["airflow_ft_token_topic"]
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": group, "log_level": 0})
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": group, "log_level": 0})
    producer.init_transactions(30)
    producer.begin_transaction()
    position = TopicPartition(token_topic, 0, 2, metadata="{}")
    producer.send_offsets_to_transaction([position], consumer.consumer_group_metadata(), 30)
    part = world.open(plan, airflow_ft_timeout=8)  # so long the first proof waits; the second has to come in that time
    with pytest.raises(SinkUnavailableError):
        part.proof(world.checkpoint(2, 5))
    proof = part.proof(plan)
    assert proof is not None, "what was delivered before it is not in doubt"
    assert proof.counts == {"alerts": 5}
    part.close()
    world.deliver(2, 5)  # what a killed process left open does not stand in the way
    consumer.close()


def test_errors_name_where_they_happened(world: World, kafka: Kafka) -> None:
    world.deliver(1, 5)
    lose_tokens(world, kafka)
    with pytest.raises(AirflowFtError) as caught:
        world.prepare(world.checkpoint(2, 5))
    assert (caught.value.pipeline, caught.value.checkpoint, caught.value.participant) == (world.pipeline, 2, CONN_ID)
    assert caught.value.remedy


def test_a_commit_notices_a_marker_that_a_late_prepare_replaced(world: World, kafka: Kafka, topic: str) -> None:
    """Number 1 is delivered, its token vanishes before anybody has read the proof, and a prepare of it wakes up."""
    plan = world.checkpoint(1, 5)
    world.prepare(plan)
    late = world.fence()
    world.commit(plan)
    lose_tokens(world, kafka)
    sleeper = world.open(plan)
    sleeper.prepare(plan, late)
    sleeper.close()
    assert numbers(world) == [0], "it looks as if nothing had been delivered"
    with raises(TokenLostError, "token_replaced"):
        world.commit(plan)
    assert read_ids(kafka.bootstrap, topic) == expected_ids((1, 5))


def test_a_person_can_restore_a_lost_marker_to_deliver_the_rows(world: World, kafka: Kafka, topic: str) -> None:
    world.deliver(1, 5)
    plan = world.checkpoint(2, 5)
    world.prepare(plan)
    lose_tokens(world, kafka)
    world.epoch = 2  # of `airflow ft in-doubt --redeliver`
    participant = world.open(plan)
    participant.seed(world.fence(), 1)
    participant.close()
    world.commit(plan)
    assert read_ids(kafka.bootstrap, topic) == expected_ids((1, 5), (2, 5))


def test_a_process_raises_the_fence_only_once_in_an_epoch(
    world: World, kafka: Kafka, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever was there before was fenced then. When somebody else has written since, it is raised again."""
    commit, written = Transaction.commit, list[int]()
    fails = False

    def counted(transaction: Transaction, token: Token) -> None:
        written.append(token.number)
        commit(transaction, token)
        if fails:
            raise ProducerLostError(KafkaError(KafkaError._TIMED_OUT), "a test")

    monkeypatch.setattr(Transaction, "commit", counted)

    def deliver(participant: KafkaParticipant, number: int) -> list[int]:
        """Which tokens are written meanwhile."""
        written.clear()
        plan, fence = world.checkpoint(number, 5), world.fence()
        vote = world.vote(plan, fence, participant.prepare(plan, fence))
        assert participant.commit(plan, world.fence(), vote).outcome is Outcome.COMMITTED
        return written

    one, two = (world.open(world.plan(99)) for _ in range(2))
    assert deliver(one, 1) == [0, 1]
    assert deliver(one, 2) == [2] and deliver(one, 3) == [3]
    assert deliver(two, 4) == [3, 4]
    assert deliver(one, 5) == [4, 5]
    world.epoch = 2
    assert deliver(one, 6) == [5, 6]
    fails = True
    with pytest.raises(SinkUnavailableError):
        deliver(one, 7)
    fails = False
    plan, fence = world.checkpoint(7, 5), world.fence()
    written.clear()
    with pytest.raises(StoreBehindSinkError):
        one.prepare(plan, fence)  # other rows of that number are there: they were committed, unheard
    one.close()
    two.close()
    assert read_ids(kafka.bootstrap, topic) == expected_ids(*((number, 5) for number in range(1, 8)))
