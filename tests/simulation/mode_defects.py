"""Mistakes in what a mode leaves out, as in `defects`: each must be found."""

from __future__ import annotations

from typing import Any

from airflow_ft.protocol.coordinator import Coordinator
from airflow_ft.protocol.model import Fence, ParticipantPlan, Plan, Promise
from airflow_ft.protocol.votes import Outcome, Proof
from airflow_ft.sinks.kafka.plain import PlainParticipant
from tests.simulation.defect import NAMED, Change, defect
from tests.simulation.spark import Spark
from tests.simulation.world import World

REPEATING, AHEAD = NAMED["at least once"], NAMED["a stream that runs ahead, at least once"]
LOSING = NAMED["a stream, at most once"]


@defect(REPEATING, "I2")
def recorded_before_it_is_sent(change: Change) -> None:
    """What dies in between is lost: that is AT_MOST_ONCE."""
    commit = PlainParticipant.commit

    def later(self: PlainParticipant, plan: Plan, fence: Fence, vote: Any = None, **rest: Any) -> Proof:
        if (waiting := self.__dict__.pop("waiting", None)) is not None:
            commit(self, *waiting)
        self.__dict__["waiting"] = plan, fence
        counts = {name: sum(segment.rows.get(name, 0) for segment in plan.segments) for name in self._sinks}
        self._done = Proof(self._plan.name, plan.number, Outcome.COMMITTED, plan.digest, fence.epoch, counts)
        return self._done

    change(PlainParticipant, "commit", later)


@defect(NAMED["the mode changes back"], "I7")
def tokens_expected_of_deliveries_that_left_none(change: Change) -> None:
    change(ParticipantPlan, "keeps_markers", property(lambda self: True))
    opened = World.open

    def plain(self: World, plan: ParticipantPlan) -> Any:
        if plan.promise is not Promise.AT_LEAST_ONCE:
            return opened(self, plan)
        return PlainParticipant(plan, self._clients[plan.name], self.wal)

    change(World, "open", plain)


@defect(AHEAD, "I4")
def a_sink_that_is_back_takes_what_came_meanwhile_first(change: Change) -> None:
    change(Coordinator, "_require_delivered", lambda *_: None)


@defect(LOSING, "I2")
def sources_read_again_from_where_the_first_attempt_began(change: Change) -> None:
    """As with AT_LEAST_ONCE and EXACTLY_ONCE, where an attempt goes on behind what was published."""
    change(Spark, "begin", lambda self, request: {})
