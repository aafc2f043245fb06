"""The changes of one sink in a temporary table, in the order of the log; the last one of each key is applied."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial

import psycopg2
import pyarrow as pa
import pyarrow.compute as pc

from airflow_ft.protocol.errors import DeclinedError, SinkAccessError
from airflow_ft.protocol.numbers import count_text
from airflow_ft.protocol.write_ahead_log import SegmentReader
from airflow_ft.sinks.arrow import decoded
from airflow_ft.sinks.base.changes import DELETES, UPSERTS, deletes_and_known, is_delete
from airflow_ft.sinks.base.sql_names import quoted
from airflow_ft.sinks.postgres.catalog import Column, Table, may_leave_out
from airflow_ft.sinks.postgres.certain import fills, takes
from airflow_ft.sinks.postgres.failures import Meaning, describe, meaning
from airflow_ft.sinks.postgres.load import Load
from airflow_ft.sinks.postgres.naming import TableName
from airflow_ft.sinks.postgres.session import Session
from airflow_ft.sinks.postgres.spec import PostgresSink
from airflow_ft.sinks.refused import Refused

CHANGES = TableName("pg_temp", "airflow_ft_changes")
PLACE = quoted("airflow_ft_place")


@dataclass(frozen=True, slots=True)
class Changes:
    """The changes of one sink, of the same columns, in a temporary table; `columns` are those that are written."""

    db: Session
    sink: PostgresSink
    table: Table
    columns: tuple[str, ...]
    keys: tuple[str, ...]
    version_column: str
    name: str

    @classmethod
    def of(cls, db: Session, sink: PostgresSink, table: Table, names: Sequence[str], name: str) -> Changes:
        """Return the changes of rows with these column names. UnfitTargetError: a column is gone."""
        written = table.columns_of((each for each in names if each != sink.change_column), name)
        columns = tuple(column.name for column in written)
        keys = tuple(column.name for key in sink.key_columns if (column := table.column(key)) is not None)
        return cls(db, sink, table, columns, keys, version_of(table, sink, name), name)

    def create(self, more: str = "") -> None:
        """The temporary table, with `more` columns. SinkAccessError: the user may not make it, or is kept from it."""
        listed = ", ".join(map(self._made, self.columns))
        changes = CHANGES.sql
        with self._allowed("create"):
            self.db.run(
                f"CREATE TEMPORARY TABLE airflow_ft_changes ON COMMIT DROP AS SELECT {listed} FROM"
                f" {self.table.name.sql} LIMIT 0; ALTER TABLE {changes} ADD {PLACE} bigint GENERATED ALWAYS AS IDENTITY"
                f" (CACHE 1000){more}"
            )
            if self.sink.change_column:
                self.db.run(f"ALTER TABLE {changes} ADD {quoted(self.sink.change_column)} text NOT NULL")
            for key in self.keys:  # NULL equals no key: the row would be added once more each time
                self.db.run(f"ALTER TABLE {changes} ALTER {quoted(key)} SET NOT NULL")

    def _made(self, name: str) -> str:
        """A column as the target has it. Where deletes may have NULL, no domain judges it here."""
        column = self.table.columns[name]
        judges = self.sink.change_column and name not in self.keys and column.base != column.declared
        return f"{quoted(name)}::{column.base} AS {quoted(name)}" if judges else quoted(name)

    def load(self, reader: SegmentReader, dead_letters: Refused | None = None) -> int:
        """The rows of a segment; how many."""
        columns = dict(self.table.columns)
        if change := self.sink.change_column:
            columns[change] = Column(change, "text", "b", "", -1, "text", True, False, False, True, "text")
        changes = replace(self.table, name=CHANGES, columns=columns)
        judge = partial(unknown_kinds, change) if change else None
        return Load(self.db, self.name, changes, reader, dead_letters, str(self.table.name), judge).all()

    def are_certain(self, readers: Sequence[SegmentReader]) -> bool:
        """Return whether the target certainly takes the changes of these segments: then no trial need send them."""
        if may_refuse(self.db, self.table, [*self.columns, self.version_column]):
            return False
        batches = (
            batch for reader in readers for file in reader.files(self.name) for batch in reader.batches(self.name, file)
        )
        with closing(self.db.awaiting(batches)) as read:
            return all(map(self._is_certain, read))

    def _is_certain(self, batch: pa.RecordBatch) -> bool:
        if change := self.sink.change_column:
            place = batch.schema.get_field_index(change)
            if batch.column(place).null_count or unknown_kinds(change, batch):
                return False
            live = batch.filter(pc.invert(is_delete(batch.column(place), change))).drop_columns([change])
            batch = batch.drop_columns([change])
        else:
            live = batch
        columns = [self.table.columns[name] for name in self.columns]
        keys = batch.select([each for each, column in enumerate(columns) if column.name in self.keys])
        return (
            takes(batch, columns)
            and fills(live, columns)
            and fills(keys, [column for column in columns if column.name in self.keys])
        )

    def keep_last(self) -> None:
        """Delete all changes but the last one of each key.

        A unique index, which is cheap to build, finds out whether there are others: keys are equal as in the target.
        """
        if self.index("UNIQUE INDEX"):
            return
        keys = ", ".join(map(quoted, self.keys))
        self.db.run(
            f"DELETE FROM {CHANGES.sql} AS change USING (SELECT {PLACE}, row_number() OVER (PARTITION BY {keys}"
            f" ORDER BY {PLACE} DESC) AS n FROM {CHANGES.sql}) AS later"
            f" WHERE later.n > 1 AND later.{PLACE} = change.{PLACE}"
        )

    def index(self, kind: str = "INDEX") -> bool:
        """Create an index on the keys. False: there is none, since keys are equal or one is too large for an index."""
        self.db.run("SAVEPOINT airflow_ft_keys")
        try:
            self.db.run(f"CREATE {kind} ON {CHANGES.sql} ({', '.join(map(quoted, self.keys))})")
            made = True
        except psycopg2.Error as error:
            if meaning(error) not in (Meaning.ROWS, Meaning.ACCESS):
                raise
            self.db.run("ROLLBACK TO SAVEPOINT airflow_ft_keys")
            made = False
        self.db.run("RELEASE SAVEPOINT airflow_ft_keys")
        return made

    def apply(self, number: int, last: str = "") -> None:
        """Apply the last change of each key. `last`: a query for some of them; "" for all, and only those stay then."""
        table, keys = self.table.name.sql, ", ".join(map(quoted, self.keys))
        whole = not last
        if whole:
            self.keep_last()
            last = f"SELECT * FROM {CHANGES.sql}"
        older = f"coalesce({self.version}, 0) <= {int(number)}"
        has_deletes = f"SELECT EXISTS (SELECT FROM ({last}) AS change WHERE {self.deletes})"
        if self.sink.change_column and self.db.value(has_deletes):
            if whole:
                self.db.run(f"ANALYZE {CHANGES.sql}")
            self.db.run(
                f"DELETE FROM {table} AS there USING ({last}) AS change"
                f" WHERE {self.same} AND {self.deletes} AND {older}"
            )
        written = [*self.columns, self.version_column]
        changed = ", ".join(f"{quoted(each)} = excluded.{quoted(each)}" for each in written if each not in self.keys)
        self.db.run(
            f"INSERT INTO {table} AS there ({', '.join(map(quoted, written))})"
            f" SELECT {', '.join(f'change.{quoted(each)}' for each in self.columns)}, {int(number)}"
            f" FROM ({last}) AS change WHERE NOT {self.deletes}"
            f" ON CONFLICT ({keys}) DO UPDATE SET {changed} WHERE {older}"
        )
        if may_leave_out(self.db, self.table):
            self.check_applied(number, last)

    def check_applied(self, number: int, last: str) -> None:
        """Raise DeclinedError if changes were dropped. Row counts would not show it: an older change changes none."""
        lacking = self.db.value(
            f"SELECT count(*) FROM ({last}) AS change LEFT JOIN {self.table.name.sql} AS there ON {self.same}"
            f" WHERE CASE WHEN {self.deletes} THEN there.{quoted(self.keys[0])} IS NOT NULL"
            f" AND coalesce({self.version}, 0) <= {int(number)}"
            f" ELSE {self.version} IS NULL OR {self.version} < {int(number)} END"
        )
        if lacking:
            raise DeclinedError(
                f"a trigger or rule of table {self.table.name} left out the changes of {count_text(lacking, 'key')}.",
                code="row_refused",
                remedy="Correct the rows in the job, or the trigger or rule.",
                sink=self.name,
                table=str(self.table.name),
                keys=lacking,
            )

    @property
    def last(self) -> str:
        """A query for the last change of each key."""
        keys = ", ".join(map(quoted, self.keys))
        return f"SELECT DISTINCT ON ({keys}) * FROM {CHANGES.sql} ORDER BY {keys}, {PLACE} DESC"

    @property
    def deletes(self) -> str:
        """Return whether the row `change` is a delete."""
        if not self.sink.change_column:
            return "false"
        words = ", ".join(f"'{word}'" for word in DELETES)
        return f"(lower(change.{quoted(self.sink.change_column)}) IN ({words}))"

    @property
    def same(self) -> str:
        """SQL: the rows `there` and `change` have the same key."""
        return " AND ".join(f"there.{quoted(key)} = change.{quoted(key)}" for key in self.keys)

    @property
    def version(self) -> str:
        """SQL: the version of the row `there`."""
        return f"there.{quoted(self.version_column)}"

    def drop(self) -> None:
        """Makes room for the next one. SinkAccessError: the user is kept from it."""
        with self._allowed("drop"):
            self.db.run(f"DROP TABLE {CHANGES.sql}")

    @contextmanager
    def _allowed(self, doing: str) -> Iterator[None]:
        try:
            yield
        except psycopg2.Error as error:
            if meaning(error) not in (Meaning.ACCESS, Meaning.ROWS):
                raise
            raise SinkAccessError(
                f"cannot {doing} the temporary table for the changes: {describe(error)}",
                code="temporary_table_refused",
                remedy="Run `GRANT TEMPORARY ON DATABASE ... TO ...` for the connection's user. If an event trigger"
                " (pg_event_trigger) raised the error, let it allow temporary tables.",
                sink=self.name,
            ) from error


def version_of(table: Table, sink: PostgresSink, name: str) -> str:
    """Return the table's own name of the version column. UnfitTargetError: the column is gone."""
    return table.columns_of([sink.version_column or ""], name)[0].name


def unknown_kinds(column: str, rows: pa.RecordBatch) -> Mapping[int, str]:
    """Rows of which the kind of change is not known. NULL is refused by the server."""
    kinds = decoded(rows.column(rows.schema.get_field_index(column)))
    _, known = deletes_and_known(kinds)
    unknown = pc.and_(pc.invert(known), kinds.is_valid())
    return {
        place: f"unknown kind of change {kinds[place].as_py()!r}; deletes are {', '.join(DELETES)}, upserts are"
        f" {', '.join(UPSERTS)}, in upper or lower case"
        for place in pc.indices_nonzero(unknown).to_pylist()
    }


# A plain heap table with a primary key alone: no constraint, trigger, rule, policy, publication, child or parent, and
# no index that computes anything or takes values of any length (an index row may be too large).
_PLAIN = """
SELECT current_setting('server_encoding') = 'UTF8'
   AND c.relkind = 'r' AND c.relreplident = 'd' AND NOT c.relrowsecurity AND c.relam = (
           SELECT oid FROM pg_am WHERE amname = 'heap')
   AND NOT EXISTS (SELECT FROM pg_constraint WHERE c.oid IN (conrelid, confrelid) AND contype NOT IN ('p', 'n'))
   AND NOT EXISTS (SELECT FROM pg_trigger WHERE tgrelid = c.oid)
   AND NOT EXISTS (SELECT FROM pg_publication_rel WHERE prrelid = c.oid)
   AND NOT EXISTS (SELECT FROM pg_rewrite WHERE ev_class = c.oid)
   AND NOT EXISTS (SELECT FROM pg_inherits WHERE c.oid IN (inhrelid, inhparent))
   AND NOT EXISTS (
       SELECT FROM pg_index i WHERE i.indrelid = c.oid AND (
           (i.indisunique AND NOT i.indisprimary) OR i.indisexclusion OR i.indexprs IS NOT NULL OR i.indpred IS NOT NULL
           OR EXISTS (SELECT FROM pg_attribute k WHERE k.attrelid = c.oid AND k.attnum = ANY (i.indkey)
                      AND k.attlen < 0)))
   AND NOT EXISTS (
       SELECT FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
       WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND (
           t.typtype = 'd' OR a.attstorage <> t.typstorage
           OR (a.attname <> ALL (%s) AND (a.atthasdef OR a.attidentity <> ''))))
FROM pg_class c WHERE c.oid = to_regclass(%s)
"""


def may_refuse(session: Session, table: Table, filled: Collection[str]) -> bool:
    """Return whether the table could refuse rows that its types and NOT NULL take; then a trial applies them.

    The table is locked; `filled` are the columns that rows or the sink fill.
    """
    return not session.value(_PLAIN, ([*filled], table.name.sql))
