"""A multiset of digests on disk, for comparing the log with a sink in bounded memory.

It lies in SQLite's own temporary database (https://sqlite.org/inmemorydb.html, "Temporary Databases"), which spills to
a file without a name as it grows, and vanishes with the connection, whatever ends the process.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from airflow_ft.protocol.errors import SinkUnavailableError

_CACHE_KIB = 65_536


class _Temporary(sqlite3.Connection):
    """A temporary database, whose errors are not taken for those of a sink."""

    def execute(self, *given: Any) -> sqlite3.Cursor:
        with _translated_errors():
            return super().execute(*given)

    def executemany(self, *given: Any) -> sqlite3.Cursor:
        with _translated_errors():
            return super().executemany(*given)


@contextmanager
def _translated_errors() -> Iterator[None]:
    try:
        yield
    except sqlite3.OperationalError as error:
        name = getattr(error, "sqlite_errorname", "")
        raise SinkUnavailableError(
            f"the temporary database of the comparison fails: {error} ({name}). The sink is not at fault.",
            code="disk_full" if name == "SQLITE_FULL" else "file_unusable",
            remedy="Set TMPDIR to a folder that the user of the process may write, on a disk with free space.",
            error=name,
        ) from error


def temporary_database() -> sqlite3.Connection:
    """Open one; it vanishes with the connection. Its statements raise SinkUnavailableError if the disk is full."""
    db = sqlite3.connect("", isolation_level=None, factory=_Temporary)
    db.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
    db.execute("PRAGMA journal_mode = OFF")
    return db


class Multiset:
    """Digests that are expected, each in a part (a number of the caller's), and how often they were found."""

    def __init__(self) -> None:
        self._db = temporary_database()
        self._db.execute("CREATE TABLE expected (digest BLOB PRIMARY KEY, n INTEGER NOT NULL) WITHOUT ROWID")
        self._db.execute("CREATE TABLE part (digest BLOB NOT NULL, part INTEGER NOT NULL)")
        self.other = 0

    def expect(self, part: int, digests: Sequence[bytes]) -> None:
        """Add one to the expected count of each of these digests."""
        self._db.execute("BEGIN")
        self._db.executemany(
            "INSERT INTO expected VALUES (?, 1) ON CONFLICT (digest) DO UPDATE SET n = n + 1", ((d,) for d in digests)
        )
        self._db.executemany("INSERT INTO part VALUES (?, ?)", ((d, part) for d in digests))
        self._db.execute("COMMIT")

    def found(self, digests: Sequence[bytes]) -> None:
        """Takes each once from what is expected; what was never expected is counted in `other`."""
        self._db.execute("BEGIN")
        cursor = self._db.executemany("UPDATE expected SET n = n - 1 WHERE digest = ?", ((d,) for d in digests))
        self.other += len(digests) - cursor.rowcount
        self._db.execute("COMMIT")

    @property
    def missing(self) -> int:
        """Return how many expected ones were not found."""
        return self._sum("SELECT sum(n) FROM expected WHERE n > 0")

    @property
    def repeated(self) -> int:
        """Return how many were found more often than expected."""
        return self._sum("SELECT -sum(n) FROM expected WHERE n < 0")

    def missing_by_part(self) -> dict[int, int]:
        """Return, by part, the number of digests that were not found often enough."""
        rows = self._db.execute(
            "SELECT part, count(*) FROM part NATURAL JOIN expected WHERE n > 0 GROUP BY part ORDER BY part"
        )
        return dict(rows.fetchall())

    def lacking(self, digests: Iterable[bytes]) -> list[int]:
        """Return which of these (by position) were not found often enough."""
        query = "SELECT 1 FROM expected WHERE digest = ? AND n > 0"
        return [index for index, digest in enumerate(digests) if self._db.execute(query, (digest,)).fetchone()]

    def close(self) -> None:
        """Frees the space."""
        self._db.close()

    def _sum(self, query: str) -> int:
        return int(self._db.execute(query).fetchone()[0] or 0)
