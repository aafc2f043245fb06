"""One pipeline, one place in a DAG: what cannot be right is refused when the DAG is parsed, the rest when it runs."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG, Asset, AssetAlias, TaskGroup, task_group
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException
from airflow.serialization.serialized_objects import DagSerialization

from airflow_ft import CheckpointedPipeline, PipelineSpec
from airflow_ft.operators.base import CheckpointOperator
from airflow_ft.operators.commit import CommitOperator
from airflow_ft.operators.confirm import ConfirmOperator
from airflow_ft.operators.prepare import PrepareOperator
from airflow_ft.operators.recover import RecoverOperator
from airflow_ft.operators.stage import StageOperator
from airflow_ft.protocol.confirmed import Confirmed, confirmed_of
from airflow_ft.protocol.errors import ConfigurationError
from airflow_ft.protocol.model import RunKey
from tests.operators.declared import SINKS, SOURCES, spec
from tests.operators.test_base import Events
from tests.protocol.world import PIPELINE, World
from tests.raising import raises

pytestmark = pytest.mark.airflow


def group(**changes: Any) -> CheckpointedPipeline:
    return CheckpointedPipeline(
        **{"pipeline": "orders", "job": "jobs.orders", "sources": SOURCES, "sinks": SINKS, **changes}
    )


def by_hand(pipeline: str = "orders", prefix: str = "") -> list[CheckpointOperator]:
    """The single operators of one pipeline, in their order."""
    of = spec(pipeline)
    tasks: list[CheckpointOperator] = [
        RecoverOperator(task_id=f"{prefix}recover", spec=of),
        StageOperator(task_id=f"{prefix}stage", spec=of),
        PrepareOperator(task_id=f"{prefix}prepare", participant="shop", spec=of),
        CommitOperator(task_id=f"{prefix}commit", participant="shop", spec=of),
        ConfirmOperator(task_id=f"{prefix}confirmed", spec=of),
    ]
    for one, other in pairwise(tasks):
        one >> other
    return tasks


@pytest.fixture
def dag() -> DAG:
    return DAG("d", schedule=None)


def mapped(dag: DAG, **settings: Any) -> None:
    """A pipeline in a task group that is expanded for x = "de", "fr"; `x` among the settings means that argument."""
    with dag:

        @task_group
        def shops(x: Any) -> None:
            group(**{name: x if value is X else value for name, value in settings.items()})

        shops.expand(x=["de", "fr"])


X = object()


def test_one_name_for_all_map_indexes_is_refused(dag: DAG) -> None:
    with raises(ConfigurationError, "pipeline_duplicated", tasks=["shops.orders.recover"]) as caught:
        mapped(dag)
    assert caught.error is not None and "suffix=" in caught.error.remedy


@pytest.mark.parametrize("suffix", ["de", 7])
def test_one_suffix_for_all_map_indexes_is_refused(dag: DAG, suffix: Any) -> None:
    with raises(ConfigurationError, "pipeline_duplicated"):
        mapped(dag, suffix=suffix)


def test_single_operators_of_one_name_are_refused_when_mapped(dag: DAG) -> None:
    with dag, raises(ConfigurationError, "pipeline_duplicated"):

        @task_group
        def shops(x: Any) -> None:
            with TaskGroup("within"):
                by_hand()

        shops.expand(x=[1, 2])


@pytest.mark.parametrize(
    ("settings", "group_id", "alias"),
    [
        ({"suffix": X}, "orders", "airflow-ft://orders-*"),
        ({"suffix": "{{ ti.map_index }}"}, "orders", "airflow-ft://orders-*"),
        ({"pipeline": "shop_{{ ti.map_index }}"}, "shop", "airflow-ft://shop_*"),
        ({"pipeline": "{{ ti.map_index }}"}, "pipeline", "airflow-ft://*"),
        ({"pipeline": X}, "pipeline", "airflow-ft://*"),
        ({"pipeline": X, "group_id": "own"}, "own", "airflow-ft://*"),
    ],
)
def test_a_pipeline_for_each_map_index(dag: DAG, settings: dict[str, Any], group_id: str, alias: str) -> None:
    mapped(dag, **settings)
    confirmed = dag.get_task(f"shops.{group_id}.confirmed")
    assert confirmed.outlets == [AssetAlias(alias), AssetAlias("mysql:shop/t")]
    again = DAG("d", schedule=None)
    mapped(again, **settings)
    assert DagSerialization.serialize_dag(dag) == DagSerialization.serialize_dag(again), "no new version at each parse"
    DagSerialization.deserialize_dag(DagSerialization.serialize_dag(dag))


def test_a_suffix_outside_of_mapped_groups_is_part_of_the_name(dag: DAG) -> None:
    with dag:
        pipelines = [group(suffix=shop) for shop in ("de", "fr")]
    assert [p.pipeline for p in pipelines] == ["orders-de", "orders-fr"]
    assert pipelines[0].asset == Asset("airflow-ft://orders-de")


def test_one_pipeline_twice_in_a_dag_is_refused(dag: DAG) -> None:
    with dag:
        group(group_id="one")
        with raises(ConfigurationError, "pipeline_duplicated", pipeline="orders", tasks=["one.recover", "two.recover"]):
            group(group_id="two")


def test_single_operators_of_one_pipeline_are_no_second_one(dag: DAG) -> None:
    with dag:
        by_hand()
        by_hand("other", "other_")
        with TaskGroup("a"), raises(ConfigurationError, "pipeline_duplicated", tasks=["stage", "a.again"]):
            StageOperator(task_id="again", spec=spec())


def test_a_group_beside_operators_of_its_pipeline_is_refused(dag: DAG) -> None:
    with dag:
        by_hand()
        with raises(ConfigurationError, "pipeline_duplicated"):
            group()


class Probe(CheckpointOperator):
    """Says which pipeline and run it works on."""

    def step(self, spec: PipelineSpec, run: Any, context: Any) -> Any:
        return self.pipeline, run.run


def execute(operator: CheckpointOperator, ti: Any = None, **context: Any) -> Any:
    ti = ti or SimpleNamespace(dag_id="d", run_id="r", task_id=operator.task_id, map_index=-1, try_number=1)
    whole = {"ti": ti, "outlet_events": Events(), **context}
    return type(operator).execute.__wrapped__(operator, whole)  # type: ignore[attr-defined]


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path))
    return f"sqlite:///{tmp_path}/ft.db"


def test_a_rendered_suffix_follows_the_name(url: str) -> None:
    ti = SimpleNamespace(dag_id="d", run_id="r", task_id="t", map_index=2, try_number=1)
    operator = Probe(task_id="t", spec=spec("shop", suffix="{{ x }}", store=url))
    operator.render_template_fields({"x": "fr"})
    assert execute(operator, ti) == ("shop-fr", RunKey("d", "r", 2))
    assert execute(operator, ti)[0] == "shop-fr", "also when it is resumed"
    bad = Probe(task_id="t", spec=spec("shop", suffix="{{ x }}", store=url))
    bad.render_template_fields({"x": "Not A Name"})
    with raises(AirflowFailException) as caught:
        execute(bad)
    assert caught.error is not None and "'shop-Not A Name'" in caught.error.headline


def test_the_asset_of_a_rendered_name_gets_the_event(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow_ft.operators.recover import emit

    added: list[Any] = []
    accessor = SimpleNamespace(add=lambda asset, extra: added.append((asset, extra)))
    operator = ConfirmOperator(task_id="t", spec=spec("{{ name }}"))
    assert operator.outlets[0] == AssetAlias("airflow-ft://*")
    operator.pipeline = "orders"
    world = World(tmp_path)
    world.stage(1)
    confirmed = confirmed_of(world.store, PIPELINE, [1])
    run = world.context()
    emit(operator, {"outlet_events": {operator.outlets[0]: accessor}}, run, confirmed)  # type: ignore[typeddict-item]
    [(asset, extra)] = added
    assert asset == Asset("airflow-ft://orders") and extra["number"] == 1 and extra["pipeline"] == "orders"
    emit(operator, {}, run, Confirmed())  # type: ignore[typeddict-item]
    assert len(added) == 1


def test_two_groups_that_render_to_one_pipeline_are_no_run(dag: DAG, url: str) -> None:
    """The second group would find the run staged, compute nothing and confirm the first one's rows."""
    from airflow_ft.store import open_store

    names = ("{{ 'ord' }}ers", "or{{ 'ders' }}")
    with dag:
        groups = [group(pipeline=name, group_id=f"g{n}", store=url) for n, name in enumerate(names)]
    with open_store(url) as store:  # type: ignore[attr-defined]
        store.register("orders")
        run = RunKey("d", "r")
        store.enter_turn("orders", run, None)
        from airflow_ft.protocol.lease import Worker, new_epoch

        with new_epoch(store, "orders", Worker("t"), "stage", 1) as (epoch, _):
            store.begin_stage("orders", epoch, run, "d/r/g0.stage")
            store.end_stage("orders", epoch, run, None)
        for task in ("recover", "stage", "prepare.shop", "commit.shop", "confirmed"):
            mine, other = (dag.get_task(f"g{n}.{task}") for n in (0, 1))
            for operator in (mine, other):
                operator.pipeline = "orders"  # type: ignore[union-attr]
            before = store.pipeline("orders")
            with raises(AirflowFailException) as caught:
                execute(other)  # type: ignore[arg-type]
            assert caught.error is not None and "d/r/g0.stage" in caught.error.headline
            assert store.pipeline("orders") == before, "nothing is taken, and no turn is given back"
        for task in ("recover", "stage", "confirmed"):
            execute(dag.get_task(f"g0.{task}"))  # type: ignore[arg-type]
    assert len(groups) == 2


def test_a_stage_that_was_renamed_finds_its_run(dag: DAG, url: str) -> None:
    from airflow_ft.protocol.lease import Worker, new_epoch
    from airflow_ft.store import open_store

    with dag:
        group(store=url)
    store = open_store(url)
    store.register("orders")
    run = RunKey("d", "r")
    store.enter_turn("orders", run, None)
    with new_epoch(store, "orders", Worker("t"), "stage", 1) as (epoch, _):
        store.begin_stage("orders", epoch, run, "d/r/old_name.stage")
        store.end_stage("orders", epoch, run, None)
    store.close()
    assert execute(dag.get_task("orders.stage")) is None  # type: ignore[arg-type]


@pytest.mark.parametrize("command", ["airflow tasks test", "airflow dags test"])
def test_a_test_run_touches_nothing(
    command: str,
    url: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    context: dict[str, Any] = {}
    if command == "airflow tasks test":
        monkeypatch.setenv("AIRFLOW_TEST_MODE", "True")
    else:
        context["dag_run"] = SimpleNamespace(triggering_user_name="dag_test")
    operator = Probe(task_id="t", spec=spec(store=url))
    with pytest.raises(AirflowSkipException):
        execute(operator, **context)
    assert (
        f"`{command}` would act on the checkpoints of other runs. So this is a dry run"
        in caplog.text + capsys.readouterr().out
    )
    assert not Path(url.removeprefix("sqlite:///")).exists(), "the decision log is not even opened"
    monkeypatch.setenv("AIRFLOW__AIRFLOW_FT__ALLOW_TEST_RUNS", "True")
    assert execute(operator, **context) == ("orders", RunKey("d", "r"))
