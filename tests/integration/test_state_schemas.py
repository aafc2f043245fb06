"""Schemas of keyed state with real Spark: what grows goes on exactly, and all else is refused by name."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_ft.protocol.errors import ConfigurationError, JobError, StateMeaningError, WalCorruptError
from airflow_ft.protocol.lease import Worker
from airflow_ft.sources import FileSource
from airflow_ft.spark.savepoints.restoring import restore
from airflow_ft.spark.savepoints.taking import take
from airflow_ft.spark.state.settings import ENCODING
from airflow_ft.wal.local import local_path
from tests.integration.stage_world import PIPELINE, StageWorld, world
from tests.raising import raises

pytestmark = [
    pytest.mark.sampled(among="Spark drivers"),
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.timeout(1200),
]
AVRO = {ENCODING: "avro"}
LARGE = 2_147_483_646  # two rows more, and it is no int any more


@pytest.fixture
def pipeline(tmp_path: Path, sessions: Path, own_sessions: Path) -> Iterator[StageWorld]:
    yield from world(tmp_path, sessions, own_sessions)


def _run(pipeline: StageWorld, n: int, fields: str, *, job: str = "Grown", **more: Any) -> list[Any]:
    """Another file comes; what each variable of the key held before it."""
    pipeline.add_file(f"f{n}", [{"k": "a", "n": n}] * 2)
    sources = {"numbers": FileSource(path=str(pipeline.input), schema="k string, n bigint")}
    arguments = {"fields": fields, "first": LARGE - 2} if job == "Grown" else {"by": fields}
    pipeline.complete(pipeline.request(f"stage_jobs:{job}", sources, job_arguments=arguments, **more))
    pipeline.deliver()
    [row] = pipeline.rows(pipeline.published()[-1]).to_pylist()
    data: list[Any] = json.loads(row["items"]) if job == "Grown" else []
    return data


def test_restored_state_accepts_new_and_wider_fields_only(pipeline: StageWorld, tmp_path: Path) -> None:
    assert _run(pipeline, 0, "rows int, other int", conf=AVRO) == [None, [], []]
    uri, taken = take(pipeline.store, PIPELINE, str(tmp_path / "savepoints"), "a test")
    assert len(taken.operators) == 1
    restore(pipeline.store, uri, no_participant, Worker("", 1), "a test", lease_seconds=0.0)
    shutil.rmtree(local_path(uri))

    pipeline.add_file("refused", [])
    with raises(ConfigurationError, "state_settings_changed", kept={ENCODING: "avro"}):
        _run(pipeline, 1, "rows bigint, other int, note string", conf={ENCODING: "unsaferow"})
    held = [LARGE, 8, None]
    grown = "rows bigint, other int, note string"
    assert _run(pipeline, 2, grown) == [held, [held], [held]], "the fourth row is of the run that was refused"
    more = [LARGE + 4, 8, "new"]
    assert _run(pipeline, 3, grown) == [more, [held, more], [more]]

    published = len(pipeline.published())
    with raises(JobError, "state_schema_changed", operator=0, fields_lost="note string") as lost:
        _run(pipeline, 4, "rows bigint, other int, remark string")
    with raises(JobError, "state_unfit") as narrowed:
        _run(pipeline, 5, "rows int, other int, note string")
    assert lost.error is not None and "note string is gone, remark string added" in lost.error.headline
    assert narrowed.error is not None and "StructField(rows,IntegerType" in narrowed.error.headline
    assert all("airflow ft reset-state orders" in error.remedy for error in (lost.error, narrowed.error))
    assert len(pipeline.published()) == published, "nothing of it is published"
    last = [LARGE + 6, 8, "new"]
    assert _run(pipeline, 9, grown)[0] == last, "and the state is as it was"


def test_without_avro_nothing_grows_and_other_operators_never_do(pipeline: StageWorld) -> None:
    assert _run(pipeline, 0, "rows int, other int") == [None, [], []]
    with raises(JobError, "state_unfit") as caught:
        _run(pipeline, 1, "rows int, other bigint")
    assert caught.error is not None and "StructField(other,LongType" in caught.error.headline
    assert f"{ENCODING}=avro" in caught.error.remedy
    with raises(ConfigurationError, "state_settings_changed", kept={ENCODING: "unsaferow"}):
        _run(pipeline, 2, "rows int, other bigint", conf=AVRO)
    epoch = pipeline.store.pipeline(PIPELINE).epoch
    assert epoch > 0
    published = len(pipeline.published())
    with raises(StateMeaningError, "state_meaning_changed") as changed:
        _run(pipeline, 3, "other int, rows int")
    assert changed.error is not None and "state variable list" in changed.error.headline
    assert len(pipeline.published()) == published
    assert _run(pipeline, 4, "rows int, other int")[0] == [LARGE, 8]


def test_avro_is_refused_for_operators_that_cannot_have_it(pipeline: StageWorld) -> None:
    with raises(JobError, "state_unfit", setting=ENCODING, operator="aggregation"):
        _run(pipeline, 0, "count", job="Counts", conf=AVRO)


def no_participant(_: Any) -> Any:
    raise AssertionError("no sink is asked")


@pytest.mark.release
def test_a_job_whose_state_is_gone_has_not_changed(pipeline: StageWorld) -> None:
    _run(pipeline, 0, "rows int, other int")
    base = pipeline.store.pipeline(PIPELINE).base
    assert base is not None
    shutil.rmtree(Path(local_path(base.location), "state"))
    with raises(WalCorruptError, "state_files_missing", path=base.location, batch=base.batch):
        _run(pipeline, 1, "rows int, other int")
