"""Queries for gates and barriers: up to which checkpoint all input of some moment is published.

The clock of the decision log may have been ahead. A time in the future proves nothing, and the next write with an
earlier time corrects it (`correct_times`).
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from airflow_ft.store.database import Database, Row
from airflow_ft.store.reading import nothing
from airflow_ft.store.rows import (
    from_time,
    to_time,
)

_COVERING = "pipeline = ? AND as_of IS NOT NULL AND (after_abort IS NULL OR after_abort <> 'rewound')"
# The position of given rows may be any time: the caller has said it, and no clock.
_CAN_BE_AS_OF = "(as_of <= ? OR spark_location IS NULL)"
# Who has read all: a whole stage, a checkpoint of a stream, a stream that has found nothing new.
_READ_THROUGH = (
    "SELECT (SELECT published_through FROM run WHERE pipeline = ? AND stage_began >= ? AND stage_began <= ?"
    " AND complete = 1 ORDER BY stage_began LIMIT 1) AS stage,"
    f" (SELECT number FROM checkpoint WHERE {_COVERING} AND as_of >= ? AND {_CAN_BE_AS_OF}"
    " ORDER BY as_of LIMIT 1) AS stream,"
    " (SELECT read_through FROM run WHERE pipeline = ? AND read_as_of >= ? AND read_as_of <= ?"
    " AND read_as_of IS NOT NULL ORDER BY read_as_of LIMIT 1) AS idle"
)
_COMPLETE_AROUND = (
    "SELECT (SELECT max(published_through) FROM run WHERE pipeline = ? AND complete = 1 AND published_through <= ?)"
    " AS stage_below, (SELECT min(published_through) FROM run WHERE pipeline = ? AND complete = 1"
    " AND published_through >= ?) AS stage_above,"
    f" (SELECT max(number) FROM checkpoint WHERE {_COVERING} AND number <= ?) AS stream_below,"
    f" (SELECT min(number) FROM checkpoint WHERE {_COVERING} AND number >= ?) AS stream_above"
)
# Numbers grow with the time as of which they have read all, so the highest one knows the latest time. In a stream it
# may be earlier by the length of one slow answer of the log, until the next record.
_READ_AS_OF = (
    "SELECT (SELECT stage_began FROM run WHERE pipeline = ? AND complete = 1 AND published_through <= ?"
    " AND stage_began <= ? ORDER BY published_through DESC, stage_began DESC LIMIT 1) AS stage_as_of,"
    f" (SELECT as_of FROM checkpoint WHERE {_COVERING} AND number <= ? AND {_CAN_BE_AS_OF}"
    " ORDER BY number DESC LIMIT 1) AS stream_as_of,"
    " (SELECT read_as_of FROM run WHERE pipeline = ? AND read_through <= ? AND read_as_of <= ?"
    " AND read_as_of IS NOT NULL ORDER BY read_as_of DESC LIMIT 1) AS idle_as_of"
)
_DELIVERED_WITH = (
    "SELECT delivered_by FROM checkpoint WHERE pipeline = ? AND number <= ? AND is_delivered = 1"
    " ORDER BY number DESC LIMIT 1"
)
_REWOUND = (
    "SELECT number FROM checkpoint WHERE pipeline = ? AND number > ? AND number <= ? AND after_abort = 'rewound'"
    " LIMIT 1"
)
# The time of the last write that is not in the future.
_BEFORE = "COALESCE((SELECT at FROM event WHERE pipeline = ? AND at <= ? ORDER BY id DESC LIMIT 1), 0)"
_CORRECTIONS = (
    f"UPDATE run SET stage_began = {_BEFORE} WHERE pipeline = ? AND stage_began > ? AND complete = 1",
    f"UPDATE run SET read_as_of = {_BEFORE} WHERE pipeline = ? AND read_as_of > ? AND read_as_of IS NOT NULL",
    f"UPDATE checkpoint SET as_of = {_BEFORE} WHERE {_COVERING} AND as_of > ? AND spark_location IS NOT NULL",
)
_CORRECT_RUNNING = (
    f"UPDATE run SET stage_began = {_BEFORE} WHERE pipeline = ? AND stage_began > ?"
    " AND dag_id = ? AND run_id = ? AND map_index = ?"
)


def correct_times(change: Callable[..., int], row: Row, now: int) -> None:
    """Replace the times of a pipeline that are later than this write (I9): the log's clock was ahead.

    Each becomes the time of the last write that is not in the future: the stage began after that write. `row`: of
    `pipeline`; `change`: see `PipelineWrite.change`.
    """
    name = row["name"]
    for correction in _CORRECTIONS:
        change(correction, name, now, name, now)
    change("UPDATE pipeline SET created_at = ? WHERE name = ? AND created_at > ?", now, name, now)
    change(_CORRECT_RUNNING, name, now, name, now, row["turn_dag_id"], row["turn_run_id"], row["turn_map_index"])


class CompletenessOperations:
    """The part of the store that knows how much of the input is in which checkpoint."""

    _database: Database

    def read_through(self, pipeline: str, at: datetime) -> int | None:
        """Return the number up to which everything is published that the sources held at `at`; None: unknown.

        The answer comes from a `complete` stage that began at or after it, from a stream's checkpoint, or from a
        stream that found nothing new since. Rewound numbers do not count.
        """
        time, now = from_time(at), self._database.now()
        [row] = self._database.read(_READ_THROUGH, *(pipeline, time, now) * 3)
        known = [number for number in row.values() if number is not None]
        if not known:
            nothing(self._database, pipeline)
        return min(known, default=None)

    def read_as_of(self, pipeline: str, through: int) -> datetime | None:
        """Return the latest known time at which everything in the sources is in numbers up to `through`.

        None: no such time is known. Rewound numbers do not count.
        """
        [row] = self._database.read(_READ_AS_OF, *(pipeline, through, self._database.now()) * 3)
        known = [time for time in row.values() if time is not None]
        if not known:
            nothing(self._database, pipeline)
        return to_time(max(known)) if known else None

    def delivered_with(self, pipeline: str, number: int) -> int:
        """The number whose plan has delivered the newest delivered one that is at most `number`; 0: there is none."""
        rows = self._database.read(_DELIVERED_WITH, pipeline, number)
        if rows:
            return int(rows[0]["delivered_by"])
        nothing(self._database, pipeline)
        return 0

    def complete_around(self, pipeline: str, number: int) -> tuple[int, int | None]:
        """Return the two complete numbers around `number`. The first is the highest that is at most `number` (0:
        none), the second the lowest that is at least `number`. A number is complete if it is `through` of a complete
        run, or a stream's checkpoint with an `as_of`: then all input of some moment is published.
        """
        [row] = self._database.read(_COMPLETE_AROUND, *(pipeline, number) * 4)
        if all(value is None for value in row.values()):
            nothing(self._database, pipeline)
        below = max(row["stage_below"] or 0, row["stream_below"] or 0)
        above = [value for value in (row["stage_above"], row["stream_above"]) if value is not None]
        return below, min(above, default=None)

    def is_rewound(self, pipeline: str, after: int, through: int) -> bool:
        """Return whether a number above `after`, and at most `through`, was rewound."""
        rows = self._database.read(_REWOUND, pipeline, after, through)
        return bool(rows or nothing(self._database, pipeline))
