"""A root of the log on the local disk; tests/wal/hdfs has one on HDFS."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_ft.wal.filesystem import FileSystem, filesystem


@pytest.fixture
def root(tmp_path: Path) -> str:
    return str(tmp_path / "root")


@pytest.fixture
def files(root: str) -> FileSystem:
    return filesystem(root)
