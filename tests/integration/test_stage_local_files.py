"""What a stage leaves on a local path, and which processes Hadoop starts for it: counted in real drivers."""

import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_ft.sources import FileSource
from airflow_ft.spark.driver.local_files import MANAGER
from airflow_ft.wal.local import local_path
from tests.integration.stage_world import PIPELINE, StageWorld, world

pytestmark = [
    pytest.mark.sampled(among="Spark drivers"),
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.timeout(900),
]
# With either, Spark does as it does by itself.
HIVES = {"spark.hadoop.fs.file.impl": "org.apache.hadoop.hive.ql.io.ProxyLocalFileSystem"}
MANAGERS = {MANAGER: "org.apache.spark.sql.execution.streaming.checkpointing.FileContextBasedCheckpointFileManager"}
BATCHES = 3
HDFS = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"
    )
}


@pytest.fixture
def pipeline(tmp_path: Path) -> Iterator[StageWorld]:
    yield from world(tmp_path)


@pytest.fixture
def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file in which each process that Hadoop starts leaves its name."""
    calls, folder = tmp_path / "calls", tmp_path / "bin"
    folder.mkdir()
    for name in ("chmod", "readlink", "stat", "ls", "ln"):
        program = folder / name
        program.write_text(f'#!/bin/sh\necho {name} >> {calls}\nexec {shutil.which(name)} "$@"\n')
        program.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    return calls


def _stage(pipeline: StageWorld, calls: Path, **more: object) -> Counter[str]:
    """A run of some batches that adds up numbers by key; what was started for it."""
    calls.write_text("")
    for _ in range(BATCHES):
        n = len(list(pipeline.input.iterdir()))
        pipeline.add_file(f"f{n}", [{"k": k, "n": n} for k in "ab"])
    sources = {"numbers": FileSource(path=str(pipeline.input), schema="k string, n bigint", max_files_per_trigger=1)}
    pipeline.complete(pipeline.request("stage_jobs:Sums", sources, **more))
    return Counter(calls.read_text().split())


def _location(pipeline: StageWorld) -> Path:
    base = pipeline.store.pipeline(PIPELINE).base
    assert base is not None
    return local_path(base.location)


def _checksums(folder: Path) -> set[Path]:
    """Those of Hadoop alone. Logs, and what describes the state, get theirs when they are sealed."""
    sealed = {"offsets", "commits", "sources", "_metadata"}
    return {path for path in folder.rglob("*.crc") if path.name != ".metadata.crc" and not sealed & set(path.parts)}


@pytest.mark.parametrize("state", [{}, HDFS], ids=["RocksDB", "HDFS-backed"])
def test_a_location_continues_with_or_without_checksums(
    pipeline: StageWorld, started: Path, state: dict[str, str]
) -> None:
    """Written as Spark does by itself, continued in place, then in a copy, and then with a manager of the user's."""
    before = _stage(pipeline, started, conf=HIVES | state)
    first = _location(pipeline)
    assert before["readlink"] > BATCHES * 2 * 8 and _checksums(first) and _checksums(pipeline.root / PIPELINE / "1-1")

    old = _checksums(first)
    now = _stage(pipeline, started, conf=state)
    assert _location(pipeline) == first and _checksums(first) <= old
    assert not _checksums(pipeline.root / PIPELINE / "2-2")
    # A file of each log (offsets, commits, sources) and of each partition's state; a folder and a file of each task.
    assert set(now) == {"chmod"} and now["chmod"] <= BATCHES * (3 + 2 + 2 * 2) + 10, (now, before)

    _stage(pipeline, started, conf=state, base_is_clean=False)
    assert (copy := _location(pipeline)) != first
    assert {path.name for path in _checksums(copy)} <= {path.name for path in old}

    shutil.rmtree(first)
    again = _stage(pipeline, started, conf=MANAGERS | state)
    assert _location(pipeline) == copy and again["readlink"] > BATCHES * 2 * 8

    total = 0
    for n, checkpoint in enumerate(pipeline.published()):
        total += n
        rows = pipeline.rows(checkpoint).to_pylist()
        assert {(row["k"], row["total"], row["rows"]) for row in rows} == {(k, total, n + 1) for k in "ab"}
    assert n == 4 * BATCHES - 1
    assert not list((pipeline.root / PIPELINE).rglob("_temporary")), "the folders of Spark's committer are gone"
