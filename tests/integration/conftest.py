"""Spark's JVMs that staging tests share (`stage_world`)."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_ft.spark.session import kept


@pytest.fixture(scope="session")
def sessions() -> Iterator[Path]:
    """The folder in which JVMs wait for the next stage of this process; they end with it."""
    # The path of a socket has to be short.
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory(prefix="ft-") as folder:
        yield Path(folder)
        patch.setattr(tempfile, "tempdir", folder)
        for one in kept():
            one.end()
