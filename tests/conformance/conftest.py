"""What of the conformance kit runs when, and where its files are."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_ft.testing import ParticipantConformance
from tests.tiers import SAMPLE, content_number

_MEMORY = Path("/dev/shm")
_ROOM = 2 << 30  # bytes


@pytest.fixture
def tmp_path(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder in memory, if there is room: no case cuts the power, so waiting for a disk shows nothing."""
    if not _MEMORY.is_dir() or shutil.disk_usage(_MEMORY).free < _ROOM:
        yield tmp_path_factory.mktemp("kit")
        return
    with tempfile.TemporaryDirectory(prefix="airflow-ft-kit-", dir=_MEMORY, ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Without --all a process is killed at every 24th of its calls. The committed files choose the first of them.

    A million rows into a server take too long for each change: SQLite shows the same. So do answers that are lost at
    each of the hundred requests that a checkpoint of forty files is: with one file they are thirty. A Delta table in S3
    takes some fifty: `tests/sinks/delta/servers/test_bucket.py` tries some of them. Before each of as many others may
    come.
    """
    if not config.getoption("--all"):
        ParticipantConformance.places = (content_number() % SAMPLE, SAMPLE)
        ParticipantConformance.patience = 3.0
    for item in items:
        many_rows = "test_memory_does_not_grow_with_rows" in item.nodeid and item.get_closest_marker("server")
        many_files = "TestPartitionsInS3::test_whatever_is_lost" in item.nodeid
        many_versions = "test_delta.py::TestS3::test_whatever_is_lost" in item.nodeid
        many_beginnings = "S3::test_one_that_looks_before" in item.nodeid
        if many_rows or many_files or many_versions or many_beginnings:
            item.add_marker(pytest.mark.release)
