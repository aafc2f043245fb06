"""Held transactions when processes are killed or wake up late, replies are lost and brokers vanish (I2, I5, I6)."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from airflow_ft.protocol.errors import SinkAccessError, SinkUnavailableError
from airflow_ft.protocol.votes import Outcome
from airflow_ft.sinks.kafka import KafkaSink
from airflow_ft.sinks.kafka.content import PlanContent
from airflow_ft.testing.relay import Fate
from tests.integration.kafka_children import (
    Children,
    await_stopped,
    await_working,
    children,
    kill,
    notes,
    outcome,
    wake,
)
from tests.integration.kafka_losses import Proxied, check_delivery_through_losses, proxied_broker, proxied_world
from tests.integration.kafka_proxy import END_TXN
from tests.integration.kafka_world import World, expected_ids, read_ids
from tests.integration.test_kafka_held import is_open
from tests.raising import raises
from tests.waiting import wait_for
from tools.servers import Kafka

pytestmark = pytest.mark.sampled

ROWS = 20_000


@pytest.fixture
def world(kafka: Kafka, topic: str, tmp_path: Path) -> World:
    if not kafka.running:
        kafka.start()
    return World(tmp_path, kafka.bootstrap, {"alerts": KafkaSink(topic=topic, strategy="held")})


@pytest.fixture
def start() -> Iterator[Children]:
    with children() as started:
        yield started


# --- processes that end, or are killed ---------------------------------------------------------------------------


def test_a_held_transaction_is_committed_by_another_process(
    world: World, kafka: Kafka, topic: str, start: Children
) -> None:
    plan = world.checkpoint(1, ROWS)
    fence = world.fence()
    vote = world.vote(plan, fence, notes(start(world, plan, fence, "prepare")))
    assert is_open(world)
    assert read_ids(kafka.bootstrap, topic) == []
    proof = world.commit(plan)
    assert proof.detail["attempt"] == vote.prepared, "not sent again"
    assert read_ids(kafka.bootstrap, topic) == expected_ids((1, ROWS))


@pytest.mark.parametrize("point", ["before the token", "after the token"])
def test_a_preparer_that_is_killed_before_its_vote_is_repeated(
    point: str, world: World, kafka: Kafka, topic: str, start: Children
) -> None:
    plan = world.checkpoint(1, ROWS)
    preparer = start(world, plan, world.fence(), "prepare", stop_at=point)
    await_stopped(preparer)
    kill(preparer)
    assert is_open(world)
    world.prepare(plan)
    assert world.commit(plan).detail["attempt"] == world.votes[1].prepared
    assert read_ids(kafka.bootstrap, topic) == expected_ids((1, ROWS))


@pytest.mark.parametrize("point", ["before the token", "after the token"])
def test_what_a_killed_preparer_left_open_is_aborted(
    point: str, world: World, kafka: Kafka, topic: str, start: Children
) -> None:
    plan = world.checkpoint(1, ROWS)
    preparer = start(world, plan, world.fence(), "prepare", stop_at=point)
    await_stopped(preparer)
    kill(preparer)
    assert world.abort(plan).outcome is Outcome.ABORTED
    assert not is_open(world)
    second = world.plan(2, plan.segments[0], world.checkpoint(2, 10).segments[0], predecessor=0)
    world.prepare(second)
    world.commit(second)
    assert read_ids(kafka.bootstrap, topic) == expected_ids((1, ROWS), (2, 10))


@pytest.mark.parametrize("point", ["before EndTxn", "after EndTxn"])
def test_a_committer_that_is_killed_is_repeated_without_sending(
    point: str, world: World, kafka: Kafka, topic: str, start: Children
) -> None:
    plan = world.checkpoint(1, ROWS)
    world.prepare(plan)
    committer = start(world, plan, world.fence(), stop_at=point)
    await_stopped(committer)
    kill(committer)
    assert world.commit(plan).detail["attempt"] == world.votes[1].prepared
    assert read_ids(kafka.bootstrap, topic) == expected_ids((1, ROWS))


@pytest.mark.chaos
@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_killed_at_any_moment_and_repeated_is_exactly_once(
    seed: int, world: World, kafka: Kafka, topic: str, start: Children
) -> None:
    chance = random.Random(seed)
    wanted: list[tuple[int, int]] = []
    for number in range(1, 6):
        plan = world.checkpoint(number, ROWS)
        for step in ("prepare", "commit"):
            process = start(world, plan, world.fence(), step)
            await_working(process)
            time.sleep(chance.uniform(0, 0.6 if step == "prepare" else 0.1))  # the seeded moment, not a wait
            kill(process)
            if step == "prepare":
                world.prepare(plan)
        assert world.commit(plan).counts == {"alerts": ROWS}
        wanted.append((number, ROWS))
        assert read_ids(kafka.bootstrap, topic) == expected_ids(*wanted)


# --- zombies -----------------------------------------------------------------------------------------------------


def stopped_preparer(world: World, plan: Any, start: Children, where: str) -> Any:
    """A preparer that has sent some of its rows, or all of them and its token."""
    arguments: dict[str, Any] = {"stop_before_batch": 10} if where == "among its rows" else {"stop_at": where}
    zombie = start(world, plan, world.fence(), "prepare", **arguments)
    await_stopped(zombie)
    return zombie


@pytest.mark.parametrize("where", ["among its rows", "before the token", "after the token"])
def test_a_zombie_preparer_does_not_disturb_its_successor(
    where: str, world: World, kafka: Kafka, topic: str, start: Children
) -> None:
    plan = world.checkpoint(1, ROWS)
    zombie = stopped_preparer(world, plan, start, where)
    world.prepare(plan)
    wake(zombie)
    assert outcome(zombie) == "FencedError"
    assert is_open(world)
    assert world.commit(plan).detail["attempt"] == world.votes[1].prepared
    assert read_ids(kafka.bootstrap, topic) == expected_ids((1, ROWS))


@pytest.mark.parametrize("where", ["among its rows", "before the token", "after the token"])
def test_a_zombie_preparer_after_the_commit_changes_nothing(
    where: str, world: World, kafka: Kafka, topic: str, start: Children
) -> None:
    plan = world.checkpoint(1, ROWS)
    zombie = stopped_preparer(world, plan, start, where)
    world.prepare(plan)
    world.commit(plan)
    wake(zombie)
    assert outcome(zombie) == "FencedError"
    world.deliver(2, 10)
    assert read_ids(kafka.bootstrap, topic) == expected_ids((1, ROWS), (2, 10))


@pytest.mark.parametrize("where", ["among its rows", "before the token", "after the token"])
def test_a_zombie_preparer_after_the_abort_changes_nothing(
    where: str, world: World, kafka: Kafka, topic: str, start: Children
) -> None:
    plan = world.checkpoint(1, ROWS)
    zombie = stopped_preparer(world, plan, start, where)
    world.abort(plan)
    wake(zombie)
    assert outcome(zombie) == "FencedError"
    assert not is_open(world)
    second = world.plan(2, plan.segments[0], predecessor=0)
    world.prepare(second)
    world.commit(second)
    assert read_ids(kafka.bootstrap, topic) == expected_ids((1, ROWS))


def test_a_late_zombie_is_ended_by_the_next_checkpoint(world: World, kafka: Kafka, topic: str, start: Children) -> None:
    """Its abort could not raise the head, which an earlier number held: so it finds its predecessor, and holds."""
    first, second = world.checkpoint(1, 10), world.checkpoint(2, ROWS)
    world.prepare(first)
    late = world.fence()
    world.abort(second)
    world.commit(first)
    zombie = start(world, second, late, "prepare")
    assert outcome(zombie) == "prepared", "nobody counts its vote: the store refuses it"
    third = world.plan(3, second.segments[0], predecessor=1)
    world.prepare(third)
    assert world.commit(third).detail["attempt"] == world.votes[3].prepared
    assert read_ids(kafka.bootstrap, topic) == expected_ids((1, 10), (2, ROWS))


@pytest.mark.parametrize("point", ["before EndTxn", "after EndTxn"])
def test_a_zombie_committer_finds_its_successors_delivery(
    point: str, world: World, kafka: Kafka, topic: str, start: Children
) -> None:
    plan = world.checkpoint(1, ROWS)
    world.prepare(plan)
    zombie = start(world, plan, world.fence(), stop_at=point)
    await_stopped(zombie)
    world.commit(plan)
    wake(zombie)
    assert outcome(zombie) == "committed"
    assert read_ids(kafka.bootstrap, topic) == expected_ids((1, ROWS))


@pytest.mark.parametrize("point", ["before EndTxn", "after EndTxn"])
def test_a_zombie_committer_leaves_the_next_checkpoint_alone(
    point: str, world: World, kafka: Kafka, topic: str, start: Children
) -> None:
    plan = world.checkpoint(1, ROWS)
    world.prepare(plan)
    zombie = start(world, plan, world.fence(), stop_at=point)
    await_stopped(zombie)
    world.commit(plan)
    second = world.checkpoint(2, 10)
    world.prepare(second)
    wake(zombie)
    assert outcome(zombie) == "FencedError", "the head is that of the next number's attempt"
    assert is_open(world), "the next number is still held"
    assert world.commit(second).detail["attempt"] == world.votes[2].prepared
    assert read_ids(kafka.bootstrap, topic) == expected_ids((1, ROWS), (2, 10))


# --- brokers -----------------------------------------------------------------------------------------------------


@pytest.mark.release
@pytest.mark.chaos
@pytest.mark.slow
def test_transactions_are_still_held_by_a_broker_that_was_killed(
    own_server: Callable[..., Any], tmp_path: Path
) -> None:
    server: Kafka = own_server(Kafka)
    server.create_topic("alerts", 4)
    world = World(tmp_path, server.bootstrap, {"alerts": KafkaSink(topic="alerts", strategy="held", slots=2)})
    wanted: list[tuple[int, int]] = []
    for number in (1, 2, 3):
        plan = world.checkpoint(number, ROWS)
        world.prepare(plan)
        server.kill()
        world.extra["airflow_ft_timeout"] = 3
        with pytest.raises(SinkUnavailableError):
            world.commit(plan)
        server.start()
        world.extra["airflow_ft_timeout"] = 60
        assert is_open(world)
        assert world.commit(plan).detail["attempt"] == world.votes[number].prepared
        wanted.append((number, ROWS))
        assert read_ids(server.bootstrap, "alerts") == expected_ids(*wanted)


@pytest.mark.release
@pytest.mark.chaos
@pytest.mark.slow
def test_a_broker_killed_in_prepare_loses_and_doubles_nothing(
    own_server: Callable[..., Any], tmp_path: Path, start: Children
) -> None:
    server: Kafka = own_server(Kafka)
    server.create_topic("alerts", 4)
    world = World(tmp_path, server.bootstrap, {"alerts": KafkaSink(topic="alerts", strategy="held")})
    world.deliver(1, 10)
    plan = world.checkpoint(2, ROWS)
    world.extra["airflow_ft_timeout"] = 5
    preparer = start(world, plan, world.fence(), "prepare", stop_before_batch=10)
    await_stopped(preparer)
    server.kill()
    wake(preparer)
    assert outcome(preparer) == "SinkUnavailableError"
    server.start()
    world.extra["airflow_ft_timeout"] = 60
    world.prepare(plan)
    world.commit(plan)
    assert read_ids(server.bootstrap, "alerts") == expected_ids((1, 10), (2, ROWS))


@pytest.mark.slow
def test_a_transaction_that_timed_out_is_delivered_from_the_log(own_server: Callable[..., Any], tmp_path: Path) -> None:
    server: Kafka = own_server(Kafka, **{"transaction.abort.timed.out.transaction.cleanup.interval.ms": 500})
    server.create_topic("alerts", 4)
    # Long enough for a prepare on a busy machine: the broker is to end it when it is held, and not while it is filled.
    sink = KafkaSink(topic="alerts", strategy="held", transaction_timeout=timedelta(seconds=15), slots=2)
    world = World(tmp_path, server.bootstrap, {"alerts": sink})
    plan = world.checkpoint(1, ROWS)
    world.prepare(plan)
    wait_for(lambda: not is_open(world, 0) and not is_open(world, 1), 120, "the broker has ended the transaction")
    proof = world.commit(plan)
    assert proof.detail["attempt"] > world.votes[1].prepared
    assert world.commit(plan) == proof
    assert read_ids(server.bootstrap, "alerts") == expected_ids((1, ROWS))


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["transaction", "held"])
def test_an_expired_transaction_names_the_time_out_setting(
    own_server: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, strategy: str
) -> None:
    server: Kafka = own_server(Kafka, **{"transaction.abort.timed.out.transaction.cleanup.interval.ms": 500})
    server.create_topic("alerts", 4)
    timeout = timedelta(seconds=2) if strategy == "held" else None
    world = World(tmp_path, server.bootstrap, {"alerts": KafkaSink(topic="alerts", strategy=strategy,
                                                                   transaction_timeout=timeout)})  # fmt: skip
    world.extra["transaction.timeout.ms"] = 2_000
    plan = world.checkpoint(1, 1_000)
    send = PlanContent.send

    def slowly(self: PlanContent, *given: Any) -> Any:
        sent = send(self, *given)
        wait_for(lambda: not is_open(world), 120, "the broker has ended the transaction")
        return sent

    with monkeypatch.context() as patched, raises(SinkAccessError, "transaction_timeout") as refused:
        patched.setattr(PlanContent, "send", slowly)
        world.prepare(plan)
        world.commit(plan)
    assert refused.error is not None and "transaction.max.timeout.ms" in refused.error.remedy
    world.extra["transaction.timeout.ms"] = 60_000
    world.sinks = {"alerts": KafkaSink(topic="alerts", strategy=strategy)}
    plan = world.plan(1, *plan.segments)
    world.prepare(plan)
    world.commit(plan)
    assert read_ids(server.bootstrap, "alerts") == expected_ids((1, 1_000))


# --- lost requests and replies -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def proxied(servers_folder: Path) -> Iterator[Proxied]:
    with proxied_broker(servers_folder / "kafka-proxied-held") as found:
        yield found


@pytest.fixture
def far(proxied: Proxied, tmp_path: Path) -> Iterator[World]:
    with proxied_world(proxied, tmp_path, "held") as found:
        yield found


@pytest.mark.parametrize("fate", [Fate.LOSE_REQUEST, Fate.LOSE_REPLY])
def test_a_commit_whose_answer_is_lost_is_asked_again(fate: Fate, far: World, proxied: Proxied) -> None:
    _, proxy, bootstrap = proxied
    plan = far.checkpoint(1, 1000)
    far.prepare(plan)
    before = len(proxy.lost)
    proxy.fate = lambda api: fate if api == END_TXN and len(proxy.lost) < before + 2 else Fate.DELIVER
    assert far.commit(plan).detail["attempt"] == far.votes[1].prepared
    assert proxy.lost[before:] == [("EndTxn", fate)] * 2
    assert read_ids(bootstrap, far.sinks["alerts"].topic) == expected_ids((1, 1000))


@pytest.mark.parametrize("fate", [Fate.LOSE_REQUEST, Fate.LOSE_REPLY])
def test_a_commit_whose_answer_never_comes_is_settled_later(fate: Fate, far: World, proxied: Proxied) -> None:
    _, proxy, bootstrap = proxied
    plan = far.checkpoint(1, 1000)
    far.prepare(plan)
    far.extra["airflow_ft_timeout"] = 10
    proxy.fate = lambda api: fate if api == END_TXN else Fate.DELIVER
    with pytest.raises(SinkUnavailableError) as caught:
        far.commit(plan)
    assert "committing transactional id" in caught.value.headline
    proxy.fate = lambda api: Fate.DELIVER
    far.extra["airflow_ft_timeout"] = 60
    assert far.commit(plan).detail["attempt"] == far.votes[1].prepared
    assert read_ids(bootstrap, far.sinks["alerts"].topic) == expected_ids((1, 1000))


@pytest.mark.chaos
@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_whatever_is_lost_on_the_way_rows_arrive_exactly_once(seed: int, far: World, proxied: Proxied) -> None:
    check_delivery_through_losses(seed, far, proxied)
