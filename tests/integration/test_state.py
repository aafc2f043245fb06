"""State of a real pipeline, by key: as of what is confirmed, while later checkpoints are computed."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_ft import state
from airflow_ft.sources import FileSource
from airflow_ft.spark.savepoints.taking import take
from tests.integration.stage_world import PIPELINE, StageWorld
from tests.integration.stage_world import world as stage_world

pytestmark = [
    pytest.mark.sampled(among="Spark drivers"),
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.timeout(600),
]


@pytest.fixture
def pipeline(tmp_path: Path, sessions: Path) -> Iterator[StageWorld]:
    yield from stage_world(tmp_path, sessions)


def _stage(pipeline: StageWorld, by: str, n: int) -> None:
    pipeline.add_file(f"f{n}", [{"k": k, "n": 10 * n + i} for i in range(2) for k in "ab"])
    sources = {"numbers": FileSource(path=str(pipeline.input), schema="k string, n bigint")}
    pipeline.complete(pipeline.request("stage_jobs:Counts", sources, job_arguments={"by": by}))


@pytest.mark.parametrize(
    ("by", "operators"),
    [
        ("count of distinct", ["stateStoreSave", "dedupe"]),
        ("rows", ["transformWithStateInPySparkExec"]),
    ],
    ids=["two operators", "transformWithState"],
)
def test_a_key_is_told_as_of_what_is_confirmed(
    pipeline: StageWorld, tmp_path: Path, by: str, operators: list[str]
) -> None:
    _stage(pipeline, by, 0)
    pipeline.deliver()
    with state.open(PIPELINE, store=pipeline.url) as found:
        assert [each.name for each in found.operators()] == operators
        (column,) = found.get(0, "a")
        assert found.get(0, "a") == {column: 2} and found.get(0, "c") is None
        _stage(pipeline, by, 1)
        assert not found.refresh() and found.get(0, "b") == {column: 2}, "it is published, and not confirmed"
        pipeline.deliver()
        uri, _ = take(pipeline.store, PIPELINE, str(tmp_path / "savepoints"), "a test")
        assert found.refresh() and found.get(0, "b") == {column: 4}
        _stage(pipeline, by, 2)
        pipeline.deliver()
        found.refresh()
        assert sorted((each["key"]["k"], each["before"], each["after"]) for each in found.changes(0, 1)) == [
            (k, {column: 2}, {column: 6}) for k in "ab"
        ]
        if len(operators) > 1:
            assert found.get(1, {"k": "a", "n": 21}) is not None and found.get(1, ("a", 22)) is None
    with state.open_savepoint(uri) as saved:
        assert saved.get(0, "b") == {column: 4}
