"""Changes applied piece by piece, so that those that the table refuses are found and set aside.

A piece that is refused is rolled back and applied in halves, down to one key. That key's last change is set aside, and
the change before it, if there is one, becomes its last one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass

import pyarrow as pa

from airflow_ft.protocol.errors import DeclinedError
from airflow_ft.protocol.write_ahead_log import SegmentReader, WalFile
from airflow_ft.sinks.base.sql_names import quoted
from airflow_ft.sinks.postgres.changes import CHANGES, PLACE, Changes
from airflow_ft.sinks.postgres.load import tried
from airflow_ft.sinks.postgres.naming import TableName
from airflow_ft.sinks.refused import MAX_ROWS, Refused

_LAST = TableName("pg_temp", "airflow_ft_last")


@dataclass(frozen=True, slots=True)
class Piecewise:
    """Changes that are loaded, from these segments; refused rows go into `dead_letters`."""

    changes: Changes
    readers: Sequence[SegmentReader]
    dead_letters: Refused

    def apply(self, number: int) -> int:
        """Apply all but the refused ones; how many were refused. DeclinedError: too many for rows to be at fault."""
        db = self.changes.db
        self.changes.index()  # for `_step_back`, which is slower without it
        db.run(
            f"CREATE TEMPORARY TABLE airflow_ft_last ON COMMIT DROP AS {self.changes.last};"
            f" CREATE INDEX ON {_LAST.sql} ({PLACE}); ANALYZE {_LAST.sql}; ANALYZE {CHANGES.sql}"
        )
        refused: dict[int, str] = {}
        low, high = db.rows(f"SELECT coalesce(min({PLACE}), 0), coalesce(max({PLACE}), -1) + 1 FROM {_LAST.sql}")[0]
        waiting = [(int(low), int(high))] if high > low else []
        while waiting and len(refused) <= MAX_ROWS:
            low, high = waiting.pop()
            if not (why := self._tried(number, low, high)):
                continue
            middle = self._middle(low, high)
            if middle is not None:
                waiting += [(middle, high), (low, middle)]
                continue
            place = int(db.value(f"SELECT {PLACE} FROM {_LAST.sql} WHERE {_between(low, high)}"))
            refused[place] = why
            if (before := self._step_back(place)) is not None:
                waiting.append((before, before + 1))
        db.run(f"DROP TABLE {_LAST.sql}")
        self._set_aside(refused)
        return len(refused)

    def _tried(self, number: int, low: int, high: int) -> str:
        """Return why these changes are refused, and apply none of them; "": all are applied."""

        def put() -> str:
            try:
                self.changes.apply(number, f"SELECT * FROM {_LAST.sql} WHERE {_between(low, high)} ORDER BY {PLACE}")
            except DeclinedError as error:
                return error.what
            return ""

        return tried(self.changes.db, "airflow_ft_changes", put)

    def _middle(self, low: int, high: int) -> int | None:
        """The place that halves a piece; None where it is one change."""
        count, middle = self.changes.db.rows(
            f"SELECT count(*), percentile_disc(0.5) WITHIN GROUP (ORDER BY {PLACE}) FROM {_LAST.sql}"
            f" WHERE {_between(low, high)}"
        )[0]
        return int(middle) + 1 if count > 1 else None

    def _step_back(self, place: int) -> int | None:
        """The change of the same key before this one becomes its last one; its place, or None."""
        changes, db = self.changes, self.changes.db
        same = " AND ".join(f"c.{quoted(key)} = l.{quoted(key)}" for key in changes.keys)
        found = db.rows(
            f"INSERT INTO {_LAST.sql} SELECT c.* FROM {_LAST.sql} AS l JOIN {CHANGES.sql} AS c ON {same}"
            f" WHERE l.{PLACE} = {place} AND c.{PLACE} < l.{PLACE} ORDER BY c.{PLACE} DESC LIMIT 1 RETURNING {PLACE}"
        )  # no parameter: a name may have a percent sign
        db.run(f"DELETE FROM {_LAST.sql} WHERE {PLACE} = %s", (place,))
        return int(found[0][0]) if found else None

    def _set_aside(self, refused: dict[int, str]) -> None:
        """The n-th place in the table is the n-th row of the log that the types have taken."""
        if not refused:
            return
        ranks = self.changes.db.rows(
            f"SELECT {PLACE}, n FROM"
            f" (SELECT {PLACE}, row_number() OVER (ORDER BY {PLACE}) AS n FROM {CHANGES.sql}) AS ranked"
            f" WHERE {PLACE} = ANY (%s) ORDER BY n",
            ([*refused],),
        )
        wanted = {int(rank): refused[int(place)] for place, rank in ranks}
        with closing(self.changes.db.awaiting(self._taken({*wanted}))) as taken:
            for rank, (reader, file, index, row) in taken:
                self.dead_letters.add(self.changes.name, reader.segment, file, index, row, wanted[rank])

    def _taken(self, ranks: set[int]) -> Iterator[tuple[int, tuple[SegmentReader, WalFile, int, pa.RecordBatch]]]:
        """Rows of the log by rank (from 1) among those that were loaded."""
        sink, rank = self.changes.name, 0
        lost = self.dead_letters.places(sink)
        for reader in self.readers:
            for file in reader.files(sink):
                index = 0
                for batch in reader.batches(sink, file):
                    for place in range(batch.num_rows):
                        if (reader.segment.number, file.path, index + place) in lost:
                            continue
                        rank += 1
                        if rank in ranks:
                            yield rank, (reader, file, index + place, batch.slice(place, 1))
                    index += batch.num_rows


def _between(low: int, high: int) -> str:
    return f"{PLACE} >= {low} AND {PLACE} < {high}"
