"""The rows of a table with a primary key: of each key the last change, whichever file has it.

The last change of each key is kept on disk, in SQLite's own temporary database, so memory is bounded.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from airflow_ft.protocol.verify import sample
from airflow_ft.sinks.base.keyed_verify import Change, Found, digest
from airflow_ft.sinks.base.table_checks import rows_of
from airflow_ft.sinks.paimon.keyed_rows import INSERT, KIND, NUMBER
from airflow_ft.sinks.paimon.reading import batches
from airflow_ft.sinks.paimon.table import Version

_UPDATED = 2
"""The kind of a change that has replaced a row."""


class Current:
    """The digest of the row that each key has; close it to free the space."""

    def __init__(self, version: Version, key: Sequence[str], names: Sequence[str]) -> None:
        self._db = sqlite3.connect("", isolation_level=None)
        self._db.execute("PRAGMA journal_mode = OFF")
        self._db.execute("CREATE TABLE row (key TEXT PRIMARY KEY, number INTEGER NOT NULL, digest BLOB) WITHOUT ROWID")
        for batch in batches(version, [*dict.fromkeys([*key, *names])], (NUMBER, KIND)):
            kinds = batch.column(KIND).to_pylist()
            numbers = batch.column(NUMBER).to_pylist()
            changes = changes_of(batch, key, names, [kind not in (INSERT, _UPDATED) for kind in kinds])
            rows = [(each.key, number, each.digest) for each, number in zip(changes, numbers, strict=True)]
            self._db.execute("BEGIN")
            self._db.executemany(
                "INSERT INTO row VALUES (?, ?, ?) ON CONFLICT (key) DO UPDATE SET number = excluded.number,"
                " digest = excluded.digest WHERE excluded.number > row.number",
                rows,
            )
            self._db.execute("COMMIT")

    def look_up(self, keys: Sequence[str]) -> Mapping[str, Found]:
        """Return what is there of these keys. Which checkpoint wrote it is not known."""
        found = {}
        for key in keys:
            row = self._db.execute("SELECT digest FROM row WHERE key = ?", (key,)).fetchone()
            if row is not None and row[0] is not None:
                found[key] = Found(row[0], None)
        return found

    def close(self) -> None:
        """Free the space."""
        self._db.close()


def changes_of(
    rows: pa.RecordBatch, key: Sequence[str], names: Sequence[str], deletes: Sequence[Any]
) -> Iterator[Change]:
    """Yield the change of each row: its key, and the digest of its values."""
    for one, values, deleted in zip(rows_of(rows, key), rows_of(rows, names), deletes, strict=True):
        plain = [0.0 if isinstance(value, float) and value == 0 else value for value in values]
        found = None if deleted else digest(plain)
        yield Change(repr(one), found, sample((*one, *(() if deleted else values))))
