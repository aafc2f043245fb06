"""A table of Cassandra as its schema describes it, and the columns of rows that fit into it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa
from cassandra.cluster import Session

from airflow_ft.protocol.errors import PROPOSED, AirflowFtError, SinkAccessError, UnfitTargetError
from airflow_ft.protocol.lookup import did_you_mean
from airflow_ft.sinks.base.changes import missing_in_rows
from airflow_ft.sinks.cassandra.columns import IN_KEYS, TYPES, fits
from airflow_ft.sinks.cassandra.spec import CassandraSink

_LOW_GRACE = 3600
_LAST_EXPIRY = 2_147_483_645  # seconds since 1970: the last that all versions take


@dataclass(frozen=True)
class Table:
    """A table: its columns with type and kind, its primary key, and its settings."""

    keyspace: str
    name: str
    types: Mapping[str, str]
    kinds: Mapping[str, str]
    partition: Sequence[str]
    clustering: Sequence[str]
    ttl: int
    gc_grace: int

    @cached_property
    def key(self) -> Sequence[str]:
        """Return the columns of the primary key."""
        return [*self.partition, *self.clustering]

    @property
    def cql(self) -> str:
        """Return the table's name in a statement."""
        return f'"{self.keyspace}"."{self.name}"'

    def insert(self, columns: Sequence[str], *, expires: bool) -> str:
        """Return the statement for a row; the write timestamp follows the values, then the seconds to live."""
        names, marks = ", ".join(map(quoted, columns)), ", ".join("?" * len(columns))
        living = " AND TTL ?" if expires else ""
        return f"INSERT INTO {self.cql} ({names}) VALUES ({marks}) USING TIMESTAMP ?{living}"

    def delete(self) -> str:
        """Return the statement for a delete: the write timestamp, then the key."""
        return f"DELETE FROM {self.cql} USING TIMESTAMP ? WHERE {self._where}"

    def select(self, columns: Sequence[str]) -> str:
        """Return the statement for a row by its key: values, then write timestamps of those outside of the key."""
        own = [name for name in columns if name not in self.key]
        names = [self._read(name) for name in own] + [f"WRITETIME({quoted(name)})" for name in own]
        return f"SELECT {', '.join(names or [quoted(self.key[0])])} FROM {self.cql} WHERE {self._where}"

    def _read(self, column: str) -> str:
        # The driver rounds instants far away, and gives up its connection for those outside of Python's years.
        return f"toUnixTimestamp({quoted(column)})" if self.types[column] == "timestamp" else quoted(column)

    @property
    def _where(self) -> str:
        return " AND ".join(f"{quoted(name)} = ?" for name in self.key)

    def seconds_to_live(self, sink: CassandraSink) -> int:
        """Return after how many seconds a written row expires; 0: never."""
        return sink.ttl_seconds or self.ttl


def quoted(name: str) -> str:
    """Return an identifier in a statement."""
    return '"' + name.replace('"', '""') + '"'


def read_table(session: Session, keyspace: str, name: str) -> Table:
    """Read the table's schema.

    Raises:
        SinkAccessError: there is no such table.
        UnfitTargetError: it has counters, or is a view.
    """
    where = "WHERE keyspace_name = %s AND {} = %s"
    columns = f"SELECT column_name, type, kind, position FROM system_schema.columns {where.format('table_name')}"
    found = list(session.execute(columns, (keyspace, name)))
    options = f"SELECT default_time_to_live, gc_grace_seconds FROM system_schema.tables {where.format('table_name')}"
    option = session.execute(options, (keyspace, name)).one()
    if option is None:
        views = f"SELECT view_name FROM system_schema.views {where.format('view_name')}"
        if session.execute(views, (keyspace, name)).one() is not None:
            raise _unsupported(keyspace, name, "is a materialized view, which takes no rows")
        what = f"there is no table {keyspace}.{name}."
        remedy = f"Create it with the primary key by which rows replace each other. {PROPOSED}"
        raise SinkAccessError(what, code="table_missing", remedy=remedy, table=f"{keyspace}.{name}")
    if any(row.type == "counter" for row in found):
        raise _unsupported(keyspace, name, "has counters, which have no write timestamps")
    keys = sorted((row.position, row.column_name, row.kind) for row in found)
    return Table(
        keyspace,
        name,
        {row.column_name: row.type for row in found},
        {row.column_name: row.kind for row in found},
        [column for _, column, kind in keys if kind == "partition_key"],
        [column for _, column, kind in keys if kind == "clustering"],
        option.default_time_to_live,
        option.gc_grace_seconds,
    )


def _unsupported(keyspace: str, name: str, why: str) -> UnfitTargetError:
    what = f"the table {keyspace}.{name} {why}."
    return UnfitTargetError(
        what, code="table_unsupported", remedy="Give the sink another table.", table=f"{keyspace}.{name}"
    )


def warnings(table: Table) -> Iterator[tuple[str, str]]:
    """Yield what is risky, with a remedy."""
    if table.gc_grace < _LOW_GRACE:  # NULL and expiry leave tombstones, too
        yield (
            f"gc_grace_seconds of {table.keyspace}.{table.name} is {table.gc_grace}: a late process could bring"
            " deleted rows and values back",
            f"Set it to at least {_LOW_GRACE}.",
        )


def written(sink: CassandraSink, names: Sequence[str]) -> list[str]:
    """Return the columns that are written."""
    return [name for name in names if name != sink.change_column]


def schema_problems(sink: CassandraSink, table: Table, schema: pa.Schema, name: str) -> Iterator[AirflowFtError]:
    """Yield why rows with these columns do not fit."""
    if sink.change_column is not None and sink.change_column not in schema.names:
        yield missing_in_rows(sink.change_column, "change_column", schema.names).located(sink=name)
    names = written(sink, schema.names)
    for column in table.key:
        if column not in names:
            what = f"the rows have no column {column!r}, which is part of the primary key of {table.cql}."
            what += f" They have: {', '.join(schema.names)}."
            remedy = f"{did_you_mean(column, schema.names)}Add {column} to the job's result."
            yield UnfitTargetError(what, code="column_required", remedy=remedy, sink=name, column=column)
    if (seconds := table.seconds_to_live(sink)) and time.time() + seconds > _LAST_EXPIRY:
        what = f"rows of {table.cql} would live {seconds} s, until after 2038-01-19, which Cassandra may not hold."
        remedy = "Give the sink a shorter ttl_seconds=, or the table a shorter default_time_to_live."
        yield UnfitTargetError(what, code="limit_reached", remedy=remedy, sink=name, seconds=seconds)
    for column in names:
        yield from _column_problems(table, schema.field(column), name)


def _column_problems(table: Table, field: pa.Field, sink: str) -> Iterator[UnfitTargetError]:
    kind = table.types.get(field.name)
    if kind is None:
        what, code = f"the table {table.cql} has no column {field.name!r}", "column_missing"
        remedy = did_you_mean(field.name, [*table.types])
        remedy += "Add it to the table, or drop it in the job. Names are compared exactly."
    elif table.kinds[field.name] == "static":
        what, code = f"the column {field.name} of {table.cql} is static, so several keys share it", "table_unsupported"
        remedy = "Drop it in the job, or give it a table of its own."
    elif kind not in TYPES:
        what, code = f"the column {field.name} of {table.cql} has the type {kind}", "type_unsupported"
        remedy = "Make it a text column, and write JSON with to_json() in the job."
    elif field.name in table.key and kind not in IN_KEYS:
        code = "key_unfit"
        what = f"the key column {field.name} of {table.cql} has the type {kind}. Equal values can be different keys"
        remedy = "Use a table whose key has whole numbers, texts, UUIDs, dates or times."
    elif not fits(field.type, kind):
        code = "column_unfit"
        what = f"the column {field.name} of {table.cql} has the type {kind}, the rows have {field.type}"
        remedy = "Cast it in the job, or change the table."
    else:
        return
    yield UnfitTargetError(f"{what}.", code=code, remedy=remedy, sink=sink, column=field.name, type=str(field.type))
