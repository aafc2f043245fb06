"""A state as a whole: as a table of Arrow, as a file, as a DataFrame of Spark."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_ft.protocol.errors import ConfigurationError
from airflow_ft.spark.arrow_types import simple_type
from airflow_ft.spark.state.locations import SparkLocation
from airflow_ft.spark.state.operators import Operator
from airflow_ft.state.layout import Entry, Table
from airflow_ft.state.rows import StateColumn, columns_of
from airflow_ft.wal.filesystem import filesystem

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

_ROWS = 50_000
SUFFIXES = (".parquet", ".csv", ".json")


def arrow_table(table: Table, entries: Iterable[Entry]) -> pa.Table:
    """All entries: `key`, `at` where a key has several, and `value`, as structs."""
    import pyarrow as pa

    return pa.Table.from_batches(_batches(table, entries), _schema(table))


def write_file(table: Table, entries: Iterable[Entry], path: Path) -> int:
    """Write all entries into a new file, and rename it into place once it is complete. Returns the number of entries.

    A .parquet file has structs. A .json file has a line for each entry. A .csv file has a column for each column of
    key and value (`key.k`), with JSON for nested values.

    Raises:
        ConfigurationError: the suffix is unknown, or the folder does not exist.
    """
    if path.suffix not in SUFFIXES:
        raise ConfigurationError(
            f"the file name {path.name} does not end in a known format.",
            code="path_invalid",
            remedy=f"Give a file that ends in {', '.join(SUFFIXES)}.",
            path=str(path),
        )
    if not path.parent.is_dir():
        raise ConfigurationError(
            f"there is no folder {path.parent}.",
            code="path_invalid",
            remedy="Create it, or give a file in another folder.",
            path=str(path.parent),
        )
    write = {".parquet": _parquet, ".csv": _csv, ".json": _json}[path.suffix]
    temporary = path.with_name(f".{path.name}.unfinished")
    try:
        rows = write(table, entries, temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return rows


def spark_frame(spark: SparkSession, location: SparkLocation, operator: Operator, state: str | None) -> DataFrame:
    """Spark's own reader of states, at the location's batch."""
    reader = spark.read.format("statestore").option("operatorId", operator.id).option("batchId", location.batch)
    if operator.name.startswith("transformWithState"):
        if state is None:
            raise ConfigurationError(
                f"operator {operator.id} has a state for each of its variables, and `state` is missing.",
                code="argument_missing",
                remedy="Name one of the variables (state=).",
                argument="state",
                operator=operator.id,
            )
        reader = reader.option("stateVarName", state)
    elif state is not None and operator.name == "symmetricHashJoin":
        reader = reader.option("storeName", f"{state}-keyWithIndexToValue")
    frame: DataFrame = reader.load(filesystem(location.uri).hadoop_path(location.uri))
    return frame


def plain(value: Any) -> Any:
    """A value for JSON: times as ISO 8601, decimals, NaN and infinities as text, bytes in Base64."""
    if isinstance(value, Mapping):
        return {name if isinstance(name, str) else str(name): plain(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    if isinstance(value, (datetime, date)):
        return value.isoformat()
    if isinstance(value, Decimal) or (isinstance(value, float) and not math.isfinite(value)):
        return str(value)
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value


def _parquet(table: Table, entries: Iterable[Entry], path: Path) -> int:
    import pyarrow.parquet as pq

    rows = 0
    with pq.ParquetWriter(path, _schema(table)) as writer:
        for batch in _batches(table, entries):
            writer.write_batch(batch)
            rows += batch.num_rows
    return rows


def _json(table: Table, entries: Iterable[Entry], path: Path) -> int:
    rows = 0
    with path.open("w", encoding="utf-8") as file:
        for entry in entries:
            file.write(json.dumps(plain(_row(table, entry)), ensure_ascii=False, allow_nan=False) + "\n")
            rows += 1
    return rows


def _csv(table: Table, entries: Iterable[Entry], path: Path) -> int:
    import csv

    names = [f"{part}.{each.name}" for part, columns in _parts(table) for each in columns]
    rows = 0
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(names)
        for entry in entries:
            found = plain([value for part in _row(table, entry).values() for value in part.values()])
            writer.writerow([json.dumps(each) if isinstance(each, (dict, list)) else each for each in found])
            rows += 1
    return rows


def _row(table: Table, entry: Entry) -> dict[str, Mapping[str, Any]]:
    found = {"key": entry.key, "at": entry.at or {}, "value": entry.value}
    return {part: found[part] for part, _ in _parts(table)}


def _parts(table: Table) -> Sequence[tuple[str, tuple[StateColumn, ...]]]:
    parts = (("key", table.key), ("at", table.at_columns), ("value", table.value_columns))
    return [part for part in parts if part[1]]


def _batches(table: Table, entries: Iterable[Entry]) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    schema, left = _schema(table), iter(entries)
    while rows := [_row(table, entry) for entry in islice(left, _ROWS)]:
        yield pa.RecordBatch.from_pylist(rows, schema)


def _schema(table: Table) -> pa.Schema:
    import pyarrow as pa

    return pa.schema([(part, _struct(columns)) for part, columns in _parts(table)])


def _struct(columns: Sequence[StateColumn]) -> pa.DataType:
    import pyarrow as pa

    return pa.struct([(each.name, _arrow(each.kind)) for each in columns])


def _arrow(kind: Any) -> pa.DataType:
    import pyarrow as pa

    if not isinstance(kind, str):
        if kind["type"] == "struct":
            return _struct(columns_of(kind))
        if kind["type"] == "array":
            return pa.list_(_arrow(kind["elementType"]))
        return pa.map_(_arrow(kind["keyType"]), _arrow(kind["valueType"]))
    if kind == "void":
        return pa.null()
    return simple_type(kind) or pa.string()
