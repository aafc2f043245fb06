"""The strategy `prepared`: rows and marker are prepared before the decision, and only committed after it (TWO_PHASE).

A transaction that is *prepared* outlives its process, its connection and a crash of the server. Only the decision
settles it, since it names the attempt that it counts. It must not have locked the head: no later attempt, and no later
number, could raise it until the decision. The marker's key fences instead: a transaction first takes the place of its
marker, and then looks at the head, in a new snapshot and without a lock. A successor first raises the
head, and then takes the same place. So either the older one sees the newer head and stops, or the newer one meets its
lock, and rolls back what it has prepared. An abort takes the place with a tombstone in the same way.

A number whose predecessor is not delivered yet is tried and rolled back, and sent after the decision. So a pipeline
holds one prepared transaction, and all pipelines together at most half of the server's places (`gid.full`).

Inquiry goes in this order: pg_prepared_xacts, then the marker; the other way round a commit may happen in between (I6).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import psycopg2

from airflow_ft.protocol.errors import FencedError, SinkUnavailableError
from airflow_ft.protocol.model import Fence, Plan
from airflow_ft.protocol.numbers import count_text
from airflow_ft.protocol.votes import Outcome, Proof, Vote
from airflow_ft.protocol.write_ahead_log import SegmentReader
from airflow_ft.sinks.base.memory import Marker, check_owner
from airflow_ft.sinks.base.prepared import PROBE_NUMBER, committed_by_hand, counted, owner_of, require_vote
from airflow_ft.sinks.postgres.failures import UNIQUE_VIOLATION, Meaning, is_without_place, meaning
from airflow_ft.sinks.postgres.gid import end_prepared, full, listed, new_gid, no_place
from airflow_ft.sinks.postgres.held import targets_of, voted_targets
from airflow_ft.sinks.postgres.ledger import Ledger
from airflow_ft.sinks.postgres.local import LocalParticipant
from airflow_ft.sinks.postgres.session import Session

log = logging.getLogger(__name__)

DEFERRED = "deferred"
"""The note of a vote that holds nothing, and why."""


class PreparedParticipant(LocalParticipant):
    """See `airflow_ft.protocol.participant.Participant`."""

    prepares: ClassVar[bool] = True

    # --- phase 1 -------------------------------------------------------------------------------------------------

    def _vote(self, plan: Plan, fence: Fence, readers: Sequence[SegmentReader]) -> dict[str, Any]:
        """When it returns, all rows are prepared: durable, and invisible."""
        self._voted = {}
        counts = {name: sum(each.rows.get(name, 0) for each in plan.segments) for name in self.sinks}
        with self._session(fence) as session:
            ledger = self._ledger(session, plan.pipeline)
            self._roll_back(ledger, plan, fence)
            notes = {"epoch": fence.epoch, "rows": counts, "targets": targets_of(session, self.sinks, readers)}
            why = self._waits(ledger, plan) or full(session)
            if not why:
                why = self._hold(session, ledger, plan, fence, readers, counts)
                return {**notes, DEFERRED: why} if why else notes
        self._try(plan, fence, readers)
        return {**notes, DEFERRED: why}

    def _hold(
        self,
        session: Session,
        ledger: Ledger,
        plan: Plan,
        fence: Fence,
        readers: Sequence[SegmentReader],
        counts: Mapping[str, int],
    ) -> str:
        """Prepare the rows. Return why they are not held nevertheless; "": they are."""
        gid = new_gid(fence, self.name, plan.number)
        session.begin()
        self._claim(ledger, plan, fence, counts)
        self._still_mine(ledger, fence)  # I5: after the place is taken, never before
        sent = self._insert(session, plan, readers, None)
        if sent != counts:
            raise SinkUnavailableError(
                f"the server counted {sent} rows, but the plan has {counts}.",
                code="row_count_mismatch",
                remedy="Report it with the log of this task: manifest and files disagree. Nothing was prepared.",
                found=dict(sent),
                expected=dict(counts),
            )
        try:
            self._end(session, f"PREPARE TRANSACTION {gid.sql}")
        except psycopg2.Error as error:
            if not is_without_place(error):
                raise
            return no_place(int(session.value("SHOW max_prepared_transactions")))
        there = gid in listed(session, gid.owner)
        self._still_mine(ledger, fence)  # else a newer attempt may have rolled it back
        if not there:
            raise SinkUnavailableError(
                f"the transaction {gid.sql} was prepared, but pg_prepared_xacts does not list it: someone ended it.",
                code="prepared_lost",
                remedy="Find out who ended it by hand. Airflow retries the task.",
            )
        if why := full(session, gid):  # others have prepared at the same moment
            end_prepared(session, gid, "ROLLBACK", self.limits.head_wait)
        return why

    def _waits(self, ledger: Ledger, plan: Plan) -> str:
        """Return why the number is not prepared now: an earlier one is not delivered, and nothing is held behind it.

        Prepared numbers would fill the server's places for prepared transactions, and none of them could be committed.
        """
        head, predecessor = ledger.head(), plan.participant(self.name).predecessor
        if head is None or head.last_delivered >= predecessor:
            return ""
        return f"checkpoint {predecessor} is not delivered yet: the rows are sent after the decision"

    def _try(self, plan: Plan, fence: Fence, readers: Sequence[SegmentReader]) -> None:
        """Send rows that are not held, and roll them back: a row that is refused aborts before the decision.

        Rows that an earlier number has prepared may lock the keys of these: then only the columns were judged.
        """
        try:
            with self._writing(fence, plan, keep=False) as (session, _):
                self._insert(session, plan, readers, None)
        except psycopg2.Error as error:
            if meaning(error) is not Meaning.BUSY:
                raise
            log.info("%s: did not try the rows of checkpoint %d, because an earlier checkpoint locks their keys",
                     self.name, plan.number)  # fmt: skip

    def _claim(self, ledger: Ledger, plan: Plan, fence: Fence, counts: Mapping[str, int]) -> None:
        """Takes the marker's place; SQLSTATE 55P03 where an older attempt still holds it (`_clear_the_way`)."""
        detail = self._detail(plan, fence) | {"prepared": list(fence.rank)}
        try:
            ledger.write_marker(plan, fence, Outcome.COMMITTED, counts, detail)
        except psycopg2.Error as error:
            if error.pgcode != UNIQUE_VIOLATION:
                raise
            with self._session(fence) as other:
                check_owner(self._ledger(other, plan.pipeline).head(), fence)
            raise SinkUnavailableError(
                f"another attempt wrote the marker of checkpoint {plan.number} at the same time.",
                code="marker_taken",
                remedy="Nothing to do: the retry reads that marker.",
            ) from error

    def _still_mine(self, ledger: Ledger, fence: Fence) -> None:
        head = ledger.head()
        check_owner(head, fence)
        assert head is not None  # check_owner raises
        if head.rank != fence.rank:
            raise FencedError("a newer attempt owns the head.", remedy="Nothing to do: the newer attempt delivers.")

    # --- phase 2 -------------------------------------------------------------------------------------------------

    def _commit(self, plan: Plan, fence: Fence, vote: Vote | None, set_aside: bool) -> Proof:
        rank: tuple[int, int] | None = counted(require_vote(vote))
        if vote is not None and DEFERRED in vote.notes:
            rank = None  # nothing was held
        self._voted = voted_targets(vote)
        with self._writing(fence, plan) as (_, ledger):
            head = self._raised(ledger, fence)
            if self._is_settled(ledger, head, plan, fence, exactly=True):  # I4: not before its predecessor
                return self._current_proof(ledger, plan)
        with self._session(fence) as session:
            ledger = self._ledger(session, plan.pipeline)
            for gid in listed(session, owner_of(fence.installation, *ledger.key)):
                if gid.number == plan.number and gid.rank == rank:
                    end_prepared(session, gid, "COMMIT", self.limits.head_wait)
            self._roll_back(ledger, plan, fence, rank)
            marker = ledger.marker(plan.number)
            if marker is not None:
                return marker.proof(self.name, plan.number)
        if rank is None:
            return self._deliver(plan, fence, set_aside, {DEFERRED: True})
        # Neither prepared nor committed: rolled back by hand. But it is decided, so the log delivers it.
        log.warning("%s: the prepared rows of checkpoint %d are lost; delivering them from the write-ahead log",
                    self.name, plan.number)  # fmt: skip
        return self._deliver(plan, fence, set_aside, {"prepared": list(rank), "redelivered": True})

    # --- abort ---------------------------------------------------------------------------------------------------

    def _abort(self, plan: Plan, fence: Fence, detail: Mapping[str, Any]) -> Proof:
        """ABORTED is decided: rolls back, then takes the place with a tombstone, which a late attempt meets."""
        # The attempt that began here may not have got as far as to make head and ledger; it, too, must meet a head.
        with self._writing(fence, plan, create=plan.participant(self.name).predecessor == 0) as (_, ledger):
            self._begin(ledger, plan, fence)
            self._raised(ledger, fence)
        with self._session(fence) as session:
            self._roll_back(self._ledger(session, plan.pipeline), plan, fence)
        proof = super()._abort(plan, fence, detail)
        if proof.outcome is Outcome.COMMITTED:
            raise committed_by_hand(self.heuristic(plan), plan.pipeline)
        return proof

    def heuristic(self, plan: Plan) -> str:
        """Return what was committed by hand (COMMIT PREPARED)."""
        return self._persist("looking for rows committed by hand", lambda: self._heuristic(plan), plan=plan)

    def _heuristic(self, plan: Plan) -> str:
        with self._reading(plan.pipeline) as ledger:
            marker = ledger.marker(plan.number) if ledger is not None else None
            if marker is None or marker.outcome is not Outcome.COMMITTED or marker.installation != plan.installation:
                return ""
            assert isinstance(ledger, Ledger)
            return self._heuristic_text(ledger, plan, marker)

    def _heuristic_text(self, ledger: Ledger, plan: Plan, marker: Marker) -> str:
        where = (
            f"FROM {ledger.tables[1]} WHERE pipeline = '{ledger.pipeline}'"
            f" AND participant = '{ledger.participant.replace(chr(39), chr(39) * 2)}' AND number = {plan.number}"
        )
        tables = ", ".join(sorted(sink.table for sink in self.sinks.values()))
        return (
            "someone ran COMMIT PREPARED before the checkpoint was decided (a heuristic outcome):"
            f" {count_text(sum(marker.counts.values()), 'row is', 'rows are')} visible in {tables}."
            f" To see the marker, run: SELECT kind, counts, at {where};"
            " To undo it, delete those rows (`airflow ft verify` lists them) and, in the same transaction, run:"
            f" DELETE {where};"
        )

    # --- prepared transactions -----------------------------------------------------------------------------------

    def _roll_back(self, ledger: Ledger, plan: Plan, fence: Fence, kept: tuple[int, int] | None = None) -> None:
        """Roll back transactions of this number from attempts up to this one, and those that a doctor left. The number
        is undecided, ABORTED, or decided for the attempt `kept`. A transaction of this very rank is a try whose answer
        was lost. A late call does not touch those of a newer attempt.
        """
        for gid in listed(ledger.session, owner_of(fence.installation, *ledger.key)):
            if gid.number in (plan.number, PROBE_NUMBER) and gid.rank <= fence.rank and gid.rank != kept:
                text = "%s: rolling back the transaction that attempt %s prepared for checkpoint %d"
                log.warning(text, self.name, gid.rank, gid.number)
                end_prepared(ledger.session, gid, "ROLLBACK", self.limits.head_wait)
