"""A real Airflow with DAGs of its own, for the tests of one module, and what they ask it."""

from __future__ import annotations

import re
import signal
import sqlite3
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx

from airflow_ft.protocol.model import Checkpoint
from airflow_ft.protocol.pipelines import Lease
from airflow_ft.store import open_store
from airflow_ft.store.decision_log import DecisionLog
from tests.waiting import wait_for
from tools.demo.airflow import END_STATES, Airflow
from tools.servers import processes

RUN_SECONDS = 600.0
STALL_SECONDS = 240.0
"""So long may no task of a run change its state; no task of a test takes a quarter of it."""


class AirflowWorld(Airflow):
    """Airflow with the decision log and the write-ahead log in its home."""

    def __init__(
        self, home: Path, connections: Mapping[str, Mapping[str, Any]], settings: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(
            home,
            connections,
            {
                "airflow_ft__spark_conf": '{"spark.driver.memory": "512m", "spark.sql.shuffle.partitions": "1",'
                ' "spark.master": "local[2]"}',
                "airflow_ft__lease_seconds": "10",
                "dag_processor__min_file_process_interval": "120",
                "scheduler__scheduler_idle_sleep_time": "0.5",
                # A task of a stalled machine is not dead; one whose process has died is told by its supervisor.
                "scheduler__task_instance_heartbeat_timeout": "180",
                **(settings or {}),
            },
        )
        self._stalled = ""
        self._started_again: list[subprocess.Popen[bytes]] = []

    @contextmanager
    def store(self) -> Iterator[DecisionLog]:
        """The decision log that this Airflow uses by default."""
        with closing(open_store(self.store_url)) as store:
            yield store

    def checkpoints(self, pipeline: str) -> list[Checkpoint]:
        """A pipeline's checkpoints, ascending."""
        with self.store() as store:
            return list(reversed(store.checkpoints(pipeline)))

    def run_state(self, dag_id: str, run_id: str) -> str:
        """As Airflow's database has it: to ask the API twice a second would take much of its server's time."""
        with closing(sqlite3.connect(f"file:{self.home / 'airflow.db'}?mode=ro", uri=True, timeout=30)) as database:
            query = "SELECT state FROM dag_run WHERE dag_id = ? AND run_id = ?"
            [(state,)] = database.execute(query, (dag_id, run_id))
        return str(state)

    def finish(self, dag_id: str, run_id: str, seconds: float = RUN_SECONDS) -> dict[str, str]:
        """Waits until a run is over; returns the tasks' states by task id."""
        moved = looked = time.monotonic()
        seen: dict[str, str] = {}

        def over() -> bool:
            nonlocal moved, looked, seen
            if self.run_state(dag_id, run_id) in END_STATES:
                return True
            if time.monotonic() - looked > STALL_SECONDS / 20:
                looked = time.monotonic()
                states = self.states(dag_id, run_id)
                if states != seen or "running" in states.values():  # a stream is one task that goes on and on
                    moved, seen = looked, states
            if time.monotonic() - moved > STALL_SECONDS:
                self._stalled = f"no task of {dag_id} moved for {STALL_SECONDS:.0f} s: {seen}; {self._why()}"
                raise AssertionError(self._stalled)
            return False

        wait_for(over, seconds, f"run {run_id} of {dag_id} is over", 0.5)
        return self.states(dag_id, run_id)

    def _why(self) -> str:
        """What explains that Airflow does nothing: the health of its parts, and the last that its scheduler wrote."""
        written = self.log.read_text(errors="replace").splitlines()
        last = [line[:400] for line in written if line.startswith("scheduler")][-60:]
        return "\n".join([str(self._get("/api/v2/monitor/health")), *last])

    def run(self, dag_id: str, conf: Mapping[str, Any] | None = None) -> tuple[str, dict[str, str]]:
        """Runs a DAG to its end; returns the run's id and its tasks' states."""
        run_id = self.trigger(dag_id, conf)
        return run_id, self.finish(dag_id, run_id)

    def trigger(self, dag_id: str, conf: Mapping[str, Any] | None = None) -> str:
        """Unpauses the DAG and starts a run; returns its id. AssertionError where this Airflow has stalled before."""
        assert not self._stalled, self._stalled
        self.pause(dag_id, False)
        run_id = f"test__{uuid.uuid4().hex[:12]}"  # our own, so that asking again makes no second run
        body = {"dag_run_id": run_id, "logical_date": datetime.now(UTC).isoformat(), "conf": dict(conf or {})}
        answer = self._request("POST", f"/api/v2/dags/{dag_id}/dagRuns", json=body)
        if answer.status_code != httpx.codes.CONFLICT:
            answer.raise_for_status()
        return run_id

    def pause(self, dag_id: str, paused: bool = True) -> None:
        """Keeps the scheduler from the DAG's runs, or lets it start them."""
        self._request("PATCH", f"/api/v2/dags/{dag_id}", json={"is_paused": paused}).raise_for_status()

    def parse(self, dag_id: str) -> None:
        """Has a DAG's file parsed soon: only then does Airflow start the watchers of a DAG that was paused."""
        token = self._get(f"/api/v2/dags/{dag_id}")["file_token"]
        self._request("PUT", f"/api/v2/parseDagFile/{token}").raise_for_status()

    def _request(self, method: str, path: str, **kwargs: Any) -> httpx.Response:
        """Asks again when the server is overwhelmed: its SQLite database is locked now and then on a busy machine."""
        deadline = time.monotonic() + 120
        while True:
            try:
                answer = super()._request(method, path, **kwargs)
                if answer.status_code < 500 or time.monotonic() > deadline:
                    return answer
            except httpx.HTTPError:
                if time.monotonic() > deadline:
                    raise
            time.sleep(0.5)

    def states(self, dag_id: str, run_id: str) -> dict[str, str]:
        """The tasks' states by task id."""
        return {task.task_id: task.state for task in self.tasks(dag_id, run_id)}

    def clear(
        self, dag_id: str, run_id: str, task_ids: Sequence[str] | None = None, *, only_failed: bool = False
    ) -> None:
        """Clears tasks of a run (None: all of them), as a person does in the UI; they run again."""
        body: dict[str, Any] = {"dry_run": False, "dag_run_id": run_id, "reset_dag_runs": True}
        body["only_failed"] = only_failed
        if task_ids is not None:
            body["task_ids"] = list(task_ids)
        self._request("POST", f"/api/v2/dags/{dag_id}/clearTaskInstances", json=body).raise_for_status()

    def fail(self, dag_id: str, run_id: str, task_id: str) -> None:
        """Marks a running task as failed, as a person does in the UI; Airflow ends its process."""
        self.mark(dag_id, run_id, task_id, "failed")

    def mark(self, dag_id: str, run_id: str, task_id: str, state: str) -> None:
        """Marks a running task as "failed" or "success", as a person does in the UI; Airflow ends its process."""
        path = f"/api/v2/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}"
        self._request("PATCH", path, json={"new_state": state}).raise_for_status()

    def leases(self, pipeline: str) -> list[Lease]:
        """Who is at work on a pipeline."""
        with self.store() as store:
            return list(store.leases(pipeline))

    def xcom(self, dag_id: str, run_id: str, task_id: str, key: str = "return_value") -> Any:
        """What a task returned."""
        path = f"/api/v2/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}/xcomEntries/{key}"
        return self._get(f"{path}?deserialize=true")["value"]

    def rendered(self, dag_id: str, run_id: str, task_id: str) -> dict[str, Any]:
        """A task's template fields after rendering, as the UI shows them."""
        found: dict[str, Any] = self._get(f"/api/v2/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}")
        return dict(found["rendered_fields"])

    def asset_events(self, uri: str) -> list[dict[str, Any]]:
        """The extra of each event of an asset, oldest first."""
        events = self._get("/api/v2/assets/events?limit=100&order_by=timestamp")["asset_events"]
        return [event["extra"] for event in events if event["uri"] == uri]

    def task_logs(self, dag_id: str) -> Path:
        """The folder with the logs of a DAG's tasks."""
        return self.home / "logs" / f"dag_id={dag_id}"

    def log_text(self, dag_id: str, run_id: str, task_id: str) -> str:
        """The log of all tries of a task."""
        folder = self.task_logs(dag_id) / f"run_id={run_id}" / f"task_id={task_id}"
        return "\n".join(path.read_text() for path in sorted(folder.rglob("*.log")))

    def kill(self, *components: str) -> None:
        """kill -9 of "scheduler", "api-server"; what they have started lives on."""
        assert self._process is not None
        ours = [pid for each in (self._process, *self._started_again) for pid in processes.tree(each.pid)]
        titles = {pid: processes.command_line(pid) for pid in ours}
        for component in components:
            named = re.compile(f"airflow {component.replace('-', '_')} .*|.*/airflow {component}")  # first: by itself
            pids = [pid for pid in ours if named.fullmatch(titles[pid])][:1]  # parents come before children
            processes.send(pids, signal.SIGKILL)
            assert pids and processes.await_end(pids, 30), titles

    def start_again(self, *components: str) -> None:
        """What was killed begins anew, as a service manager has it; returns at once."""
        for component in components:
            # A shell that stays keeps the guard from ending what the component leaves when it is killed once more.
            program = f"{Path(sys.executable).parent}/airflow {component} & exec sleep infinity"
            with (self.home / f"{component}.log").open("ab") as output:
                self._started_again.append(
                    subprocess.Popen(
                        [sys.executable, "-m", "tools.demo.guard", "sh", "-c", program],
                        cwd=self.home,
                        env=self._environment(self.home / "passwords.json"),
                        stdin=subprocess.PIPE,
                        stdout=output,
                        stderr=output,
                        start_new_session=True,
                    )
                )

    def stop(self) -> None:
        """Also what was started again."""
        for guard in self._started_again:
            assert guard.stdin is not None
            guard.stdin.close()
            guard.wait(60)
        super().stop()

    def command(self, *arguments: str) -> str:
        """What an `airflow` command prints, run in this Airflow's environment; CalledProcessError when it fails."""
        environment = self._environment(self.home / "passwords.json")
        program = [sys.executable, "-m", "airflow", *arguments]
        done = subprocess.run(
            program,
            env=environment,
            cwd=self.home,
            check=True,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        return done.stdout

    def get(self, path: str) -> Any:
        """The answer of the REST API."""
        return self._get(path)

    def answer(self, path: str) -> httpx.Response:
        """What the server says to a path, whatever it is."""
        return self._request("GET", path)
