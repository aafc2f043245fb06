"""A model participant that promises TWO_PHASE: prepared branches that outlive their process.

It stands for MySQL `xa` and its like: list the prepared branches before the marker is read; undecided, roll back only
older ones; decided, commit the branch that the decision counted, and deliver anew under the marker what was lost.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from airflow_ft.protocol.errors import FencedError, SinkUnavailableError, StateConflictError, StoreBehindSinkError
from airflow_ft.protocol.model import Fence, ParticipantPlan, Plan
from airflow_ft.protocol.orphans import Orphan, PreparedEnding
from airflow_ft.protocol.votes import Outcome, Proof, SinkHead, Vote
from tests.simulation.kernel import Kernel
from tests.simulation.source import Item, Wal

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Branch:
    """A prepared transaction: it holds marker and rows, and nobody sees them."""

    xid: str
    number: int
    rank: tuple[int, int]
    digest: str
    items: tuple[tuple[str, Item], ...]


@dataclass(frozen=True, slots=True)
class TwoPhaseCommit:
    """What became visible by one commit."""

    server: str
    number: int
    rows: tuple[tuple[str, Item], ...]
    rank: tuple[int, int]


@dataclass
class TwoPhaseServer:
    """What the server keeps; each method is one statement, or one short transaction."""

    kernel: Kernel
    name: str
    rank: tuple[int, int] = (0, 0)
    last: int = 0
    floor: int = 0
    markers: dict[int, Proof] = field(default_factory=dict)
    branches: dict[str, Branch] = field(default_factory=dict)
    visible: dict[str, list[Item]] = field(default_factory=dict)
    commits: list[TwoPhaseCommit] = field(default_factory=list)
    has_lost_branches: bool = False

    def raise_head(self, rank: tuple[int, int]) -> None:
        if rank < self.rank:
            raise FencedError(f"the head is at {self.rank}, this is {rank}.", head_epoch=self.rank[0])
        self.rank = rank

    def prepare(self, branch: Branch) -> None:
        """XA START to XA PREPARE: the branch locks the head, and its marker's key."""
        if branch.rank < self.rank:
            raise FencedError(f"the head is at {self.rank}, this is {branch.rank}.", head_epoch=self.rank[0])
        if branch.number in self.markers or branch.number <= self.floor:
            raise StateConflictError(f"number {branch.number} is settled here.")
        if any(other.number == branch.number for other in self.branches.values()):
            raise SinkUnavailableError("another branch holds the marker's key (1205).")
        self.branches[branch.xid] = branch

    def commit_branch(self, xid: str) -> None:
        branch = self.branches.pop(xid, None)
        if branch is not None:  # else XAER_NOTA, which says nothing: the marker does
            self._show(branch)

    def roll_back(self, xid: str) -> None:
        self.branches.pop(xid, None)

    def deliver(self, branch: Branch) -> None:
        """One local transaction under the same marker, for what was lost."""
        self.prepare(branch)
        del self.branches[branch.xid]
        self._show(branch)

    def lose_branches(self) -> None:
        """A crash of a server that forgets prepared branches (measured: MySQL 9.7 with mixed formatIDs)."""
        self.branches.clear()
        self.has_lost_branches = True

    def _show(self, branch: Branch) -> None:
        for table, item in branch.items:
            self.visible.setdefault(table, []).append(item)
        counts: dict[str, int] = {}
        for table, _ in branch.items:
            counts[table] = counts.get(table, 0) + 1
        self.markers[branch.number] = Proof(
            self.name, branch.number, Outcome.COMMITTED, branch.digest, branch.rank[0], counts
        )
        self.last = branch.number
        self.commits.append(TwoPhaseCommit(self.name, branch.number, branch.items, branch.rank))


class TwoPhaseParticipant:
    """See `airflow_ft.protocol.participant.Participant`."""

    def __init__(self, plan: ParticipantPlan, server: TwoPhaseServer, wal: Wal) -> None:
        self._plan = plan
        self._server = server
        self._wal = wal

    def prepare(self, plan: Plan, fence: Fence) -> Mapping[str, Any]:
        server = self._server
        self._ask(f"raise head to {fence.rank}", lambda: server.raise_head(fence.rank))
        self._roll_back_older(plan, fence)
        if self._marker(plan) is not None:
            return {"settled": True}
        branch = self._branch(plan, fence)
        self._ask(f"XA PREPARE {branch.xid}", lambda: server.prepare(branch))
        return {"xid": branch.xid}

    def commit(self, plan: Plan, fence: Fence, vote: Vote | None = None, *, set_aside: bool = False) -> Proof:
        server = self._server
        self._ask(f"raise head to {fence.rank}", lambda: server.raise_head(fence.rank))
        xid = vote.notes.get("xid") if vote is not None else None
        if xid in self._ask("XA RECOVER", lambda: dict(server.branches), writes=False):
            self._ask(f"XA COMMIT {xid}", lambda: server.commit_branch(xid))
        proof = self._marker(plan)
        if proof is not None:
            return proof
        self._roll_back_older(plan, fence)
        self._ask("deliver anew what was lost", lambda: server.deliver(self._branch(plan, fence)))
        proof = self._marker(plan)
        if proof is None:
            raise SinkUnavailableError("the marker is not to be found.")
        return proof

    def abort(self, plan: Plan, fence: Fence, detail: Mapping[str, Any]) -> Proof:
        self._ask(f"raise head to {fence.rank}", lambda: self._server.raise_head(fence.rank))
        self._roll_back_older(plan, fence)
        proof = self._marker(plan)
        return proof or Proof(self._plan.name, plan.number, Outcome.ABORTED, plan.digest, fence.epoch, {}, dict(detail))

    def proof(self, plan: Plan) -> Proof | None:
        return self._marker(plan)

    def forget(self, fence: Fence, floor: int) -> None:
        def call() -> None:
            if fence.epoch < self._server.rank[0]:
                raise FencedError("the head is newer.", head_epoch=self._server.rank[0])
            self._server.floor = max(self._server.floor, floor)
            self._server.markers = {n: marker for n, marker in self._server.markers.items() if n > floor}

        self._ask(f"prune markers up to {floor}", call)

    def head(self, pipeline: str) -> SinkHead | None:
        return SinkHead("", self._server.rank[0], self._server.last)

    def adopt(self, fence: Fence, number: int) -> None:
        raise NotImplementedError("the model is never adopted")

    def orphans(self, pipeline: str, installation: str) -> Sequence[Orphan]:
        return ()

    def end_orphans(self, fence: Fence, ending: PreparedEnding | None, *, make_way: bool = False) -> None:
        pass

    def heuristic(self, plan: Plan) -> str:
        return ""

    def close(self) -> None:
        pass

    def _roll_back_older(self, plan: Plan, fence: Fence) -> None:
        listed = self._ask("XA RECOVER", lambda: list(self._server.branches.values()), writes=False)
        for branch in listed:
            if branch.number == plan.number and branch.rank < fence.rank:
                self._ask(f"XA ROLLBACK {branch.xid}", partial(self._server.roll_back, branch.xid))

    def _marker(self, plan: Plan) -> Proof | None:
        marker = self._ask("read the marker", lambda: self._server.markers.get(plan.number), writes=False)
        if marker is not None and marker.digest != plan.digest:
            raise StoreBehindSinkError("other rows stand under this number.")
        return marker

    def _branch(self, plan: Plan, fence: Fence) -> Branch:
        items = tuple(
            (sink, self._wal.open(segment).item)
            for segment in plan.segments
            for sink in self._plan.sinks
            if segment.rows.get(sink)
        )
        xid = f"{plan.number}.{fence.epoch}.{fence.attempt}"
        return Branch(xid, plan.number, fence.rank, plan.digest, items)

    def _ask(self, what: str, call: Callable[[], T], *, writes: bool = True) -> T:
        return self._server.kernel.call(f"{self._server.name} {what}", call, _lost, writes=writes)


def _lost(sent: bool) -> Exception:
    return SinkUnavailableError("the connection was lost.", remedy="it is tried again.")
