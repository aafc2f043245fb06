"""Shared part of sinks that write marker and all rows of all tables of a database in one transaction (ATOMIC).

Each step is a transaction that first locks the head, so that the order of ranks is the order of transactions. It
checks that the head is not newer, whether the number is settled, and that the head fits the plan. Then it writes the
rows, the marker and the head, and commits. Each system defines how to open a transaction and how to write rows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, Generic, Protocol, TypeVar

from airflow_ft.protocol.errors import AirflowFtError, together
from airflow_ft.protocol.model import Fence, Plan
from airflow_ft.protocol.orphans import Orphan, PreparedEnding
from airflow_ft.protocol.set_aside import detail as set_aside_detail
from airflow_ft.protocol.votes import Outcome, Proof, SinkHead, Vote
from airflow_ft.protocol.write_ahead_log import SegmentReader, WalReader
from airflow_ft.sinks.base.memory import (
    NO_INSTALLATION,
    Head,
    Marker,
    check_adopter,
    check_epoch,
    check_marker,
    check_owner,
    check_settled,
    check_shut_out,
    new_head,
    refuse_markers_without_head,
    refuse_to_adopt,
    remembered,
)
from airflow_ft.sinks.base.prepared import marked_orphans
from airflow_ft.sinks.base.sql_ledger import HEAD
from airflow_ft.sinks.refused import Refused

Db = TypeVar("Db")
T = TypeVar("T")


class TransactionLedger(Protocol):
    """A system's memory of one pipeline, in the open transaction; `sql_ledger` implements it in SQL."""

    def head(self) -> Head | None: ...
    def create_head(self, head: Head) -> None: ...
    def write_head(self, head: Head) -> None: ...
    def raise_head(self, fence: Fence) -> None: ...
    def deliver_head(self, number: int) -> None: ...
    def raise_floor(self, floor: int) -> None: ...
    def marker(self, number: int) -> Marker | None: ...
    def newest(self) -> int: ...
    def write_marker(
        self, plan: Plan, fence: Fence, outcome: Outcome, counts: Mapping[str, int], detail: Mapping[str, Any]
    ) -> None: ...
    def markers_of_others(self, above: int, installation: str) -> list[tuple[int, str, Marker]]: ...
    def drop_markers_of_others(self, above: int, installation: str) -> None: ...
    def prune(self, floor: int) -> None: ...


class TransactionParticipant(ABC, Generic[Db]):
    """One database with all tables that a pipeline writes there. See `airflow_ft.protocol.participant.Participant`."""

    name: str
    wal: WalReader

    # --- what a system says --------------------------------------------------------------------------------------

    @abstractmethod
    def _writing(
        self, fence: Fence, plan: Plan | None = None, *, create: bool = False, keep: bool = True
    ) -> AbstractContextManager[tuple[Db, TransactionLedger]]:
        """One transaction that has locked the head, or its place where there is none yet.

        It is committed when the block ends without an error, and if it is to be kept. With `create` database and ledger
        are made; else what `check_owner` raises where there is no ledger.
        """

    @abstractmethod
    def _reading(self, pipeline: str, plan: Plan | None = None) -> AbstractContextManager[TransactionLedger | None]:
        """None: the database, or its ledger, is not there."""

    @abstractmethod
    def _first_look(self, plan: Plan, fence: Fence) -> tuple[dict[str, Any], Sequence[SegmentReader] | None]:
        """Raise the head and judge the columns. Return notes and the rows; no rows if the number is settled."""

    @abstractmethod
    def _insert(
        self, db: Db, plan: Plan, readers: Sequence[SegmentReader], dead_letters: Refused | None
    ) -> dict[str, int]:
        """All rows; how many went into each sink's table. DeclinedError for rows that are refused."""

    def _persist(self, doing: str, step: Callable[[], T], fence: Fence | None = None, plan: Plan | None = None) -> T:
        """Runs a step; a system may run it again, which each of them bears."""
        return step()

    # --- the protocol --------------------------------------------------------------------------------------------

    def prepare(self, plan: Plan, fence: Fence) -> Mapping[str, Any]:
        """Raises the head, makes what is lacking, and judges columns; values too, where the decision falls before."""
        return self._persist("preparing", lambda: self._prepare(plan, fence), fence, plan)

    def commit(self, plan: Plan, fence: Fence, vote: Vote | None = None, *, set_aside: bool = False) -> Proof:
        """Delivers under this plan's marker, or finds that the number is settled."""
        return self._persist("committing", lambda: self._commit(plan, fence, vote, set_aside), fence, plan)

    def abort(self, plan: Plan, fence: Fence, detail: Mapping[str, Any]) -> Proof:
        """Write the abort marker, or find the existing marker."""
        return self._persist("writing the abort marker", lambda: self._abort(plan, fence, detail), fence, plan)

    def proof(self, plan: Plan) -> Proof | None:
        """The marker; None when there is none, which proves nothing."""
        return self._persist("reading the marker", lambda: self._proof(plan), plan=plan)

    def forget(self, fence: Fence, floor: int) -> None:
        """Prunes markers at or below `floor`, in the transaction that raises the head's floor."""
        if floor > 0:
            self._persist("pruning markers", lambda: self._forget(fence, floor), fence)

    def head(self, pipeline: str) -> SinkHead | None:
        """Return the head, or what the markers say, with any owner; None if the database does not know the pipeline."""
        return self._persist("reading the fence", lambda: self._head(pipeline))

    def adopt(self, fence: Fence, number: int) -> None:
        """Takes the head over from another decision log."""
        self._persist("adopting the fence", lambda: self._adopt(fence, number), fence)

    def orphans(self, pipeline: str, installation: str) -> Sequence[Orphan]:
        """Return what former owners have left past the last delivered number."""
        return self._persist("looking for orphans", lambda: self._orphans(pipeline, installation))

    def end_orphans(self, fence: Fence, ending: PreparedEnding | None, *, make_way: bool = False) -> None:
        """Raises the head above a former owner, who stays named in it; or drops what former owners have marked."""
        self._persist("ending orphans", lambda: self._end_orphans(fence, ending, make_way), fence)

    def heuristic(self, plan: Plan) -> str:
        """Only what is prepared before the decision can be committed before it."""
        return ""

    def close(self) -> None:
        """Nothing is held between calls."""

    # --- the steps -----------------------------------------------------------------------------------------------

    def _prepare(self, plan: Plan, fence: Fence) -> Mapping[str, Any]:
        notes, readers = self._first_look(plan, fence)
        return notes if readers is None else notes | self._vote(plan, fence, readers)

    def _vote(self, plan: Plan, fence: Fence, readers: Sequence[SegmentReader]) -> dict[str, Any]:
        """Try the rows if another participant decides: the commit can no longer refuse them."""
        if plan.commit_point != self.name:
            with self._writing(fence, plan, keep=False) as (db, ledger):
                # A newer attempt may have delivered the number since the head was read.
                if not self._is_settled(ledger, self._raised(ledger, fence), plan, fence, exactly=False):
                    self._insert(db, plan, readers, None)
        return {}

    def _commit(self, plan: Plan, fence: Fence, vote: Vote | None, set_aside: bool) -> Proof:
        return self._deliver(plan, fence, set_aside, {})

    def _deliver(self, plan: Plan, fence: Fence, set_aside: bool, more: Mapping[str, Any]) -> Proof:
        dead_letters = Refused(self.wal.dead_letters(plan)) if set_aside else None
        opening = self._opening(plan)
        with self._writing(fence, plan) as (db, ledger):
            head = self._raised(ledger, fence)
            if self._is_settled(ledger, head, plan, fence, exactly=True):
                return self._current_proof(ledger, plan)
            counts = self._insert(db, plan, opening.result(), dead_letters)
            detail = self._detail(plan, fence) | dict(more)
            if dead_letters is not None:  # durable before COMMIT, and named by the marker
                detail |= set_aside_detail(dead_letters.write())
            ledger.write_marker(plan, fence, Outcome.COMMITTED, counts, detail)
            ledger.deliver_head(plan.number)
        return Proof(self.name, plan.number, Outcome.COMMITTED, plan.digest, fence.epoch, counts, detail)

    def _abort(self, plan: Plan, fence: Fence, detail: Mapping[str, Any]) -> Proof:
        with self._writing(fence, plan) as (_, ledger):
            head = self._raised(ledger, fence)
            if self._is_settled(ledger, head, plan, fence, exactly=False):
                return self._current_proof(ledger, plan)
            self._write_tombstone(ledger, plan, fence, detail)
        return Proof(self.name, plan.number, Outcome.ABORTED, plan.digest, fence.epoch, {}, dict(detail))

    def _write_tombstone(self, ledger: TransactionLedger, plan: Plan, fence: Fence, detail: Mapping[str, Any]) -> None:
        """Write an abort marker into every place that a marker of this number may have."""
        ledger.write_marker(plan, fence, Outcome.ABORTED, {}, detail)

    def _proof(self, plan: Plan) -> Proof | None:
        with self._reading(plan.pipeline, plan) as ledger:
            marker = ledger.marker(plan.number) if ledger is not None else None
        if marker is None:
            return None
        check_marker(marker, plan, plan.installation)
        return marker.proof(self.name, plan.number)

    def _forget(self, fence: Fence, floor: int) -> None:
        with self._writing(fence) as (_, ledger):
            check_epoch(ledger.head(), fence)
            ledger.raise_floor(floor)
            ledger.prune(floor)

    def _head(self, pipeline: str) -> SinkHead | None:
        with self._reading(pipeline) as ledger:
            return None if ledger is None else self._remembered(ledger)

    def _adopt(self, fence: Fence, number: int) -> None:
        with self._writing(fence, create=True) as (_, ledger):
            head = ledger.head()
            check_adopter(head, fence)
            marked = [found for found, _, _ in ledger.markers_of_others(number, fence.installation)]
            refuse_to_adopt(head.as_sink_head if head else None, marked, fence.installation, number)
            floor = max(number, head.floor if head else 0)
            ledger.write_head(replace(new_head(fence), last_delivered=number, floor=floor))

    def _orphans(self, pipeline: str, installation: str) -> list[Orphan]:
        with self._reading(pipeline) as ledger:
            if ledger is None:
                return []
            head = self._remembered(ledger)
            found = ledger.markers_of_others(head.number if head else 0, installation)
        return list(marked_orphans(found))

    def _end_orphans(self, fence: Fence, ending: PreparedEnding | None, make_way: bool) -> None:
        with self._reading(fence.pipeline) as there:
            if there is None:
                return
        with self._writing(fence) as (_, ledger):
            head = self._shut_out(ledger, fence, make_way)
            if head is not None and make_way:
                ledger.drop_markers_of_others(head.last_delivered, fence.installation)

    def _shut_out(self, ledger: TransactionLedger, fence: Fence, make_way: bool) -> Head | None:
        """Raise the head to the fence of an adoption, against its former owner and earlier adoptions; return it."""
        head = ledger.head()
        if check_shut_out(head, fence, make_way=make_way):
            ledger.raise_head(fence)
        return head

    # --- what the steps share ------------------------------------------------------------------------------------

    def _readers(self, plan: Plan) -> list[SegmentReader]:
        """Open a plan's segments. Each of them may be a request to a remote store, so hold no session meanwhile."""
        return [self.wal.open(segment) for segment in plan.segments]

    def _opening(self, plan: Plan) -> Future[list[SegmentReader]]:
        """Open a plan's segments before a session begins, which would idle meanwhile and lock others out.

        Ask for the result once the number is known to be open. It raises what opening raised: the segments of a settled
        number may be pruned.
        """
        opening: Future[list[SegmentReader]] = Future()
        try:
            opening.set_result(self._readers(plan))
        except Exception as error:
            opening.set_exception(error)
        return opening

    def _remembered(self, ledger: TransactionLedger) -> SinkHead | None:
        return remembered(ledger.head, lambda above: ledger.markers_of_others(above, NO_INSTALLATION))

    def _raised(self, ledger: TransactionLedger, fence: Fence) -> Head:
        head = ledger.head()
        check_owner(head, fence)
        assert head is not None  # check_owner raises
        if head.rank != fence.rank:
            ledger.raise_head(fence)
        return replace(head, epoch=fence.epoch, attempt=fence.attempt)

    def _is_settled(self, ledger: TransactionLedger, head: Head, plan: Plan, fence: Fence, *, exactly: bool) -> bool:
        marker = ledger.marker(plan.number)
        return check_settled(marker, head, plan, self.name, fence, exactly=exactly, look_again=ledger.head)

    def _current_proof(self, ledger: TransactionLedger, plan: Plan) -> Proof:
        marker = ledger.marker(plan.number)
        assert marker is not None
        return marker.proof(self.name, plan.number)

    def _detail(self, plan: Plan, fence: Fence) -> dict[str, Any]:
        return {"attempt": fence.attempt, "segments": [each.number for each in plan.segments]}

    def _where(self, plan: Plan | None) -> dict[str, Any]:
        """Return what an error names."""
        where: dict[str, Any] = {"participant": self.name}
        return where | ({"pipeline": plan.pipeline, "checkpoint": plan.number} if plan else {})


class OneTransactionParticipant(TransactionParticipant[Db]):
    """A `TransactionParticipant` that raises the head and judges columns in the same kind of transaction."""

    @abstractmethod
    def _preflight(self) -> dict[str, Any]:
        """Check what the sink demands of the server before it writes there. Return notes for people."""

    @abstractmethod
    def _schema_problems(self, db: Db, readers: Sequence[SegmentReader], make: bool) -> Iterator[AirflowFtError]:
        """Yield every objection to the staged rows. `make`: nothing was delivered yet."""

    def _first_look(self, plan: Plan, fence: Fence) -> tuple[dict[str, Any], Sequence[SegmentReader] | None]:
        notes = self._preflight()
        with self._writing(fence, plan, create=True) as (_, ledger):
            self._begin(ledger, plan, fence)
            self._raised(ledger, fence)
        readers = self._readers(plan)  # they exist: no newer attempt has pruned them
        # It stays raised even if the columns do not fit: no older attempt can write any more.
        with self._writing(fence, plan) as (db, ledger):
            head = self._raised(ledger, fence)
            if self._is_settled(ledger, head, plan, fence, exactly=False):
                return notes, None
            if problems := list(self._schema_problems(db, readers, make=head.last_delivered == 0)):
                raise together(problems)
        return notes, readers

    def _begin(self, ledger: TransactionLedger, plan: Plan, fence: Fence) -> None:
        """Makes the head of a pipeline that the database has never seen."""
        newest = ledger.newest()  # before the head, which comes before its first marker
        if ledger.head() is None and plan.participant(self.name).predecessor == 0:
            refuse_markers_without_head(newest, HEAD)
            ledger.create_head(new_head(fence))
