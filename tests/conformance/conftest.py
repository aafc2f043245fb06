"""What of the conformance kit runs when, and where its files are."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_ft.testing import ParticipantConformance
from tests.disks import in_memory
from tests.tiers import CALLS, content_number


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    with in_memory() as folder:
        yield folder


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Without --all a process is killed at every 24th of its calls. The committed files choose the first of them.

    A million rows into a server take too long for each change: SQLite shows the same. So do answers that are lost at
    each of the hundred requests that a checkpoint of forty files is: with one file they are thirty. A Delta table in S3
    takes some fifty: `tests/sinks/delta/servers/test_bucket.py` tries some of them. Before each of as many others may
    come.
    """
    if not config.getoption("--all"):
        ParticipantConformance.places = (content_number() % CALLS, CALLS)
        ParticipantConformance.patience = 3.0
    for item in items:
        many_rows = "test_memory_does_not_grow_with_rows" in item.nodeid and item.get_closest_marker("server")
        many_files = "TestPartitionsInS3::test_whatever_is_lost" in item.nodeid
        many_versions = "test_delta.py::TestS3::test_whatever_is_lost" in item.nodeid
        many_beginnings = "S3::test_one_that_looks_before" in item.nodeid
        if many_rows or many_files or many_versions or many_beginnings:
            item.add_marker(pytest.mark.release)
