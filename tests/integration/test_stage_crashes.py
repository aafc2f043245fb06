"""Drivers killed by SIGKILL around a publication: rows and state always belong to one attempt (I1)."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_ft.protocol.errors import StageError, StorageUnavailableError
from airflow_ft.protocol.model import CheckpointState, SparkPosition
from airflow_ft.sources import FileSource
from airflow_ft.wal.local import local_path
from tests.integration.stage_world import PIPELINE, StageWorld, world
from tests.raising import raises

pytestmark = [
    pytest.mark.sampled(among="Spark drivers"),
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.chaos,
]
FILES = 4
KEYS = ("a", "b", "c")


@pytest.fixture
def pipeline(tmp_path: Path) -> Iterator[StageWorld]:
    for made in world(tmp_path):
        for n in range(FILES):
            _add(made, n)
        yield made


def _add(pipeline: StageWorld, n: int) -> None:
    pipeline.add_file(f"f{n}", [{"k": k, "n": 10 * n + i} for i in range(3) for k in KEYS])


def _source(pipeline: StageWorld) -> dict[str, FileSource]:
    return {"numbers": FileSource(path=str(pipeline.input), schema="k string, n bigint", max_files_per_trigger=1)}


def _assert_continuous(rows: list[dict[str, Any]], files: int = FILES) -> None:
    """Each total is the one published before it, plus what was added: state and rows are of one attempt."""
    totals = dict.fromkeys(KEYS, 0.0)
    steps = dict.fromkeys(KEYS, 0)
    for row in rows:
        totals[row["k"]] += row["added"]
        steps[row["k"]] += 1
        assert row["total"] == pytest.approx(totals[row["k"]], abs=1e-9)
        assert row["steps"] == steps[row["k"]]
    expected = sorted((k, 10 * n + i) for n in range(files) for i in range(3) for k in KEYS)
    assert sorted((row["k"], row["n"]) for row in rows) == expected


@pytest.mark.parametrize("point", ["before commit", "after commit", "after publish"])
def test_state_goes_on_from_the_published_rows(pipeline: StageWorld, tmp_path: Path, point: str) -> None:
    marker = tmp_path / "crashed"
    arguments = {"point": point, "batch": 1, "once": str(marker)}
    crashing = pipeline.request("stage_jobs:Crashing", _source(pipeline), job_arguments=arguments)
    with raises(StageError, "driver_ended", signal="SIGKILL"):
        pipeline.stage(crashing)
    assert marker.exists()
    published = pipeline.published()
    assert [c.number for c in published] == ([1, 2] if point == "after publish" else [1])
    old = local_path(f"{pipeline.root}/{PIPELINE}/spark/{crashing.epoch}-{crashing.attempt}")
    assert (old / "commits" / "1").exists() == (point != "before commit")
    before = {c.number: pipeline.rows(c) for c in published}

    again = pipeline.request("stage_jobs:Crashing", _source(pipeline), job_arguments=arguments)
    assert not again.base_is_clean
    pipeline.complete(again)

    assert all(pipeline.rows(c) == before[c.number] for c in pipeline.published() if c.number in before)
    states = {c.number: c.state for c in pipeline.checkpoints()}
    # Numbers that were not published are never used again.
    assert states[len(published) + 1] is CheckpointState.ABORTED or point == "after publish"
    _assert_continuous(pipeline.all_rows())
    last = pipeline.store.pipeline(PIPELINE).base
    assert last is not None and last.location.endswith(f"/{again.epoch}-{again.attempt}")


@pytest.mark.parametrize(("point", "back"), [("split", ""), ("publish", ""), ("publish", "at once")])
def test_nothing_is_published_from_below_a_mount_point(
    pipeline: StageWorld, tmp_path: Path, point: str, back: str
) -> None:
    arguments = {"root": str(pipeline.root), "point": point, "batch": 1, "once": str(tmp_path / "once"), "back": back}
    with pytest.raises(StorageUnavailableError):
        pipeline.stage(pipeline.request("stage_jobs:Unmounting", _source(pipeline), job_arguments=arguments))
    assert [c.number for c in pipeline.published()] == [1]
    if not back:
        with pytest.raises(StorageUnavailableError):  # it is still away
            pipeline.stage(pipeline.request("stage_jobs:Unmounting", _source(pipeline), job_arguments=arguments))
        shutil.rmtree(pipeline.root)
        (tmp_path / "elsewhere").rename(pipeline.root)
    pipeline.complete(pipeline.request("stage_jobs:Unmounting", _source(pipeline), job_arguments=arguments))
    _assert_continuous(pipeline.all_rows())


def test_a_snapshot_that_an_unpublished_batch_left_is_not_loaded(pipeline: StageWorld, tmp_path: Path) -> None:
    """A commits batch 1, uploads its snapshot (version 2), dies. B publishes its own batch 1, dies. C loads version 2.

    Spark loads a snapshot in preference to a change log of the same version, so A's must not be in B's copy.
    """
    conf = {
        "spark.sql.streaming.stateStore.minDeltasForSnapshot": "1",
        "spark.sql.streaming.stateStore.maintenanceInterval": "100ms",
    }
    first = {
        "point": "after commit",
        "batch": 1,
        "once": str(tmp_path / "first"),
        "snapshot_below": str(pipeline.root),
    }
    second = {"point": "after publish", "batch": 1, "once": str(tmp_path / "second")}
    with raises(StageError, "driver_ended", signal="SIGKILL"):
        pipeline.stage(pipeline.request("stage_jobs:Crashing", _source(pipeline), job_arguments=first, conf=conf))
    # No snapshots of its own: only the change log of version 2.
    with raises(StageError, "driver_ended", signal="SIGKILL"):
        pipeline.stage(pipeline.request("stage_jobs:Crashing", _source(pipeline), job_arguments=second))
    _add(pipeline, FILES)
    result = pipeline.complete(pipeline.request("stage_jobs:Crashing", _source(pipeline)))
    assert result.numbers  # it did load the state
    _assert_continuous(pipeline.all_rows(), FILES + 1)


@pytest.mark.release
def test_an_aggregation_ends_with_the_sums_of_an_undisturbed_run(pipeline: StageWorld, tmp_path: Path) -> None:
    """Built-in operators, a snapshot of the state at every version, two crashes; then a rewind to the first batch."""
    conf = {
        "spark.sql.streaming.stateStore.providerClass": (
            "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"
        ),
        "spark.sql.streaming.stateStore.minDeltasForSnapshot": "1",
        "spark.sql.streaming.stateStore.maintenanceInterval": "100ms",
    }
    for batch, point in ((0, "after commit"), (2, "after commit")):
        arguments = {"point": point, "batch": batch, "once": str(tmp_path / f"crashed{batch}")}
        request = pipeline.request("stage_jobs:CrashingSums", _source(pipeline), job_arguments=arguments, conf=conf)
        with raises(StageError, "driver_ended", signal="SIGKILL"):
            pipeline.stage(request)
    pipeline.complete(pipeline.request("stage_jobs:Sums", _source(pipeline), conf=conf))
    expected = {k: (sum(10 * n + i for n in range(FILES) for i in range(3)), 3 * FILES) for k in KEYS}

    def final() -> dict[str, tuple[int, int]]:
        return {row["k"]: (row["total"], row["rows"]) for row in pipeline.all_rows()}

    assert final() == expected
    # A refused checkpoint rewinds to an older batch, perhaps of an older location: nothing is lost, nothing twice.
    first = pipeline.published()[0]
    assert isinstance(first.position, SparkPosition)
    epoch = pipeline.store.pipeline(PIPELINE).epoch
    pipeline.store.rewind(PIPELINE, epoch, first.number + 1, first.position, "refused rows")
    pipeline.complete(pipeline.request("stage_jobs:Sums", _source(pipeline), conf=conf))
    kept = [c for c in pipeline.published() if c.after_abort is None]
    last = {row["k"]: (row["total"], row["rows"]) for c in kept for row in pipeline.rows(c).to_pylist()}
    assert last == expected
