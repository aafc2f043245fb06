"""Operator state in copies of its location, under a changed job, and after it was dropped: counts are exact."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_ft.admin.commands.looking import describe
from airflow_ft.protocol.errors import ConfigurationError, StateConflictError, StateMeaningError
from airflow_ft.protocol.model import SparkPosition, StateSizes
from airflow_ft.sources import FileSource
from airflow_ft.spark.request import StageRequest
from airflow_ft.spark.session.submit import settings
from airflow_ft.spark.state.locations import open_location
from airflow_ft.spark.state.settings import FORMAT
from airflow_ft.wal.local import local_path
from tests.integration.stage_world import PIPELINE, StageWorld, world
from tests.protocol.systems import Metered
from tests.raising import raises

pytestmark = [
    pytest.mark.sampled(among="Spark drivers"),
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.timeout(1200),
]
PARTITIONS = "spark.sql.shuffle.partitions"
PROVIDER = "spark.sql.streaming.stateStore.providerClass"
UNLOAD = "spark.sql.streaming.stateStore.unloadOnCommit"
CHANGELOG = "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled"
HDFS = {PROVIDER: "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"}


@pytest.fixture
def pipeline(tmp_path: Path, sessions: Path, own_sessions: Path) -> Iterator[StageWorld]:
    yield from world(tmp_path, sessions, own_sessions)


def _request(pipeline: StageWorld, by: str, bound: int | None = None, **more: object) -> StageRequest:
    source = FileSource(path=str(pipeline.input), schema="k string, n bigint", max_files_per_trigger=bound)
    sources = {"numbers": source}
    return pipeline.request("stage_jobs:Counts", sources, job_arguments={"by": by}, **more)


def _add(pipeline: StageWorld, n: int) -> None:
    pipeline.add_file(f"f{n}", [{"k": k, "n": 10 * n + i} for i in range(2) for k in "ab"])


def _counts(pipeline: StageWorld) -> list[set[int]]:
    """The counts that each checkpoint has published."""
    return [{row["rows"] for row in pipeline.rows(checkpoint).to_pylist()} for checkpoint in pipeline.published()]


def _versions(store: Path, kind: str) -> list[int]:
    """The versions of which a state store has a file of that kind."""
    return sorted(int(path.name.partition(".")[0]) for path in store.glob(f"[0-9]*.{kind}"))


def _base(pipeline: StageWorld) -> SparkPosition:
    base = pipeline.store.pipeline(PIPELINE).base
    assert base is not None
    return base


@pytest.mark.parametrize("conf", [{}, {UNLOAD: "true"}], ids=["at the end", "with each micro-batch"])
def test_short_runs_leave_full_snapshots_of_their_state(pipeline: StageWorld, conf: dict[str, str]) -> None:
    """Spark's maintenance comes once a minute: no such run lives to see it. The second is what executors do."""
    meter = pipeline.store.meter = Metered()
    for n in range(12):
        _add(pipeline, n)
    pipeline.complete(_request(pipeline, "count", bound=1, **({"conf": conf} if conf else {})))
    state = local_path(_base(pipeline).location) / "state" / "0"
    for partition in (state / "0", state / "1"):
        changes, snapshots = (_versions(partition, kind) for kind in ("changelog", "zip"))
        assert changes == list(range(1, 13)) and 10 <= snapshots[-1] <= 11, (changes, snapshots)
        for version in changes:  # from here on the snapshot counts
            if version <= snapshots[-1]:
                (partition / f"{version}.changelog").unlink()
    ((what, _, changed, snapshot, replayed),) = [each for each in meter.calls if each[0] != "lag"]
    assert what == "state" and changed > 0 and snapshot > 1000 and 1 <= replayed <= 2
    newest = pipeline.checkpoints()[-1]
    assert newest.state_sizes == StateSizes(changed, snapshot, replayed)
    assert {bool(each.application) for each in pipeline.checkpoints()} == {True}
    assert {f"  Spark app {newest.application}", f"  state     {newest.state_sizes}"} <= set(describe(newest))

    _add(pipeline, 12)
    pipeline.complete(_request(pipeline, "count"))
    assert _counts(pipeline)[-2:] == [{24}, {26}]


@pytest.mark.parametrize("version", ["1", "2"])
def test_state_fits_rows_that_spark_computes_twice(pipeline: StageWorld, version: str) -> None:
    """Rows by ranges: the first computation is a sample. In format 2 each one has state of its own."""
    for n in range(3):
        _add(pipeline, n)
    source = FileSource(path=str(pipeline.input), schema="k string, n bigint", max_files_per_trigger=1)
    pipeline.complete(pipeline.request("stage_jobs:Ranged", {"numbers": source}, conf={FORMAT: version}))
    totals = {"a": 0.0, "b": 0.0}
    for row in pipeline.all_rows():
        totals[row["k"]] += row["added"]
        assert row["total"] == pytest.approx(totals[row["k"]])


def test_only_a_new_pipeline_gets_rocksdb_with_a_changelog(pipeline: StageWorld) -> None:
    _add(pipeline, 0)
    pipeline.complete(_request(pipeline, "count", conf=HDFS))
    state = local_path(_base(pipeline).location) / "state" / "0" / "0"
    assert _versions(state, "delta") == [1]
    _add(pipeline, 1)
    pipeline.complete(_request(pipeline, "count"))
    assert _versions(state, "delta") == [1, 2] and not _versions(state, "changelog")
    assert _counts(pipeline) == [{2}, {4}]
    new = settings(_request(pipeline, "count", conf={}), pipeline.folder)
    assert new[PROVIDER].endswith("RocksDBStateStoreProvider") and new[CHANGELOG] == "true"


@pytest.mark.parametrize("by", ["rows", "pandas"])
def test_a_copy_of_a_copy_continues_without_earlier_locations(pipeline: StageWorld, by: str) -> None:
    """The first copy is one of those that were made with the paths of its original left in it."""
    _add(pipeline, 0)
    pipeline.complete(_request(pipeline, by))
    first = local_path(_base(pipeline).location)
    copy = first.with_name("1-99")
    shutil.copytree(first, copy)
    shutil.rmtree(first)
    for n in (1, 2):
        _add(pipeline, n)
        before = SparkPosition(copy.as_uri(), 0) if n == 1 else _base(pipeline)
        pipeline.complete(_request(pipeline, by, base=before, base_is_clean=n == 1))
        assert _base(pipeline).location != before.location
        shutil.rmtree(local_path(before.location))
    assert _counts(pipeline) == [{2}, {4}, {6}]
    own = open_location(str(pipeline.root), PIPELINE, 99, 99, _base(pipeline), True)
    assert own.uri == _base(pipeline).location, "the last copy needs nothing of those before"


def test_a_changed_operator_is_terminal_and_says_what_changed(pipeline: StageWorld) -> None:
    """Settings are compared before a JVM starts. While something is not delivered, the state cannot be dropped."""
    _add(pipeline, 0)
    pipeline.complete(_request(pipeline, "count"))
    _add(pipeline, 1)
    with raises(ConfigurationError, "state_settings_changed", settings={PARTITIONS: "3"}, kept={PARTITIONS: "2"}):
        pipeline.stage(_request(pipeline, "count", conf={PARTITIONS: "3"}))
    with raises(StateMeaningError, "state_meaning_changed", pipeline=PIPELINE) as caught:
        pipeline.stage(_request(pipeline, "count and more"))
    [changed] = caught.error.fields["changed"]
    assert "operator 0" in changed
    assert _counts(pipeline) == [{2}]

    with raises(StateConflictError, "action_refused", checkpoint=1) as caught:
        pipeline.reset_state()
    assert caught.error is not None and "airflow ft rewind orders" in caught.error.remedy
    epoch = pipeline.store.pipeline(PIPELINE).epoch
    pipeline.store.rewind(PIPELINE, epoch, 1, None, "not delivered")
    assert pipeline.reset_state() is None, "a pipeline that starts anew has no state"


@pytest.mark.parametrize("by", ["count of distinct", "rows"])
def test_dropped_state_begins_anew_where_the_last_run_ended(pipeline: StageWorld, by: str) -> None:
    """From an aggregation, or from a job without state, to other operators: no row is read twice, or left out."""
    before = "count" if by == "count of distinct" else "no state"
    for n in range(2):
        _add(pipeline, n)
    pipeline.complete(_request(pipeline, before))
    pipeline.deliver()
    _add(pipeline, 2)
    old = _base(pipeline)

    position = pipeline.reset_state()
    assert position == _base(pipeline) and position.batch == -1
    assert pipeline.reset_state() is None and _base(pipeline) == position, "repeated, it changes nothing"
    shutil.rmtree(local_path(old.location))
    pipeline.complete(_request(pipeline, by, conf={PARTITIONS: "3"}))
    assert _counts(pipeline)[1:] == [{2}], "the rows of the third file, counted from zero"
    assert "start" in pipeline.published()[-1].positions["numbers"]

    # What comes after it is refused by a sink: computed again, from no state. In a copy, since that is not clean.
    number = pipeline.published()[-1].number
    epoch, store = pipeline.store.pipeline(PIPELINE).epoch, pipeline.store
    store.rewind(PIPELINE, epoch, number, store.position_before(PIPELINE, number), "refused rows")
    assert _base(pipeline) == position
    _add(pipeline, 3)
    pipeline.complete(_request(pipeline, by, conf={PARTITIONS: "3"}))
    assert _base(pipeline).location != position.location
    assert _counts(pipeline)[2:] == [{4}], "both files that came after"
