"""Operator state on the page: who may see which of it, what is answered, and what it costs the API server."""

import gc
import shutil
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from airflow_ft.plugins import handles as handles_module
from airflow_ft.plugins import state as api_state
from airflow_ft.plugins import turns
from airflow_ft.plugins.handles import Handles

from airflow_ft.state import positions
from tests.plugins.conftest import Asking
from tests.state.scene import Pipeline
from tests.store.scene import PIPELINE

pytestmark = pytest.mark.airflow


def _values(answer: Any) -> Any:
    assert answer.status_code == 200, answer.text
    return [entry["value"] for state in answer.json()["states"] for entry in state["entries"]]


def test_a_key_is_looked_up_at_the_newest_confirmed_checkpoint(scene: Pipeline, ask: Asking) -> None:
    scene.confirmed({"a": 1})
    scene.confirmed({"a": 2, "b": 1, "null": 5})
    scene.published({"a": 3})
    answer = ask(f"{PIPELINE}/state").json()
    [operator] = answer["operators"]
    assert (answer["checkpoint"], answer["checkpoints"], answer["may_look_up"]) == (2, [2, 1], True)
    assert (operator["id"], operator["name"], operator["partitions"]) == (0, "stateStoreSave", 1)
    assert operator["bytes"] > 0 and operator["problem"] == ""
    assert operator["states"] == [
        {
            "name": "default",
            "kind": "value",
            "key": [{"name": "k", "type": "string", "example": "text"}],
            "value": [{"name": "count", "type": "bigint"}],
            "ttl": False,
        }
    ]
    found = ask(f"{PIPELINE}/state", operator="0", key=["a"])
    assert found.json() == {
        "checkpoint": 2,
        "states": [
            {
                "name": "default",
                "kind": "value",
                "entries": [{"at": None, "value": {"count": 2}, "expires": None}],
                "cut": False,
            }
        ],
    }
    assert _values(ask(f"{PIPELINE}/state", operator="0", key=["a"], at=1)) == [{"count": 1}]
    assert _values(ask(f"{PIPELINE}/state", operator="0", key=['"null"'])) == [{"count": 5}]
    assert _values(ask(f"{PIPELINE}/state", operator="0", key=["nobody"])) == []
    scene.complete(3)
    assert _values(ask(f"{PIPELINE}/state", operator="0", key=["a"])) == [{"count": 3}], (
        "what was open is no more asked"
    )


def test_what_is_asked_wrongly_is_told(scene: Pipeline, ask: Asking) -> None:
    scene.published({"a": 1})
    answer = ask(f"{PIPELINE}/state")
    assert answer.status_code == 400 and PIPELINE in answer.json()["detail"]
    scene.complete(1)
    for question, code in (
        ({"operator": "1", "key": ["a"]}, "operator_unknown"),
        ({"operator": "0", "key": []}, "key_invalid"),
        ({"operator": "0", "key": ["a"], "state": "visits"}, "argument_invalid"),
    ):
        answer = ask(f"{PIPELINE}/state", **question)
        assert (answer.status_code, answer.json()["code"]) == (400, code), (question, answer.text)
    answer = ask(f"{PIPELINE}/state", operator="0", key=["a"], at=7)
    assert answer.status_code == 400 and "checkpoint 7" in answer.json()["detail"]
    assert ask(f"{PIPELINE}/state", operator="0").status_code == 422


@pytest.mark.parametrize("role", ["viewer", "user", "op", "admin"])
def test_every_role_that_sees_the_dag_sees_the_state(role: str, scene: Pipeline, ask: Asking) -> None:
    scene.confirmed({"a": 1})
    assert ask(f"{PIPELINE}/state", by=role).status_code == 200
    assert _values(ask(f"{PIPELINE}/state", by=role, operator="0", key=["a"])) == [{"count": 1}]


def test_who_may_not_see_the_dag_is_told_nothing(scene: Pipeline, ask: Asking) -> None:
    scene.confirmed({"a": 1})
    assert ask("", team=None).json()["pipelines"] == []
    for path in ("state", "savepoints", "savepoints/x"):
        answer = ask(f"{PIPELINE}/{path}", team=None)
        unknown = ask(f"other/{path}")
        assert answer.status_code == unknown.status_code == 404
        assert answer.text.replace(PIPELINE, "other") == unknown.text, "it cannot be told from one that there is not"
    assert ask(f"{PIPELINE}/state", team=None, operator="0", key=["a"]).status_code == 404


def test_values_are_for_those_who_may_read_xcoms(scene: Pipeline, ask: Asking) -> None:
    scene.confirmed({"a": 1})
    ask.keep_from("XCOM")
    answer = ask(f"{PIPELINE}/state").json()
    assert answer["may_look_up"] is False and answer["operators"], "its shape is no value"
    refused = ask(f"{PIPELINE}/state", operator="0", key=["a"])
    assert refused.status_code == 403 and refused.json()["code"] == "permission_missing"
    assert "XComs of dag" in refused.json()["detail"]


def test_missing_state_files_are_reported_with_a_remedy(
    scene: Pipeline, ask: Asking, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.confirmed({"a": 1})
    shutil.rmtree(scene.counts.path)
    answer = ask(f"{PIPELINE}/state", operator="0", key=["a"])
    assert (answer.status_code, answer.json()["code"]) == (503, "state_files_missing")
    assert scene.counts.path.as_uri() in answer.json()["detail"]
    shutil.rmtree(scene.root)
    answer = ask(f"{PIPELINE}/state")
    assert (answer.status_code, answer.json()["code"]) == (503, "storage_unavailable")
    assert "\nFix: " in answer.json()["detail"]
    monkeypatch.setenv("AIRFLOW__AIRFLOW_FT__STORE", f"sqlite:///{tmp_path}/ft.db/below-a-file/ft.db")
    answer = ask(f"{PIPELINE}/state")
    assert answer.status_code == 503 and "below-a-file" in answer.json()["detail"]


def test_unreadable_folders_and_missing_packages_are_reported(
    scene: Pipeline, ask: Asking, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.confirmed({"a": 1})
    with monkeypatch.context() as patch:
        refused = PermissionError(13, "Permission denied", "/wal/x")
        patch.setattr("airflow_ft.wal.local.LocalFileSystem.names", _raising(refused))
        answer = ask(f"{PIPELINE}/state")
        assert (answer.status_code, answer.json()["code"]) == (503, "storage_unavailable")
        assert "Permission denied: '/wal/x'" in answer.json()["detail"] and "\nFix: " in answer.json()["detail"]
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    answer = ask(f"{PIPELINE}/state", operator="0", key=["a"])
    assert (answer.status_code, answer.json()["code"]) == (503, "package_missing")
    assert "pyarrow" in answer.json()["detail"] and "\nFix: " in answer.json()["detail"]


def _raising(error: Exception) -> Any:
    def raising(*_: Any) -> Any:
        raise error

    return raising


def test_the_next_look_opens_nothing_and_nothing_is_left_open(
    scene: Pipeline, ask: Asking, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.confirmed({"a": 1})
    opened: list[str] = []
    closed: list[int] = []
    from airflow_ft.state import handle as handle_module

    gc.collect()  # closes what earlier tests have opened
    real = handle_module.open_version
    monkeypatch.setattr(
        handle_module, "open_version", lambda folder, *more: (opened.append(folder), real(folder, *more))[1]
    )
    close = handle_module.State.close
    monkeypatch.setattr(handle_module.State, "close", lambda self: (closed.append(self.number), close(self))[1])
    for key in ("a", "b", "a"):
        ask(f"{PIPELINE}/state", operator="0", key=[key])
    assert ask(f"{PIPELINE}/state", operator="0", key=[]).status_code == 400
    ask(f"{PIPELINE}/state", operator="0", key=["a"])
    assert len(opened) == 1, "also after a bad question"
    scene.confirmed({"a": 2})
    assert _values(ask(f"{PIPELINE}/state", operator="0", key=["a"])) == [{"count": 2}]
    assert len(opened) == 2 and closed == [1]
    kept = api_state.handles
    kept._clock = lambda: 1e12
    assert kept.close_idle() == 0 and closed == [1, 2]


def test_concurrent_lookups_use_two_handles_and_keep_one(scene: Pipeline) -> None:
    scene.confirmed({"a": 1})
    scene.confirmed({"a": 2})
    now = 0.0
    handles = Handles(kept=1, idle=5, clock=lambda: now)
    one, two = (positions.confirmed(scene.store, PIPELINE, number) for number in (1, 2))
    with handles.lent(PIPELINE, two) as first, handles.lent(PIPELINE, two) as second:
        assert first is not second
    with handles.lent(PIPELINE, two) as again:
        assert again in (first, second)
    with handles.lent(PIPELINE, one) as other:
        assert other is not again
    with handles.lent("another", two) as foreign, pytest.raises(RuntimeError):
        assert foreign is not again
        with handles.lent(PIPELINE, one) as same:
            assert same is other
            raise RuntimeError
    assert handles.close_idle() == 1
    now = 5.0
    assert handles.close_idle() == 0


def test_a_handle_that_cannot_be_closed_keeps_no_other_from_it(
    scene: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else nothing would be closed any more, and each handle keep the disk space of its files."""
    scene.confirmed({"a": 1})
    now = 0.0
    handles = Handles(idle=5, clock=lambda: now)
    at = positions.confirmed(scene.store, PIPELINE, 1)
    closed: list[str] = []
    for name in ("one", "two"):
        with handles.lent(name, at) as handle:

            def close(name: str = name) -> None:
                closed.append(name)
                if name == "one":
                    raise OSError(5, "Input/output error")

            monkeypatch.setattr(handle, "close", close)
    assert handles._timer is not None
    now = 5.0
    assert handles.close_idle() == 0
    assert closed == ["one", "two"]
    with handles.lent("three", at):
        pass
    assert handles._timer is not None, "it is watched again"
    now = 10.0
    assert handles.close_idle() == 0


def test_large_state_and_large_answers_are_refused(
    scene: Pipeline, ask: Asking, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.confirmed({"a": 1})
    monkeypatch.setattr(api_state, "MOST_BYTES", 50)
    answer = ask(f"{PIPELINE}/state", operator="0", key=["a"])
    assert (answer.status_code, answer.json()["code"]) == (413, "state_too_large")
    assert "airflow ft state get" in answer.json()["detail"]
    monkeypatch.undo()


def test_state_that_would_fill_the_memory_is_refused(
    scene: Pipeline, ask: Asking, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.confirmed({"a": 1})
    size = scene.counts.file(0).stat().st_size
    monkeypatch.setattr(handles_module, "BYTES", size - 1)
    answer = ask(f"{PIPELINE}/state", operator="0", key=["a"])
    assert (answer.status_code, answer.json()["code"]) == (400, "state_too_large")
    assert f"{size} bytes" in answer.json()["detail"]


def test_no_more_requests_read_files_than_may(scene: Pipeline, ask: Asking, monkeypatch: pytest.MonkeyPatch) -> None:
    scene.confirmed({"a": 1})
    monkeypatch.setattr(turns, "WAIT_SECONDS", 0)
    with ExitStack() as others:
        for _ in range(handles_module.AT_ONCE):
            others.enter_context(handles_module.turn())
        for path in ("state", "savepoints"):
            assert ask(f"{PIPELINE}/{path}").status_code == 503
    assert ask(f"{PIPELINE}/state").status_code == 200


def test_numbers_that_a_browser_would_change_are_texts(tmp_path: Path) -> None:
    encoded = api_state._json(
        {"id": (1 << 53) + 1, "n": 1 << 53, "x": float("nan"), "in": [float("inf"), True, None, 1.5]}
    )
    assert encoded == {"id": "9007199254740993", "n": 1 << 53, "x": "nan", "in": ["inf", True, None, 1.5]}
