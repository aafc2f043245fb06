"""Changed jobs with real Spark: operators that were added, left out or moved; the others go on with their state."""

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from airflow_ft.protocol.errors import ConfigurationError, StateMeaningError
from airflow_ft.protocol.from_savepoint import Later
from airflow_ft.protocol.lease import Worker
from airflow_ft.sources import FileSource
from airflow_ft.spark.request import StageRequest
from airflow_ft.spark.savepoints.converting import Backend, convert
from airflow_ft.spark.savepoints.metadata import read_metadata
from airflow_ft.spark.savepoints.rescaling import rescale
from airflow_ft.spark.savepoints.restoring import restore
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
STORES = "spark.sql.streaming.stateStore."
BACKENDS = {
    "RocksDB": {},
    "RocksDB, format 2": {f"{STORES}checkpointFormatVersion": "2"},
    "map": {f"{STORES}providerClass": "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"},
}
COUNTED, COMPOSED = "stage_jobs:Counted", "stage_jobs:Composed"


@pytest.fixture
def pipeline(tmp_path: Path, sessions: Path, own_sessions: Path) -> Iterator[StageWorld]:
    yield from stage_world(tmp_path, sessions, own_sessions)


def _request(pipeline: StageWorld, job: str, conf: Mapping[str, str], **arguments: Any) -> StageRequest:
    sources = {"numbers": FileSource(path=str(pipeline.input), schema="k string, n bigint")}
    more = {"conf": {"spark.driver.memory": "700m", "spark.sql.shuffle.partitions": "2", **conf}} if conf else {}
    return pipeline.request(job, sources, job_arguments=arguments, **more)


def _run(
    pipeline: StageWorld, job: str, rows: list[tuple[str, int]], conf: Mapping[str, str] | None = None, **arguments: Any
) -> list[dict[str, Any]]:
    """Another file comes, and is delivered; what the sinks get."""
    pipeline.add_file(f"f{len(list(pipeline.input.iterdir()))}", [{"k": k, "n": n} for k, n in rows])
    pipeline.complete(_request(pipeline, job, conf or {}, **arguments))
    pipeline.deliver()
    return pipeline.rows(pipeline.published()[-1]).to_pylist()


def _counts(rows: list[dict[str, Any]]) -> dict[str, int]:
    return {row["k"]: row["rows"] for row in rows}


def _by(rows: list[dict[str, Any]]) -> dict[str, set[int]]:
    return {by: {row["rows"] for row in rows if row["by"] == by} for by in {row["by"] for row in rows}}


def _restore(pipeline: StageWorld, folder: Path, allow: bool) -> None:
    uri, _ = take(pipeline.store, PIPELINE, str(folder), "a test")
    _restore_savepoint(pipeline, uri, allow_non_restored_state=allow)


def _restore_savepoint(pipeline: StageWorld, uri: str, **more: Any) -> None:
    def no_participant(_: Any) -> Any:
        raise AssertionError("no sink is asked")

    restore(pipeline.store, uri, no_participant, Worker("", 1), "a test", lease_seconds=0.0, **more)


@pytest.mark.parametrize("backend", BACKENDS)
def test_operators_come_and_go_and_the_count_goes_on(pipeline: StageWorld, tmp_path: Path, backend: str) -> None:
    conf = BACKENDS[backend]

    def run(rows: list[tuple[str, int]], *distinct: tuple[str, str]) -> dict[str, int]:
        return _counts(_run(pipeline, COUNTED, rows, conf, distinct=distinct, count="counts"))

    numbers = ("n", "numbers")
    assert run([("a", 1), ("a", 1), ("a", 2)], numbers) == {"a": 2}
    assert run([("a", 2), ("a", 3)], numbers) == {"a": 3}
    base = pipeline.store.pipeline(PIPELINE).base
    assert base is not None
    before = _tree(base.location)

    # Added, nearest to the source: it has seen nothing yet; the other two know what they knew.
    assert run([("b", 3), ("b", 4), ("b", 4)], ("n", "more"), numbers) == {"b": 1}
    assert _tree(base.location) == before, "the old location is as it was"
    assert run([("b", 4), ("b", 5)], ("n", "more"), numbers) == {"b": 2}
    # Moved: what was read in between is in both.
    assert run([("b", 5), ("a", 6)], numbers, ("n", "more")) == {"a": 4}
    # Left out, which has to be allowed.
    with raises(ConfigurationError, "operator_missing") as missing:
        pipeline.stage(_request(pipeline, COUNTED, conf, distinct=[("n", "more")], count="counts"))
    assert missing.error is not None and "'numbers' (dropDuplicates)" in missing.error.headline
    _restore(pipeline, tmp_path / "savepoints", allow=False)
    with raises(ConfigurationError, "operator_missing") as missing:
        pipeline.stage(_request(pipeline, COUNTED, conf, distinct=[("n", "more")], count="counts"))
    assert missing.error is not None and "--allow-non-restored-state" in missing.error.remedy
    _restore(pipeline, tmp_path / "savepoints", allow=True)
    assert run([("a", 1), ("a", 6)], ("n", "more")) == {"a": 5}, "`more` has not seen 1, and `numbers` is gone"
    # It was allowed for that once.
    with raises(ConfigurationError, "operator_missing") as missing:
        pipeline.stage(_request(pipeline, COUNTED, conf, distinct=[], count="counts"))
    assert missing.error is not None and "'more'" in missing.error.headline
    _restore(pipeline, tmp_path / "savepoints", allow=True)
    assert run([("a", 1), ("a", 1)]) == {"a": 7}


def test_a_name_that_only_a_failed_run_gave_may_go_again(pipeline: StageWorld) -> None:
    assert _counts(_run(pipeline, COUNTED, [("a", 1)], distinct=[], count="")) == {"a": 1}
    pipeline.stage(_request(pipeline, COUNTED, {}, distinct=[], count="counts"))  # it does not end
    assert _counts(_run(pipeline, COUNTED, [("a", 1)], distinct=[], count="")) == {"a": 2}
    base = pipeline.store.pipeline(PIPELINE).base
    assert _counts(_run(pipeline, COUNTED, [("a", 1)], distinct=[], count="")) == {"a": 3}
    after = pipeline.store.pipeline(PIPELINE).base
    assert base is not None and after is not None and base.location == after.location, "nothing has changed"


def test_a_job_that_changes_state_keys_or_functions_is_refused(pipeline: StageWorld, tmp_path: Path) -> None:
    sources = {"numbers": FileSource(path=str(pipeline.input), schema="k string, l string, n bigint, m bigint")}

    def stage(n: int, **arguments: Any) -> list[Any]:
        pipeline.add_file(f"f{n}", [{"k": "a", "l": "b", "n": n, "m": n}])
        pipeline.complete(pipeline.request("stage_jobs:Aggregated", sources, job_arguments=arguments))
        pipeline.deliver()
        return [row["n"] for row in pipeline.rows(pipeline.published()[-1]).to_pylist()]

    assert stage(1) == [1] and stage(2, alias="key") == [3], "the name of a column has no meaning"
    published = len(pipeline.published())
    for arguments, names in (
        ({"function": "max"}, ("'totals' (an aggregation)", "sum(numbers.n)", "max(numbers.n)")),
        ({"by": "l"}, ("'totals'", "numbers.k", "numbers.l")),
        ({"distinct": "m"}, ("'distinct' (dropDuplicates)", "numbers.n", "numbers.m")),
    ):
        with raises(StateMeaningError, "state_meaning_changed") as caught:
            pipeline.stage(pipeline.request("stage_jobs:Aggregated", sources, job_arguments=arguments))
        assert caught.error is not None and all(name in caught.error.headline for name in names)
    assert len(pipeline.published()) == published
    uri, taken = take(pipeline.store, PIPELINE, str(tmp_path / "savepoints"), "a test")
    assert taken.operators[0].meaning["functions"] == [["sum(numbers.n)"]] and read_metadata(uri) == taken
    _restore_savepoint(pipeline, uri)
    with pytest.raises(StateMeaningError):
        pipeline.stage(pipeline.request("stage_jobs:Aggregated", sources, job_arguments={"function": "max"}))
    _restore_savepoint(pipeline, uri, allow_changed_state=True)
    assert stage(9, function="max") == [9] and stage(10, function="max") == [10], "3 was a sum"
    with raises(StateMeaningError, "state_meaning_changed") as changed:
        stage(11)
    assert changed.error is not None and "max(numbers.n)" in changed.error.headline


def test_custom_stateful_operators_keep_their_state_when_moved(pipeline: StageWorld) -> None:
    old = [("rows", "by-rows"), ("pandas", "by-pandas"), ("firsts", "firsts"), ("", "")]
    for counts in ({1}, {2}):
        found = _by(_run(pipeline, COMPOSED, [("a", 1), ("b", 1)], branches=old))
        assert found == {"by-rows": counts, "by-pandas": counts, "": {0}} | ({"firsts": {1}} if counts == {1} else {})
    new = [("firsts", "firsts"), ("rows", "new"), ("pandas", "by-pandas"), ("rows", "by-rows")]
    assert _by(_run(pipeline, COMPOSED, [("a", 1), ("b", 1)], branches=new)) == {
        "by-rows": {3},
        "by-pandas": {3},
        "new": {1},
    }
    assert _by(_run(pipeline, COMPOSED, [("a", 1), ("b", 1)], branches=new)) == {
        "by-rows": {4},
        "by-pandas": {4},
        "new": {2},
    }
    uri, taken = take(pipeline.store, PIPELINE, str(pipeline.folder / "savepoints"), "a test")
    assert [each.uid for each in taken.operators] == ["firsts", "new", "by-pandas", "by-rows"], uri
    changed = [("firsts", "firsts"), ("rows", "new"), ("rows", "by-pandas"), ("rows", "by-rows")]
    with raises(ConfigurationError, "operators_unmatched") as refused:
        pipeline.stage(_request(pipeline, COMPOSED, {}, branches=changed))
    assert refused.error is not None and "'by-pandas'" in refused.error.headline


@pytest.mark.release
@pytest.mark.parametrize(
    ("backend", "branches"),
    [
        ("map", [("groups", "groups"), ("firsts", "firsts"), ("joined", "joined")]),
        ("RocksDB", [("rows", "rows"), ("pandas", "pandas")]),
    ],
    ids=["groups, dropDuplicates, join", "transformWithState"],
)
def test_all_at_once(pipeline: StageWorld, tmp_path: Path, backend: str, branches: list[tuple[str, str]]) -> None:
    """Moved, the original gone, in the other state store, in twice the partitions, gone on from by a changed job."""
    for n in (1, 2):
        _run(pipeline, COMPOSED, [("a", n)], BACKENDS[backend], branches=branches)
    folder, small = str(tmp_path / "savepoints"), {"spark.driver.memory": "700m"}
    uri, _ = take(pipeline.store, PIPELINE, folder, "a test")
    moved = shutil.move(local_path(uri), tmp_path / "elsewhere").as_uri()
    if backend == "map":
        moved, _ = convert(moved, Backend.ROCKSDB, folder, "a test", small, print)
    uri, rescaled = rescale(moved, 4, folder, "a test", small, print)
    assert {each.partitions for each in rescaled.operators} == {4}
    assert {each.uid for each in rescaled.operators} == {name for _, name in branches}
    _restore_savepoint(pipeline, uri)
    base = pipeline.store.pipeline(PIPELINE).base
    assert base is not None
    for other in [Path(folder), tmp_path / "elsewhere", *(pipeline.root / PIPELINE / "spark").iterdir()]:
        if other.is_dir() and other != local_path(base.location):
            shutil.rmtree(other)
    changed = [*reversed(branches)]
    conf = {"spark.sql.shuffle.partitions": "4"}
    found = _by(_run(pipeline, COMPOSED, [("a", 3), ("b", 3)], conf, branches=changed))
    if backend == "map":
        joined = {100 * n + 3 for n in (1, 2, 3)} | {300 + n for n in (1, 2)}
        assert found == {"groups": {3, 1}, "firsts": {1}, "joined": joined}, "the first of b alone"
    else:
        assert found == {"rows": {3, 1}, "pandas": {3, 1}}


def test_an_added_operator_sees_rows_delivered_since_a_savepoint(pipeline: StageWorld, tmp_path: Path) -> None:
    assert _counts(_run(pipeline, COUNTED, [("a", 1), ("a", 1)], distinct=[], count="counts")) == {"a": 2}
    uri, _ = take(pipeline.store, PIPELINE, str(tmp_path / "savepoints"), "a test")
    assert _counts(_run(pipeline, COUNTED, [("a", 2), ("a", 2)], distinct=[], count="counts")) == {"a": 4}
    _restore_savepoint(pipeline, uri, later=Later.CONTINUE)
    rows = [("a", 1), ("a", 2), ("a", 3)]
    found = _counts(_run(pipeline, COUNTED, rows, distinct=[("n", "new")], count="counts"))
    assert found == {"a": 5}, "2 before, 1 of the two delivered since, now the 1 and the 3"


def test_a_source_is_used_more_often_behind_what_came_later(pipeline: StageWorld, tmp_path: Path) -> None:
    """The savepoint is restored twice, since nobody has gone on from it meanwhile."""
    assert _by(_run(pipeline, COMPOSED, [("a", 1)], branches=[("rows", "counts")])) == {"counts": {1}}
    uri, _ = take(pipeline.store, PIPELINE, str(tmp_path / "savepoints"), "a test")
    assert _by(_run(pipeline, COMPOSED, [("a", 2)], branches=[("rows", "counts")])) == {"counts": {2}}
    for _ in range(2):
        _restore_savepoint(pipeline, uri, later=Later.CONTINUE)
    more = [("rows", "counts"), ("rows", "more")]
    found = _by(_run(pipeline, COMPOSED, [("a", 3)], branches=more))
    assert found == {"counts": {3}, "more": {2}}, "the one delivered since, and the new one"


def test_a_job_without_state_gets_some_and_loses_it(pipeline: StageWorld, tmp_path: Path) -> None:
    assert _by(_run(pipeline, COMPOSED, [("a", 1)], branches=[("", "")])) == {"": {0}}
    with_state = [("rows", "counts")]
    assert _by(_run(pipeline, COMPOSED, [("a", 1)], branches=with_state)) == {"counts": {1}}, (
        "what was read is not read again"
    )
    assert _by(_run(pipeline, COMPOSED, [("a", 1)], branches=with_state)) == {"counts": {2}}
    _restore(pipeline, tmp_path / "savepoints", allow=True)
    assert _by(_run(pipeline, COMPOSED, [("a", 1)], branches=[("", "")])) == {"": {0}}


def test_operators_that_are_named_later_are_known_by_their_kind(pipeline: StageWorld) -> None:
    assert _counts(_run(pipeline, COUNTED, [("a", 1), ("a", 1)], distinct=[("n", "")], count="")) == {"a": 1}
    named = {"distinct": [("n", "numbers")], "count": "counts"}
    assert _counts(_run(pipeline, COUNTED, [("a", 1), ("a", 2)], **named)) == {"a": 2}
    more = {"distinct": [("k", "keys"), ("n", "numbers")], "count": "counts"}
    assert _counts(_run(pipeline, COUNTED, [("a", 3), ("a", 4)], **more)) == {"a": 3}


def _tree(uri: str) -> dict[str, bytes]:
    base = local_path(uri)
    return {str(path.relative_to(base)): path.read_bytes() for path in base.rglob("*") if path.is_file()}
