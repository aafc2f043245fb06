"""What is deleted, and above all what is not (I10)."""

import errno
import os
import shutil
from pathlib import Path

import pyarrow as pa
import pytest

from airflow_ft.protocol.errors import ConfigurationError, StorageUnavailableError
from airflow_ft.protocol.model import Segment
from airflow_ft.store.sqlite import SqliteStore
from airflow_ft.wal import open_wal
from airflow_ft.wal.local import LocalFileSystem, local_path
from airflow_ft.wal.owners import PREFIX, register
from airflow_ft.wal.retention import WalArchive, sweep, sweep_attempts
from airflow_ft.wal.writer import SegmentFolder, write_segment
from tests.raising import raises

ROWS = {"s": pa.table({"id": [1]})}


def _segment(root: Path, epoch: int, attempt: int, batch: int) -> Segment:
    return write_segment(SegmentFolder(str(root), "orders", epoch, attempt, batch), 1, ROWS)


def _spark(root: Path, name: str) -> str:
    path = root / "orders" / "spark" / name
    (path / "commits").mkdir(parents=True)
    return path.as_uri()


def test_a_segment_is_deleted_whole_and_again(tmp_path: Path) -> None:
    first, second = _segment(tmp_path, 1, 1, 0), _segment(tmp_path, 1, 1, 1)
    archive = WalArchive(str(tmp_path))
    archive.delete(first)
    archive.delete(first)
    assert not local_path(first.location).exists()
    assert open_wal().open(second).sinks() == ["s"]


def test_nothing_but_a_segment_is_deleted(tmp_path: Path) -> None:
    (tmp_path / "orders").mkdir()
    for wrong in (tmp_path / "orders", tmp_path, tmp_path / "7"):
        with raises(ConfigurationError, "path_invalid", path=wrong.as_uri()):
            WalArchive(str(tmp_path)).delete(Segment(1, "", wrong.as_uri(), {}, 0))
    assert (tmp_path / "orders").exists()


def test_a_sweep_deletes_only_unreferenced_files_of_older_epochs(tmp_path: Path) -> None:
    kept, waste, lost = _segment(tmp_path, 2, 3, 0), _segment(tmp_path, 2, 3, 1), _segment(tmp_path, 1, 1, 0)
    mine, newer = _segment(tmp_path, 5, 9, 0), _segment(tmp_path, 6, 10, 0)
    base, old, working = _spark(tmp_path, "2-3"), _spark(tmp_path, "1-1"), _spark(tmp_path, "5-9")
    drained = _spark(tmp_path, "2-3-drain")
    begun = tmp_path / "orders" / "spark" / "begun-x.json"
    begun.touch()
    other = write_segment(SegmentFolder(str(tmp_path), "refunds", 1, 1, 0), 1, ROWS)

    sweep(str(tmp_path), "orders", {kept.location, base}, below_epoch=5)

    gone = [waste.location, lost.location, old, drained]
    there = [kept.location, mine.location, newer.location, base, working, other.location]
    assert [local_path(uri).exists() for uri in gone] == [False] * len(gone)
    assert [local_path(uri).exists() for uri in there] == [True] * len(there)
    assert begun.exists()
    assert not (tmp_path / "orders" / "1-1").exists()
    assert sweep(str(tmp_path), "orders", {kept.location, base}, below_epoch=5) == []


def test_a_sweep_in_a_running_epoch_deletes_only_old_attempts(tmp_path: Path) -> None:
    """`5-0` is no attempt's: from there a pipeline goes on that was restored, say."""
    kept, waste, working = _segment(tmp_path, 5, 2, 0), _segment(tmp_path, 5, 2, 1), _segment(tmp_path, 5, 4, 0)
    older, newer = _segment(tmp_path, 4, 1, 0), _segment(tmp_path, 6, 1, 0)
    base, present = _spark(tmp_path, "5-3"), [_spark(tmp_path, name) for name in ("5-0", "5-4", "4-1", "6-1")]
    gone = [waste.location, *(_spark(tmp_path, name) for name in ("5-2", "5-2-drain", "5-3-born"))]
    there = [kept.location, working.location, older.location, newer.location, base, *present]
    deleted = sweep_attempts(str(tmp_path), "orders", {kept.location, base}, of_epoch=5, below_attempt=4)
    assert sorted(deleted) == sorted(gone)
    assert [local_path(uri).exists() for uri in gone] == [False] * len(gone)
    assert [local_path(uri).exists() for uri in there] == [True] * len(there)


def test_nothing_is_swept_where_two_decision_logs_use_one_folder(tmp_path: Path) -> None:
    published = _segment(tmp_path, 1, 1, 0)
    with SqliteStore(tmp_path / "one.db") as one, SqliteStore(tmp_path / "two.db") as two:
        for _ in range(2):
            assert not register(one, str(tmp_path), "orders")
        assert one.url in register(two, str(tmp_path), "orders")
        assert sweep(str(tmp_path), "orders", set(), below_epoch=9) == []
        assert sweep_attempts(str(tmp_path), "orders", set(), of_epoch=1, below_attempt=9) == []
        (tmp_path / "orders" / f"{PREFIX}{one.installation}").unlink()  # as the warning says, if that log is gone
    assert sweep(str(tmp_path), "orders", set(), below_epoch=9) == [published.location.rpartition("/")[0]]


def _other_spellings(root: Path) -> list[str]:
    """The last ones are of a root that was moved here, and of one on a file system that is mounted here."""
    link = root.with_name("link")
    link.symlink_to(root)
    return [link.as_uri(), f"file://{root}/../{root.name}/", "file:///moved/wal", "hdfs://nameservice/wal"]


def test_a_sweep_keeps_what_is_named_in_any_spelling(tmp_path: Path) -> None:
    root = tmp_path / "a wal"
    names = [
        location.removeprefix(root.as_uri()) for location in (_segment(root, 1, 1, 0).location, _spark(root, "3-1"))
    ]
    waste = _segment(root, 1, 1, 1).location
    for other in _other_spellings(root):
        assert sweep(str(root), "orders", {f"{other}{name}" for name in names}, below_epoch=9) in ([waste], [])
    link = str(root.with_name("link"))
    assert sweep(link, "orders", {f"{root.as_uri()}{name}/" for name in names}, below_epoch=9) == []
    assert sweep_attempts(link, "orders", {f"{root.as_uri()}{name}" for name in names}, 1, below_attempt=9) == []
    assert not local_path(waste).exists()
    assert all(local_path(f"{root.as_uri()}{name}").exists() for name in names)


def test_an_interrupted_removal_is_finished_by_the_next_sweep(tmp_path: Path) -> None:
    half = tmp_path / "orders" / "spark" / ".1-1.removed"
    half.mkdir(parents=True)
    sweep(str(tmp_path), "orders", set(), below_epoch=2)
    assert not half.exists()


@pytest.mark.parametrize("stays", ["1-1", "2-1/0", "spark/1-1"])
def test_a_sweep_passes_over_what_cannot_be_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, stays: str
) -> None:
    _segment(tmp_path, 1, 1, 0)
    _segment(tmp_path, 2, 1, 0)
    _segment(tmp_path, 2, 1, 1)
    kept = _segment(tmp_path, 2, 1, 2).location
    _spark(tmp_path, "1-1")
    _spark(tmp_path, "2-1")
    doomed = tmp_path / "orders" / stays
    doomed = doomed.with_name(f".{doomed.name}.removed")
    remove = shutil.rmtree

    def refuse(folder: Path) -> None:
        if folder == doomed:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder))
        remove(folder)

    monkeypatch.setattr(shutil, "rmtree", refuse)
    for _ in range(2):
        sweep(str(tmp_path), "orders", {kept}, below_epoch=9)
        message = caplog.messages[-1]
        assert str(doomed) in message and "\nFix: Delete it." in message
        spark = tmp_path / "orders" / "spark"
        there = {path for top in (tmp_path / "orders", spark) for path in top.iterdir()} | {
            *local_path(kept).parent.iterdir()
        }
        assert there == {spark, local_path(kept).parent, local_path(kept), doomed}


def test_a_folder_that_cannot_be_listed_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It may hold rows that are not delivered yet."""
    kept = _segment(tmp_path, 1, 1, 0).location
    of_another_user = local_path(kept).parent
    unneeded = local_path(_segment(tmp_path, 2, 1, 0).location).parent
    names = LocalFileSystem._names

    def refuse(files: LocalFileSystem, uri: str) -> list[str]:
        if uri == of_another_user.as_uri():
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), uri)
        return names(files, uri)

    monkeypatch.setattr(LocalFileSystem, "_names", refuse)
    assert sweep(str(tmp_path), "orders", {kept}, below_epoch=9) == [unneeded.as_uri()]
    [message] = caplog.messages
    assert str(of_another_user) in message and "not needed" not in message and "Delete" not in message


def test_a_sweep_ends_when_the_storage_is_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it would wait for each folder."""
    for epoch in (1, 2, 3):
        _segment(tmp_path, epoch, 1, 0)
    asked: list[object] = []

    def away(*given: object) -> None:
        asked.append(given[-1])
        monkeypatch.setattr(LocalFileSystem, "_names", away)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(shutil, "rmtree", away)
    with pytest.raises(OSError, check=lambda error: error.errno == errno.EIO):
        sweep(str(tmp_path), "orders", set(), below_epoch=9)
    orders = tmp_path / "orders"
    assert asked[0] == orders / ".1-1.removed" and {*asked[1:]} == {orders.as_uri()}


def test_a_sweep_that_must_stop_is_continued_by_the_next(tmp_path: Path) -> None:
    archive, orders = WalArchive(str(tmp_path)), tmp_path / "orders"
    _segment(tmp_path, 1, 1, 0)
    _segment(tmp_path, 2, 1, 0)
    _spark(tmp_path, "1-1")
    for left in ({"2-1", "1-1"}, {"1-1"}, set()):
        assert not archive.sweep("orders", set(), 9, lambda: True)
        assert {path.name for path in (*orders.iterdir(), *(orders / "spark").iterdir())} == {"spark", *left}
    assert archive.sweep("orders", set(), 9, lambda: True), "nothing is left to delete"


def test_a_pipeline_without_files_is_swept(tmp_path: Path) -> None:
    assert sweep(str(tmp_path), "orders", set(), below_epoch=9) == []


def test_a_sweep_spares_a_pipeline_folder_named_like_an_attempt(tmp_path: Path) -> None:
    """One log lies at the root, another in the folder of a pipeline of the first one."""
    of_other = [
        write_segment(SegmentFolder(str(tmp_path / "orders"), "1-1", 1, 1, 0), 1, ROWS),
        write_segment(SegmentFolder(str(tmp_path / "orders" / "spark"), "2-1", 1, 1, 0), 1, ROWS),
    ]
    sweep(str(tmp_path), "orders", set(), below_epoch=99)
    assert all(open_wal().open(segment).sinks() == ["s"] for segment in of_other)


def test_a_link_is_deleted_and_not_what_it_points_to(tmp_path: Path) -> None:
    archive = tmp_path / "archive"
    (archive / "0").mkdir(parents=True)
    (tmp_path / "orders").mkdir()
    (tmp_path / "orders" / "1-1").symlink_to(archive)
    sweep(str(tmp_path), "orders", set(), below_epoch=99)
    assert (archive / "0").is_dir() and not (tmp_path / "orders" / "1-1").is_symlink()


def test_nothing_is_deleted_across_a_mount_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    segment = _segment(tmp_path / "my log", 1, 1, 0)
    monkeypatch.setattr("airflow_ft.wal.local.mounts", lambda: [(local_path(segment.location) / "s", "ext4")])
    with pytest.raises(StorageUnavailableError):
        WalArchive(str(tmp_path / "my log")).delete(segment)
    assert open_wal().open(segment).sinks() == ["s"]


def test_nothing_is_swept_below_newer_state_of_spark(tmp_path: Path) -> None:
    """A newer log has reset the state, or restored a savepoint, and no run has had rows since."""
    with SqliteStore(tmp_path / "ft.db") as store:
        earlier = _spark(tmp_path, "9-0")
        register(store, str(tmp_path), "orders")  # of an earlier log: known
        _spark(tmp_path, "5-3")
        assert sweep(str(tmp_path), "orders", set(), below_epoch=6)
        waste, newer = _spark(tmp_path, "8-4"), _spark(tmp_path, "10-0")
        assert sweep(str(tmp_path), "orders", set(), below_epoch=9) == []
        assert sweep(str(tmp_path), "orders", {newer}, below_epoch=10) == [waste, earlier]


def test_nothing_is_swept_below_a_newer_epoch(tmp_path: Path) -> None:
    """The log in use may have been restored from a backup, and the newer one may come back."""
    with SqliteStore(tmp_path / "ft.db") as store:
        _segment(tmp_path, 9, 1, 0)
        register(store, str(tmp_path), "orders")  # of an earlier log: known
        _segment(tmp_path, 5, 3, 0)
        assert sweep(str(tmp_path), "orders", set(), below_epoch=6)
        waste, newer = _segment(tmp_path, 8, 4, 0), _segment(tmp_path, 10, 5, 0)
        assert sweep(str(tmp_path), "orders", set(), below_epoch=9) == []
        assert all(local_path(each.location).exists() for each in (waste, newer))
        assert len(sweep(str(tmp_path), "orders", {newer.location}, below_epoch=10)) == 2
