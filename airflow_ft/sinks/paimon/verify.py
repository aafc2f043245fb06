"""Compare the tables with the log's rows, also after others have compacted their files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.model import ParticipantPlan
from airflow_ft.protocol.verify import Delivered, Sent, SinkReport
from airflow_ft.protocol.write_ahead_log import SegmentReader, WalReader
from airflow_ft.sinks.base.keyed import kinds_of
from airflow_ft.sinks.base.keyed_verify import Change, compare_keys
from airflow_ft.sinks.base.table_columns import matched
from airflow_ft.sinks.base.table_format import misfit
from airflow_ft.sinks.paimon.columns import FORMAT, written
from airflow_ft.sinks.paimon.keyed_reading import Current, changes_of
from airflow_ft.sinks.paimon.place import Place
from airflow_ft.sinks.paimon.reading import batches
from airflow_ft.sinks.paimon.requirements import Checks
from airflow_ft.sinks.paimon.spec import PaimonSink
from airflow_ft.sinks.paimon.table import Version
from airflow_ft.sinks.set_aside import DeliveredLog


class _Checks(Checks):
    """Compares rows by key where the table has one."""

    def compared(
        self,
        sink: PaimonSink,
        place: Place,
        version: Version | None,
        sent: Sequence[Sent],
        report: SinkReport,
        log: DeliveredLog,
        *rest: Any,
    ) -> SinkReport:
        if version is not None and (problems := list(version.oddities())):  # rows may be deleted elsewhere
            return replace(report, error=problems[0].what)
        if version is not None and version.primary_key:
            into = list({each.plan.number: each for each, _ in sent}.values())
            return _by_key(report, sink, version, log.readers(sent), into)
        return super().compared(sink, place, version, sent, report, log, *rest)


def verify(
    delivered: Sequence[Delivered],
    plan: ParticipantPlan,
    connection: ConnectionInfo,
    wal: WalReader,
    *,
    full: bool = False,
) -> list[SinkReport]:
    """One report a table. SinkUnavailableError, SinkAccessError, WalCorruptError: nothing could be compared."""
    return _Checks().verify(delivered, plan, connection, wal, FORMAT, lambda _, version, names: batches(version, names))


def _by_key(
    report: SinkReport,
    sink: PaimonSink,
    there: Version,
    readers: Iterable[tuple[int, str, SegmentReader]],
    into: Sequence[Delivered],
) -> SinkReport:
    key, columns = there.primary_key, there.columns or []
    mine = [each for each in readers if each[2].schema(each[1]).names]
    schemas = [written(sink, reader.schema(name)) for _, name, reader in mine]
    for schema in schemas:
        if what := misfit(FORMAT, schema, columns):
            return replace(report, error=what)
    names = sorted({column.name for schema in schemas for column in matched(schema, columns).values()})

    def changes(name: str, reader: SegmentReader) -> Iterator[Change]:
        for file in reader.files(name):
            for batch in reader.batches(name, file):
                deletes, _ = kinds_of(batch, sink.change_column)
                rows = FORMAT.cast(batch.select(written(sink, batch.schema).names), columns)
                yield from changes_of(rows, key, names, deletes.tolist())

    head = there.ledger(f"{into[-1].plan.pipeline}/{report.participant}").head()
    with closing(Current(there, key, names)) as current:
        last = head.last_delivered if head is not None else None
        given = [(number, changes(name, reader)) for number, name, reader in mine]
        return compare_keys(report, into, last, given, current.look_up)
