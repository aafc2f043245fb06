from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path

import pytest

from airflow_ft.clients.mounts import mounts, network_file_system
from airflow_ft.protocol.errors import ConfigurationError, StateConflictError, StoreUnavailableError
from airflow_ft.protocol.pipelines import HaltReason
from airflow_ft.store import open_store, sqlite
from airflow_ft.store.decision_log import DecisionLog
from airflow_ft.store.doctor import examine_store
from airflow_ft.store.migrations import Migration, migrate
from airflow_ft.store.sqlite import SqliteDatabase, SqliteStore
from airflow_ft.store.writing import pipeline_write
from tests.raising import raises
from tests.store.scene import PIPELINE, Scene

MOUNTS = [
    ("/", "ext4"),
    ("/mnt/share one", "nfs4"),
    ("/mnt/share one/local", "xfs"),
    ("/home/ada/remote", "fuse.sshfs"),
    ("/var/containers", "fuse.fuse-overlayfs"),
    ("/cifs", "cifs"),
    ("/cifs", "tmpfs"),
]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store" / "ft.db"


@pytest.mark.parametrize(
    ("folder", "kind"),
    [
        ("/var/lib", None),
        ("/mnt/share one", "nfs4"),
        ("/mnt/share one/deep/down", "nfs4"),
        ("/mnt/share one/local/x", None),
        ("/mnt/share one-more", None),
        ("/home/ada/remote/x", "fuse.sshfs"),
        ("/var/containers/x", None),
        ("/cifs", None),
    ],
)
def test_a_network_file_system_is_known_by_the_mount_of_a_folder(
    folder: str, kind: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("airflow_ft.clients.mounts.mounts", lambda: [(Path(point), type) for point, type in MOUNTS])
    assert network_file_system(Path(folder)) == kind


def test_mounts_are_those_of_the_kernel() -> None:
    points = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
    assert [str(point) for point, _ in mounts() if " " not in str(point)] == [
        each for each in points if "\\" not in each
    ]


def test_a_store_on_a_network_file_system_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite, "network_file_system", lambda folder: "nfs4")
    with raises(ConfigurationError, "path_invalid", path=str(path), file_system="nfs4"):
        SqliteStore(path)
    assert not path.exists()


def test_a_link_to_a_network_file_system_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    share = tmp_path / "share"
    share.mkdir()
    monkeypatch.setattr(sqlite, "network_file_system", lambda folder: "nfs4" if folder == share else None)
    (link := tmp_path / "ft.db").symlink_to(share / "ft.db")
    with raises(ConfigurationError, "path_invalid", path=str(link), file_system="nfs4"):
        SqliteStore(link)
    assert not any(share.iterdir())


def test_the_files_are_private_and_the_folder_is_made(path: Path) -> None:
    with SqliteStore(path) as store:
        store.register(PIPELINE)
        assert {p.name: p.stat().st_mode & 0o777 for p in path.parent.iterdir()} == {
            "ft.db": 0o600,
            "ft.db-wal": 0o600,
            "ft.db-shm": 0o600,
        }
        assert path.parent.stat().st_mode & 0o777 == 0o700
        assert store.url == f"sqlite:///{path}"


def test_a_relative_path_is_refused() -> None:
    with raises(ConfigurationError, "path_invalid", path="ft.db"):
        SqliteStore("ft.db")


def test_every_commit_is_synced_and_journalled(path: Path) -> None:
    with SqliteStore(path) as store:
        database = store._database
        assert database.read("PRAGMA synchronous")[0]["synchronous"] == 2
        assert database.read("PRAGMA journal_mode")[0]["journal_mode"] == "wal"
        assert database.read("PRAGMA foreign_keys")[0]["foreign_keys"] == 1


def test_a_lock_that_is_not_given_up_is_an_unavailable_store(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite, "BUSY_TIMEOUT", 0.05)
    with SqliteStore(path) as store:
        scene = Scene(store)
        scene.stage(1, continues=True)
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with raises(StoreUnavailableError, "lock_timeout", unanswered=False):
            scene.trigger()
        assert scene.open_numbers() == [1]  # reads go on
        other.close()
        assert scene.trigger() == 2


def test_a_full_disk_changes_nothing_and_says_what_to_do(path: Path) -> None:
    with SqliteStore(path) as store:
        scene = Scene(store)
        scene.stage(1, continues=True)
        before = scene.event_texts()
        pages = store._database.read("PRAGMA page_count")[0]["page_count"]
        connection, _ = store._database._pool.take()  # type: ignore[attr-defined]
        connection.execute(f"PRAGMA max_page_count = {pages}")
        store._database._pool.give(connection)  # type: ignore[attr-defined]
        with raises(StoreUnavailableError, "disk_full", unanswered=False):
            for number in range(200):
                store.halt(PIPELINE, HaltReason.TOKEN_LOST, "x" * 500 + str(number))
        assert scene.event_texts()[: len(before)] == before
        store.resume(PIPELINE, "ada")  # on a fresh connection, with room again
        assert scene.trigger() == 2


def test_a_vanished_store_is_an_error_and_is_not_created_again(path: Path) -> None:
    with SqliteStore(path) as store:
        store.register(PIPELINE)
        path.unlink()
        with raises(StoreUnavailableError, "store_file_missing"):
            store.pipeline(PIPELINE)
        assert not path.exists()


def test_a_file_put_in_place_of_the_store_is_used_from_then_on(path: Path, tmp_path: Path) -> None:
    """What is written to an unlinked file would be lost."""
    with SqliteStore(path) as store:
        scene = Scene(store)
        scene.stage(1)
        _back_up(path, tmp_path / "backup.db")
        scene.stage(2)
        for name in ("ft.db-wal", "ft.db-shm"):
            (path.parent / name).unlink()
        (tmp_path / "backup.db").rename(path)
        assert [c.number for c in store.checkpoints(PIPELINE)] == [1]
        with SqliteStore(path) as other:
            assert [c.number for c in other.checkpoints(PIPELINE)] == [1]


def test_a_restored_backup_opens_and_gives_numbers_out_again(path: Path, tmp_path: Path) -> None:
    """R11: the sinks' digests are there to notice."""
    with SqliteStore(path) as store:
        scene = Scene(store)
        scene.stage(1, continues=True)
        _back_up(path, tmp_path / "backup.db")
        scene.take()
        assert scene.trigger() == 2
        installation = store.installation
    with SqliteStore(tmp_path / "backup.db") as store:
        assert store.installation == installation
        restored = Scene(store, epoch=1)
        assert restored.trigger() == 2
        late = Scene(store, epoch=2)
        with raises(StateConflictError, "epoch_unknown", epoch=2, current=1):
            late.trigger()


def test_an_older_backup_restored_into_the_open_file_is_an_error(path: Path, tmp_path: Path) -> None:
    older = ("CREATE TABLE meta (name TEXT, value TEXT)", "CREATE TABLE pipeline (name TEXT)")
    with closing(SqliteDatabase(tmp_path / "backup" / "ft.db")) as backup:
        migrate(backup, (Migration(1, older),))
    with SqliteStore(path) as store:
        store.register(PIPELINE)
        with (
            closing(sqlite3.connect(tmp_path / "backup" / "ft.db")) as source,
            closing(sqlite3.connect(path)) as target,
        ):
            source.backup(target)
        for use in (store.mark, store.overviews):
            with raises(StoreUnavailableError, "store_replaced"):
                use()


def test_a_file_of_another_kind_is_refused(path: Path) -> None:
    path.parent.mkdir()
    path.write_text("not a database, " * 100)
    with raises(StoreUnavailableError, "store_file_damaged"):
        SqliteStore(path)
    assert path.read_text().startswith("not a database")


def test_a_closed_store_says_so(path: Path) -> None:
    store = SqliteStore(path)
    store.close()
    store.close()
    with raises(StoreUnavailableError, "store_closed"):
        store.pipelines()


def test_threads_share_a_store(path: Path) -> None:
    with SqliteStore(path) as store:
        scene = Scene(store)
        scene.take()
        numbers: list[int] = []

        def work() -> None:
            for _ in range(10):
                numbers.append(scene.trigger())
                scene.store.renew_lease(PIPELINE, 1, "worker")
                scene.store.open_checkpoints(PIPELINE)

        threads = [threading.Thread(target=work) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(numbers) == list(range(1, 61))
        assert store.leases(PIPELINE)[0].counter == 60


def test_a_forked_child_uses_connections_of_its_own(path: Path) -> None:
    with SqliteStore(path) as store:
        scene = Scene(store)
        scene.take()
        pool = store._database._pool  # type: ignore[attr-defined]
        assert len(pool._idle) == 1
        pool._lock.acquire()  # a thread of the parent could hold it at this moment
        child = os.fork()
        if child == 0:
            try:
                os._exit(0 if not pool._idle and scene.trigger() == 1 else 1)
            finally:
                os._exit(2)
        pool._lock.release()
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert scene.trigger() == 2
        assert scene.kinds(1) == ["TRIGGERED"]


def test_a_store_opened_by_url_is_the_same(path: Path) -> None:
    first: DecisionLog = open_store(f"sqlite:///{path}")
    second: DecisionLog = open_store(f"sqlite:///{path}")
    assert first.installation == second.installation
    Scene(first).stage(1)
    assert [c.number for c in second.checkpoints(PIPELINE)] == [1]
    first.close()
    second.close()


def _back_up(source: Path, target: Path) -> None:
    with sqlite3.connect(source) as old, sqlite3.connect(target) as new:
        old.backup(new)
    old.close()
    new.close()


def test_a_connection_to_a_replaced_file_is_not_used_again(path: Path, tmp_path: Path) -> None:
    """Another thread has opened the new file since: what it has must not speak for this connection."""
    with SqliteStore(path) as store:
        scene = Scene(store)
        scene.stage(1)
        _back_up(path, tmp_path / "backup.db")
        with pipeline_write(store._database, PIPELINE):
            for name in ("ft.db-wal", "ft.db-shm"):
                (path.parent / name).unlink()
            (tmp_path / "backup.db").rename(path)
            assert [c.number for c in store.checkpoints(PIPELINE)] == [1], "by a second connection"
        store.halt(PIPELINE, HaltReason.TOKEN_LOST, "a test")
        with SqliteStore(path) as other:
            assert other.pipeline(PIPELINE).halt_reason is HaltReason.TOKEN_LOST


def test_an_idle_connection_does_not_undo_a_restore(path: Path, tmp_path: Path) -> None:
    """Its journal was deleted and its file overwritten in place, while the page held the connection open."""
    backup = tmp_path / "backup.db"
    copy = (
        "import sqlite3, sys; old, new = map(sqlite3.connect, sys.argv[1:]); old.backup(new); old.close(); new.close()"
    )
    page = SqliteStore(path)
    page.register("old")
    subprocess.run([sys.executable, "-c", copy, str(path), str(backup)], check=True)
    page.register("lost")
    for suffix in ("-wal", "-shm"):
        Path(f"{path}{suffix}").unlink()
    subprocess.run(["cp", str(backup), str(path)], check=True)
    task = (
        "import pathlib, sys; from airflow_ft.store.sqlite import SqliteStore;"
        " store = SqliteStore(pathlib.Path(sys.argv[1])); store.register('new'); store.close()"
    )
    subprocess.run([sys.executable, "-c", task, str(path)], check=True)
    with raises(StoreUnavailableError, "store_replaced"):
        page.pipelines()
    page.close()
    names = subprocess.run(
        ["sqlite3", str(path), "SELECT name FROM pipeline ORDER BY name"], capture_output=True, text=True
    )
    assert names.stdout.split() == ["new", "old"]


def test_the_doctor_reads_the_disk_of_a_path_with_signs(tmp_path: Path) -> None:
    with closing(SqliteStore(tmp_path / "a%b?" / "ft.db")) as store:
        assert "disk" in [check.name for check in examine_store(store)]
