"""A newer version of the package upgrades the decision log of an older one, and keeps its rows."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from airflow_ft.protocol.errors import ConfigurationError
from airflow_ft.store import find_store, migrations, open_store
from airflow_ft.store.decision_log import DecisionLog
from airflow_ft.store.migrations import Migration
from airflow_ft.store.sqlite import SqliteStore
from tests.raising import raises
from tests.store.scene import PIPELINE, Scene

NEXT = Migration(
    len(migrations.migrations()) + 1, ("ALTER TABLE pipeline ADD COLUMN note TEXT NOT NULL DEFAULT 'none'",)
)
"""A step that a newer version of the package might have."""


@pytest.fixture
def reopened(tmp_path: Path) -> Callable[[], DecisionLog]:
    """Return what opens the decision log under test."""
    return lambda: SqliteStore(tmp_path / "ft.db")


@pytest.fixture
def newer(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Return what makes this package a newer one, with `NEXT`."""
    known = (*migrations.migrations(), NEXT)
    return lambda: monkeypatch.setattr(migrations, "migrations", lambda: known)


class TestUpgrade:
    def test_rows_are_kept(self, reopened: Callable[[], DecisionLog], newer: Callable[[], None]) -> None:
        with closing(reopened()) as store:
            Scene(store).stage(1)
            before = store.checkpoint(PIPELINE, 1), store.installation, store.mark()
        newer()
        with closing(reopened()) as store:
            assert (store.checkpoint(PIPELINE, 1), store.installation, store.mark()) == before
            Scene(store).take()


def test_a_reader_neither_makes_nor_upgrades_a_log(tmp_path: Path, newer: Callable[[], None]) -> None:
    url = f"sqlite:///{tmp_path / 'folder' / 'ft.db'}"
    assert find_store(url) is None and not (tmp_path / "folder").exists()
    with closing(open_store(url)) as store:
        store.register(PIPELINE)
    newer()
    with raises(ConfigurationError, "schema_outdated", found=NEXT.version - 1, needed=NEXT.version):
        find_store(url)
    open_store(url).close()
    store = find_store(url)
    assert store is not None and store.pipeline(PIPELINE).name == PIPELINE
    store.close()
