"""Airflow standalone in a folder of its own: configuration, start, REST API, end."""

from __future__ import annotations

import json
import os
import secrets
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx

from tools.servers.processes import free_port

LOGIN = "admin"
START_SECONDS = 600.0
ANSWER_SECONDS = 120.0
END_STATES = frozenset({"success", "failed"})


class AirflowError(RuntimeError):
    """Airflow did not do what was asked of it."""


@dataclass(frozen=True)
class TaskState:
    """A task instance: its id, state and the number of its newest try."""

    task_id: str
    state: str
    try_number: int


class Airflow:
    """`airflow standalone` on a free loopback port, with SQLite and LocalExecutor, in `home`.

    It knows the DAG files in `home/dags`, and the connections (id -> fields) by its environment alone. Retries follow
    within seconds and a silent task counts as dead after 20 s: both take 300 s by default.
    """

    command_line: tuple[str, ...] = ("standalone",)
    """What is started: all components."""

    def __init__(self, home: Path, connections: Mapping[str, Mapping[str, Any]], settings: Mapping[str, str]) -> None:
        self.home = home
        self.dags = home / "dags"
        self.port = free_port()
        self.password = secrets.token_hex(8)
        self._connections = connections
        self._settings = settings
        self._process: subprocess.Popen[bytes] | None = None
        self._guards: dict[Path, subprocess.Popen[bytes]] = {}  # by the log of what runs under it
        self._client = httpx.Client(base_url=self.url, timeout=30, trust_env=False)
        self._token_until = 0.0
        # The same for each component, whenever it is started: the scheduler signs what the API server has to believe.
        self._keys = {"api__secret_key": secrets.token_hex(32), "api_auth__jwt_secret": secrets.token_hex(32)}

    @property
    def url(self) -> str:
        """Where browser and API find it."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def log(self) -> Path:
        """What all components of Airflow print."""
        return self._log_of(*self.command_line)

    @property
    def store_url(self) -> str:
        """The decision log that is used by default."""
        return f"sqlite:///{self.home / 'airflow_ft' / 'ft.db'}"

    def task_logs(self, dag_id: str) -> Path:
        """The folder with the logs of a DAG's tasks."""
        return self.home / "logs" / f"dag_id={dag_id}"

    def task_log(self, dag_id: str, run_id: str, task: TaskState) -> Path:
        """The log of a task's newest try."""
        folder = self.task_logs(dag_id) / f"run_id={run_id}" / f"task_id={task.task_id}"
        return folder / f"attempt={task.try_number}.log"

    @staticmethod
    def last_error(log: Path) -> str | None:
        """The last error in a task's log, shortened; None when there is none."""
        found = None
        for line in log.read_text(errors="replace").splitlines() if log.exists() else ():
            try:
                entry = json.loads(line)
            except ValueError:
                continue
            if isinstance(entry, dict) and entry.get("level") in ("error", "critical"):
                details = [f"{e['exc_type']}: {e['exc_value']}" for e in entry.get("error_detail") or ()]
                found = ": ".join([str(entry.get("event")), *details[:1]])[:500]
        return found

    # --- life ---

    def start(self) -> None:
        """Starts it and returns at once; `wait_until_ready` waits."""
        self.dags.mkdir(parents=True, exist_ok=True)
        passwords = self.home / "passwords.json"
        passwords.touch(mode=0o600)
        passwords.write_text(json.dumps({LOGIN: self.password}))
        self._make_database()
        self._process = self._spawn(*self.command_line)

    def _make_database(self) -> None:
        """What is needed before anything is started."""
        with closing(sqlite3.connect(self.home / "airflow.db")) as database:
            database.execute("PRAGMA journal_mode=WAL")  # readers and a writer side by side

    def _log_of(self, *arguments: str) -> Path:
        return self.home / f"{'-'.join(each for each in arguments if not each.startswith('-'))}.log"

    def _spawn(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Runs `airflow ...` under a guard, whose process is returned; `_end` ends it, and `stop` at last."""
        # Without the guard, tasks and Spark drivers of a killed Airflow would live on.
        command = [sys.executable, "-m", "tools.demo.guard", str(Path(sys.executable).parent / "airflow"), *arguments]
        log = self._log_of(*arguments)
        with log.open("ab") as output:
            self._guards[log] = subprocess.Popen(
                command,
                cwd=self.home,
                env=self._environment(self.home / "passwords.json"),
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        return self._guards[log]

    @staticmethod
    def _end(guard: subprocess.Popen[bytes]) -> None:
        """Ends by kill -9 what runs under a guard, and all that it has started."""
        if guard.stdin is not None:
            guard.stdin.close()  # what the guard waits for
        try:
            guard.wait(30)
        except subprocess.TimeoutExpired:
            guard.kill()
            guard.wait()

    def stop(self) -> None:
        """Kills Airflow, its tasks and whatever they started."""
        self._client.close()
        for guard in self._guards.values():
            self._end(guard)
        self._guards.clear()
        self._process = None

    def _environment(self, passwords: Path) -> dict[str, str]:
        inherited = ("HOME", "LANG", "LC_ALL", "JAVA_HOME", "TMPDIR", "SPARK_SUBMIT_OPTS", "SPARK_LAUNCHER_OPTS")
        settings = {
            "core__load_examples": "False",
            "core__dags_folder": str(self.dags),
            "core__executor": "LocalExecutor",
            "core__parallelism": "3",
            "core__fernet_key": "",
            "core__simple_auth_manager_users": f"{LOGIN}:admin",
            "core__simple_auth_manager_passwords_file": str(passwords),
            "core__execution_api_server_url": f"{self.url}/execution/",
            "core__default_task_retry_delay": "2",
            # On a busy machine the 5 s that SQLite waits by default are too short for Airflow's processes. But the API
            # server waits for the lock in its event loop too, and who holds it may need that loop to commit: then all
            # stand until the wait is over, which has to be before they count as dead and before a client gives up.
            "database__sql_alchemy_conn": f"sqlite:///{self.home / 'airflow.db'}?timeout=15",
            "api__host": "127.0.0.1",
            "api__port": str(self.port),
            "api__base_url": self.url,
            "api__workers": "1",
            **self._keys,
            "dag_processor__refresh_interval": "5",
            "logging__worker_log_server_port": str(free_port()),
            "logging__trigger_log_server_port": str(free_port()),
            "scheduler__scheduler_idle_sleep_time": "0.2",
            "scheduler__job_heartbeat_sec": "2",
            "scheduler__task_instance_heartbeat_timeout": "20",
            "scheduler__task_instance_heartbeat_timeout_detection_interval": "2",
            "workers__min_heartbeat_interval": "2",
            # A task whose first request is not answered in the usual 5 s fails without having begun.
            "workers__execution_api_timeout": "60",
            "usage_data_collection__enabled": "False",
        }
        return {
            **{name: os.environ[name] for name in inherited if name in os.environ},
            "PATH": f"{Path(sys.executable).parent}:{os.environ.get('PATH', os.defpath)}",
            "PYTHONPATH": str(Path(__file__).resolve().parents[2]),
            "PYTHONUNBUFFERED": "1",
            "NO_PROXY": "*",
            "AIRFLOW_HOME": str(self.home),
            **{f"AIRFLOW__{name.upper()}": value for name, value in {**settings, **self._settings}.items()},
            **{f"AIRFLOW_CONN_{name.upper()}": json.dumps(fields) for name, fields in self._connections.items()},
        }

    # --- REST ---

    def wait_until_ready(self, dag_id: str) -> None:
        """Returns when the API answers, the scheduler works and the DAG was parsed; AirflowError after 600 s."""
        deadline = time.monotonic() + START_SECONDS
        while not self._knows(dag_id):
            ended = [str(log) for log, guard in self._guards.items() if guard.poll() is not None]
            if ended or not self._guards:
                raise AirflowError(f"Airflow ended while it started; see {', '.join(ended) or self.home}")
            if time.monotonic() > deadline:
                raise AirflowError(
                    f"Airflow or its DAG {dag_id} was not ready after {START_SECONDS:.0f} s; see {self.log}"
                )
            time.sleep(0.5)  # an answer costs the server time, which it needs to become ready

    def _knows(self, dag_id: str) -> bool:
        try:
            health = self._client.get("/api/v2/monitor/health").raise_for_status().json()
            if health["scheduler"]["status"] != "healthy":
                return False
            if self._get("/api/v2/importErrors")["import_errors"]:
                raise AirflowError(f"a DAG cannot be imported: {self._get('/api/v2/importErrors')['import_errors']}")
            return self._request("GET", f"/api/v2/dags/{dag_id}").is_success
        except httpx.HTTPError:
            return False

    def trigger(self, dag_id: str, conf: Mapping[str, Any] | None = None) -> str:
        """Unpauses the DAG and starts a run with the parameters in `conf`; returns its id."""
        self._persistently("PATCH", f"/api/v2/dags/{dag_id}", json={"is_paused": False}).raise_for_status()
        now = datetime.now(UTC)
        # An id of our own: a request that is repeated after a lost answer starts no second run.
        run_id = f"manual__{now:%Y-%m-%dT%H:%M:%S.%fZ}"
        body = {"logical_date": now.isoformat(), "dag_run_id": run_id, "conf": dict(conf or {})}
        answer = self._persistently("POST", f"/api/v2/dags/{dag_id}/dagRuns", json=body)
        if not answer.is_success and answer.status_code != httpx.codes.CONFLICT:
            raise AirflowError(f"Airflow refused to run {dag_id}: {answer.text}")
        return run_id

    def command(self, *arguments: str) -> str:
        """What `airflow ...` prints; AirflowError when it fails."""
        command = [str(Path(sys.executable).parent / "airflow"), *arguments]
        found = subprocess.run(
            command, env=self._environment(self.home / "passwords.json"), capture_output=True, text=True, check=False
        )
        if found.returncode:
            raise AirflowError(f"airflow {' '.join(arguments)} failed:\n{found.stdout}{found.stderr}")
        return found.stdout

    def run_state(self, dag_id: str, run_id: str) -> str:
        """The state of a run: queued, running, success or failed."""
        return str(self._get(f"/api/v2/dags/{dag_id}/dagRuns/{run_id}")["state"])

    def tasks(self, dag_id: str, run_id: str) -> Iterator[TaskState]:
        """The newest try of each task of a run."""
        for task in self._get(f"/api/v2/dags/{dag_id}/dagRuns/{run_id}/taskInstances")["task_instances"]:
            yield TaskState(task["task_id"], task["state"] or "none", task["try_number"])

    def seconds(self, dag_id: str, run_id: str) -> tuple[float, dict[str, float]]:
        """How long a finished run took, from its start to its end, and each of its tasks."""
        path = f"/api/v2/dags/{dag_id}/dagRuns/{run_id}"
        return _span(self._get(path)), {
            task["task_id"]: _span(task) for task in self._get(f"{path}/taskInstances")["task_instances"]
        }

    def _get(self, path: str) -> Any:
        return self._persistently("GET", path).raise_for_status().json()

    def _persistently(self, method: str, path: str, **kwargs: Any) -> httpx.Response:
        """A request that may be repeated: a busy machine, or SQLite's lock, is no reason to give up at once."""
        deadline = time.monotonic() + ANSWER_SECONDS
        while True:
            try:
                answer = self._request(method, path, **kwargs)
                if answer.status_code < 500 or time.monotonic() > deadline:
                    return answer
            except httpx.HTTPError:
                if time.monotonic() > deadline:
                    raise
            time.sleep(0.2)

    def _request(self, method: str, path: str, **kwargs: Any) -> httpx.Response:
        if time.monotonic() > self._token_until:
            body = {"username": LOGIN, "password": self.password}
            token = self._client.post("/auth/token", json=body).raise_for_status().json()["access_token"]
            self._client.headers["Authorization"] = f"Bearer {token}"
            self._token_until = time.monotonic() + 600
        return self._client.request(method, path, **kwargs)


def _span(found: Mapping[str, str]) -> float:
    began, ended = (datetime.fromisoformat(found[name]) for name in ("start_date", "end_date"))
    return (ended - began).total_seconds()
