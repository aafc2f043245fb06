"""Rows that pyiceberg cannot write into a table, found before it fails at all rows beside them."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from typing import Any
from urllib.parse import quote_plus, urlsplit

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.io.pyarrow import MetricModeTypes, compute_statistics_plan
from pyiceberg.partitioning import PartitionField
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.transforms import IdentityTransform, TruncateTransform
from pyiceberg.types import BinaryType, DecimalType, FixedType, IntegerType, LongType, StringType

from airflow_ft.sinks.arrow import positions, scalar

_NAME_BYTES = 255
"""Bytes that a file system allows for a folder's name."""
_LAST = "\ud7ff"
"""The last character before the surrogates. pyiceberg makes an upper bound of the character behind it."""
_END = "\U0010ffff"
_IN_FOLDERS = ("", "file", "hdfs", "viewfs")


def texts(metadata: TableMetadata) -> dict[str, int]:
    """Return the columns of text that have bounds in a commit, with the characters that a bound has."""
    plan = compute_statistics_plan(metadata.schema(), metadata.properties)
    return {
        each.column_name: each.mode.length or 0
        for each in plan.values()
        if isinstance(each.iceberg_type, StringType) and each.mode.type is MetricModeTypes.TRUNCATE
    }


def bounded(footer: pq.FileMetaData, columns: dict[str, int]) -> bool:
    """Return whether pyiceberg finds an upper bound of each of these columns of a file."""
    for group in map(footer.row_group, range(footer.num_row_groups)):
        for column in map(group.column, range(group.num_columns)):
            length, known = columns.get(column.path_in_schema), column.statistics
            if length is not None and known is not None and known.has_min_max:
                text = known.max.decode(errors="replace") if isinstance(known.max, bytes) else str(known.max)
                if _unbounded(text, length):
                    return False
    return True


def _unbounded(text: str, length: int) -> bool:
    return len(text) > length and text[:length].rstrip(_END).endswith(_LAST)


def refused(metadata: TableMetadata, rows: pa.RecordBatch) -> dict[int, str]:
    """Return the rows that cannot be written, by their place, and why."""
    found: dict[int, str] = {}
    for name, length in texts(metadata).items():
        if name in rows.schema.names:
            why = f"column {name!r}: the first {length} characters end with U+D7FF, and have no upper bound"
            column = rows.column(name)
            suspects = positions(pc.match_substring(column, _LAST)) if _may_hold_last(column) else ()
            found |= {row: why for row in suspects if _unbounded(column[row].as_py(), length)}
    for field in metadata.spec().fields:
        name = str(metadata.schema().find_column_name(field.source_id))
        if name in rows.schema.names and isinstance(field.transform, IdentityTransform | TruncateTransform):
            column, kind = rows.column(name), metadata.schema().find_type(field.source_id)
            if isinstance(kind, StringType | BinaryType | FixedType):
                if urlsplit(metadata.location).scheme in _IN_FOLDERS:
                    why = f"column {name!r}: the name of its partition's folder is longer than {_NAME_BYTES} bytes"
                    found |= dict.fromkeys(_too_long(column, field, kind), why)
            elif isinstance(field.transform, TruncateTransform):
                why = f"column {name!r}: {field.transform} of it is less than the type has"
                found |= dict.fromkeys(_too_small(column, kind, field.transform.width), why)
    return found


def _may_hold_last(column: pa.Array) -> bool:
    """Return False if no byte of the texts is that character's first. To search for that byte takes little time."""
    data = column.buffers()[-1]
    return data is not None and bool((np.frombuffer(data, np.uint8) == _LAST.encode()[0]).any())


def _too_long(column: pa.Array, field: PartitionField, kind: Any) -> Iterator[int]:
    transform, result = field.transform.transform(kind), field.transform.result_type(kind)
    room = _NAME_BYTES - 1 - len(quote_plus(field.name, safe=""))
    lengths = pc.binary_length(column)
    for row in positions(pc.greater(lengths, scalar(room // 4, lengths.type))):  # what needs a look at all
        value = field.transform.to_human_string(result, transform(column[row].as_py()))
        if len(quote_plus(value, safe="")) > room:
            yield row


def _too_small(column: pa.Array, kind: Any, width: int) -> list[int]:
    if isinstance(kind, DecimalType):
        least = 1 - 10**kind.precision
    else:
        assert isinstance(kind, IntegerType | LongType)
        least = kind.min
    smallest = -(-least // width * width)
    value = f"{Decimal(f'{smallest}e{-kind.scale}'):f}" if isinstance(kind, DecimalType) else smallest
    return positions(pc.less(column, scalar(value, column.type)))
