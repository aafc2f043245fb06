"""`BarrierSensor` and `InjectBarrierOperator`; the gate itself is tested in tests/pipeline/test_barriers.py."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pendulum
import pytest
from airflow.sdk.exceptions import AirflowFailException, AirflowRescheduleException, TaskDeferred

from airflow_ft import BarrierSensor, InjectBarrierOperator
from airflow_ft.operators.links import PAGE
from airflow_ft.pipeline.barriers import Alignment, BarrierGate
from airflow_ft.protocol.errors import ConfigurationError
from airflow_ft.protocol.model import RunKey
from tests.protocol.world import PIPELINE, RUN, World
from tests.raising import raises
from tests.sensors.test_checkpoint import END, END_IN_UTC, run_context

pytestmark = pytest.mark.airflow

BOTH = [PIPELINE, "payments"]
LATER = RunKey("dag", "run-2")


def sensor(**settings: Any) -> BarrierSensor:
    return BarrierSensor(**{"task_id": "t", "pipelines": [PIPELINE], **settings})


def injecting(**settings: Any) -> InjectBarrierOperator:
    return InjectBarrierOperator(**{"task_id": "t", "barrier": "closing", "pipelines": BOTH, **settings})


def execute(operator: Any, context: Any) -> Any:
    return type(operator).execute.__wrapped__(operator, context)


def url(folder: Path) -> str:
    return f"sqlite:///{folder}/ft.db"


def test_its_barriers(tmp_path: Path) -> None:
    store = World(tmp_path).store
    context = run_context("scheduled", END)
    assert sensor(barrier="closing").gate(context, store) == BarrierGate((PIPELINE,), barrier="closing")
    for at in ("2026-01-02T00:00:00+01:00", END):
        assert sensor(barrier=at).gate(context, store) == BarrierGate((PIPELINE,), at=END_IN_UTC)
    for run_type in ("scheduled", "backfill"):
        assert sensor().gate(run_context(run_type, END), store) == BarrierGate((PIPELINE,), at=END_IN_UTC)
    loose = sensor(alignment="at_least_once").gate(context, store)
    assert loose == BarrierGate((PIPELINE,), at=END_IN_UTC, alignment=Alignment.AT_LEAST_ONCE)
    assert context["task_state_store"] == {}, "there is nothing to be kept"


@pytest.mark.parametrize("run_type", ["manual", "operator_triggered", "asset_triggered"])
def test_without_an_interval_the_barrier_is_the_trigger_time(run_type: str, tmp_path: Path) -> None:
    """Not of the sensor's first look: what the run itself has staged before would not count."""
    context = run_context(run_type, pendulum.datetime(2020, 1, 1))
    context["dag_run"].run_after = END
    assert sensor().gate(context, World(tmp_path).store) == BarrierGate((PIPELINE,), at=END_IN_UTC)


def test_patience_begins_with_the_first_look(tmp_path: Path) -> None:
    store = World(tmp_path).store
    context = run_context("scheduled", END)
    patient = sensor(alignment="unaligned", patience=timedelta(minutes=5))
    before = store.now()
    gate = patient.gate(context, store)
    assert gate.opens_at is not None
    assert timedelta(0) <= gate.opens_at - timedelta(minutes=5) - before < timedelta(minutes=1)
    again = sensor(pipelines=BOTH, alignment="unaligned", patience=timedelta(minutes=7)).gate(context, store)
    assert again.opens_at == gate.opens_at + timedelta(minutes=2), "what its author has changed since counts"
    assert again.pipelines == tuple(BOTH)


@pytest.mark.parametrize(
    "wrong",
    [
        {"pipelines": []},
        {"pipelines": PIPELINE},
        {"pipelines": None},
        {"pipelines": ["No Such Name"]},
        {"pipelines": [PIPELINE, PIPELINE]},
        {"barrier": "2026-01-02"},
        {"barrier": datetime(2026, 1, 2)},
        {"barrier": 7},
        {"alignment": "exactly"},
        {"alignment": "unaligned"},
        {"patience": timedelta(1)},
        {"alignment": "unaligned", "patience": 60},
        {"alignment": "unaligned", "patience": timedelta(-1)},
    ],
    ids=str,
)
def test_what_cannot_work_is_refused_when_the_dag_is_parsed(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        sensor(**wrong)


@pytest.mark.parametrize(
    "rendered", [{"pipelines": "[]"}, {"pipelines": [""]}, {"barrier": "2026-01-02"}, {"alignment": "loose"}], ids=str
)
def test_what_rendering_made_senseless_fails_without_retries(rendered: dict[str, Any], tmp_path: Path) -> None:
    operator = sensor(pipelines=["{{ a }}"], barrier="{{ b }}", alignment="{{ c }}", store=url(tmp_path))
    for name, value in {"pipelines": [PIPELINE], "barrier": "closing", "alignment": "aligned", **rendered}.items():
        setattr(operator, name, value)
    with pytest.raises(AirflowFailException):
        operator.poke({})


@pytest.mark.parametrize(
    ("written", "found"),
    [
        ("{{ x }}", None),
        ("{{ x }}", "None"),
        ("closing-{{ x }}", "closing-None"),
        ("closing-{{ x }}-{{ y }}", "closing-eu-None"),
        ("closing-{{ x }}", "closing-"),
        ("closing-{{ x }}-{{ y }}", "closing--eu"),
        ("{{ x }}-{{ y }}", "eu-"),
        ("[{{ x }}]{{ y }}", "[]eu"),
        ("closing-{{ x }}{{ y }}", "closing-"),
    ],
)
def test_a_barrier_without_a_value_is_no_other_barrier(written: str, found: str | None, tmp_path: Path) -> None:
    """I9: with None it would be the run's own, which may be earlier; with "None" that of every such run."""
    world = World(tmp_path)
    world.store.register(PIPELINE)
    waits = sensor(barrier=written, store=url(tmp_path))
    injects = injecting(barrier=written, pipelines=[PIPELINE], store=url(tmp_path))
    waits.barrier = injects.barrier = found  # type: ignore[assignment]
    with raises(AirflowFailException, "template_without_value", argument="barrier"):
        waits.poke({**run_context("scheduled", END)})
    ti = SimpleNamespace(dag_id="d", run_id="r", task_id="t", map_index=-1)
    with raises(AirflowFailException, "template_without_value", argument="barrier"):
        execute(injects, {"ti": ti})
    assert world.store.barrier("closing-None") == []


@pytest.mark.parametrize("deferrable", [False, True])
def test_it_looks_once_and_then_waits_for_the_same_barrier(deferrable: bool, tmp_path: Path) -> None:
    world = World(tmp_path)
    world.stage(1)
    world.store.inject("closing", [PIPELINE], "a test")
    context = {**run_context("manual"), "ti": SimpleNamespace(get_first_reschedule_date=lambda _: None)}

    def look() -> Any:
        """As another process, after a deferral, a reschedule or a retry."""
        operator = sensor(
            store=url(tmp_path), barrier="closing", deferrable=deferrable, mode="reschedule", poke_interval=3
        )
        try:
            return execute(operator, context)
        except TaskDeferred as deferred:
            trigger: Any = deferred.trigger
            assert BarrierGate.from_json(trigger.gate) == BarrierGate((PIPELINE,), barrier="closing")
            assert (trigger.store, trigger.poll_interval) == (url(tmp_path), 3)
        except AirflowRescheduleException:
            pass
        return None

    assert look() is None
    world.steps(world.context())
    assert look() is None, "what was read before the barrier does not cover it"
    world.store.leave_turn(PIPELINE, RUN)
    world.stage(1, LATER)
    world.steps(world.context(run=LATER))
    found = look()
    assert (found[PIPELINE]["number"], found[PIPELINE]["covered"]) == (2, True)


def test_it_says_who_keeps_it_closed_and_who_lags(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    world = World(tmp_path)
    world.stage(1)
    world.steps(world.context())
    settings = {"pipelines": BOTH, "barrier": datetime(2020, 1, 1, tzinfo=UTC), "store": url(tmp_path)}
    assert not sensor(**settings).poke({}).is_done
    assert "payments is not known to the decision log" in capsys.readouterr().out
    found = sensor(**settings, alignment="unaligned", patience=timedelta(0)).poke({})
    assert found.is_done
    assert "open after 0:00:00, although payments is not known" in capsys.readouterr().out
    assert {name: each["covered"] for name, each in found.xcom_value.items()} == {PIPELINE: True, "payments": False}
    operator = sensor(**settings, alignment="unaligned", patience=timedelta(0))
    assert operator.execute_complete({}, found.xcom_value) == found.xcom_value
    assert "though payments is not known" in capsys.readouterr().out


class TestInjecting:
    @pytest.fixture
    def context(self) -> Any:
        return {"ti": SimpleNamespace(dag_id="d", run_id="r", task_id="t", map_index=-1)}

    def test_it_may_be_repeated(self, tmp_path: Path, context: Any) -> None:
        store = World(tmp_path).store
        for name in BOTH:
            store.register(name)
        first = execute(injecting(store=url(tmp_path)), context)
        assert first == {each.pipeline: each.injected_at.isoformat() for each in store.barrier("closing")}
        assert {each.injected_by for each in store.barrier("closing")} == {"d/r/t"}
        assert execute(injecting(store=url(tmp_path)), context) == first

    def test_an_unknown_pipeline_fails_the_injection_for_all(self, tmp_path: Path, context: Any) -> None:
        store = World(tmp_path).store
        store.register(PIPELINE)
        with raises(AirflowFailException) as caught:
            execute(injecting(store=url(tmp_path)), context)
        assert caught.error is not None and "payments" in caught.error.headline
        assert store.barrier("closing") == []

    def test_a_test_run_would_inject_the_one_that_counts(
        self, tmp_path: Path, context: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("AIRFLOW_TEST_MODE", "True")
        with raises(AirflowFailException) as caught:
            execute(injecting(store=url(tmp_path)), context)
        assert caught.error is not None and "airflow tasks test" in caught.error.headline

    @pytest.mark.parametrize("wrong", [{"barrier": "2026-01-02"}, {"barrier": ""}, {"pipelines": []}], ids=str)
    def test_what_cannot_work_is_refused_when_the_dag_is_parsed(self, wrong: dict[str, Any]) -> None:
        with pytest.raises(ConfigurationError):
            injecting(**wrong)


def test_its_link_leads_to_the_page_of_all_pipelines() -> None:
    key: Any = None
    for operator in (sensor(), injecting()):
        [link] = operator.operator_extra_links
        assert link.get_link(operator, ti_key=key) == PAGE
