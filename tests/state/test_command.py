"""`airflow ft state ...` by way of Airflow's own parser."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from airflow_ft.spark.savepoints.taking import take
from tests.raising import raises
from tests.state.scene import Pipeline, pipeline
from tests.store.scene import PIPELINE

pytestmark = pytest.mark.airflow


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Pipeline]:
    with pipeline(tmp_path) as scene:
        scene.confirmed({"a": 1, "null": 5})
        scene.confirmed({"a": 2, "b": 1})
        yield scene


@pytest.fixture
def ft(scene: Pipeline, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Runs a command; returns what it printed."""
    from airflow.cli.cli_parser import get_parser

    def run(*arguments: str) -> str:
        args = get_parser().parse_args(["ft", "state", *arguments, "--store", f"sqlite:///{tmp_path}/ft.db"])
        args.func(args)
        return capsys.readouterr().out

    return run


def test_it_is_shown_looked_up_exported_and_compared(ft: Callable[..., str], tmp_path: Path) -> None:
    [row] = json.loads(ft("show", PIPELINE, "-o", "json"))
    assert row.pop("size of operator") > 0
    assert row == {
        "operator": 0,
        "name": "stateStoreSave",
        "state": "default",
        "kind": "value",
        "key": "k string",
        "value": "count bigint",
        "keys": 3,
        "partitions": 1,
    }
    shown = ft("show", PIPELINE)
    assert "orders as of checkpoint 2" in shown and "stateStoreSave" in shown
    assert json.loads(ft("get", PIPELINE, "0", "a")) == {"count": 2}
    assert json.loads(ft("get", PIPELINE, "0", "a", "--at", "1")) == {"count": 1}
    assert json.loads(ft("get", PIPELINE, "0", '"null"', "--state", "default")) == {"count": 5}
    lines = [json.loads(line) for line in ft("changes", PIPELINE, "0", "--since", "1").splitlines()]
    assert sorted((line["key"]["k"], line["change"]) for line in lines) == [("a", "changed"), ("b", "added")]
    assert ft("changes", PIPELINE, "0", "--since", "1", "--until", "1") == ""
    file = tmp_path / "counts.json"
    assert f"3 entries as of checkpoint 2: {file}" in ft("export", PIPELINE, "0", str(file))
    assert len(file.read_text().splitlines()) == 3


def test_a_savepoint_is_given_by_its_folder(scene: Pipeline, ft: Callable[..., str], tmp_path: Path) -> None:
    uri, _ = take(scene.store, PIPELINE, str(tmp_path / "savepoints"), "a test")
    scene.confirmed({"a": 3})
    assert json.loads(ft("get", uri, "0", "a")) == {"count": 2}
    with raises(SystemExit, "checkpoint_unknown", found=2, value=1):
        ft("get", uri, "0", "a", "--at", "1")


def test_mistakes_are_told_without_a_traceback(ft: Callable[..., str], tmp_path: Path) -> None:
    for key in ("nobody", "null"):
        with raises(SystemExit, "key_unknown"):
            ft("get", PIPELINE, "0", key)
    with raises(SystemExit) as unknown:
        ft("get", "other", "0", "a")
    assert unknown.error is not None and "'other'" in unknown.error.headline
    for arguments, code, fields in (
        (("get", PIPELINE, "0"), "key_invalid", {"columns": ["k"], "count": 0}),
        (("get", PIPELINE, "1", "a"), "operator_unknown", {"operator": "1"}),
        (("export", PIPELINE, "0", "counts.xml"), "path_invalid", {"path": str(Path.cwd() / "counts.xml")}),
        (
            ("export", PIPELINE, "0", str(tmp_path / "no" / "counts.csv")),
            "path_invalid",
            {"path": str(tmp_path / "no")},
        ),
        (("changes", PIPELINE, "0", "--since", "2", "--until", "1"), "arguments_conflict", {"since": 2, "until": 1}),
        (("show", str(tmp_path)), "savepoint_missing", {}),
    ):
        with raises(SystemExit, code, **fields):
            ft(*arguments)
