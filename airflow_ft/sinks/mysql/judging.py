"""Judge what a server's tables take: at the vote, and again inside the delivering transaction.

A vote judges columns and rows by a table's definition. A table may be altered before its rows are delivered, and
the server then converts values without an error: DOUBLE into FLOAT, VARCHAR into CHAR. So the transaction that delivers
first takes a metadata lock, then reads the definition, and compares its fingerprint with the vote's.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pymysql

from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.errors import AirflowFtError, DeclinedError, UnfitTargetError, together
from airflow_ft.protocol.model import ParticipantPlan, Plan, Promise
from airflow_ft.protocol.votes import Vote
from airflow_ft.protocol.write_ahead_log import SegmentReader, WalReader
from airflow_ft.sinks.base.changes import DeletedKeys, LiveRows, missing_kind
from airflow_ft.sinks.base.one_transaction import TransactionParticipant
from airflow_ft.sinks.mysql.catalog import computed, information_schema, whole_name
from airflow_ft.sinks.mysql.failures import Meaning, meaning
from airflow_ft.sinks.mysql.limits import Limits
from airflow_ft.sinks.mysql.load import HEADROOM, AnotherWay, Way, path
from airflow_ft.sinks.mysql.naming import TableName, quote
from airflow_ft.sinks.mysql.requirements import check_privileges, triggers_that_fire
from airflow_ft.sinks.mysql.session import Session
from airflow_ft.sinks.mysql.spec import MySqlSink
from airflow_ft.sinks.mysql.vote import (
    Target,
    Verdict,
    all_short,
    check_rows,
    check_segment,
    read_target,
    schema_problems,
)

log = logging.getLogger(__name__)

_REMEMBERED = 64  # plans; more of them are open only where many checkpoints wait

Judgement = tuple[Target, SegmentReader, Verdict]


class JudgingParticipant(TransactionParticipant[Session]):
    """One server with all tables that a pipeline writes there, and whether they take a plan's rows."""

    def __init__(
        self,
        plan: ParticipantPlan,
        sinks: Mapping[str, MySqlSink],
        connection: ConnectionInfo,
        wal: WalReader,
        limits: Limits,
    ) -> None:
        self.name = plan.name
        self.wal = wal
        self._plan = plan
        self._sinks = sinks
        self._connection = connection
        self._limits = limits
        self._known = Judged()
        self._given: Vote | None = None  # the vote, or announcement, whose judgement of the tables counts
        self._way = Way()  # how the present try sends rows

    def _verdicts(
        self, session: Session, plan: Plan, targets: Mapping[str, Target], readers: Sequence[SegmentReader]
    ) -> list[Judgement]:
        """Judge a plan's rows by schemas, statistics and privileges; raise what speaks against them."""
        ask = self._open if self._must_not_refuse(plan) else None
        room = session.max_allowed_packet - HEADROOM if ask is not None and self._path_is_narrow(session) else 0
        verdicts: list[Judgement] = []
        for target in targets.values():
            judging = target.to_judge(session, ask)
            for reader in readers:
                if target.sink in reader.sinks():
                    verdicts += judge_segment(session, judging, reader, self._sinks[target.sink], room)
        return verdicts

    def _check_rows(self, plan: Plan, verdicts: Sequence[Judgement], targets: Mapping[str, Target]) -> None:
        """Check the rows if statistics do not decide, and remember the shape of tables that they fit."""
        for target, reader, verdict in verdicts:
            check_rows(target, reader, verdict)
        for name, target in targets.items():
            self._known.add(plan.digest, name, target.fingerprint)

    def _fitting(
        self, session: Session, plan: Plan, readers: Sequence[SegmentReader], *, judge: bool = False
    ) -> dict[str, Target]:
        """The targets inside the delivering transaction: ALTER waits for its end, and the rows fit them.

        The vote has judged them by their fingerprint. Where a table was changed since, `judge` compares its rows again,
        while no connection is held, and has the transaction repeated.

        Raises:
            AnotherWay: the transaction must be rolled back and repeated, since a table was changed.
            UnfitTargetError: rows that were judged do not fit any more. Nothing was sent.
        """
        refused = [
            error
            for sink in self._sinks.values()
            if (error := keep_table(session, whole_name(sink.table, self._connection.schema))) is not None
        ]
        targets = self._targets(session)
        known = {name: self._known.of(plan.digest, name, self._given) for name in targets}
        changed = {name: target for name, target in targets.items() if target.fingerprint not in known[name]}
        if not changed and refused:
            raise refused[0]
        if not changed:
            return targets
        if self._way.dead_letters is not None:  # a person asked for it: rows that do not fit are set aside
            return {name: self._to_set_aside(session, readers, target) for name, target in targets.items()}
        if judge:
            self._judge_again(session, plan, readers, changed, known)
        names = ", ".join(str(target.table.name) for target in changed.values())
        raise AnotherWay(
            self._way, f"checkpoint {plan.number}: {names} changed after the vote; comparing the rows again"
        )

    def _judge_again(
        self,
        session: Session,
        plan: Plan,
        readers: Sequence[SegmentReader],
        targets: Mapping[str, Target],
        known: Mapping[str, set[str]],
    ) -> None:
        """Judges the rows by the tables as they are now. Ends the session."""
        session.close()  # it may hold the head's lock, and looking at tables and rows may take long
        try:
            with closing(self._open()) as other:
                verdicts = self._verdicts(other, plan, targets, readers)
            self._check_rows(plan, verdicts, targets)
        except (DeclinedError, UnfitTargetError) as error:
            is_altered = any(known.values()) and error.code != "versions_unread"
            raise (unfit_since(error) if is_altered else error) from error.__cause__
        for name, target in targets.items():
            if firing := triggers_that_fire(target, self._sinks[name]):
                log.warning("%s: table %s: %s", self.name, target.table.name, firing)

    def _to_set_aside(self, session: Session, readers: Sequence[SegmentReader], target: Target) -> Target:
        """The target as its rows are judged one by one; UnfitTargetError where none of them could go in."""
        for reader in readers:
            schema = reader.schema(target.sink) if target.sink in reader.sinks() else None
            if schema is not None and schema.names and (problems := schema_problems(target, schema)):
                raise unfit_since(together(problems))
        return replace(target.to_judge(session), judged_when_sent=True)

    def _must_not_refuse(self, plan: Plan) -> bool:
        """Return whether the decision falls before the server has seen the rows."""
        return self._plan.promise is not Promise.TWO_PHASE and plan.commit_point != self.name

    def _path(self, session: Session) -> str:
        """Return how rows go, for notes and proofs."""
        return path(session, self._way)

    def _path_is_narrow(self, session: Session) -> bool:
        """Return whether a row that fits no INSERT cannot go in at all."""
        return self._path(session) == "insert" and not session.can_load_local

    def _open(self) -> Session:
        return Session(self._connection, self._limits)

    def _targets(self, session: Session) -> dict[str, Target]:
        schema = self._connection.schema
        return {name: read_target(session, name, sink, schema) for name, sink in self._sinks.items()}


def judge_segment(
    session: Session, target: Target, reader: SegmentReader, sink: MySqlSink, row_limit: int
) -> Iterator[Judgement]:
    """Judge rows by schemas, statistics and privileges. `row_limit`: bytes of a row in an INSERT; 0: any."""
    if row_limit and not all_short(target, reader, row_limit):
        target = replace(target, row_limit=row_limit)
    for part, view in _judged_rows(reader, target, sink):
        verdict = check_segment(part, view)
        check_privileges(session, part, verdict.columns)
        yield part, view, verdict


def _judged_rows(reader: SegmentReader, target: Target, sink: MySqlSink) -> Sequence[tuple[Target, SegmentReader]]:
    """Return what must fit the table: rows to write, and of an upsert the keys of deletes, which the server compares.

    Raises:
        DeclinedError: the rows have no kind of change.
    """
    if sink.change_column is None or not (schema := reader.schema(target.sink)).names:
        return [(target, reader)]
    if sink.change_column not in schema.names:
        raise missing_kind(sink.change_column, schema.names).located(sink=target.sink)
    columns, problems = target.mapped(schema)
    if problems:  # the vote on the remaining rows reports them with all other problems
        return [(target, LiveRows(reader, sink.change_column))]
    deletes = only_keys(target, schema)
    keys = [column.source for column in columns if column.name.lower() in target.required]
    return [
        (target, LiveRows(reader, sink.change_column)),
        (deletes, DeletedKeys(reader, sink.change_column, keys)),
    ]


def only_keys(target: Target, schema: pa.Schema) -> Target:
    """The target as deletes of these rows see it: the columns of its key."""
    keys = {column.source: column.name for column in target.mapped(schema)[0] if column.name.lower() in target.required}
    return replace(target, ignored=frozenset(schema.names) - keys.keys(), only_keys=True)


def keep_table(session: Session, name: TableName) -> pymysql.err.MySQLError | None:
    """Take the table's metadata lock, which ALTER waits for until the open transaction ends.

    An INSERT without rows takes it, because INSERT may be the only privilege of this user. Returns the server's error
    where it refuses the statement: reading the table afterwards may name the reason better.
    """
    asked = "COLUMN_NAME, EXTRA, PRIVILEGES, IS_NULLABLE = 'NO' AND COLUMN_DEFAULT IS NULL"
    if session.is_mariadb:
        asked += " OR DATA_TYPE IN ('date', 'datetime', 'timestamp') AND COLUMN_DEFAULT LIKE '%%-00%%'"
    described = [
        (str(column), "insert" in str(privileges).lower(), bool(needed))
        for column, extra, privileges, needed in information_schema(
            session, name, "COLUMNS", asked, "ORDER BY ORDINAL_POSITION"
        )
        if not computed(str(extra or ""))
    ]
    granted = any(may for _, may, _ in described)  # privileges by way of a role may not show
    columns = [(column, needed) for column, may, needed in described if may or not granted]
    # MariaDB demands the columns without a default, or with a zero date as default, though there is no row.
    named = [column for column, needed in columns if needed] or [column for column, _ in columns[:1]]
    if not named:
        return pymysql.err.OperationalError(1146, f"Table {name} does not exist, or has no column that can be written")
    listed, nulls = ", ".join(map(quote, named)), ", ".join(["NULL"] * len(named))
    try:
        session.run(f"INSERT INTO {name.sql} ({listed}) SELECT {nulls} FROM DUAL WHERE 1 = 0")
    except pymysql.err.MySQLError as error:
        if meaning(error) not in (Meaning.ACCESS, Meaning.ROWS):
            raise
        return error
    return None


class Judged:
    """Fingerprints of the tables that this process has judged, by plan digest and sink."""

    def __init__(self) -> None:
        self._known: dict[str, dict[str, set[str]]] = {}

    def add(self, digest: str, sink: str, fingerprint: str) -> None:
        """Remember that the rows of a plan fit a table of this shape."""
        self._known.setdefault(digest, {}).setdefault(sink, set()).add(fingerprint)
        while len(self._known) > _REMEMBERED:
            self._known.pop(next(iter(self._known)))

    def of(self, digest: str, sink: str, vote: Vote | None) -> set[str]:
        """Fingerprints for which the sink's rows were judged, by the vote or by this process."""
        return self._known.get(digest, {}).get(sink, set()) | _voted(vote, sink)


def _voted(vote: Vote | None, sink: str) -> set[str]:
    tables: Mapping[str, Any] = (vote.notes.get("tables") if vote is not None else None) or {}
    found = (tables.get(sink) or {}).get("fingerprint")
    return {str(found)} if found else set()


def unfit_since(error: AirflowFtError) -> AirflowFtError:
    """The error for rows that fitted when they were judged: the table changed, so a change of it helps."""
    if not isinstance(error, DeclinedError | UnfitTargetError):
        return error
    return UnfitTargetError(
        f"the table was changed after the vote, and no longer fits: {error.what}",
        code=error.code,
        remedy=f"Change the table so that it takes the staged rows. The next retry delivers them. {error.remedy}",
        sink=error.sink,
        column=error.column,
        row=error.row,
        **{**error.fields, "changed": True},
    )
