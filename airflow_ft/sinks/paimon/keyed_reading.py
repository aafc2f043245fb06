"""The rows of a table with a primary key: of each key the last change, whichever file has it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from airflow_ft.protocol.verify import sample
from airflow_ft.sinks.base.keyed_verify import Change, LastChanges, digest
from airflow_ft.sinks.base.table_checks import rows_of
from airflow_ft.sinks.paimon.keyed_rows import INSERT, KIND, NUMBER
from airflow_ft.sinks.paimon.reading import batches
from airflow_ft.sinks.paimon.table import Version

_UPDATED = 2
"""The kind of a change that has replaced a row."""


def current(version: Version, key: Sequence[str], names: Sequence[str]) -> LastChanges:
    """Return the last change of each key in a version."""
    found = LastChanges()
    for batch in batches(version, [*dict.fromkeys([*key, *names])], (NUMBER, KIND)):
        kinds = batch.column(KIND).to_pylist()
        changes = changes_of(batch, key, names, [kind not in (INSERT, _UPDATED) for kind in kinds])
        bare = (replace(change, sample="") for change in changes)  # what is compared shows its own samples
        found.add(zip(batch.column(NUMBER).to_pylist(), bare, strict=True))
    return found


def changes_of(
    rows: pa.RecordBatch, key: Sequence[str], names: Sequence[str], deletes: Sequence[Any]
) -> Iterator[Change]:
    """Yield the change of each row: its key, and the digest of its values."""
    for one, values, deleted in zip(rows_of(rows, key), rows_of(rows, names), deletes, strict=True):
        plain = [0.0 if isinstance(value, float) and value == 0 else value for value in values]
        found = None if deleted else digest(plain)
        yield Change(repr(one), found, sample((*one, *(() if deleted else values))))
