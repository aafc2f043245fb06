"""Compare the tables with the log's rows, also after others have compacted their files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

import pyarrow as pa

from airflow_ft.protocol.verify import SinkReport, Target, sample
from airflow_ft.protocol.write_ahead_log import SegmentReader
from airflow_ft.sinks.base.keyed import kinds_of
from airflow_ft.sinks.base.keyed_verify import Change, Found, LastChanges, compare_keys, digest
from airflow_ft.sinks.base.table_checks import misfit, rows_of
from airflow_ft.sinks.base.table_columns import matched
from airflow_ft.sinks.paimon.columns import FORMAT, written
from airflow_ft.sinks.paimon.keyed_rows import INSERT, KIND, NUMBER
from airflow_ft.sinks.paimon.place import Place
from airflow_ft.sinks.paimon.reading import batches
from airflow_ft.sinks.paimon.requirements import Checks
from airflow_ft.sinks.paimon.spec import PaimonSink
from airflow_ft.sinks.paimon.table import Version
from airflow_ft.sinks.set_aside import DeliveredLog

_UPDATED = 2
"""The kind of a change that has replaced a row."""


class _Checks(Checks):
    """Compares rows by key where the table has one."""

    def compared(
        self, sink: PaimonSink, place: Place, version: Version, target: Target, log: DeliveredLog
    ) -> SinkReport:
        if problems := list(version.oddities()):  # rows may be deleted elsewhere
            return replace(target.report, error=problems[0].what)
        if version.layout.primary_key:
            return _by_key(sink, version, target, log)
        return super().compared(sink, place, version, target, log)


verify = _Checks().verify


def _by_key(sink: PaimonSink, there: Version, target: Target, log: DeliveredLog) -> SinkReport:
    key, columns, report, into = there.layout.primary_key, there.columns or [], target.report, target.delivered
    mine = [each for each in log.readers(target.sent) if each[2].schema(each[1]).names]
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
                yield from _changes_of(rows, key, names, deletes.tolist())

    head = there.ledger(f"{into[-1].plan.pipeline}/{report.participant}").head()
    last = head.last_delivered if head is not None else None
    given = [(number, changes(name, reader)) for number, name, reader in mine]
    with closing(_current(there, key, names)) as found:

        def look_up(keys: Sequence[str]) -> dict[str, Found]:
            digests = {one: found.digest(one) for one in keys}
            return {one: Found(digest, None) for one, digest in digests.items() if digest is not None}

        return compare_keys(report, into, last, given, look_up)


def _current(version: Version, key: Sequence[str], names: Sequence[str]) -> LastChanges:
    """Return the last change of each key in a version."""
    found = LastChanges()
    for batch in batches(version, [*dict.fromkeys([*key, *names])], (NUMBER, KIND)):
        kinds = batch.column(KIND).to_pylist()
        changes = _changes_of(batch, key, names, [kind not in (INSERT, _UPDATED) for kind in kinds])
        bare = (replace(change, sample="") for change in changes)  # what is compared shows its own samples
        found.add(zip(batch.column(NUMBER).to_pylist(), bare, strict=True))
    return found


def _changes_of(
    rows: pa.RecordBatch, key: Sequence[str], names: Sequence[str], deletes: Sequence[Any]
) -> Iterator[Change]:
    """Yield the change of each row: its key, and the digest of its values."""
    for one, values, deleted in zip(rows_of(rows, key), rows_of(rows, names), deletes, strict=True):
        plain = [0.0 if isinstance(value, float) and value == 0 else value for value in values]
        found = None if deleted else digest(plain)
        yield Change(repr(one), found, sample((*one, *(() if deleted else values))))
