"""The strategy `upsert`: rows replace those of the same key; a column with the kind of change marks deletes.

Marker, head and rows share one local transaction, as in `local`; only the statements of the rows differ. What keeps an
older checkpoint from undoing a newer one:

- it cannot be delivered at all: the head, locked in the same transaction, has gone past it (I4), and its marker or the
  floor says so (I2). That also covers deleted keys, of which nothing is left in the table to compare with;
- rows in the table carry, in `version_column`, the number that wrote them, and a lower number leaves them alone. So
  nothing newer is overwritten even if the head was lost or put back by hand.

Within a checkpoint the last change of a key in the order of the write-ahead log wins. Changes are sent in that order,
and consecutive ones of the same kind share a statement. Counts are records that the server processed.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pymysql

from airflow_ft.protocol.errors import DeclinedError
from airflow_ft.protocol.model import Plan
from airflow_ft.protocol.write_ahead_log import SegmentReader
from airflow_ft.sinks.arrow import booleans, flags
from airflow_ft.sinks.base.changes import (
    DELETES,
    VERSIONS,
    is_delete,
    versions_ahead,
    versions_unread,
    written_versions,
)
from airflow_ft.sinks.mysql.encoding import Form, TargetColumn, delete_statements
from airflow_ft.sinks.mysql.failures import OUT_OF_TIME, code_of, describe
from airflow_ft.sinks.mysql.judging import Judgement, only_keys
from airflow_ft.sinks.mysql.ledger import Ledger
from airflow_ft.sinks.mysql.limits import Limits
from airflow_ft.sinks.mysql.load import Encoder, Loader, Way, path
from airflow_ft.sinks.mysql.local import LocalParticipant
from airflow_ft.sinks.mysql.naming import quote
from airflow_ft.sinks.mysql.parameters import parameter_types
from airflow_ft.sinks.mysql.requirements import check_changes_allowed, fit_target
from airflow_ft.sinks.mysql.session import Changes, Insert, Request, Session, Statement
from airflow_ft.sinks.mysql.spec import MySqlSink
from airflow_ft.sinks.mysql.vote import Target

VERSION = "airflow_ft_version"  # the source name of the column that is added
ROW_ALIAS_FROM = (8, 0, 19)
"""MySQL: INSERT ... AS new; from 8.0.20 on the older VALUES(c) raises a warning. MariaDB knows VALUES(c) only."""


class UpsertParticipant(LocalParticipant):
    """One server, one transaction, rows by key. See `airflow_ft.protocol.participant.Participant`."""

    def _path(self, session: Session) -> str:
        return path(session, replace(self._way, load=False))

    def _path_is_narrow(self, session: Session) -> bool:
        return True

    def _loader(self, session: Session, plan: Plan) -> Loader:
        return Upserter(session, self._limits, self._way, self._sinks, plan.number)

    def _verdicts(
        self, session: Session, plan: Plan, targets: Mapping[str, Target], readers: Sequence[SegmentReader]
    ) -> list[Judgement]:
        refuse_ahead(session, self._ledger(plan.pipeline), targets, self._sinks, plan.number, self._limits.answer)
        return super()._verdicts(session, plan, targets, readers)

    def _written(self, targets: Mapping[str, Target]) -> dict[str, Any]:
        places = sorted(_version_of(target, self._sinks[name]) for name, target in targets.items())
        return super()._written(targets) | {VERSIONS: places}

    def _targets(self, session: Session) -> dict[str, Target]:
        targets = {}
        for name, target in super()._targets(session).items():
            targets[name] = fit_target(session, target, self._sinks[name])
        return targets


def refuse_ahead(
    session: Session,
    ledger: Ledger,
    targets: Mapping[str, Target],
    sinks: Mapping[str, MySqlSink],
    number: int,
    patience: float,
) -> None:
    """Raise UnfitTargetError if a table that is new to this pipeline has a row with a version of `number` or later.

    Only such tables are read, since a version column need not have an index. See `versions_ahead`. Also raised if the
    server does not answer within `patience` seconds: another try would take as long.
    """
    head = ledger.on(session).head()
    known = written_versions(ledger.on(session).marker(head.last_delivered) if head is not None else None)
    for name, target in targets.items():
        if _version_of(target, sinks[name]) in known:
            continue
        version = str(sinks[name].version_column)
        ahead = f"SELECT EXISTS (SELECT 1 FROM {target.table.name.sql} WHERE {quote(version)} >= %s)"
        began = time.monotonic()
        try:
            found = session.value(ahead, (number,))
        except pymysql.err.MySQLError as error:
            if time.monotonic() - began < patience and code_of(error) not in OUT_OF_TIME:
                raise
            index = f"airflow_ft_versions ON {target.table.name.sql} ({quote(version)})"
            raise versions_unread(str(target.table.name), version, target.sink, describe(error), index) from error
        if found and ledger.on(session).head() == head:
            raise versions_ahead(str(target.table.name), version, number, target.sink)


def _version_of(target: Target, sink: MySqlSink) -> str:
    return f"{target.table.name}.{sink.version_column}"


class Upserter(Loader):
    """Sends rows by INSERT ... ON DUPLICATE KEY UPDATE, and deletes by key."""

    def __init__(self, session: Session, limits: Limits, way: Way, sinks: Mapping[str, MySqlSink], number: int) -> None:
        super().__init__(session, limits, replace(way, load=False))
        self._sinks = sinks
        self._number = number

    def _encoder(self, schema: pa.Schema, target: Target, columns: Sequence[TargetColumn]) -> Encoder[Request]:
        sink = self._sinks[target.sink]
        assert sink.version_column is not None
        written = [*columns, TargetColumn(VERSION, sink.version_column, Form.PLAIN)]
        keys = [column for column in written if column.name.lower() in {key.lower() for key in sink.key_columns}]
        types = parameter_types(schema.append(pa.field(VERSION, pa.int64())), written)
        suffix = self._suffix(target, sink, columns)
        guard = f"COALESCE({quote(sink.version_column)}, 0) <= {self._number}"

        def requests(piece: pa.RecordBatch) -> Iterator[Request]:
            versions = pa.array(np.full(piece.num_rows, self._number, np.int64))
            numbered = piece.append_column(VERSION, versions)
            for start, stop, deletes in _runs(piece, sink):
                run = numbered.slice(start, stop - start)
                if deletes:
                    _refuse_null_keys(run, keys, target)
                    for sql, rows in delete_statements(target.table.name.sql, run, keys, guard, self._room):
                        yield Changes(sql, rows)
                else:
                    yield from self._inserts(run, target, written, types, suffix)

        return lambda piece: list(requests(piece))

    def _unfit(self, target: Target, rows: pa.RecordBatch) -> dict[int, str]:
        sink = self._sinks[target.sink]
        if sink.change_column is None:
            return super()._unfit(target, rows)
        kinds = rows.column(rows.schema.get_field_index(sink.change_column)).cast(pa.large_string())
        words = pc.is_in(pc.utf8_lower(kinds), value_set=pa.array(DELETES, pa.large_string()))
        deletes = booleans(pc.fill_null(words, False))
        found: dict[int, str] = {}
        keys = only_keys(target, rows.schema)
        for part, columns, mask in (
            (target, rows.schema.names, ~deletes),
            (keys, [column.source for column in keys.written(rows.schema)], deletes),
        ):
            places = np.flatnonzero(mask).tolist()
            some = rows.filter(flags(mask)).select(columns)
            found |= {places[index]: why for index, why in super()._unfit(part, some).items()}
        return found

    def _counted(self, request: Request, statement: Statement) -> int:
        """Unchanged rows count 0, replaced ones 2; the server says how many records of several it has processed."""
        return statement.records if isinstance(request, Insert) and request.rows > 1 else request.rows

    def _require_access(self, target: Target, columns: Sequence[TargetColumn]) -> None:
        super()._require_access(target, columns)
        check_changes_allowed(self._session, target, self._sinks[target.sink])

    def _suffix(self, target: Target, sink: MySqlSink, columns: Sequence[TargetColumn]) -> str:
        """The guard: nothing changes where the row there has a higher version. It is assigned last: it is compared."""
        assert sink.version_column is not None
        table, version = target.table.name.sql, quote(sink.version_column)
        alias = not self._session.is_mariadb and self._session.version >= ROW_ALIAS_FROM

        def new(name: str) -> str:
            return f"airflow_ft_new.{name}" if alias else f"VALUES({name})"

        newer = f"COALESCE({table}.{version}, 0) <= {new(version)}"
        keys = {key.lower() for key in sink.key_columns}
        names = [quote(column.name) for column in columns if column.name.lower() not in keys]
        changes = [f"{name} = IF({newer}, {new(name)}, {table}.{name})" for name in (*names, version)]
        return (" AS airflow_ft_new" if alias else "") + f" ON DUPLICATE KEY UPDATE {', '.join(changes)}"


def _runs(piece: pa.RecordBatch, sink: MySqlSink) -> Iterator[tuple[int, int, bool]]:
    """Consecutive changes of one kind: first row, row after the last, whether they delete."""
    if sink.change_column is None:
        yield 0, piece.num_rows, False
        return
    kinds = piece.column(piece.schema.get_field_index(sink.change_column))
    deletes = booleans(is_delete(kinds, sink.change_column))
    edges = [0, *(np.flatnonzero(np.diff(deletes)) + 1).tolist(), piece.num_rows]
    for start, stop in itertools.pairwise(edges):
        yield start, stop, bool(deletes[start])


def _refuse_null_keys(run: pa.RecordBatch, keys: Sequence[TargetColumn], target: Target) -> None:
    for key in keys:
        if run.column(run.schema.get_field_index(key.source)).null_count:
            raise DeclinedError(
                "a delete has NULL in its key.",
                code="null_refused",
                remedy=f"Remove deletes with NULL in {key.source} in the job.",
                sink=target.sink,
                column=key.source,
            )
