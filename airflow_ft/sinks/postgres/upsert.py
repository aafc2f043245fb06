"""The strategy `upsert`: rows replace those of the same key; a column with the kind of change marks deletes.

Marker, head and rows share one transaction, as in `local`. The changes are sent into a temporary table, in the order
of the log, and of each key the last one is applied by the server. What keeps an older checkpoint from undoing a newer
one:

- it cannot be delivered at all: the head, locked in the same transaction, has gone past it (I4), and its marker or the
  floor says so (I2). That also covers deleted keys, of which nothing is left in the table to compare with;
- rows that are there carry the number that wrote them in `version_column`, and a lower number leaves them alone.

Counts are rows of the log.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import psycopg2

from airflow_ft.protocol.model import Fence, Plan
from airflow_ft.protocol.write_ahead_log import SegmentReader
from airflow_ft.sinks.base.changes import VERSIONS, versions_ahead, versions_unread, written_versions
from airflow_ft.sinks.base.sql_names import quoted
from airflow_ft.sinks.postgres.catalog import Table, read_table
from airflow_ft.sinks.postgres.changes import Changes, version_of
from airflow_ft.sinks.postgres.failures import describe
from airflow_ft.sinks.postgres.load import declining
from airflow_ft.sinks.postgres.local import LocalParticipant
from airflow_ft.sinks.postgres.naming import TableName
from airflow_ft.sinks.postgres.piecewise import Piecewise
from airflow_ft.sinks.postgres.session import Session
from airflow_ft.sinks.postgres.spec import PostgresSink
from airflow_ft.sinks.refused import Refused


@dataclass
class UpsertParticipant(LocalParticipant):
    """One database, one transaction, rows by key. See `airflow_ft.protocol.participant.Participant`.

    A trial before the decision applies the changes as well, and rolls them back. It is left out if the table takes all
    values of its types, and the rows are known to fit these types (`Changes.are_certain`).
    """

    _trying: bool = field(default=False, repr=False)

    def _first_look(self, plan: Plan, fence: Fence) -> tuple[dict[str, Any], Sequence[SegmentReader] | None]:
        found = super()._first_look(plan, fence)
        if found[1] is not None:
            self._refuse_ahead(plan)
        return found

    def _refuse_ahead(self, plan: Plan) -> None:
        """Raise UnfitTargetError if a table that is new to this pipeline has a row of this version or a later one.

        Only such tables are read, since a version column need not have an index. See `versions_ahead`.
        """
        with self._reading(plan.pipeline, plan) as ledger:
            head = ledger.head() if ledger is not None else None
            newest = ledger.marker(head.last_delivered) if ledger is not None and head is not None else None
        known = written_versions(newest)
        for name, sink in self.sinks.items():
            if _version_of(sink) in known:
                continue
            table = TableName.parse(sink.table)
            with self._session() as db:
                version = version_of(read_table(db, table, name), sink, name)
                # No parameter: a name may have a percent sign.
                ahead = f"SELECT EXISTS (SELECT FROM {table.sql} WHERE {quoted(version)} >= {int(plan.number)})"
                try:
                    found = db.value(ahead)
                except psycopg2.errors.QueryCanceled as error:  # statement_timeout: another try would take as long
                    index = f"CONCURRENTLY ON {table.sql} ({quoted(version)})"
                    raise versions_unread(str(table), version, name, describe(error), index) from error
            if not found:
                continue
            with self._reading(plan.pipeline, plan) as ledger:
                if ledger is not None and ledger.head() == head:
                    raise versions_ahead(str(table), version, plan.number, name)

    def _detail(self, plan: Plan, fence: Fence) -> dict[str, Any]:
        return super()._detail(plan, fence) | {VERSIONS: sorted(map(_version_of, self.sinks.values()))}

    def _vote(self, plan: Plan, fence: Fence, readers: Sequence[SegmentReader]) -> dict[str, Any]:
        self._trying = True
        try:
            return super()._vote(plan, fence, readers)
        finally:
            self._trying = False

    def _send(
        self,
        db: Session,
        plan: Plan,
        name: str,
        table: Table,
        readers: Sequence[SegmentReader],
        dead_letters: Refused | None,
    ) -> int:
        sink = self.sinks[name]
        taken = 0
        # Only neighbours share a table: the segments of other columns between them come between them here too.
        for names, alike in groupby(readers, lambda reader: reader.schema(name).names):
            if not names:
                continue
            changes = Changes.of(db, sink, table, names, name)
            own = list(alike)
            changes.create()
            if self._trying and changes.are_certain(own):
                taken += sum(reader.segment.rows.get(name, 0) for reader in own)
                changes.drop()
                continue
            taken += sum(changes.load(reader, dead_letters) for reader in own)
            if dead_letters is None:
                with declining(name):
                    changes.apply(plan.number)
            else:
                taken -= Piecewise(changes, own, dead_letters).apply(plan.number)
            changes.drop()
        return taken


def _version_of(sink: PostgresSink) -> str:
    return f"{TableName.parse(sink.table)}.{sink.version_column}"
