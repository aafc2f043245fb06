"""`python -m benchmarks.page_server PORT`: the page's API over the configured decision log, for one user who sees all.

Airflow's login and its database are left out, so what an answer takes is the page's own.
"""

from __future__ import annotations

import sys
from typing import Any

import uvicorn
from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager
from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
from airflow.api_fastapi.core_api import security
from airflow.models.dag import DagModel
from airflow_ft.plugins import access, actions, api  # type: ignore[import-not-found]

from airflow_ft.admin import dag_runs
from benchmarks.history import RUN

_DAGS = {RUN.dag_id}


class _Manager(SimpleAuthManager):
    def get_authorized_dag_ids(self, **_: Any) -> set[str]:
        return _DAGS

    def is_authorized_dag(self, **_: Any) -> bool:
        return True


class _Every:
    def __contains__(self, key: object) -> bool:
        return True


def main(port: int) -> None:
    """Serve until the process is ended."""
    user, manager = SimpleAuthManagerUser(username="viewer", role="viewer"), _Manager()  # type: ignore[no-untyped-call]
    replaced: dict[Any, dict[str, Any]] = {
        security: {"get_auth_manager": lambda: manager},
        access: {"get_auth_manager": lambda: manager, "existing_dags": lambda: frozenset(_DAGS)},
        actions: {"declared": lambda ids: {}},
        dag_runs: {"going": lambda ids: _Every(), "paused": lambda ids: frozenset()},
        DagModel: {"get_team_name": staticmethod(lambda dag_id: None)},
    }
    for owner, values in replaced.items():
        for name, value in values.items():
            setattr(owner, name, value)
    app = api.create_app()
    app.dependency_overrides[security.get_user] = lambda: user
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning")


if __name__ == "__main__":
    main(int(sys.argv[1]))
