"""Savepoints with real Spark: state goes on exactly from a folder that was moved, when all else is gone."""

import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_ft.protocol.errors import ConfigurationError, StageError, StateConflictError
from airflow_ft.protocol.from_savepoint import Later
from airflow_ft.protocol.lease import Worker, take_epoch
from airflow_ft.protocol.model import RunKey
from airflow_ft.sources import FileSource
from airflow_ft.spark.request import StageRequest
from airflow_ft.spark.savepoints.metadata import METADATA, read_metadata, verify, write_metadata
from airflow_ft.spark.savepoints.rescaling import rescale
from airflow_ft.spark.savepoints.restoring import Restored, restore
from airflow_ft.spark.savepoints.taking import take
from airflow_ft.wal.local import local_path
from tests.integration.stage_world import PIPELINE, StageWorld
from tests.integration.stage_world import world as stage_world
from tests.raising import raises

pytestmark = [
    pytest.mark.sampled(among="Spark drivers"),
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.timeout(1200),
]
PARTITIONS = "spark.sql.shuffle.partitions"
PROVIDER = "spark.sql.streaming.stateStore.providerClass"
HDFS = {PROVIDER: "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"}


@pytest.fixture
def pipeline(tmp_path: Path, sessions: Path, own_sessions: Path) -> Iterator[StageWorld]:
    yield from stage_world(tmp_path, sessions, own_sessions)


FORMAT_2 = {"spark.sql.streaming.stateStore.checkpointFormatVersion": "2"}
"""The setting of new pipelines on clusters. Later runs find it in the state."""


def _request(pipeline: StageWorld, by: str, **more: Any) -> StageRequest:
    sources = {"numbers": FileSource(path=str(pipeline.input), schema="k string, n bigint")}
    return pipeline.request("stage_jobs:Counts", sources, job_arguments={"by": by}, **more)


def _add(pipeline: StageWorld, n: int) -> None:
    pipeline.add_file(f"f{n}", [{"k": k, "n": 10 * n + i} for i in range(2) for k in "ab"])


def _delivered(pipeline: StageWorld, by: str, n: int, **more: Any) -> set[int]:
    """Another file comes, and is delivered; the counts that the sinks get."""
    _add(pipeline, n)
    pipeline.complete(_request(pipeline, by, **more))
    pipeline.deliver()
    return {row["rows"] for row in pipeline.rows(pipeline.published()[-1]).to_pylist()}


def _restore(world: StageWorld, uri: str, **more: Any) -> Restored:
    def no_participant(_: Any) -> Any:
        raise AssertionError("no sink is asked")

    return restore(world.store, uri, no_participant, Worker("", 1), "a test", lease_seconds=0.0, **more)


def _moved(uri: str, to: Path) -> str:
    shutil.copytree(local_path(uri), to)  # as to another file system: no links
    shutil.rmtree(local_path(uri))
    return str(to)


@pytest.mark.parametrize(
    ("by", "conf", "names"),
    [
        ("count", {}, ["stateStoreSave"]),
        ("count", HDFS, ["stateStoreSave"]),
        ("count of distinct", {}, ["stateStoreSave", "dedupe"]),
        ("rows", {}, ["transformWithStateInPySparkExec"]),
        ("pandas", {}, ["transformWithStateInPandasExec"]),
    ],
    ids=["count", "count on the map", "distinct", "rows", "pandas"],
)
def test_counts_continue_from_a_moved_savepoint_alone(
    pipeline: StageWorld, tmp_path: Path, by: str, conf: Mapping[str, str], names: Sequence[str]
) -> None:
    more = {"conf": dict(conf)} if conf else {}
    assert [_delivered(pipeline, by, n, **more) for n in range(2)] == [{2}, {4}]
    uri, taken = take(pipeline.store, PIPELINE, str(tmp_path / "savepoints"), "a test")
    assert taken.number == 2 and taken.pipeline == PIPELINE and not taken.drained
    assert [operator.name for operator in taken.operators] == names
    assert all(operator.partitions == 2 and operator.bytes > 0 and operator.states for operator in taken.operators)
    assert set(taken.rows) == {"orders"}
    assert taken.backend == ("HDFSBackedStateStoreProvider" if conf else "RocksDBStateStoreProvider")
    uri = _moved(uri, tmp_path / "elsewhere")
    assert read_metadata(uri) == taken
    verify(uri, taken)

    assert _delivered(pipeline, by, 2, **more) == {6}
    with raises(StateConflictError, "rows_would_repeat", later=(3,)):
        _restore(pipeline, uri)
    restored = _restore(pipeline, uri, later=Later.WRITE_AGAIN)
    assert restored.later == (3,)
    for other in (pipeline.root / PIPELINE / "spark").iterdir():
        if other != local_path(restored.position.location):
            shutil.rmtree(other) if other.is_dir() else other.unlink()
    shutil.rmtree(uri)
    assert _delivered(pipeline, by, 3, **more) == {8}, "the third file once more, with the fourth, after the second"
    assert pipeline.published()[-1].number == 4, "numbers go on"


def test_windows_delivered_after_a_savepoint_are_not_repeated(pipeline: StageWorld, tmp_path: Path) -> None:
    """Also when nothing new is there in between, and when the savepoint was rescaled."""
    sources = {"numbers": FileSource(path=str(pipeline.input), schema="n bigint, at timestamp")}

    def run(first: int, end: int, **more: Any) -> list[list[tuple[int, int]]]:
        before = len(pipeline.published())
        if end > first:
            rows = [{"n": n, "at": f"2026-01-01T00:00:{n:02}Z"} for n in range(first, end)]
            pipeline.add_file(f"f{first}", rows)
        pipeline.complete(pipeline.request("stage_jobs:Windows", sources, **more))
        pipeline.deliver()
        found = [pipeline.rows(checkpoint).to_pylist() for checkpoint in pipeline.published()[before:]]
        return [sorted((row["second"], row["rows"]) for row in rows) for rows in found if rows]

    folder = str(tmp_path / "savepoints")
    assert run(0, 15) == [[(0, 10)]]
    uri, taken = take(pipeline.store, PIPELINE, folder, "a test")
    assert run(15, 25) == [[(10, 10)]]
    assert run(25, 35) == [[(20, 10)]]
    latest = pipeline.store.latest_confirmed(PIPELINE)
    assert latest is not None
    uri, _ = rescale(uri, 4, folder, "a test", {"spark.driver.memory": "700m"}, print)
    restored = _restore(pipeline, uri, later=Later.CONTINUE)
    assert restored.later == tuple(range(taken.number + 1, latest.number + 1))
    rescaled = {"conf": {"spark.driver.memory": "700m", PARTITIONS: "4"}}
    assert run(0, 0, **rescaled) == []
    assert pipeline.published()[-1].number == latest.number, "nothing new was there"
    assert any("rebuilding the state" in line for line in pipeline.lines)
    pipeline.lines.clear()
    assert run(35, 45, **rescaled) == [[(30, 10)]], "five of its rows were read before, and (20, 10) was delivered"
    assert not any("rebuilding the state" in line for line in pipeline.lines), "it had caught up"


def test_state_is_not_rebuilt_without_a_deleted_file(pipeline: StageWorld, tmp_path: Path) -> None:
    """Spark left the file out in silence, and the counts were too low from then on."""
    assert _delivered(pipeline, "count", 0) == {2}
    uri, _ = take(pipeline.store, PIPELINE, str(tmp_path / "savepoints"), "a test")
    assert [_delivered(pipeline, "count", n) for n in (1, 2)] == [{4}, {6}]
    _restore(pipeline, uri, later=Later.CONTINUE)
    gone = pipeline.input / "f1.json"
    gone.rename(tmp_path / "aside")
    _add(pipeline, 3)
    with raises(ConfigurationError, "rebuild_impossible", paths=[f"file://{gone}"]):
        pipeline.complete(_request(pipeline, "count"))
    (tmp_path / "aside").rename(gone)
    pipeline.complete(_request(pipeline, "count"))
    assert {row["rows"] for row in pipeline.rows(pipeline.published()[-1]).to_pylist()} == {8}


def test_what_is_not_decided_is_given_up_and_read_again(pipeline: StageWorld, tmp_path: Path) -> None:
    assert _delivered(pipeline, "rows", 0) == {2}
    uri, _ = take(pipeline.store, PIPELINE, str(tmp_path / "savepoints"), "a test")
    _add(pipeline, 1)
    pipeline.complete(_request(pipeline, "rows"))
    assert _restore(pipeline, uri).later == ()
    assert [c.number for c in pipeline.checkpoints() if c.is_undelivered] == []
    assert _delivered(pipeline, "rows", 2) == {6}


def test_a_copy_under_another_name_goes_on_for_itself(pipeline: StageWorld, tmp_path: Path) -> None:
    """Its first number is refused by a sink once: computed again from the savepoint, not from the beginning."""
    assert [_delivered(pipeline, "pandas", n) for n in range(2)] == [{2}, {4}]
    uri, _ = take(pipeline.store, PIPELINE, str(tmp_path / "savepoints"), "a test")
    restored = _restore(pipeline, uri, pipeline="copy", wal_root=str(pipeline.root))
    store = pipeline.store
    _add(pipeline, 2)
    for number in (3, 4):
        epoch = take_epoch(store, "copy", Worker("t", 1).lease(), "test", lease_seconds=0.0)
        before, run = store.pipeline("copy"), RunKey("copy", f"run-{number}")
        assert before.base == restored.position
        attempt = store.begin_stage("copy", epoch, run)
        changed = {"pipeline": "copy", "run": run, "epoch": epoch, "attempt": attempt, "base": before.base}
        changed |= {"base_is_clean": before.base_is_clean, "last_published": before.last_published}
        request = _request(pipeline, "pandas")
        result = pipeline.stage(replace(request, **changed))
        [checkpoint] = [c for c in store.checkpoints("copy") if c.segment is not None and c.is_undelivered]
        assert checkpoint.number == number
        assert {row["rows"] for row in pipeline.rows(checkpoint).to_pylist()} == {6}
        store.end_stage("copy", epoch, run, result.position)
        if number == 3:
            store.rewind("copy", epoch, 3, store.position_before("copy", 3), "refused")
    assert _delivered(pipeline, "pandas", 3) == {8}, "the original has not noticed"
    with raises(ConfigurationError, "savepoint_foreign", pipeline="copy", of=PIPELINE):
        other, _ = take(store, PIPELINE, str(tmp_path / "savepoints"), "a test")
        _restore(pipeline, other, pipeline="copy")


@pytest.mark.parametrize(
    ("by", "conf"),
    [
        ("count", {}),
        ("count of distinct", {}),
        ("rows", {}),
        ("pandas", {}),
        ("count of distinct", FORMAT_2),
        ("rows", FORMAT_2),
    ],
    ids=["count", "distinct", "rows", "pandas", "distinct, format 2", "rows, format 2"],
)
def test_counts_go_on_in_another_number_of_state_partitions(
    pipeline: StageWorld, tmp_path: Path, by: str, conf: dict[str, str]
) -> None:
    """From 2 to 4 and to 3. What is rescaled stays as it is, and the old number of partitions is refused then."""
    assert _delivered(pipeline, by, 0, conf=conf) == {2}
    count = 2
    for partitions in (4, 3):
        folder = str(tmp_path / "savepoints")
        uri, taken = take(pipeline.store, PIPELINE, folder, "a test")
        new, rescaled = rescale(uri, partitions, folder, "a test", {"spark.driver.memory": "700m"}, print)
        verify(uri, taken)
        assert rescaled.positions == taken.positions and rescaled.batch == taken.batch + 1
        assert {operator.partitions for operator in rescaled.operators} == {partitions}
        with raises(ConfigurationError, "savepoint_unchanged", partitions=partitions):
            rescale(new, partitions, folder, "a test", {}, print)
        new = _moved(new, tmp_path / f"in {partitions}")
        _restore(pipeline, new)
        shutil.rmtree(new)
        _add(pipeline, partitions)
        with raises(ConfigurationError, "state_settings_changed", kept={PARTITIONS: str(partitions)}):
            pipeline.stage(_request(pipeline, by, conf={PARTITIONS: "2"}))
        count += 2
        pipeline.complete(_request(pipeline, by, conf={PARTITIONS: str(partitions)}))
        pipeline.deliver()
        assert {row["rows"] for row in pipeline.rows(pipeline.published()[-1]).to_pylist()} == {count}


def test_a_failed_rescale_leaves_only_the_original_savepoint(pipeline: StageWorld, tmp_path: Path) -> None:
    folder = tmp_path / "savepoints"
    _delivered(pipeline, "count", 0, conf=HDFS)
    uri, taken = take(pipeline.store, PIPELINE, str(folder), "a test")
    with raises(ConfigurationError, "state_backend_unsupported", backend="HDFSBackedStateStoreProvider"):
        rescale(uri, 4, str(folder), "a test", {}, print)
    # As if it could: Spark fails, after it has begun.
    document = (local_path(uri) / METADATA).read_text()
    (local_path(uri) / METADATA).unlink()
    write_metadata(uri, replace(taken, backend="RocksDBStateStoreProvider"))
    with raises(StageError, "state_not_rewritten", pipeline=PIPELINE):
        rescale(uri, 4, str(folder), "a test", {"spark.driver.memory": "700m", **HDFS}, print)
    (local_path(uri) / METADATA).write_text(document)
    assert [path.as_uri() for path in folder.glob("savepoint-*")] == [uri], "nothing is left of it"
    verify(uri, read_metadata(uri))
    with raises(ConfigurationError, "argument_invalid", argument="partitions", value=0):
        rescale(uri, 0, str(folder), "a test", {}, print)
