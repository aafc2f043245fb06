"""Tables of a target besides its own: for equal rows, and for rows that go by key."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from airflow_ft.protocol.sink_spec import SinkSpec

Row = tuple[int | None, str | None, str | None]


@dataclass(frozen=True)
class Bag:
    """A table (topic, folder) that takes equal rows, and NULL in each column.

    Args:
        sink: what a DAG author would write for it. Its table has the columns `id` (64-bit integer), `text` and `note`
            (text), or the sink creates it from the first rows.
        read: returns all rows that a reader sees as (id, text, note), in any order, by a client of its own.
    """

    sink: SinkSpec
    read: Callable[[], Sequence[Row]]


@dataclass(frozen=True)
class Upserts:
    """A table with a key, into which rows go by key.

    Args:
        sink: what a DAG author would write for it: `id` is the key, `op` names the kind of change ("insert", "update"
            or "delete"). The other column of the rows is `text`.
        read: returns the text of each id that a reader sees, by a client of its own. None: the text is NULL.
        write: writes a row of this id, text and number of a checkpoint, as a later checkpoint would. None: rows do
            not carry a number.
    """

    sink: SinkSpec
    read: Callable[[], Mapping[int, str | None]]
    write: Callable[[int, str, int], None] | None = None


@dataclass(frozen=True)
class Pairs:
    """A table whose key has two columns, into which rows go by key.

    Args:
        sink: what a DAG author would write for it: `id` and `part` (a text) are the key. The other column is `text`.
        read: returns the text of each (id, part) that a reader sees, by a client of its own.
    """

    sink: SinkSpec
    read: Callable[[], Mapping[tuple[int, str], str | None]]
