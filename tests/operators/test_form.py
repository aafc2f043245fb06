"""What a run is told in the trigger form: fields, what a pipeline makes of them, and what counts where both say."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG, Param
from airflow.sdk.exceptions import AirflowFailException, ParamValidationError

import airflow_ft as ft
from airflow_ft.operators.form import refuse_misspelled
from airflow_ft.operators.recover import RecoverOperator
from airflow_ft.pipeline.run import PlainRun
from airflow_ft.pipeline.spec import PipelineSpec
from airflow_ft.protocol.errors import ConfigurationError
from airflow_ft.protocol.model import CheckpointState, RunKey
from tests.operators.declared import spec
from tests.operators.test_base import airflow_context, do
from tests.protocol.world import PIPELINE, World
from tests.raising import raises

pytestmark = pytest.mark.airflow

SOURCES = {
    "plain": ft.KafkaSource(topics=["a"]),
    "bound": ft.KafkaSource(topics=["a"], max_offsets_per_trigger=7, starting_offsets="latest"),
    "timed": ft.KafkaSource(topics=["a"], starting_offsets=datetime(2026, 1, 2, tzinfo=UTC)),
    "exact": ft.KafkaSource(topics=["a"], starting_offsets={"a": {0: 5}}),
    "own": ft.KafkaSource(topics=["a"], max_offsets_per_trigger="{{ params.mine }}"),
    "files": ft.FileSource(path="/data", schema="id bigint"),
    "bytes": ft.FileSource(path="/data", schema="id bigint", max_bytes_per_trigger=1000),
}


def rendered(values: dict[str, Any], task: str = "stage", **changes: Any) -> PipelineSpec:
    """The specification of a task in a run that was told this."""
    declared = {**ft.pipeline_params(), "mine": Param(3, type="integer")}
    with DAG("d", schedule=None, params=declared):
        pipeline = ft.CheckpointedPipeline(spec(sources=SOURCES, **changes), from_params=True)
    found: Any = pipeline.children[f"orders.{task}"]
    operator = found.prepare_for_execution()
    params = {name: param.value if isinstance(param, Param) else param for name, param in declared.items()}
    operator.render_template_fields({"params": {**params, **values}})
    result: PipelineSpec = operator.rendered()
    return result


def test_a_form_that_says_nothing_changes_nothing() -> None:
    found = rendered({})
    assert found.sources == {**SOURCES, "own": ft.KafkaSource(topics=["a"], max_offsets_per_trigger=3)}
    recover = rendered({}, "recover")
    assert (found.is_dry_run, recover.is_rewind) == (False, False)
    assert recover.savepoint is not None and not recover.savepoint.is_given


def test_what_the_form_says_goes_before_what_the_author_says() -> None:
    params = {
        "max_offsets_per_trigger": 50,
        "max_files_per_trigger": 4,
        "starting_offsets": "2026-11-24T00:00:00+00:00",
    }
    found: dict[str, Any] = dict(rendered(params).sources)
    assert {name: getattr(source, "max_offsets_per_trigger", None) for name, source in found.items()} == {
        "plain": 50, "bound": 50, "timed": 50, "exact": 50, "own": 3, "files": None, "bytes": None,
    }  # fmt: skip
    for name in ("files", "bytes"):
        assert (found[name].max_files_per_trigger, found[name].max_bytes_per_trigger) == (4, None)
    at = datetime(2026, 11, 24, tzinfo=UTC)
    assert [found[name].starting_offsets for name in ("plain", "bound", "timed", "exact")] == [
        at,
        at,
        at,
        {"a": {0: 5}},
    ]
    assert rendered({"dry_run": True}).is_dry_run
    params = {"rewind": True, "savepoint": "/mnt/s", "savepoint_later": "continue"}
    recover = rendered(params, "recover")
    assert recover.is_rewind and recover.savepoint is not None
    assert (recover.savepoint.path, recover.savepoint.later) == ("/mnt/s", "continue")
    full_refresh = rendered({"full_refresh": True}, "recover").savepoint
    assert full_refresh is not None and full_refresh.is_beginning and full_refresh.later == "refuse"


def test_what_cannot_be_is_refused_before_anything_is_read() -> None:
    with pytest.raises(ConfigurationError) as caught:
        rendered({"max_offsets_per_trigger": "0"})
    assert "max_offsets_per_trigger is '0'" in caught.value.headline
    with pytest.raises(ConfigurationError) as caught:
        rendered({"starting_offsets": "yesterday"})
    assert "KafkaSource" in caught.value.headline and "starting_offsets" in caught.value.headline
    with pytest.raises(ConfigurationError) as caught:
        spec(rewind="perhaps")
    assert "rewind is 'perhaps'" in caught.value.headline and "True or False" in caught.value.remedy
    with pytest.raises(ConfigurationError) as caught:
        rendered({"full_refresh": True, "savepoint": "/mnt/s"}, "recover")
    assert "/mnt/s" in caught.value.headline and "full_refresh" in caught.value.remedy
    with pytest.raises(ConfigurationError) as caught:
        PlainRun(spec(rewind=True), lambda _: pytest.fail("nothing is asked for"))
    assert "airflow ft rewind orders" in caught.value.remedy


def test_an_at_most_once_stream_takes_no_start_from_the_form() -> None:
    with DAG("d", schedule=None, params=ft.pipeline_params()):
        pipeline = ft.CheckpointedPipeline(
            pipeline="orders",
            job="jobs.orders",
            sources={"a": ft.KafkaSource(topics=["a"], starting_offsets="latest")},
            sinks={"orders": ft.KafkaSink(topic="b")},
            streaming=True,
            checkpointing=ft.CheckpointConfig(mode=ft.CheckpointingMode.AT_MOST_ONCE),
            from_params=True,
        )
    [source] = pipeline.spec.sources.values()
    assert isinstance(source, ft.KafkaSource) and source.starting_offsets == "latest"
    assert source.max_offsets_per_trigger is not None and pipeline.spec.savepoint is None


@pytest.mark.parametrize(
    ("key", "close"),
    [("dryrun", "dry_run"), ("Dry-Run", "dry_run"), ("fullrefresh", "full_refresh"), ("savepont", "savepoint")],
)
def test_a_run_with_a_misspelled_field_delivers_nothing(tmp_path: Path, key: str, close: str) -> None:
    """Airflow passes over what the DAG does not declare: the dry run would be a real one."""
    world = World(tmp_path)
    world.stage(1)
    with DAG("d", schedule=None, params=ft.pipeline_params()):
        pipeline = ft.CheckpointedPipeline(spec(PIPELINE), from_params=True)
    for name in ("recover", "stage"):
        operator: Any = pipeline.children[f"{PIPELINE}.{name}"]
        context = airflow_context() | {"dag_run": SimpleNamespace(conf={key: True})}
        with raises(AirflowFailException, "argument_unknown", argument=key, close=close, pipeline=PIPELINE):
            do(operator, world.context(), context)
    assert states(world) == [CheckpointState.STAGED]


def test_other_keys_of_a_run_are_left_alone(tmp_path: Path) -> None:
    refuse_misspelled(ft.pipeline_params(), {"dry_run": True, "region": "eu", "report": 1}, PIPELINE)
    refuse_misspelled({**ft.pipeline_params(), "dryrun": Param(False)}, {"dryrun": True}, PIPELINE)
    refuse_misspelled({}, {"dryrun": True}, PIPELINE)


@pytest.mark.parametrize(("name", "value"), [("savepoint", "savepoints/1"), ("savepoint", "./s"), ("savepoint", "s")])
def test_the_form_refuses_a_relative_savepoint(name: str, value: str) -> None:
    with pytest.raises(ParamValidationError):
        ft.pipeline_params()[name].resolve(value)
    for good in (None, "", " ", "/s", " /s", "file:///s", "s3://c@b/s", "beginning"):
        ft.pipeline_params()[name].resolve(good)


def recovering() -> RecoverOperator:
    return RecoverOperator(task_id="recover", spec=spec(PIPELINE, rewind="True"))


def states(world: World) -> list[CheckpointState]:
    return [checkpoint.state for checkpoint in reversed(world.store.checkpoints(PIPELINE))]


def test_a_run_rewinds_in_the_name_of_the_user_who_triggered_it(tmp_path: Path) -> None:
    world = World(tmp_path)
    numbers = world.prepared(2)
    later = world.context(run=RunKey("dag", "later"))
    context = airflow_context() | {"dag_run": SimpleNamespace(triggering_user_name="ada")}
    do(recovering(), later, context)
    assert states(world) == [CheckpointState.ABORTED] * len(numbers)
    texts = [event.message for event in world.store.events(PIPELINE, limit=100)]
    assert any("`rewind` by ada (dag/run-1/orders.step[2])" in text for text in texts), texts


def test_a_run_that_has_begun_to_stage_rewinds_no_more(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.stage(1)
    do(recovering(), world.context(), airflow_context())
    assert states(world) == [CheckpointState.STAGED]


@pytest.mark.parametrize("value", [None, "", "earliest", "latest", "group_offsets", "2026-11-24T00:00:00+00:00",
                                   "2026-11-24 07:30Z", "2026-11-24T07:30:00.5-0800"])  # fmt: skip
def test_the_form_takes_what_a_source_takes(value: str | None) -> None:
    param = ft.pipeline_params()["starting_offsets"]
    assert param.resolve(value) == value
    if value:
        ft.KafkaSource(topics=["a"], starting_offsets=value, group_id="g")


@pytest.mark.parametrize("value", ["newest", "Earliest", " latest", "2026-11-24", "2026-11-24T00:00:00", "17324064000",
                                   "2026-13-01T00:00Z", "2026-11-24T25:00Z", 5])  # fmt: skip
def test_the_form_refuses_a_start_that_no_source_takes(value: Any) -> None:
    with pytest.raises(ParamValidationError):
        ft.pipeline_params()["starting_offsets"].resolve(value)


def _dag(params: dict[str, Any], *, from_params: bool, **changes: Any) -> None:
    with DAG("d", schedule=None, params=params):
        ft.CheckpointedPipeline(spec(sources=SOURCES_WITHOUT_JINJA, **changes), from_params=from_params)


SOURCES_WITHOUT_JINJA = {"plain": SOURCES["plain"]}


@pytest.mark.parametrize(("params", "used"), [(ft.pipeline_params(), False), ({}, True), ({"mine": 3}, True)])
def test_a_form_that_the_pipeline_would_pass_over_is_refused(params: dict[str, Any], used: bool) -> None:
    with raises(ConfigurationError, "form_unused", pipeline="orders"):
        _dag(params, from_params=used)


def test_a_form_whose_fields_the_author_uses_himself_is_not() -> None:
    _dag(ft.pipeline_params(), from_params=False, dry_run="{{ params.dry_run }}")
    _dag({}, from_params=False)
    _dag(ft.dry_run_params(), from_params=True)
