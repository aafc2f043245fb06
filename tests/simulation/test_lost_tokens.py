"""A pipeline into the model of Kafka, run by run: slots that change, and tokens that vanish at the worst moment."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import pytest

from airflow_ft.protocol.errors import SinkUnavailableError, StateConflictError, TokenLostError
from airflow_ft.protocol.lease import Worker
from airflow_ft.protocol.model import AfterAbort, Checkpoint, CheckpointState, RunKey
from airflow_ft.protocol.planning import plan_delivery
from airflow_ft.protocol.resolution import Resolver
from airflow_ft.protocol.steps import Context, commit_step, prepare_step, recover_step
from airflow_ft.sinks.kafka import held
from airflow_ft.sinks.kafka.slot import Slot
from airflow_ft.sinks.kafka.spec import KafkaSink
from tests.simulation.adapters import Running
from tests.simulation.kafka_broker import KafkaCluster, ModelClients
from tests.simulation.laws import PIPELINE
from tests.simulation.source import PARTS
from tests.simulation.world import Scenario, World

T = TypeVar("T")
S = CheckpointState
TWO_ROWS = Scenario("two rows, each in a file of its own", {PARTS: ("slots", "log")}, may_halt=True)
STRATEGIES = pytest.mark.parametrize("strategy", ["transaction", "held"])


class Pipeline:
    """Delivers one item a run, and judges each call by the laws. An error of a step is the caller's."""

    def __init__(self, running: Running, strategy: str, slots: int) -> None:
        self.strategy, self.slots = strategy, slots
        self.world = World(TWO_ROWS, lambda *_: None, running)
        cluster = self.world.servers["log"]
        assert isinstance(cluster, KafkaCluster)
        self.cluster = cluster

    def prepare(self, number: int, *, recover: bool = True) -> Checkpoint:
        """Stage and prepare the next item, which has that number."""
        run = RunKey("dag", f"run-{number}")
        context = self._context(run)
        sink = KafkaSink(topic=PARTS, conn_id="log", strategy=self.strategy, slots=self.slots)

        def steps() -> None:
            if recover:
                recover_step(context)
            self.world._stage(context, number)
            prepare_step(context, plan_delivery({PARTS: sink}), self.world.config, "log")

        self.act(steps)
        return self.checkpoint(number)

    def commit(self, number: int) -> None:
        self.act(lambda: commit_step(self._context(RunKey("dag", f"run-{number}")), "log"))

    def deliver(self, number: int) -> None:
        self.prepare(number)
        self.commit(number)

    def act(self, what: Callable[[], T]) -> T:
        """Do this as a process of its own."""
        found: list[T] = []
        process = self.world.kernel.start("A", lambda: found.append(what()))
        self.world.kernel.run()
        if process.error is not None:
            raise process.error
        return found[0]

    def person(self, action: Callable[[Resolver], Checkpoint]) -> Checkpoint:
        """An action of `airflow ft in-doubt`."""
        resolver = Resolver(self.world.store, PIPELINE, self.world.open, "a person", Worker("a person"), 0.0)
        return self.act(lambda: action(resolver))

    def lose_tokens(self, *slots: int) -> None:
        """As offsets.retention.minutes would, long after what was held has timed out."""
        self.cluster.time_out()
        for slot in slots:
            self.cluster.ids[f"airflow_ft.{PIPELINE}.log.{slot}"].offset = None

    def checkpoint(self, number: int) -> Checkpoint:
        found: Checkpoint = self.world.log.checkpoint(PIPELINE, number)
        return found

    def check_exactly_once(self, *items: int) -> None:
        shown = sorted((item.number, item.part) for item in self.cluster.visible[PARTS])
        assert shown == [(item, part) for item in items for part in (1, 2)]

    def _context(self, run: RunKey) -> Context:
        return Context(
            store=self.world.store,
            pipeline=PIPELINE,
            run=run,
            participants=self.world.open,
            worker=Worker(str(run), 1),
            lease_seconds=0.0,
            run_is_over=lambda other: other != run,
        )


@pytest.mark.parametrize("gone", [(0,), (1,), (0, 1)], ids=["first", "second", "both"])
def test_an_abort_needs_no_token(running: Running, gone: tuple[int, ...]) -> None:
    """It halted the pipeline, and no command had a way out."""
    pipeline = Pipeline(running, "held", 2)
    pipeline.deliver(1)
    pipeline.prepare(2)
    pipeline.lose_tokens(*gone)
    assert pipeline.person(lambda resolver: resolver.abort(2, AfterAbort.CARRIED)).state is S.ABORTED
    assert not pipeline.checkpoint(2).rollback_pending
    pipeline.deliver(3)
    pipeline.check_exactly_once(1, 2, 3)


@STRATEGIES
def test_slots_may_be_added_and_taken_away(running: Running, strategy: str) -> None:
    """With `held`, the old token of a slot that was left out looked like a checkpoint that is not delivered yet."""
    pipeline = Pipeline(running, strategy, 1)
    for number, pipeline.slots in enumerate((1, 3, 2, 1, 3), 1):
        found = pipeline.prepare(number)
        assert "deferred" not in found.votes["log"].notes
        pipeline.commit(number)
    pipeline.check_exactly_once(1, 2, 3, 4, 5)


@STRATEGIES
@pytest.mark.parametrize("slots", [(1, 1, 2), (2, 1, 1, 2)], ids=["new", "left out"])
def test_slots_wait_for_a_delivery_without_them(running: Running, strategy: str, slots: tuple[int, ...]) -> None:
    """With `held` the vote passed, and the lack was found after the decision, beside visible rows."""
    pipeline = Pipeline(running, strategy, 1)
    *delivered, waiting, last = range(1, len(slots) + 1)
    for number in delivered:
        pipeline.slots = slots[number - 1]
        pipeline.deliver(number)
    pipeline.slots = slots[waiting - 1]
    pipeline.prepare(waiting)
    pipeline.slots = slots[last - 1]
    with pytest.raises(StateConflictError):
        pipeline.prepare(last, recover=False)
    pipeline.deliver(last + 1)
    pipeline.check_exactly_once(*range(1, last + 2))


@STRATEGIES
@pytest.mark.parametrize("gone", [(1,), (0, 1)], ids=["of the one that waits", "of both"])
def test_redelivery_sends_what_lost_tokens_would_prove(
    running: Running, monkeypatch: pytest.MonkeyPatch, strategy: str, gone: tuple[int, ...]
) -> None:
    """Nothing was sent as long as one slot remembered, and a person was told to delete its token, too."""
    pipeline = half_delivered(running, monkeypatch, strategy)
    pipeline.lose_tokens(*gone)
    with pytest.raises(TokenLostError) as caught:
        pipeline.person(lambda resolver: resolver.commit(2))
    assert "--redeliver" in caught.value.remedy
    if 0 in gone:  # then slot 0 is asked for its rows too: a person has to know that they are not there
        pipeline.cluster.visible[PARTS] = [item for item in pipeline.cluster.visible[PARTS] if item.number == 1]
    assert pipeline.person(lambda resolver: resolver.redeliver(2)).state is S.COMPLETED
    pipeline.deliver(3)
    pipeline.check_exactly_once(1, 2, 3)


def test_a_redelivery_takes_no_longer_than_the_brokers_allow(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """An administrator has lowered transaction.max.timeout.ms since the vote: every producer was refused."""
    pipeline = Pipeline(running, "held", 2)
    pipeline.prepare(1)
    pipeline.cluster.time_out()
    monkeypatch.setattr(held, "longest_transaction", lambda _: 60_000)
    given: list[int] = []
    producer = ModelClients.producer

    def noted(self: ModelClients, transactional_id: str, limits: Any, strategy: Any = None) -> Any:
        given.append(limits["transaction.timeout.ms"])
        return producer(self, transactional_id, limits, strategy)

    monkeypatch.setattr(ModelClients, "producer", noted)
    pipeline.commit(1)
    assert given == [60_000, 60_000]


def half_delivered(running: Running, monkeypatch: pytest.MonkeyPatch, strategy: str) -> Pipeline:
    """Slot 0 has delivered 2, which is decided, and slot 1 could not."""
    pipeline = Pipeline(running, strategy, 2)
    pipeline.deliver(1)
    pipeline.prepare(2)
    pipeline.cluster.time_out()
    with_producer = Slot.with_producer

    def failing(self: Slot, *args: Any, **named: Any) -> Any:
        if self.index == 1:
            raise SinkUnavailableError("no leader.")
        return with_producer(self, *args, **named)

    with monkeypatch.context() as patched, pytest.raises(SinkUnavailableError):
        patched.setattr(Slot, "with_producer", failing)
        pipeline.commit(2)
    assert [item.part for item in pipeline.cluster.visible[PARTS] if item.number == 2] == [1]
    return pipeline
