"""The identity of a storage root: away is never missing; nothing is written, deleted or concluded while it is away."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_ft.protocol import known_roots
from airflow_ft.protocol.doctor import Verdict
from airflow_ft.protocol.errors import StorageUnavailableError, WalCorruptError
from airflow_ft.protocol.model import Segment, SparkPosition
from airflow_ft.spark.driver.proof import require_proven
from airflow_ft.spark.state.locations import SparkLocation, require_batch
from airflow_ft.store.sqlite import SqliteStore
from airflow_ft.wal import markers, open_wal, roots
from airflow_ft.wal.doctor import examine_wal
from airflow_ft.wal.filesystem import filesystem
from airflow_ft.wal.markers import MARKER
from airflow_ft.wal.retention import WalArchive
from airflow_ft.wal.writer import SegmentFolder, write_segment
from tests.raising import raises
from tests.store.scene import PIPELINE, RUN, a_lease
from tests.wal.test_filesystem import without_links

ROWS = {"orders": pa.table({"id": [1, 2, 3]})}


class Disk:
    """A root that can be unmounted: its folder is renamed, and an empty one takes its place."""

    def __init__(self, root: Path) -> None:
        self.root, self.elsewhere = root, root.with_name("elsewhere")

    def unmount(self) -> None:
        self.root.rename(self.elsewhere)
        self.root.mkdir()

    def mount(self) -> None:
        self.root.rename(self.root.with_name("below"))
        self.elsewhere.rename(self.root)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    with SqliteStore(tmp_path / "ft.db") as opened:
        yield opened


@pytest.fixture
def disk(tmp_path: Path, store: SqliteStore) -> Disk:
    found = Disk(tmp_path / "wal")
    roots.claim(store, str(found.root))
    return found


def written(disk: Disk, attempt: int = 1) -> Segment:
    return write_segment(SegmentFolder(str(disk.root), PIPELINE, 1, attempt, 0), 1, ROWS)


def publish(store: SqliteStore, segment: Segment) -> None:
    store.register(PIPELINE)
    epoch = store.take_epoch(PIPELINE, 0, {}, a_lease(), "a test")
    store.begin_stage(PIPELINE, epoch, RUN)
    store.publish(PIPELINE, epoch, store.trigger(PIPELINE, epoch, RUN), 0, segment, None, {})


def marker(disk: Disk) -> Path:
    return disk.root / MARKER


def test_the_first_use_marks_a_root_once(disk: Disk, store: SqliteStore) -> None:
    first = json.loads(marker(disk).read_text())["id"]
    roots.claim(store, disk.root.as_uri())
    assert json.loads(marker(disk).read_text())["id"] == first == store.root(disk.root.as_uri())


def test_a_second_log_adopts_the_marker(disk: Disk, tmp_path: Path, store: SqliteStore) -> None:
    with SqliteStore(tmp_path / "other.db") as other:
        roots.claim(other, str(disk.root))
        assert other.root(disk.root.as_uri()) == store.root(disk.root.as_uri())


def test_two_logs_without_hard_links_agree_on_a_marker(
    store: SqliteStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second one comes between the look of the first one and its rename."""
    without_links(monkeypatch)
    root, rename = tmp_path / "wal", Path.rename

    def claim() -> str | None:
        with SqliteStore(tmp_path / "other.db") as other:
            roots.claim(other, str(root))
            return other.root(root.as_uri())

    def beside(self: Path, target: Path) -> Path:
        monkeypatch.setattr(Path, "rename", rename)
        with suppress(StorageUnavailableError), ThreadPoolExecutor(1) as another:
            another.submit(claim).result()
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", beside)
    roots.claim(store, str(root))
    assert claim() == store.root(root.as_uri()) == json.loads((root / MARKER).read_text())["id"]


def test_a_lost_marker_is_not_written_again(disk: Disk, store: SqliteStore) -> None:
    marker(disk).unlink()
    with pytest.raises(StorageUnavailableError) as caught:
        roots.claim(store, str(disk.root))
    assert not marker(disk).exists() and store.root(disk.root.as_uri()) in caught.value.remedy


def test_a_person_puts_the_marker_back(disk: Disk, store: SqliteStore) -> None:
    marker(disk).unlink()
    marker(disk).write_text(json.dumps({"id": store.root(disk.root.as_uri())}))
    roots.claim(store, str(disk.root))


@pytest.mark.parametrize("contents", ["", "[]", "{}", "\0\0", '{"id": "another"}'])
def test_another_or_a_damaged_marker_is_away(disk: Disk, store: SqliteStore, contents: str) -> None:
    marker(disk).write_text(contents)
    with pytest.raises(StorageUnavailableError):
        roots.claim(store, str(disk.root))


def test_a_root_s_first_use_without_links_can_be_repeated(
    tmp_path: Path, store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    root, rename = str(tmp_path / "new"), Path.rename
    without_links(monkeypatch)
    monkeypatch.setattr(Path, "rename", full)
    with pytest.raises(OSError, check=lambda error: error.errno == errno.ENOSPC):
        roots.claim(store, root)
    monkeypatch.setattr(Path, "rename", rename)
    (tmp_path / "new" / MARKER).touch(exist_ok=False)  # as of a process that died
    with raises(StorageUnavailableError, "wrong_disk") as caught:
        roots.claim(store, root)
    assert caught.value.remedy.startswith(f"Delete {(tmp_path / 'new' / MARKER).as_uri()}")
    (tmp_path / "new" / MARKER).unlink()
    roots.claim(store, root)


def test_an_unmounted_root_is_away_and_not_missing(disk: Disk) -> None:
    segment = written(disk)
    disk.unmount()
    with pytest.raises(StorageUnavailableError):
        open_wal().open(segment)
    disk.mount()
    assert open_wal().open(segment).files("orders")


def test_a_file_that_is_lost_on_the_known_disk_is_missing(disk: Disk) -> None:
    segment = written(disk)
    filesystem(segment.location).remove(f"{segment.location}/manifest.json")
    with pytest.raises(WalCorruptError):
        open_wal().open(segment)


def test_rows_that_vanish_while_they_are_read_are_away(disk: Disk) -> None:
    reader = open_wal().open(written(disk))
    disk.unmount()
    with pytest.raises(StorageUnavailableError):
        list(reader.batches("orders", reader.files("orders")[0]))


def test_nothing_is_missing_while_the_disk_is_away(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    segment = written(disk)
    files, lost = filesystem(segment.location), f"{segment.location}/lost"
    assert not (files.exists(lost) or files.names(lost) or files.tree(lost))
    disk.unmount()
    for ask in (files.exists, files.names, files.tree):
        with pytest.raises(StorageUnavailableError):
            ask(segment.location)
    require = markers.require

    def back(*args: Any) -> None:
        disk.mount()
        require(*args)

    monkeypatch.setattr(markers, "require", back)
    assert files.exists(segment.location), "it is back after the first look"


def test_nothing_is_made_below_the_mount_point(disk: Disk) -> None:
    disk.unmount()
    files, where = filesystem(str(disk.root)), disk.root.as_uri()
    with pytest.raises(StorageUnavailableError):
        files.make_folder(f"{where}/shop/1-1/0/orders")
    with pytest.raises(StorageUnavailableError):
        files.write(f"{where}/shop/file", b"")
    with pytest.raises(StorageUnavailableError):
        files.create(f"{where}/shop/file")
    assert not list(disk.root.iterdir())


def test_an_unmounted_root_is_not_made_again(disk: Disk, store: SqliteStore) -> None:
    disk.root.rename(disk.elsewhere)
    with pytest.raises(StorageUnavailableError):
        roots.claim(store, str(disk.root))
    assert not disk.root.exists()


def test_a_segment_sealed_below_the_mount_point_is_not_published(disk: Disk) -> None:
    disk.unmount()
    (disk.root / MARKER).write_text((disk.elsewhere / MARKER).read_text())
    segment = written(disk)  # as a process does that looked just before
    marker(disk).unlink()
    with pytest.raises(StorageUnavailableError):
        require_proven(str(disk.root), segment, None)
    disk.mount()
    with pytest.raises(StorageUnavailableError):
        require_proven(str(disk.root), segment, None)
    require_proven(str(disk.root), written(disk, attempt=2), None)


@pytest.mark.parametrize("lost", ["offsets/4", "commits/4", "state/0/1/5.delta"])
def test_spark_files_that_lie_elsewhere_stop_a_publication(disk: Disk, lost: str) -> None:
    segment, location = written(disk), disk.root / PIPELINE / "spark" / "1-1"
    names = ["offsets/4", "commits/4", *(f"state/0/{part}/{version}.delta" for part in (0, 1) for version in (4, 5))]
    for name in names:
        (location / name).parent.mkdir(parents=True, exist_ok=True)
        (location / name).touch()
    position = SparkPosition(location.as_uri(), 4)
    require_proven(str(disk.root), segment, position)
    (location / lost).unlink()
    with pytest.raises(StorageUnavailableError):
        require_proven(str(disk.root), segment, position)


def test_a_base_on_a_disk_that_is_away_is_not_lost(disk: Disk) -> None:
    location = disk.root / PIPELINE / "spark" / "1-1"
    (location / "offsets").mkdir(parents=True)
    (location / "offsets" / "0").touch()
    base = SparkLocation(str(disk.root), PIPELINE, location.as_uri(), 0)
    require_batch(base)
    disk.unmount()
    with pytest.raises(StorageUnavailableError):
        require_batch(base)


def test_nothing_is_deleted_while_the_disk_is_away(disk: Disk) -> None:
    segment = written(disk)
    archive = WalArchive(str(disk.root))
    disk.unmount()
    with pytest.raises(StorageUnavailableError):
        archive.delete(segment)
    with pytest.raises(StorageUnavailableError):
        archive.sweep(PIPELINE, [], 9)
    disk.mount()
    archive.delete(segment)
    with pytest.raises(WalCorruptError):
        open_wal().open(segment)


def test_a_root_without_a_marker_needs_the_data_of_the_log(tmp_path: Path, store: SqliteStore) -> None:
    disk = Disk(tmp_path / "old")
    publish(store, written(disk))
    disk.unmount()
    with pytest.raises(StorageUnavailableError) as caught:
        roots.claim(store, str(disk.root))
    assert not marker(disk).exists() and MARKER in caught.value.remedy
    disk.mount()
    roots.claim(store, str(disk.root))
    assert marker(disk).exists()


def test_another_process_knows_the_roots_of_its_log(
    disk: Disk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    segment = written(disk)
    disk.unmount()
    monkeypatch.setattr(known_roots, "_known", {})
    with pytest.raises(WalCorruptError):
        open_wal().open(segment)
    with SqliteStore(tmp_path / "ft.db"), pytest.raises(StorageUnavailableError):
        open_wal().open(segment)


def test_the_doctor_tells_the_wrong_disk(disk: Disk, store: SqliteStore) -> None:
    def identity() -> bool:
        checks = examine_wal(str(disk.root), open_wal(), [], store)
        return next(each.verdict is Verdict.OK for each in checks if each.name == "identity")

    assert identity()
    disk.unmount()
    assert not identity()
