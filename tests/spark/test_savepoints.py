"""Savepoints as files: what is refused before anything is touched, and processes that die at any step."""

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from airflow_ft.protocol.errors import (
    AirflowFtError,
    ConfigurationError,
    FencedError,
    LeaseHeldError,
    NewerReleaseError,
    StateConflictError,
    TransientError,
    WalCorruptError,
)
from airflow_ft.protocol.from_savepoint import ClaimMode, Later, claim_mode
from airflow_ft.protocol.lease import Worker, new_epoch
from airflow_ft.protocol.model import SparkPosition
from airflow_ft.protocol.pipelines import HaltReason
from airflow_ft.spark.savepoints import restoring
from airflow_ft.spark.savepoints.metadata import FORMAT, METADATA, dispose, listing, read_metadata, verify
from airflow_ft.spark.savepoints.restoring import Restored, restore
from airflow_ft.spark.savepoints.taking import take
from airflow_ft.spark.state.locations import SparkLocation, open_location
from airflow_ft.spark.state.meaning import Memory, remember_meaning
from airflow_ft.store import open_store
from airflow_ft.wal import local
from airflow_ft.wal.local import LocalFileSystem, local_path
from airflow_ft.wal.retention import sweep
from tests.raising import raises
from tests.store.scene import PIPELINE, Scene, a_segment

pytestmark = pytest.mark.slow

NAMES = ["orders"]
TOP = ("metadata", "airflow_ft_sources.json")
OFFSETS = {"orders": {"0": 17}}
CONF = {"spark.sql.streaming.stateStore.providerClass": "org.example.RocksDBStateStoreProvider"}
OPERATOR = {
    "operatorInfo": {"operatorId": 0, "operatorName": "stateStoreSave"},
    "stateStoreInfo": [{"storeName": "default", "numColsPrefixKey": 0, "numPartitions": 1}],
}
KEY = {"type": "struct", "fields": [{"name": "k", "type": "long", "nullable": True, "metadata": {}}]}
VALUE = {"type": "struct", "fields": [{"name": "count", "type": "long", "nullable": False, "metadata": {}}]}


class Died(BaseException):
    """The process was killed."""


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    with saved_scene(tmp_path) as scene:
        yield scene


@contextmanager
def saved_scene(tmp_path: Path) -> Iterator[Scene]:
    """Checkpoint 1 is confirmed: batch 1 of a location in which batch 2 is under way."""
    store = open_store(f"sqlite:///{tmp_path}/ft.db")
    scene = Scene(store)
    scene.take()
    number = scene.trigger()
    location = _location(tmp_path / "wal", batch=1)
    _publish(scene, number, location, 1)
    scene.complete(number)
    store.release_lease(PIPELINE, "worker")
    yield scene
    store.close()


def _publish(scene: Scene, number: int, location: Path, batch: int) -> None:
    before = scene.store.pipeline(PIPELINE).last_published
    position = SparkPosition(location.as_uri(), batch)
    scene.store.publish(PIPELINE, scene.epoch, number, before, a_segment(number), position, {"orders": batch}, None)


def _location(root: Path, batch: int) -> Path:
    path = root / PIPELINE / "spark" / "1-1"
    texts = {"metadata": "{}", "airflow_ft_sources.json": json.dumps(NAMES)}
    for n in range(batch + 2):
        texts[f"offsets/{n}"] = "\n".join(["v1", json.dumps({"conf": CONF}), json.dumps({"orders": {"0": 16 + n}})])
        texts[f"state/0/0/{n + 1}.changelog"] = f"changes {n}"
    texts |= {f"commits/{n}": "v1\n{}" for n in range(batch + 1)}
    texts["state/0/_metadata/metadata"] = "v1\n" + json.dumps(OPERATOR)
    parts = [json.dumps(each, separators=(",", ":")) for each in (KEY, VALUE)]
    texts["state/0/0/_metadata/schema"] = "\0\2v2" + "".join(f"\0\0\0\1\0{chr(len(each))}{each}" for each in parts)
    texts["state/0/0/SSTs/000008-of-a-later-batch.sst"] = "half writ"
    texts[f"offsets/.{batch + 1}.tmp"] = "half writ"
    for name, text in texts.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text(text)
    return path


def _taken(scene: Scene, tmp_path: Path) -> str:
    uri, _ = take(scene.store, PIPELINE, str(tmp_path / "savepoints"), "a test")
    return uri


def _restore(scene: Scene, uri: str, **more: Any) -> Restored:
    def no_participant(_: Any) -> Any:
        raise AssertionError("no sink is asked")

    return restore(scene.store, uri, no_participant, Worker("", 1), "a test", **{"lease_seconds": 0.0, **more})


def _files(uri: str) -> dict[str, str]:
    base = local_path(uri)
    return {str(path.relative_to(base)): path.read_text() for path in base.rglob("*") if path.is_file()}


def test_it_holds_one_batch_and_tells_what_is_in_it(scene: Scene, tmp_path: Path) -> None:
    uri = _taken(scene, tmp_path)
    metadata = read_metadata(uri)
    verify(uri, metadata)
    assert (metadata.pipeline, metadata.number, metadata.batch, metadata.positions) == (
        PIPELINE,
        1,
        1,
        {"orders": OFFSETS},
    )
    [operator] = metadata.operators
    assert (operator.name, operator.partitions, operator.stores) == ("stateStoreSave", 1, ("default",))
    assert operator.states == {"default key": "k long", "default value": "count long"}
    assert metadata.backend == "RocksDBStateStoreProvider"
    assert "state/0/0/2.changelog" in metadata.files
    names = " ".join(metadata.files)
    assert "3.changelog" not in names and "offsets/2" not in names and ".sst" not in names and ".tmp" not in names
    [event] = scene.store.events(PIPELINE, 1, limit=1)
    assert event.kind == "SAVEPOINT" and uri in event.message
    again = _taken(scene, tmp_path)
    assert [each for each, _ in listing(str(tmp_path / "savepoints"))] == [again, uri]


def test_no_savepoint_is_taken_if_operator_state_is_missing(scene: Scene, tmp_path: Path) -> None:
    location = tmp_path / "wal" / PIPELINE / "spark" / "1-1"
    remember_meaning(SparkLocation("", PIPELINE, location.as_uri(), 1), Memory("4.2.0", ({"keys": [["id"]]},)))
    shutil.rmtree(location / "state")
    with raises(WalCorruptError, "state_files_missing", batch=1):
        _taken(scene, tmp_path)


def test_a_restore_warns_of_a_later_spark(scene: Scene, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    location = tmp_path / "wal" / PIPELINE / "spark" / "1-1"
    remember_meaning(SparkLocation("", PIPELINE, location.as_uri(), 1, ""), Memory("99.0.0", ()))
    _restore(scene, _taken(scene, tmp_path))
    assert "Spark 99.0.0 wrote" in caplog.text


def test_nothing_is_taken_of_what_is_not_confirmed(tmp_path: Path) -> None:
    scene = Scene(open_store(f"sqlite:///{tmp_path}/ft.db"))
    with pytest.raises(ConfigurationError) as caught:
        _taken(scene, tmp_path)
    assert caught.value.pipeline == PIPELINE
    scene.take()
    number = scene.trigger()
    location = _location(tmp_path / "wal", batch=0)
    _publish(scene, number, location, 0)
    with pytest.raises(ConfigurationError) as caught:
        _taken(scene, tmp_path)
    assert caught.value.pipeline == PIPELINE
    assert not (tmp_path / "savepoints").exists()


def _damage(uri: str, how: str) -> None:
    folder = local_path(uri)
    changelog = folder / "spark/state/0/0/2.changelog"
    if how == "missing":
        changelog.unlink()
    elif how == "changed":
        text = changelog.read_text()
        changelog.unlink()  # the pipeline's own file has the same inode
        changelog.write_text(text.replace("changes", "changed"))
    elif how == "added":
        (folder / "spark/state/0/0/2.zip").write_text("a snapshot would be preferred")
    elif how == "metadata":
        (folder / METADATA).write_text((folder / METADATA).read_text().replace('"number":1', '"number":2'))
    elif how == "cut":
        (folder / METADATA).write_text((folder / METADATA).read_text()[:-20])
    elif how == "newer":
        document = json.loads((folder / METADATA).read_text())
        (folder / METADATA).write_text(json.dumps({"format": FORMAT + 1, "anything": document}))
    elif how == "unfinished":
        (folder / METADATA).unlink()
    else:
        shutil.rmtree(folder)


@pytest.mark.parametrize(
    ("how", "error", "code", "file"),
    [
        ("missing", WalCorruptError, "savepoint_damaged", "spark/state/0/0/2.changelog"),
        ("changed", WalCorruptError, "savepoint_damaged", "spark/state/0/0/2.changelog"),
        ("added", WalCorruptError, "savepoint_damaged", "spark/state/0/0/2.zip"),
        ("metadata", WalCorruptError, "savepoint_damaged", "_metadata"),
        ("cut", WalCorruptError, "savepoint_damaged", "_metadata"),
        ("newer", NewerReleaseError, "newer_release", ""),
        ("unfinished", ConfigurationError, "savepoint_unfinished", ""),
        ("gone", ConfigurationError, "savepoint_missing", "_metadata"),
    ],
)
def test_what_is_not_whole_is_refused_before_anything_is_touched(
    scene: Scene, tmp_path: Path, how: str, error: type[AirflowFtError], code: str, file: str
) -> None:
    uri = _taken(scene, tmp_path)
    _damage(uri, how)
    before = scene.store.pipeline(PIPELINE)
    with raises(error, code) as caught:
        _restore(scene, uri)
    assert caught.error is not None and file in caught.error.headline
    assert scene.store.pipeline(PIPELINE) == before, "not even an epoch was taken"


def test_what_does_not_fit_the_pipeline_is_refused_by_name(scene: Scene, tmp_path: Path) -> None:
    uri = _taken(scene, tmp_path)
    store = scene.store
    other = Scene(store, "other")
    other.take()
    other.complete(other.stage(1)[0])
    with raises(ConfigurationError, "savepoint_foreign", pipeline="other", of=PIPELINE):
        _restore(scene, uri, pipeline="other")
    with new_epoch(store, PIPELINE, Worker("t", 1), "a run at work", 1.0), pytest.raises(LeaseHeldError):
        _restore(scene, uri, lease_seconds=60.0)
    store.halt(PIPELINE, HaltReason.STORE_BEHIND_SINK, "a test")
    with raises(StateConflictError, "pipeline_halted", pipeline=PIPELINE, reason=HaltReason.STORE_BEHIND_SINK):
        _restore(scene, uri)
    store.resume(PIPELINE, "a test")
    with pytest.raises(ConfigurationError) as caught:
        claim_mode("legacy")
    assert "NO_CLAIM" in caught.value.remedy
    assert claim_mode("claim") is ClaimMode.CLAIM

    scene.take()
    number = scene.trigger()
    _publish(scene, number, tmp_path / "wal" / PIPELINE / "spark" / "1-1", 1)
    scene.complete(number)
    with raises(StateConflictError, "rows_would_repeat", later=(2,), number=1) as repeat:
        _restore(scene, uri)
    assert repeat.error is not None and "--later write-again" in repeat.error.remedy
    assert _restore(scene, uri, later=Later.WRITE_AGAIN).later == (2,)

    elsewhere = Scene(open_store(f"sqlite:///{tmp_path}/elsewhere.db"))
    elsewhere.take()
    elsewhere.complete(elsewhere.stage(1)[0])
    with raises(ConfigurationError, "savepoint_foreign", pipeline=PIPELINE, of=PIPELINE):
        _restore(elsewhere, uri)


def test_a_savepoint_is_restored_if_the_pipeline_folder_is_lost(scene: Scene, tmp_path: Path) -> None:
    """What it stands at can then be told by its micro-batch alone."""
    uri = _taken(scene, tmp_path)
    shutil.rmtree(tmp_path / "wal")
    assert _restore(scene, uri).later == ()


def test_a_copy_under_another_name_has_a_query_of_its_own(scene: Scene, tmp_path: Path) -> None:
    """In a group of streams the original may run in the same JVM, where Spark knows queries by their id."""
    uri = _taken(scene, tmp_path)
    kept = _files(uri)
    restored = _restore(scene, uri, pipeline="copy", wal_root=str(tmp_path / "wal"))
    assert restored.position is not None
    assert json.loads(_files(restored.position.location)["metadata"])["id"]
    assert _files(uri) == kept, "which shares files with it"
    same = _restore(scene, uri).position
    assert same is not None and _files(same.location)["metadata"] == "{}"


def test_another_decision_log_goes_on_from_it_and_rewinds_to_it(scene: Scene, tmp_path: Path) -> None:
    uri = _taken(scene, tmp_path)
    root = tmp_path / "wal of the other"
    store = open_store(f"sqlite:///{tmp_path}/other.db")
    other = Scene(store)
    first = _restore(other, uri, wal_root=str(root)).position
    assert store.position_before(PIPELINE, 1) == first == store.pipeline(PIPELINE).base
    position = _restore(other, uri, wal_root=str(root)).position
    assert position != first, "nothing was computed from it yet, so it may be restored again"
    assert store.position_before(PIPELINE, 1) == position
    other.take()
    number = other.trigger()
    other.publish(number)
    assert position.location in store.referenced_locations(PIPELINE)
    store.rewind(PIPELINE, other.epoch, number, store.position_before(PIPELINE, number), "refused")
    assert store.pipeline(PIPELINE).base == position
    begun = open_location(str(root), PIPELINE, 9, 9, position, False)
    assert begun.offsets(1) == [OFFSETS]
    other.trigger()
    other.complete(other.stage(1)[0])
    assert position.location not in store.referenced_locations(PIPELINE), "nobody goes back to it any more"


def _dying(where: Any, name: str, at: int, before: bool, monkeypatch: pytest.MonkeyPatch) -> list[int]:
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
@pytest.mark.parametrize("name", ["link_tree", "sync_tree", "write", "note_savepoint"])
def test_who_dies_while_taking_leaves_a_whole_one_or_none(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, before: bool
) -> None:
    """A process that is killed runs no cleaning up either."""
    folder = str(tmp_path / "savepoints")
    with monkeypatch.context() as patch:
        where = type(scene.store) if name == "note_savepoint" else LocalFileSystem
        _dying(where, name, 1, before, patch)
        patch.setattr(LocalFileSystem, "remove_tree", lambda *_: None)
        with pytest.raises(Died):
            _taken(scene, tmp_path)
    whole = name == "note_savepoint" or (name == "write" and not before)
    found = list(listing(folder))
    if whole:
        [(uri, expected)] = found
        assert expected is not None
        assert _restore(scene, uri).position.batch == 1
    else:
        assert [expected for _, expected in found] in ([], [None])
        for uri, _ in found:
            dispose(uri)
            assert not local_path(uri).exists()
    assert _files(_taken(scene, tmp_path))


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
@pytest.mark.parametrize("name", ["link_tree", "sync_tree", "restore"])
def test_an_interrupted_restore_leaves_the_old_or_the_new_base(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, before: bool
) -> None:
    uri = _taken(scene, tmp_path)
    old, kept = scene.store.pipeline(PIPELINE).base, _files(uri)
    with monkeypatch.context() as patch:
        where = type(scene.store) if name == "restore" else LocalFileSystem
        _dying(where, name, 1, before, patch)
        with pytest.raises(Died):
            _restore(scene, uri)
    done = name == "restore" and not before
    assert (scene.store.pipeline(PIPELINE).base == old) is not done
    assert _files(uri) == kept, "nobody touches the savepoint"
    position = _restore(scene, uri).position
    assert scene.store.pipeline(PIPELINE).base == position != old
    sweep(str(tmp_path / "wal"), PIPELINE, scene.store.referenced_locations(PIPELINE), 99)
    spark = tmp_path / "wal" / PIPELINE / "spark"
    assert [path.as_uri() for path in spark.iterdir()] == [position.location], "what the dead left is swept"


def test_of_two_restores_at_once_one_wins(scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first stands still for longer than its lease, before its write; the second comes, and is done."""
    uri = _taken(scene, tmp_path)
    copied = restoring._copied
    won: list[Restored] = []

    def overtaken(*arguments: Any) -> Any:
        found = copied(*arguments)
        if not won:
            monkeypatch.setattr(restoring, "_copied", copied)
            won.append(_restore(scene, uri))
        return found

    monkeypatch.setattr(restoring, "_copied", overtaken)
    with pytest.raises(FencedError):
        _restore(scene, uri, lease_seconds=600.0)  # it does not renew meanwhile
    assert scene.store.pipeline(PIPELINE).base == won[0].position


def test_a_copy_of_a_folder_that_is_deleted_meanwhile_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The offsets were copied, and when the state's turn came the folder had gone: os.walk passes that by."""
    location = _location(tmp_path / "wal", batch=1)
    linked = local._link_or_copy
    files = LocalFileSystem()

    def overtaken(path: Path, place: Path) -> None:
        linked(path, place)
        if all((place.parent / name).exists() for name in TOP):
            files.remove_tree(location.as_uri())

    monkeypatch.setattr(local, "_link_or_copy", overtaken)
    with pytest.raises(WalCorruptError):
        files.link_tree(location.as_uri(), (tmp_path / "copy").as_uri(), lambda _: True)
    assert not (tmp_path / "copy").exists()


def test_a_claimed_savepoint_that_cannot_be_deleted_is_restored(scene: Scene, tmp_path: Path) -> None:
    uri = _taken(scene, tmp_path)
    (local_path(uri) / "thesis.txt").write_text("five years")
    restored = _restore(scene, uri, claim=ClaimMode.CLAIM)
    assert scene.store.pipeline(PIPELINE).base == restored.position
    assert read_metadata(uri)


def test_nothing_but_a_savepoint_is_disposed_of(scene: Scene, tmp_path: Path) -> None:
    uri = _taken(scene, tmp_path)
    (local_path(uri) / "thesis.txt").write_text("five years")
    with raises(ConfigurationError, "savepoint_not_deleted", path=uri):
        dispose(uri)
    (local_path(uri) / "thesis.txt").unlink()
    dispose(uri)
    assert not local_path(uri).exists()
    with raises(ConfigurationError, "savepoint_not_deleted"):
        dispose(str(tmp_path))
    base = scene.store.pipeline(PIPELINE).base
    assert base is not None and (local_path(base.location) / "state/0/0/2.changelog").exists()


@pytest.mark.parametrize(
    "files",
    [
        ["spark/bin/spark-submit"],  # /opt
        ["_metadata"],  # of Flink, or of Parquet
        ["_metadata", "spark/offsets/0"],
        ["spark/offsets/0", "spark/jars/a.jar"],
        [],
    ],
)
@pytest.mark.parametrize("contents", ["", "{}", "\0\1", '{"format": 1, "savepoint": {}, "sha256": ""}'])
def test_what_is_not_a_savepoint_is_never_deleted(tmp_path: Path, files: list[str], contents: str) -> None:
    opt = tmp_path / "opt"
    opt.mkdir()
    for name in files:
        (opt / name).parent.mkdir(parents=True, exist_ok=True)
        (opt / name).write_text(contents)
    with pytest.raises(ConfigurationError):
        dispose(str(opt))
    assert all((opt / name).read_text() == contents for name in files) and opt.is_dir()


def test_a_strange_file_in_a_savepoint_is_not_deleted(scene: Scene, tmp_path: Path) -> None:
    uri = _taken(scene, tmp_path)
    thesis = local_path(uri) / "spark" / "state" / "thesis.txt"
    thesis.write_text("five years")
    with pytest.raises(ConfigurationError):
        dispose(uri)
    assert thesis.exists() and read_metadata(uri)


def test_a_link_to_a_savepoint_is_not_followed(scene: Scene, tmp_path: Path) -> None:
    uri = _taken(scene, tmp_path)
    link = tmp_path / "newest"
    link.symlink_to(local_path(uri))
    for path in (str(link), f"{tmp_path}/wal/../savepoints/{local_path(uri).name}"):
        with pytest.raises(ConfigurationError):
            dispose(path)
    assert read_metadata(uri)


def test_a_folder_that_cannot_be_written_is_named(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    with raises(TransientError, "storage_unavailable", path=str(tmp_path / "file" / "savepoints")):
        take(scene.store, PIPELINE, str(tmp_path / "file" / "savepoints"), "a test")
    with raises(ConfigurationError, "connection_invalid"):
        take(scene.store, PIPELINE, "s3://bucket/savepoints", "a test")
    uri = _taken(scene, tmp_path)
    before = scene.store.pipeline(PIPELINE).base

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(LocalFileSystem, "sync_tree", full)
    with raises(TransientError, "storage_unavailable", reason="No space left on device"):
        _restore(scene, uri)
    assert scene.store.pipeline(PIPELINE).base == before


def test_a_savepoint_undoes_a_full_refresh(scene: Scene, tmp_path: Path) -> None:
    """One of a restored state may lack delivered rows, and the refresh has dropped the positions to compare."""
    uri = _taken(scene, tmp_path)
    _restore(scene, uri)
    restored = _taken(scene, tmp_path)
    assert read_metadata(restored).restored
    _restore(scene, "beginning", pipeline=PIPELINE, later=Later.WRITE_AGAIN)
    with raises(StateConflictError, "rows_would_repeat", number=1):
        _restore(scene, restored)
    assert _restore(scene, uri).later == ()
    base = scene.store.pipeline(PIPELINE).base
    assert base is not None and base.batch == 1


def test_what_was_drained_comes_again_only_by_choice(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With real windows: `tests/integration/test_stream.py`."""
    drain = scene.store.checkpoint(PIPELINE, 1)
    monkeypatch.setattr("airflow_ft.spark.savepoints.taking.drain_of", lambda *_: drain)
    uri = _taken(scene, tmp_path)
    assert read_metadata(uri).drained
    with raises(StateConflictError, "pipeline_drained") as caught:
        _restore(scene, uri)
    assert caught.error is not None and "--later write-again" in caught.error.remedy
    assert _restore(scene, uri, later=Later.WRITE_AGAIN).later == ()
