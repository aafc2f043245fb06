"""The two tables that a sink remembers a pipeline by: all their SQL, and the values read from them.

`airflow_ft_ledger` holds a marker for each settled number (I6), `airflow_ft_head` one row a pipeline and participant,
which every transaction locks first (I5). Times are UTC by the server's clock.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from airflow_ft.protocol.errors import SinkAccessError, SinkUnavailableError
from airflow_ft.protocol.model import Fence, Plan, canonical_json
from airflow_ft.protocol.votes import Outcome, SinkHead
from airflow_ft.sinks.base import memory
from airflow_ft.sinks.base.memory import Marker
from airflow_ft.sinks.base.sql_ledger import HEAD, LEDGER
from airflow_ft.sinks.mysql.naming import TableName
from airflow_ft.sinks.mysql.session import Session
from airflow_ft.sinks.mysql.spec import MySqlSink

WHOLE = ""  # the marker of the whole number, also where branches have markers of their own

_KEY = (
    "  `pipeline` VARCHAR(63) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,\n"
    "  `participant` VARCHAR(250) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,\n"
)
_OWNER = "  `installation` CHAR(36) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,\n"
_MINE = " WHERE `pipeline` = %s AND `participant` = %s"
_NO_NEWER = " AND `installation` = %s AND (`epoch` < %s OR (`epoch` = %s AND `attempt` <= %s))"
"""The head of an installation, unless it is newer than an epoch and a rank."""
_OPTIONS = "ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"


@dataclass(frozen=True, slots=True, kw_only=True)
class Head(memory.Head):
    """The head's row. `session` is the nonce of the session that may write now."""

    session: str


@dataclass(frozen=True, slots=True)
class Ledger:
    """The tables of one participant, and the rows there that are one pipeline's."""

    schema: str
    pipeline: str
    participant: str

    @property
    def table(self) -> str:
        """The ledger, quoted."""
        return TableName(self.schema, LEDGER).sql

    @property
    def head_table(self) -> str:
        """The head, quoted."""
        return TableName(self.schema, HEAD).sql

    @property
    def _key(self) -> tuple[str, str]:
        return (self.pipeline, self.participant)

    @property
    def _ledger_label(self) -> str:
        return f"a row of {self.table} of {self._key[0]}"

    # --- the tables ---------------------------------------------------------------------------------------------

    def ddl(self) -> Sequence[str]:
        """The statements that create both tables where they are lacking."""
        return (
            f"CREATE TABLE IF NOT EXISTS {self.head_table} (\n{_KEY}{_OWNER}"
            "  `epoch` BIGINT UNSIGNED NOT NULL,\n"
            "  `attempt` BIGINT UNSIGNED NOT NULL,\n"
            "  `session` CHAR(32) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,\n"
            "  `last_delivered` BIGINT UNSIGNED NOT NULL,\n"
            "  `floor` BIGINT UNSIGNED NOT NULL,\n"
            "  `at` DATETIME(6) NOT NULL,\n"
            f"  PRIMARY KEY (`pipeline`, `participant`)\n) {_OPTIONS}",
            f"CREATE TABLE IF NOT EXISTS {self.table} (\n{_KEY}"
            "  `number` BIGINT UNSIGNED NOT NULL,\n"
            "  `branch` VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,\n"
            f"{_OWNER}"
            "  `kind` VARCHAR(16) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,\n"
            "  `epoch` BIGINT UNSIGNED NOT NULL,\n"
            "  `attempt` BIGINT UNSIGNED NOT NULL,\n"
            "  `digest` CHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,\n"
            "  `rows` BIGINT UNSIGNED NOT NULL,\n"
            "  `counts` MEDIUMTEXT NOT NULL,\n"
            "  `detail` MEDIUMTEXT NOT NULL,\n"
            "  `at` DATETIME(6) NOT NULL,\n"
            f"  PRIMARY KEY (`pipeline`, `participant`, `number`, `branch`)\n) {_OPTIONS}",
        )

    def probes(self) -> Sequence[str]:
        """Statements that change nothing and fail unless all privileges that are needed are there."""
        return (
            f"INSERT INTO {self.table} SELECT * FROM {self.table} WHERE 1 = 0",
            f"UPDATE {self.table} SET `rows` = `rows`, `counts` = `counts`, `detail` = `detail` WHERE 1 = 0",
            f"DELETE FROM {self.table} WHERE 1 = 0",
            f"INSERT INTO {self.head_table} SELECT * FROM {self.head_table} WHERE 1 = 0",
            f"UPDATE {self.head_table} SET `epoch` = `epoch`, `attempt` = `attempt`, `session` = `session`,"
            " `last_delivered` = `last_delivered`, `floor` = `floor`, `at` = `at` WHERE 1 = 0",
        )

    # --- the head -----------------------------------------------------------------------------------------------

    def head(self, session: Session, *, lock: bool = False, shared: bool = False) -> Head | None:
        """The head as committed, or as this transaction locks it: against all others, or `shared`."""
        clause = " FOR UPDATE" if lock else " LOCK IN SHARE MODE" if shared else ""
        row = session.row(
            "SELECT `installation`, `epoch`, `attempt`, `session`, `last_delivered`, `floor`"
            f" FROM {self.head_table}{_MINE}{clause}",
            self._key,
        )
        if row is None:
            return None
        return Head(
            installation=row[0], epoch=int(row[1]), attempt=int(row[2]), session=row[3],
            last_delivered=int(row[4]), floor=int(row[5]),
        )  # fmt: skip

    def announce(self, session: Session, fence: Fence, nonce: str) -> bool:
        """Raises the head to `fence` and names the session that may write; False when the head does not allow it.

        One statement in autocommit mode: a process that is stopped before or after it holds no lock.
        """
        changes = "`epoch` = %s, `attempt` = %s, `session` = %s"
        no_newer = (fence.installation, fence.epoch, *fence.rank)
        return self._change_head(session, changes, (*fence.rank, nonce), _NO_NEWER, no_newer) == 1

    def create_head(self, session: Session, fence: Fence) -> None:
        """Create a new pipeline's head: nothing delivered. Does nothing if another process was faster."""
        session.run(
            f"INSERT INTO {self.head_table} (`pipeline`, `participant`, `installation`, `epoch`, `attempt`, `session`,"
            " `last_delivered`, `floor`, `at`) VALUES (%s, %s, %s, %s, %s, '', 0, 0, UTC_TIMESTAMP(6))"
            " ON DUPLICATE KEY UPDATE `pipeline` = `pipeline`",
            (*self._key, fence.installation, fence.epoch, fence.attempt),
        )

    def deliver_head(self, session: Session, number: int) -> None:
        """The number is the last delivered one (in the transaction that delivers it)."""
        self._change_head(session, "`last_delivered` = %s", (number,))

    def shut_out(self, session: Session, fence: Fence, owner: str) -> None:
        """Raise the head's rank to the fence while it still names `owner`, so that installation can no longer write.

        Does nothing if the head is newer, or no longer `owner`'s.
        """
        changes = "`epoch` = %s, `attempt` = %s, `session` = ''"
        self._change_head(session, changes, fence.rank, _NO_NEWER, (owner, fence.epoch, *fence.rank))

    def adopt_head(self, session: Session, fence: Fence, number: int) -> None:
        """The head is this installation's: `number` was delivered last, and nothing up to it can be any more."""
        changes = "`installation` = %s, `epoch` = %s, `attempt` = %s, `session` = '', `last_delivered` = %s"
        values = (fence.installation, fence.epoch, fence.attempt, number, number)
        self.create_head(session, fence)
        self._change_head(session, f"{changes}, `floor` = GREATEST(`floor`, %s)", values)

    def raise_floor(self, session: Session, floor: int) -> None:
        """No number at or below `floor` can be delivered or aborted any more."""
        self._change_head(session, "`floor` = GREATEST(`floor`, %s)", (floor,))

    def _change_head(
        self, session: Session, changes: str, values: tuple[object, ...], where: str = "", more: tuple[object, ...] = ()
    ) -> int:
        """`more` are the values of `where`; returns the affected rows."""
        sql = f"UPDATE {self.head_table} SET {changes}, `at` = UTC_TIMESTAMP(6){_MINE}{where}"
        return session.run(sql, (*values, *self._key, *more)).affected

    # --- the markers --------------------------------------------------------------------------------------------

    def marker(self, session: Session, number: int, branch: str = WHOLE) -> Marker | None:
        """The marker of a number as this transaction, or a fresh snapshot in autocommit mode, sees it."""
        found = self._markers(session, "`number` = %s AND `branch` = %s", number, branch)
        return found[0][2] if found else None

    def markers(self, session: Session, numbers: Collection[int]) -> dict[int, Marker]:
        """The markers of those of these numbers that are settled, read at once."""
        if not numbers:
            return {}
        places = ", ".join(["%s"] * len(numbers))
        found = self._markers(session, f"`branch` = %s AND `number` IN ({places})", WHOLE, *sorted(numbers))
        return {number: marker for number, _, marker in found}

    def branch_markers(self, session: Session, number: int) -> dict[str, Marker]:
        """The markers of a number's branches by label, without that of the whole."""
        found = self._markers(session, "`number` = %s AND `branch` <> %s", number, WHOLE)
        return {branch: marker for _, branch, marker in found}

    def markers_of_others(self, session: Session, above: int, installation: str) -> list[tuple[int, str, Marker]]:
        """Number, branch and marker of what other installations have written above a number, ascending."""
        found = self._markers(session, "`number` > %s AND `installation` <> %s", above, installation)
        return sorted(found, key=lambda each: each[:2])

    def _markers(self, session: Session, where: str, *values: object) -> list[tuple[int, str, Marker]]:
        rows = session.rows(
            "SELECT `number`, `branch`, `installation`, `kind`, `epoch`, `attempt`, `digest`, `counts`, `detail`"
            f" FROM {self.table}{_MINE} AND {where}",
            (*self._key, *values),
        )
        return [(int(row[0]), row[1], Marker.stored(row[2:], self._ledger_label)) for row in rows]

    def remembered(self, session: Session) -> SinkHead | None:
        """The head, or what the markers say where it is gone or older than they are."""
        marked = partial(self.markers_of_others, session, installation=memory.NO_INSTALLATION)
        return memory.remembered(partial(self.head, session), marked)

    def drop_markers_of_others(self, session: Session, above: int, installation: str) -> None:
        """Deletes what `markers_of_others` lists, each by its key: a range would wait for what is prepared in it."""
        sql = f"DELETE FROM {self.table}{_MINE} AND `number` = %s AND `branch` = %s AND `installation` <> %s"
        for number, branch, _ in self.markers_of_others(session, above, installation):
            session.run(sql, (*self._key, number, branch, installation))

    def installations(self, session: Session) -> set[str]:
        """The owners of the markers that are there."""
        rows = session.rows(f"SELECT DISTINCT `installation` FROM {self.table}{_MINE}", self._key)
        return {row[0] for row in rows}

    def newest_marker(self, session: Session) -> int:
        """The highest number with a marker; 0 when there is none."""
        row = session.row(f"SELECT MAX(`number`) FROM {self.table}{_MINE}", self._key)
        return int(row[0] or 0) if row else 0

    def insert_marker(
        self,
        session: Session,
        plan: Plan,
        fence: Fence,
        outcome: Outcome,
        detail: Mapping[str, Any],
        branch: str = WHOLE,
    ) -> None:
        """Takes the number's place. Error 1062: it is settled already, as the row there says."""
        detail_text = canonical_json(dict(detail))
        self._insert(session, plan.number, branch, fence, outcome.value, plan.digest, detail_text)

    def fill_marker(
        self, session: Session, number: int, counts: Mapping[str, int], detail: Mapping[str, Any], branch: str = WHOLE
    ) -> int:
        """Writes what the server counted; returns the affected rows, which must be 1."""
        texts = (sum(counts.values()), canonical_json(dict(counts)), canonical_json(dict(detail)))
        return session.run(
            f"UPDATE {self.table} SET `rows` = %s, `counts` = %s, `detail` = %s, `at` = UTC_TIMESTAMP(6)"
            f"{_MINE} AND `number` = %s AND `branch` = %s",
            (*texts, *self._key, number, branch),
        ).affected

    def touch(self, session: Session, fence: Fence, name: str) -> None:
        """Writes and takes back a row of number 0, so that the transaction is a real one and leaves nothing."""
        self._insert(session, 0, name, fence, "test", "", "{}")
        session.run(f"DELETE FROM {self.table}{_MINE} AND `number` = %s AND `branch` = %s", (*self._key, 0, name))

    def _insert(
        self, session: Session, number: int, branch: str, fence: Fence, kind: str, digest: str, detail: str
    ) -> None:
        session.run(
            f"INSERT INTO {self.table} (`pipeline`, `participant`, `number`, `branch`, `installation`, `kind`,"
            " `epoch`, `attempt`, `digest`, `rows`, `counts`, `detail`, `at`)"
            " VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, 0, '{}', %s, UTC_TIMESTAMP(6))",
            (*self._key, number, branch, fence.installation, kind, fence.epoch, fence.attempt, digest, detail),
        )

    def prune(self, session: Session, floor: int) -> None:
        """Deletes the markers at or below `floor`."""
        session.run(f"DELETE FROM {self.table}{_MINE} AND `number` <= %s", (*self._key, floor))


def settled(session: Session, ledger: Ledger, plan: Plan, fence: Fence, head: Head, *, exactly: bool) -> Marker | None:
    """The number's marker, when it is settled; else checks that the head fits the plan. Raises as `check_settled`."""
    marker = ledger.marker(session, plan.number)
    again = partial(ledger.head, session)
    memory.check_settled(marker, head, plan, ledger.participant, fence, exactly=exactly, look_again=again)
    return marker


def marker_lost(ledger: Ledger, number: int) -> SinkUnavailableError:
    """Return the error for a marker that was written, and is gone."""
    return SinkUnavailableError(
        f"the marker of number {number} was written to {ledger.table}, and is gone.",
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
