"""The page's API over a decision log that was written by hand, for users of Airflow's own simple auth manager."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.state.scene import Pipeline, pipeline
from tests.store.scene import RUN

TEAM = "shop"


class _Every:
    def __contains__(self, key: object) -> bool:
        return True


EVERY = _Every()
"""Runs of DAGs that go on."""


class Asking:
    """Asks the API as somebody: by default as a viewer, the least of Airflow's roles, of the DAG's team."""

    def __init__(self, client: Any, manager: Any) -> None:
        self._client, self._manager = client, manager

    def __call__(
        self, path: str, *, by: str = "viewer", team: str | None = TEAM, known: str = "", **question: Any
    ) -> Any:
        """The answer; POST when there is a question. `known`: the ETag of an earlier one."""
        self._manager.user(by, team)
        path = f"/v1/pipelines/{path}" if path else "/v1/pipelines"
        return (
            self._client.post(path, json=question)
            if question
            else self._client.get(path, headers={"If-None-Match": known})
        )

    def at(self, path: str, *, by: str = "viewer", team: str | None = TEAM) -> Any:
        """The answer to any path."""
        self._manager.user(by, team)
        return self._client.get(path)

    def declare(self, **dags: Any) -> None:
        """DAGs of the team that act on pipelines, as they are in Airflow's database."""
        self._manager.dags = {RUN.dag_id, *dags}
        self._manager.declared = dags

    def end_runs(self) -> None:
        """As Airflow's database says of all of them."""
        self._manager.ended = True

    def pause(self, dag_id: str) -> None:
        self._manager.paused = frozenset({dag_id})

    def delete_dag(self, dag_id: str) -> None:
        """As Airflow deletes it: no list of DAGs has it any more."""
        self._manager.dags = frozenset({*self._manager.dags, "kept"} - {dag_id})
        self._manager.hidden = frozenset()

    def keep_from(self, entity: str) -> None:
        """Let no user read it (`DagAccessEntity`)."""
        self._manager.kept_from = entity


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pipeline]:
    monkeypatch.setenv("AIRFLOW__AIRFLOW_FT__STORE", f"sqlite:///{tmp_path}/ft.db")
    monkeypatch.setenv("AIRFLOW__AIRFLOW_FT__SAVEPOINT_DIR", str(tmp_path / "savepoints"))
    with pipeline(tmp_path) as scene:
        yield scene


@pytest.fixture(scope="session")
def app() -> Any:
    """The page's application. It takes a tenth of a second to make, and keeps nothing of a request."""
    from airflow_ft.plugins import api

    return api.create_app()


@pytest.fixture
def ask(scene: Pipeline, app: Any, monkeypatch: pytest.MonkeyPatch) -> Asking:
    from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager
    from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
    from airflow.api_fastapi.core_api import security
    from airflow.models.dag import DagModel
    from airflow_ft.plugins import access, actions, state
    from fastapi.testclient import TestClient

    from airflow_ft.admin import dag_runs

    class Manager(SimpleAuthManager):
        """The DAG of the scene is of a team, whose members alone see it; and who may not read all of it."""

        kept_from = ""
        dags: frozenset[str] | set[str] = frozenset({RUN.dag_id})
        declared: Mapping[str, Any] = {}
        ended = False
        paused: frozenset[str] = frozenset()
        hidden: frozenset[str] = frozenset({"secret"})

        def user(self, role: str, team: str | None) -> None:
            self.asking = SimpleAuthManagerUser(username="somebody", role=role, teams=[team] if team else [])

        def get_authorized_dag_ids(self, *, user: Any, method: Any = "GET", **_: Any) -> set[str]:
            return self.filter_authorized_dag_ids(dag_ids=set(self.dags), user=user, method=method, team_name=TEAM)

        def is_authorized_dag(self, *, access_entity: Any = None, **more: Any) -> bool:
            allowed = access_entity is None or access_entity.name != self.kept_from
            return allowed and super().is_authorized_dag(access_entity=access_entity, **more)

    manager = Manager()
    monkeypatch.setitem(app.dependency_overrides, security.get_user, lambda: manager.asking)
    monkeypatch.setattr(security, "get_auth_manager", lambda: manager)
    monkeypatch.setattr(access, "get_auth_manager", lambda: manager)
    # tests/browser ask Airflow's database.
    monkeypatch.setattr(
        actions, "declared", lambda ids: {each: manager.declared[each] for each in manager.declared if each in ids}
    )
    monkeypatch.setattr(dag_runs, "going", lambda dag_ids: () if manager.ended else EVERY)
    monkeypatch.setattr(dag_runs, "paused", lambda dag_ids: manager.paused)
    monkeypatch.setattr(access, "existing_dags", lambda: frozenset(manager.dags | manager.hidden))
    monkeypatch.setattr(DagModel, "get_team_name", staticmethod(lambda dag_id: TEAM))
    monkeypatch.setattr(state, "handles", type(state.handles)())
    return Asking(TestClient(app, raise_server_exceptions=True), manager)
