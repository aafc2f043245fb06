"""A table that is not there yet, in a SQL or a REST catalog, and its reader by pyiceberg."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO
from pyiceberg.table import Table as IcebergTable

from airflow_ft import IcebergSink
from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.sinks.iceberg.connection import properties
from airflow_ft.testing.world import Target
from tools.servers import IcebergRest

CALLS = (
    (SqlCatalog, "load_table"),
    (SqlCatalog, "create_table"),
    (SqlCatalog, "commit_table"),
    (PyArrowFile, "create"),
    (PyArrowFileIO, "delete"),
)


def around_calls(reached: Callable[[], None]) -> None:
    """The kit's way to the client: before each call of the catalog that changes or reads it, and each file."""
    for owner, name in CALLS:
        call = getattr(owner, name)

        def around(*of: Any, _call: Any = call, **more: Any) -> Any:
            reached()
            return _call(*of, **more)

        setattr(owner, name, around)


class Table(Target):
    """Read by pyiceberg."""

    calls = "tests.sinks.iceberg.world:around_calls"
    texts = 16

    def __init__(self, connection: ConnectionInfo, space: str = "shop", **settings: Any) -> None:
        self.space, self.connection = space, connection
        self.sink: IcebergSink = IcebergSink(table=f"lake.{space}.orders", **{"name": "orders", **settings})

    def fresh(self) -> Table:
        """One that is made."""
        other = copy(self)
        other.sink = replace(self.sink, table=f"lake.{self.space}.orders_{uuid.uuid4().hex[:8]}")
        return other

    def catalog(self) -> Catalog:
        """A client of its own."""
        return load_catalog("lake", **properties(self.connection))

    @contextmanager
    def opened(self, name: str = "") -> Iterator[IcebergTable | None]:
        with closing(self.catalog()) as catalog:
            identifier = (self.space, name) if name else self.sink.identifier
            yield catalog.load_table(identifier) if catalog.table_exists(identifier) else None

    def read(self, name: str = "") -> pa.Table:
        with self.opened(name) as table:
            return pa.table({}) if table is None else table.scan().to_arrow()

    def ids(self) -> list[int]:
        found = self.read()
        return sorted(found["id"].to_pylist()) if "id" in found.column_names else []

    @contextmanager
    def failing(self, at: int, below: str) -> Iterator[tuple[ConnectionInfo, Callable[[], bool]] | None]:
        """Call `at` of this thread raises, without an effect."""
        if self.connection.port:
            yield None
            return
        seen, failed, thread = 0, False, threading.get_ident()

        def reached() -> None:
            nonlocal seen, failed
            if threading.get_ident() == thread:
                mine, seen = seen, seen + 1
                if mine == at:
                    failed = True
                    raise OSError("a test")

        calls = {(owner, name): getattr(owner, name) for owner, name in CALLS}
        around_calls(reached)
        try:
            yield self.connection, lambda: failed
        finally:
            for (owner, name), call in calls.items():
                setattr(owner, name, call)


def in_file(folder: Path) -> ConnectionInfo:
    """Return a connection to a catalog in a file of SQLite."""
    extra = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db?timeout=60", "warehouse": f"file://{folder}/lake"}
    return ConnectionInfo("lake", "iceberg", extra=extra)


def of_server(server: IcebergRest) -> ConnectionInfo:
    """Return a connection to a REST catalog."""
    return ConnectionInfo("lake", "iceberg", host=f"http://{server.host}", port=server.port)
