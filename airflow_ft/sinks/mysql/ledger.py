"""The two tables that a sink remembers a pipeline by: all their SQL, and the values read from them.

`airflow_ft_ledger` holds a marker for each settled number (I6), `airflow_ft_head` one row a pipeline and participant,
which every transaction locks first (I5). Times are UTC by the server's clock.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

import pymysql

from airflow_ft.protocol.errors import SinkAccessError, SinkUnavailableError
from airflow_ft.protocol.model import Fence, Plan, canonical_json
from airflow_ft.protocol.votes import Outcome
from airflow_ft.sinks.base import memory
from airflow_ft.sinks.base.memory import Marker
from airflow_ft.sinks.base.sql_ledger import HEAD, LEDGER, MARKER, MINE, SqlLedger, statements
from airflow_ft.sinks.mysql.failures import DUPLICATE_KEY, NO_SUCH_TABLE, code_of, suppressed
from airflow_ft.sinks.mysql.naming import TableName
from airflow_ft.sinks.mysql.session import Session
from airflow_ft.sinks.mysql.spec import MySqlSink

WHOLE = ""  # the marker of the whole number, also where branches have markers of their own

_NO_NEWER = " AND installation = ? AND (epoch < ? OR (epoch = ? AND attempt <= ?))"
"""The head of a decision log, unless it is newer than an epoch and a rank."""
_PLACE = "number = ? AND branch = ?"


@dataclass(frozen=True, slots=True, kw_only=True)
class Head(memory.Head):
    """The head's row. `session` is the nonce of the session that may write now."""

    session: str


_HEAD = ", ".join(field.name for field in fields(Head))


@dataclass(frozen=True, slots=True)
class Ledger(SqlLedger):
    """The tables of one participant, and the rows there that are one pipeline's; `on` a session they can be used."""

    schema: str
    pipeline: str
    participant: str
    session: Session | None = None
    locks_head: bool = False
    """Reading the head locks it until the transaction ends."""
    may_lack: bool = False
    """Missing tables count as empty."""

    has_branches: ClassVar[bool] = True

    def on(self, session: Session) -> Ledger:
        """Return the ledger as its statements run in a session."""
        return replace(self, session=session)

    @property
    def table(self) -> str:
        """The ledger, quoted."""
        return TableName(self.schema, LEDGER).sql

    @property
    def head_table(self) -> str:
        """The head, quoted."""
        return TableName(self.schema, HEAD).sql

    # --- the tables ---------------------------------------------------------------------------------------------

    def ddl(self) -> Sequence[str]:
        """The statements that create both tables where they are lacking."""
        types = {
            "text": "MEDIUMTEXT",
            "key": "VARCHAR(250) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin",
            "name": "VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin",  # else the key is too long for pages of 8 KB
            "integer": "BIGINT UNSIGNED",
        }
        return statements(
            self.head_table,
            self.table,
            **types,
            at="DATETIME(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6)",
            branches=True,
            of_head="session CHAR(32) NOT NULL, ",
            end=" ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin",
        )

    def probes(self) -> Sequence[str]:
        """Statements that change nothing and fail unless all privileges that are needed are there."""
        return (
            f"INSERT INTO {self.table} SELECT * FROM {self.table} WHERE 1 = 0",
            f"UPDATE {self.table} SET counts = counts, detail = detail WHERE 1 = 0",
            f"DELETE FROM {self.table} WHERE 1 = 0",
            f"INSERT INTO {self.head_table} SELECT * FROM {self.head_table} WHERE 1 = 0",
            f"UPDATE {self.head_table} SET {', '.join(f'{f.name} = {f.name}' for f in fields(Head))} WHERE 1 = 0",
        )

    def exists(self) -> bool:
        listed = "SELECT COUNT(*) FROM information_schema.TABLES WHERE TABLE_SCHEMA = ? AND TABLE_NAME IN (?, ?)"
        return bool(self.rows(listed, self.schema, HEAD, LEDGER) == [(2,)])

    def create(self) -> None:
        assert self.session is not None
        for statement in self.ddl():
            self.session.run(statement)

    def rows(self, sql: str, *values: object) -> list[tuple[Any, ...]]:
        assert self.session is not None
        found: list[tuple[Any, ...]] = []
        with suppressed(NO_SUCH_TABLE) if self.may_lack else nullcontext():
            found = self.session.rows(self._sql(sql), values)
        return found

    def run(self, sql: str, *values: object) -> None:
        self._affected(sql, *values)

    def _affected(self, sql: str, *values: object) -> int:
        assert self.session is not None
        return self.session.run(self._sql(sql), values).affected

    def _sql(self, sql: str) -> str:
        return sql.replace("?", "%s").replace("{head}", self.head_table).replace("{ledger}", self.table)

    # --- the head -----------------------------------------------------------------------------------------------

    def head(self, *, lock: bool = False, shared: bool = False) -> Head | None:
        """The head as committed, or as this transaction locks it: against all others, or `shared`."""
        clause = " FOR UPDATE" if lock or self.locks_head else " LOCK IN SHARE MODE" if shared else ""
        for row in self.rows(f"SELECT {_HEAD} FROM {{head}} WHERE {MINE}{clause}", *self.key):
            return Head(**{field.name: value for field, value in zip(fields(Head), row, strict=True)})
        return None

    def announce(self, fence: Fence, nonce: str) -> bool:
        """Raises the head to `fence` and names the session that may write; False when the head does not allow it.

        One statement in autocommit mode: a process that is stopped before or after it holds no lock.
        """
        return self._raise(fence, nonce, fence.installation) == 1

    def shut_out(self, fence: Fence, owner: str) -> None:
        """Raise the head's rank to the fence while it still names `owner`, so that decision log can no longer write.

        Does nothing if the head is newer, or no longer `owner`'s.
        """
        self._raise(fence, "", owner)

    def _raise(self, fence: Fence, nonce: str, owner: str) -> int:
        sql = f"UPDATE {{head}} SET epoch = ?, attempt = ?, session = ? WHERE {MINE}{_NO_NEWER}"
        return self._affected(sql, *fence.rank, nonce, *self.key, owner, fence.epoch, *fence.rank)

    def create_head(self, head: memory.Head) -> None:
        self.run(
            "INSERT INTO {head} (pipeline, participant, installation, epoch, attempt, last_delivered, floor, session)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, '') ON DUPLICATE KEY UPDATE pipeline = pipeline",
            *self._row(head),
        )

    def write_head(self, head: memory.Head) -> None:
        self.create_head(head)
        changes = "installation = ?, epoch = ?, attempt = ?, last_delivered = ?, floor = ?, session = ''"
        self.run(f"UPDATE {{head}} SET {changes} WHERE {MINE}", *self._row(head)[2:], *self.key)

    # --- the markers --------------------------------------------------------------------------------------------

    def markers(self, numbers: Collection[int]) -> dict[int, Marker]:
        """The markers of those of these numbers that are settled, read at once."""
        places = ", ".join("?" * len(numbers))
        found = self._markers(f"branch = '' AND number IN ({places})", *sorted(numbers)) if numbers else []
        return {number: marker for number, _, marker in found}

    def drop_markers_of_others(self, above: int, installation: str) -> None:
        """Deletes what `markers_of_others` lists, each by its key: a range would wait for what is prepared in it."""
        sql = f"DELETE FROM {{ledger}} WHERE {MINE} AND {_PLACE} AND installation <> ?"
        for number, branch, _ in self.markers_of_others(above, installation):
            self.run(sql, *self.key, number, branch, installation)

    def take_place(
        self, plan: Plan, fence: Fence, outcome: Outcome, detail: Mapping[str, Any], branch: str = WHOLE
    ) -> bool:
        """Inserts the marker; False when the place is taken (settled: what that means is read, not guessed)."""
        try:
            self.write_marker(plan, fence, outcome, {}, detail, branch)
        except pymysql.err.MySQLError as error:
            if code_of(error) != DUPLICATE_KEY:
                raise
            return False
        return True

    def fill_marker(
        self, number: int, counts: Mapping[str, int], detail: Mapping[str, Any], branch: str = WHOLE
    ) -> int:
        """Writes what the server counted; returns the affected rows, which must be 1."""
        sql = f"UPDATE {{ledger}} SET counts = ?, detail = ? WHERE {MINE} AND {_PLACE}"
        texts = (canonical_json(dict(counts)), canonical_json(dict(detail)))
        return self._affected(sql, *texts, *self.key, number, branch)

    def touch(self, fence: Fence, name: str) -> None:
        """Writes and takes back a row of number 0, so that the transaction is a real one and leaves nothing."""
        self.run(
            f"INSERT INTO {{ledger}} (pipeline, participant, number, branch, {MARKER})"
            " VALUES (?, ?, 0, ?, ?, 'test', ?, ?, '', '{}', '{}')",
            *(*self.key, name, fence.installation, *fence.rank),
        )
        self.run(f"DELETE FROM {{ledger}} WHERE {MINE} AND {_PLACE}", *self.key, 0, name)


def settled(session: Session, ledger: Ledger, plan: Plan, fence: Fence, head: Head, *, exactly: bool) -> Marker | None:
    """The number's marker, when it is settled; else checks that the head fits the plan. Raises as `check_settled`."""
    marker = ledger.on(session).marker(plan.number)
    again = ledger.on(session).head
    memory.check_settled(marker, head, plan, ledger.participant, fence, exactly=exactly, look_again=again)
    return marker


def marker_lost(ledger: Ledger, number: int) -> SinkUnavailableError:
    """Return the error for a marker that was written, and is gone."""
    return SinkUnavailableError(
        f"the marker of checkpoint {number} was written to {ledger.table}, and is gone.",
        code="marker_lost",
        remedy=f"Wait for the retry. If it fails too, look for triggers or jobs that change {ledger.table}.",
        table=ledger.table,
        number=number,
    )


def ledger_of(sinks: Mapping[str, MySqlSink], schema: str, pipeline: str, participant: str) -> Ledger:
    """The ledger, in the schema that the sinks name, or else the connection's. SinkAccessError: neither names one."""
    named = next((sink.ledger_schema for sink in sinks.values() if sink.ledger_schema), schema)
    if not named:
        raise SinkAccessError(
            "neither the connection nor the sink names a schema for the ledger.",
            code="argument_missing",
            remedy=f"Set the schema of connection {participant}, or give MySqlSink(ledger_schema=...).",
            participant=participant,
            argument="ledger_schema",
        )
    return Ledger(named, pipeline, participant)
