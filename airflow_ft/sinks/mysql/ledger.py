"""The two tables that a sink remembers a pipeline by: all their SQL, and the values read from them.

`airflow_ft_ledger` holds a marker for each settled number (I6), `airflow_ft_head` one row a pipeline and participant,
which every transaction locks first (I5). Times are UTC by the server's clock.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_ft.core.model import Fence, Outcome, Plan, canonical_json
from airflow_ft.sinks.base import memory
from airflow_ft.sinks.base.memory import Marker
from airflow_ft.sinks.mysql.naming import TableName
from airflow_ft.sinks.mysql.session import Session

LEDGER = "airflow_ft_ledger"
HEAD = "airflow_ft_head"
WHOLE = ""  # the marker of the whole number, also where branches have markers of their own

_KEY = (
    "  `pipeline` VARCHAR(63) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,\n"
    "  `participant` VARCHAR(250) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,\n"
)
_OWNER = "  `installation` CHAR(36) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,\n"
_NO_NEWER = (
    " WHERE `pipeline` = %s AND `participant` = %s AND `installation` = %s"
    " AND (`epoch` < %s OR (`epoch` = %s AND `attempt` <= %s))"
)
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
    def _told(self) -> str:
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
            f" FROM {self.head_table} WHERE `pipeline` = %s AND `participant` = %s" + clause,
            self._key,
        )
        if row is None:
            return None
        installation, epoch, attempt, nonce, last_delivered, floor = row
        return Head(
            installation=installation,
            epoch=int(epoch),
            attempt=int(attempt),
            session=nonce,
            last_delivered=int(last_delivered),
            floor=int(floor),
        )

    def announce(self, session: Session, fence: Fence, nonce: str) -> bool:
        """Raises the head to `fence` and names the session that may write; False when the head does not allow it.

        One statement in autocommit mode: a process that is stopped before or after it holds no lock.
        """
        statement = session.run(
            f"UPDATE {self.head_table} SET `epoch` = %s, `attempt` = %s, `session` = %s, `at` = UTC_TIMESTAMP(6)"
            + _NO_NEWER,
            (*fence.rank, nonce, *self._key, fence.installation, fence.epoch, *fence.rank),
        )
        return statement.affected == 1

    def create_head(self, session: Session, fence: Fence) -> None:
        """A new pipeline's head: nothing delivered. Nothing happens when somebody else was faster."""
        session.run(
            f"INSERT INTO {self.head_table} (`pipeline`, `participant`, `installation`, `epoch`, `attempt`, `session`,"
            " `last_delivered`, `floor`, `at`) VALUES (%s, %s, %s, %s, %s, '', 0, 0, UTC_TIMESTAMP(6))"
            " ON DUPLICATE KEY UPDATE `pipeline` = `pipeline`",
            (*self._key, fence.installation, fence.epoch, fence.attempt),
        )

    def deliver_head(self, session: Session, number: int) -> None:
        """The number is the last delivered one (in the transaction that delivers it)."""
        session.run(
            f"UPDATE {self.head_table} SET `last_delivered` = %s, `at` = UTC_TIMESTAMP(6)"
            " WHERE `pipeline` = %s AND `participant` = %s",
            (number, *self._key),
        )

    def shut_out(self, session: Session, fence: Fence, owner: str) -> None:
        """The head's rank is the fence's while `owner` stays named there: nobody of that installation can write.

        Nothing happens when it is newer, or no longer `owner`'s.
        """
        session.run(
            f"UPDATE {self.head_table} SET `epoch` = %s, `attempt` = %s, `session` = '', `at` = UTC_TIMESTAMP(6)"
            + _NO_NEWER,
            (*fence.rank, *self._key, owner, fence.epoch, *fence.rank),
        )

    def adopt_head(self, session: Session, fence: Fence, number: int) -> None:
        """The head is this installation's: `number` was delivered last, and nothing up to it can be any more."""
        session.run(
            f"UPDATE {self.head_table} SET `installation` = %s, `epoch` = %s, `attempt` = %s, `session` = '',"
            " `last_delivered` = %s, `floor` = GREATEST(`floor`, %s), `at` = UTC_TIMESTAMP(6)"
            " WHERE `pipeline` = %s AND `participant` = %s",
            (fence.installation, fence.epoch, fence.attempt, number, number, *self._key),
        )

    def raise_floor(self, session: Session, floor: int) -> None:
        """No number at or below `floor` can be delivered or aborted any more."""
        session.run(
            f"UPDATE {self.head_table} SET `floor` = GREATEST(`floor`, %s), `at` = UTC_TIMESTAMP(6)"
            " WHERE `pipeline` = %s AND `participant` = %s",
            (floor, *self._key),
        )

    # --- the markers --------------------------------------------------------------------------------------------

    def marker(self, session: Session, number: int, branch: str = WHOLE) -> Marker | None:
        """The marker of a number as this transaction, or a fresh snapshot in autocommit mode, sees it."""
        row = session.row(
            "SELECT `installation`, `kind`, `epoch`, `attempt`, `digest`, `counts`, `detail`"
            f" FROM {self.table} WHERE `pipeline` = %s AND `participant` = %s AND `number` = %s AND `branch` = %s",
            (*self._key, number, branch),
        )
        return None if row is None else Marker.stored(row, self._told)

    def markers(self, session: Session, numbers: Collection[int]) -> dict[int, Marker]:
        """The markers of those of these numbers that are settled, read at once."""
        if not numbers:
            return {}
        rows = session.rows(
            "SELECT `number`, `installation`, `kind`, `epoch`, `attempt`, `digest`, `counts`, `detail`"
            f" FROM {self.table} WHERE `pipeline` = %s AND `participant` = %s AND `branch` = %s"
            f" AND `number` IN ({', '.join(['%s'] * len(numbers))})",
            (*self._key, WHOLE, *sorted(numbers)),
        )
        return {int(row[0]): Marker.stored(row[1:], self._told) for row in rows}

    def branch_markers(self, session: Session, number: int) -> dict[str, Marker]:
        """The markers of a number's branches by label, without that of the whole."""
        rows = session.rows(
            "SELECT `branch`, `installation`, `kind`, `epoch`, `attempt`, `digest`, `counts`, `detail`"
            f" FROM {self.table} WHERE `pipeline` = %s AND `participant` = %s AND `number` = %s AND `branch` <> %s",
            (*self._key, number, WHOLE),
        )
        return {row[0]: Marker.stored(row[1:], self._told) for row in rows}

    def markers_of_others(self, session: Session, above: int, installation: str) -> list[tuple[int, str, Marker]]:
        """Number, branch and marker of what other installations have written above a number, ascending."""
        rows = session.rows(
            "SELECT `number`, `branch`, `installation`, `kind`, `epoch`, `attempt`, `digest`, `counts`, `detail`"
            f" FROM {self.table} WHERE `pipeline` = %s AND `participant` = %s AND `number` > %s"
            " AND `installation` <> %s",
            (*self._key, above, installation),
        )
        return sorted(
            ((int(row[0]), row[1], Marker.stored(row[2:], self._told)) for row in rows), key=lambda found: found[:2]
        )

    def drop_markers_of_others(self, session: Session, above: int, installation: str) -> int:
        """Deletes what `markers_of_others` lists; returns how many."""
        return session.run(
            f"DELETE FROM {self.table} WHERE `pipeline` = %s AND `participant` = %s AND `number` > %s"
            " AND `installation` <> %s",
            (*self._key, above, installation),
        ).affected

    def installations(self, session: Session) -> set[str]:
        """The owners of the markers that are there."""
        rows = session.rows(
            f"SELECT DISTINCT `installation` FROM {self.table} WHERE `pipeline` = %s AND `participant` = %s", self._key
        )
        return {row[0] for row in rows}

    def newest_marker(self, session: Session) -> int:
        """The highest number with a marker; 0 when there is none."""
        row = session.row(
            f"SELECT MAX(`number`) FROM {self.table} WHERE `pipeline` = %s AND `participant` = %s", self._key
        )
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
        session.run(
            f"INSERT INTO {self.table} (`pipeline`, `participant`, `number`, `branch`, `installation`, `kind`,"
            " `epoch`, `attempt`, `digest`, `rows`, `counts`, `detail`, `at`)"
            " VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, 0, '{}', %s, UTC_TIMESTAMP(6))",
            (
                *self._key,
                plan.number,
                branch,
                fence.installation,
                outcome.value,
                fence.epoch,
                fence.attempt,
                plan.digest,
                canonical_json(dict(detail)),
            ),
        )

    def fill_marker(
        self, session: Session, number: int, counts: Mapping[str, int], detail: Mapping[str, Any], branch: str = WHOLE
    ) -> int:
        """Writes what the server counted; returns the affected rows, which must be 1."""
        return session.run(
            f"UPDATE {self.table} SET `rows` = %s, `counts` = %s, `detail` = %s, `at` = UTC_TIMESTAMP(6)"
            " WHERE `pipeline` = %s AND `participant` = %s AND `number` = %s AND `branch` = %s",
            (
                sum(counts.values()),
                canonical_json(dict(counts)),
                canonical_json(dict(detail)),
                *self._key,
                number,
                branch,
            ),
        ).affected

    def touch(self, session: Session, fence: Fence, name: str) -> None:
        """Writes and takes back a row of number 0, so that the transaction is a real one and leaves nothing."""
        key = (*self._key, 0, name)
        session.run(
            f"INSERT INTO {self.table} (`pipeline`, `participant`, `number`, `branch`, `installation`, `kind`, `epoch`,"
            " `attempt`, `digest`, `rows`, `counts`, `detail`, `at`)"
            " VALUES (%s, %s, %s, %s, %s, 'test', %s, %s, '', 0, '{}', '{}', UTC_TIMESTAMP(6))",
            (*key, fence.installation, fence.epoch, fence.attempt),
        )
        session.run(
            f"DELETE FROM {self.table}"
            " WHERE `pipeline` = %s AND `participant` = %s AND `number` = %s AND `branch` = %s",
            key,
        )

    def prune(self, session: Session, floor: int, limit: int) -> int:
        """Deletes up to `limit` markers at or below `floor`, oldest first; returns how many."""
        return session.run(
            f"DELETE FROM {self.table} WHERE `pipeline` = %s AND `participant` = %s AND `number` <= %s"
            f" ORDER BY `number`, `branch` LIMIT {int(limit)}",
            (*self._key, floor),
        ).affected
