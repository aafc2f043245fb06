"""A run that ends for good: what is open in windows and joins is published once, and the state is left as it was."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_ft.protocol.config import CheckpointConfig
from airflow_ft.protocol.errors import StageError
from airflow_ft.protocol.model import SparkPosition
from airflow_ft.sources import FileSource
from airflow_ft.spark.request import StageRequest
from airflow_ft.spark.state.draining import END_OF_TIME, drain_of
from airflow_ft.wal.local import local_path
from tests.integration.stage_world import PIPELINE, StageWorld, world

pytestmark = [
    pytest.mark.sampled(among="Spark drivers"),
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.timeout(1200),
]
DRAIN = CheckpointConfig(drain=True)


@pytest.fixture
def pipeline(tmp_path: Path, sessions: Path) -> Iterator[StageWorld]:
    yield from world(tmp_path, sessions)


def _add(pipeline: StageWorld, first: int, end: int) -> None:
    """A row for each of these seconds."""
    rows = [{"n": n, "at": f"2026-01-01T00:00:{n:02}Z"} for n in range(first, end)]
    pipeline.add_file(f"f{first}", rows)


def _request(pipeline: StageWorld, job: str = "Windows", **more: Any) -> StageRequest:
    sources = {"numbers": FileSource(path=str(pipeline.input), schema="n bigint, at timestamp")}
    return pipeline.request(f"stage_jobs:{job}", sources, **more)


def _windows(pipeline: StageWorld) -> list[list[tuple[int, int]]]:
    """What each checkpoint holds: beginning and rows of each window; without those that hold nothing."""
    found = [pipeline.rows(checkpoint).to_pylist() for checkpoint in pipeline.published()]
    return [sorted((row["second"], row["rows"]) for row in rows) for rows in found if rows]


def _base(pipeline: StageWorld) -> SparkPosition:
    base = pipeline.store.pipeline(PIPELINE).base
    assert base is not None
    return base


def _lines(base: SparkPosition, batch: int) -> dict[str, Any]:
    """The metadata of a batch in Spark's log of offsets."""
    text = (local_path(base.location) / "offsets" / str(batch)).read_text()
    found: dict[str, Any] = json.loads(text.splitlines()[1])
    return found


def test_a_drain_emits_open_windows_without_changing_the_state(pipeline: StageWorld) -> None:
    _add(pipeline, 0, 25)
    pipeline.complete(_request(pipeline))
    assert _windows(pipeline) == [[(0, 10), (10, 10)]]
    _add(pipeline, 25, 35)
    pipeline.complete(_request(pipeline, checkpointing=DRAIN))
    assert _windows(pipeline)[1:] == [[(20, 10)], [(30, 5)]]

    *_, before, last = pipeline.published()
    assert last.position is None and last.drained == before.position == _base(pipeline)
    assert drain_of(pipeline.store, PIPELINE) == last
    assert set(last.positions["numbers"]) == {"start", "end"}
    assert last.positions["numbers"]["start"] == last.positions["numbers"]["end"] == before.positions["numbers"]["end"]
    assert _lines(_base(pipeline), _base(pipeline).batch)["batchWatermarkMs"] < END_OF_TIME
    assert (last.run, pipeline.store.pipeline(PIPELINE).base_is_clean) == (before.run, True)

    # Nothing more to read: what was drained is not drained again.
    pipeline.complete(_request(pipeline, checkpointing=DRAIN))
    assert len(_windows(pipeline)) == 3

    # From the state before the drain: the window is there whole, once more.
    _add(pipeline, 35, 50)
    pipeline.complete(_request(pipeline))
    assert _windows(pipeline)[3:] == [[(30, 10)]]
    assert drain_of(pipeline.store, PIPELINE) is None
    pipeline.complete(_request(pipeline, checkpointing=DRAIN))
    assert _windows(pipeline)[4:] == [[(40, 10)]]


def test_windows_start_empty_if_state_is_dropped_after_a_drain(pipeline: StageWorld) -> None:
    _add(pipeline, 0, 25)
    pipeline.complete(_request(pipeline, checkpointing=DRAIN))
    assert _windows(pipeline) == [[(0, 10), (10, 10)], [(20, 5)]]
    pipeline.deliver()
    assert pipeline.reset_state() is not None
    assert drain_of(pipeline.store, PIPELINE) is None
    _add(pipeline, 25, 45)
    pipeline.complete(_request(pipeline))
    assert _windows(pipeline)[2:] == [[(20, 5), (30, 10)]], "of what was read since"


@pytest.mark.parametrize("point", ["after commit", "after publish"])
def test_a_drain_is_published_once_although_its_driver_dies(pipeline: StageWorld, tmp_path: Path, point: str) -> None:
    """The batches before: that of the rows, and one without data in which the watermark has passed two windows."""
    _add(pipeline, 0, 25)
    arguments = {"point": point, "batch": 2, "once": str(tmp_path / "once")}
    with pytest.raises(StageError):
        pipeline.complete(_request(pipeline, "CrashingWindows", job_arguments=arguments, checkpointing=DRAIN))
    assert (drain_of(pipeline.store, PIPELINE) is not None) == (point == "after publish")
    pipeline.complete(_request(pipeline, "CrashingWindows", job_arguments=arguments, checkpointing=DRAIN))
    assert _windows(pipeline) == [[(0, 10), (10, 10)], [(20, 5)]]
    assert drain_of(pipeline.store, PIPELINE) == pipeline.published()[-1]


def test_windows_of_windows_come_too(pipeline: StageWorld) -> None:
    _add(pipeline, 0, 35)
    pipeline.complete(_request(pipeline, "Chained", checkpointing=DRAIN))
    assert [window for found in _windows(pipeline) for window in found] == [(0, 30), (30, 5)]


def test_outer_rows_of_a_join_come_too(pipeline: StageWorld) -> None:
    _add(pipeline, 0, 8)
    pipeline.complete(_request(pipeline, "Joined", checkpointing=DRAIN))
    found = sorted(row for rows in _windows(pipeline) for row in rows)
    assert found == [(n, n % 2) for n in range(8)]


def test_timers_of_event_time_fire(pipeline: StageWorld) -> None:
    _add(pipeline, 0, 25)
    pipeline.complete(_request(pipeline, "Timers", checkpointing=DRAIN))
    assert _windows(pipeline) == [[(0, 10), (10, 10)], [(20, 5)]]


@pytest.mark.parametrize(("job", "why"), [("Plain", "has no state"), ("AllWindows", "output mode complete")])
def test_where_nothing_can_be_open_nothing_is_published(pipeline: StageWorld, job: str, why: str) -> None:
    _add(pipeline, 0, 5)
    result = pipeline.complete(_request(pipeline, job, checkpointing=DRAIN))
    assert drain_of(pipeline.store, PIPELINE) is None
    assert why in result.undrained
    assert len(pipeline.published()) == 1 or job == "AllWindows", "a batch without data moves its watermark"
