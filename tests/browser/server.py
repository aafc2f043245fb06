"""Airflow's API server for the tests in a browser: users of several roles, and, where it is asked for, a scheduler."""

from __future__ import annotations

import json
import secrets
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx

from tests.waiting import wait_for
from tools.demo.airflow import START_SECONDS, Airflow

DAGS = Path(__file__).parent / "dags"
MAINTENANCE = "airflow_ft_maintenance"
"""The DAG that the page acts by."""
TEAM, OTHER_TEAM = "shop", "elsewhere"
ADMIN, USER, VIEWER, STRANGER = "admin", "user", "viewer", "stranger"
"""Who may do all; who may trigger the DAGs of their team; who may only see them; who may see those of another alone."""


class ApiServer(Airflow):
    """`airflow api-server` over a database with the DAGs of this folder, which are of a team.

    `template`: where `make_template` has made that database, which this one begins with a copy of. `path`: below which
    it is served, as by a proxy that serves others too ("": by itself). `connections`: of its tasks, fields by id;
    `settings` more of its configuration.
    """

    command_line = ("api-server",)

    def __init__(
        self,
        home: Path,
        store: str,
        savepoints: Path,
        template: Path,
        path: str = "",
        *,
        connections: Mapping[str, Mapping[str, Any]] | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self._path, self._template = path, template
        bundle = {
            "name": "dags",
            "classpath": "airflow.dag_processing.bundles.local.LocalDagBundle",
            "kwargs": {"path": str(template / "dags")},
            "team_name": TEAM,
        }
        super().__init__(
            home,
            connections or {},
            {
                "airflow_ft__store": store,
                "airflow_ft__savepoint_dir": str(savepoints),
                "airflow_ft__lease_seconds": "3600",  # a lease of the world is never renewed
                "core__multi_team": "True",
                "core__simple_auth_manager_users": (
                    f"{ADMIN}:admin,{USER}:user:{TEAM},{VIEWER}:viewer:{TEAM},{STRANGER}:viewer:{OTHER_TEAM}"
                ),
                "core__dags_are_paused_at_creation": "False",
                "api_auth__jwt_secret": secrets.token_hex(32),  # of both processes
                "dag_processor__dag_bundle_config_list": json.dumps([bundle]),
                **(settings or {}),
            },
        )

    @property
    def url(self) -> str:
        """Where browser and API find it."""
        return f"{super().url}{self._path}"

    def make_template(self) -> None:
        """Makes its database, which takes seconds, in a home that is the template itself."""
        shutil.copytree(DAGS, self.dags, ignore=shutil.ignore_patterns("__pycache__"))
        self._make_database()
        done = subprocess.run(
            [sys.executable, "-m", "tests.browser.prepare", TEAM, OTHER_TEAM],
            env=self._environment(self.home / "passwords.json"),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"Airflow's database was not made:\n{done.stdout}{done.stderr}"

    def start(self) -> None:
        """Starts the server; `wait` waits for it."""
        self.home.mkdir(parents=True, exist_ok=True)
        shutil.copy(self._template / "airflow.db", self.home)
        super().start()

    def start_scheduler(self) -> None:
        """Has runs of DAGs done by a scheduler, with LocalExecutor."""
        self._spawn("scheduler")

    def wait(self) -> None:
        """Returns when it answers."""

        def answers() -> bool:
            process = self._process
            assert process is not None and process.poll() is None, f"it ended:\n{self.log.read_text()[-4000:]}"
            try:
                return self._client.get("/api/v2/version").is_success
            except httpx.HTTPError:
                return False

        wait_for(answers, START_SECONDS, "Airflow's API server answers")

    def token(self, user: str) -> str:
        """What the browser of a user shows for a login; Airflow has made the passwords."""
        passwords: Mapping[str, str] = json.loads((self.home / "passwords.json").read_text())
        body = {"username": user, "password": passwords[user]}
        return str(self._client.post("/auth/token", json=body).raise_for_status().json()["access_token"])

    def add_run(self, dag_id: str, run_id: str) -> None:
        """A run of a DAG, which stays queued: there is no scheduler."""
        body = {"dag_run_id": run_id, "logical_date": None}
        self._persistently("POST", f"/api/v2/dags/{dag_id}/dagRuns", json=body).raise_for_status()

    def fail_run(self, dag_id: str, run_id: str) -> None:
        """As a person does in the UI."""
        body = {"state": "failed"}
        self._persistently("PATCH", f"/api/v2/dags/{dag_id}/dagRuns/{run_id}", json=body).raise_for_status()

    def pause(self, dag_id: str, paused: bool = True) -> None:
        """As a person does in the UI."""
        self._persistently("PATCH", f"/api/v2/dags/{dag_id}", json={"is_paused": paused}).raise_for_status()

    def forget(self, dag_id: str, gone: bool = True) -> None:
        """As Airflow does when the file of a DAG is gone."""
        with closing(sqlite3.connect(self.home / "airflow.db", timeout=60)) as database, database:
            database.execute("UPDATE dag SET is_stale = ? WHERE dag_id = ?", (gone, dag_id))

    def trigger_as(self, user: str, dag_id: str, conf: Mapping[str, Any]) -> httpx.Response:
        """What Airflow answers to a user who starts a run as the page does."""
        with httpx.Client(base_url=self.url, timeout=60, trust_env=False) as client:
            headers = {"Authorization": f"Bearer {self.token(user)}"}
            body = {"logical_date": None, "conf": dict(conf)}
            return client.post(f"/api/v2/dags/{dag_id}/dagRuns", json=body, headers=headers)

    def runs(self, dag_id: str) -> list[dict[str, Any]]:
        """The runs of a DAG, newest first."""
        found = self._get(f"/api/v2/dags/{dag_id}/dagRuns?order_by=-id")["dag_runs"]
        return list(found)
