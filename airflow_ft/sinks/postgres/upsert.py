"""The strategy `upsert`: rows replace those of the same key; deletes by a column that tells the kind of change.

Marker, head and rows share one transaction, as in `local`. The changes are sent into a temporary table, in the order of
the log, and of each key the last one is applied by the server. What keeps an older checkpoint from undoing a newer one:

- it cannot be delivered at all: the head, locked in the same transaction, has gone past it (I4), and its marker or the
  floor says so (I2). That also covers deleted keys, of which nothing is left in the table to compare with;
- rows that are there carry the number that wrote them in `version_column`, and a lower number leaves them alone.

Counts are rows of the log.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from airflow_ft.core.errors import DeclinedError
from airflow_ft.core.model import Plan
from airflow_ft.core.ports import SegmentReader
from airflow_ft.sinks.base.changes import DELETES, UPSERTS
from airflow_ft.sinks.base.sql_names import quoted
from airflow_ft.sinks.postgres.catalog import Column, Table, may_leave_out
from airflow_ft.sinks.postgres.load import Load, declining
from airflow_ft.sinks.postgres.local import LocalParticipant
from airflow_ft.sinks.postgres.naming import TableName
from airflow_ft.sinks.postgres.session import Session
from airflow_ft.sinks.postgres.spec import PostgresSink
from airflow_ft.sinks.refused import Refused

_CHANGES = TableName("pg_temp", "airflow_ft_changes")
_PLACE = quoted("airflow_ft_place")


class UpsertParticipant(LocalParticipant):
    """One database, one transaction, rows by key. See `airflow_ft.core.ports.Participant`."""

    def _send(
        self,
        db: Session,
        plan: Plan,
        name: str,
        table: Table,
        readers: Sequence[SegmentReader],
        letters: Refused | None,
    ) -> int:
        sink = self.sinks[name]
        taken = 0
        # Only neighbours share a table: the segments of other columns between them come between them here too.
        for names, alike in groupby(readers, lambda reader: reader.schema(name).names):
            if not names:
                continue
            changes = Changes.of(db, sink, table, names, name)
            changes.create()
            taken += sum(changes.load(reader, letters) for reader in alike)
            with declining(name):
                changes.apply(plan.number)
            changes.drop()
        return taken


@dataclass(frozen=True, slots=True)
class Changes:
    """The changes of one sink, of the same columns, in a temporary table; `columns` are those that are written."""

    db: Session
    sink: PostgresSink
    table: Table
    columns: tuple[str, ...]
    keys: tuple[str, ...]
    name: str

    @classmethod
    def of(cls, db: Session, sink: PostgresSink, table: Table, names: Sequence[str], name: str) -> Changes:
        """Of rows with columns of these names. UnfitTargetError: a column is gone."""
        written = table.columns_of((each for each in names if each != sink.change_column), name)
        columns = tuple(column.name for column in written)
        keys = tuple(column.name for key in sink.key_columns if (column := table.column(key)) is not None)
        return cls(db, sink, table, columns, keys, name)

    def create(self, more: str = "") -> None:
        """The temporary table, with `more` columns."""
        listed = ", ".join(map(quoted, self.columns))
        changes = _CHANGES.sql
        self.db.run(
            f"CREATE TEMPORARY TABLE airflow_ft_changes ON COMMIT DROP AS SELECT {listed} FROM {self.table.name.sql}"
            f" LIMIT 0; ALTER TABLE {changes} ADD {_PLACE} bigint GENERATED ALWAYS AS IDENTITY{more}"
        )
        if self.sink.change_column:
            self.db.run(f"ALTER TABLE {changes} ADD {quoted(self.sink.change_column)} text NOT NULL")
        for key in self.keys:  # NULL equals no key: the row would be added once more each time
            self.db.run(f"ALTER TABLE {changes} ALTER {quoted(key)} SET NOT NULL")

    def load(self, reader: SegmentReader, letters: Refused | None = None) -> int:
        """The rows of a segment; how many."""
        columns = dict(self.table.columns)
        if change := self.sink.change_column:
            columns[change] = Column(change, "text", "b", "", -1, "text", True, False, False, True)
        changes = replace(self.table, name=_CHANGES, columns=columns)
        return Load(self.db, self.name, changes, reader, letters, str(self.table.name)).all()

    def apply(self, number: int) -> None:
        """The last change of each key. DeclinedError: the kind of a change is not known."""
        table, keys = self.table.name.sql, ", ".join(map(quoted, self.keys))
        version = quoted(self.sink.version_column or "")
        self.check_kinds()
        self.db.run(f"ANALYZE {_CHANGES.sql}")
        older = f"coalesce(there.{version}, 0) <= {int(number)}"
        if self.sink.change_column:
            same = " AND ".join(f"there.{quoted(key)} = change.{quoted(key)}" for key in self.keys)
            self.db.run(
                f"DELETE FROM {table} AS there USING ({self.last}) AS change WHERE {same} AND {self.deletes}"
                f" AND {older}"
            )
        written = [*self.columns, self.sink.version_column or ""]
        changed = ", ".join(f"{quoted(each)} = excluded.{quoted(each)}" for each in written if each not in self.keys)
        self.db.run(
            f"INSERT INTO {table} AS there ({', '.join(map(quoted, written))})"
            f" SELECT {', '.join(f'change.{quoted(each)}' for each in self.columns)}, {int(number)}"
            f" FROM ({self.last}) AS change WHERE NOT {self.deletes}"
            f" ON CONFLICT ({keys}) DO UPDATE SET {changed} WHERE {older}"
        )
        if may_leave_out(self.db, self.table):
            self.check_applied(number)

    def check_applied(self, number: int) -> None:
        """DeclinedError: changes were left out. The numbers of rows would not tell: an older change changes none."""
        same = " AND ".join(f"there.{quoted(key)} = change.{quoted(key)}" for key in self.keys)
        version = f"there.{quoted(self.sink.version_column or '')}"
        lacking = self.db.value(
            f"SELECT count(*) FROM ({self.last}) AS change LEFT JOIN {self.table.name.sql} AS there ON {same}"
            f" WHERE CASE WHEN {self.deletes} THEN there.{quoted(self.keys[0])} IS NOT NULL"
            f" AND coalesce({version}, 0) <= {int(number)}"
            f" ELSE {version} IS NULL OR {version} < {int(number)} END"
        )
        if lacking:
            raise DeclinedError(
                f"table {self.table.name} refuses rows: the changes of {lacking} keys were left out by a trigger or a"
                " rule.",
                remedy="mend the job, or the table.",
                sink=self.name,
            )

    @property
    def last(self) -> str:
        """A query for the last change of each key."""
        keys = ", ".join(map(quoted, self.keys))
        return f"SELECT DISTINCT ON ({keys}) * FROM {_CHANGES.sql} ORDER BY {keys}, {_PLACE} DESC"

    @property
    def deletes(self) -> str:
        """Whether the row `change` is a delete."""
        if not self.sink.change_column:
            return "false"
        return f"(lower(change.{quoted(self.sink.change_column)}) IN ({_listed(DELETES)}))"

    def check_kinds(self) -> None:
        """DeclinedError for a kind of change that is not known."""
        if not (change := self.sink.change_column):
            return
        unknown = self.db.rows(
            f"SELECT {quoted(change)} FROM {_CHANGES.sql} WHERE lower({quoted(change)}) NOT IN"
            f" ({_listed((*DELETES, *UPSERTS))}) LIMIT 1"
        )
        if unknown:
            raise DeclinedError(
                f"the kind of change {unknown[0][0]!r} is not known.",
                remedy=f"deletes are {', '.join(DELETES)}; upserts are {', '.join(UPSERTS)} (in any case of letters).",
                sink=self.name,
                column=change,
            )

    def drop(self) -> None:
        """Makes room for the next one."""
        self.db.run(f"DROP TABLE {_CHANGES.sql}")


def _listed(words: Sequence[str]) -> str:
    return ", ".join(f"'{word}'" for word in words)
