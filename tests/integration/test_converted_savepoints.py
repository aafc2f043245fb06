"""Savepoints whose state is moved to Spark's other state store, with real Spark: exact counts, both ways."""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_ft.protocol.errors import ConfigurationError, StageError
from airflow_ft.protocol.lease import Worker
from airflow_ft.sources import FileSource
from airflow_ft.spark.request import StageRequest
from airflow_ft.spark.savepoints.converting import Backend, convert
from airflow_ft.spark.savepoints.metadata import METADATA, read_metadata, verify, write_metadata
from airflow_ft.spark.savepoints.restoring import restore
from airflow_ft.spark.savepoints.taking import take
from airflow_ft.spark.state.settings import PROVIDER
from airflow_ft.wal.local import local_path
from tests.integration.converted_states import CASES
from tests.integration.stage_world import PIPELINE, StageWorld, world
from tests.raising import raises

pytestmark = [
    pytest.mark.sampled(among="Spark drivers"),
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.timeout(1200),
]
SMALL = {"spark.driver.memory": "700m"}


@pytest.fixture
def pipeline(tmp_path: Path, sessions: Path, own_sessions: Path) -> Iterator[StageWorld]:
    yield from world(tmp_path, sessions, own_sessions)


def test_each_operator_goes_on_in_the_other_state_store_and_back(tmp_path: Path) -> None:
    """See `converted_states`: file n holds the keys k1 to k(3 + n) twice; 2 files are read before, 1 in between."""
    program = [sys.executable, "-m", "tests.integration.converted_states", str(tmp_path)]
    done = subprocess.run(program, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False)
    sys.stdout.write(done.stdout[-5000:] + done.stderr[-5000:])
    assert done.returncode == 0
    found = json.loads(done.stdout.splitlines()[-1])

    def keys(n: int, rows: Any) -> list[list[Any]]:
        return sorted([f"k{k}", rows(k)] for k in range(1, 4 + n))

    def count(n: int) -> list[list[Any]]:
        """A key that is not among the first four came in a later file."""
        return keys(n, lambda k: 2 * min(n, n + 4 - k))

    in_session = keys(3, lambda k: 2 * min(3, 7 - k))  # the session ends with the fourth file
    wanted = {
        "counts": ([5, 6], [count(3), count(4)]),
        "groups": ([5, 6], [count(3), count(4)]),
        "distinct": ([5, 6], [[["k6", 3]], [["k7", 4]]]),
        "joined": ([60, 96], [sorted(4 * keys(2, lambda _: 3)), sorted(4 * keys(3, lambda _: 4))]),
        "sessions": ([5, 6], [[], in_session]),
    }
    assert set(found) == set(CASES)
    for case, expected in found.items():
        state, rows = wanted[case.partition(",")[0]]
        assert expected["rows"] == rows, case
        if not case.startswith("joined"):
            assert expected["state"] == state, case
        else:
            assert all(expected["state"]), case


def _request(pipeline: StageWorld, by: str, n: int, **more: Any) -> StageRequest:
    """To read another file, too."""
    pipeline.add_file(f"f{n}", [{"k": k, "n": 10 * n + i} for i in range(2) for k in "ab"])
    sources = {"numbers": FileSource(path=str(pipeline.input), schema="k string, n bigint")}
    return pipeline.request("stage_jobs:Counts", sources, job_arguments={"by": by}, **more)


def _delivered(pipeline: StageWorld, by: str, n: int, **more: Any) -> set[int]:
    pipeline.complete(_request(pipeline, by, n, **more))
    pipeline.deliver()
    return {row["rows"] for row in pipeline.rows(pipeline.published()[-1]).to_pylist()}


def test_a_converted_savepoint_is_enough_to_continue_a_pipeline(pipeline: StageWorld, tmp_path: Path) -> None:
    """What is converted stays as it is, and a pipeline that names the old state store is refused then."""
    folder = str(tmp_path / "savepoints")
    conf = {PROVIDER: Backend.HDFS.provider}
    assert _delivered(pipeline, "count of distinct", 0, conf=conf) == {2}
    count = 2
    for n, backend in enumerate((Backend.ROCKSDB, Backend.HDFS), 1):
        uri, taken = take(pipeline.store, PIPELINE, folder, "a test")
        new, converted = convert(uri, backend, folder, "a test", SMALL, print)
        verify(uri, taken)
        assert converted.backend == backend.short and taken.backend != backend.short
        assert (converted.positions, converted.batch, converted.number) == (taken.positions, taken.batch, taken.number)
        assert [each.states for each in converted.operators] == [each.states for each in taken.operators]
        with raises(ConfigurationError, "savepoint_unchanged", backend=backend.short):
            convert(new, backend, folder, "a test", SMALL, print)
        restored = restore(pipeline.store, new, no_participant, Worker("", 1), "a test", lease_seconds=0.0)
        for other in [local_path(uri), local_path(new), *(pipeline.root / PIPELINE / "spark").iterdir()]:
            if other != local_path(restored.position.location):
                shutil.rmtree(other) if other.is_dir() else other.unlink()
        old = {PROVIDER: next(each for each in Backend if each is not backend).provider}
        with raises(ConfigurationError, "state_settings_changed", kept={PROVIDER: backend.provider}):
            pipeline.stage(_request(pipeline, "count of distinct", 2 * n, conf=old))
        count += 4  # the file of the refused run, and this one
        again = {"conf": {PROVIDER: backend.provider}} if backend is Backend.HDFS else {}
        assert _delivered(pipeline, "count of distinct", 2 * n + 1, **again) == {count}


def test_an_unsupported_conversion_is_refused_and_leaves_nothing(pipeline: StageWorld, tmp_path: Path) -> None:
    folder = tmp_path / "savepoints"
    _delivered(pipeline, "rows", 0)
    uri, taken = take(pipeline.store, PIPELINE, str(folder), "a test")
    with raises(ConfigurationError, "state_backend_unsupported") as refused:
        convert(uri, Backend.HDFS, str(folder), "a test", SMALL, print)
    assert refused.error is not None and refused.error.fields["operator"].startswith("transformWithState")
    document = (local_path(uri) / METADATA).read_text()

    def retold(**changes: Any) -> None:
        (local_path(uri) / METADATA).unlink()
        write_metadata(uri, replace(taken, **changes))

    retold(backend="Other")
    with raises(ConfigurationError, "state_backend_unsupported", backend="Other"):
        convert(uri, Backend.HDFS, str(folder), "a test", SMALL, print)
    retold(operators=())
    with raises(ConfigurationError, "savepoint_unchanged"):
        convert(uri, Backend.HDFS, str(folder), "a test", SMALL, print)
    # As if it could: Spark fails, after it has begun.
    retold(operators=(replace(taken.operators[0], name="count"),))
    with raises(StageError, "state_not_rewritten", pipeline=PIPELINE):
        convert(uri, Backend.HDFS, str(folder), "a test", SMALL, print)
    (local_path(uri) / METADATA).write_text(document)
    assert [path.as_uri() for path in folder.glob("savepoint*")] == [uri], "nothing is left of it"
    verify(uri, read_metadata(uri))


def no_participant(_: Any) -> Any:
    raise AssertionError("no sink is asked")
