"""Keyed state in jobs: helpers of `airflow_ft.jobs.keyed`, as docs/state.md shows them; timers of processing time."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from airflow_ft.protocol.config import CheckpointConfig
from airflow_ft.protocol.errors import StageError
from airflow_ft.sources import FileSource
from airflow_ft.spark.request import StageRequest
from airflow_ft.spark.task.launcher import Driver
from tests.integration.stage_world import PIPELINE, StageWorld, world
from tests.waiting import wait_for

pytestmark = [
    pytest.mark.sampled(among="Spark drivers"),
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.timeout(1200),
]
HOUR = 3_600_000
PAGE = Path(__file__).parents[2] / "docs" / "state.md"


@pytest.fixture
def pipeline(tmp_path: Path, sessions: Path) -> Iterator[StageWorld]:
    yield from world(tmp_path, sessions)


def _example(pipeline: StageWorld, helper: str) -> StageRequest:
    """A run of the example in docs/state.md that imports the helper."""
    (code,) = (
        each for each in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL) if f"import {helper}\n" in each
    )
    (pipeline.folder / f"example_{helper}.py").write_text(code)
    sources = {"orders": FileSource(path=str(pipeline.input), schema="customer string, amount bigint")}
    return pipeline.request(f"example_{helper}", sources, python_path=(str(pipeline.folder),))


def _add(pipeline: StageWorld, name: str, **amounts: list[int]) -> None:
    pipeline.add_file(name, [{"customer": who, "amount": each} for who, given in amounts.items() for each in given])


def _rows(pipeline: StageWorld) -> list[list[tuple[object, ...]]]:
    """Of each checkpoint."""
    return [sorted(tuple(row.values()) for row in pipeline.rows(each).to_pylist()) for each in pipeline.published()]


def test_the_reducing_state_example_continues_from_a_copy(pipeline: StageWorld) -> None:
    _add(pipeline, "f1", anna=[3, 9, 4], ben=[5])
    pipeline.stage(_example(pipeline, "ReducingState"))  # not ended: the next attempt works in a copy
    _add(pipeline, "f2", anna=[1], carl=[2, 2])
    pipeline.complete(_example(pipeline, "ReducingState"))
    assert _rows(pipeline) == [[("anna", 16, 9), ("ben", 5, 5)], [("anna", 17, 9), ("carl", 4, 2)]]


def test_the_aggregating_state_example_continues_from_a_copy(pipeline: StageWorld) -> None:
    _add(pipeline, "f1", anna=[3, 4, 5], ben=[5])
    pipeline.stage(_example(pipeline, "AggregatingState"))
    _add(pipeline, "f2", anna=[10])
    pipeline.complete(_example(pipeline, "AggregatingState"))
    assert _rows(pipeline) == [[("anna", 4.0), ("ben", 5.0)], [("anna", 5.5)]]


def _reminders(pipeline: StageWorld, job: str = "Reminders", **more: Any) -> StageRequest:
    source = FileSource(path=str(pipeline.input), schema="k string, after bigint, at timestamp")
    return pipeline.request(f"stage_jobs:{job}", {"numbers": source, "timed": source}, **more)


def _remind(pipeline: StageWorld, name: str, **after: int) -> None:
    """Two rows of each key, whose timer fires so many milliseconds later."""
    pipeline.add_file(name, [{"k": k, "after": ms} for k, ms in after.items() for _ in range(2)])


def _base(pipeline: StageWorld) -> int:
    base = pipeline.store.pipeline(PIPELINE).base
    return -1 if base is None else base.batch


def test_a_timer_fires_once_in_the_run_in_which_it_is_due(pipeline: StageWorld) -> None:
    _remind(pipeline, "f1", now=1, later=HOUR)
    pipeline.complete(_reminders(pipeline))
    assert _rows(pipeline) == [[], [("now", 2)]]
    for _ in range(2):  # nothing has come, and nothing is due: no checkpoint, and what the runs did not publish goes
        pipeline.complete(_reminders(pipeline))
        assert (len(pipeline.published()), _base(pipeline)) == (2, 1)
    _remind(pipeline, "f2", later=HOUR)
    pipeline.complete(_reminders(pipeline))
    assert _rows(pipeline)[2:] == [[]]
    pipeline.complete(_reminders(pipeline, job_arguments={"ahead": 2 * HOUR / 1000}))
    assert _rows(pipeline)[3:] == [[("later", 4)]], "though nothing has come"
    pipeline.complete(_reminders(pipeline, job_arguments={"ahead": 4 * HOUR / 1000}))
    assert len(pipeline.published()) == 4


def test_time_outs_of_apply_in_pandas_are_treated_the_same(pipeline: StageWorld) -> None:
    _remind(pipeline, "f1", later=HOUR)
    pipeline.complete(_reminders(pipeline, "TimeOuts"))
    assert _rows(pipeline) == [[]]
    pipeline.complete(_reminders(pipeline, "TimeOuts", job_arguments={"ahead": 2 * HOUR / 1000}))
    assert _rows(pipeline) == [[], [("later", 2)]]


@pytest.mark.parametrize(("point", "batch"), [("after commit", 0), ("after commit", 1), ("after publish", 1)])
def test_a_timer_fires_once_whatever_dies(pipeline: StageWorld, tmp_path: Path, point: str, batch: int) -> None:
    _remind(pipeline, "f1", now=1, later=HOUR)
    arguments = {"point": point, "batch": batch, "once": str(tmp_path / "once")}
    with pytest.raises(StageError):
        pipeline.complete(_reminders(pipeline, job_arguments=arguments))
    pipeline.complete(_reminders(pipeline, job_arguments=arguments))
    _remind(pipeline, "f2", now=1)
    pipeline.complete(_reminders(pipeline, job_arguments=arguments))
    assert [rows for rows in _rows(pipeline) if rows] == [[("now", 2)], [("now", 2)]]
    pipeline.complete(_reminders(pipeline, job_arguments={"ahead": 2 * HOUR / 1000}))
    assert _rows(pipeline)[-1] == [("later", 2)]


def test_windows_close_beside_timers_in_the_same_run(pipeline: StageWorld) -> None:
    rows = [{"k": "later", "after": HOUR, "at": f"2026-01-01T00:00:{n:02}Z"} for n in range(25)]
    pipeline.add_file("f1", rows)
    pipeline.complete(_reminders(pipeline, "RemindersAndWindows"))
    assert _rows(pipeline) == [[], [("0", 10), ("10", 10)]]


@contextmanager
def _following(pipeline: StageWorld, silent: int) -> Iterator[Callable[[Callable[[], Any], str], Any]]:
    """A stream that is told to end with the block; it yields what waits for a condition, as long as it goes on."""
    request = _reminders(
        pipeline,
        job_arguments={"ahead": 2 * HOUR / 1000, "silent": silent},
        streaming=True,
        checkpointing=CheckpointConfig(interval=timedelta(milliseconds=100), max_concurrent=50),
    )
    drivers: list[Driver] = []
    with ThreadPoolExecutor() as pool:
        running = pool.submit(pipeline.stage, request, drivers.append)

        def wait(condition: Callable[[], Any], what: str) -> Any:
            return wait_for(lambda: running.result() if running.done() else condition(), 120, what)

        try:
            yield wait
        finally:
            wait_for(lambda: drivers or running.done(), 60, "it has begun")
            for driver in drivers:
                driver.end()
        running.result()


def _stored(pipeline: StageWorld) -> list[tuple[object, ...]]:
    """Over all checkpoints."""
    return [row for found in _rows(pipeline) for row in found]


def test_a_stream_fires_timers_while_no_rows_arrive(pipeline: StageWorld) -> None:
    """Most intervals in which nothing arrives do not become a checkpoint."""
    _remind(pipeline, "f1", later=HOUR)
    pipeline.complete(_reminders(pipeline))
    assert _rows(pipeline) == [[]]
    with _following(pipeline, silent=10_000) as wait:
        wait(lambda: _stored(pipeline) == [("later", 2)], "the timer that was due has fired at the beginning")
        _remind(pipeline, "f2", soon=300)
        wait(lambda: _stored(pipeline) == [("later", 2), ("soon", 2)], "a timer has fired while nothing came")
        published = [each.number for each in pipeline.published()]
        now = pipeline.store.now()
        read = pipeline.store.read_as_of
        wait(lambda: (as_of := read(PIPELINE, published[-1])) and as_of > now, "all that is there is read")
        assert [each.number for each in pipeline.published()] == published, "which is told without a checkpoint"

    with _following(pipeline, silent=3) as wait:
        wait(lambda: len(pipeline.published()) >= len(published) + 3, "what is silent for long is a checkpoint")
    found = [each.position.batch for each in pipeline.published()[len(published) - 1 :] if each.position]
    assert {after - before for before, after in pairwise(found)} == {4}

    _remind(pipeline, "f3", soon=1)
    pipeline.complete(_reminders(pipeline))
    assert _stored(pipeline) == [("later", 2), ("soon", 2), ("soon", 2)], "each fired once"
