"""One server with all tables that a pipeline writes there: what every strategy of this sink has in common.

Announcing, reading markers, tombstones, pruning, adoption, and trying again when an answer was lost. `judging` says
whether the tables take the rows. A strategy says how the rows enter (`_deliver`), and nothing else.
"""

from __future__ import annotations

import logging
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any, TypeVar

import pymysql

from airflow_ft.protocol.errors import AirflowFtError, ForeignOwnerError, SinkUnavailableError
from airflow_ft.protocol.model import Fence, Plan
from airflow_ft.protocol.numbers import count_text
from airflow_ft.protocol.orphans import Orphan, PreparedEnding
from airflow_ft.protocol.set_aside import detail as set_aside_detail
from airflow_ft.protocol.votes import Outcome, Proof, SinkHead, Vote
from airflow_ft.protocol.write_ahead_log import DeadLetters, SegmentReader
from airflow_ft.sinks.base.memory import (
    check_adopter,
    check_epoch,
    check_marker,
    check_owner,
    new_head,
    refuse_to_adopt,
)
from airflow_ft.sinks.mysql.failures import (
    LOCAL_INFILE_REFUSED,
    NO_SUCH_TABLE,
    Meaning,
    Unanswered,
    code_of,
    describe,
    failure,
    meaning,
    suppressed,
)
from airflow_ft.sinks.mysql.fencing import announce, guarded_head, new_nonce
from airflow_ft.sinks.mysql.judging import JudgingParticipant
from airflow_ft.sinks.mysql.ledger import WHOLE, Ledger, ledger_of, marker_lost, settled
from airflow_ft.sinks.mysql.load import AnotherWay, Loader, Way
from airflow_ft.sinks.mysql.orphans import Prepared, shut_out
from airflow_ft.sinks.mysql.requirements import check_server, ensure_ledger, triggers_that_fire
from airflow_ft.sinks.mysql.session import Session
from airflow_ft.sinks.mysql.vote import Target
from airflow_ft.sinks.refused import Refused, require_rows_at_fault

log = logging.getLogger(__name__)

T = TypeVar("T")


class ServerParticipant(JudgingParticipant):
    """One server with all tables that a pipeline writes there. See `airflow_ft.protocol.participant.Participant`."""

    def __init__(self, *opened: Any) -> None:
        super().__init__(*opened)
        self._nonce = ""  # of the sessions that the head names, if it names this object's
        self._nonces: set[str] = set()  # of all sessions that this object announced
        self._killed: tuple[int, ...] = ()  # connections of older attempts that this commit has ended

    # --- the protocol -------------------------------------------------------------------------------------------

    def prepare(self, plan: Plan, fence: Fence) -> Mapping[str, Any]:
        """Raises the head, then votes on server, privileges, schema and rows; returns notes for people."""
        return self._persist("preparing", plan, lambda tries: self._prepare(plan, fence, tries))

    def commit(self, plan: Plan, fence: Fence, vote: Vote | None = None, *, set_aside: bool = False) -> Proof:
        """Delivers under this plan's marker, or finds that the number is settled."""
        dead_letters = self._wal.dead_letters(plan) if set_aside else None
        self._killed = ()

        def deliver(tries: int) -> Proof:
            return self._in_some_way(tries, lambda way: self._deliver(plan, fence, vote, tries, way), dead_letters)

        return self._persist("committing", plan, deliver)

    @abstractmethod
    def _deliver(self, plan: Plan, fence: Fence, vote: Vote | None, tries: int, way: Way) -> Proof:
        """One try of the strategy's own way to commit."""

    def _in_some_way(self, tries: int, send: Callable[[Way], T], dead_letters: DeadLetters | None = None) -> T:
        """Send rows in the first way, or in the next one that has proved necessary.

        Nothing is sent ahead in a second try: some proxies end a connection that does not wait for its answers.
        Nor where refused rows are looked for: the answer must come before anything else is sent.
        """
        way = Way(ahead=tries == 1 and dead_letters is None, dead_letters=dead_letters)
        while True:
            try:
                return send(way)
            except AnotherWay as other:
                log.warning("%s: %s", self._plan.name, other)
                way = other.way

    def abort(self, plan: Plan, fence: Fence, detail: Mapping[str, Any]) -> Proof:
        """Write the abort marker, which stops a late COMMIT, or find the existing marker."""
        return self._persist("writing the tombstone", plan, lambda _: self._abort(plan, fence, detail))

    def proof(self, plan: Plan) -> Proof | None:
        """The marker in a fresh snapshot; None when there is none, which proves nothing."""
        return self._persist("reading the marker", plan, lambda _: self._proof(plan))

    def forget(self, fence: Fence, floor: int) -> None:
        """Prunes markers at or below `floor`, in the transaction that raises the floor."""
        self._persist("pruning markers", None, lambda _: self._forget(fence, floor))

    def head(self, pipeline: str) -> SinkHead | None:
        """Return the head, or what the markers say, with any owner; None if the sink has never seen the pipeline."""
        return self._persist("reading the head", None, lambda _: self._head(pipeline))

    def adopt(self, fence: Fence, number: int) -> None:
        """Takes the head over from another installation."""
        self._persist("adopting the head", None, lambda _: self._adopt(fence, number))

    def orphans(self, pipeline: str, installation: str) -> Sequence[Orphan]:
        """Branches of former owners, prepared or visible, and their tombstones past the last delivered number."""
        return self._persist("looking for orphans", None, lambda _: self._orphans(pipeline, installation))

    def end_orphans(self, fence: Fence, ending: PreparedEnding | None, *, make_way: bool = False) -> None:
        """Raises the head above a former owner, and ends its branches; see `orphans.Prepared`."""
        self._persist("ending orphans", None, lambda _: self._end_orphans(fence, ending, make_way))

    def heuristic(self, plan: Plan) -> str:
        """Only what is prepared before the decision can be committed before it."""
        return ""

    def close(self) -> None:
        """Nothing is held between calls: each opens its own connection and closes it."""

    # --- the steps ----------------------------------------------------------------------------------------------

    def _prepare(self, plan: Plan, fence: Fence, tries: int) -> Mapping[str, Any]:
        unsafe_allowed = any(sink.allow_unsafe_durability for sink in self._sinks.values())
        ledger = self._ledger(plan.pipeline)
        with closing(self._open()) as session:
            warnings = check_server(session, allow_unsafe_durability=unsafe_allowed)
            created = ensure_ledger(session, ledger)
            preflight = self._preflight(session, ledger, plan, fence)
            killed = self._announce(session, ledger, fence, create=plan.participant(self._plan.name).predecessor == 0)
            head = ledger.on(session).head()
            check_owner(head, fence)
            assert head is not None
            notes: dict[str, Any] = {
                **preflight,
                "server": session.product,
                "path": self._path(session, Way()),
                "head": {"last_delivered": head.last_delivered, "floor": head.floor},
            }
            if created:
                notes["created"] = created
            if killed:
                notes["killed"] = list(killed)
            marker = settled(session, ledger, plan, fence, head, exactly=False)
            if marker is not None:  # an earlier try went further than the store knows
                return notes | {"settled": marker.outcome.value}
            if notes["path"] == "insert" and not session.is_mariadb and not session.can_load_local:
                warnings.append("LOAD DATA LOCAL is off: sending rows by INSERT, which costs the server more")
                log.warning("%s: %s (local_infile)", self._plan.name, warnings[-1])
            targets = self._targets(session)
            verdicts = self._verdicts(session, plan, targets)
        # From here on no connection is held: looking at rows may take longer than the server waits.
        self._check_rows(plan, verdicts, targets)
        tables: dict[str, Any] = {}
        for name, target in targets.items():
            found = [note for other, _, verdict in verdicts if other.sink == name for note in verdict.notes]
            if firing := triggers_that_fire(target, self._sinks[name]):
                found.append(firing)
            tables[name] = {
                "table": str(target.table.name),
                "rows": sum(segment.rows.get(name, 0) for segment in plan.segments),
                "fingerprint": target.fingerprint,
                "notes": sorted(set(found)),
            }
        return notes | {"tables": tables, "warnings": warnings}

    def _preflight(self, session: Session, ledger: Ledger, plan: Plan, fence: Fence) -> Mapping[str, Any]:
        """Return what a strategy demands of the server before the head is raised; returns notes."""
        return {}

    def _labels(self) -> Sequence[str]:
        """The branches that a number of this participant may have, beside the whole."""
        return ()

    def _loader(self, session: Session, plan: Plan, way: Way) -> Loader:
        return Loader(session, self._limits, way)

    def _send(
        self, session: Session, plan: Plan, reader: SegmentReader, target: Target, way: Way, refused: Refused | None
    ) -> int:
        """All rows of one sink in a segment, or in a slice of it; returns what the server counted, which is as many.

        With `refused` it takes up those that the server does not take.
        """
        name = target.sink
        if name not in reader.sinks():
            return 0
        loader = self._loader(session, plan, way)
        before = refused.rows(name) if refused is not None else 0
        try:
            affected = loader.send(reader, target) if refused is None else loader.send_around(reader, target, refused)
        except pymysql.err.MySQLError as error:
            if way.load and code_of(error) in LOCAL_INFILE_REFUSED:
                reason = f"the server refused LOAD DATA LOCAL ({describe(error)}); sending rows by INSERT"
                raise AnotherWay(replace(way, load=False), reason) from error
            raise
        expected = reader.segment.rows.get(name, 0)
        if refused is not None:
            expected -= refused.rows(name) - before
            if not affected:
                require_rows_at_fault(refused.reasons(name)[before:], name, str(target.table.name))
        if affected != expected:
            raise SinkUnavailableError(
                f"the server counted {count_text(affected, 'row')}, and segment {reader.segment.number} has {expected}."
                " Nothing was committed.",
                code="row_count_mismatch",
                remedy="Report it: the manifest of the segment and its files disagree.",
                sink=name,
                found=affected,
                expected=expected,
            )
        return affected

    def _fill(
        self,
        session: Session,
        ledger: Ledger,
        plan: Plan,
        readers: Sequence[SegmentReader],
        targets: Mapping[str, Target],
        detail: dict[str, Any],
        way: Way,
        branch: str = WHOLE,
    ) -> tuple[dict[str, int], dict[str, Any]]:
        """Send rows after their marker was inserted, and write counts into that. Return counts and detail."""
        counts = dict.fromkeys(targets, 0)
        refused = way.refused(branch)
        for name, target in targets.items():  # in the declared order: a foreign key may lead from one to another
            for reader in readers:
                counts[name] += self._send(session, plan, reader, target, way, refused)
        if refused is not None:  # durable before COMMIT, and named by the marker
            detail = {**detail, **set_aside_detail(refused.write())}
        if ledger.on(session).fill_marker(plan.number, counts, detail, branch) != 1:
            raise marker_lost(ledger, plan.number)
        return counts, detail

    def _abort(self, plan: Plan, fence: Fence, detail: Mapping[str, Any]) -> Proof:
        ledger = self._ledger(plan.pipeline)
        with closing(self._open()) as session:
            self._announce(session, ledger, fence)
            session.begin()
            head = guarded_head(session, ledger, fence, self._nonce)
            marker = settled(session, ledger, plan, fence, head, exactly=False)
            if marker is not None:
                return marker.proof(self._plan.name, plan.number)
            for branch in (WHOLE, *self._labels()):
                if not ledger.on(session).take_place(plan, fence, Outcome.ABORTED, detail, branch):
                    session.close()
                    return self._current_proof(plan)
            self._end(session)
        return Proof(self._plan.name, plan.number, Outcome.ABORTED, plan.digest, fence.epoch, {}, dict(detail))

    def _proof(self, plan: Plan) -> Proof | None:
        marker = None
        with closing(self._open()) as session, suppressed(NO_SUCH_TABLE):  # never prepared
            marker = self._ledger(plan.pipeline).on(session).marker(plan.number)
        if marker is None:
            return None
        check_marker(marker, plan, plan.installation)
        return marker.proof(self._plan.name, plan.number)

    def _forget(self, fence: Fence, floor: int) -> None:
        if floor <= 0:
            return
        ledger = self._ledger(fence.pipeline)
        with closing(self._open()) as session:
            session.begin()
            check_epoch(ledger.on(session).head(lock=True), fence)
            ledger.on(session).raise_floor(floor)
            ledger.on(session).prune(floor)
            self._end(session)

    def _head(self, pipeline: str) -> SinkHead | None:
        head = None
        with closing(self._open()) as session, suppressed(NO_SUCH_TABLE):
            head = self._ledger(pipeline).on(session).remembered()
        return head

    def _adopt(self, fence: Fence, number: int) -> None:
        ledger = self._ledger(fence.pipeline)
        with closing(self._open()) as session:
            ensure_ledger(session, ledger)
            session.begin()
            head = ledger.on(session).head(lock=True)  # what the old owner has open is committed before, or never
            check_adopter(head, fence)
            marked = [found[0] for found in ledger.on(session).markers_of_others(number, fence.installation)]
            refuse_to_adopt(head.as_sink_head if head else None, marked, fence.installation, number)
            floor = max(number, head.floor if head else 0)
            ledger.on(session).write_head(replace(new_head(fence), last_delivered=number, floor=floor))
            self._end(session)

    def _orphans(self, pipeline: str, installation: str) -> list[Orphan]:
        found: list[Orphan] = []
        with closing(self._open()) as session, suppressed(NO_SUCH_TABLE):
            found = Prepared(session, self._ledger(pipeline), self._limits.head_wait).find(installation)
        return found

    def _end_orphans(self, fence: Fence, ending: PreparedEnding | None, make_way: bool) -> None:
        ledger = self._ledger(fence.pipeline)
        with closing(self._open()) as session, suppressed(NO_SUCH_TABLE):
            shut_out(session, ledger, fence)
            prepared = Prepared(session, ledger, self._limits.head_wait)
            prepared.end_of_others(fence, ending, roll_back_own=not make_way)
            if not make_way:
                return
            session.begin()
            head = ledger.on(session).head(lock=True)
            check_owner(head, replace(fence, epoch=head.epoch, attempt=head.attempt) if head else fence)
            assert head is not None  # check_owner raises
            ledger.on(session).drop_markers_of_others(head.last_delivered, fence.installation)
            self._end(session)

    # --- what the steps share -----------------------------------------------------------------------------------

    def _current_proof(self, plan: Plan) -> Proof:
        """The marker that took the place, in a fresh snapshot."""
        proof = self._proof(plan)
        if proof is None:
            raise marker_lost(self._ledger(plan.pipeline), plan.number)
        return proof

    def _end(self, session: Session) -> None:
        try:
            session.commit()
        except pymysql.err.MySQLError as error:
            raise Unanswered(describe(error)) from error

    def _persist(self, doing: str, plan: Plan | None, step: Callable[[int], T]) -> T:
        """Runs a step, again on a new connection when an answer was lost or a lock was not had (bounded)."""
        tries = 0
        while True:
            tries += 1
            try:
                return step(tries)
            except (Unanswered, pymysql.err.MySQLError) as error:
                found, text = meaning(error), failure(error, doing)
                if found is Meaning.BUSY and plan is not None:
                    self._refuse_branches_of_others(plan)
                if tries == self._limits.tries or found not in (Meaning.LOST, Meaning.BUSY):
                    raise text.located(**self._where(plan)) from error
                log.warning("%s: %s Trying again (%d of %d).", self._plan.name, text.what, tries, self._limits.tries)
            except AirflowFtError as error:
                raise error.located(**self._where(plan)) from error.__cause__
            time.sleep(min(0.1 * 4 ** (tries - 1), 5.0))

    def _refuse_branches_of_others(self, plan: Plan) -> None:
        """When a lock was not had: ForeignOwnerError, if it may be a former owner's prepared branch that holds it."""
        try:
            with closing(self._open()) as session:
                Prepared(session, self._ledger(plan.pipeline), 0).refuse(plan.installation)
        except ForeignOwnerError as error:
            raise error.located(**self._where(plan)) from None
        except pymysql.err.MySQLError as error:
            log.warning("%s: could not find out who holds the lock: %s", self._plan.name, describe(error))

    def _where(self, plan: Plan | None) -> dict[str, str | int]:
        where: dict[str, str | int] = {"participant": self._plan.name}
        return where | ({"pipeline": plan.pipeline, "checkpoint": plan.number} if plan else {})

    def _announce(self, session: Session, ledger: Ledger, fence: Fence, *, create: bool = False) -> tuple[int, ...]:
        self._nonce = new_nonce()
        self._nonces.add(self._nonce)
        labels = self._labels()
        killed = announce(
            session, ledger, fence, self._nonce, self._limits, self._nonces, create=create, branches=labels
        )
        self._killed += killed
        return killed

    def _ledger(self, pipeline: str) -> Ledger:
        return ledger_of(self._sinks, self._connection.schema, pipeline, self._plan.name)
