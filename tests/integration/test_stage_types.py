"""A type that the log cannot hold ends the stage with the cast that helps; with that cast it goes through."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_ft.protocol.errors import JobError
from airflow_ft.sources import FileSource
from tests.integration.stage_world import StageWorld, world
from tests.raising import raises

pytestmark = [
    pytest.mark.sampled(among="Spark drivers"),
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.timeout(900),
]
VARIANT = """parse_json('{"a": 1}')"""
INTERVAL = "interval '1 2:03:04' day to second"


@pytest.fixture
def pipeline(tmp_path: Path, sessions: Path) -> Iterator[StageWorld]:
    yield from world(tmp_path, sessions)


def _stage(pipeline: StageWorld, expression: str, where: str, **more: Any) -> None:
    source = FileSource(path=str(pipeline.input), schema="k string, n bigint")
    arguments = {"expression": expression, "where": where}
    pipeline.stage(pipeline.request("stage_jobs:Typed", {"numbers": source}, job_arguments=arguments, **more))


def test_before_anything_runs_and_with_the_cast_it_goes_through(pipeline: StageWorld) -> None:
    pipeline.add_file("one", [{"k": "a", "n": 1}])
    with raises(JobError, "type_unsupported", column="c", types={"c": "variant"}) as caught:
        _stage(pipeline, VARIANT, "transform")
    assert caught.error and "to_json(c)" in caught.error.remedy
    assert pipeline.checkpoints() == [], "no number was given out"
    assert not list(pipeline.root.glob("orders/spark/*/sources")), "no query was started"
    _stage(pipeline, f"to_json({VARIANT})", "transform")
    assert pipeline.all_rows() == [{"n": 1, "c": '{"a":1}'}]


def test_of_what_split_returns_before_a_row_is_written(pipeline: StageWorld) -> None:
    pipeline.add_file("one", [{"k": "a", "n": 1}])
    both = ("others", "orders")
    types = {"c": "interval day to second"}
    with raises(JobError, "type_unsupported", sink="orders", column="c", types=types) as caught:
        _stage(pipeline, INTERVAL, "split", sinks=both)
    assert caught.error and "extract" in caught.error.remedy
    assert not list(pipeline.root.glob("orders/*/*/others")), "not even for a sink that goes first"
    _stage(
        pipeline, f"struct(extract(hour from {INTERVAL}) AS h, cast({INTERVAL} AS string) AS s)", "split", sinks=both
    )
    (row,) = pipeline.all_rows()
    assert (row["c"]["h"], row["c"]["s"]) == (2, "INTERVAL '1 02:03:04' DAY TO SECOND")
