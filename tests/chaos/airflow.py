"""The demonstration's Airflow, asked for the processes of its tasks, and mistreated as people mistreat it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from tools.demo.airflow import Airflow
from tools.servers import processes

PATIENCE = 120.0  # seconds for which Airflow may be too busy to answer


@dataclass(frozen=True)
class Try:
    """The newest try of a task: `id` changes with each try, and is part of its process's title."""

    id: str
    task_id: str
    state: str
    number: int


class ChaosAirflow(Airflow):
    """`Airflow`, whose REST calls wait for an API server that is starved by everything else on the machine."""

    def tries(self, dag_id: str, run_id: str) -> list[Try]:
        """The newest try of each task of a run."""
        found = self._get(f"/api/v2/dags/{dag_id}/dagRuns/{run_id}/taskInstances")["task_instances"]
        return [Try(str(t["id"]), t["task_id"], t["state"] or "none", t["try_number"]) for t in found]

    def set_failed(self, dag_id: str, run_id: str) -> None:
        """What 'mark as failed' does: tasks are set to failed, and their supervisors end them within seconds."""
        self._request("PATCH", f"/api/v2/dags/{dag_id}/dagRuns/{run_id}", json={"state": "failed"}).raise_for_status()

    def fail(self, dag_id: str, run_id: str, task_id: str) -> None:
        """Mark a running task as failed: its supervisor ends it within seconds, and no retry follows."""
        path = f"/api/v2/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}"
        self._request("PATCH", path, json={"new_state": "failed"}).raise_for_status()

    def clear(self, dag_id: str, run_id: str, task_ids: Sequence[str] | None = None) -> None:
        """Clear tasks of a run in any state, so that they run again. None: all that failed."""
        body: dict[str, Any] = {"dry_run": False, "dag_run_id": run_id, "reset_dag_runs": True}
        body |= {"only_failed": True} if task_ids is None else {"only_failed": False, "task_ids": list(task_ids)}
        self._request("POST", f"/api/v2/dags/{dag_id}/clearTaskInstances", json=body).raise_for_status()

    def task_process(self, one_try: Try) -> tuple[int, int] | None:
        """(process, supervisor) of a try that is at work on this machine; None when it is not."""
        if self._process is None:
            return None
        for pid in processes.tree(self._process.pid):
            if processes.command_line(pid) == f"airflow worker -- {one_try.id}":
                return pid, parent(pid)
        return None

    def _request(self, method: str, path: str, **kwargs: Any) -> httpx.Response:
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                answer = super()._request(method, path, **kwargs)
                # A POST is not repeated when it may have had its effect: a second run would be started.
                if answer.status_code < 500 or method == "POST" or time.monotonic() > deadline:
                    return answer
            except httpx.TransportError:
                if method == "POST" or time.monotonic() > deadline:
                    raise
            except httpx.HTTPStatusError:  # of the token
                if time.monotonic() > deadline:
                    raise
            time.sleep(0.5)


def parent(pid: int) -> int:
    """The parent's process id; 0 when there is no such process."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return 0


def descendants(pid: int, *words: str) -> Iterator[int]:
    """Descendants of a process in whose command line all the words stand."""
    for child in processes.tree(pid)[1:]:
        if all(word in processes.command_line(child) for word in words):
            yield child
