"""A pipeline in a store, led through its states in few words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from airflow_ft.protocol.model import (
    AfterAbort,
    Checkpoint,
    CheckpointingMode,
    ParticipantPlan,
    Plan,
    Promise,
    RunKey,
    Segment,
    SparkPosition,
)
from airflow_ft.protocol.pipelines import Lease
from airflow_ft.protocol.reasons import AbortReason
from airflow_ft.protocol.votes import Outcome, Proof
from airflow_ft.store.decision_log import DecisionLog

PIPELINE = "orders"
RUN = RunKey("dag", "run-1")
LATER_RUN = RunKey("dag", "run-2")


def a_lease(holder: str = "worker", epoch: int = 0, try_number: int = 1) -> Lease:
    return Lease(holder=holder, epoch=epoch, task="dag/stage", try_number=try_number, counter=0)


def a_segment(number: int, rows: int = 10) -> Segment:
    return Segment(number, f"{number:064x}", f"file:///wal/{number}", {"orders": rows, "alerts": 1}, 4_100_000)


def a_position(batch: int) -> SparkPosition:
    return SparkPosition("file:///spark/1-1", batch)


@dataclass
class Scene:
    """`db` carries the commit point and `log` follows, unless `promises` says otherwise."""

    store: DecisionLog
    pipeline: str = PIPELINE
    epoch: int = 0
    promises: Mapping[str, Promise] = field(default_factory=lambda: {"db": Promise.ATOMIC, "log": Promise.REDO})

    def __post_init__(self) -> None:
        self.store.register(self.pipeline)

    def take(self, holder: str = "worker") -> int:
        seen = {lease.holder: lease.counter for lease in self.store.leases(self.pipeline)}
        epoch = self.store.pipeline(self.pipeline).epoch
        self.epoch = self.store.take_epoch(self.pipeline, epoch, seen, a_lease(holder), "a test")
        return self.epoch

    def trigger(self, run: RunKey | None = RUN) -> int:
        return self.store.trigger(self.pipeline, self.epoch, run)

    def publish(
        self,
        number: int,
        *,
        segment: bool = True,
        positions: Mapping[str, int] | None = None,
        as_of: datetime | None = None,
    ) -> None:
        self.store.publish(
            self.pipeline,
            self.epoch,
            number,
            self.store.pipeline(self.pipeline).last_published,
            a_segment(number) if segment else None,
            a_position(number) if segment else None,
            ({"orders": number} if segment else {}) if positions is None else positions,
            as_of,
        )

    def stage(
        self,
        count: int = 1,
        run: RunKey = RUN,
        *,
        continues: bool = False,
        made_with: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Takes an epoch if there is none, and publishes so many checkpoints. `continues`: more may be triggered."""
        if not self.epoch:
            self.take()
        self.store.begin_stage(self.pipeline, self.epoch, run, spec=made_with)
        numbers = []
        for _ in range(count):
            numbers.append(self.trigger(run))
            self.publish(numbers[-1])
        if not continues:
            self.store.end_stage(self.pipeline, self.epoch, run, a_position(numbers[-1]))
        return numbers

    def carry(self) -> int:
        number = self.trigger(None)
        self.publish(number, segment=False)
        return number

    def make_plan(self, number: int, segments: Sequence[int] | None = None) -> Plan:
        return Plan(
            pipeline=self.pipeline,
            installation=self.store.installation,
            number=number,
            segments=tuple(a_segment(n) for n in (segments if segments is not None else [number])),
            participants=tuple(
                ParticipantPlan(name, "kind", "strategy", promise, 0, {name: {"table": "t"}})
                for name, promise in self.promises.items()
            ),
            commit_point=next((name for name, promise in self.promises.items() if promise is Promise.ATOMIC), None),
            reasons=("a test",),
        )

    def plan(self, number: int, segments: Sequence[int] | None = None) -> Plan:
        return self.store.plan(self.pipeline, self.epoch, self.make_plan(number, segments))

    def plan_at_least_once(self, number: int, segments: Sequence[int] | None = None) -> Plan:
        """`log` keeps no markers in it."""
        plan = self.make_plan(number, segments)
        participants = [
            replace(each, promise=Promise.AT_LEAST_ONCE) if each.name == "log" else each for each in plan.participants
        ]
        mode = CheckpointingMode.AT_LEAST_ONCE
        plan = replace(plan, participants=tuple(participants), commit_point=None, mode=mode)
        return self.store.plan(self.pipeline, self.epoch, plan)

    def attempt(self, number: int, participant: str) -> int:
        return self.store.begin_attempt(self.pipeline, self.epoch, number, participant)

    def vote(self, number: int, participant: str) -> Checkpoint:
        return self.store.vote(self.pipeline, self.epoch, number, participant, self.attempt(number, participant))

    def prepare(self, number: int, segments: Sequence[int] | None = None) -> Checkpoint:
        self.plan(number, segments)
        for name in self.promises:
            self.vote(number, name)
        return self.checkpoint(number)

    def votes(self, number: int) -> dict[str, int]:
        return {name: vote.prepared for name, vote in self.checkpoint(number).votes.items()}

    def decide(self, number: int) -> Checkpoint:
        return self.store.decide(self.pipeline, self.epoch, number, self.votes(number))

    def proof(self, number: int, participant: str) -> Proof:
        plan = self.checkpoint(number).plan
        assert plan is not None
        return Proof(participant, number, Outcome.COMMITTED, plan.digest, self.epoch, {"orders": 10}, {"connection": 7})

    def prove(self, number: int, participant: str) -> Checkpoint:
        return self.store.record_proof(self.pipeline, self.epoch, number, self.proof(number, participant))

    def complete(self, number: int, segments: Sequence[int] | None = None, *, finalise: bool = True) -> Checkpoint:
        self.prepare(number, segments)
        self.decide(number)
        for name in self.promises:
            self.prove(number, name)
        if finalise:
            self.store.finalise(self.pipeline, number)
        return self.checkpoint(number)

    def abort(
        self,
        number: int,
        after: AfterAbort = AfterAbort.CARRIED,
        rewind_from: int | None = None,
        *,
        tombstoned: bool = True,
    ) -> Checkpoint:
        back_to = a_position(rewind_from - 1) if rewind_from is not None and rewind_from > 1 else None
        return self.store.abort(
            self.pipeline,
            self.epoch,
            number,
            AbortReason.DECLINED,
            "too long",
            after,
            rewind_from,
            back_to,
            tombstoned=tombstoned,
        )

    def quarantine(self, number: int, message: str = "a test.") -> Checkpoint:
        return self.store.quarantine(self.pipeline, self.epoch, number, message)

    def release(self, number: int, message: str = "a test.") -> Checkpoint:
        return self.store.release(self.pipeline, self.epoch, number, message)

    def rolled_back(self, number: int, participant: str) -> Checkpoint:
        return self.store.record_rollback(self.pipeline, self.epoch, number, participant)

    def checkpoint(self, number: int) -> Checkpoint:
        return self.store.checkpoint(self.pipeline, number)

    def open_numbers(self) -> list[int]:
        return [c.number for c in self.store.open_checkpoints(self.pipeline)]

    def event_texts(self, number: int | None = None) -> list[str]:
        """The event log, oldest first."""
        return [event.message for event in reversed(self.store.events(self.pipeline, number, limit=10_000))]

    def kinds(self, number: int | None = None) -> list[str]:
        return [event.kind for event in reversed(self.store.events(self.pipeline, number, limit=10_000))]
