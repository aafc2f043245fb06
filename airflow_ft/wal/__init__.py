"""The write-ahead log: the rows of every published checkpoint, in Parquet, under a manifest with checksums.

    <root>/<pipeline>/<epoch>-<attempt>/<batch>/manifest.json
                                                <sink>/part-00000-....parquet
    <root>/<pipeline>/spark/<epoch>-<attempt>/        Spark's own checkpoint location
    <root>/<pipeline>/dead-letter/<number>/<sink>/    what a person has set aside; never deleted here

The folder of a segment belongs to one attempt: no other process ever writes there (I1, I5). Nothing here is
imported by a DAG; the modules that need pyarrow import it themselves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow_ft.wal.reader import ParquetWal


def open_wal() -> ParquetWal:
    """The reader of published segments (`airflow_ft.protocol.write_ahead_log.WalReader`); it holds nothing open."""
    from airflow_ft.wal.reader import ParquetWal

    return ParquetWal()
