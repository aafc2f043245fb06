"""A sink over `prepared_server`: the product's steps (`airflow_ft.sinks.base.branched`), each request is played.

What the model does after a lost connection or a lock time-out is what `airflow_ft.sinks.postgres.local` does.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from airflow_ft.protocol.errors import AirflowFtError, DeclinedError, SinkUnavailableError
from airflow_ft.protocol.model import Fence, ParticipantPlan, Plan
from airflow_ft.protocol.votes import Outcome, Vote
from airflow_ft.protocol.write_ahead_log import SegmentReader
from airflow_ft.sinks.base import prepared
from airflow_ft.sinks.base.branch_system import BranchLedger, BranchName
from airflow_ft.sinks.base.branched import BranchedParticipant
from airflow_ft.sinks.base.memory import Head, Marker, check_epoch, check_owner
from airflow_ft.sinks.base.slices import SlicedSegment
from airflow_ft.sinks.refused import Refused
from tests.simulation.prepared_server import HEAD, Busy, Gid, Lost, PreparedServer, Session, Taken, raised
from tests.simulation.source import Wal

T = TypeVar("T")
WIDTH, TRIES, HEAD_WAIT, SHARE = 2, 3, 90.0, 2
_WHOLE = ""


class Connection:
    """One connection of a process. A request that gets no answer is its last one."""

    def __init__(self, server: PreparedServer, fence: Fence | None, label: str = "") -> None:
        self.server = server
        self._usable = True
        self._session: Session | None = None
        rank = fence.rank if fence is not None else (0, 0)
        self._session = self.ask("connect", lambda _: server.connect((rank, label)))

    def ask(self, what: str, call: Callable[[Session], T], *, writes: bool = True) -> T:
        if not self._usable:
            raise Lost
        session: Any = self._session
        try:
            return self.server.kernel.call(
                f"{self.server.name} {what}", lambda: call(session), self._lost, writes=writes
            )
        except (Lost, Busy, Taken):
            self.close()  # R15
            raise

    def close(self) -> None:
        process = self.server.kernel.current
        if self._usable and self._session is not None and not (process is not None and process.dead):
            self.server.end(self._session)
        self._usable = False

    def _lost(self, sent: bool) -> Exception:
        """The connection is gone. What is still under way in it (DELAY) ends it on the server's side."""
        self._usable = False
        kernel = self.server.kernel
        if self._session is not None:
            if kernel.done and kernel.done[-1].kind.name == "DELAY":
                self._session.owner = kernel.processes[-1]
            else:
                self.server.end(self._session)
        return Lost()


@dataclass
class Ledger:
    """See `airflow_ft.sinks.base.branch_system.BranchLedger`."""

    db: Connection

    def head(self) -> Head | None:
        return self.db.ask("SELECT head", self.db.server.head, writes=False)

    def create_head(self, head: Head) -> None:
        if self.head() is None:
            self.write_head(head)

    def write_head(self, head: Head) -> None:
        self.db.ask("write the head", lambda session: self.db.server.write_head(session, head))

    def raise_head(self, fence: Fence) -> None:
        self._change(f"raise the head to {fence.rank}", lambda head: raised(head, fence.rank))

    def deliver_head(self, number: int) -> None:
        self._change(f"head: {number} is delivered", lambda head: replace(head, last_delivered=number))

    def raise_floor(self, floor: int) -> None:
        self._change(f"floor {floor}", lambda head: replace(head, floor=max(head.floor, floor)))

    def marker(self, number: int) -> Marker | None:
        return self._markers().get((number, _WHOLE))

    def newest(self) -> int:
        return max((number for number, _ in self._markers()), default=0)

    def branch_markers(self, number: int) -> Mapping[str, Marker]:
        return {label: marker for (other, label), marker in self._markers().items() if other == number and label}

    def write_marker(
        self,
        plan: Plan,
        fence: Fence,
        outcome: Outcome,
        counts: Mapping[str, int],
        detail: Mapping[str, Any],
        branch: str = _WHOLE,
    ) -> None:
        marker = Marker(fence.installation, outcome, *fence.rank, plan.digest, dict(counts), dict(detail))
        what = f"INSERT marker {plan.number}/{branch} {outcome}"
        self.db.ask(what, lambda session: self.db.server.insert(session, (plan.number, branch), marker))

    def markers_of_others(self, above: int, installation: str) -> list[tuple[int, str, Marker]]:
        return []

    def drop_markers_of_others(self, above: int, installation: str) -> None:
        raise NotImplementedError

    def prune(self, floor: int) -> None:
        self.db.ask(
            f"prune up to {floor}", lambda session: self.db.server.drop(session, lambda place, _: place[0] <= floor)
        )

    def _markers(self) -> Mapping[tuple[int, str], Marker]:
        return self.db.ask("SELECT markers", self.db.server.all_markers, writes=False)

    def _change(self, what: str, change: Callable[[Head], Head]) -> None:
        server = self.db.server

        def call(session: Session) -> None:
            head = server.head(session)
            assert head is not None
            server.write_head(session, change(head))

        self.db.ask(what, call)


class PreparedSink(BranchedParticipant[Connection]):
    """See `airflow_ft.protocol.participant.Participant`."""

    def __init__(self, plan: ParticipantPlan, server: PreparedServer, wal: Wal, judge: Callable[[Any], None]) -> None:
        self.name, self.wal = plan.name, wal  # type: ignore[assignment]
        self._sinks = tuple(plan.sinks)
        self._server, self._judge = server, judge
        self._ended_sessions: set[tuple[tuple[int, int], str]] = set()

    @property
    def _width(self) -> int:
        return WIDTH

    @property
    def _ended(self) -> set[tuple[tuple[int, int], str]]:
        return self._ended_sessions

    # --- connections ---------------------------------------------------------------------------------------------

    @contextmanager
    def _connected(self, fence: Fence | None, label: str = "") -> Iterator[tuple[Connection, Ledger]]:
        db = Connection(self._server, fence, label)
        try:
            yield db, Ledger(db)
        finally:
            db.close()

    @contextmanager
    def _writing(
        self, fence: Fence, plan: Plan | None = None, *, create: bool = False, keep: bool = True
    ) -> Iterator[tuple[Connection, Ledger]]:
        with self._connected(fence) as (db, ledger):
            if not create and ledger.head() is None:
                check_owner(None, fence)
            db.ask("BEGIN", self._server.begin)
            db.ask("SELECT head FOR UPDATE", lambda session: self._server.lock(session, HEAD))
            yield db, ledger
            if keep:
                db.ask("COMMIT", self._server.commit)

    @contextmanager
    def _reading(self, pipeline: str, plan: Plan | None = None) -> Iterator[Ledger | None]:
        with self._connected(None) as (_, ledger):
            yield ledger

    @contextmanager
    def _asking(self, fence: Fence) -> Iterator[tuple[Connection, BranchLedger]]:
        with self._connected(fence) as (db, ledger):
            if ledger.head() is None:
                check_owner(None, fence)
            yield db, ledger

    @contextmanager
    def _branching(self, fence: Fence, label: str) -> Iterator[tuple[Connection, BranchLedger]]:
        with self._connected(fence, label) as (db, ledger):
            db.ask("BEGIN", self._server.begin)
            yield db, ledger

    def _prepare_branch(self, db: Connection, plan: Plan, fence: Fence, label: str) -> str:
        nonce = str(self._server.kernel.steps)
        gid = Gid(self._owner(fence), plan.number, *fence.rank, label, nonce)
        db.ask(f"PREPARE TRANSACTION {_text(gid)}", lambda session: self._server.prepare(session, gid))
        return ""

    def _owner(self, fence: Fence) -> str:
        return prepared.owner_of(fence.installation, fence.pipeline, self.name)

    def _listed(self, db: Connection, fence: Fence) -> Sequence[BranchName]:
        return db.ask("SELECT pg_prepared_xacts", lambda _: sorted(self._server.branches.prepared), writes=False)

    def _end_branch(self, db: Connection, name: BranchName, verb: str) -> None:
        assert isinstance(name, Gid)
        db.ask(f"{verb} PREPARED {_text(name)}", lambda _: self._server.end_prepared(name, commit=verb == "COMMIT"))

    def _end_sessions(self, db: Connection, fence: Fence, label: str) -> None:
        wanted = (fence.rank, label)
        db.ask(
            f"end sessions of {wanted}", lambda session: self._server.end_sessions(session, lambda its: its == wanted)
        )

    def _room(self, db: Connection, places: int) -> str:
        return ""

    def _crowded(self, db: Connection, names: Collection[BranchName]) -> str:
        return ""

    # --- rows ----------------------------------------------------------------------------------------------------

    def _preflight(self) -> dict[str, Any]:
        return {}

    def _schema_problems(
        self, db: Connection, readers: Sequence[SegmentReader], make: bool
    ) -> Iterator[AirflowFtError]:
        for reader in readers:
            self._judge(reader.item)  # type: ignore[attr-defined]
        yield from ()

    def _seen(self, db: Connection, readers: Sequence[SegmentReader]) -> dict[str, Any]:
        return {}

    def _remember(self, vote: Vote | None) -> None:
        pass

    def _try(self, plan: Plan, fence: Fence, readers: Sequence[SegmentReader]) -> None:
        try:
            with self._writing(fence, plan, keep=False) as (db, _):
                self._insert(db, plan, readers, None)
        except Busy:
            pass

    def _is_place_taken(self, error: Exception) -> bool:
        return isinstance(error, Taken)

    @contextmanager
    def _explaining(self) -> Iterator[None]:
        yield

    def _heuristic_text(self, ledger: BranchLedger, plan: Plan, found: Mapping[str, Marker]) -> str:
        return f"{', '.join(found)} committed by hand"

    def _insert(
        self, db: Connection, plan: Plan, readers: Sequence[SegmentReader], dead_letters: Refused | None
    ) -> dict[str, int]:
        counts = dict.fromkeys(self._sinks, 0)
        for name in self._sinks:
            for reader in (each for each in readers if name in each.sinks()):
                for file in reader.files(name):
                    first = reader.first_row(name, file) if isinstance(reader, SlicedSegment) else 0
                    for batch in reader.batches(name, file):
                        put = partial(self._put, db, name)
                        if dead_letters is None:
                            if why := put(batch):
                                raise DeclinedError(why, code="row_refused", remedy="mend the table.")
                            counts[name] += len(batch)
                        else:
                            counts[name] += dead_letters.around(name, reader.segment, file, first, batch, {}, put)
                        first += len(batch)
        return counts

    def _put(self, db: Connection, sink: str, rows: Any) -> str:
        try:
            db.ask(
                f"COPY {sink} {', '.join(map(str, rows))}",
                lambda session: self._server.put(session, sink, list(rows)),
            )
        except DeclinedError as error:
            return error.what
        return ""

    # --- what to do after an error -------------------------------------------------------------------------------

    def _persist(self, doing: str, step: Callable[[], T], fence: Fence | None = None, plan: Plan | None = None) -> T:
        kernel = self._server.kernel
        deadline, lost = kernel.monotonic() + HEAD_WAIT, 0
        while True:
            try:
                return step()
            except (Lost, Busy) as error:
                lost += isinstance(error, Lost)
                if lost >= TRIES or kernel.monotonic() > deadline:
                    raise SinkUnavailableError(f"{doing}: {error!r}", code="lock_timeout", remedy="-") from error
                if isinstance(error, Busy) and fence is not None:
                    self._clear_the_way(fence, plan)
                kernel.sleep(1.0)
            except Taken as error:
                raise SinkUnavailableError(f"{doing}: {error!r}", code="marker_taken", remedy="-") from error

    def _clear_the_way(self, fence: Fence, plan: Plan | None) -> None:
        try:
            with self._connected(fence) as (db, ledger):
                head = ledger.head()
                if head is not None and plan is not None:
                    check_owner(head, fence)
                elif head is not None:
                    check_epoch(head, fence)
                db.ask(
                    f"end sessions before {fence.rank}",
                    lambda session: self._server.end_sessions(session, lambda its: (0, 0) < its[0] < fence.rank),
                )
        except (Lost, Busy):
            pass


def _text(gid: Gid) -> str:
    return f"{gid.number}.{gid.epoch}.{gid.attempt}.{gid.branch}"
