"""What `sync_tree` makes durable, and what it leaves alone since it is durable already."""

from __future__ import annotations

import errno
import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_ft.wal import access
from airflow_ft.wal.local import LocalFileSystem, Synced

Sync = Callable[[], set[str]]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    tree = tmp_path / "root" / "location"
    for name in ("offsets/0", "commits/0", "state/0/0/1.delta"):
        put(tree / name)
    return tree


def without_links(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a file system that has none."""

    def refuse(*_: object) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(Path, "hardlink_to", refuse)


def put(path: Path, text: str = "x") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.fixture
def sync(tree: Path, monkeypatch: pytest.MonkeyPatch) -> Sync:
    """Syncs with one memory; says which files and folders below the location were synced by it."""
    memory: Synced = {}
    inodes: set[int] = set()
    fsync = os.fsync

    def recorded(descriptor: int) -> None:
        inodes.add(os.fstat(descriptor).st_ino)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", recorded)

    def run() -> set[str]:
        inodes.clear()
        LocalFileSystem().sync_tree(tree.as_uri(), tree.parent.as_uri(), memory)
        there = [tree, *tree.rglob("*")]
        assert set(memory) == {str(path) for path in there if path.is_dir()}, "it forgets what is gone"
        return {str(path.relative_to(tree)) for path in there if path.stat().st_ino in inodes} - {"."}

    return run


def test_all_of_it_then_what_is_new(tree: Path, sync: Sync) -> None:
    assert sync() == {str(path.relative_to(tree)) for path in tree.rglob("*")}
    assert sync() == set()
    put(tree / "offsets/1")
    assert sync() == {"offsets", "offsets/1"}
    assert sync() == set()


def test_a_file_in_the_place_of_another_and_one_that_has_grown(tree: Path, sync: Sync) -> None:
    sync()
    put(tree / "offsets/.new")
    (tree / "offsets/.new").replace(tree / "offsets/0")
    assert sync() == {"offsets", "offsets/0"}
    put(tree / "state/0/0/1.delta", "longer")
    assert sync() == {"state/0/0", "state/0/0/1.delta"}


def test_a_folder_that_is_new_is_written_into_its_parent(tree: Path, sync: Sync) -> None:
    sync()
    put(tree / "state/1/0/1.delta")
    assert sync() == {"state", "state/1", "state/1/0", "state/1/0/1.delta"}


def test_what_goes_needs_no_sync_and_what_comes_again_does(tree: Path, sync: Sync) -> None:
    sync()
    (tree / "offsets/0").unlink()
    (tree / "commits/0").unlink()
    (tree / "commits").rmdir()
    assert sync() == set()
    put(tree / "offsets/0")
    assert sync() == {"offsets", "offsets/0"}


def test_what_goes_while_a_folder_is_listed_is_not_in_the_list(tree: Path) -> None:
    """As a file does between its name and its size: a link that leads nowhere."""
    before = LocalFileSystem().tree(tree.as_uri())
    assert before
    (tree / "gone").symlink_to(tree / "nowhere")
    assert LocalFileSystem().tree(tree.as_uri()) == before


def test_a_folder_is_gone_though_another_process_removes_it_too(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What one has begun to remove, and died, two finish at the same moment."""
    put(tree.with_name(f".{tree.name}.removed") / "offsets/0")

    def beside(folder: Path) -> None:
        monkeypatch.undo()
        (folder / "offsets/0").unlink()
        raise FileNotFoundError(str(folder))

    monkeypatch.setattr(shutil, "rmtree", beside)
    LocalFileSystem().remove_tree(tree.as_uri())
    assert not tree.exists()
    assert list(tree.parent.iterdir()) == []


def test_a_removal_that_is_refused_is_tried_in_its_place(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    doomed = tree.with_name(f".{tree.name}.removed")

    def refuse(*_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", refuse)
        for each in (tree, doomed, doomed):
            with pytest.raises(PermissionError):
                LocalFileSystem().remove_tree(each.as_uri())
            assert list(tree.parent.iterdir()) == [doomed]
    LocalFileSystem().remove_tree(doomed.as_uri())
    assert list(tree.parent.iterdir()) == []


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_a_write_does_not_fall_back_to_a_rename_on_a_full_disk(
    tree: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """A rename would replace what another process has written since."""

    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(Path, "hardlink_to", refuse)
    with pytest.raises(OSError, check=lambda error: error.errno == number):
        LocalFileSystem().write((tree / "new").as_uri(), b"x")
    assert not (tree / "new").exists()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize(
    ("name", "fails"),
    [
        ("write", "os.fsync"),
        ("write_marker", "os.fsync"),
        ("replace", "os.fsync"),
        ("replace", "pathlib.Path.replace"),
    ],
)
def test_a_write_that_fails_leaves_no_file(
    tree: Path, monkeypatch: pytest.MonkeyPatch, number: int, name: str, fails: str
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    before = sorted(tree.rglob("*"))
    monkeypatch.setattr(fails, refuse)
    with pytest.raises(OSError, check=lambda error: error.errno == number):
        getattr(LocalFileSystem(), name)((tree / "new").as_uri(), b"x")
    assert sorted(tree.rglob("*")) == before


def test_whether_there_are_hard_links(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = sorted(tree.rglob("*"))
    assert LocalFileSystem().has_links((tree / "probe").as_uri())
    without_links(monkeypatch)
    assert not LocalFileSystem().has_links((tree / "probe").as_uri())
    assert sorted(tree.rglob("*")) == before


@pytest.mark.parametrize(("umask", "links"), [(0o002, 1), (0o077, 1), (0o077, 2)])
def test_a_link_loses_what_the_umask_forbids(tree: Path, umask: int, links: int) -> None:
    """Hadoop ignores the umask of the process. A link is never opened further."""
    source, target = tree / "offsets/0", tree / "linked"
    source.chmod(0o644)
    if links == 2:
        (tree / "shared").hardlink_to(source)
    before = os.umask(umask)
    try:
        LocalFileSystem().link_file(source.as_uri(), target.as_uri())
    finally:
        os.umask(before)
    assert target.samefile(source) == (links == 1)
    assert target.stat().st_mode & 0o777 == 0o644 & ~umask
    assert links == 1 or source.stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize("holder", ["source", "target"])
def test_a_mode_that_a_default_acl_decides_is_kept(tree: Path, holder: str) -> None:
    """Without named users it decides about the mode alone, and does so in place of the umask."""
    source, target = tree / "source" / "file", tree / "target" / "file"
    opens = struct.pack("<I" + 3 * "HHI", 2, 1, 7, 0xFFFFFFFF, 4, 7, 0xFFFFFFFF, 32, 7, 0xFFFFFFFF)
    for each in (source, target):
        each.parent.mkdir()
    os.setxattr(tree / holder, "system.posix_acl_default", opens)
    source.touch()
    before = source.stat().st_mode
    LocalFileSystem().link_file(source.as_uri(), target.as_uri())
    assert source.stat().st_mode == before and not target.samefile(source)


def test_no_file_is_replaced_while_it_is_open(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """CIFS refuses that."""
    replace = Path.replace

    def refuse(path: Path, target: Path) -> Path:
        assert str(target) not in [os.path.realpath(each) for each in Path("/proc/self/fd").iterdir()]
        return replace(path, target)

    monkeypatch.setattr(Path, "replace", refuse)
    LocalFileSystem().link_file((tree / "offsets/0").as_uri(), (tree / "linked").as_uri())
    assert (tree / "linked").samefile(tree / "offsets/0")


@pytest.mark.parametrize("number", [errno.EPERM, errno.ENOSYS, errno.EINVAL, errno.ENOTSUP])
@pytest.mark.parametrize("differs", ["group", "mode"])
def test_a_file_system_without_groups_is_no_failure(
    tree: Path, monkeypatch: pytest.MonkeyPatch, number: int, differs: str
) -> None:
    """Only a group that differs is set."""

    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "chown", refuse)
    if differs == "group":
        found = access._access
        monkeypatch.setattr(access, "_access", lambda path: (0o755, 7, {}) if path == tree else found(path))
    assert LocalFileSystem().make_like((tree.parent / "beside").as_uri(), tree.as_uri()) == (differs == "mode")


def test_a_left_hidden_file_never_harms_the_file_it_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process dies between the link and the end of the hidden name; another one has its ids."""
    files, place = LocalFileSystem(), (tmp_path / "marker").as_uri()
    with monkeypatch.context() as dying:
        dying.setattr(Path, "unlink", lambda *_, **__: None)
        files.write(place, b"first")
    with pytest.raises(FileExistsError):
        files.write(place, b"other")
    assert files.read(place) == b"first"
