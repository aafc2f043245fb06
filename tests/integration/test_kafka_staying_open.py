"""A participant that stays open, and makes its next producer early: exactly once all the same (I2, I5)."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from airflow_ft.clients.kafka import client
from airflow_ft.clients.kafka.client import KafkaClients
from airflow_ft.protocol.errors import FencedError, SinkUnavailableError
from airflow_ft.protocol.model import Plan
from airflow_ft.protocol.votes import Outcome
from airflow_ft.sinks.kafka import KafkaSink
from airflow_ft.sinks.kafka.cluster import KafkaParticipant
from airflow_ft.sinks.kafka.transaction import Transaction
from tests.integration.kafka_world import World, expected_ids, read_ids
from tools.servers import Kafka


@pytest.fixture
def world(kafka: Kafka, topic: str, tmp_path: Path) -> World:
    return World(tmp_path, kafka.bootstrap, {"alerts": KafkaSink(topic=topic, slots=2)})


@contextmanager
def staying_open(world: World, plan: Plan) -> Iterator[KafkaParticipant]:
    participant = world.open(plan)
    try:
        yield participant
    finally:
        participant.close()


def prepare(world: World, participant: KafkaParticipant, plan: Plan) -> None:
    fence = world.fence()
    world.vote(plan, fence, participant.prepare(plan, fence))


def commit(world: World, participant: KafkaParticipant, plan: Plan) -> Any:
    return participant.commit(plan, world.fence(), world.votes[plan.number])


def test_no_transaction_waits_for_its_producer_to_connect(
    world: World, kafka: Kafka, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans = [world.checkpoint(number, 100) for number in range(1, 6)]
    made: list[bool] = []  # beside what else is done
    make = KafkaClients._new_producer

    def count(self: KafkaClients, *given: Any) -> Any:
        made.append(threading.current_thread().name == "airflow-ft-kafka-call")
        return make(self, *given)

    monkeypatch.setattr(KafkaClients, "_new_producer", count)
    with staying_open(world, plans[0]) as participant:
        for plan in plans:
            prepare(world, participant, plan)
            commit(world, participant, plan)
    # Of each slot two transactions for the first number, one for each further number, and one for the next.
    assert made == [True] * 2 * (len(plans) + 2)
    assert read_ids(kafka.bootstrap, topic) == expected_ids(*((number, 100) for number in range(1, 6)))


@pytest.mark.parametrize("voted", [{}, {"message.max.bytes": 1_000, "batch.size": 1_000}, {"no": "such"}, "odd", None])
def test_what_the_topics_demanded_at_the_vote_is_only_a_guess(
    world: World, kafka: Kafka, topic: str, voted: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have changed, and what voted may have been another release."""
    plan = world.checkpoint(1, 100)
    world.prepare(plan)
    notes = dict(world.votes[1].notes)
    demanded = notes.pop("producer")
    world.votes[1] = replace(world.votes[1], notes={**notes, "producer": voted})
    made_with: dict[int, Any] = {}
    used: list[Any] = []
    make, producer = KafkaClients._transactional, KafkaClients.producer

    def make_noting(self: KafkaClients, transactional_id: str, limits: Any, *given: Any) -> Any:
        made = make(self, transactional_id, limits, *given)
        made_with[id(made)] = limits
        return made

    def use_noting(self: KafkaClients, *given: Any) -> Any:
        chosen = producer(self, *given)
        used.append(made_with[id(chosen)])
        return chosen

    monkeypatch.setattr(KafkaClients, "_transactional", make_noting)
    monkeypatch.setattr(KafkaClients, "producer", use_noting)
    assert world.commit(plan).outcome is Outcome.COMMITTED
    assert used == [demanded, demanded]
    assert read_ids(kafka.bootstrap, topic) == expected_ids((1, 100))


def test_no_producer_is_left_behind(world: World, kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    plan, second = world.checkpoint(1, 100), world.checkpoint(2, 100)
    with staying_open(world, plan) as participant:
        prepare(world, participant, plan)
        commit(world, participant, plan)
        fence = world.fence()
        world.epoch = 2
        prepare(world, participant, second)
    made: list[weakref.ref[Producer]] = []

    class Noted(Producer):  # type: ignore[misc]
        def __init__(self, *given: Any, **named: Any) -> None:
            super().__init__(*given, **named)
            made.append(weakref.ref(self))

    monkeypatch.setattr(client, "Producer", Noted)
    again, late = world.open(plan), world.open(second)
    assert commit(world, again, plan).outcome is Outcome.COMMITTED  # finds that it is delivered
    with pytest.raises(FencedError):
        late.commit(second, fence, world.votes[2])
    gc.disable()
    try:
        for participant in (again, late):
            participant.close()
        for thread in threading.enumerate():
            if thread.name == "airflow-ft-kafka-call":
                thread.join(60)
        assert len(made) == 2 * 2  # of two participants with two slots
        assert [ref() for ref in made if ref() is not None] == []
    finally:
        gc.enable()


@pytest.mark.parametrize("meanwhile", ["the same number", "the next number", "only a vote"])
def test_a_participant_of_an_older_epoch_delivers_nothing(
    world: World, kafka: Kafka, topic: str, meanwhile: str
) -> None:
    first, second, third = (world.checkpoint(number, 100) for number in (1, 2, 3))
    with staying_open(world, first) as sleeper:
        prepare(world, sleeper, first)
        commit(world, sleeper, first)
        prepare(world, sleeper, second)
        fence = world.fence()  # of its commit, which comes late
        world.epoch = 2
        wanted = expected_ids((1, 100))
        with staying_open(world, second) as successor:
            prepare(world, successor, second)
            if meanwhile != "only a vote":
                commit(world, successor, second)
                wanted += expected_ids((2, 100))
            if meanwhile == "the next number":
                prepare(world, successor, third)
                commit(world, successor, third)
                wanted += expected_ids((3, 100))
            with pytest.raises(FencedError):
                sleeper.commit(second, fence, world.votes[2])
        assert read_ids(kafka.bootstrap, topic) == wanted


def test_a_twin_that_delivers_meanwhile_is_noticed(world: World, kafka: Kafka, topic: str) -> None:
    first, second = world.checkpoint(1, 100), world.checkpoint(2, 100)
    with staying_open(world, first) as participant:
        prepare(world, participant, first)
        commit(world, participant, first)
        prepare(world, participant, second)  # the producer of its commit is on its way
        world.prepare(second)
        world.commit(second)
        assert commit(world, participant, second).outcome is Outcome.COMMITTED
    assert read_ids(kafka.bootstrap, topic) == expected_ids((1, 100), (2, 100))


@pytest.mark.parametrize("away", ["at once", "when the next producer is connected"])
def test_a_participant_outlives_its_broker(world: World, kafka: Kafka, topic: str, away: str) -> None:
    first, second = world.checkpoint(1, 100), world.checkpoint(2, 100)
    with staying_open(world, first) as participant:
        prepare(world, participant, first)
        commit(world, participant, first)
        prepare(world, participant, second)
        if away != "at once":
            time.sleep(0.5)
        kafka.restart()
        assert commit(world, participant, second).outcome is Outcome.COMMITTED
    assert read_ids(kafka.bootstrap, topic) == expected_ids((1, 100), (2, 100))


def test_an_aborted_number_leaves_nothing_behind(world: World, kafka: Kafka, topic: str) -> None:
    first, second = world.checkpoint(1, 100), world.checkpoint(2, 100)
    with staying_open(world, first) as participant:
        prepare(world, participant, first)
        assert participant.abort(first, world.fence(), {"why": "test"}).outcome is Outcome.ABORTED
        again = world.plan(2, second.segments[0], predecessor=0)
        prepare(world, participant, again)
        commit(world, participant, again)
    assert read_ids(kafka.bootstrap, topic) == expected_ids((2, 100))


@pytest.mark.release
def test_a_call_that_librdkafka_never_ends_is_given_up(
    world: World, kafka: Kafka, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All brokers go away between two calls: send_offsets_to_transaction forgets its time-out."""
    plan = world.checkpoint(1, 100)
    world.prepare(plan)
    world.extra["airflow_ft_timeout"] = 5
    write = Transaction.write

    def without_brokers(self: Transaction, *given: Any) -> None:
        kafka.kill()
        write(self, *given)

    with monkeypatch.context() as patched:
        patched.setattr(Transaction, "write", without_brokers)
        with pytest.raises(SinkUnavailableError):
            world.commit(plan)
    kafka.restart()
    world.extra["airflow_ft_timeout"] = 60
    assert world.commit(plan).outcome is Outcome.COMMITTED
    assert read_ids(kafka.bootstrap, topic) == expected_ids((1, 100))
