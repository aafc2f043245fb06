"""A decision log that an earlier version has written is upgraded, and says what it said before."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from airflow_ft.protocol.errors import ConfigurationError
from airflow_ft.protocol.model import CheckpointState, RunKey
from airflow_ft.protocol.overview import Condition, Tally
from airflow_ft.protocol.ports import Store
from airflow_ft.store import find_store, open_store
from airflow_ft.store.database import Database
from airflow_ft.store.migrations import migrate, migrations
from airflow_ft.store.sqlite import SqliteDatabase, SqliteStore
from tests.raising import raises
from tests.store.scene import PIPELINE

VERSION_1 = Path(__file__).with_name("version_1.sql")
"""What version 1 wrote: run-1 delivered the numbers 1 and 2, run-2 has the turn and has staged 3."""


def write_version_1(database: Database) -> str:
    """A decision log as version 1 left it; returns its installation."""
    migrate(database, migrations()[:1])
    with database.write() as tx:
        tx.change("DELETE FROM meta")
        for statement in VERSION_1.read_text(encoding="utf-8").splitlines():
            tx.change(statement.removesuffix(";"))
        return str(tx.rows("SELECT value FROM meta WHERE name = 'installation'")[0]["value"])


@pytest.fixture
def upgraded(tmp_path: Path) -> Callable[[], tuple[str, Store]]:
    """Writes the old log, and opens it as this version does."""

    def upgrade() -> tuple[str, Store]:
        path = tmp_path / "ft.db"
        database = SqliteDatabase(path)
        installation = write_version_1(database)
        database.close()
        return installation, SqliteStore(path)

    return upgrade


def test_who_only_looks_makes_no_log_and_leaves_an_older_one_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "ft.db"
    url = f"sqlite:///{path}"
    assert find_store(url) is None and not path.parent.exists()
    with closing(SqliteDatabase(path)) as database:  # whoever made the file has died
        assert find_store(url) is None and not database.has_schema()
        write_version_1(database)
        with raises(ConfigurationError, "schema_outdated", found=1, needed=len(migrations())):
            find_store(url)
        assert database.read("SELECT max(version) AS version FROM schema_version") == [{"version": 1}]
    open_store(url).close()
    store = find_store(url)
    assert store is not None and store.pipeline(PIPELINE).name == PIPELINE
    store.close()


class TestUpgrade:
    def test_what_version_1_wrote_is_kept(self, upgraded: Callable[[], tuple[str, Store]]) -> None:
        installation, store = upgraded()
        assert store.installation == installation
        first, second = RunKey("dag", "run-1"), RunKey("dag", "run-2")
        assert store.pipeline(PIPELINE).turn == second
        for run, numbers in ((first, [1, 2]), (second, [3])):
            row = store.run(PIPELINE, run)
            assert row is not None and row.staged and row.key == run
            assert (row.stage_task, row.stage_began, row.through, row.complete, row.spec) == ("", None, 0, False, "")
            assert [c.number for c in store.run_checkpoints(PIPELINE, run)] == numbers
            assert {c.run for c in store.run_checkpoints(PIPELINE, run)} == {run}
        row = store.run(PIPELINE, second)
        assert row is not None and row.interval_end is not None
        assert store.checkpoint(PIPELINE, 2).is_confirmed
        assert store.checkpoint(PIPELINE, 3).state is CheckpointState.STAGED
        assert [e.kind for e in store.events(PIPELINE, limit=1)] == ["TURN"]
        standing = store.standing(PIPELINE)
        assert (standing.condition, standing.dags, standing.undelivered) == (Condition.RUNNING, ("dag",), 1)
        assert store.mark(PIPELINE) == f"{PIPELINE}:0"
        assert store.tally(PIPELINE) == Tally(1, completed=2, subsumed=0, failed=0, restored=0)
        store.close()

    def test_a_mapped_task_does_not_take_an_old_run_for_its_own(
        self, upgraded: Callable[[], tuple[str, Store]]
    ) -> None:
        # Version 1 knew no map index: whichever task staged this, another one must not believe that it did.
        _, store = upgraded()
        with raises(ConfigurationError, "map_index_conflict", run="dag/run-2[0]", other="dag/run-2"):
            store.enter_turn(PIPELINE, RunKey("dag", "run-2", 0), None)
        assert store.run(PIPELINE, RunKey("dag", "run-2", 0)) is None
        store.close()
