"""Which checkpoint a handle shows, while the pipeline goes on, prunes and dies; bad questions."""

import json
import math
import shutil
from collections.abc import Iterator
from pathlib import Path

import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from airflow_ft import state
from airflow_ft.jobs.uids import Identity
from airflow_ft.protocol import known_roots
from airflow_ft.protocol.errors import ConfigurationError, StorageUnavailableError, TransientError, WalCorruptError
from airflow_ft.protocol.lookup import retained
from airflow_ft.protocol.model import SparkPosition
from airflow_ft.spark.savepoints.taking import take
from airflow_ft.spark.state.locations import SparkLocation
from airflow_ft.spark.state.operators import remember
from airflow_ft.spark.state.schemas import states
from airflow_ft.state.export import plain
from airflow_ft.state.rows import StateColumn
from airflow_ft.wal import roots
from airflow_ft.wal.local import local_path
from tests.raising import raises
from tests.state.scene import CONF, PROVIDERS, VALUE, Counts, Pipeline, pipeline
from tests.store.scene import PIPELINE


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Pipeline]:
    with pipeline(tmp_path) as scene:
        yield scene


def test_a_handle_shows_one_confirmed_checkpoint_until_refreshed(scene: Pipeline) -> None:
    scene.confirmed({"a": 1, "b": 1})
    with state.open(PIPELINE, store=scene.store) as found:
        [operator] = found.operators()
        assert (operator.name, found.number) == ("stateStoreSave", 1)
        assert found.get(0, "a") == {"count": 1} and found.get(0, "c") is None
        scene.published({"a": 2})
        assert not found.refresh() and found.get(0, "a") == {"count": 1}, "nobody has confirmed that"
        scene.complete(2)
        assert found.get(0, "a") == {"count": 1}, "it stays where it is"
        assert found.refresh() and found.number == 2
        assert found.get(0, {"k": "a"}) == {"count": 2} and found.get(0, ("b",)) == {"count": 1}
        assert {entry.key["k"]: entry.value["count"] for entry in found.scan(0)} == {"a": 2, "b": 1}
        assert found.count(0) == 2


def test_a_column_may_have_a_character_of_two_surrogates(scene: Pipeline) -> None:
    scene.counts.write_schema((StateColumn("k💰", "string"),), VALUE)
    scene.confirmed({"a": 1})
    assert [*states(SparkLocation("", PIPELINE, scene.counts.path.as_uri(), 0, "copied"))] == [(0, "default")]
    with state.open(PIPELINE, store=scene.store) as found:
        assert found.get(0, {"k💰": "a"}) == {"count": 1}


def test_a_snapshot_a_removal_and_what_came_after(scene: Pipeline) -> None:
    scene.confirmed({"a": 1, "b": 1})
    scene.confirmed({"a": 2})
    scene.counts.snapshot(1, {"a": 20, "b": 10})
    scene.confirmed({"b": None, "c": 3})
    scene.published({"c": 4})
    scene.counts.snapshot(3, {"a": 40})
    with state.open(PIPELINE, store=scene.store) as found:
        assert {entry.key["k"]: entry.value["count"] for entry in found.scan(0)} == {"a": 20, "c": 3}
    with state.open(PIPELINE, store=scene.store, at=1) as found:
        assert found.get(0, "b") == {"count": 1} and not found.refresh()


def test_a_handle_moves_to_the_newest_checkpoint_if_files_vanish(scene: Pipeline) -> None:
    scene.confirmed({"a": 1})
    scene.confirmed({"a": 2})
    with state.open(PIPELINE, store=scene.store) as found:
        scene.confirmed({"a": 3})
        scene.counts.snapshot(2, {"a": 3})
        scene.counts.forget(0)
        scene.counts.forget(1)
        assert found.get(0, "a") == {"count": 3} and found.number == 3
    gone = raises(TransientError, "state_pruned", missing="version 2")
    with state.open(PIPELINE, store=scene.store, at=2) as old, gone:
        old.get(0, "a")


def test_what_is_open_stays_readable_when_its_location_is_swept(scene: Pipeline) -> None:
    scene.confirmed({"a": 1})
    with state.open(PIPELINE, store=scene.store) as found:
        assert found.get(0, "a") == {"count": 1}
        shutil.rmtree(scene.counts.path)
        assert found.get(0, "a") == {"count": 1}


def test_a_checkpoint_whose_location_is_swept_is_pruned(scene: Pipeline) -> None:
    scene.confirmed({"a": 1})
    first = scene.counts.path
    scene.restarts()
    scene.confirmed({"a": 2})
    with state.open(PIPELINE, store=scene.store, at=1) as old:
        shutil.rmtree(first)
        with pytest.raises(ConfigurationError) as pruned:
            old.get(0, "a")
        assert pruned.value.checkpoint == 1
    with state.open(PIPELINE, store=scene.store) as found:
        assert found.get(0, "a") == {"count": 2}
        shutil.rmtree(scene.counts.path)
    with raises(WalCorruptError, "state_files_missing", path=scene.counts.path.as_uri()):
        state.open(PIPELINE, store=scene.store)


def test_opening_moves_on_if_the_newest_checkpoint_is_swept(scene: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    scene.confirmed({"a": 1})
    first = scene.counts.path
    look = scene.store.latest_confirmed

    def then_all_continues(pipeline: str) -> object:
        found = look(pipeline)
        if first.exists():
            scene.restarts()
            scene.confirmed({"a": 2})
            shutil.rmtree(first)
        return found

    monkeypatch.setattr(scene.store, "latest_confirmed", then_all_continues)
    with state.open(PIPELINE, store=scene.store) as found:
        assert found.number == 2 and found.get(0, "a") == {"count": 2}


def test_a_damaged_file_is_named(scene: Pipeline) -> None:
    scene.confirmed({"a": 1})
    scene.counts.file(0).write_bytes(scene.counts.file(0).read_bytes()[:30])
    with state.open(PIPELINE, store=scene.store) as found, pytest.raises(WalCorruptError) as caught:
        found.get(0, "a")
    assert "1.delta" in caught.value.headline


def test_changes_between_two_checkpoints(scene: Pipeline) -> None:
    scene.confirmed({"a": 1, "b": 1, "d": 1})
    scene.confirmed({"a": 2, "d": 1})
    scene.confirmed({"b": None, "c": 3})
    scene.published({"a": 99})
    expected = {
        "a": ("changed", {"count": 1}, {"count": 2}),
        "b": ("removed", {"count": 1}, None),
        "c": ("added", None, {"count": 3}),
    }

    def feed(since: int, until: int | None = None) -> dict[str, tuple[str, object, object]]:
        with state.open(PIPELINE, store=scene.store) as found:
            return {
                each["key"]["k"]: (each["change"], each["before"], each["after"])
                for each in found.changes(0, since, until)
            }

    assert feed(1) == expected
    assert feed(1, 2) == {"a": expected["a"]} and feed(3) == {}
    scene.counts.snapshot(2, {"a": 2, "c": 3, "d": 1})  # ... and what it is made of is gone
    scene.counts.snapshot(0, {"a": 1, "b": 1, "d": 1})
    scene.counts.forget(1)
    assert feed(1) == expected
    with raises(ConfigurationError, "arguments_conflict", since=3, until=1):
        feed(3, 1)


def test_changes_over_a_restart_which_works_in_a_copy(scene: Pipeline) -> None:
    scene.confirmed({"a": 1, "b": 1})
    scene.restarts()
    scene.confirmed({"a": 2, "b": 1})
    with state.open(PIPELINE, store=scene.store) as found:
        [change] = found.changes(0, 1)
    assert (change["key"], change["before"], change["after"]) == ({"k": "a"}, {"count": 1}, {"count": 2})


def test_a_rewritten_nan_is_no_change(scene: Pipeline) -> None:
    scene.counts.write_schema((StateColumn("k", "double"),), (StateColumn("sum", "double"),))
    for _ in range(2):
        scene.confirmed({1.0: math.nan, math.nan: math.nan})
    with state.open(PIPELINE, store=scene.store) as found:
        assert list(found.changes(0, 1)) == [] and found.get(0, math.nan) is not None


def test_zeros_of_both_signs_are_two_keys(scene: Pipeline) -> None:
    scene.counts.write_schema((StateColumn("k", "double"),), VALUE)
    scene.confirmed({0.0: 1})
    with state.open(PIPELINE, store=scene.store) as found:
        assert found.get(0, 0.0) == found.get(0, 0) == found.get(0, -0.0) == {"count": 1}
        scene.confirmed({-0.0: 1})
        assert found.refresh()
        [change] = found.changes(0, 1)
        assert change["change"] == "added" and math.copysign(1, change["key"]["k"]) == -1
        scene.confirmed({-0.0: 2})
        assert found.refresh()
        assert (found.get(0, 0.0), found.get(0, -0.0)) == ({"count": 1}, {"count": 2})
        scene.confirmed({0.0: None})
        assert found.refresh() and found.get(0, 0.0) == {"count": 2}


def test_changes_follow_an_operator_that_was_named_since(scene: Pipeline) -> None:
    scene.confirmed({"a": 1})
    scene.restarts()
    location = SparkLocation("", PIPELINE, scene.counts.path.as_uri(), 0)
    remember(location, (Identity("stateStoreSave", "totals"),))
    scene.confirmed({"a": 2})
    with state.open(PIPELINE, store=scene.store) as found:
        [change] = found.changes("totals", 1)
        assert (change["before"], change["after"]) == ({"count": 1}, {"count": 2})


def test_changes_follow_an_operator_that_moved(scene: Pipeline) -> None:
    def named(*operators: Identity) -> None:
        remember(SparkLocation("", PIPELINE, scene.counts.path.as_uri(), 0), operators)

    totals = Identity("stateStoreSave", "totals")
    named(totals)
    scene.confirmed({"a": 1})
    scene.restarts()
    scene.counts.operator = 1
    scene.counts.write_operator(0, "dedupe")
    shutil.copytree(scene.counts.path / "state/0", scene.counts.path / "state/1")
    scene.counts.write_operator(1)
    named(Identity("dedupe"), totals)
    scene.confirmed({"a": 2})
    with state.open(PIPELINE, store=scene.store) as found:
        [change] = found.changes("totals", 1)
        assert (change["before"], change["after"]) == ({"count": 1}, {"count": 2})
        with raises(ConfigurationError, "operators_unmatched", operator=0, since=1):
            list(found.changes(0, 1))


def test_a_savepoint_is_looked_at_wherever_it_lies(scene: Pipeline, tmp_path: Path) -> None:
    scene.confirmed({"a": 1})
    uri, _ = take(scene.store, PIPELINE, str(tmp_path / "savepoints"), "a test")
    shutil.copytree(local_path(uri), tmp_path / "moved")
    shutil.rmtree(scene.counts.path)
    with state.open_savepoint(str(tmp_path / "moved")) as found:
        assert (found.pipeline, found.number, found.get(0, "a")) == (PIPELINE, 1, {"count": 1})
        assert not found.refresh()
        with raises(ConfigurationError, "checkpoint_unknown", only=1):
            list(found.changes(0, 7))


@pytest.mark.parametrize("suffix", [".parquet", ".csv", ".json"])
def test_an_export_is_there_as_a_whole_or_not_at_all(scene: Pipeline, tmp_path: Path, suffix: str) -> None:
    scene.confirmed({"a": 1, "b": 2, "ü,": 3})
    folder = tmp_path / "exports"
    folder.mkdir()
    path = folder / f"counts{suffix}"
    path.write_text("of yesterday")
    with state.open(PIPELINE, store=scene.store) as found:
        assert found.export(0, path) == 3
        frame = found.to_pandas(0)
    assert dict(zip(frame["key.k"], frame["value.count"], strict=True)) == {"a": 1, "b": 2, "ü,": 3}
    if suffix == ".parquet":
        rows = [(row["key"]["k"], row["value"]["count"]) for row in pq.read_table(path).to_pylist()]
    elif suffix == ".csv":
        rows = [(row["key.k"], row["value.count"]) for row in pyarrow.csv.read_csv(path).to_pylist()]
    else:
        lines = map(json.loads, path.read_text().splitlines())
        rows = [(row["key"]["k"], row["value"]["count"]) for row in lines]
    assert sorted(rows) == [("a", 1), ("b", 2), ("ü,", 3)]
    written = path.read_bytes()
    scene.counts.file(0).unlink()
    with state.open(PIPELINE, store=scene.store) as found, pytest.raises(TransientError):
        found.export(0, path)
    assert [each.name for each in folder.iterdir()] == [path.name] and path.read_bytes() == written


def test_bad_questions_are_refused_by_name(scene: Pipeline, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as caught:
        state.open("other", store=scene.store)
    assert "'other'" in caught.value.headline and PIPELINE in caught.value.remedy
    with pytest.raises(ConfigurationError) as caught:
        state.open(PIPELINE, store=scene.store)
    assert caught.value.pipeline == PIPELINE and not caught.value.checkpoint
    scene.confirmed({"a": 1})
    scene.published({"a": 2})
    with pytest.raises(ConfigurationError) as caught:
        state.open(PIPELINE, store=scene.store, at=9)
    assert caught.value.checkpoint == 9
    with pytest.raises(ConfigurationError) as caught:
        state.open(PIPELINE, store=scene.store, at=2)
    assert caught.value.checkpoint == 2 and "STAGED" in caught.value.headline
    with state.open(PIPELINE, store=scene.store) as found:
        with raises(ConfigurationError, "operator_unknown", operator=7, known={0: "stateStoreSave"}):
            found.get(7, "a")
        with raises(ConfigurationError, "argument_invalid", argument="state", value="other", known=["default"]):
            found.get(0, "a", "other")
        with raises(ConfigurationError, "key_invalid", column="k", type="string"):
            found.get(0, 1)
        with raises(ConfigurationError, "key_invalid", columns=["k"]):
            found.get(0, ("a", "b"))
        with raises(ConfigurationError, "path_invalid", path=str(tmp_path / "counts.txt")):
            found.export(0, tmp_path / "counts.txt")


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("spark.sql.streaming.stateStore.encodingFormat", "avro", "is encoded as avro"),
        ("spark.sql.streaming.stateStore.rowChecksum.enabled", "true", "has a checksum in each row"),
        ("spark.sql.streaming.stateStore.providerClass", "org.example.Mine", "has the state store provider Mine"),
    ],
)
def test_what_is_not_known_is_refused(
    scene: Pipeline, monkeypatch: pytest.MonkeyPatch, name: str, value: str, reason: str
) -> None:
    assert PROVIDERS in CONF["spark.sql.streaming.stateStore.providerClass"]
    monkeypatch.setitem(CONF, name, value)
    scene.confirmed({"a": 1})
    refused = raises(ConfigurationError, "state_unreadable", reason=reason)
    with state.open(PIPELINE, store=scene.store) as found, refused:
        found.get(0, "a")


def test_state_that_is_not_whole_is_never_taken_for_less(scene: Pipeline) -> None:
    """Of two partitions one has gone."""
    scene.confirmed({"a": 1})
    (scene.counts.path / "state/0/1").mkdir()
    with state.open(PIPELINE, store=scene.store) as found:
        shutil.copytree(scene.counts.path / "state/0/0", scene.counts.path / "state/0/1", dirs_exist_ok=True)
        scene.counts.forget(0)
        with raises(TransientError, "state_pruned", missing="version 1"):
            found.get(0, "b")


def test_a_scan_never_mixes_two_checkpoints(scene: Pipeline) -> None:
    scene.confirmed({"a": 1})
    shutil.copytree(scene.counts.path / "state/0/0", scene.counts.path / "state/0/1")
    metadata = scene.counts.path / "state/0/_metadata/metadata"
    metadata.write_text(metadata.read_text().replace('"numPartitions": 1', '"numPartitions": 2'))
    with state.open(PIPELINE, store=scene.store) as found:
        entries = found.scan(0)
        next(entries)
        scene.confirmed({"a": 2})
        assert found.refresh()
        with raises(TransientError, "state_moved", pipeline=PIPELINE):
            list(entries)


def test_a_uid_names_an_operator(scene: Pipeline) -> None:
    location = SparkLocation("", PIPELINE, scene.counts.path.as_uri(), 0)
    remember(location, [Identity("stateStoreSave", "counts")])
    scene.confirmed({"a": 1})
    with state.open(PIPELINE, store=scene.store) as found:
        assert found.get("counts", "a") == found.get("0", "a") == found.get(0, "a") == {"count": 1}
        with raises(ConfigurationError, "operator_unknown", operator="other", known={0: "counts"}):
            found.get("other", "a")


@pytest.mark.parametrize("how", ["restored", "reset"])
def test_one_number_never_shows_two_states(scene: Pipeline, tmp_path: Path, how: str) -> None:
    """As `restore --later write-again` and `reset-state` do: the newest number gets another position."""
    for number in range(1, 6):
        scene.confirmed({"a": number})
    scene.take("a person")
    location = scene.counts.path.with_name(f"{scene.epoch}-0")
    shutil.copytree(scene.counts.path, location)
    position = SparkPosition(location.as_uri(), 2)
    move = scene.store.restore if how == "restored" else scene.store.reset_state
    move(PIPELINE, scene.epoch, position, "a test")
    with pytest.raises(ConfigurationError) as caught:
        state.open(PIPELINE, store=scene.store, at=5)
    assert caught.value.checkpoint == 5
    assert [each.number for each in retained(scene.store, PIPELINE, 10)] == [4, 3, 2, 1]
    with state.open(PIPELINE, store=scene.store, at=4) as before:
        assert before.get(0, "a") == {"count": 4} and not before.restored
        with pytest.raises(ConfigurationError):
            list(before.changes(0, 4, 5))
    with state.open(PIPELINE, store=scene.store) as newest:
        assert newest.get(0, "a") == {"count": 3} and newest.restored
        uri, taken = take(scene.store, PIPELINE, str(tmp_path / "savepoints"), "a test")
        assert taken.restored
        with state.open_savepoint(uri) as kept:
            assert kept.get(0, "a") == {"count": 3} and kept.restored
        with pytest.raises(ConfigurationError):
            take(scene.store, PIPELINE, str(tmp_path / "savepoints"), "a test", 5)
        with pytest.raises(ConfigurationError):
            list(newest.changes(0, 4))
    scene.take()
    scene.counts, scene.batches = Counts(location), 3
    number = scene.confirmed({"a": 9})
    with state.open(PIPELINE, store=scene.store, at=number) as later:
        assert later.get(0, "a") == {"count": 9} and not later.restored


def test_state_on_a_disk_that_is_away_is_not_lost(scene: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also for a process that has had the decision log open since before the disk was first used."""
    scene.confirmed({"a": 1})
    roots.claim(scene.store, str(scene.root))
    monkeypatch.setattr(known_roots, "_known", {})
    elsewhere = scene.root.with_name("elsewhere")
    scene.root.rename(elsewhere)
    scene.root.mkdir()
    with pytest.raises(StorageUnavailableError):
        state.open(PIPELINE, store=scene.store)
    scene.root.rmdir()
    elsewhere.rename(scene.root)
    with state.open(PIPELINE, store=scene.store) as found:
        assert found.get(0, "a") == {"count": 1}


def test_json_of_state_has_no_nan_or_infinity() -> None:
    found = plain({"x": float("nan"), "in": [float("inf"), -float("inf"), 1.5]})
    assert json.dumps(found, allow_nan=False) == '{"x": "nan", "in": ["inf", "-inf", 1.5]}'
