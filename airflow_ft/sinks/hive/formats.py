"""Formats of a table's files: Hive's names for them, values that they do not hold, and how rows are read back.

Values of ORC that are refused, since no reader would see them as they are:

- PyArrow writes an instant before 1970 with a negative fraction of a second. Spark fails to read it.
- PyArrow reads no instant that 64 bits of nanoseconds do not hold.
- Spark moves instants before 1900, unless its JVM runs in UTC.
- Spark takes days before 1582-10-15 for those of the Julian calendar.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.orc as orc
import pyarrow.parquet as pq

from airflow_ft.sinks.arrow import numbers, scalar, with_plain
from airflow_ft.sinks.base.json_columns import has_times, holding
from airflow_ft.sinks.base.table_columns import in_micros

_IO = "org.apache.hadoop.hive.ql.io"
CLASSES = {
    "parquet": (f"{_IO}.parquet.MapredParquet", f"{_IO}.parquet.serde.ParquetHiveSerDe"),
    "orc": (f"{_IO}.orc.Orc", f"{_IO}.orc.OrcSerde"),
}
"""Hive's classes: how the names of a format's input and output begin, and what turns files into rows."""
_BATCH = 10_000
_FIRST_DAY = -141_427  # 1582-10-15, since 1970
_SECOND = 1_000_000  # in microseconds
_FIRST, _LAST = -2_208_988_800 * _SECOND, (2**63 - 1) // 1000  # 1900-01-01, and 2262-04-11 23:47:16.854775

Mask = npt.NDArray[np.bool_]


def format_of(table: Any) -> str:
    """Return the format of a table's files; "": another than the sink writes."""
    storage = table.sd
    classes = ((storage.inputFormat or "").removesuffix("InputFormat"), storage.serdeInfo.serializationLib)
    return next((format for format, each in CLASSES.items() if each == classes), "")


def refused(format: str, rows: pa.RecordBatch, keys: Sequence[str]) -> Mapping[int, str]:
    """Return rows with values that a reader of the files would not see as they are, by position, and why.

    `keys`: columns of partitions, which are not in the files.
    """
    found: dict[int, str] = {}
    if format != "orc":
        return found
    for name, values in zip(rows.schema.names, rows.columns, strict=True):
        if name in keys:
            continue
        for wrong, why in (
            (_early_days, "a date before 1582-10-15, which readers of ORC take for another one"),
            (_odd_times, "a time before 1900, after 2262-04-11, or before 1970 with a fraction of a second, which ORC"
                " of PyArrow does not hold exactly"),
        ):  # fmt: skip
            places = np.flatnonzero(holding(values, has_times, wrong)).tolist()
            found |= dict.fromkeys(places, f"column {name!r}: {why}")
    return found


def batches(format: str, source: Any, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file, with those of the named columns that it has. Names are in lower case."""
    if format == "parquet":
        parquet = pq.ParquetFile(source)
        there = [field for field in parquet.schema_arrow.names if field.lower() in names]
        for batch in parquet.iter_batches(_BATCH, columns=there):
            yield batch.rename_columns([field.lower() for field in batch.schema.names])
        return
    file = orc.ORCFile(source)
    there = [field for field in file.schema.names if field.lower() in names]
    for stripe in range(file.nstripes):
        rows = file.read_stripe(stripe, columns=there or None).select(there)
        for place, column in enumerate(rows.columns):
            sent = column.cast(with_plain(column.type, _as_sent), safe=False)
            rows = rows.set_column(place, there[place].lower(), sent)
        yield rows


def _early_days(values: pa.Array) -> Mask:
    return _filled(values.view(pa.int32())) < _FIRST_DAY if pa.types.is_date32(values.type) else _none_of(values)


def _odd_times(values: pa.Array) -> Mask:
    if not pa.types.is_timestamp(values.type):
        return _none_of(values)
    micros = _filled(values.cast(in_micros(values.type)).view(pa.int64()))
    odd: Mask = (micros < _FIRST) | (micros > _LAST) | ((micros < 0) & (micros % _SECOND != 0))
    return odd


def _none_of(values: pa.Array) -> Mask:
    return np.zeros(len(values), np.bool_)


def _filled(values: pa.Array) -> npt.NDArray[np.int64]:
    return numbers(pc.fill_null(values, scalar(0, values.type)))


def _as_sent(kind: pa.DataType) -> pa.DataType:
    """Return the log's type for a plain one that PyArrow reads from ORC: instants in microseconds.

    Times without a zone, as Spark and Hive write them, are taken for UTC.
    """
    return pa.timestamp("us", "UTC") if pa.types.is_timestamp(kind) else kind
