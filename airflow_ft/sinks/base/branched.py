"""Rows of a number in several transactions, prepared side by side before the decision (TWO_PHASE).

Each of them is a *branch* with its own marker. `slices` says which rows it has, the same in every process. A branch
that is prepared outlives its process, and only the decision settles it, since it names the attempt that it counts. When
the markers of all branches are visible, one more transaction writes the marker of the whole number, and the head. Only
that is proof (I6), and later numbers wait for it (I4). It also delivers branches that were lost.

No branch locks the head, because no later attempt could raise it until the decision. The markers fence instead: a
branch first takes the place of its marker, and then reads the head, without a lock. A successor first raises the head,
and then takes the same places. So either the older one sees the newer head and stops, or the newer one meets its lock,
and ends it or rolls it back. An abort takes every place with a tombstone in the same way.

Several processes may load the branches of an *announced* attempt (docs/adr/0038-mapped-delivery.md). The place of a
marker is taken once, so a branch is loaded once. A process finds it prepared, or in another session, or free. It ends
that session at most once, because the other process may have stopped: later it waits, so that two processes never end
each other's sessions forever. None of them rolls back what the attempt has prepared, because a vote may count it.

Inquiry goes in this order: what is prepared, then the markers. In the other order a commit may happen in between (I6).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, cast

from airflow_ft.protocol.errors import AirflowFtError, DeclinedError, FencedError, SinkUnavailableError
from airflow_ft.protocol.model import Fence, Plan
from airflow_ft.protocol.set_aside import detail as set_aside_detail
from airflow_ft.protocol.set_aside import read_detail, together
from airflow_ft.protocol.votes import Outcome, Proof, Vote
from airflow_ft.protocol.write_ahead_log import SegmentReader
from airflow_ft.sinks.base.branch_system import BranchLedger, BranchSystem, side_by_side
from airflow_ft.sinks.base.memory import Marker, check_marker, check_owner
from airflow_ft.sinks.base.one_transaction import Db, TransactionLedger
from airflow_ft.sinks.base.prepared import (
    DEFERRED,
    BranchName,
    committed_by_hand,
    counted,
    marker_taken,
    require_counts,
    require_vote,
    visible_branches,
    voted,
)
from airflow_ft.sinks.base.slices import Slice, divide, labels
from airflow_ft.sinks.refused import Refused

log = logging.getLogger(__name__)


class BranchedParticipant(BranchSystem[Db]):
    """One database, several transactions side by side. See `airflow_ft.protocol.participant.Branching`."""

    # --- phase 1 -------------------------------------------------------------------------------------------------

    def branches(self, plan: Plan) -> Sequence[str]:
        """Return the labels of a plan's branches."""
        return [part.label for part in self._slices(plan)]

    def prepare(self, plan: Plan, fence: Fence) -> Mapping[str, Any]:
        """When it returns, all rows are prepared: durable, and invisible. Or they are tried, and sent later."""
        with self._explaining():
            return super().prepare(plan, fence)

    def announce(self, plan: Plan, fence: Fence) -> Mapping[str, Any]:
        """Raise the head and judge the rows. Empty: the number is settled, or its rows are not prepared now."""
        return self._persist("announcing", lambda: self._announce(plan, fence), fence, plan)

    def load(self, plan: Plan, fence: Fence, notes: Mapping[str, Any], branch: str) -> bool:
        """Store one branch, or find it among the prepared ones."""
        step = partial(self._join, plan, fence, notes, [branch])
        with self._explaining():
            return self._persist(f"loading branch {branch}", step, fence, plan)

    def conclude(self, plan: Plan, fence: Fence, notes: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Load what is missing; when it returns notes, all branches are durable."""
        step = partial(self._conclude, plan, fence, notes)
        with self._explaining():
            return self._persist("preparing", step, fence, plan)

    def _announce(self, plan: Plan, fence: Fence) -> Mapping[str, Any]:
        notes, readers = self._first_look(plan, fence)
        if readers is None:
            return {}
        seen, why = self._begun(plan, fence, readers)
        if why:
            log.info("%s: the branches of checkpoint %d are not announced: %s", self.name, plan.number, why)
        return {} if why else {**notes, **seen}

    def _vote(self, plan: Plan, fence: Fence, readers: Sequence[SegmentReader]) -> dict[str, Any]:
        notes, why = self._begun(plan, fence, readers)
        if why:
            self._try(plan, fence, readers)
            return {**notes, DEFERRED: why}
        with self._asking(fence) as (_, ledger):
            there = self._there_already(ledger, plan, fence)
        slices = self._slices(plan, readers)
        try:
            why = self._hold(plan, fence, [part for part in slices if part.label not in there])
        except Exception:
            self._renounce(plan, fence)  # prepared rows lock out others; the next attempt would find them anyway
            raise
        return {**notes, DEFERRED: why} if why else voted(notes, slices, there)

    def _begun(self, plan: Plan, fence: Fence, readers: Sequence[SegmentReader]) -> tuple[dict[str, Any], str]:
        """Return the first notes of an attempt, and why its rows are not prepared now ("": they are)."""
        self._remember(None)
        with self._asking(fence) as (db, ledger):
            head = ledger.head()
            self._roll_back(db, plan, fence, floor=head.floor if head is not None else 0)
            notes = {"epoch": fence.epoch, **self._seen(db, readers)}
            return notes, self._waits(ledger, plan) or self._room(db, len(self._slices(plan, readers)))

    def _waits(self, ledger: BranchLedger, plan: Plan) -> str:
        """Return why the number is not prepared now: an earlier one is not delivered, and nothing is held behind it.

        Prepared numbers would fill the server's places for prepared transactions, and none of them could be committed.
        """
        head, predecessor = ledger.head(), plan.participant(self.name).predecessor
        if head is None or head.last_delivered >= predecessor:
            return ""
        return f"checkpoint {predecessor} is not delivered yet: the rows are sent after the decision"

    def _there_already(self, ledger: BranchLedger, plan: Plan, fence: Fence) -> list[str]:
        """Return branches that were committed by hand: only delivering the rest makes the number whole (I3)."""
        there = sorted(self._visible(ledger, plan, fence))
        if there:
            log.warning("%s: someone committed branches %s of checkpoint %d by hand before the decision, a heuristic"
                        " outcome; preparing the others, so that the checkpoint can be delivered",
                        self.name, ", ".join(there), plan.number)  # fmt: skip
        return there

    def _visible(self, ledger: BranchLedger, plan: Plan, fence: Fence) -> dict[str, Marker]:
        found = ledger.branch_markers(plan.number)
        for marker in found.values():
            check_marker(marker, plan, fence.installation)
        return {label: marker for label, marker in found.items() if marker.outcome is Outcome.COMMITTED}

    def _hold(self, plan: Plan, fence: Fence, parts: Sequence[Slice]) -> str:
        """Prepare these branches side by side. Return why they are not held nevertheless; "": they are."""
        whys = side_by_side([partial(self._branch, plan, fence, part) for part in parts])
        why = next(filter(None, whys), "")
        with self._asking(fence) as (db, ledger):
            if not why:
                names = self._require_prepared(db, ledger, plan, fence, [part.label for part in parts])
                why = self._crowded(db, names)  # others have prepared at the same moment
            if why:
                self._roll_back(db, plan, fence)
        return why

    def _branch(self, plan: Plan, fence: Fence, part: Slice) -> str:
        """Prepare one branch. Return why the server has no place for it; "": it is prepared."""
        opening = self._opening(plan)
        with self._branching(fence, part.label) as (db, ledger):
            detail = self._branch_detail(plan, fence, part)
            # A lock time-out where another attempt or session holds the place.
            with self._taking(plan, fence, part.label, lambda other: check_owner(other.head(), fence)):
                ledger.write_marker(plan, fence, Outcome.COMMITTED, part.rows, detail, part.label)
            self._still_mine(ledger, fence)  # I5: after the place is taken, never before
            sent = self._insert(db, plan, list(part.readers(opening.result())), None)
            require_counts(sent, part.rows)
            return self._prepare_branch(db, plan, fence, part.label)

    @contextmanager
    def _taking(self, plan: Plan, fence: Fence, label: str, check: Callable[[BranchLedger], None]) -> Iterator[None]:
        """Explain that the place of a marker is taken: first by what `check` raises outside the failed transaction."""
        try:
            yield
        except Exception as error:
            if not self._is_place_taken(error):
                raise
            with self._asking(fence) as (_, ledger):
                check(ledger)
            raise marker_taken(label, plan.number) from error

    def _branch_detail(self, plan: Plan, fence: Fence, part: Slice) -> dict[str, Any]:
        return {**self._detail(plan, fence), "of": part.of}

    def _still_mine(self, ledger: BranchLedger, fence: Fence) -> None:
        head = ledger.head()
        check_owner(head, fence)
        assert head is not None  # check_owner raises
        if head.rank != fence.rank:
            raise FencedError("a newer attempt has fenced this one.", remedy="Do nothing: the newer attempt delivers.")

    def _require_prepared(
        self, db: Db, ledger: BranchLedger, plan: Plan, fence: Fence, wanted: Collection[str]
    ) -> list[BranchName]:
        """Return the prepared branches of these labels. All are there, and the head still names the attempt."""
        found = [name for name in self._of_attempt(db, plan, fence) if name.branch in wanted]
        self._still_mine(ledger, fence)  # else a newer attempt may have rolled them back
        if lost := sorted(set(wanted) - {name.branch for name in found}):
            what = f"the server does not list the prepared branches {', '.join(lost)}: someone ended them."
            remedy = "Find out who ended them by hand."
            raise SinkUnavailableError(what, code="prepared_lost", remedy=remedy, missing=len(lost))
        return found

    def _of_attempt(self, db: Db, plan: Plan, fence: Fence) -> list[BranchName]:
        return [name for name in self._listed(db, fence) if (name.number, name.rank) == (plan.number, fence.rank)]

    # --- a branch of an announced attempt -------------------------------------------------------------------------

    def _join(self, plan: Plan, fence: Fence, notes: Mapping[str, Any], wanted: Collection[str]) -> bool:
        """Prepare those of these branches that are not there. False: the head no longer names the announcement."""
        self._remember(Vote(self.name, fence.attempt, 0, None, notes))
        with self._asking(fence) as (db, ledger):
            head = ledger.head()
            if head is not None and head.installation == fence.installation and head.rank > fence.rank:
                return False  # a newer attempt, at this number or at another one
            check_owner(head, fence)
            assert head is not None  # check_owner raises
            if head.rank != fence.rank:
                return False
            self._roll_back(db, plan, fence, older=True)
            for label in wanted:
                if (fence.rank, label) not in self._ended:
                    self._ended.add((fence.rank, label))
                    self._end_sessions(db, fence, label)
            there = {name.branch for name in self._of_attempt(db, plan, fence)}
            there |= set(self._there_already(ledger, plan, fence))
            parts = [part for part in self._slices(plan) if part.label in wanted and part.label not in there]
            why = self._room(db, len(parts)) if parts else ""
        whys = [why] if why else side_by_side([partial(self._branch, plan, fence, part) for part in parts])
        if any(whys):
            what = f"branch {', '.join(wanted)} was not prepared: {next(filter(None, whys))}"
            remedy = "Wait for the retry. If it fails too, `prepare` sends the rows after the decision."
            raise SinkUnavailableError(what, code="limit_reached", remedy=remedy)
        return True

    def _conclude(self, plan: Plan, fence: Fence, notes: Mapping[str, Any]) -> Mapping[str, Any] | None:
        slices = self._slices(plan)
        if not self._join(plan, fence, notes, [part.label for part in slices]):
            return None
        with self._asking(fence) as (db, ledger):
            listed = {name.branch for name in self._of_attempt(db, plan, fence)}
            there = [label for label in self._there_already(ledger, plan, fence) if label not in listed]
            self._require_prepared(db, ledger, plan, fence, {part.label for part in slices} - set(there))
        return voted(notes, slices, there)

    # --- phase 2 -------------------------------------------------------------------------------------------------

    def _commit(self, plan: Plan, fence: Fence, vote: Vote | None, set_aside: bool) -> Proof:
        rank: tuple[int, int] | None = counted(require_vote(vote))
        if vote is not None and DEFERRED in vote.notes:
            rank = None  # nothing was held
        self._remember(vote)
        with self._writing(fence, plan) as (_, ledger):
            head = self._raised(ledger, fence)
            if self._is_settled(ledger, head, plan, fence, exactly=True):  # I4: not before its predecessor
                return self._current_proof(ledger, plan)
        with self._asking(fence) as (db, _):
            for name in self._listed(db, fence):
                if name.number == plan.number and name.rank == rank:
                    self._end_branch(db, name, "COMMIT")
            self._roll_back(db, plan, fence, rank, floor=head.floor)
        more: dict[str, Any] = {DEFERRED: True} if rank is None else {"prepared": list(rank)}
        return self._whole(plan, fence, set_aside, more)

    def _whole(self, plan: Plan, fence: Fence, set_aside: bool, more: Mapping[str, Any]) -> Proof:
        """Write the marker of the whole, with the head, and with branches that are missing.

        Each of those takes its own place: a late transaction of the same branch meets it.
        """
        opening = self._opening(plan)
        with self._writing(fence, plan) as (db, transaction):
            ledger = cast(BranchLedger, transaction)
            head = self._raised(ledger, fence)
            if self._is_settled(ledger, head, plan, fence, exactly=True):
                return self._current_proof(ledger, plan)
            slices = self._slices(plan, opening.result())
            visible = self._visible(ledger, plan, fence)
            if unknown := sorted(set(visible) - {part.label for part in slices}):
                what = f"branches of another plan are visible: {', '.join(unknown)}."
                remedy = f"Look at the markers of checkpoint {plan.number} in the ledger."
                raise SinkUnavailableError(what, code="branches_incomplete", remedy=remedy, unknown=unknown)
            lost = [part for part in slices if part.label not in visible]
            if lost and DEFERRED not in more:
                # Neither prepared nor committed: rolled back by hand. It is decided, so the log delivers it.
                log.warning("%s: branches %s of checkpoint %d are lost; delivering them from the write-ahead log",
                            self.name, ", ".join(part.label for part in lost), plan.number)  # fmt: skip
                more = {**more, "redelivered": [part.label for part in lost]}
            of_branches = {label: (marker.counts, marker.detail) for label, marker in visible.items()}
            fill = partial(self._fill, db, ledger, plan, fence, visible)
            if visible:
                for part in lost:
                    of_branches[part.label] = fill(part, list(part.readers(opening.result())), set_aside)
            else:  # all together, as `_try` has sent them: a deferred constraint may need rows of another branch
                first, *others = lost
                of_branches[first.label] = fill(first, opening.result(), set_aside)
                for part in others:
                    of_branches[part.label] = fill(part, [], False)
            sent = [rows for rows, _ in of_branches.values()]
            counts = {name: sum(rows.get(name, 0) for rows in sent) for name in plan.participant(self.name).sinks}
            detail = {
                **self._detail(plan, fence),
                **more,
                "branches": {label: dict(rows) for label, (rows, _) in sorted(of_branches.items())},
                **set_aside_detail(together(read_detail(each) for _, (_, each) in sorted(of_branches.items()))),
            }
            ledger.write_marker(plan, fence, Outcome.COMMITTED, counts, detail)
            ledger.deliver_head(plan.number)
        return Proof(self.name, plan.number, Outcome.COMMITTED, plan.digest, fence.epoch, counts, detail)

    def _fill(
        self, db: Db, ledger: BranchLedger, plan: Plan, fence: Fence, seen: Collection[str], part: Slice,
        readers: Sequence[SegmentReader], set_aside: bool,
    ) -> tuple[Mapping[str, int], Mapping[str, Any]]:  # fmt: skip
        """Send these rows, with the marker of a lost branch. Return counts and detail of the marker."""
        refused = Refused(self.wal.dead_letters(plan), part.label) if set_aside else None
        try:
            counts = self._insert(db, plan, readers, refused) if readers else {}
            detail = self._branch_detail(plan, fence, part)
            if refused is not None:  # durable before COMMIT, and named by the marker
                detail |= set_aside_detail(refused.write())
            ledger.write_marker(plan, fence, Outcome.COMMITTED, counts, detail, part.label)
        except Exception as error:
            if isinstance(error, DeclinedError) or self._is_place_taken(error):
                with self._asking(fence) as (_, other):  # a branch committed meanwhile has the same keys
                    if late := sorted(set(self._visible(other, plan, fence)) - set(seen)):
                        raise marker_taken(late[0], plan.number) from error
            raise
        return counts, detail

    # --- abort ---------------------------------------------------------------------------------------------------

    def _abort(self, plan: Plan, fence: Fence, detail: Mapping[str, Any]) -> Proof:
        """Roll back, because ABORTED is decided. Then put an abort marker into every place, for late branches."""
        # The attempt that began here may not have got as far as to make head and ledger; it, too, must meet a head.
        with self._writing(fence, plan, create=plan.participant(self.name).predecessor == 0) as (_, ledger):
            self._begin(ledger, plan, fence)
            self._raised(ledger, fence)
        with self._asking(fence) as (db, _):
            self._roll_back(db, plan, fence)
        return super()._abort(plan, fence, detail)

    def _write_tombstone(self, ledger: TransactionLedger, plan: Plan, fence: Fence, detail: Mapping[str, Any]) -> None:
        """As the base. A place that is taken means what its marker says: the insert may have waited for its commit."""
        places = cast(BranchLedger, ledger)
        self._refuse_visible(plan, fence, places)
        for label in (*labels(self._width), ""):
            with self._taking(plan, fence, label, partial(self._refuse_visible, plan, fence)):
                places.write_marker(plan, fence, Outcome.ABORTED, {}, detail, label)

    def _refuse_visible(self, plan: Plan, fence: Fence, ledger: BranchLedger) -> None:
        if found := self._visible(ledger, plan, fence):
            raise committed_by_hand(self._heuristic_text(ledger, plan, found), plan.pipeline)

    def heuristic(self, plan: Plan) -> str:
        """Return what was committed by hand before the decision."""
        return self._persist("looking for rows committed by hand", lambda: self._heuristic(plan), plan=plan)

    def _heuristic(self, plan: Plan) -> str:
        with self._reading(plan.pipeline, plan) as transaction:
            if transaction is None:
                return ""
            ledger = cast(BranchLedger, transaction)
            found = visible_branches(ledger.branch_markers(plan.number), plan.installation)
            is_open = found and ledger.marker(plan.number) is None
            return self._heuristic_text(ledger, plan, found) if is_open else ""

    # --- prepared branches ---------------------------------------------------------------------------------------

    def _roll_back(
        self, db: Db, plan: Plan, fence: Fence, kept: tuple[int, int] | None = None, older: bool = False, floor: int = 0
    ) -> None:
        """Roll back branches of this number from attempts up to this one. The number is undecided, ABORTED, or decided
        for the attempt `kept`. A branch of this very rank is of a try whose answer was lost; with `older` it stays. A
        late call does not touch those of a newer attempt. Numbers up to the head's `floor` are never delivered: their
        branches, which a doctor or a restored backup left, are rolled back too.
        """
        for name in self._listed(db, fence):
            is_other = name.number > floor and name.number != plan.number  # a probe has the number 0
            if is_other or name.rank > fence.rank or name.rank == kept:
                continue
            if not (older and name.rank == fence.rank):
                log.warning("%s: rolling back branch %s, which attempt %s prepared for checkpoint %d", self.name,
                            name.branch, name.rank, name.number)  # fmt: skip
                self._end_branch(db, name, "ROLLBACK")

    def _renounce(self, plan: Plan, fence: Fence) -> None:
        """Roll back what this attempt itself has prepared and will not vote for, if that can be done now."""
        try:
            with self._asking(fence) as (db, _):
                self._roll_back(db, plan, fence)
        except Exception as error:  # the error before this one is raised
            log.warning("%s: could not roll back the prepared branches; the next attempt does it: %s", self.name,
                        error.what if isinstance(error, AirflowFtError) else type(error).__name__)  # fmt: skip

    # --- shared --------------------------------------------------------------------------------------------------

    def _slices(self, plan: Plan, opened: Sequence[SegmentReader] | None = None) -> list[Slice]:
        """Return the branches of a plan: the same each time. `opened` are its segments, if they are open."""
        return divide(opened or self._readers(plan), plan.participant(self.name).sinks, self._width)
