"""A model of a database whose transactions can be prepared, as PostgreSQL's: locks, lost connections, READ COMMITTED.

It is asked by `prepared_sink`. A transaction that is prepared keeps its locks, belongs to no connection, and is ended
by any. A marker's place is locked by the transaction that inserts it, until that ends.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, TypeVar

from airflow_ft.protocol.errors import DeclinedError
from airflow_ft.sinks.base.branch_system import BranchName as Name
from airflow_ft.sinks.base.memory import Head, Marker
from airflow_ft.sinks.base.prepared import PROBE_NUMBER
from tests.simulation.kernel import Blocked, Kernel, Process
from tests.simulation.mysql_state import BranchName, Commit, Row
from tests.simulation.source import Item

T = TypeVar("T")
Place = tuple[int, str]  # number and label of a marker; ("head" is another place)

LOCK_WAIT, IDLE = 5.0, 60.0
HEAD: Place = (-1, "head")


class Busy(Exception):
    """SQLSTATE 55P03: a lock was not had in time. The transaction is aborted."""


class Taken(Exception):
    """SQLSTATE 23505: there is such a marker. The transaction is aborted."""


class Lost(Exception):
    """No answer: the connection is gone."""


@dataclass(frozen=True, slots=True, order=True)
class Gid(Name):
    """A prepared transaction; each try has a name of its own."""

    nonce: str


@dataclass(eq=False)
class Work:
    """What a transaction has done. `session` is the one that it is open in; None: it is prepared."""

    session: Session | None
    parts: list[tuple[Place, Marker, list[tuple[str, Item]]]] = field(default_factory=list)
    rows: list[tuple[str, Item]] = field(default_factory=list)  # that came after the newest marker
    head: Head | None = None
    dropped: Callable[[Place, Marker], bool] | None = None
    locks: set[Place] = field(default_factory=set)

    @property
    def markers(self) -> dict[Place, Marker]:
        return {place: marker for place, marker, _ in self.parts}


class Session:
    """What the server knows of a connection. `label` is its application_name: rank, and the branch that it works on."""

    def __init__(self, owner: Process | None, label: tuple[tuple[int, int], str], used: float) -> None:
        self.owner, self.label, self.used = owner, label, used
        self.alive = True
        self.work: Work | None = None


class Branches:
    """The prepared transactions by name, and what was done with them by hand."""

    def __init__(self, server: PreparedServer) -> None:
        self._server = server
        self.prepared: dict[Gid, Work] = {}
        self.were_lost = False
        self.by_hand: set[tuple[int, str]] = set()
        self.came_back = False

    def names(self) -> list[BranchName]:
        return sorted(_name(gid) for gid in self.prepared)

    def lose(self) -> None:
        """A person rolls all of them back."""
        self.were_lost = True
        for gid in list(self.prepared):
            self._server.end_prepared(gid, commit=False)

    def end_by_hand(self, *, commit: bool) -> None:
        """A person types COMMIT PREPARED, or ROLLBACK PREPARED, for the first one."""
        for gid in sorted(self.prepared):
            if gid.number == PROBE_NUMBER:
                continue
            if commit:
                self.by_hand.add((gid.number, gid.branch))
            else:
                self.were_lost = True
            return self._server.end_prepared(gid, commit=commit)

    def take_out(self, number: int) -> None:
        """What HEURISTIC_COMMIT says: what is still prepared is rolled back, markers and rows are deleted."""
        for gid in [gid for gid in self.prepared if gid.number == number]:
            self._server.end_prepared(gid, commit=False)
        self._server.markers = {place: m for place, m in self._server.markers.items() if place[0] != number}
        self.by_hand = {branch for branch in self.by_hand if branch[0] != number}


class PreparedServer:
    """The server; `commits` are read (and emptied) by the laws."""

    def __init__(self, kernel: Kernel, name: str) -> None:
        self.kernel = kernel
        self.name = name
        self.stored_head: Head | None = None
        self.markers: dict[Place, Marker] = {}
        self.visible: dict[str, list[Item]] = {}
        self.sessions: list[Session] = []
        self.locks: dict[Place, Work] = {}
        self.commits: list[Commit] = []
        self.refuses: dict[int, int] = {}  # item -> how often its rows are still refused
        self.forbids: set[int] = set()  # items of which it refuses the last of several rows, by a constraint
        self.forbade: set[int] = set()  # and at any time
        self.branches = Branches(self)

    # --- connections ---------------------------------------------------------------------------------------------

    def connect(self, label: tuple[tuple[int, int], str]) -> Session:
        session = Session(self.kernel.owner, label, self.kernel.clock)
        self.sessions.append(session)
        return session

    def end(self, session: Session) -> None:
        """The connection is gone: what was open in it is rolled back."""
        if session.alive:
            session.alive = False
            self.rollback(session)
            self.sessions.remove(session)

    def process_died(self, process: Process) -> None:
        for session in [each for each in self.sessions if each.owner is process]:
            self.end(session)

    def restart(self) -> None:
        """kill -9 and start: every open transaction is rolled back, prepared ones stay."""
        for session in list(self.sessions):
            self.end(session)

    def end_sessions(self, asking: Session, wanted: Callable[[tuple[tuple[int, int], str]], bool]) -> None:
        for session in [each for each in self.sessions if each is not asking and wanted(each.label)]:
            self.end(session)

    # --- transactions --------------------------------------------------------------------------------------------

    def work_of(self, session: Session) -> Work:
        """The open transaction; raises when the connection, or the transaction, is gone."""
        self.use(session)
        if session.work is None:
            raise Lost
        return session.work

    def use(self, session: Session) -> None:
        if not session.alive:
            raise Lost
        session.used = self.kernel.clock

    def begin(self, session: Session) -> None:
        self.use(session)
        self.rollback(session)
        session.work = Work(session)

    def rollback(self, session: Session) -> None:
        if session.work is not None:
            self._release(session.work)
            session.work = None

    def commit(self, session: Session) -> None:
        work = self.work_of(session)
        session.work = None
        self._show(work, None)

    def prepare(self, session: Session, gid: Gid) -> None:
        work = self.work_of(session)
        assert gid not in self.branches.prepared and work.head is None
        session.work, work.session = None, None
        self.branches.prepared[gid] = work

    def end_prepared(self, gid: Gid, *, commit: bool) -> None:
        """Of a name that is unknown the server says so, which proves nothing."""
        work = self.branches.prepared.pop(gid, None)
        if work is None:
            return
        if commit:
            self._show(work, _name(gid))
        else:
            self._release(work)

    def lock(self, session: Session, place: Place) -> None:
        """Take a lock, or raise Blocked. One that is not had aborts the transaction."""
        work = self.work_of(session)
        holder = self.locks.get(place)
        if holder is None or holder is work:
            self.locks[place] = work
            work.locks.add(place)
            return
        other = holder.session
        if other is not None and self.kernel.clock - other.used > IDLE:
            self.end(other)  # idle_in_transaction_session_timeout
            return self.lock(session, place)
        raise Blocked(other.owner if other is not None else None, Busy(f"the lock of {place} was not had"), LOCK_WAIT)

    def head(self, session: Session) -> Head | None:
        self.use(session)
        return session.work.head if session.work is not None and session.work.head is not None else self.stored_head

    def write_head(self, session: Session, head: Head) -> None:
        work = self.work_of(session)
        assert HEAD in work.locks, "the head is written under its lock"
        work.head = head

    def all_markers(self, session: Session) -> Mapping[Place, Marker]:
        self.use(session)
        return {**self.markers, **(session.work.markers if session.work is not None else {})}

    def insert(self, session: Session, place: Place, marker: Marker) -> None:
        self.lock(session, place)
        work = self.work_of(session)
        if place in self.markers or place in work.markers:
            self.rollback(session)
            raise Taken(f"there is a marker of {place}")
        work.parts.append((place, marker, work.rows))
        work.rows = []

    def drop(self, session: Session, dropped: Callable[[Place, Marker], bool]) -> None:
        self.work_of(session).dropped = dropped

    def put(self, session: Session, sink: str, items: list[Item]) -> None:
        """DeclinedError: the server refuses them, and the transaction is aborted unless it is one of a savepoint."""
        work = self.work_of(session)
        for item in items:
            if item.number in self.forbids and item.part > 1:
                raise DeclinedError(f"{item} breaks a new constraint.", remedy="mend the table.")
            if self.refuses.get(item.number, 0) > 0:
                self.refuses[item.number] -= 1
                raise DeclinedError(f"item {item.number} breaks a constraint.", remedy="mend the job.")
        work.rows += [(sink, item) for item in items]

    def _release(self, work: Work) -> None:
        for place in work.locks:
            del self.locks[place]
        work.locks.clear()

    def _show(self, work: Work, branch: BranchName | None) -> None:
        """Make it visible: one commit for the laws, in as many parts as there are markers."""
        before = self.stored_head
        self.stored_head = work.head or before
        pruned = [place for place, marker in self.markers.items() if work.dropped and work.dropped(place, marker)]
        for place in pruned:
            del self.markers[place]
        heads = _row(before), _row(self.stored_head)
        if len(work.parts) == 1:  # of a branch the marker comes first
            place, marker, rows = work.parts[0]
            parts, work.rows = [(place, marker, [*rows, *work.rows])], []
        else:
            parts = work.parts
        for place, marker, rows in parts:
            self.markers[place] = marker
            self.commits.append(Commit(self.name, tuple(rows), (_marker_row(place, marker),), (), *heads, branch))
        if work.rows or pruned or (not parts and work.head is not None):
            numbers = tuple(number for number, _ in pruned)
            self.commits.append(Commit(self.name, tuple(work.rows), (), numbers, *heads, branch))
        for sink, item in [*(row for _, _, rows in parts for row in rows), *work.rows]:
            self.visible.setdefault(sink, []).append(item)
        self._release(work)


def raised(head: Head, rank: tuple[int, int]) -> Head:
    return replace(head, epoch=rank[0], attempt=rank[1])


def _name(gid: Gid) -> BranchName:
    return BranchName(gid.number, gid.rank, gid.branch)


def _row(head: Head | None) -> Row | None:
    return asdict(head) if head is not None else None


def _marker_row(place: Place, marker: Marker) -> Row:
    import json

    number, label = place
    data: dict[str, Any] = {"number": number, "branch": label, "kind": marker.outcome.value}
    return {**data, "epoch": marker.epoch, "attempt": marker.attempt, "detail": json.dumps(dict(marker.detail))}
