"""A source of one's own: the example of docs/sources.md, which goes on behind what was published, with more readers."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_ft.protocol.errors import ConfigurationError, StageError
from airflow_ft.sources import CustomSource
from airflow_ft.spark.request import StageRequest
from airflow_ft.spark.savepoints.taking import take
from tests.integration.stage_world import PIPELINE, StageWorld, world

pytestmark = [
    pytest.mark.sampled(among="Spark drivers"),
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.timeout(1200),
]
PAGE = Path(__file__).parents[2] / "docs" / "sources.md"
JOB = """
def transform(spark, sources):
    return sources["lines"]
"""


@pytest.fixture
def pipeline(tmp_path: Path, sessions: Path) -> Iterator[StageWorld]:
    yield from world(tmp_path, sessions)


def _request(pipeline: StageWorld, readers: int = 2, **more: Any) -> StageRequest:
    code = next(
        each for each in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL) if "class Lines" in each
    )
    (pipeline.folder / "lines_of_docs.py").write_text(code)
    (pipeline.folder / "lines_job.py").write_text(JOB)
    options = {"path": str(pipeline.input), "readers": str(readers)}
    source = CustomSource(data_source=more.pop("data_source", "lines_of_docs:Lines"), options=options, replayable=True)
    return pipeline.request("lines_job", {"lines": source}, python_path=(str(pipeline.folder),), **more)


def _grow(pipeline: StageWorld, splits: str, count: int) -> None:
    """So many lines more of each of these files; numbered."""
    for split in splits:
        path = pipeline.input / f"{split}.log"
        before = path.read_bytes().count(b"\n") if path.exists() else 0
        with path.open("a") as file:
            file.writelines(f"{split}{n}\n" for n in range(before, before + count))


def _lines(pipeline: StageWorld, number: int) -> Counter[tuple[str, ...]]:
    """How often each line is in a checkpoint."""
    return Counter((row["split"], row["line"]) for row in pipeline.rows(pipeline.published()[number]).to_pylist())


def _readers(pipeline: StageWorld, number: int) -> dict[int, set[str]]:
    """The splits that each reader has read of."""
    found: dict[int, set[str]] = {}
    for row in pipeline.rows(pipeline.published()[number]).to_pylist():
        found.setdefault(row["reader"], set()).add(row["split"][0])
    return found


def _expected(splits: str, begin: int, end: int) -> dict[tuple[str, str], int]:
    return {(f"{split}.log", f"{split}{n}"): 1 for split in splits for n in range(begin, end)}


def test_splits_are_redistributed_from_two_readers_to_three(pipeline: StageWorld) -> None:
    _grow(pipeline, "abcde", 20)
    pipeline.complete(_request(pipeline, 2))
    with (pipeline.input / "a.log").open("a") as file:
        file.write("unfinished")
    _grow(pipeline, "bcdef", 20)
    pipeline.stage(_request(pipeline, 3))  # not ended: nothing of it is read again in the copy
    pipeline.complete(_request(pipeline, 3))
    assert len(pipeline.published()) == 2
    assert _lines(pipeline, 0) == _expected("abcde", 0, 20)
    assert _lines(pipeline, 1) == _expected("bcde", 20, 40) | _expected("f", 0, 20)
    before, after = _readers(pipeline, 0), _readers(pipeline, 1)
    assert (before, after) == ({0: set("ace"), 1: set("bd")}, {0: set("be"), 1: set("cf"), 2: {"d"}})


def test_a_custom_source_reads_nothing_twice_after_a_driver_dies(pipeline: StageWorld, tmp_path: Path) -> None:
    """Checkpoints and savepoints hold the positions of the source."""
    _grow(pipeline, "ab", 5)
    pipeline.complete(_request(pipeline))
    ends = {f"{split}.log": (pipeline.input / f"{split}.log").stat().st_size for split in "ab"}
    (first,) = pipeline.published()
    assert first.positions == {"lines": {"start": None, "end": ends}}
    pipeline.deliver()
    _, savepoint = take(pipeline.store, PIPELINE, str(tmp_path / "savepoints"), "a test")
    assert savepoint.positions == {"lines": ends}

    crash = (
        "import airflow_ft.spark.driver.publisher as p, os\np.Publisher._publish = lambda *_: os.kill(os.getpid(), 9)\n"
    )
    _grow(pipeline, "b", 5)
    request = _request(pipeline)
    (pipeline.folder / "lines_job.py").write_text(crash + JOB)
    with pytest.raises(StageError):
        pipeline.stage(request)
    pipeline.complete(_request(pipeline))
    assert _lines(pipeline, 0) == _expected("ab", 0, 5)
    assert _lines(pipeline, 1) == _expected("b", 5, 10)
    assert pipeline.published()[1].positions["lines"]["start"] == ends


def test_a_class_that_is_not_there_is_named_with_the_remedy(pipeline: StageWorld) -> None:
    with pytest.raises(ConfigurationError) as caught:
        pipeline.stage(_request(pipeline, data_source="lines_of_docs:Line"))
    assert "lines_of_docs:Line" in caught.value.what
