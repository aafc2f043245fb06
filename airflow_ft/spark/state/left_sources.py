"""Positions of sources that the job no longer reads, kept in the location in case it does again."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, unquote

from airflow_ft.spark.state.location_files import keep, note
from airflow_ft.spark.state.locations import LEFT, SparkLocation
from airflow_ft.wal.filesystem import filesystem

OPENED_BY_JOB = re.compile(r"source-\d+")
"""Names of undeclared sources. They are matched by their place in the query."""
_POSITION = "position.json"


def left_folder(location: SparkLocation, name: str, *more: str) -> str:
    """Return the folder that keeps the position of a source that the job no longer reads."""
    return filesystem(location.uri).uri(location.uri, LEFT, quote(name, safe=""), *more)


def left_source(folder: str) -> str:
    """Return the source whose position a folder keeps, by the folder's name."""
    return unquote(folder)


def keep_left_position(
    location: SparkLocation, name: str, line: str, ids: Mapping[str, str], *, is_stored: bool
) -> None:
    """Keep the position of a source that the job no longer reads. `is_stored`: its folder holds Spark's files of it."""
    position = {"line": line, "ids": dict(ids), "stored": is_stored}
    keep(location.uri, f"{LEFT}/{quote(name, safe='')}/{_POSITION}", position)


def left_positions(location: SparkLocation) -> dict[str, dict[str, Any]]:
    """Return what `keep_left_position` has kept, by source."""
    files = filesystem(location.uri)
    names = [left_source(name) for name in files.names(files.uri(location.uri, LEFT))]
    return {name: note(location.uri, f"{LEFT}/{quote(name, safe='')}/{_POSITION}") for name in names}
