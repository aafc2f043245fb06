"""The rows that everything is measured with, with a checksum over whole rows: made by code, and real flights.

The checksum is the sum over all rows of the CRC-32 of the row's text. It is computed here from the Arrow columns, and
for a sink from what is there: a lost, duplicated or changed row, or values that changed places, change it.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tools.demo.data import COLUMNS, values_of
from tools.demo.data import flights as read_flights

if TYPE_CHECKING:
    from airflow_ft.protocol.model import Segment


@dataclass(frozen=True, slots=True)
class Content:
    """What a sink must hold in the end."""

    rows: int
    checksum: int


@dataclass(frozen=True)
class Dataset:
    """Rows to measure with. The first column is the primary key; doubles must be multiples of 2**-20.

    columns: name -> (type in MySQL, type in Spark). key: the column that is the key of a row as a Kafka record.
    make: so many rows of it (at most as many as there are).
    """

    name: str
    columns: Mapping[str, tuple[str, str]]
    key: str
    make: Callable[[int], pa.Table]

    def create_sql(self, table: str, more: str = "") -> str:
        """Creates a table for it; `more`: further columns."""
        columns = ", ".join(f"{name} {kind}" for name, (kind, _) in self.columns.items())
        return f"CREATE TABLE {table} ({columns}, PRIMARY KEY ({next(iter(self.columns))}){more}) CHARACTER SET utf8mb4"

    def content_sql(self, table: str) -> str:
        """How many rows a table has, and their checksum, as the server computes it."""
        texts = (f"CAST({name} * 1048576 AS SIGNED)" if self._is_double(name) else name for name in self.columns)
        row = ", ".join(f"IFNULL({text}, '-')" for text in texts)
        return f"SELECT COUNT(*), COALESCE(SUM(CRC32(CONCAT_WS('|', {row}))), 0) FROM {table}"

    @property
    def spark_schema(self) -> str:
        """Its columns in Spark's DDL."""
        return ", ".join(f"{name} {kind}" for name, (_, kind) in self.columns.items())

    def content(self, table: pa.Table) -> Content:
        """What a sink must hold when just these rows are in it."""
        total = 0
        for batch in table.to_batches(max_chunksize=100_000):
            columns = []
            for name in self.columns:
                column = batch.column(name)
                if self._is_double(name):
                    column = pc.multiply(column, 2.0**20).cast(pa.int64())
                elif pa.types.is_timestamp(column.type):
                    column = column.cast(pa.timestamp("us"))
                columns.append(column)
            total += sum(map(zlib.crc32, _joined(columns).cast(pa.large_binary()).to_pylist()))
        return Content(table.num_rows, total)

    def records(self, table: pa.Table) -> pa.Table:
        """The same rows as Kafka records: a column as the key, and all columns, separated by bars, as the value."""
        value = _joined([table.column(name) for name in table.column_names])
        return pa.table({"key": pc.fill_null(table.column(self.key), "-"), "value": value.cast(pa.string())})

    def _is_double(self, name: str) -> bool:
        return self.columns[name][0] == "DOUBLE"


_WORDS = (
    *("late", "early", "gate", "delayed", "boarding", "München", "Kraków", "Ørsted", "naïve", "coöp", "plain", "a\\b"),
    *("東京", "Москва", "🛫 off", "🛬 on", "👩‍🚀", "it's", 'say "so"', "50 %", "x<y", "café", "ünï", "tab-less"),
)


def orders(count: int, first: int = 0) -> pa.Table:
    """Rows `first` to `first + count`, made by code; the same every time."""
    dice = np.random.default_rng(first)
    ids = np.arange(first, first + count, dtype=np.int64)
    words = pa.array(_WORDS, pa.string())

    def word() -> pa.Array:
        return words.take(pa.array(dice.integers(0, len(_WORDS), count)))

    code = pc.utf8_lpad(pa.array(dice.integers(0, 2**50, count)).cast(pa.string()), 16, "0")
    note = pc.binary_join_element_wise(word(), word(), pa.array(ids).cast(pa.string()), word(), " ")
    moments = 1_577_836_800_000_000 + dice.integers(0, 180_000_000_000_000, count)
    cents = pa.array(dice.integers(-(10**9), 10**9, count)).cast(pa.decimal128(21, 2))
    return pa.table(
        {
            "id": pa.array(ids),
            "code": code,
            "score": pa.array(dice.integers(-(2**43), 2**43, count) / 2**20),
            "at": pa.array(moments).cast(pa.timestamp("us", "UTC")),
            "note": note,
            "flag": pa.array(dice.integers(-128, 128, count).astype("int8")),
            "quantity": pa.array(dice.integers(0, 10**6, count).astype("int32"), mask=ids % 50 == 0),
            "amount": pc.divide(cents, pa.scalar(100, pa.decimal128(3, 0))).cast(pa.decimal128(12, 2)),
        }
    )


def _joined(columns: list[pa.Array]) -> pa.Array:
    large = pa.large_string()
    return pc.binary_join_element_wise(
        *(pc.fill_null(column.cast(large), "-") for column in columns), pa.scalar("|", large)
    )


def flights(count: int) -> pa.Table:
    """The real flights of the demonstration, numbered: 336,776 rows of 20 columns, mostly small numbers."""
    frame = read_flights(count)
    columns = {"id": pa.array(range(len(frame)), pa.int32())}
    for name in COLUMNS:
        columns[name] = pa.array(values_of(frame, name))
        if pa.types.is_integer(columns[name].type):
            columns[name] = columns[name].cast(pa.int32())
    columns["time_hour"] = pc.strptime(columns["time_hour"], "%Y-%m-%dT%H:%M:%SZ", "us").cast(pa.timestamp("us", "UTC"))
    return pa.table(columns)


ORDERS = Dataset(
    "orders",
    {
        "id": ("BIGINT NOT NULL", "bigint"),
        "code": ("VARCHAR(16)", "string"),
        "score": ("DOUBLE", "double"),
        "at": ("DATETIME(6)", "timestamp"),
        "note": ("VARCHAR(60)", "string"),
        "flag": ("TINYINT", "tinyint"),
        "quantity": ("INT", "int"),
        "amount": ("DECIMAL(12,2)", "decimal(12,2)"),
    },
    "code",
    orders,
)
_TEXTS = {"carrier": 2, "tailnum": 8, "origin": 3, "dest": 3}
FLIGHTS = Dataset(
    "flights",
    {
        "id": ("INT NOT NULL", "int"),
        **{name: (f"VARCHAR({_TEXTS[name]})", "string") if name in _TEXTS else ("INT", "int") for name in COLUMNS[:-1]},
        "time_hour": ("DATETIME(6)", "timestamp"),
    },
    "tailnum",
    flights,
)


def records_content(table: pa.Table) -> Content:
    """What a topic must hold when just these records are in it."""
    total = 0
    for batch in table.to_batches(max_chunksize=100_000):
        keys, values = (batch.column(name).cast(pa.binary()).to_pylist() for name in ("key", "value"))
        total += sum(record_checksum(key, value) for key, value in zip(keys, values, strict=True))
    return Content(table.num_rows, total)


def record_checksum(key: bytes | None, value: bytes | None) -> int:
    """Of one record."""
    return zlib.crc32(value or b"", zlib.crc32(key or b""))


def write_parquet(
    table: pa.Table, folder: Path, files: int, row_group_bytes: int = 128 << 20, compression: str = "snappy"
) -> Path:
    """The table as Parquet files, as Spark would have written them."""
    folder.mkdir(parents=True)
    group = max(1, row_group_bytes * max(1, table.num_rows) // max(1, table.nbytes))
    step = -(-table.num_rows // files)
    for index in range(files):
        pq.write_table(
            table.slice(index * step, step),
            folder / f"part-{index:05}.parquet",
            row_group_size=group,
            compression=compression,
            coerce_timestamps="us",
            store_schema=False,
            store_decimal_as_integer=True,
        )
    return folder


def segment(root: Path, pipeline: str, sinks: dict[str, pa.Table], files: int = 2) -> Segment:
    """A published segment of the write-ahead log with these rows, in as many files as two cores of Spark write."""
    from airflow_ft.wal.local import local_path
    from airflow_ft.wal.writer import ROW_GROUP_BYTES, SegmentFolder

    folder = SegmentFolder(str(root), pipeline, 1, 1, 1)
    for name, table in sinks.items():
        write_parquet(table, local_path(folder.sink(name)), files, ROW_GROUP_BYTES, "lz4")
    return folder.seal(1, dict.fromkeys(sinks, True), {})
