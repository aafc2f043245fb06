"""Spark's JVMs that staging tests share (`stage_world`)."""

import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from airflow_ft.spark.session.loans import kept
from tests.integration.stage_world import sessions_in
from tests.waiting import wait_for


@pytest.fixture(scope="session")
def sessions() -> Iterator[Path]:
    """The folder in which JVMs wait for the next stage of this process; they end with it."""
    # The path of a socket has to be short.
    with tempfile.TemporaryDirectory(prefix="ft-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)
        with sessions_in(Path(folder)), suppress(AssertionError):
            for one in kept():
                one.end()
            wait_for(lambda: not kept(), 30, "no session is left")  # they remove their folders, too
