"""Column statistics of Arrow data, batch by batch, and the text form of their values.

They are taken of the very files that are sealed, so they hold for what will be delivered. (Spark can observe a frame
while it writes it, but evaluates such expressions one by one, without compiling them: that cost more than the files.)
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from airflow_ft.protocol.write_ahead_log import ColumnStatistics

_EPOCH = dt.datetime(1970, 1, 1)  # noqa: DTZ001 - the naive epoch: values without a zone are counted from it


def instant_text(microseconds: int, *, utc: bool) -> str:
    """A timestamp as `str(datetime)`, with `+00:00` when it is an instant (`utc`).

    Years that Python's datetime lacks (below 1, above 9999) are written in ISO form with all their digits.
    """
    try:
        value = _EPOCH + dt.timedelta(microseconds=microseconds)
    except OverflowError:
        import numpy as np

        return str(np.datetime64(microseconds, "us")).replace("T", " ") + ("+00:00" if utc else "")
    return str(value.replace(tzinfo=dt.UTC) if utc else value)


def date_text(days: int) -> str:
    """A date (days since 1970-01-01) as `str(date)`; see `instant_text` for other years."""
    try:
        return str((_EPOCH + dt.timedelta(days=days)).date())
    except OverflowError:
        import numpy as np

        return str(np.datetime64(days, "D"))  # as microseconds it might be too many for 64 bits


def is_ordered(kind: pa.DataType) -> bool:
    """Return whether minimum and maximum are kept: for numbers, booleans, dates, times. Text would copy user data.

    Durations have no bounds either, because no sink takes them.
    """
    return bool(
        pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_decimal(kind)
        or pa.types.is_boolean(kind)
        or (pa.types.is_temporal(kind) and not pa.types.is_duration(kind) and not pa.types.is_interval(kind))
    )


def is_text(kind: pa.DataType) -> bool:
    """Return whether the values are text."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def is_bytes(kind: pa.DataType) -> bool:
    """Return whether the values are bytes of any length."""
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


class Statistics:
    """The statistics of rows with one schema, which come in batches; of several threads, by `merge`."""

    def __init__(self, schema: pa.Schema) -> None:
        self._columns = {item.name: _Column(item.type) for item in schema}

    def add(self, batch: pa.RecordBatch) -> None:
        """Takes in a batch with these columns; text and bytes may be dictionary-encoded."""
        for index, column in enumerate(self._columns.values()):
            column.add(batch.column(index))

    def merge(self, other: Statistics) -> None:
        """Takes in what another one has gathered, of the same schema."""
        for name, column in self._columns.items():
            column.merge(other._columns[name])

    def malformed(self) -> dict[str, int]:
        """Return the number of values with invalid UTF-8 by column, however deep; omits columns without any."""
        return {name: column.malformed for name, column in self._columns.items() if column.malformed}

    def columns(self) -> dict[str, ColumnStatistics]:
        """Return what was gathered, by column."""
        return {name: column.result() for name, column in self._columns.items()}


@dataclass(slots=True)
class _Column:
    """Statistics of one column. Bounds are comparable Python values: see `_value`."""

    kind: pa.DataType
    nulls: int = 0
    nans: int = 0
    infinities: int = 0
    malformed: int = 0
    characters: int | None = None
    size: int | None = None
    bounds: tuple[Any, Any] | None = None
    _holds_text: bool = field(init=False)

    def __post_init__(self) -> None:
        self._holds_text = _holds_text(self.kind)

    def add(self, values: pa.Array) -> None:
        self.nulls += values.null_count
        counts = None
        if pa.types.is_dictionary(values.type):  # each value once: a long one that repeats costs nothing
            counts = pc.value_counts(values.indices.drop_null())
            values = values.dictionary.take(counts.field("values"))
        if self._holds_text:
            self.malformed += _malformed(values, counts)
        if pa.types.is_floating(self.kind):
            self.infinities += pc.sum(pc.is_inf(values)).as_py() or 0
            if nans := pc.sum(pc.is_nan(values)).as_py() or 0:
                self.nans += nans
                values = pc.filter(values, pc.invert(pc.is_nan(values)))
        if is_ordered(self.kind):
            self._widen(_bounds(values, self.kind))
        if is_text(self.kind):
            self.characters = _larger(self.characters, pc.max(pc.utf8_length(values)).as_py())
        if is_text(self.kind) or is_bytes(self.kind):
            self.size = _larger(self.size, pc.max(pc.binary_length(values)).as_py())

    def merge(self, other: _Column) -> None:
        self.nulls += other.nulls
        self.nans += other.nans
        self.infinities += other.infinities
        self.malformed += other.malformed
        self.characters = _larger(self.characters, other.characters)
        self.size = _larger(self.size, other.size)
        self._widen(other.bounds)

    def _widen(self, bounds: tuple[Any, Any] | None) -> None:
        if bounds is not None and self.bounds is not None:
            bounds = (min(self.bounds[0], bounds[0]), max(self.bounds[1], bounds[1]))
        self.bounds = bounds or self.bounds

    def result(self) -> ColumnStatistics:
        minimum, maximum = (None, None) if self.bounds is None else (_text(value, self.kind) for value in self.bounds)
        return ColumnStatistics(
            nulls=self.nulls,
            minimum=minimum,
            maximum=maximum,
            max_characters=self.characters,
            max_bytes=self.size,
            nans=self.nans,
            infinities=self.infinities,
        )


def _bounds(values: pa.Array, kind: pa.DataType) -> tuple[Any, Any] | None:
    if pa.types.is_boolean(kind):
        values = values.cast(pa.int8())
    found = pc.min_max(values)
    return (_value(found["min"]), _value(found["max"])) if found["min"].is_valid else None


def _value(scalar: pa.Scalar) -> Any:
    """Return what can be compared, also where Python has no such date: microseconds or days for moments and dates."""
    if pa.types.is_timestamp(scalar.type):
        return scalar.cast(pa.timestamp("us", scalar.type.tz)).value
    return scalar.value if pa.types.is_date32(scalar.type) else scalar.as_py()


def _text(value: Any, kind: pa.DataType) -> str:
    if pa.types.is_timestamp(kind):
        return instant_text(value, utc=kind.tz is not None)
    if pa.types.is_date32(kind):
        return date_text(value)
    return str(bool(value)) if pa.types.is_boolean(kind) else str(value)


def _larger(one: int | None, other: int | None) -> int | None:
    return other if one is None else one if other is None else max(one, other)


def _holds_text(kind: pa.DataType) -> bool:
    if pa.types.is_map(kind):
        return _holds_text(kind.key_type) or _holds_text(kind.item_type)
    if pa.types.is_struct(kind):
        return any(_holds_text(kind.field(index).type) for index in range(kind.num_fields))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _holds_text(kind.value_type)
    return is_text(kind)


def _malformed(values: pa.Array, counts: pa.StructArray | None) -> int:
    """Return how many values hold text that is not UTF-8; `counts` says how often each of them occurs."""
    if _is_valid(values):
        return 0
    # Not a slice, which is judged by all that lies beneath the whole.
    bad = [index for index in range(len(values)) if not _is_valid(values.take(pa.array([index])))]
    return len(bad) if counts is None else sum(counts.field("counts")[index].as_py() for index in bad)


def _is_valid(values: pa.Array) -> bool:
    try:
        values.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True
