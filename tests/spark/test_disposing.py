"""Deletion of savepoints: whose they are, what a deletion that was killed leaves, and what lies beside them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_ft.pipeline.actions.performing import Asked, perform
from airflow_ft.pipeline.actions.savepoints import dispose_of
from airflow_ft.protocol import known_roots
from airflow_ft.protocol.errors import ConfigurationError, StorageUnavailableError
from airflow_ft.protocol.from_savepoint import ClaimMode, FromSavepoint
from airflow_ft.protocol.model import RunKey
from airflow_ft.spark.savepoints.metadata import dispose, listing, of_pipeline, read_metadata
from airflow_ft.store import open_store
from airflow_ft.store.errors import UnknownPipelineError
from airflow_ft.wal import local
from airflow_ft.wal.local import LocalFileSystem, local_path
from tests.raising import raises
from tests.spark.test_savepoints import Died, _restore, _taken, saved_scene
from tests.store.scene import PIPELINE, Scene

pytestmark = pytest.mark.slow


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    with saved_scene(tmp_path) as scene:
        yield scene


def test_a_copy_does_not_claim_the_savepoint_of_another_pipeline(scene: Scene, tmp_path: Path) -> None:
    uri = _taken(scene, tmp_path)
    with raises(ConfigurationError, "arguments_conflict", pipeline="copy", other=PIPELINE, path=uri):
        _restore(scene, uri, pipeline="copy", wal_root=str(tmp_path / "wal"), claim=ClaimMode.CLAIM)
    with pytest.raises(UnknownPipelineError):
        scene.store.pipeline("copy")
    assert read_metadata(uri)


def test_a_savepoint_of_another_decision_log_is_not_claimed(scene: Scene, tmp_path: Path) -> None:
    """There a pipeline of the same name may need it."""
    uri = _taken(scene, tmp_path)
    with closing(open_store(f"sqlite:///{tmp_path}/other.db")) as store:
        other = Scene(store)
        with raises(ConfigurationError, "arguments_conflict", pipeline=PIPELINE, other=PIPELINE, path=uri):
            _restore(other, uri, wal_root=str(tmp_path / "other"), claim=ClaimMode.CLAIM)
        assert read_metadata(uri)
        _restore(other, uri, wal_root=str(tmp_path / "other"))
    assert read_metadata(uri)


def test_a_deletion_that_was_killed_is_finished_by_the_next(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A local disk first renames the folder to a hidden name."""
    uri, folder, lines = _taken(scene, tmp_path), str(tmp_path / "savepoints"), list[str]()
    remove, calls = local._remove, count()

    def killed(path: Path) -> None:
        if next(calls):
            raise Died
        remove(path)

    for delete in (dispose, lambda uri: dispose_of(_by(lines), uri, PIPELINE)):
        calls = count()
        monkeypatch.setattr(local, "_remove", killed)
        with pytest.raises(Died):
            dispose(uri)
        assert not local_path(uri).exists()
        assert list(listing(folder)) == [(uri, None)]
        [(name, error)], _ = of_pipeline(folder, PIPELINE, scene.store.installation, 9)
        assert name in uri and isinstance(error, ConfigurationError) and error.code == "savepoint_unfinished"
        with raises(ConfigurationError, "arguments_conflict", other=PIPELINE):
            dispose_of(_by(lines), uri, "payments")
        monkeypatch.setattr(local, "_remove", remove)
        delete(uri)
        assert list((tmp_path / "savepoints").glob("*savepoint-*")) == []
        uri = _taken(scene, tmp_path)
    assert len(lines) == 1 and "is deleted" in lines[0]


def test_an_entry_that_may_not_be_read_hides_no_savepoint(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as `lost+found` of a disk, or the savepoint of a user whose files others may not read."""
    whole, foreign, exists = _taken(scene, tmp_path), _taken(scene, tmp_path), LocalFileSystem.exists
    (tmp_path / "savepoints" / "lost+found").mkdir()

    def forbidden(files: LocalFileSystem, uri: str) -> bool:
        if "lost+found/" in uri or uri.startswith(f"{foreign}/"):
            raise PermissionError(13, "Permission denied", uri)
        return exists(files, uri)

    monkeypatch.setattr(LocalFileSystem, "exists", forbidden)
    assert [(uri, found is None) for uri, found in listing(str(tmp_path / "savepoints"))] == [
        (whole, False),
        (foreign, True),
    ]


def test_folders_with_other_names_leave_room_for_savepoints(scene: Scene, tmp_path: Path) -> None:
    """A person may have renamed a savepoint, so they are looked at, but last."""
    uri = _taken(scene, tmp_path)
    for name in ("a-project", "z-project"):
        (tmp_path / "savepoints" / name).mkdir()
    [(name, _)], left_out = of_pipeline(str(tmp_path / "savepoints"), PIPELINE, scene.store.installation, 1)
    assert uri.endswith(name) and left_out == 2


def test_an_unmounted_disk_is_no_deleted_savepoint(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri, lines, folder = _taken(scene, tmp_path), list[str](), tmp_path / "savepoints"
    monkeypatch.setattr(known_roots, "_known", {})  # the task's process is another one
    folder.rename(tmp_path / "elsewhere")
    folder.mkdir()
    asked = Asked("dispose", PIPELINE, RunKey("d", "r"), savepoint=FromSavepoint(uri))
    with raises(StorageUnavailableError, "wrong_disk"):
        perform(_by(lines), asked, lambda: open_store(scene.store.url))
    assert lines == []


def _by(lines: list[str]) -> Any:
    return SimpleNamespace(sure=lambda _: None, say=lines.append)
