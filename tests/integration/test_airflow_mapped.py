"""Branches in mapped tasks of a real Airflow: tasks that are killed, and one that wakes up beside its successors."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from airflow_ft.protocol.model import CheckpointState
from tests.integration.airflow_world import AirflowWorld
from tests.waiting import wait_for
from tools.servers import Database, MariaDb, Postgres

pytestmark = [
    pytest.mark.release,
    pytest.mark.server,
    pytest.mark.airflow,
    pytest.mark.slow,
    pytest.mark.timeout(2400),
]

HERE = Path(__file__).parent
ROWS = 15_000  # three branches of 5,000 rows


BRANCHES = ("0001", "0002", "0003")


class Table:
    """Where the rows of the pipeline `mapped` go."""

    def __init__(self, database: Database) -> None:
        self.database, self.server = database, database.server
        database.sql("CREATE TABLE mapped (id BIGINT)")

    def ids(self) -> list[int]:
        """The ids of all rows, sorted."""
        return [row[0] for row in self.database.sql("SELECT id FROM mapped ORDER BY id")]

    def prepared(self) -> Sequence[Any]:
        """What waits for its decision."""
        if isinstance(self.server, Postgres):
            return self.database.sql("SELECT gid FROM pg_prepared_xacts WHERE database = current_database()")
        return self.server.sql("XA RECOVER")


class Mapped:
    """An Airflow with one mapped pipeline, its table, and what was put into its source."""

    def __init__(self, airflow: AirflowWorld, table: Table) -> None:
        self.airflow, self.table = airflow, table
        self.rows = 0

    def put(self, rows: int = ROWS) -> None:
        """The rows that the next run computes."""
        (self.airflow.home / "ids.json").write_text(json.dumps([self.rows, self.rows + rows]))
        self.rows += rows

    def fault(self, name: str, what: str) -> None:
        (self.airflow.home / "faults" / name).write_text(what)

    def taken(self) -> set[str]:
        return {path.stem for path in (self.airflow.home / "faults").glob("*.taken")}

    def run(self) -> tuple[str, dict[str, list[str]]]:
        """Run to the end; returns the states of all instances of each task."""
        run_id = self.airflow.trigger("mapped")
        self.airflow.finish("mapped", run_id, 1200)
        states: dict[str, list[str]] = {}
        for task in self.airflow.tasks("mapped", run_id):
            states.setdefault(task.task_id.removeprefix("mapped."), []).append(task.state)
        return run_id, states

    def announced(self, run_id: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.airflow.xcom("mapped", run_id, "mapped.prepare.shop-announce")
        return found

    def check(self) -> None:
        assert self.table.ids() == list(range(self.rows))
        assert self.table.prepared() == []
        checkpoints = self.airflow.checkpoints("mapped")
        assert {each.state for each in checkpoints} == {CheckpointState.COMPLETED}
        proof = checkpoints[-1].votes["shop"].proof
        assert proof is not None and proof.counts == {"orders": ROWS} and "redelivered" not in proof.detail
        assert set(proof.detail["branches"]) == set(BRANCHES)


@pytest.fixture(scope="module", params=["mysql", "postgres"])
def mapped(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapped]:
    home = tmp_path_factory.mktemp("airflow")
    for name in ("dags", "faults"):
        (home / name).mkdir()
    (home / "kind").write_text(request.param)
    shutil.copy(HERE / "mapped_dags" / "mapped_dag.py", home / "dags")
    server: MariaDb | Postgres = request.getfixturevalue("mariadb" if request.param == "mysql" else "postgres")
    with Database.fresh(server) as database:
        airflow = AirflowWorld(
            home,
            {"shop": database.airflow_connection()},
            {"scheduler__task_instance_heartbeat_timeout": "45", "airflow_ft__lease_seconds": "5"},
        )
        airflow.start()
        try:
            airflow.wait_until_ready("mapped")
            yield Mapped(airflow, Table(database))
        finally:
            stopped = home / "stopped"
            for pid in json.loads(stopped.read_text()) if stopped.exists() else ():
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)
            airflow.stop()
            if isinstance(server, MariaDb):
                server.end_prepared()


def test_killed_tasks_and_a_sleeper_change_nothing(mapped: Mapped) -> None:
    """Each kind of task is killed once; one sleeps before its branch is prepared.

    Its next try and a later checkpoint are delivered meanwhile.
    """
    killed, sleeper, _ = BRANCHES
    mapped.put()
    for name in ("announce", killed, "vote"):
        mapped.fault(name, "kill")
    mapped.fault(sleeper, "stop")
    run_id, states = mapped.run()
    assert {state for found in states.values() for state in found} == {"success"}, states
    assert len(states["prepare.shop-load"]) == 3
    assert mapped.taken() == {"announce", killed, sleeper, "vote"}
    mapped.check()
    found = mapped.announced(run_id)
    assert [each["branch"] for each in found] == list(BRANCHES)
    assert mapped.table.server.password not in json.dumps(found)
    mapped.put()
    assert mapped.run()[1]["confirmed"] == ["success"]
    task, supervisor = json.loads((mapped.airflow.home / "stopped").read_text())
    for pid in (task, supervisor):
        os.kill(pid, signal.SIGCONT)
    wait_for(lambda: not Path(f"/proc/{task}").exists(), 240, "the sleeper has ended")
    mapped.check()


def test_prepare_loads_the_branch_of_a_task_that_fails_for_good(mapped: Mapped) -> None:
    mapped.put()
    mapped.fault(f"refuse-{BRANCHES[-1]}", "")
    _, states = mapped.run()
    assert sorted(states["prepare.shop-load"]) == ["failed", "success", "success"], states
    assert states["prepare.shop"] == states["confirmed"] == ["success"]
    mapped.check()


def test_a_checkpoint_with_one_branch_is_delivered_without_loads(mapped: Mapped) -> None:
    mapped.put(10)
    _, states = mapped.run()
    assert {state for found in states.values() for state in found} == {"success"}, states
    assert len(states["prepare.shop-load"]) == 1
    assert mapped.table.ids() == list(range(mapped.rows))
