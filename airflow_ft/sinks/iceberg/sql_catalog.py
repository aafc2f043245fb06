"""A catalog in a SQL database, as pyiceberg loads it by name: only this one needs SQLAlchemy."""

from __future__ import annotations

from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io import FileIO
from pyiceberg.table.metadata import TableMetadata

from airflow_ft.sinks.iceberg.durable import sync


class DurableSqlCatalog(SqlCatalog):
    """A SQL catalog whose database names no metadata that a power cut takes away."""

    @staticmethod
    def _write_metadata(metadata: TableMetadata, io: FileIO, metadata_path: str) -> None:
        SqlCatalog._write_metadata(metadata, io, metadata_path)
        sync([metadata_path])
