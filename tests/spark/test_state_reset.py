"""Dropping operator state: what the new location tells Spark, and a process that dies at any step of making it."""

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_ft.protocol.errors import ConfigurationError, StateConflictError, WalCorruptError
from airflow_ft.protocol.from_savepoint import Later
from airflow_ft.protocol.lease import Worker
from airflow_ft.protocol.model import SparkPosition
from airflow_ft.sources import KafkaSource
from airflow_ft.spark.savepoints.beginning import start_from_scratch
from airflow_ft.spark.state.beginnings import Beginnings
from airflow_ft.spark.state.left_sources import keep_left_position, left_positions
from airflow_ft.spark.state.locations import (
    SparkLocation,
    check_sources,
    incarnation_in,
    incarnation_of,
    open_location,
    remember_incarnation,
)
from airflow_ft.spark.state.reset import reset_state
from airflow_ft.spark.state.source_changes import change_sources, source_change
from airflow_ft.spark.state.status import recorded_ids
from airflow_ft.store import open_store
from airflow_ft.store.decision_log import DecisionLog
from airflow_ft.wal.local import LocalFileSystem, local_path
from airflow_ft.wal.retention import sweep
from tests.raising import raises
from tests.store.scene import LATER_RUN, PIPELINE, RUN, Scene, a_segment

KAFKA = {"orders": {"0": 17, "1": 4}}
NAMES = ["orders", "files", "later"]


class Died(BaseException):
    """The process was killed."""


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    store = open_store(f"sqlite:///{tmp_path}/ft.db")
    scene = Scene(store)
    scene.complete(scene.stage(1)[0])
    store.end_stage(PIPELINE, scene.epoch, RUN, SparkPosition(_location(tmp_path).as_uri(), 1))
    yield scene
    store.close()


def _location(root: Path, name: str = "1-1") -> Path:
    """After batch 1: Kafka, a log of files up to id 1 (2 was never published), and a source that has read nothing."""
    path = root / PIPELINE / "spark" / name
    lines = [json.dumps(KAFKA), json.dumps({"logOffset": 1}), "-"]
    texts = {"offsets/1": "\n".join(["v1", "{}", *lines]), "commits/1": "v1\n{}", "metadata": "{}"}
    texts |= {"sources/0/0": '\0v1\n{"orders":{"0":3}}', "state/0/0/2.zip": "state", "state/0/_metadata/v2/0": "v2\n{}"}
    texts |= {f"sources/1/{n}": f'v1\n{{"path":"file:///in/{n}","timestamp":{n},"batchId":{n}}}' for n in range(3)}
    for name, text in {**texts, "airflow_ft_sources.json": json.dumps(NAMES)}.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text(text)
    return path


def _reset(scene: Scene, *forget: str) -> SparkPosition | None:
    return reset_state(scene.store, PIPELINE, scene.take("a person"), "a test", forget=forget)


def _files(uri: str) -> dict[str, str]:
    base = local_path(uri)
    return {str(path.relative_to(base)): path.read_text() for path in base.rglob("*") if path.is_file()}


def test_the_new_location_tells_each_source_where_it_stands(scene: Scene) -> None:
    position = _reset(scene)
    assert position is not None and position.batch == -1
    found = _files(position.location)
    assert found.pop("sources/0/0") == '\0v1\n{"orders":{"0":17,"1":4}}'
    assert found.pop("sources/1/0").splitlines() == [
        "v1",
        '{"path":"file:///in/0","timestamp":0,"batchId":4611686018427387904}',
        '{"path":"file:///in/1","timestamp":1,"batchId":4611686018427387904}',
    ]
    assert json.loads(found.pop("airflow_ft_start.json")) == [KAFKA, {"logOffset": 0}, None]
    assert json.loads(found.pop("airflow_ft_sources.json")) == NAMES
    assert not found, "no state, no offsets"


def test_attempts_begin_there_in_place_and_in_copies(scene: Scene, tmp_path: Path) -> None:
    """What an attempt leaves that published nothing is dropped, also its state and what it logged as read."""
    position = _reset(scene)
    assert position is not None
    begun = open_location(str(tmp_path), PIPELINE, 3, 1, position, True)
    assert begun.uri == position.location and begun.offsets(-1) == [KAFKA, {"logOffset": 0}, None]
    with raises(ConfigurationError, "sources_changed", pipeline=PIPELINE):
        check_sources(begun, ["files", "orders", "later"])
    before = _files(begun.uri)
    logged = 'v1\n{"path":"file:///in/2","timestamp":2,"batchId":1}'
    for name in ("offsets/0", "state/0/0/1.zip", "state/0/0/SSTs/a.sst", "sources/1/1", "sources/2/0"):
        (local_path(begun.uri) / name).parent.mkdir(parents=True, exist_ok=True)
        (local_path(begun.uri) / name).write_text(logged)
    copy = open_location(str(tmp_path), PIPELINE, 4, 2, position, False)
    assert _files(copy.uri) == before
    (local_path(copy.uri) / "airflow_ft_start.json").unlink()
    with raises(WalCorruptError, "state_files_missing", batch=-1):
        open_location(str(tmp_path), PIPELINE, 5, 3, SparkPosition(copy.uri, -1), False)


def test_a_source_that_cannot_be_told_where_to_begin_is_named(scene: Scene, tmp_path: Path) -> None:
    offsets = tmp_path / PIPELINE / "spark/1-1/offsets/1"
    offsets.write_text(offsets.read_text().replace(json.dumps(KAFKA), "42"))
    base = scene.store.pipeline(PIPELINE).base
    with raises(ConfigurationError, "source_position_unsupported", source="orders", offset=42):
        _reset(scene)
    assert scene.store.pipeline(PIPELINE).base == base


def _dying(where: type, name: str, at: int, before: bool, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The process dies in the call number `at` of a method, before or after it; returns the calls so far."""
    whole: Callable[..., Any] = getattr(where, name)
    calls: list[int] = []

    def call(*arguments: Any, **more: Any) -> Any:
        calls.append(len(calls))
        if before and len(calls) == at:
            raise Died
        found = whole(*arguments, **more)
        if not before and len(calls) == at:
            raise Died
        return found

    monkeypatch.setattr(where, name, call)
    return calls


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
@pytest.mark.parametrize(
    ("name", "at"), [("write", 1), ("write", 2), ("replace", 1), ("replace", 2), ("sync_tree", 1), ("reset_state", 1)]
)
def test_who_dies_leaves_the_old_base_or_the_new_one(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, at: int, before: bool
) -> None:
    old = scene.store.pipeline(PIPELINE).base
    assert old is not None
    kept = _files(old.location)
    with monkeypatch.context() as patch:
        where = type(scene.store) if name == "reset_state" else LocalFileSystem
        calls = _dying(where, name, at, before, patch)
        with pytest.raises(Died):
            _reset(scene)
        assert len(calls) == at
    done = name == "reset_state" and not before
    assert (scene.store.pipeline(PIPELINE).base == old) == (not done)
    assert _files(old.location) == kept, "nobody touches the old one"
    again = _reset(scene)
    assert (again is None) == done
    base = scene.store.pipeline(PIPELINE).base
    assert base is not None and base.batch == -1
    _swept(scene.store, tmp_path)
    assert {path.name for path in (tmp_path / PIPELINE / "spark").iterdir()} == {local_path(base.location).name}


def _swept(store: DecisionLog, root: Path) -> None:
    """As a run does after it: nobody needs what a dead one has left, nor the old location."""
    sweep(str(root), PIPELINE, store.referenced_locations(PIPELINE), store.pipeline(PIPELINE).epoch + 1)


def _publish(scene: Scene, location: str, positions: dict[str, Any], batch: int = 2) -> None:
    number, before = scene.trigger(LATER_RUN), scene.store.pipeline(PIPELINE).last_published
    position = SparkPosition(location, batch)
    scene.store.publish(PIPELINE, scene.epoch, number, before, a_segment(number), position, positions)
    scene.complete(number)


def _rewound(scene: Scene, location: str, positions: dict[str, Any], batch: int) -> None:
    number, before = scene.trigger(LATER_RUN), scene.store.pipeline(PIPELINE).last_published
    position = SparkPosition(location, batch)
    scene.store.publish(PIPELINE, scene.epoch, number, before, a_segment(number), position, positions)
    scene.store.rewind(PIPELINE, scene.epoch, number, scene.store.position_before(PIPELINE, number), "a test")


def test_the_log_replaces_a_lost_location_of_kafka_sources(scene: Scene, tmp_path: Path) -> None:
    """Only the decision log was restored. The job does not read its sources in the order of their names."""
    lost = tmp_path / PIPELINE / "spark" / "1-1"
    logs = {"logs": {"0": 5}}
    positions = {
        "orders": {"start": None, "end": KAFKA, "topic_ids": {"orders": "an id"}},
        "logs": {"start": None, "end": logs},
    }
    _publish(scene, lost.as_uri(), positions)
    shutil.rmtree(lost)
    position = _reset(scene)
    assert position is not None and position.batch == -1
    found = _files(position.location)
    assert found["sources/0/0"] == '\0v1\n{"logs":{"0":5}}'
    assert found["sources/1/0"] == '\0v1\n{"orders":{"0":17,"1":4}}'
    assert recorded_ids(SparkLocation.of(position)) == {1: {"orders": "an id"}}
    change = source_change(PIPELINE, position, ["orders", "logs"])
    assert change is not None
    copy = open_location(str(tmp_path), PIPELINE, 9, 9, position, False)
    change_sources(change, copy, [0, 1])
    assert copy.offsets(-1) == [KAFKA, logs]
    assert _files(copy.uri)["sources/0/0"] == '\0v1\n{"orders":{"0":17,"1":4}}'


def _next(tmp_path: Path, position: SparkPosition, *names: str) -> SparkLocation:
    """The copy of an attempt whose job reads these sources."""
    change = source_change(PIPELINE, position, names)
    assert change is not None
    copy = open_location(str(tmp_path), PIPELINE, 9, 9, position, False)
    change_sources(change, copy, range(len(names)))
    return copy


def test_a_left_out_source_continues_after_a_lost_location(scene: Scene, tmp_path: Path) -> None:
    lost = tmp_path / PIPELINE / "spark" / "1-1"
    orders, logs = (
        {"start": None, "end": KAFKA},
        {"start": None, "end": {"logs": {"0": 5}}, "topic_ids": {"logs": "id"}},
    )
    undone = {"start": None, "end": {"logs": {"0": 9}}}
    _publish(scene, lost.as_uri(), {"orders": orders, "logs": {**logs, "end": {"logs": {"0": 2}}}})
    _publish(scene, lost.as_uri(), {"orders": orders, "logs": logs}, 3)
    _publish(scene, lost.as_uri(), {"orders": orders}, 4)
    _rewound(scene, lost.as_uri(), {"orders": orders, "logs": undone}, 5)
    shutil.rmtree(lost)
    position = _reset(scene)
    assert position is not None
    again = _next(tmp_path, position, "orders", "logs")
    assert again.offsets(-1) == [KAFKA, {"logs": {"0": 5}}] and recorded_ids(again) == {1: {"logs": "id"}}
    assert _files(again.uri)["sources/1/0"] == '\0v1\n{"logs":{"0":5}}'


def test_a_source_of_an_earlier_life_begins_after_a_loss(scene: Scene, tmp_path: Path) -> None:
    """A full refresh reads it from its start again."""
    orders, logs = {"start": None, "end": KAFKA}, {"start": None, "end": {"logs": {"0": 5}}}
    _publish(scene, (tmp_path / PIPELINE / "spark" / "1-1").as_uri(), {"orders": orders, "logs": logs})
    unused: Any = None  # nothing is delivered
    start_from_scratch(scene.store, PIPELINE, unused, Worker(), "a test", Later.WRITE_AGAIN, None, 0.1)
    scene.take()
    lost = _location(tmp_path, "8-1")
    _publish(scene, lost.as_uri(), {"orders": orders})
    shutil.rmtree(lost)
    position = _reset(scene)
    assert position is not None
    assert _next(tmp_path, position, "orders", "logs").offsets(-1) == [KAFKA, None]


def test_a_lost_position_of_a_left_out_source_is_named(scene: Scene, tmp_path: Path) -> None:
    """Else each of its files would be read again once the job uses it again."""
    lost = tmp_path / PIPELINE / "spark" / "1-1"
    orders, files = {"start": None, "end": KAFKA}, {"start": None, "end": {"logOffset": 3}}
    _publish(scene, lost.as_uri(), {"orders": orders, "files": files})
    _publish(scene, lost.as_uri(), {"orders": orders}, 3)
    shutil.rmtree(lost)
    base = scene.store.pipeline(PIPELINE).base
    with raises(WalCorruptError, "state_files_missing", sources=["files"]) as caught:
        _reset(scene)
    assert (
        caught.error is not None and f"airflow ft reset-state {PIPELINE} --forget-source files" in caught.error.remedy
    )
    with raises(ConfigurationError, "source_not_left_out", sources=["logs", "orders"], left_out=["files"]):
        _reset(scene, "files", "orders", "logs")
    assert scene.store.pipeline(PIPELINE).base == base
    position = _reset(scene, "files")
    assert position is not None
    assert _next(tmp_path, position, "orders", "files").offsets(-1) == [KAFKA, None]


def test_a_forgotten_source_begins_at_its_start(scene: Scene, tmp_path: Path) -> None:
    base = scene.store.pipeline(PIPELINE).base
    assert base is not None
    for name in ("old/ files", "logs"):
        keep_left_position(SparkLocation.of(base), name, json.dumps(KAFKA), {}, is_stored=False)
    with raises(ConfigurationError, "source_not_left_out", sources=["files"], left_out=["logs", "old/ files"]):
        _reset(scene, "files")
    position = _reset(scene, "old/ files")
    assert position is not None and list(left_positions(SparkLocation.of(position))) == ["logs"]
    assert _reset(scene, "old/ files") is None, "repeated, it does nothing"
    with raises(StateConflictError, "action_refused", sources=["logs"]):
        _reset(scene, "logs")


def test_the_log_knows_in_which_life_a_lost_location_was(scene: Scene, tmp_path: Path) -> None:
    """Since a full refresh another source was added at "latest", and an attempt that published nothing has frozen that.

    In an earlier life it would begin at the present end, and pass over what came since.
    """
    root, refunds = str(tmp_path), KafkaSource(topics=["refunds"], starting_offsets="latest").to_json()
    unused: Any = None  # nothing is delivered
    refresh = (scene.store, PIPELINE, unused, Worker(), "a test", Later.WRITE_AGAIN, None, 0.1)
    life = incarnation_of(start_from_scratch(*refresh))
    assert life
    scene.take()
    lost = SparkLocation(root, PIPELINE, _location(tmp_path, "8-1").as_uri(), 1)
    remember_incarnation(lost, life)
    _publish(scene, lost.uri, {"orders": {"start": None, "end": KAFKA}})
    looked_up = _location(tmp_path, "8-2")
    (looked_up / "sources/0/0").write_text('\0v1\n{"refunds":{"0":100}}')
    frozen = Beginnings(root, PIPELINE, life, {"refunds": refunds})
    frozen.freeze(SparkLocation(root, PIPELINE, looked_up.as_uri(), -1), {0: "refunds"}, lambda _: {})
    shutil.rmtree(local_path(lost.uri))
    position = _reset(scene)
    assert position is not None
    found = replace(frozen, incarnation=incarnation_in(position.location)).read({0: "refunds"})
    assert {index: each.offsets for index, each in found.items()} == {0: {"refunds": {"0": 100}}}


@pytest.mark.parametrize("case", ["files", "no position", "restored"])
def test_a_lost_location_is_refused_if_the_log_lacks_positions(scene: Scene, tmp_path: Path, case: str) -> None:
    lost = tmp_path / PIPELINE / "spark" / "1-1"
    end: Any = {"logOffset": 3} if case == "files" else KAFKA
    _publish(scene, lost.as_uri(), {} if case == "no position" else {"orders": {"start": None, "end": end}})
    if case == "restored":
        epoch = scene.take("a person")
        lost = tmp_path / PIPELINE / "spark" / f"{epoch}-0"
        scene.store.restore(PIPELINE, epoch, SparkPosition(lost.as_uri(), 1), "a test")
    shutil.rmtree(lost, ignore_errors=True)
    base = scene.store.pipeline(PIPELINE).base
    with raises(WalCorruptError, "state_files_missing"):
        _reset(scene)
    assert scene.store.pipeline(PIPELINE).base == base
