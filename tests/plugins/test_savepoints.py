"""Savepoints on the page: those of a pipeline, what is damaged, and what the API server does not find."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from airflow_ft.plugins import savepoints as api_savepoints

from airflow_ft.spark.savepoints.metadata import METADATA
from airflow_ft.spark.savepoints.taking import take
from airflow_ft.wal.local import local_path
from tests.plugins.conftest import Asking
from tests.state.scene import Pipeline
from tests.store.scene import PIPELINE

pytestmark = pytest.mark.airflow


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "savepoints"


def _taken(scene: Pipeline, folder: Path) -> Path:
    return local_path(take(scene.store, PIPELINE, str(folder), "a test")[0])


def _savepoints(ask: Asking) -> dict[str, Any]:
    answer = ask(f"{PIPELINE}/savepoints")
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def test_savepoints_are_listed_and_shown(scene: Pipeline, ask: Asking, folder: Path) -> None:
    scene.confirmed({"a": 1})
    answer = _savepoints(ask)
    assert (answer["folder"], answer["savepoints"]) == (folder.as_uri(), [])
    older = _taken(scene, folder)
    scene.confirmed({"a": 2})
    scene.published({"a": 3})
    newer = _taken(scene, folder)
    newer = newer.rename(folder / "before the great change")  # by a person: found all the same
    answer = _savepoints(ask)
    assert [each["number"] for each in answer["checkpoints"]] == [2, 1]
    assert [(each["name"], each["checkpoint"], each["problem"]) for each in answer["savepoints"]] == [
        ("before the great change", 2, ""),
        (older.name, 1, ""),
    ]
    assert answer["savepoints"][0]["uri"] == newer.as_uri() and answer["savepoints"][0]["taken_by"] == "a test"
    shown = ask(f"{PIPELINE}/savepoints/{newer.name}").json()
    assert (shown["checkpoint"], shown["batch"], shown["backend"]) == (2, 1, "HDFSBackedStateStoreProvider")
    [operator] = shown["operators"]
    assert operator["states"] == {"default key": "k string", "default value": "count long"}
    assert shown["positions"] and shown["rows"] == {"orders": 10, "alerts": 1} and shown["files"] > 3
    assert shown["problem"] == "" and shown["versions"]["airflow-ft"]


def test_damaged_and_unfinished_ones_are_told_as_such(scene: Pipeline, ask: Asking, folder: Path) -> None:
    scene.confirmed({"a": 1})
    whole, cut, unfinished = (_taken(scene, folder) for _ in range(3))
    (cut / METADATA).write_bytes(b"{")
    (unfinished / METADATA).unlink()
    found = {each["name"]: each for each in _savepoints(ask)["savepoints"]}
    assert set(found) == {whole.name, cut.name, unfinished.name}
    assert found[whole.name]["readable"] and not found[cut.name]["readable"]
    assert "cannot be read" in found[cut.name]["problem"] and "not finished" in found[unfinished.name]["problem"]
    assert ask(f"{PIPELINE}/savepoints/{unfinished.name}").status_code == 400
    assert ask(f"{PIPELINE}/savepoints/{cut.name}").status_code == 503
    state = next(path for path in (whole / "spark").rglob("*.delta"))
    state.write_bytes(state.read_bytes() + b"!")
    assert (
        f"spark/{state.relative_to(whole / 'spark')} is not what was written"
        in (ask(f"{PIPELINE}/savepoints/{whole.name}").json()["problem"])
    )


def test_those_of_others_are_neither_listed_nor_shown(
    scene: Pipeline, ask: Asking, folder: Path, tmp_path: Path
) -> None:
    from tests.spark.test_savepoints import saved_scene

    scene.confirmed({"a": 1})
    (tmp_path / "other").mkdir()
    with saved_scene(tmp_path / "other") as other:  # another decision log, which has a pipeline of this name
        foreign = local_path(take(other.store, PIPELINE, str(folder), "a test")[0])
    (folder / "savepoint-orders-of-others-3-0a1b2c3d").mkdir()
    (folder / "notes").mkdir()
    (folder / "notes" / "secret.txt").write_text("no savepoint")
    assert _savepoints(ask)["savepoints"] == []
    for name in (foreign.name, "nothing", "..%2Fft.db", "%2e%2e"):
        answer = ask(f"{PIPELINE}/savepoints/{name}")
        assert answer.status_code == 404, (name, answer.text)
    assert ask(f"{PIPELINE}/savepoints/notes").status_code == 400


def test_a_folder_that_is_not_mounted_is_told(
    scene: Pipeline, ask: Asking, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.confirmed({"a": 1})
    _taken(scene, folder)
    shutil.rmtree(folder)
    answer = ask(f"{PIPELINE}/savepoints")
    assert answer.status_code == 503 and folder.as_uri() in answer.json()["detail"]
    assert answer.json()["code"] == "wrong_disk"
    monkeypatch.setenv("AIRFLOW__AIRFLOW_FT__SAVEPOINT_DIR", "s3://bucket/savepoints")
    answer = ask(f"{PIPELINE}/savepoints")
    assert answer.status_code == 503 and "s3://bucket/savepoints" in answer.json()["detail"]


def test_no_more_are_looked_at_than_a_hundred(
    scene: Pipeline, ask: Asking, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.confirmed({"a": 1})
    _taken(scene, folder)
    scene.confirmed({"a": 2})
    for _ in range(2):
        _taken(scene, folder)
    monkeypatch.setattr(api_savepoints, "MOST", 2)
    answer = _savepoints(ask)
    assert [each["checkpoint"] for each in answer["savepoints"]] == [2, 2] and answer["left_out"] == 1
