"""Values that a sink holds, to the ends of their ranges, and those that it refuses; and whether two are the same."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from airflow_ft.protocol.sink_spec import SinkSpec

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class Values:
    """A table (topic, folder) with a column of each type that the sink takes, and `id` (64 bits) besides.

    Args:
        sink: into it, over the target's connection.
        columns: what it holds: the least, the greatest and odd values of each type, and NULL where it may be.
        read: all rows that a reader sees, in whatever order, by a client of its own; as `plain` has them.
        seen: how a reader sees a value of a column where it is not what the column holds in Python: decimals as text.
        refused: by name, values of a column which the sink's documentation says it refuses.
    """

    sink: SinkSpec
    columns: Mapping[str, pa.Array]
    read: Callable[[], Sequence[Mapping[str, Any]]]
    seen: Mapping[str, Callable[[Any], Any]] = field(default_factory=dict)
    refused: Mapping[str, tuple[str, pa.Array]] = field(default_factory=dict)

    def table(self) -> pa.Table:
        """Rows with all values; columns that have fewer begin again."""
        import pyarrow as pa

        rows = max(map(len, self.columns.values()))
        again = {name: pa.array([n % len(array) for n in range(rows)]) for name, array in self.columns.items()}
        columns = {name: array.take(again[name]) for name, array in self.columns.items()}
        return pa.table({"id": pa.array(range(rows), pa.int64()), **columns})

    def with_refused(self, column: str, value: pa.Array) -> pa.Table:
        """One row, the first, with this value."""
        table = self.table().slice(0, 1)
        return table.set_column(table.schema.get_field_index(column), column, value)


def plain(table: pa.Table) -> list[dict[str, Any]]:
    """Rows as values of Python; of dates and times that Python does not have, their number since 1970."""
    columns = [[_plain(value) for value in column] for column in table.columns]
    return [dict(zip(table.column_names, row, strict=True)) for row in zip(*columns, strict=True)]


def _plain(value: pa.Scalar) -> Any:
    try:
        return value.as_py()
    except (ValueError, OverflowError):
        return value.value


def same(one: Any, other: Any) -> bool:
    """Return whether two values are identical: of one type; NaN equals itself, and 0.0 is not -0.0. An instant is the
    same in any zone, and the hour that a clock shows twice has two.
    """
    if isinstance(one, datetime) and isinstance(other, datetime) and one.tzinfo and other.tzinfo:
        return one.astimezone(UTC) == other.astimezone(UTC)
    if isinstance(one, float) and isinstance(other, float):
        if math.isnan(one) or math.isnan(other):
            return math.isnan(one) and math.isnan(other)
        return one == other and math.copysign(1, one) == math.copysign(1, other)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    return type(one) is type(other) and bool(one == other)
