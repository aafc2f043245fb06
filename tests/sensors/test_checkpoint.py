"""`CheckpointSensor`: one look, then the triggerer; the gate itself is tested in tests/pipeline/test_checkpoints.py."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pendulum
import pytest
from airflow.sdk import DAG, task
from airflow.sdk.exceptions import (
    AirflowException,
    AirflowFailException,
    AirflowRescheduleException,
    AirflowSkipException,
    TaskDeferred,
)

from airflow_ft import CheckpointedPipeline, CheckpointSensor, FileSource, MySqlSink, StreamGroupOperator
from airflow_ft.pipeline.checkpoints import BEGINNING, Gate
from airflow_ft.protocol.errors import ConfigurationError, StoreUnavailableError
from airflow_ft.protocol.model import RunKey
from airflow_ft.protocol.pipelines import HaltReason
from tests.operators.declared import spec
from tests.protocol.world import PIPELINE, World
from tests.raising import raises

pytestmark = pytest.mark.airflow


def sensor(**settings: Any) -> CheckpointSensor:
    return CheckpointSensor(**{"task_id": "t", "pipeline": PIPELINE, **settings})


def execute(operator: CheckpointSensor, context: Any) -> Any:
    return CheckpointSensor.execute.__wrapped__(operator, context)  # type: ignore[attr-defined]


class State(dict[str, Any]):
    """Stands for Airflow's state store of a task, which outlives its tries."""

    def set(self, key: str, value: Any, *, retention: timedelta | None = None) -> None:
        self[key] = value


def run_context(run_type: str, end: Any = None, events: Any = (), run_id: str = "r") -> Any:
    """What Airflow tells a task of its DAG run."""
    dag_run = SimpleNamespace(
        dag_id="d", run_id=run_id, run_type=run_type, data_interval_end=end, consumed_asset_events=list(events)
    )
    return {"dag_run": dag_run, "data_interval_end": end, "task_state_store": State()}


def event(uri: str, number: int) -> Any:
    return SimpleNamespace(asset=SimpleNamespace(uri=uri), extra={"pipeline": "?", "number": number})


END = pendulum.datetime(2026, 1, 2, tz="Europe/Berlin")
END_IN_UTC = datetime(2026, 1, 1, 23, tzinfo=UTC)


def test_its_conditions(tmp_path: Path) -> None:
    store = World(tmp_path).store
    context = run_context("scheduled", END)
    assert sensor(number="7").gate(context, store) == Gate(number=7)
    assert sensor(dag_id="d", run_id="r").gate(context, store) == Gate(run=RunKey("d", "r"))
    for at in ("2026-01-02T00:00:00+01:00", END):
        assert sensor(after=at).gate(context, store) == Gate(after=END_IN_UTC)
        assert sensor(as_of=at).gate(context, store) == Gate(as_of=END_IN_UTC)


@pytest.mark.parametrize("run_type", ["scheduled", "backfill"])
def test_a_scheduled_run_waits_for_data_as_of_its_interval_end(run_type: str, tmp_path: Path) -> None:
    world = World(tmp_path)
    assert sensor().gate(run_context(run_type, END), world.store) == Gate(as_of=END_IN_UTC)
    partition = run_context(run_type)
    partition["dag_run"].run_after = END  # of CronPartitionTimetable, whose runs have no interval
    assert sensor().gate(partition, world.store) == Gate(as_of=END_IN_UTC)


@pytest.mark.parametrize("run_type", ["manual", "operator_triggered", "asset_triggered", "asset_materialization"])
@pytest.mark.parametrize("end", [None, END])
def test_a_run_without_an_interval_waits_for_all_published_data(run_type: str, end: Any, tmp_path: Path) -> None:
    world = World(tmp_path)
    assert sensor().gate(run_context(run_type, end), world.store) == Gate(as_of=BEGINNING), "nothing is there yet"
    world.stage(2)
    assert sensor().gate(run_context(run_type, end), world.store) == Gate(number=2)


def test_a_run_waits_for_the_checkpoint_in_its_asset_event(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.stage(5)
    events = [event(f"airflow-ft://{PIPELINE}/", 2), event(f"airflow-ft://{PIPELINE}", 3), event("airflow-ft://x/", 9)]
    assert sensor().gate(run_context("asset_triggered", events=events), world.store) == Gate(number=3)
    assert sensor(pipeline="another").gate(run_context("asset_triggered", events=events), world.store) == Gate(
        as_of=BEGINNING
    )


@pytest.mark.parametrize("run_type", ["scheduled", "manual"])
def test_beside_its_pipeline_for_what_that_stages_in_this_run(run_type: str, tmp_path: Path) -> None:
    world = World(tmp_path)
    world.stage(1)  # by another run
    with DAG("d", schedule=None):
        before = sensor(task_id="before")
        group = CheckpointedPipeline(
            pipeline=PIPELINE,
            job="jobs.orders",
            sources={"files": FileSource(path="/data", schema="id bigint")},
            sinks={"orders": MySqlSink(table="t", conn_id="shop")},
        )
        beside, behind = sensor(task_id="beside"), sensor(task_id="behind")
        before >> group >> behind
    own = Gate(run=RunKey("d", "r"))
    for gate in (beside, behind):
        assert gate.gate(run_context(run_type, END), world.store) == own
    # What stands before it cannot wait for it.
    assert before.gate(run_context(run_type, END), world.store) == Gate(number=1)


def test_beside_a_group_of_streams_for_the_run(tmp_path: Path) -> None:
    with DAG("d", schedule=None):
        streams = StreamGroupOperator(task_id="g", streams=[spec("returns", streaming=True)])
        beside, behind, other = sensor(pipeline="returns"), sensor(task_id="b", pipeline="returns"), sensor(task_id="o")
        streams >> behind
    context, store = run_context("scheduled", END), World(tmp_path).store
    for gate in (beside, behind):
        assert gate.gate(context, store) == Gate(run=RunKey("d", "r"))
    assert other.gate(context, store) == Gate(as_of=END_IN_UTC)


def test_a_registered_run_waits_for_its_own_checkpoints(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.store.register(PIPELINE)
    world.store.enter_turn(PIPELINE, RunKey("d", "r", 4), None)
    assert sensor().gate(run_context("manual"), world.store) == Gate(run=RunKey("d", "r"))
    assert sensor().gate(run_context("manual", run_id="other"), world.store) == Gate(as_of=BEGINNING)


def test_a_test_run_does_not_wait_for_its_own_rows(tmp_path: Path) -> None:
    World(tmp_path).stage(1)
    store, context = f"sqlite:///{tmp_path}/ft.db", run_context("manual")
    context["dag_run"].triggering_user_name = "dag_test"
    with pytest.raises(AirflowSkipException):
        sensor(dag_id="d", run_id="r", store=store).poke(context)
    other = sensor(dag_id="d", run_id="another", store=store)
    assert not other.poke(context).is_done, "a real run may still confirm it"


def rehearsing(given: Any) -> tuple[CheckpointSensor, Any, Any]:
    """A sensor beside its pipeline, and one beside a group of streams."""
    with DAG("d", schedule=None):
        CheckpointedPipeline(spec(PIPELINE, dry_run=given))
        StreamGroupOperator(task_id="g", streams=[spec("a", streaming=True), spec("b", streaming=True, dry_run=given)])
        return sensor(), sensor(task_id="a", pipeline="a"), sensor(task_id="other", dag_id="d", run_id="another")


@pytest.mark.parametrize("given", [True, "{{ params.dry_run }}"])
def test_a_dry_run_does_not_wait_for_its_own_rows(given: Any, tmp_path: Path) -> None:
    World(tmp_path).stage(1)
    context = {**run_context("manual"), "params": {"dry_run": True}}
    beside, of_group, other = rehearsing(given)
    for operator in (beside, of_group, other):
        operator.store = f"sqlite:///{tmp_path}/ft.db"
    for operator in (beside, of_group):
        with pytest.raises(AirflowSkipException):
            operator.poke(context)
    assert not other.poke(context).is_done, "a real run may still confirm it"


@pytest.mark.parametrize("given", [False, "{{ params.dry_run }}", "{{ 'perhaps' }}"])
def test_a_real_run_waits_for_its_rows(given: Any, tmp_path: Path) -> None:
    for operator in rehearsing(given):
        operator.store = f"sqlite:///{tmp_path}/ft.db"
        assert not operator.poke({**run_context("manual"), "params": {"dry_run": False}}).is_done


@pytest.mark.parametrize("deferrable", [False, True])
def test_the_point_of_the_first_look_does_not_move(deferrable: bool, tmp_path: Path) -> None:
    world = World(tmp_path)
    world.stage(1)
    context = {**run_context("manual"), "ti": SimpleNamespace(get_first_reschedule_date=lambda _: None)}
    url = f"sqlite:///{tmp_path}/ft.db"

    def look(pipeline: str = PIPELINE, expected: Gate | None = None) -> Any:
        """As another process, after a deferral, a reschedule or a retry."""
        operator = sensor(pipeline=pipeline, store=url, deferrable=deferrable, mode="reschedule")
        try:
            return execute(operator, context)
        except TaskDeferred as deferred:
            trigger: Any = deferred.trigger
            assert Gate.from_json(trigger.gate) == (expected or Gate(number=1))
        except AirflowRescheduleException:
            pass
        return None

    assert look("misspelled", Gate(as_of=BEGINNING)) is None
    assert look() is None, "the name was corrected, and the task cleared"
    world.steps(world.context())
    world.stage(1, RunKey("dag", "run-2"))  # is not waited for
    assert look() == {"pipeline": PIPELINE, "number": 1}


@pytest.mark.parametrize(
    "wrong",
    [
        {"number": 1, "after": datetime(2026, 1, 1, tzinfo=UTC)},
        {"as_of": END, "after": END},
        {"dag_id": "d"},
        {"run_id": "r"},
        {"pipeline": "No Such Name"},
        {"number": 3.7},
        {"number": True},
        {"as_of": datetime(2026, 1, 1)},
        {"after": 5},
        {"dag_id": "d", "run_id": 5},
        {"store": 5},
        {"deferrable": True, "poke_interval": 0},
    ],
)
def test_what_cannot_work_is_refused_when_the_dag_is_parsed(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        sensor(**wrong)


@pytest.mark.parametrize(
    "wrong",
    [
        {"number": "seven"},
        {"after": "tomorrow"},
        {"after": "2026-01-01"},
        {"as_of": "2026-01-01"},
        {"as_of": datetime(2026, 1, 1)},
        {"suffix": "{{ 'Not A Name' }}"},
    ],
)
def test_what_rendering_made_senseless_fails_without_retries(wrong: dict[str, Any], tmp_path: Path) -> None:
    operator = sensor(store=f"sqlite:///{tmp_path}/ft.db")
    for name, value in wrong.items():
        setattr(operator, name, value)
    with pytest.raises(AirflowFailException):
        operator.poke({})


@task
def pick() -> str: ...


@pytest.mark.parametrize("found", [None, "None"])
@pytest.mark.parametrize("argument", ["number", "dag_id", "run_id", "as_of", "after", "suffix"])
def test_a_condition_without_a_value_is_no_other_condition(argument: str, found: str | None, tmp_path: Path) -> None:
    """I9: the output of a task that a person marked as successful is None."""
    given = {"dag_id": "d", "run_id": "r"} if argument.endswith("_id") else {}
    with DAG("d", schedule=None):
        operator = sensor(**given | {argument: pick()}, store=f"sqlite:///{tmp_path}/ft.db")
    setattr(operator, "dag_id_of_run" if argument == "dag_id" else argument, found)
    code = "name_invalid" if argument == "suffix" else "template_without_value"
    with raises(AirflowFailException, code, argument=argument):
        operator.poke(run_context("manual"))


def expanded(operator: type, kept: dict[str, Any], item: dict[str, Any]) -> Any:
    """The task of a map index that gets this item, as Airflow makes it."""
    with DAG("d", schedule=None):
        return operator.partial(task_id="t", **kept).expand_kwargs([item]).unmap(item)  # type: ignore[attr-defined]


@pytest.mark.parametrize("argument", ["number", "as_of", "after", "suffix", "store"])
def test_an_item_none_is_no_missing_condition(argument: str, tmp_path: Path) -> None:
    kept = {"pipeline": PIPELINE, "store": f"sqlite:///{tmp_path}/ft.db"}
    with raises(AirflowFailException, "template_without_value", argument=argument, value="None"):
        kept_others = {name: value for name, value in kept.items() if name != argument}
        expanded(CheckpointSensor, kept_others, {argument: None}).poke(run_context("manual"))
    absent = expanded(CheckpointSensor, kept | {"number": None}, {})
    assert not absent.poke(run_context("manual")).is_done, "an item that has no such key names no condition"


@pytest.mark.parametrize("found", [None, "None"])
def test_a_store_without_a_value_is_not_the_default(
    found: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path)
    world.stage(1)
    world.steps(world.context())
    monkeypatch.setenv("AIRFLOW__AIRFLOW_FT__STORE", f"sqlite:///{tmp_path}/ft.db")
    operator = sensor(number=1, store="{{ x }}")
    operator.store = found
    with raises(AirflowFailException, "template_without_value", argument="store"):
        operator.poke({})


def test_a_suffix_stays_in_the_name_over_looks(tmp_path: Path) -> None:
    with DAG("d", schedule=None):
        operator = sensor(suffix=pick(), number=1, store=f"sqlite:///{tmp_path}/ft.db")
    operator.suffix = "de"
    for _ in range(2):
        assert not operator.poke({}).is_done
        assert operator.pipeline == f"{PIPELINE}-de"


def test_an_unreachable_log_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(
        "AIRFLOW__AIRFLOW_FT__STORE", "postgresql://nobody:secret-word@127.0.0.1:1/none?connect_timeout=1"
    )
    with pytest.raises(AirflowException) as caught:
        sensor(number=1).poke({})
    assert not isinstance(caught.value, AirflowFailException)
    assert all("secret-word" not in text for text in caught.value.args)


@pytest.mark.parametrize("mode", ["poke", "reschedule"])
def test_a_sensor_that_waits_outlives_an_outage(mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(tmp_path)
    world.stage(1)
    operator = sensor(number=1, store=f"sqlite:///{tmp_path}/ft.db", mode=mode)
    context = run_context("manual")
    with monkeypatch.context() as patch:
        patch.setattr("airflow_ft.sensors.base.open_configured_store", _away)
        with raises(AirflowException, "store_unavailable"):
            operator.poke(context)
    assert not operator.poke(context).is_done
    if mode == "reschedule":  # each look is in another process
        operator, context["task_reschedule_count"] = sensor(number=1, store=operator.store, mode=mode), 1
    with monkeypatch.context() as patch:
        patch.setattr("airflow_ft.sensors.base.open_configured_store", _away)
        assert not operator.poke(context).is_done
    world.steps(world.context())
    assert operator.poke(context).is_done


@pytest.mark.parametrize("mode", ["poke", "reschedule"])
def test_an_outage_is_logged_when_it_begins_and_ends(
    mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    World(tmp_path).stage(1)
    operator = sensor(number=1, store=f"sqlite:///{tmp_path}/ft.db", mode=mode)
    context = run_context("manual")

    def look() -> list[str]:
        nonlocal operator
        capsys.readouterr()
        assert not operator.poke(context).is_done
        if mode == "reschedule":  # each look is in another process
            operator, context["task_reschedule_count"] = sensor(number=1, store=operator.store, mode=mode), 1
        said = capsys.readouterr().out
        return [each for each in ("did not answer", "answers again") if each in said]

    assert look() == []
    for _ in range(2):  # outages
        with monkeypatch.context() as patch:
            patch.setattr("airflow_ft.sensors.base.open_configured_store", _away)
            assert [look(), look(), look()] == [["did not answer"], [], []]
        assert [look(), look()] == [["answers again"], []]


def _away(_: object) -> Any:
    raise StoreUnavailableError("it restarts.")


@pytest.mark.parametrize("deferrable", [False, True])
def test_a_first_look_may_fail_softly(deferrable: bool, tmp_path: Path) -> None:
    operator = sensor(store=f"sqlite:///{tmp_path}/ft.db", deferrable=deferrable, soft_fail=True)
    operator.number = "seven"
    with pytest.raises(AirflowSkipException):
        execute(operator, {})


def test_it_says_what_a_person_has_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    world = World(tmp_path)
    world.stage(1)
    assert not sensor(pipeline="order", store=f"sqlite:///{tmp_path}/ft.db").poke({**run_context("manual")}).is_done
    said = capsys.readouterr().out
    assert "no pipeline 'order'" in said and PIPELINE in said
    waiting = sensor(number=1, store=f"sqlite:///{tmp_path}/ft.db")
    waiting.poke({})
    assert "HALTED" not in capsys.readouterr().out
    world.store.halt(PIPELINE, HaltReason.TOKEN_LOST, "it is gone.")
    waiting.poke({})
    said = capsys.readouterr().out
    assert "pipeline orders is HALTED: " in said and f"`airflow ft resume {PIPELINE}`" in said
    waiting.poke({})
    assert "HALTED" not in capsys.readouterr().out, "it was said"


def test_it_looks_once_and_then_waits_in_the_triggerer(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.stage(1)
    operator = sensor(number=1, store=f"sqlite:///{tmp_path}/ft.db", deferrable=True, poke_interval=3, timeout=60)
    with pytest.raises(TaskDeferred) as caught:
        execute(operator, {})
    assert caught.value.timeout == timedelta(seconds=60)
    trigger: Any = caught.value.trigger
    assert (trigger.pipeline, trigger.poll_interval) == (
        PIPELINE,
        3,
    )
    assert Gate.from_json(trigger.gate) == Gate(number=1)
    world.steps(world.context())
    assert execute(operator, {}) == {"pipeline": PIPELINE, "number": 1}
