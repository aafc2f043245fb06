"""Files that go, come back or change between Spark's listing and the publication: no row is lost, none is mixed."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_ft.protocol.errors import JobError, StageError
from airflow_ft.sources import FileSource
from airflow_ft.spark.state import source_log
from airflow_ft.wal.filesystem import filesystem
from airflow_ft.wal.local import local_path
from tests.integration.stage_world import PIPELINE, StageWorld, streaming, world
from tests.raising import raises
from tests.waiting import wait_for

pytestmark = [
    pytest.mark.sampled(among="Spark drivers"),
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.timeout(900),
]


@pytest.fixture
def pipeline(tmp_path: Path, sessions: Path) -> Iterator[StageWorld]:
    for made in world(tmp_path, sessions):
        for n in range(3):
            made.add_file(f"f{n}", [{"k": f"f{n}", "n": n}])
        yield made


def _sources(pipeline: StageWorld, path: str = "") -> dict[str, FileSource]:
    where = path or str(pipeline.input)
    return {"numbers": FileSource(path=where, schema="k string, n bigint", max_files_per_trigger=1)}


def name_of(path: str) -> str:
    return path.rpartition("/")[2]


def _read(pipeline: StageWorld) -> list[int]:
    return sorted(row["n"] for row in pipeline.all_rows())


def _moves(pipeline: StageWorld, *moves: tuple[int, str, str | None]) -> dict[str, object]:
    return {
        "moves": [(when, str(pipeline.input / old), new and str(pipeline.input / new)) for when, old, new in moves],
    }


def test_a_file_missing_while_its_batch_is_planned_is_read_later(pipeline: StageWorld) -> None:
    """All files are listed at the beginning. The second is away while its batch is planned, and then there again."""
    moves = _moves(pipeline, (0, "f1.json", "../away"), (1, "../away", "f1.json"))
    job = pipeline.request("stage_jobs:Meddling", _sources(pipeline), job_arguments=moves)
    with raises(StageError, "file_changed") as caught:
        pipeline.stage(job)
    assert caught.error and [name_of(path) for path in caught.error.fields["paths"]] == ["f1.json"]
    assert _read(pipeline) == [0]
    (pipeline.folder / "away").rename(pipeline.input / "f1.json")
    pipeline.complete(pipeline.request("stage_jobs:Plain", _sources(pipeline)))
    assert _read(pipeline) == [0, 1, 2]


def test_a_file_with_a_column_of_another_type_is_refused(pipeline: StageWorld) -> None:
    folder = pipeline.folder / "typed"
    folder.mkdir()
    pq.write_table(pa.table({"k": ["a"], "n": pa.array([200], pa.int32())}), folder / "x.parquet")
    sources = {"numbers": FileSource(path=str(folder), format="parquet", schema="k string, n tinyint")}
    with raises(JobError, "file_types_unfit", format="Parquet", columns=["n is int but declared tinyint"]):
        pipeline.stage(pipeline.request("stage_jobs:Plain", sources))
    assert pipeline.published() == []


def test_a_file_that_vanished_unread_does_not_block_later_runs(pipeline: StageWorld) -> None:
    """Also when nothing has been published from its source yet: what was logged for a batch that never was is gone."""
    other = pipeline.folder / "other"
    other.mkdir()
    sources = {**_sources(pipeline), "side": FileSource(path=str(other / "*"), schema="k string, n bigint")}
    pipeline.complete(pipeline.request("stage_jobs:Union", sources))
    (other / "gone.json").write_text('{"k": "x", "n": 7}\n')
    (pipeline.input / "f3.json").write_text('{"k": "f3", "n": 3}\n')
    (pipeline.input / "f4.json").write_text('{"k": "f4", "n": 4}\n')
    request = pipeline.request("stage_jobs:Union", sources, job_arguments={"lose": str(other / "gone.json")})
    with raises(StageError, "file_changed") as caught:
        pipeline.stage(request)
    assert caught.error and "gone.json" in caught.error.what
    (other / "new.json").write_text('{"k": "y", "n": 8}\n')
    pipeline.complete(pipeline.request("stage_jobs:Union", sources))
    assert _read(pipeline) == [0, 1, 2, 3, 4, 8]


def test_a_file_that_grew_after_it_was_read_is_warned_of(pipeline: StageWorld) -> None:
    """Its new lines are never read. The warning stays as long as runs find it."""
    pipeline.complete(pipeline.request("stage_jobs:Plain", _sources(pipeline)))
    assert not pipeline.store.warnings([PIPELINE])
    with (pipeline.input / "f1.json").open("a") as file:
        file.write('{"k": "f1", "n": 9}\n')
    pipeline.complete(pipeline.request("stage_jobs:Plain", _sources(pipeline)))
    [warning] = pipeline.store.warnings([PIPELINE])[PIPELINE]
    assert (warning.code, warning.subject) == ("SOURCE_FILE_CHANGED", "numbers") and "f1.json" in warning.message
    assert any("SOURCE_FILE_CHANGED" in line for line in pipeline.lines) and _read(pipeline) == [0, 1, 2]


@pytest.mark.parametrize("when", [0, 1], ids=["before it was read", "while it was read"])
def test_a_file_that_changes_is_read_again_as_a_whole(pipeline: StageWorld, when: int) -> None:
    moves = _moves(pipeline, (when, "f1.json", None))
    with raises(StageError, "file_changed") as caught:
        pipeline.stage(pipeline.request("stage_jobs:Meddling", _sources(pipeline), job_arguments=moves))
    assert caught.error and [name_of(path) for path in caught.error.fields["paths"]] == ["f1.json"]
    assert _read(pipeline) == [0]
    pipeline.complete(pipeline.request("stage_jobs:Plain", _sources(pipeline)))
    assert _read(pipeline) == [-1, 0, 1, 2]


@pytest.mark.parametrize("job", ["MeddlingStatic", "StaticSide"])
def test_files_of_a_static_read_are_looked_at_too(pipeline: StageWorld, job: str) -> None:
    side = pipeline.folder / "side"
    side.mkdir()
    (side / "a file;x.json").write_text('{"k": "f0", "m": 1}\n')
    sources = {**_sources(pipeline), "side": FileSource(path=str(side), schema="k string, m bigint")}
    target = "f2.json" if job == "MeddlingStatic" else "../side/a file;x.json"
    moves = _moves(pipeline, (0, target, None))
    with raises(StageError, "file_changed"):
        pipeline.stage(pipeline.request(f"stage_jobs:{job}", sources, job_arguments=moves))
    assert not pipeline.published()
    again = pipeline.request(f"stage_jobs:{job}", sources, job_arguments={"moves": []})
    pipeline.complete(again)
    assert len(pipeline.all_rows()) == (4 if job == "MeddlingStatic" else 3)


def test_a_folder_that_is_away_is_tried_again(pipeline: StageWorld) -> None:
    pipeline.input.rename(pipeline.folder / "away")
    with raises(StageError, "folder_missing", source="numbers", path=f"file:{pipeline.input}"):
        pipeline.stage(pipeline.request("stage_jobs:Plain", _sources(pipeline)))
    (pipeline.folder / "away").rename(pipeline.input)
    pipeline.complete(pipeline.request("stage_jobs:Plain", _sources(pipeline)))
    assert _read(pipeline) == [0, 1, 2]


def test_a_checkpoint_is_bounded_by_the_bytes_of_its_files(pipeline: StageWorld) -> None:
    """19 bytes each; 40 hold two of them. A file is read as a whole, and one that is too large by itself."""
    source = FileSource(path=str(pipeline.input), schema="k string, n bigint", max_bytes_per_trigger=40)
    pipeline.add_file("f3", [{"k": "f3", "n": n} for n in range(3, 20)])
    for n in (20, 21):
        pipeline.add_file(f"f{n}", [{"k": "f", "n": n}])
    pipeline.complete(pipeline.request("stage_jobs:Plain", {"numbers": source}))
    slices = [[0, 1], [2], list(range(3, 20)), [20, 21]]
    assert [sorted(row["n"] for row in pipeline.rows(each).to_pylist()) for each in pipeline.published()] == slices
    pipeline.add_file("f22", [{"k": "f", "n": 22}])
    pipeline.complete(pipeline.request("stage_jobs:Plain", {"numbers": source}))
    assert _read(pipeline) == list(range(23))


def test_a_stream_bounded_in_bytes_reports_when_all_is_read(pipeline: StageWorld) -> None:
    """1000 hold the first nine files and not the tenth, which is a checkpoint by itself, and so is the last one. Of
    neither of the first two checkpoints its size tells that there is more.
    """
    source = FileSource(path=f"{pipeline.folder}/input/*", format="text", max_bytes_per_trigger=1000)
    shutil.rmtree(pipeline.input)
    (pipeline.folder / "new").mkdir()
    for place, size in enumerate([100] * 9 + [200, 850]):
        file = pipeline.folder / "new" / f"{place}.txt"
        file.write_text("x" * (size - 1) + "\n")
        os.utime(file, (1_700_000_000 + place,) * 2)
    pipeline.input.mkdir()
    (pipeline.input / "old").mkdir()
    (pipeline.input / "old" / "first.txt").write_text("first\n")
    with streaming(pipeline, pipeline.request("stage_jobs:Plain", {"numbers": source})):
        wait_for(lambda: pipeline.store.read_as_of(PIPELINE, 1), 60, "it has read the first file, and follows")
        (pipeline.folder / "new").rename(pipeline.input / "new")
        at = pipeline.store.now()
        wait_for(lambda: len(pipeline.all_rows()) == 12, 60, "all files are read")
        assert [pipeline.rows(each).num_rows for each in pipeline.published()] == [1, 9, 1, 1]
        wait_for(lambda: (pipeline.store.read_as_of(PIPELINE, 4) or at) > at, 60, "it says so")
        before = pipeline.store.read_as_of(PIPELINE, 3)
        assert before is None or before < at, "the last file was not read"


def test_compacted_logs_and_wildcards_over_many_batches(pipeline: StageWorld) -> None:
    """Each tenth id of Spark's log holds all before it. An attempt that ends in the middle is cut back to an id."""
    for n in range(3, 24):
        name = "f5 é%20#;x=1" if n == 5 else f"f{n}"  # Spark's log and its plan spell it in two ways
        pipeline.add_file(name, [{"k": f"f{n}", "n": n}])
    wild = _sources(pipeline, f"{pipeline.input}/f*.js[a-z]n")
    moves = _moves(pipeline, (20, "f21.json", "../away"))
    with raises(StageError, "file_changed") as caught:
        pipeline.stage(pipeline.request("stage_jobs:Meddling", wild, job_arguments=moves))
    assert caught.error and [name_of(path) for path in caught.error.fields["paths"]] == ["f21.json"]
    assert _read(pipeline) == list(range(21))
    request = pipeline.request("stage_jobs:Plain", wild)
    pipeline.complete(request)
    assert _read(pipeline) == [*range(21), 22, 23]
    base = pipeline.store.pipeline(PIPELINE).base
    assert base is not None
    files = filesystem(base.location)
    assert (local_path(base.location) / "sources/0/9.compact").exists()
    read = source_log.entries(files, base.location, "0", source_log.NOTHING_READ, 22)
    assert len(read) == 23 and source_log.newest_id(files, base.location, "0") == 22
