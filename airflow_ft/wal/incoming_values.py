"""Values of other programs, in types of the log: each is exact, or refused."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from airflow_ft.protocol.errors import ExternalRowsError
from airflow_ft.wal.arrow_types import with_plain_dictionaries

if TYPE_CHECKING:
    import pyarrow as pa

_SPARK = b"org.apache.spark."
_FIRST_DAY = -141_427  # 1582-10-15, the first day of the Gregorian calendar
_FIRST_TIME = -2_208_988_800_000_000  # 1900-01-01. Before it, some time zone has another offset in the old calendar.


def cast(batch: pa.RecordBatch, schema: pa.Schema, file: str = "") -> pa.RecordBatch:
    """Return the rows with the schema of the log. ExternalRowsError for a value that would change."""
    import pyarrow as pa

    columns = [_as(batch.column(index), field, file) for index, field in enumerate(schema)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _as(values: pa.Array, field: pa.Field, file: str) -> Any:
    import pyarrow as pa

    try:
        if pa.types.is_nested(values.type):
            values = pa.concat_arrays([values])  # a slice has all values of the whole, and each would be validated
        if values.type != field.type:
            values = values.cast(with_plain_dictionaries(values.type)).cast(field.type)
        values.validate(full=True)  # digits of decimals, and UTF-8
    except pa.ArrowException as error:
        raise ExternalRowsError(
            f"a value of type {values.type} does not fit into {field.type}: {str(error).splitlines()[0].rstrip('.')}.",
            code="value_not_exact",
            column=field.name,
            remedy=f"Correct, round or cast column {field.name} in your program. The log keeps times to the"
            " microsecond.",
            file=file,
        ) from error
    return values


def in_old_calendar(
    metadata: Mapping[bytes, bytes] | None, names: Iterable[str], int96: Collection[str]
) -> frozenset[str]:
    """Return which columns of a Parquet file have days and times in the calendar that Spark used before version 3.

    Spark converts them when it reads the file, and Arrow does not. The rule is Spark's own
    (`DataSourceUtils.datetimeRebaseSpec`, `int96RebaseSpec`). `int96`: the columns of this Parquet type.
    """
    marks = metadata or {}
    found = re.match(rb"(\d+)\.(\d+)", marks.get(_SPARK + b"version", b""))
    version = (int(found[1]), int(found[2])) if found else None
    old = _SPARK + b"legacyDateTime" in marks or (version is not None and version < (3, 0))
    old_int96 = _SPARK + b"legacyINT96" in marks or (version is not None and version < (3, 1))
    return frozenset(name for name in names if (old_int96 if name in int96 else old))


def refuse_old_days(batch: pa.RecordBatch, columns: Collection[str], file: str) -> None:
    """Raise ExternalRowsError for days and times that are others in the old calendar, in these columns."""
    for name in columns:
        for leaf in _leaves(batch.column(name)):
            _refuse_old(leaf, name, file)


def _leaves(values: pa.Array) -> Iterator[pa.Array]:
    """Yield the values in lists, maps and structs. No array is a slice of another one: see `_as`."""
    import pyarrow.types as t

    if t.is_map(values.type):
        parts = [values.keys, values.items]
    elif t.is_list(values.type):
        parts = [values.values]
    elif t.is_struct(values.type):
        parts = values.flatten()
    else:
        yield values
        return
    for part in parts:
        yield from _leaves(part)


def _refuse_old(values: pa.Array, column: str, file: str) -> None:
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_date(values.type):
        first, earliest = _FIRST_DAY, pc.min(values.cast(pa.int32())).as_py()
    elif pa.types.is_timestamp(values.type) and values.type.tz:
        first, earliest = _FIRST_TIME, pc.min(values.cast(pa.int64())).as_py()
    else:
        return
    if earliest is not None and earliest < first:
        raise ExternalRowsError(
            f"a value of type {values.type} is in the calendar that Spark used before version 3.",
            code="value_not_exact",
            column=column,
            remedy="Read the files with Spark, which converts such values, and give its DataFrame:"
            " spark.read.parquet(...). In a DAG write them again with Spark 4: spark.read.parquet(a).write.parquet(b).",
            file=file,
        )
