"""The store under test here is SQLite; tests/integration runs the same classes against PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_ft.core.ports import Store
from airflow_ft.store import open_store
from tests.store.scene import Scene


@pytest.fixture
def store_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/store/ft.db"


@pytest.fixture
def store(store_url: str) -> Iterator[Store]:
    store = open_store(store_url)
    yield store
    store.close()


@pytest.fixture
def scene(store: Store) -> Scene:
    return Scene(store)
