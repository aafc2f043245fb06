from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG, task
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from airflow_ft.operators.sweep import RecoverAllOperator
from airflow_ft.protocol import steps
from airflow_ft.protocol.errors import ConfigurationError, StoreUnavailableError, WalCorruptError
from airflow_ft.protocol.model import CheckpointState
from airflow_ft.protocol.pipelines import HaltReason
from airflow_ft.protocol.problems import problems
from tests.protocol.systems import Systems
from tests.protocol.world import PIPELINE, World
from tests.raising import raises
from tests.store.scene import Scene

pytestmark = pytest.mark.airflow
ROOT = Path(__file__).parents[2]


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    world = World(tmp_path)
    monkeypatch.setenv("AIRFLOW__AIRFLOW_FT__STORE", f"sqlite:///{tmp_path}/ft.db")
    monkeypatch.setattr("airflow_ft.operators.sweep.participant_factory", lambda: Systems(world.systems))
    monkeypatch.setattr("airflow_ft.pipeline.settings.lease_seconds", lambda: 0.03)
    with closing(world.store):
        yield world


@pytest.fixture
def gauges(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    from airflow.sdk.observability import stats

    found: dict[str, float] = {}
    monkeypatch.setattr(stats, "gauge", lambda name, value, **_: found.update({name: value}))
    return found


def prepared(world: World) -> None:
    world.stage(1)
    for name in world.delivery.names:
        steps.prepare_step(world.context(), world.delivery, world.config, name)


def run(**arguments: Any) -> Any:
    return RecoverAllOperator(task_id="recover", orphan_age=timedelta(0), **arguments).execute({})  # type: ignore[arg-type]


def test_it_settles_and_measures(world: World, gauges: dict[str, float]) -> None:
    prepared(world)
    assert run()[PIPELINE]["settled"] == {"1": "COMPLETED"}
    assert gauges[f"airflow_ft.undelivered_age.{PIPELINE}"] == 0
    assert gauges[f"airflow_ft.needs_attention.{PIPELINE}"] == 0
    assert gauges[f"airflow_ft.since_confirmed.{PIPELINE}"] >= 0


def test_a_test_run_settles_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    prepared(world)
    monkeypatch.setenv("AIRFLOW_TEST_MODE", "True")
    with raises(AirflowFailException, "airflow_test_refused"):
        run()
    assert world.store.checkpoint(PIPELINE, 1).state is CheckpointState.PREPARED


def test_it_fails_when_somebody_has_to_act_after_all_was_done(world: World, gauges: dict[str, float]) -> None:
    prepared(world)
    world.store.register("other")
    world.store.halt("other", HaltReason.TOKEN_LOST, "it is gone.")
    with raises(AirflowFailException, "problems_found", pipelines=["other"]) as caught:
        run()
    assert caught.error is not None and "airflow ft pipelines" in caught.error.remedy
    assert world.store.checkpoint(PIPELINE, 1).state is CheckpointState.COMPLETED
    assert gauges["airflow_ft.needs_attention.other"] == 1
    assert run(pipelines=[PIPELINE])[PIPELINE]["settled"] == {}


def test_a_damaged_row_hides_no_other_pipeline(world: World, gauges: dict[str, float]) -> None:
    world.stage(1)
    world.store.register("other")
    world.store.halt("other", HaltReason.TOKEN_LOST, "it is gone.")
    with world.store._database.write() as tx:  # type: ignore[attr-defined]
        tx.change("UPDATE checkpoint SET segment_rows = '{'")
    with raises(AirflowFailException, "problems_found", pipelines=[PIPELINE, "other"]):
        run()
    assert gauges["airflow_ft.needs_attention.other"] == 1


def test_an_error_of_another_package_hides_no_other_pipeline(
    world: World, gauges: dict[str, float], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refused(*_: Any) -> Any:
        raise PermissionError("sesame")

    prepared(world)
    world.store.register("other")
    world.store.halt("other", HaltReason.TOKEN_LOST, "it is gone.")
    monkeypatch.setattr("airflow_ft.operators.sweep.participant_factory", lambda: refused)
    with raises(AirflowFailException, "problems_found", pipelines=[PIPELINE, "other"]) as caught:
        run()
    assert gauges[f"airflow_ft.needs_attention.{PIPELINE}"] == gauges["airflow_ft.needs_attention.other"] == 1
    assert caught.error is not None and "PermissionError" in caught.error.what and "sesame" not in caught.error.what
    assert any(each.exc_info and "sesame" in str(each.exc_info[1]) for each in caplog.records)


def test_it_names_a_pipeline_that_the_log_lacks(
    world: World, gauges: dict[str, float], capsys: pytest.CaptureFixture[str]
) -> None:
    world.store.register(PIPELINE)
    assert list(run(pipelines=["ordrs", PIPELINE])) == [PIPELINE]
    said = [line for line in capsys.readouterr().out.splitlines() if f"Give one of: {PIPELINE}." in line]
    assert len(said) == 1 and "[warning" in said[0] and "ordrs: skipped" in said[0]


@task
def named() -> list[str]: ...


@pytest.mark.parametrize(("found", "code"), [(None, "template_without_value"), ([], "argument_invalid")])
def test_pipelines_that_render_to_none_are_not_all(world: World, found: Any, code: str) -> None:
    with DAG("d", schedule=None):
        operator = RecoverAllOperator(task_id="recover", pipelines=named())
    operator.pipelines = found
    with raises(AirflowFailException, code, argument="pipelines"):
        operator.execute({})  # type: ignore[arg-type]


def test_patience_ends(world: World, gauges: dict[str, float]) -> None:
    world.stage(1)
    assert run()[PIPELINE]["undelivered_age"] > 0
    with raises(AirflowFailException, "problems_found", pipelines=[PIPELINE]):
        run(patience=timedelta(0))


def test_a_retired_pipeline_needs_no_person(
    world: World, gauges: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its decided rows may be lost for ever (docs/recovery.md)."""
    prepared(world)
    steps.commit_step(world.context(), "db")
    monkeypatch.setattr("airflow_ft.operators.sweep.participant_factory", lambda: _lost)
    with raises(AirflowFailException, "problems_found", pipelines=[PIPELINE]):
        run()
    assert gauges[f"airflow_ft.needs_attention.{PIPELINE}"] == 1
    world.store.retire(PIPELINE, "ada", world.store.pipeline(PIPELINE).turn)
    assert "[file_missing]" in run(patience=timedelta(0))[PIPELINE]["error"]
    assert gauges[f"airflow_ft.needs_attention.{PIPELINE}"] == 0
    assert not list(problems(world.store, patience=timedelta(0)))


def _lost(*_: Any) -> Any:
    raise WalCorruptError("its file is gone.", code="file_missing")


def test_what_is_late_by_its_own_bound_needs_a_person(world: World, gauges: dict[str, float]) -> None:
    Scene(world.store, "shop").stage(2, made_with={"late_after": 1e-5})
    with raises(AirflowFailException, "problems_found", pipelines=["shop"]):
        run(patience=None)
    sent = {name: gauges[f"airflow_ft.{name}.shop"] for name in ("late", "halted", "quarantined", "undelivered")}
    assert sent == {"late": 1, "halted": 0, "quarantined": 0, "undelivered": 2}
    segments = [each.segment for each in world.store.open_checkpoints("shop")]
    assert gauges["airflow_ft.undelivered_bytes.shop"] == sum(each.bytes for each in segments if each) > 0


@pytest.mark.parametrize(
    ("given", "remedy"),
    [
        ({"pipelines": "orders"}, '["orders"]'),
        ({"orphan_age": 600}, "timedelta(minutes=10)"),
        ({"patience": 3600}, "timedelta(hours=1)"),
        ({"threads": 0}, "from 1"),
    ],
)
def test_what_cannot_work_is_refused_when_the_dag_is_parsed(given: dict[str, Any], remedy: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        RecoverAllOperator(task_id="recover", **given)
    [(name, value)] = given.items()
    assert f"{name} is {value!r}" in caught.value.headline and remedy in caught.value.remedy
    RecoverAllOperator(task_id="recover", pipelines="{{ params.pipelines }}")  # type: ignore[arg-type]


def test_a_decision_log_that_is_away_lets_airflow_try_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__AIRFLOW_FT__STORE", "postgresql://ada:sesame@127.0.0.1:1/db?connect_timeout=2")
    with raises(AirflowException) as caught:
        run()
    assert isinstance(caught.error, StoreUnavailableError) and not isinstance(caught.value, AirflowFailException)
    assert all("sesame" not in text for text in caught.value.args)


def test_the_example_dag_recovers_and_alerts(
    world: World, gauges: dict[str, float], caplog: pytest.LogCaptureFixture
) -> None:
    from airflow.dag_processing.dagbag import DagBag

    bag: Any = DagBag(dag_folder=str(ROOT / "dags" / "airflow_ft_recovery.py"), safe_mode=False)
    [task] = bag.dags["airflow_ft_recovery"].tasks
    task.orphan_age = timedelta(0)
    prepared(world)
    assert task.execute({})[PIPELINE]["settled"] == {"1": "COMPLETED"}
    world.store.halt(PIPELINE, HaltReason.TOKEN_LOST, "it is gone.")
    with pytest.raises(AirflowFailException) as caught:
        task.execute({})
    [notifier] = task.on_failure_callback
    with caplog.at_level("ERROR"):
        notifier.notify({"exception": caught.value})
    assert "pipeline orders is HALTED: it is HALTED (TOKEN_LOST): it is gone.\nFix: " in "\n".join(caplog.messages)
