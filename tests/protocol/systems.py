"""Model systems for the protocol's tests: one that decides (like MySQL `local`), one that follows (like Kafka).

They keep what a real server would keep (head or token, markers, visible rows) and refuse what the real sinks refuse.
The real sinks are tested against real servers in tests/integration.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from airflow_ft.protocol.errors import (
    DeclinedError,
    FencedError,
    ForeignOwnerError,
    SinkUnavailableError,
    StoreBehindSinkError,
    TokenLostError,
)
from airflow_ft.protocol.meter import Meter
from airflow_ft.protocol.model import Fence, ParticipantPlan, Plan, Promise
from airflow_ft.protocol.orphans import Orphan, PreparedEnding
from airflow_ft.protocol.set_aside import SetAside
from airflow_ft.protocol.set_aside import detail as set_aside_detail
from airflow_ft.protocol.votes import Outcome, Proof, SinkHead, Vote
from airflow_ft.sinks import registry

SYSTEM = registry.System(kind="model", title="models", package=__package__)
"""For those who look a system up: it has no part."""


@dataclass
class System:
    """What a server remembers: `rows` are the numbers of the segments that became visible, in order."""

    promise: Promise
    rank: tuple[int, int] = (0, 0)
    last: int = 0
    floor: int = 0
    markers: dict[int, Proof] = field(default_factory=dict)
    rows: list[int] = field(default_factory=list)
    prepared: dict[int, tuple[tuple[int, int], list[int]]] = field(default_factory=dict)
    declines_in_prepare: bool = False
    declines_in_commit: bool = False  # a row of each sink, until it is set aside
    token_is_gone: bool = False
    expires: bool = True  # its token goes by itself
    renewed: int = 0
    seeded_after: Proof | None = None
    foreign: bool = False
    away: bool = False
    owner: str = "other"
    left: list[Orphan] = field(default_factory=list)

    def raise_head(self, fence: Fence) -> None:
        if self.away:
            raise SinkUnavailableError("nobody answers.")
        if self.foreign:
            raise ForeignOwnerError("the head belongs to another decision log.", remedy="`airflow ft adopt`.")
        if fence.rank < self.rank:
            raise FencedError(f"the head is at {self.rank}, this is {fence.rank}.", head_epoch=self.rank[0])
        self.rank, self.owner = fence.rank, fence.installation


@dataclass
class ModelParticipant:
    """A participant over a `System`."""

    name: str
    system: System
    closed: list[str]

    def prepare(self, plan: Plan, fence: Fence) -> Mapping[str, Any]:
        self.system.raise_head(fence)
        if self.system.token_is_gone:
            raise TokenLostError("the token is gone.")
        if self.system.last < fence.delivered and plan.number not in self.system.markers:
            lost = TokenLostError if self.system.expires else StoreBehindSinkError
            raise lost(f"delivered {self.system.last} last, but had delivered {fence.delivered}.")
        if self.system.declines_in_prepare:
            raise DeclinedError("NULL in a NOT NULL column.", remedy="mend the job.", sink="rows", column="id")
        if self.system.promise is Promise.TWO_PHASE and plan.number not in self.system.markers:
            self.system.prepared[plan.number] = (fence.rank, [segment.number for segment in plan.segments])
        return {"attempt": fence.attempt}

    def commit(self, plan: Plan, fence: Fence, vote: Vote | None = None, *, set_aside: bool = False) -> Proof:
        self.system.raise_head(fence)
        marker = self.system.markers.get(plan.number)
        if marker is not None:
            if marker.digest != plan.digest:
                raise StoreBehindSinkError("another digest stands under this number.")
            return marker
        if self.system.promise is Promise.TWO_PHASE:
            assert vote is not None
            rank, rows = self.system.prepared.pop(plan.number, ((0, 0), []))
            if vote.prepared:
                assert rank[1] == vote.prepared == vote.notes["attempt"]
            else:  # the decision counted no attempt of it
                if self.system.declines_in_commit and not set_aside:
                    raise DeclinedError("duplicate key 7.", remedy="remove it.", sink="rows")
                rows = [segment.number for segment in plan.segments]
            self.system.rows += rows
            self.system.last = max(self.system.last, plan.number)
            return self._mark(plan, fence, Outcome.COMMITTED, self._set_aside(plan))
        if self.system.token_is_gone:
            raise TokenLostError("the token is gone.")
        if self.system.last != plan.participant(self.name).predecessor:
            raise TokenLostError(f"expected {plan.participant(self.name).predecessor}, found {self.system.last}.")
        if self.system.declines_in_commit and not set_aside:
            raise DeclinedError("duplicate key 7.", remedy="remove it.", sink="rows")
        self.system.rows += [segment.number for segment in plan.segments]
        self.system.last = plan.number
        return self._mark(plan, fence, Outcome.COMMITTED, self._set_aside(plan))

    def _set_aside(self, plan: Plan) -> Mapping[str, Any]:
        if not self.system.declines_in_commit:
            return {}
        found = SetAside(1, (f"file:///dead/{plan.number}",), ("duplicate key 7.",), ((plan.number, "f", 0, 1),))
        return set_aside_detail(dict.fromkeys(plan.participant(self.name).sinks, found))

    def abort(self, plan: Plan, fence: Fence, detail: Mapping[str, Any]) -> Proof:
        self.system.raise_head(fence)
        if self.system.promise is Promise.TWO_PHASE:
            assert plan.number not in self.system.markers, "decided to commit, and rolled back"
            self.system.prepared.pop(plan.number, None)
            return Proof(self.name, plan.number, Outcome.ABORTED, plan.digest, fence.epoch, {}, detail)
        return self.system.markers.get(plan.number) or self._mark(plan, fence, Outcome.ABORTED, detail)

    def _mark(self, plan: Plan, fence: Fence, outcome: Outcome, detail: Mapping[str, Any]) -> Proof:
        counts = {
            sink: sum(segment.rows.get(sink, 0) for segment in plan.segments) - ("set_aside" in detail)
            for sink in plan.participant(self.name).sinks
        }
        proof = Proof(self.name, plan.number, outcome, plan.digest, fence.epoch, counts, detail)
        self.system.markers[plan.number] = proof
        return proof

    def proof(self, plan: Plan) -> Proof | None:
        return self.system.markers.get(plan.number)

    def forget(self, fence: Fence, floor: int) -> None:
        self.system.floor = max(self.system.floor, floor)
        self.system.markers = {n: proof for n, proof in self.system.markers.items() if n > self.system.floor}

    def head(self, pipeline: str) -> SinkHead | None:
        return None if self.system.token_is_gone else SinkHead(self.system.owner, self.system.rank[0], self.system.last)

    def adopt(self, fence: Fence, number: int) -> None:
        self.system.rank, self.system.last, self.system.token_is_gone = fence.rank, number, False
        self.system.foreign = False

    def orphans(self, pipeline: str, installation: str) -> Sequence[Orphan]:
        return tuple(self.system.left)

    def end_orphans(self, fence: Fence, ending: PreparedEnding | None, *, make_way: bool = False) -> None:
        self.system.left.clear()

    def heuristic(self, plan: Plan) -> str:
        return ""

    def close(self) -> None:
        self.closed.append(self.name)


@dataclass
class PlainModel(ModelParticipant):
    """Without markers, as for AT_LEAST_ONCE: it knows what this very object was told."""

    done: Proof | None = None

    def prepare(self, plan: Plan, fence: Fence) -> Mapping[str, Any]:
        return {}

    def commit(self, plan: Plan, fence: Fence, vote: Vote | None = None, *, set_aside: bool = False) -> Proof:
        if self.system.away:
            raise SinkUnavailableError("nobody answers.")
        self.system.rows += [segment.number for segment in plan.segments]
        counts = {sink: sum(s.rows.get(sink, 0) for s in plan.segments) for sink in plan.participant(self.name).sinks}
        self.done = Proof(self.name, plan.number, Outcome.COMMITTED, plan.digest, fence.epoch, counts)
        return self.done

    def proof(self, plan: Plan) -> Proof | None:
        return self.done if self.done is not None and self.done.number == plan.number else None

    def forget(self, fence: Fence, floor: int) -> None:
        pass

    def head(self, pipeline: str) -> SinkHead | None:
        return None


class ExpiringModel(ModelParticipant):
    """One whose token goes when nobody writes it for long."""

    def remembers(self, pipeline: str) -> bool:
        return not self.system.token_is_gone

    def seed(self, fence: Fence, number: int, last: Proof | None = None) -> None:
        self.system.raise_head(fence)
        self.system.seeded_after = last
        self.adopt(fence, number)

    def restore(self, fence: Fence, plan: Plan) -> None:
        self.seed(fence, plan.participant(self.name).predecessor)

    def renew(self, fence: Fence) -> None:
        self.system.renewed += 1


@dataclass
class Systems:
    """The participant factory of the tests; knows what is open."""

    systems: dict[str, System]
    opened: list[str] = field(default_factory=list)
    closed: list[str] = field(default_factory=list)

    def __call__(self, plan: ParticipantPlan) -> ModelParticipant:
        self.opened.append(plan.name)
        system = self.systems[plan.name]
        keeps = ExpiringModel if system.expires else ModelParticipant
        return (keeps if plan.keeps_markers else PlainModel)(plan.name, system, self.closed)


@dataclass(frozen=True)
class ModelSink:
    """A sink specification for `plan_delivery`."""

    conn_id: str
    promise: Promise
    kind: str = "model"
    strategy: str = "model"
    table: str = "t"

    def at_least_once(self) -> Promise:
        return Promise.AT_LEAST_ONCE if self.promise is Promise.REDO else self.promise

    def settings(self) -> Mapping[str, Any]:
        return {"table": self.table}


class NoArchive:
    """An archive without files."""

    def delete(self, segment: object) -> None:
        pass

    def sweep(self, pipeline: str, keep: object, below_epoch: int, must_stop: object) -> bool:
        return True


class Metered(Meter):
    """Remembers its calls."""

    traces = False

    def __init__(self, *, traces: bool = False) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.traces = traces

    def ended(self, *args: Any) -> None:
        self.calls.append(("ended", *args))

    def failed(self, *args: Any) -> None:
        self.calls.append(("failed", *args))

    def confirmed(self, *args: Any) -> None:
        self.calls.append(("confirmed", *args))

    def completed(self, *args: Any) -> None:
        self.calls.append(("completed", *args))

    def dead_letters(self, *args: Any) -> None:
        self.calls.append(("dead_letters", *args))

    def waited(self, *args: Any) -> None:
        self.calls.append(("waited", *args))

    def state(self, *args: Any) -> None:
        self.calls.append(("state", *args))

    def taken(self, *args: Any) -> None:
        self.calls.append(("taken", *args))

    def lag(self, *args: Any) -> None:
        self.calls.append(("lag", *args))
