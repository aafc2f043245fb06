from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from airflow_ft.testing.world import World
from tests.sinks.postgres.world import Table
from tools.servers import Database

Make = Callable[..., World]


@pytest.fixture
def make(postgres_database: Database, tmp_path: Path) -> Iterator[Make]:
    """Makes a pipeline into a table: `make(ddl, **settings of the sink)`."""
    made: list[World] = []

    def world(ddl: str = "", **settings: object) -> World:
        made.append(World(Table(postgres_database, ddl, **settings), tmp_path))
        return made[-1]

    yield world
    for each in made:
        each.close()
