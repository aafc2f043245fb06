"""The tables of a delivery, judged once more inside the transaction that fills them.

A table may be altered between the vote and the delivery, which may come days later. PostgreSQL would convert what no
longer fits (a double into a real, a timestamp into a date) without an error. So the delivering transaction first takes
the lock that keeps ALTER TABLE out until its end, and then reads the catalog.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg2

from airflow_ft.protocol.errors import AirflowFtError, UnfitTargetError, together
from airflow_ft.protocol.votes import Vote
from airflow_ft.protocol.write_ahead_log import SegmentReader
from airflow_ft.sinks.base.columns import Misfits
from airflow_ft.sinks.base.sql_names import quoted
from airflow_ft.sinks.postgres.catalog import Table, read_table
from airflow_ft.sinks.postgres.failures import INSUFFICIENT_PRIVILEGE, Meaning, describe, meaning
from airflow_ft.sinks.postgres.keys import key_types
from airflow_ft.sinks.postgres.naming import TableName
from airflow_ft.sinks.postgres.requirements import judged
from airflow_ft.sinks.postgres.session import Session
from airflow_ft.sinks.postgres.spec import PostgresSink

_TARGETS = "targets"


@dataclass(frozen=True, slots=True)
class Held:
    """Tables that no ALTER TABLE changes until the transaction ends, by sink; none for a sink without rows."""

    session: Session
    sinks: Mapping[str, PostgresSink]
    readers: Mapping[str, Sequence[SegmentReader]]
    tables: Mapping[str, Table]

    @classmethod
    def of(
        cls,
        session: Session,
        sinks: Mapping[str, PostgresSink],
        readers: Mapping[str, Sequence[SegmentReader]],
        voted: Mapping[str, Any],
    ) -> Held:
        """Lock and judge the tables of all sinks. `voted`: what the vote noted of them, empty if nothing.

        Raises:
            UnfitTargetError: a table no longer takes the rows as they are. Nothing was sent.
        """
        filled = [name for name in sinks if any(reader.schema(name).names for reader in readers[name])]
        held = cls(session, sinks, readers, {name: _locked(session, sinks[name], name) for name in filled})
        problems = [problem for name in filled for problem in held._problems(name)]
        for name in filled:
            if name in voted:
                problems += _moved(voted[name], _target(session, sinks[name], held.tables[name]), name)
        if problems:
            raise together(problems)
        return held

    def check_again(self) -> None:
        """Judge what no lock of COPY prevents, after the rows are in: a new partition, or a schema with another name.

        UnfitTargetError: a partition was attached that would forget or double rows, or rows went into another table.
        """
        for name, table in self.tables.items():
            if self.session.value("SELECT to_regclass(%s)::oid", (table.name.sql,)) != table.oid:
                what = f"the name {table.name} changed to another table while rows were sent: a schema was renamed."
                remedy = "Do nothing: no row was delivered. The retry checks the table that has the name then."
                raise Misfits(str(table.name), name).of_table(what, "table_replaced", remedy)
            if table.is_partitioned:
                read = read_table(self.session, table.name, name)
                if problems := self._problems(name, read):
                    raise together(problems)

    def _problems(self, name: str, table: Table | None = None) -> list[AirflowFtError]:
        schemas = dict.fromkeys(reader.schema(name) for reader in self.readers[name])
        sink, table = self.sinks[name], table or self.tables[name]
        return [_late(problem) for schema in schemas for problem in judged(self.session, sink, table, schema, name)]


def targets_of(
    session: Session, sinks: Mapping[str, PostgresSink], readers: Sequence[SegmentReader]
) -> dict[str, dict[str, Any]]:
    """Return a vote's notes on the tables that get rows: where each name leads, and what makes its keys equal."""
    filled = [name for name in sinks if any(each.schema(name).names for each in readers if name in each.sinks())]
    tables = {name: read_table(session, TableName.parse(sinks[name].table), name) for name in filled}
    return {name: _target(session, sinks[name], table) for name, table in tables.items()}


def voted_targets(vote: Vote | None) -> Mapping[str, Any]:
    """Return the notes of a vote; empty if there is none."""
    return vote.notes.get(_TARGETS, {}) if vote is not None else {}


def _target(session: Session, sink: PostgresSink, table: Table) -> dict[str, Any]:
    keys = key_types(session, sink, table) if sink.strategy == "upsert" else []
    return {"table": table.name.sql, "keys": keys}


def _locked(session: Session, sink: PostgresSink, name: str) -> Table:
    found = read_table(session, TableName.parse(sink.table), name)
    # EXPLAIN takes COPY's lock (ROW EXCLUSIVE, of a partitioned table alone), inserts nothing, fires no trigger, and
    # needs no more privileges than COPY does: LOCK TABLE refuses a user who may write only some columns.
    filled = [quoted(column.name) for column in found.columns.values() if column.allowed and not column.refuses]
    values = f"({', '.join(filled)}) SELECT {', '.join('NULL' for _ in filled)}" if filled else "DEFAULT VALUES"
    try:
        session.rows(f"EXPLAIN INSERT INTO {found.name.sql} {values}")
    except psycopg2.Error as error:
        if error.pgcode == INSUFFICIENT_PRIVILEGE or meaning(error) is not Meaning.ACCESS:
            raise
        what = f"table {found.name} was altered just now: {describe(error)}"
        remedy = "Do nothing: the retry checks the altered table."
        raise Misfits(str(found.name), name).of_table(what, "table_changed", remedy) from error
    return read_table(session, found.name, name)


def _late(problem: AirflowFtError) -> AirflowFtError:
    problem.what = f"the table was changed between prepare and delivery: {problem.what}"
    problem.remedy = f"Change the table back. The rows wait, and the next try or run delivers them. {problem.remedy}"
    problem.fields["changed_since"] = "prepare"
    return problem.located()


def _moved(voted: Mapping[str, Any], now: Mapping[str, Any], name: str) -> Iterator[AirflowFtError]:
    """Yield the error for a change since the vote with which the rows would still fit."""
    if voted["table"] != now["table"]:
        yield UnfitTargetError(
            f"the sink's table was {voted['table']} at `prepare`, and its name means {now['table']} now. Another table"
            " of that name was created, or the search path was changed.",
            code="table_replaced",
            remedy=f"Make the name mean {voted['table']} again until these rows are delivered. Then name the schema in"
            " table= of the sink.",
            sink=name,
            table=voted["table"],
            now=now["table"],
        )
    elif [list(key) for key in voted["keys"]] != now["keys"]:
        yield UnfitTargetError(
            f"a key column of table {now['table']} has another type or collation than at `prepare`: it was"
            f" {_keys(voted['keys'])} and is {_keys(now['keys'])}. Other keys may be equal now.",
            code="key_changed",
            remedy="Change type and collation back until these rows are delivered.",
            sink=name,
            table=now["table"],
        )


def _keys(keys: Sequence[Sequence[str]]) -> str:
    return ", ".join(" ".join(filter(None, key)) for key in keys)
