"""Which acts the page offers to whom: those of DAGs that Airflow lets the user trigger."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import pytest

from tests.plugins.conftest import Asking
from tests.state.scene import Pipeline
from tests.store.scene import PIPELINE

pytestmark = pytest.mark.airflow


@pytest.fixture
def offered(scene: Pipeline, ask: Asking, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """What the API answers to somebody: (acts, {DAG that does nothing for him: why})."""
    monkeypatch.setenv("AIRFLOW__AIRFLOW_FT__MAINTENANCE_DAGS", "ft_look,ft_operate")
    scene.confirmed({"a": 1})

    def asked(**somebody: Any) -> Any:
        answer = ask(PIPELINE, **somebody)
        body = answer.json()
        return answer.status_code, body.get("actions"), {each["dag"]: each["why"] for each in body.get("hindered", [])}

    return asked


def dag(*actions: str, paused: bool = False) -> Any:
    from airflow_ft.plugins.actions import Declared

    return Declared(actions, paused)


def test_each_role_is_offered_what_it_may_trigger(ask: Asking, offered: Callable[..., Any]) -> None:
    ask.declare(ft_look=dag("verify", "doctor"), ft_operate=dag("recover", "verify"))
    actions = {"verify": "ft_look", "doctor": "ft_look", "recover": "ft_operate"}
    for role in ("user", "op", "admin"):
        assert offered(by=role) == (200, actions, {}), role
    assert offered(by="viewer") == (200, {}, {"ft_look": "FORBIDDEN", "ft_operate": "FORBIDDEN"})


def test_whoever_may_not_see_the_pipeline_is_told_of_no_acts(ask: Asking, offered: Callable[..., Any]) -> None:
    ask.declare(ft_look=dag("verify"), ft_operate=dag("recover"))
    for role in ("viewer", "user", "op"):
        assert offered(by=role, team="another") == (404, None, {}), role


def test_a_dag_that_does_nothing_is_named_with_the_reason(ask: Asking, offered: Callable[..., Any]) -> None:
    assert offered(by="user") == (200, {}, {"ft_look": "MISSING", "ft_operate": "MISSING"})
    ask.declare(ft_look=dag("verify", paused=True), ft_operate=dag("recover"))
    assert offered(by="user") == (200, {"recover": "ft_operate"}, {"ft_look": "PAUSED"})
    ask.declare(ft_look=dag(), ft_operate=dag("recover"))
    assert offered(by="user") == (200, {"recover": "ft_operate"}, {"ft_look": "UNSUITABLE"})


def test_an_unreadable_dag_is_read_once_and_offers_no_actions(caplog: pytest.LogCaptureFixture) -> None:
    from airflow_ft.plugins import actions

    class Broken:
        dag_id, dag_hash, read = "ft_broken", uuid.uuid4().hex, 0

        @property
        def dag(self) -> Any:
            Broken.read += 1
            raise ValueError("of another version")

    row: Any = Broken()
    assert [actions._known(row), actions._known(row)] == [(), ()]
    assert Broken.read == 1 and "ft_broken" in caplog.text and "of another version" in caplog.text


def test_each_permission_counts_by_itself(
    ask: Asking, offered: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow_ft.plugins import actions

    ask.declare(ft_look=dag("verify"), ft_operate=dag("recover", "verify"))
    monkeypatch.setattr(actions, "may_trigger", lambda user, dag_id: dag_id == "ft_operate")
    acted = {"recover": "ft_operate", "verify": "ft_operate"}
    assert offered(by="user") == (200, acted, {"ft_look": "FORBIDDEN"})
