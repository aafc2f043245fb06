"""The tables `airflow_ft_head` and `airflow_ft_ledger` of an SQL database: their statements, for any system.

A system's own part is how a statement is sent; `DbApiLedger` sends it through a connection of the DB-API (PEP 249).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from airflow_ft.protocol.errors import SinkAccessError
from airflow_ft.protocol.model import Fence, Plan, canonical_json
from airflow_ft.protocol.votes import Outcome, SinkHead
from airflow_ft.sinks.base.memory import NO_INSTALLATION, Head, Marker, check_owner, remembered

HEAD, LEDGER = "airflow_ft_head", "airflow_ft_ledger"
PRIVILEGES = ("SELECT", "INSERT", "UPDATE", "DELETE")
MINE = "pipeline = ? AND participant = ?"
_HEAD = "pipeline, participant, installation, epoch, attempt, last_delivered, floor"
MARKER = "installation, kind, epoch, attempt, digest, counts, detail"
_OTHERS = "number > ? AND installation <> ?"


def statements(
    head: str = HEAD,
    ledger: str = LEDGER,
    *,
    text: str = "TEXT",
    key: str = "TEXT",
    name: str = "",
    integer: str = "BIGINT",
    at: str,
    branches: bool = False,
    of_head: str = "",
    end: str = "",
) -> Sequence[str]:
    """Return what makes both tables where they are lacking, in a system that calls its types so.

    `key` is the type of texts that are part of a key, `name` of those that are ASCII (default: `key`), `at` type and
    default of when a marker was written, for people. With `branches` there are markers of branches too; that of a whole
    number has the branch ''. `of_head` adds columns to the head, each with a comma behind it, and `end` follows both
    statements.
    """
    branch, of_branch = (f" branch {name or key} NOT NULL DEFAULT '',", ", branch") if branches else ("", "")
    names = f"pipeline {name or key} NOT NULL, participant {key} NOT NULL"
    return (
        f"CREATE TABLE IF NOT EXISTS {head} (\n  {names}, installation {text} NOT NULL,\n"
        f"  epoch {integer} NOT NULL, attempt {integer} NOT NULL, last_delivered {integer} NOT NULL,"
        f" floor {integer} NOT NULL,\n  {of_head}PRIMARY KEY (pipeline, participant)){end}",
        f"CREATE TABLE IF NOT EXISTS {ledger} (\n  {names}, number {integer} NOT NULL,{branch} installation {text}"
        f" NOT NULL,\n  kind {text} NOT NULL, epoch {integer} NOT NULL, attempt {integer} NOT NULL,"
        f" digest {text} NOT NULL, counts {text} NOT NULL,\n  detail {text} NOT NULL, at {at},\n"
        f"  PRIMARY KEY (pipeline, participant, number{of_branch})){end}",
    )


def cannot_create(schema: str, why: str, ddl: Sequence[str]) -> SinkAccessError:
    """Return the error for ledger tables that this user cannot create, with the statements for a DBA.

    `why`: a clause, with its full stop.
    """
    what = f"the schema {schema!r} lacks the tables {HEAD} and {LEDGER}, and {why}"
    remedy = (
        "Have a DBA run what `airflow ft setup PIPELINE --dag FILE --print` prints. Or these statements, and"
        f" GRANT {', '.join(PRIVILEGES)} on both tables:\n" + ";\n".join(ddl)
    )
    return SinkAccessError(what, code="ledger_not_created", remedy=remedy, schema=schema, statements=list(ddl))


class SqlLedger(ABC):
    """A database's memory of one pipeline. Its methods belong to the open transaction.

    In a statement `?` is a value, `{head}` and `{ledger}` are the tables.
    """

    pipeline: str
    participant: str
    has_branches: ClassVar[bool] = False
    """Whether branches have markers too; that of a whole number has the branch ''."""

    @abstractmethod
    def rows(self, sql: str, *values: object) -> list[tuple[Any, ...]]:
        """Executes a query."""

    @abstractmethod
    def run(self, sql: str, *values: object) -> None:
        """Executes a statement that returns no rows."""

    @abstractmethod
    def create(self) -> None:
        """The tables, where they are lacking."""

    @abstractmethod
    def exists(self) -> bool:
        """Return whether the tables are there."""

    def open(self, fence: Fence, *, create: bool) -> None:
        """Before its first use in a step: makes the tables, or raises what `check_owner` does where there are none."""
        if create:
            self.create()
        elif not self.exists():
            check_owner(None, fence)

    @property
    def key(self) -> tuple[str, str]:
        """Return the key of this pipeline's rows."""
        return (self.pipeline, self.participant)

    def head(self) -> Head | None:
        sql = f"SELECT installation, epoch, attempt, last_delivered, floor FROM {{head}} WHERE {MINE}"
        for row in self.rows(sql, *self.key):
            return Head(installation=row[0], epoch=row[1], attempt=row[2], last_delivered=row[3], floor=row[4])
        return None

    def create_head(self, head: Head) -> None:
        """Create the head of a new pipeline. Does nothing if another process has created it."""
        self.run(
            f"INSERT INTO {{head}} ({_HEAD}) VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING", *self._row(head)
        )

    def write_head(self, head: Head) -> None:
        """In place of what is there."""
        self.run(
            f"INSERT INTO {{head}} ({_HEAD}) VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (pipeline, participant)"
            " DO UPDATE SET installation = excluded.installation, epoch = excluded.epoch, attempt = excluded.attempt,"
            " last_delivered = excluded.last_delivered, floor = excluded.floor",
            *self._row(head),
        )

    def raise_head(self, fence: Fence) -> None:
        """Raise the head's rank to the fence, which shuts out older attempts."""
        self.run(f"UPDATE {{head}} SET epoch = ?, attempt = ? WHERE {MINE}", *fence.rank, *self.key)

    def deliver_head(self, number: int) -> None:
        """The number is the last delivered one (in the transaction that delivers it)."""
        self.run(f"UPDATE {{head}} SET last_delivered = ? WHERE {MINE}", number, *self.key)

    def raise_floor(self, floor: int) -> None:
        """No number at or below `floor` can be delivered or aborted any more."""
        self.run(f"UPDATE {{head}} SET floor = ? WHERE {MINE} AND floor < ?", floor, *self.key, floor)

    def _row(self, head: Head) -> tuple[object, ...]:
        return (*self.key, head.installation, head.epoch, head.attempt, head.last_delivered, head.floor)

    @property
    def _ledger_label(self) -> str:
        return f"a row of the ledger of {self.key[0]}"

    def marker(self, number: int, branch: str = "") -> Marker | None:
        where = " AND branch = ?" if self.has_branches else ""
        found = self._markers(f"number = ?{where}", number, *([branch] if self.has_branches else ()))
        return found[0][2] if found else None

    def branch_markers(self, number: int) -> dict[str, Marker]:
        """Return the markers of a number's branches, by label."""
        return {branch: marker for _, branch, marker in self._markers("number = ? AND branch <> ''", number)}

    def _markers(self, where: str, *values: object) -> list[tuple[int, str, Marker]]:
        """Return markers with number and branch, ascending."""
        branch = "branch" if self.has_branches else "''"
        sql = f"SELECT number, {branch}, {MARKER} FROM {{ledger}} WHERE {MINE} AND {where}"
        found = [
            (int(row[0]), row[1], Marker.stored(row[2:], self._ledger_label))
            for row in self.rows(sql, *self.key, *values)
        ]
        return sorted(found, key=lambda each: each[:2])

    def newest(self) -> int:
        """The highest number with a marker; 0: there is none."""
        return int(self.rows(f"SELECT MAX(number) FROM {{ledger}} WHERE {MINE}", *self.key)[0][0] or 0)

    def write_marker(
        self,
        plan: Plan,
        fence: Fence,
        outcome: Outcome,
        counts: Mapping[str, int],
        detail: Mapping[str, Any],
        branch: str = "",
    ) -> None:
        """Take the place of a number, or of a branch.

        The database refuses when it is taken, and waits for a transaction that holds it.
        """
        place = (*self.key, plan.number, *((branch,) if self.has_branches else ()))
        texts = (canonical_json(dict(counts)), canonical_json(dict(detail)))
        marker = (fence.installation, outcome.value, *fence.rank, plan.digest, *texts)
        names = f"pipeline, participant, number, {'branch, ' if self.has_branches else ''}{MARKER}"
        places = ", ".join("?" * len(place + marker))
        self.run(f"INSERT INTO {{ledger}} ({names}) VALUES ({places})", *place, *marker)

    def markers_of_others(self, above: int, installation: str) -> list[tuple[int, str, Marker]]:
        """Return number, branch and marker of what other decision logs have written above a number, ascending."""
        return self._markers(_OTHERS, above, installation)

    def remembered(self) -> SinkHead | None:
        """Return the head, or what the markers say where it is gone or older than they are."""
        return remembered(self.head, lambda above: self.markers_of_others(above, NO_INSTALLATION))

    def installations(self) -> set[str]:
        """Return the owners of head and markers."""
        owners = {row[0] for row in self.rows(f"SELECT DISTINCT installation FROM {{ledger}} WHERE {MINE}", *self.key)}
        head = self.head()
        return owners | ({head.installation} if head is not None else set())

    def drop_markers_of_others(self, above: int, installation: str) -> None:
        """Deletes what `markers_of_others` lists."""
        self.run(f"DELETE FROM {{ledger}} WHERE {MINE} AND {_OTHERS}", *self.key, above, installation)

    def prune(self, floor: int) -> None:
        """Deletes the markers at or below `floor`."""
        self.run(f"DELETE FROM {{ledger}} WHERE {MINE} AND number <= ?", *self.key, floor)


class DbApi(Protocol):
    """A connection of the DB-API (PEP 249)."""

    def cursor(self) -> Any: ...


@dataclass(frozen=True, slots=True)
class DbApiLedger(SqlLedger):
    """The ledger in what a connection of the DB-API leads to, as SQL of PostgreSQL's kind has it (ON CONFLICT)."""

    db: DbApi
    pipeline: str
    participant: str

    mark: ClassVar[str] = "?"
    """How a value stands in a statement: the driver's `paramstyle`, "?" (qmark) or "%s" (format)."""
    listed: ClassVar[str] = "SELECT count(*) FROM information_schema.tables WHERE table_name IN ('{head}', '{ledger}')"
    """How many of both tables are there."""
    ddl: ClassVar[Sequence[str]] = statements(at="TIMESTAMP DEFAULT CURRENT_TIMESTAMP")

    def rows(self, sql: str, *values: object) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in self._executed(sql, values).fetchall()]

    def run(self, sql: str, *values: object) -> None:
        self._executed(sql, values)

    def create(self) -> None:
        for statement in self.ddl:
            self.run(statement)

    def exists(self) -> bool:
        return int(self.rows(self.listed)[0][0]) == len(self.ddl)

    def _executed(self, sql: str, values: Sequence[object]) -> Any:
        cursor = self.db.cursor()
        cursor.execute(sql.replace("?", self.mark).format(head=HEAD, ledger=LEDGER), values)
        return cursor
