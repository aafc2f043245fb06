"""A pipeline goes on under another name by a run of a DAG: once, and signed by who has asked."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from airflow_ft import FromSavepoint, RestoreSavepointOperator
from airflow_ft.protocol.errors import PipelineHaltedError
from airflow_ft.protocol.pipelines import PipelineStatus
from tests.operators.test_maintenance import Task, trigger
from tests.raising import raises
from tests.spark.test_renaming import NEW, OLD, Pipelines

pytestmark = pytest.mark.airflow


@pytest.fixture
def pipelines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pipelines]:
    """The old name has delivered offset 1."""
    made = Pipelines(tmp_path)
    monkeypatch.setenv("AIRFLOW__AIRFLOW_FT__STORE", made.url)
    monkeypatch.setenv("AIRFLOW__AIRFLOW_FT__SAVEPOINT_DIR", str(tmp_path / "savepoints"))
    monkeypatch.setattr("airflow_ft.operators.acting.participant_factory", lambda: made.participants)
    monkeypatch.setattr("airflow_ft.pipeline.settings.lease_seconds", lambda: 0.03)
    made.store.register(OLD)
    made.run(OLD, 1)
    yield made
    made.store.close()


def signed(pipelines: Pipelines, name: str, kind: str) -> str:
    """The newest event of a kind."""
    return next(each.message for each in pipelines.store.events(name) if each.kind == kind)


def test_an_act_renames_a_pipeline_once(pipelines: Pipelines) -> None:
    uri = pipelines.savepoint()
    asked = {"pipeline": NEW, "savepoint": uri, "savepoint_rename": True, "reason": "it is the shop's"}
    result = trigger("restore", **asked)
    assert result.result == {"checkpoint": 1, "later": []}
    assert "the next run of shop-orders continues from checkpoint 1 of orders" in result
    assert "orders is RENAMED: " in result
    by = "`restore` by ada (airflow_ft_maintenance/manual__1/action): it is the shop's"
    assert by in signed(pipelines, OLD, "RENAMED") and by in signed(pipelines, NEW, "RESTORED")
    pipelines.run(NEW, 2)
    assert trigger("restore", **asked).result == {}, "the same run once more"
    with raises(AirflowFailException) as caught:
        trigger("restore", run_id="manual__2", **asked)
    assert isinstance(caught.error, PipelineHaltedError) and NEW in caught.error.headline
    with raises(AirflowException) as caught:
        trigger("resume", run_id="manual__3")
    assert caught.error is not None and NEW in caught.error.headline
    assert pipelines.have(1, 2)


def test_an_act_that_is_refused_leaves_no_new_name(pipelines: Pipelines) -> None:
    uri = pipelines.savepoint()
    pipelines.run(OLD, 2)
    with raises(AirflowException, "rows_would_repeat", later=(2,), number=1):
        trigger("restore", pipeline=NEW, savepoint=uri, savepoint_rename=True)
    assert [row.name for row in pipelines.store.pipelines()] == [OLD]
    assert pipelines.store.pipeline(OLD).status is PipelineStatus.ACTIVE


def test_an_operator_renames_too(pipelines: Pipelines) -> None:
    from_savepoint = FromSavepoint(pipelines.savepoint(), rename=True)
    operator = RestoreSavepointOperator(task_id="r", pipeline=NEW, savepoint=from_savepoint, store=pipelines.url)
    assert operator.execute({"ti": Task(), "dag_run": None}) == {"checkpoint": 1, "later": []}  # type: ignore[typeddict-item]
    assert pipelines.store.pipeline(OLD).status is PipelineStatus.RENAMED
    pipelines.run(NEW, 2)
    assert pipelines.have(1, 2)
