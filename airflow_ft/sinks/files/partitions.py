"""Rows by the values of partition columns: the folders that Hive, and so Spark, would put them into."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any
from urllib.parse import unquote

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from airflow_ft.protocol.errors import AirflowFtError
from airflow_ft.sinks.arrow import beyond, indices, numbers, positions, scalar, texts
from airflow_ft.sinks.base.changes import missing_in_rows
from airflow_ft.sinks.base.table_columns import declined

NULL = "__HIVE_DEFAULT_PARTITION__"
_LONGEST = 255  # bytes of a name
_ESCAPED = frozenset("\"#%'*/:=?\\{[]^\x7f" + "".join(map(chr, range(1, 32))))  # org.apache.hadoop.hive FileUtils


def escaped(text: str) -> str:
    """Escape a partition's name or value as Hive does."""
    return "".join(f"%{ord(c):02X}" if c in _ESCAPED else c for c in text)


def can_partition(kind: pa.DataType) -> bool:
    """Return whether values of this type have a text that reads back as the same."""
    types = pa.types
    return bool(
        types.is_string(kind) or types.is_large_string(kind) or types.is_integer(kind) or types.is_boolean(kind)
        or types.is_date32(kind)
    )  # fmt: skip


def problems(
    schema: pa.Schema, by: Sequence[str], missing: Sequence[str], sink: str, *, in_files: bool = False
) -> Iterator[AirflowFtError]:
    """Yield why rows cannot be partitioned `by` these columns, of which they lack `missing`.

    `in_files`: files have the columns, too, so no other column is needed.
    """
    kinds = {field.name.lower(): field.type for field in schema}
    for one in dict.fromkeys((*by, *missing)):
        if one in missing:
            yield missing_in_rows(one, "partition_by", schema.names).located(sink=sink)
        elif one.lower() in kinds and not can_partition(kinds[one.lower()]):
            remedy = "Partition by columns of text, whole numbers, booleans or dates."
            what = f"a column of type {kinds[one.lower()]} cannot be a partition column."
            yield declined(what, "partition_unfit", remedy, sink, one)
    if not in_files and set(kinds) <= set(map(str.lower, by)):
        what = "all columns are partition columns, so no column is left for the files."
        yield declined(what, "partition_unfit", "Set partition_by= to fewer columns.", sink)


def values_of(place: str, by: Sequence[str]) -> dict[str, str | None]:
    """Return the values that the folders of a partition are named by."""
    values = (part.partition("=")[2] for part in place.split("/")) if by else ()
    return {name: None if it == NULL else unquote(it) for name, it in zip(by, values, strict=True)}


def refused(rows: pa.RecordBatch, columns: Sequence[str], longest: int = 0) -> Mapping[int, str]:
    """Rows whose values can name no folder, by position, and why.

    `longest`: how many bytes the folders of all columns may have together (0: any).
    """
    found: dict[int, str] = _too_long(rows, columns, longest) if longest else {}
    for name in columns:
        far = f"column {name!r}: a date outside of the years 1 to 9999, which readers of folders cannot read"
        found |= dict.fromkeys(beyond(rows.column(name)), far)
        if len(f"{escaped(name)}={NULL}".encode()) > _LONGEST:
            why = f"column {name!r}: the name of its folder would be longer than {_LONGEST} bytes"
            found |= dict.fromkeys(positions(rows.column(name).is_null()), why)
        for value, why in _unfit(rows.column(name), name):
            same = pc.equal(_text(rows.column(name)), scalar(value, pa.large_string()))
            found |= dict.fromkeys(positions(same), why)
    return found


def _too_long(rows: pa.RecordBatch, columns: Sequence[str], longest: int) -> dict[int, str]:
    """Rows whose folders, one in the other, make a path that the file system does not take."""
    if not columns or not rows.num_rows:
        return {}
    wrong = pc.greater(pc.binary_length(_joined(rows, columns)), scalar(longest, pa.int64()))
    why = f"columns {', '.join(columns)}: the path of its folders would be too long (more than {longest} bytes)"
    return dict.fromkeys(positions(wrong), why)


def _joined(rows: pa.RecordBatch, columns: Sequence[str]) -> pa.Array:
    """The folders of each row, one in the other."""
    return pc.binary_join_element_wise(
        *(_folders(rows.column(name), name) for name in columns), scalar("/", pa.large_string())
    )


def split(rows: pa.RecordBatch, columns: Sequence[str]) -> Iterator[tuple[str, pa.RecordBatch]]:
    """The rows of each folder, in their order, without the columns that name it."""
    if not columns:
        yield "", rows
        return
    folders = _joined(rows, columns).dictionary_encode()
    rest = rows.drop_columns(list(columns))
    which = numbers(folders.indices)
    for mine in groups(which):
        yield folders.dictionary[int(which[mine[0]])].as_py(), rest.take(indices(mine))


def groups(which: npt.NDArray[Any]) -> Iterator[npt.NDArray[np.int64]]:
    """Yield the positions of each distinct number, by ascending number. Positions ascend, too."""
    order = np.argsort(which, kind="stable")
    ends = [0, *(np.flatnonzero(np.diff(which[order])) + 1).tolist(), len(order)]
    for start, end in pairwise(ends):
        if start < end:
            yield order[start:end]


def _text(column: pa.Array) -> pa.Array:
    return column.cast(pa.large_string())


def _folders(column: pa.Array, name: str) -> pa.Array:
    encoded = _text(column).dictionary_encode()
    values = [f"{escaped(name)}={escaped(value)}" for value in encoded.dictionary.to_pylist()]
    folders = texts(values).take(encoded.indices)
    return pc.fill_null(folders, scalar(f"{escaped(name)}={NULL}", pa.large_string()))


def _unfit(column: pa.Array, name: str) -> Iterator[tuple[str, str]]:
    for value in pc.unique(_text(column).drop_null()).to_pylist():
        if value in ("", NULL):
            yield value, f"column {name!r}: {value!r} would be read as NULL in the name of a folder"
        elif "\0" in value:
            yield value, f"column {name!r}: no folder can have a NUL in its name"
        elif len(f"{escaped(name)}={escaped(value)}".encode()) > _LONGEST:
            yield value, f"column {name!r}: the name of its folder would be longer than {_LONGEST} bytes"
