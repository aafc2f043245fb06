"""Bounds and counts that a commit gives of a file. Readers skip files by them, and a DELETE removes whole files."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.io.pyarrow import parquet_path_to_id_mapping
from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema, sanitize_column_names
from pyiceberg.types import DoubleType, FloatType


def keep_certain(file: DataFile, footer: pq.FileMetaData, schema: Schema, without_nan: Collection[str]) -> None:
    """Remove counts and bounds that do not hold for all rows of a file.

    pyiceberg ignores row groups whose statistics lack them, as PyArrow's do for a text above 4 KB. It counts no NaN
    either, and bounds leave NaN out. `without_nan` names the columns that have none.
    """
    ids = parquet_path_to_id_mapping(sanitize_column_names(schema)) | parquet_path_to_id_mapping(schema)
    certain = {field.field_id for field in schema.fields if field.name in without_nan}
    for field_id in set(ids.values()) - certain:
        if isinstance(schema.find_type(field_id), FloatType | DoubleType):
            _remove(field_id, file.lower_bounds, file.upper_bounds)
    for group in map(footer.row_group, range(footer.num_row_groups)):
        for chunk in map(group.column, range(group.num_columns)):
            field_id, known = ids[chunk.path_in_schema], chunk.statistics
            nulls = known.null_count if known is not None and known.has_null_count else None
            if nulls is None:
                _remove(field_id, file.null_value_counts)
            if nulls != chunk.num_values and not (known is not None and known.has_min_max):
                _remove(field_id, file.lower_bounds, file.upper_bounds)


def columns_without_nan(rows: pa.Table) -> list[str]:
    """Return the names of the columns that have no NaN."""
    return [name for name, column in zip(rows.schema.names, rows.columns, strict=True) if not _has_nan(column)]


def _has_nan(column: pa.ChunkedArray) -> bool:
    floats = pa.types.is_floating(column.type)
    return floats and any(pc.is_nan(chunk).true_count for chunk in column.chunks)


def _remove(field_id: int, *parts: dict[int, Any]) -> None:
    for part in parts:
        part.pop(field_id, None)
