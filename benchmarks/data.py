"""The rows that everything is measured with: made by code, eight mixed columns, with a checksum over whole rows.

The checksum is the sum over all rows of the CRC-32 of the row's text. It is computed here from the Arrow columns, and
for a sink from what is there: a lost, doubled or changed row, or values that changed places, change it.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

if TYPE_CHECKING:
    from airflow_ft.core.model import Segment

TABLE = """CREATE TABLE {name} (
    id BIGINT NOT NULL PRIMARY KEY, code VARCHAR(16), score DOUBLE, at DATETIME(6), note VARCHAR(60),
    flag TINYINT, quantity INT, amount DECIMAL(12,2){more}
) CHARACTER SET utf8mb4"""

# What the server computes of a row. A score is a multiple of 2**-20, so that it has an exact integer for a text.
ROW_SQL = "CONCAT_WS('|', id, code, CAST(score * 1048576 AS SIGNED), at, note, flag, IFNULL(quantity, '-'), amount)"
CHECKSUM_SQL = f"SELECT COUNT(*), COALESCE(SUM(CRC32({ROW_SQL})), 0) FROM {{name}}"

SPARK_SCHEMA = (
    "id bigint, code string, score double, at timestamp, note string, flag tinyint, quantity int, amount decimal(12,2)"
)

_WORDS = (
    *("late", "early", "gate", "delayed", "boarding", "München", "Kraków", "Ørsted", "naïve", "coöp", "plain", "a\\b"),
    *("東京", "Москва", "🛫 off", "🛬 on", "👩‍🚀", "it's", 'say "so"', "50 %", "x<y", "café", "ünï", "tab-less"),
)


@dataclass(frozen=True, slots=True)
class Content:
    """What a sink must hold in the end."""

    rows: int
    checksum: int


def rows(count: int, first: int = 0) -> pa.Table:
    """Rows `first` to `first + count`; the same every time."""
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


def content(table: pa.Table) -> Content:
    """What a sink must hold when just these rows are in it."""
    large = pa.large_string()
    total = 0
    for batch in table.to_batches(max_chunksize=100_000):
        columns = {name: batch.column(name) for name in batch.schema.names}
        units = pc.multiply(columns["score"], 2.0**20).cast(pa.int64())
        text = pc.binary_join_element_wise(
            columns["id"].cast(large),
            columns["code"].cast(large),
            units.cast(large),
            columns["at"].cast(pa.timestamp("us")).cast(large),
            columns["note"].cast(large),
            columns["flag"].cast(large),
            pc.fill_null(columns["quantity"].cast(large), "-"),
            columns["amount"].cast(large),
            pa.scalar("|", large),
        )
        total += sum(map(zlib.crc32, text.cast(pa.large_binary()).to_pylist()))
    return Content(table.num_rows, total)


def records(table: pa.Table) -> pa.Table:
    """The same rows as Kafka records: a key of 16 bytes, and a value of about 110 (the columns, separated by bars)."""
    large = pa.string()
    value = pc.binary_join_element_wise(
        *(pc.fill_null(table.column(name).cast(large), "-") for name in table.column_names), pa.scalar("|", large)
    )
    return pa.table({"key": table.column("code"), "value": value})


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


def write_parquet(table: pa.Table, folder: Path, files: int, row_group_bytes: int = 128 << 20) -> Path:
    """The table as Parquet files, as Spark would have written them."""
    folder.mkdir(parents=True)
    group = max(1, row_group_bytes * max(1, table.num_rows) // max(1, table.nbytes))
    step = -(-table.num_rows // files)
    for index in range(files):
        pq.write_table(
            table.slice(index * step, step),
            folder / f"part-{index:05}.parquet",
            row_group_size=group,
            coerce_timestamps="us",
            store_schema=False,
            store_decimal_as_integer=True,
        )
    return folder


def segment(root: Path, pipeline: str, sinks: dict[str, pa.Table], files: int = 2) -> Segment:
    """A published segment of the write-ahead log with these rows, in as many files as two cores of Spark write."""
    from airflow_ft.wal.filesystem import local_path
    from airflow_ft.wal.writer import ROW_GROUP_BYTES, SegmentFolder

    folder = SegmentFolder(str(root), pipeline, 1, 1, 1)
    for name, table in sinks.items():
        write_parquet(table, local_path(folder.sink(name)), files, ROW_GROUP_BYTES)
    return folder.seal(1, dict.fromkeys(sinks, True), {})
