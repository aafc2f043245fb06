"""A catalog in a SQL database, as pyiceberg loads it by name: only this one needs SQLAlchemy."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

from pyiceberg.catalog.sql import IcebergTables, SqlCatalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.io import FileIO
from pyiceberg.table import StagedTable, Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update import AddSnapshotUpdate, TableRequirement, TableUpdate
from pyiceberg.typedef import Identifier, Properties
from pyiceberg.types import strtobool
from sqlalchemy import inspect, make_url

from airflow_ft.sinks.base.places import require_file
from airflow_ft.sinks.iceberg.durable import sync

INIT = "init_catalog_tables"
"""pyiceberg's property: false makes no tables in a database that has none."""


_DRIVERS = ("psycopg2", "psycopg")
_LIMITS = {"connect_timeout": "5", "options": "-c lock_timeout=60s -c idle_in_transaction_session_timeout=60s"}
"""Of PostgreSQL: a process that is frozen in a commit holds a lock, for which its successor would wait forever."""


def bounded(uri: str) -> str:
    """Return the URI of a database with limits for waiting, unless it names its own."""
    url = make_url(uri)
    if url.get_backend_name() != "postgresql" or url.get_driver_name() not in _DRIVERS:
        return uri
    missing = {name: value for name, value in _LIMITS.items() if name not in url.query}
    return url.update_query_dict(missing).render_as_string(hide_password=False)


class DurableSqlCatalog(SqlCatalog):
    """A SQL catalog whose database names no metadata that a power cut takes away."""

    def __init__(self, name: str, **properties: str) -> None:
        super().__init__(name, **{**properties, "uri": bounded(properties["uri"])})

    @cached_property
    def file(self) -> Path | None:
        """Return the file of the database; None: it has a server, or is in memory."""
        url = self.engine.url
        in_file = url.get_backend_name() == "sqlite" and url.database and not url.database.startswith((":", "file:"))
        return Path(str(url.database)) if in_file else None

    def _init_catalog(self) -> None:
        if self.file is not None and not self.file.exists():
            require_file(self.file)
        if self._creates or self._is_there():
            super()._init_catalog()
        else:
            self._schema_version = "v1"

    @property
    def _creates(self) -> bool:
        return bool(strtobool(self.properties.get(INIT, "true")))

    def _is_there(self) -> bool:
        """Return whether the database has the catalog's tables. A look must not create a missing SQLite file."""
        return (self.file is None or self.file.exists()) and inspect(self.engine).has_table(IcebergTables.__tablename__)

    def load_table(self, identifier: str | Identifier) -> Table:
        """The table. NoSuchTableError: also if there is no catalog, and none is made."""
        if not self._creates and not self._is_there():
            raise NoSuchTableError(f"there is no catalog for {identifier}")
        return super().load_table(identifier)

    def load_namespace_properties(self, namespace: str | Identifier) -> Properties:
        """Return the properties; {} for a namespace that the first commit creates."""
        if not self._creates and not (self._is_there() and self.namespace_exists(namespace)):
            return {}
        return super().load_namespace_properties(namespace)

    def _update_and_stage_table(
        self,
        current_table: Table | None,
        table_identifier: Identifier,
        requirements: tuple[TableRequirement, ...],
        updates: tuple[TableUpdate, ...],
    ) -> StagedTable:
        """Give the next version no time before the current one: Iceberg's Java readers refuse a table that has it.

        Writers on machines whose clocks differ would make such a table, since pyiceberg compares no times.
        """
        newest = current_table.metadata.last_updated_ms if current_table is not None else 0
        stamped = tuple(_stamped_after(newest, each) for each in updates)
        staged = super()._update_and_stage_table(current_table, table_identifier, requirements, stamped)
        if staged.metadata.last_updated_ms < newest:  # no snapshot was added
            staged.metadata = staged.metadata.model_copy(update={"last_updated_ms": newest})
        return staged

    @staticmethod
    def _write_metadata(metadata: TableMetadata, io: FileIO, metadata_path: str) -> None:
        SqlCatalog._write_metadata(metadata, io, metadata_path)
        sync([metadata_path])


def _stamped_after(newest: int, update: TableUpdate) -> TableUpdate:
    """Return an update whose snapshot is later than `newest`; pyiceberg replaces an equal time by the current one."""
    if not isinstance(update, AddSnapshotUpdate) or update.snapshot.timestamp_ms > newest:
        return update
    return update.model_copy(update={"snapshot": update.snapshot.model_copy(update={"timestamp_ms": newest + 1})})
