"""Spark's JVMs that staging tests share (`stage_world`)."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_ft.spark.session import kept
from tests.integration.stage_world import sessions_in


@pytest.fixture(scope="session")
def sessions() -> Iterator[Path]:
    """The folder in which JVMs wait for the next stage of this process; they end with it."""
    # The path of a socket has to be short.
    with tempfile.TemporaryDirectory(prefix="ft-") as folder:
        yield Path(folder)
        with sessions_in(Path(folder)):
            for one in kept():
                one.end()
