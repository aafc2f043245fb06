"""A pipeline with a deciding and a following system over a real SQLite store, and faults at chosen calls."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from airflow_ft.protocol.config import CheckpointConfig
from airflow_ft.protocol.lease import Worker, new_epoch
from airflow_ft.protocol.model import CheckpointingMode, CheckpointState, Promise, RunKey, Segment, SparkPosition
from airflow_ft.protocol.planning import Delivery, plan_delivery
from airflow_ft.protocol.steps import Context, commit_step, confirm_step, prepare_step, recover_step
from airflow_ft.store import open_store
from airflow_ft.store.decision_log import DecisionLog
from tests.protocol.systems import ModelSink, NoArchive, System, Systems
from tests.through import Through

PIPELINE = "orders"
RUN = RunKey("dag", "run-1")
# The first run renews its leases so rarely that it seems to stand still; later ones do not wait long to see that.
LEASE_SECONDS = defaultdict(lambda: 0.03, {RUN: 3600.0})


class Crash(BaseException):
    """The process dies here."""


@dataclass
class Fault:
    """Acts at the `at`-th call that passes through: `before` it is sent, or `after` it took effect."""

    at: int
    when: str
    action: Callable[[], None]
    calls: int = 0
    struck: str = ""
    past = frozenset({"close", "now", "release_lease", "renew_lease"})

    def around(self, name: str, call: Callable[[], Any]) -> Any:
        self.calls += 1
        mine = self.calls == self.at
        if mine and self.when == "before":
            self.struck = f"before call {self.at} ({name})"
            self.action()
        result = call()
        if mine and self.when == "after":
            self.struck = f"after call {self.at} ({name})"
            self.action()
        return result


def crash() -> None:
    raise Crash


@dataclass
class World:
    """`db` decides, `log` follows; `rows` counts per segment are 10 into each sink."""

    folder: Path
    max_rows: int = 0
    systems: dict[str, System] = field(
        default_factory=lambda: {"db": System(Promise.ATOMIC), "log": System(Promise.REDO)}
    )

    def __post_init__(self) -> None:
        self.store: DecisionLog = open_store(f"sqlite:///{self.folder}/ft.db")
        self.delivery = self.deliver_into({"rows": "db", "copies": "log"})
        self.config = CheckpointConfig(max_delivery_rows=self.max_rows)

    def deliver_into(
        self,
        sinks: Mapping[str, str],
        table: str = "t",
        mode: CheckpointingMode = CheckpointingMode.EXACTLY_ONCE,
    ) -> Delivery:
        specs = {sink: ModelSink(conn, self.systems[conn].promise, table=table) for sink, conn in sinks.items()}
        return plan_delivery(specs, mode=mode)

    def context(self, try_number: int = 1, fault: Fault | None = None, run: RunKey = RUN) -> Context:
        systems = Systems(self.systems)
        store: Any = self.store

        def participants(plan: Any) -> Any:
            return Through(systems(plan), fault, plan.name) if fault else systems(plan)

        return Context(
            store=Through(store, fault, "store") if fault else store,  # type: ignore[arg-type]
            pipeline=PIPELINE,
            run=run,
            participants=participants,
            worker=Worker(f"{run}/step", try_number),
            lease_seconds=LEASE_SECONDS[run],
            run_is_over=lambda other: other != run,
        )

    def stage(
        self, count: int, run: RunKey = RUN, try_number: int = 1, sinks: Sequence[str] = ("rows", "copies")
    ) -> list[int]:
        """Publishes `count` checkpoints of this run, as the Spark driver would, with rows for these sinks."""
        self.store.register(PIPELINE)
        self.store.enter_turn(PIPELINE, run, None)
        numbers = []
        worker = Worker(f"{run}/step", try_number)
        with new_epoch(self.store, PIPELINE, worker, "stage", LEASE_SECONDS[run]) as (epoch, _):
            self.store.begin_stage(PIPELINE, epoch, run)
            for _ in range(count):
                number = self.store.trigger(PIPELINE, epoch, run)
                rows = dict.fromkeys(sinks, 10)
                segment = Segment(number, f"{number:064x}", f"file:///wal/{number}", rows, 100)
                position = SparkPosition(f"file:///spark/{epoch}-1", number)
                predecessor = self.store.pipeline(PIPELINE).last_published
                self.store.publish(PIPELINE, epoch, number, predecessor, segment, position, {})
                numbers.append(number)
            self.store.end_stage(PIPELINE, epoch, run, None)
        return numbers

    def prepared(self, count: int = 1) -> list[int]:
        """Stages `count` checkpoints and takes every vote on them."""
        numbers = self.stage(count)
        for name in self.delivery.names:
            prepare_step(self.context(), self.delivery, self.config, name)
        return numbers

    def steps(self, context: Context, delivery: Delivery | None = None) -> None:
        """recover, every prepare, every commit, confirm."""
        delivery = delivery or self.delivery
        recover_step(context)
        for name in delivery.names:
            prepare_step(context, delivery, self.config, name)
        for name in delivery.names:
            commit_step(context, name)
        confirm_step(context, self.config, NoArchive())  # type: ignore[arg-type]

    def check_exactly_once(self, numbers: list[int]) -> None:
        """I2 and I4 from outside: every segment once, in order, in both systems; everything confirmed."""
        for name, system in self.systems.items():
            assert system.rows == numbers, f"{name}: {system.rows}"
            assert not system.prepared, f"{name}: {system.prepared}"
        for number in numbers:
            assert self.store.checkpoint(PIPELINE, number).is_confirmed
        states = {c.state for c in self.store.checkpoints(PIPELINE)}
        assert not states & {CheckpointState.STAGED, CheckpointState.PREPARED, CheckpointState.COMMITTING}
