"""`CheckpointSensor`: one look, then the triggerer; the gate itself is tested in tests/test_checkpoints.py."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pendulum
import pytest
from airflow.sdk.exceptions import AirflowException, AirflowFailException, TaskDeferred

from airflow_ft import CheckpointSensor
from airflow_ft.checkpoints import Gate
from airflow_ft.core.errors import ConfigurationError
from airflow_ft.core.model import RunKey
from tests.core.world import PIPELINE, World

pytestmark = pytest.mark.airflow


def sensor(**settings: Any) -> CheckpointSensor:
    return CheckpointSensor(**{"task_id": "t", "pipeline": PIPELINE, **settings})


def execute(operator: CheckpointSensor, context: Any) -> Any:
    return CheckpointSensor.execute.__wrapped__(operator, context)  # type: ignore[attr-defined]


def test_its_conditions() -> None:
    interval: Any = {"data_interval_end": pendulum.datetime(2026, 1, 2, tz="Europe/Berlin")}
    assert sensor(number="7").gate(interval) == Gate(number=7)
    assert sensor(dag_id="d", run_id="r").gate(interval) == Gate(run=RunKey("d", "r"))
    assert sensor().gate(interval) == Gate(after=datetime(2026, 1, 1, 23, tzinfo=UTC))
    assert sensor(after="2026-01-02T00:00:00+01:00").gate(interval) == Gate(after=datetime(2026, 1, 1, 23, tzinfo=UTC))


@pytest.mark.parametrize(
    "wrong",
    [
        {"number": 1, "after": datetime(2026, 1, 1, tzinfo=UTC)},
        {"dag_id": "d"},
        {"run_id": "r"},
        {"pipeline": "No Such Name"},
    ],
)
def test_what_cannot_work_is_refused_when_the_dag_is_parsed(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        sensor(**wrong)


@pytest.mark.parametrize("wrong", [{"number": "seven"}, {"after": "tomorrow"}, {"after": "2026-01-01"}, {}])
def test_what_rendering_made_senseless_fails_without_retries(wrong: dict[str, Any], tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/ft.db"
    with pytest.raises(AirflowFailException):
        sensor(**wrong, store=store).poke({})


def test_an_unreachable_log_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(
        "AIRFLOW__AIRFLOW_FT__STORE", "postgresql://nobody:secret-word@127.0.0.1:1/none?connect_timeout=1"
    )
    with pytest.raises(AirflowException) as caught:
        sensor(number=1).poke({})
    assert not isinstance(caught.value, AirflowFailException)
    assert "secret-word" not in str(caught.value)


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
