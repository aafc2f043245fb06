"""One server with all tables that a pipeline writes there: what every strategy of this sink has in common.

`airflow_ft.sinks.base.one_transaction` has the steps. Here each transaction is announced before it opens (`fencing`),
and a step runs again when an answer was lost. `judging` says whether the tables take the rows. A strategy says how the
rows enter.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Any, TypeVar

import pymysql

from airflow_ft.protocol.errors import AirflowFtError, ForeignOwnerError, SinkUnavailableError
from airflow_ft.protocol.model import Fence, Plan
from airflow_ft.protocol.numbers import count_text
from airflow_ft.protocol.orphans import Orphan, PreparedEnding
from airflow_ft.protocol.votes import Proof, Vote
from airflow_ft.protocol.write_ahead_log import SegmentReader
from airflow_ft.sinks.base.memory import check_owner
from airflow_ft.sinks.base.one_transaction import TransactionLedger
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
from airflow_ft.sinks.mysql.fencing import announce, new_nonce, still_named
from airflow_ft.sinks.mysql.judging import Judgement, JudgingParticipant
from airflow_ft.sinks.mysql.ledger import Head, Ledger, ledger_of, settled
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
        self._killed: tuple[int, ...] = ()  # connections of older attempts that this step has ended
        self._tries = 1  # of the present step
        self._judged: tuple[Sequence[Judgement], Mapping[str, Target]] = (), {}  # before their rows are read

    # --- transactions --------------------------------------------------------------------------------------------

    @contextmanager
    def _writing(
        self, fence: Fence, plan: Plan | None = None, *, create: bool = False, keep: bool = True
    ) -> Iterator[tuple[Session, Ledger]]:
        """With a plan, announce its session first. The first look at the head locks it, or its place."""
        with closing(self._open()) as session:
            ledger = self._ledger(fence.pipeline)
            if create:
                ensure_ledger(session, ledger)
            if plan is not None:
                self._announce(session, ledger, fence)
            session.begin()
            yield session, replace(ledger.on(session), locks_head=True)
            if keep:
                self._end(session)

    @contextmanager
    def _reading(self, pipeline: str, plan: Plan | None = None) -> Iterator[Ledger]:
        with closing(self._open()) as session:
            yield replace(self._ledger(pipeline).on(session), may_lack=True)

    def _raised(self, ledger: TransactionLedger, fence: Fence) -> Head:
        """As announced: FencedError where the head names another session by now."""
        assert isinstance(ledger, Ledger)
        return still_named(ledger.head(), fence, self._nonce)

    # --- the steps -----------------------------------------------------------------------------------------------

    def _first_look(self, plan: Plan, fence: Fence) -> tuple[dict[str, Any], Sequence[SegmentReader] | None]:
        """Use one session without a transaction. It ends before rows are read, which may take long."""
        self._given = None
        unsafe_allowed = any(sink.allow_unsafe_durability for sink in self._sinks.values())
        ledger, opening = self._ledger(plan.pipeline), self._opening(plan)
        with closing(self._open()) as session:
            warnings = check_server(session, allow_unsafe_durability=unsafe_allowed)
            created = ensure_ledger(session, ledger)
            preflight = self._preflight(session, ledger, plan, fence)
            self._announce(session, ledger, fence, create=plan.participant(self.name).predecessor == 0)
            head = ledger.on(session).head()
            check_owner(head, fence)
            assert head is not None
            notes: dict[str, Any] = {
                **preflight,
                "server": session.product,
                "path": self._path(session),
                "head": {"last_delivered": head.last_delivered, "floor": head.floor},
            }
            if created:
                notes["created"] = created
            if self._killed:
                notes["killed"] = list(self._killed)
            marker = settled(session, ledger, plan, fence, head, exactly=False)
            if marker is not None:  # an earlier try went further than the store knows
                return notes | {"settled": marker.outcome.value}, None
            if notes["path"] == "insert" and not session.is_mariadb and not session.can_load_local:
                warnings.append("LOAD DATA LOCAL is off: sending rows by INSERT, which costs the server more")
                log.warning("%s: %s (local_infile)", self.name, warnings[-1])
            targets, readers = self._targets(session), opening.result()
            self._judged = self._verdicts(session, plan, targets, readers), targets
        return notes | {"warnings": warnings}, readers

    def _preflight(self, session: Session, ledger: Ledger, plan: Plan, fence: Fence) -> Mapping[str, Any]:
        """Check what a strategy demands of the server before the head is raised. Return notes."""
        return {}

    def _vote(self, plan: Plan, fence: Fence, readers: Sequence[SegmentReader]) -> dict[str, Any]:
        """Read the rows where schemas and statistics do not decide. It holds no connection meanwhile."""
        verdicts, targets = self._judged
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
        return {"tables": tables}

    def _commit(self, plan: Plan, fence: Fence, vote: Vote | None, set_aside: bool) -> Proof:
        self._given = vote
        if set_aside:  # the answer about a row must come before anything else is sent
            self._way = replace(self._way, ahead=False, dead_letters=self.wal.dead_letters(plan))
        return super()._commit(plan, fence, vote, set_aside)

    def _send_all(
        self,
        session: Session,
        plan: Plan,
        readers: Sequence[SegmentReader],
        targets: Mapping[str, Target],
        refused: Refused | None,
    ) -> dict[str, int]:
        counts = dict.fromkeys(targets, 0)
        for name, target in targets.items():  # in the declared order: a foreign key may lead from one to another
            for reader in readers:
                counts[name] += self._send(session, plan, reader, target, refused)
        return counts

    def _labels(self) -> Sequence[str]:
        """The branches that a number of this participant may have, beside the whole."""
        return ()

    def _loader(self, session: Session, plan: Plan) -> Loader:
        return Loader(session, self._limits, self._way)

    def _send(
        self, session: Session, plan: Plan, reader: SegmentReader, target: Target, refused: Refused | None
    ) -> int:
        """All rows of one sink in a segment, or in a slice of it; returns what the server counted, which is as many.

        With `refused` it takes up those that the server does not take.
        """
        name = target.sink
        if name not in reader.sinks():
            return 0
        loader = self._loader(session, plan)
        before = refused.rows(name) if refused is not None else 0
        try:
            affected = loader.send(reader, target) if refused is None else loader.send_around(reader, target, refused)
        except pymysql.err.MySQLError as error:
            if self._way.load and code_of(error) in LOCAL_INFILE_REFUSED:
                reason = f"the server refused LOAD DATA LOCAL ({describe(error)}); sending rows by INSERT"
                raise AnotherWay(replace(self._way, load=False), reason) from error
            raise
        expected = reader.segment.rows.get(name, 0)
        if refused is not None:
            expected -= refused.rows(name) - before
            if not affected:
                require_rows_at_fault(refused.reasons(name)[before:], name, str(target.table.name))
        if affected != expected:
            raise SinkUnavailableError(
                f"the server counted {count_text(affected, 'row')} of checkpoint {reader.segment.number}, but the log"
                f" has {expected}. Nothing was committed.",
                code="row_count_mismatch",
                remedy="Report it: the checkpoint's manifest and its files disagree.",
                sink=name,
                found=affected,
                expected=expected,
            )
        return affected

    def _orphans(self, pipeline: str, installation: str) -> list[Orphan]:
        found: list[Orphan] = []
        with closing(self._open()) as session, suppressed(NO_SUCH_TABLE):
            found = Prepared(session, self._ledger(pipeline), self._limits.head_wait).find(installation)
        return found

    def _end_orphans(self, fence: Fence, ending: PreparedEnding | None, make_way: bool) -> None:
        ledger = self._ledger(fence.pipeline)
        with suppressed(NO_SUCH_TABLE):
            with closing(self._open()) as session:
                shut_out(session, ledger, fence, make_way=make_way)
                prepared = Prepared(session, ledger, self._limits.head_wait)
                prepared.end_of_others(fence, ending, roll_back_own=not make_way)
            if make_way:
                super()._end_orphans(fence, ending, make_way)

    # --- what the steps share ------------------------------------------------------------------------------------

    def _end(self, session: Session) -> None:
        session.require_begun()
        try:
            session.commit()
        except pymysql.err.MySQLError as error:
            raise Unanswered(describe(error)) from error

    def _persist(self, doing: str, step: Callable[[], T], fence: Fence | None = None, plan: Plan | None = None) -> T:
        """Run a step. Try again on a new connection if an answer was lost or a lock was not granted (a few times).

        Also try again if rows must be sent in another way. A second try sends nothing ahead: some proxies end a
        connection that does not wait for its answers.
        """
        self._tries, self._way, self._killed = 1, Way(), ()
        while True:
            try:
                return step()
            except AnotherWay as other:
                log.warning("%s: %s", self.name, other)
                self._way = other.way
                continue
            except (Unanswered, pymysql.err.MySQLError) as error:
                found, text = meaning(error), failure(error, doing)
                if found is Meaning.BUSY and plan is not None:
                    self._refuse_branches_of_others(plan)
                if self._tries == self._limits.tries or found not in (Meaning.LOST, Meaning.BUSY):
                    raise text.located(**self._where(plan)) from error
                log.warning("%s: %s Trying again (%d of %d).", self.name, text.what, self._tries, self._limits.tries)
            except AirflowFtError as error:
                raise error.located(**self._where(plan)) from error.__cause__
            time.sleep(min(0.1 * 4 ** (self._tries - 1), 5.0))
            self._tries += 1
            self._way = replace(self._way, ahead=False)

    def _refuse_branches_of_others(self, plan: Plan) -> None:
        """After a lock was not granted: ForeignOwnerError if a former owner's prepared branch may hold it."""
        try:
            with closing(self._open()) as session:
                Prepared(session, self._ledger(plan.pipeline), 0).refuse(plan.installation)
        except ForeignOwnerError as error:
            raise error.located(**self._where(plan)) from None
        except pymysql.err.MySQLError as error:
            log.warning("%s: could not find out who holds the lock: %s", self.name, describe(error))

    def _announce(self, session: Session, ledger: Ledger, fence: Fence, *, create: bool = False) -> None:
        self._nonce = new_nonce()
        self._nonces.add(self._nonce)
        labels = self._labels()
        self._killed += announce(
            session, ledger, fence, self._nonce, self._limits, self._nonces, create=create, branches=labels
        )

    def _ledger(self, pipeline: str) -> Ledger:
        return ledger_of(self._sinks, self._connection.schema, pipeline, self.name)
