from __future__ import annotations

import os
from pathlib import Path

import pytest

from airflow_ft.protocol.errors import ConfigurationError, StoreUnavailableError
from airflow_ft.store.migrations import Migration, migrate, migrations
from airflow_ft.store.sqlite import SqliteDatabase, SqliteStore
from tests.raising import raises
from tests.store.scene import PIPELINE, Scene


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ft.db"


def test_versions_count_from_one_without_gaps() -> None:
    assert [step.version for step in migrations()] == list(range(1, len(migrations()) + 1))


def test_a_new_version_is_applied_once_and_keeps_what_is_there(path: Path) -> None:
    with SqliteStore(path) as store:
        Scene(store).stage(1)
        installation = store.installation
    steps = (*migrations(), Migration(len(migrations()) + 1, ("ALTER TABLE pipeline ADD COLUMN note TEXT",)))
    database = SqliteDatabase(path)
    for _ in range(2):
        assert migrate(database, steps) == installation
    assert database.read("SELECT note, name FROM pipeline") == [{"note": None, "name": PIPELINE}]
    assert [row["version"] for row in database.read("SELECT version FROM schema_version ORDER BY version")] == [
        step.version for step in steps
    ]
    database.close()


def test_a_schema_newer_than_the_package_is_refused_unchanged(path: Path) -> None:
    database = SqliteDatabase(path)
    migrate(database, (*migrations(), Migration(99, ("CREATE TABLE future (x BIGINT)",))))
    with raises(ConfigurationError, "newer_release", found=99, known=len(migrations())):
        SqliteStore(path)
    assert len(database.read("SELECT * FROM schema_version")) == len(migrations()) + 1
    database.close()


def test_a_migration_that_fails_leaves_nothing(path: Path) -> None:
    database = SqliteDatabase(path)
    with raises(StoreUnavailableError, "store_replaced", store=database.url):
        migrate(database, (*migrations(), Migration(99, ("CREATE TABLE half (x BIGINT)", "SELECT nonsense FROM half"))))
    assert database.read("SELECT name FROM sqlite_master") == []
    database.close()
    SqliteStore(path).close()


def test_tables_of_another_program_are_left_alone(path: Path) -> None:
    database = SqliteDatabase(path)
    with database.write() as tx:
        tx.change("CREATE TABLE pipeline (id INTEGER)")
    with raises(ConfigurationError, "schema_unusable", store=database.url):
        SqliteStore(path)
    assert [row["name"] for row in database.read("SELECT name FROM sqlite_master")] == ["pipeline"]
    database.close()


def test_processes_that_open_a_new_store_at_once_agree(path: Path) -> None:
    gate, start = os.pipe()
    children = []
    for _ in range(8):
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                os.close(start)
                os.read(gate, 1)
                os.write(write, SqliteStore(path).installation.encode())
                os._exit(0)
            finally:
                os._exit(1)
        os.close(write)
        children.append((child, read))
    os.close(gate)
    os.close(start)  # all of them at once
    answers = {os.read(read, 36).decode() for _, read in children}
    assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child, _ in children] == [0] * 8
    assert len(answers) == 1
    assert len(answers.pop()) == 36
