"""What the table of a sink is called in lineage."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.datasets import Dataset, folder
from airflow_ft.sinks.sqlite.columns import fold
from airflow_ft.sinks.sqlite.file import SqliteFile


def dataset(settings: Mapping[str, Any], connection: ConnectionInfo) -> Dataset:
    """`sqlite:///data/shop.db`, `orders`: a name of our own, as OpenLineage has none."""
    file = folder(str(SqliteFile.of(connection).path)).uri.replace("file://", "sqlite://", 1)
    return Dataset(file, settings["table"], f"{file}/{settings['table']}")


def place(settings: Mapping[str, Any], connection: ConnectionInfo) -> str:
    """Return one text for one table, however its file and its name are written."""
    return f"{SqliteFile.of(connection).path.resolve()}\n{fold(settings['table'])}"
