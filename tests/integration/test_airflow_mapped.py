"""Branches in mapped tasks of a real Airflow: tasks that are killed, and one that wakes up beside its successors."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from airflow_ft.protocol.model import CheckpointState
from tests.integration.airflow_world import AirflowWorld
from tests.waiting import wait_for
from tools.servers import Database, MariaDb

pytestmark = [
    pytest.mark.release,
    pytest.mark.server,
    pytest.mark.airflow,
    pytest.mark.slow,
    pytest.mark.timeout(2400),
]

HERE = Path(__file__).parent
ROWS = 15_000  # three branches of 5,000 rows


class Mapped:
    """An Airflow with one mapped pipeline, its table, and what was put into its source."""

    def __init__(self, airflow: AirflowWorld, database: Database, server: MariaDb) -> None:
        self.airflow, self.database, self.server = airflow, database, server
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

    def check(self) -> None:
        assert self.database.sql("SELECT COUNT(*), COUNT(DISTINCT id) FROM mapped") == [(self.rows, self.rows)]
        assert self.server.sql("XA RECOVER") == []
        assert {each.state for each in self.airflow.checkpoints("mapped")} == {CheckpointState.COMPLETED}
        proof = self.airflow.checkpoints("mapped")[-1].votes["shop"].proof
        assert proof is not None and proof.counts == {"orders": ROWS} and "redelivered" not in proof.detail
        assert set(proof.detail["branches"]) == {"0001", "0002", "0003"}


@pytest.fixture(scope="module")
def mapped(mariadb: MariaDb, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapped]:
    home = tmp_path_factory.mktemp("airflow")
    for name in ("dags", "faults"):
        (home / name).mkdir()
    shutil.copy(HERE / "mapped_dags" / "mapped_dag.py", home / "dags")
    with Database.fresh(mariadb) as database:
        database.sql("CREATE TABLE mapped (id BIGINT)")
        airflow = AirflowWorld(
            home,
            {"shop": database.airflow_connection()},
            {"scheduler__task_instance_heartbeat_timeout": "45", "airflow_ft__lease_seconds": "5"},
        )
        airflow.start()
        try:
            airflow.wait_until_ready("mapped")
            yield Mapped(airflow, database, mariadb)
        finally:
            stopped = home / "stopped"
            for pid in json.loads(stopped.read_text()) if stopped.exists() else ():
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)
            airflow.stop()
            mariadb.end_prepared()


def test_killed_tasks_and_a_sleeper_change_nothing(mapped: Mapped) -> None:
    """Each kind of task is killed once; one sleeps before XA PREPARE, beside its next try and a later checkpoint."""
    mapped.put()
    for name in ("announce", "0001", "vote"):
        mapped.fault(name, "kill")
    mapped.fault("0002", "stop")
    run_id, states = mapped.run()
    assert {state for found in states.values() for state in found} == {"success"}, states
    assert len(states["prepare.shop-load"]) == 3
    assert mapped.taken() == {"announce", "0001", "0002", "vote"}
    mapped.check()
    found = mapped.airflow.xcom("mapped", run_id, "mapped.prepare.shop-announce")
    assert [each["branch"] for each in found] == ["0001", "0002", "0003"]
    assert mapped.server.password not in json.dumps(found)
    mapped.put()
    assert mapped.run()[1]["confirmed"] == ["success"]
    task, supervisor = json.loads((mapped.airflow.home / "stopped").read_text())
    for pid in (task, supervisor):
        os.kill(pid, signal.SIGCONT)
    wait_for(lambda: not Path(f"/proc/{task}").exists(), 240, "the sleeper has ended")
    mapped.check()


def test_prepare_loads_the_branch_of_a_task_that_fails_for_good(mapped: Mapped) -> None:
    mapped.put()
    mapped.fault("refuse-0003", "")
    _, states = mapped.run()
    assert sorted(states["prepare.shop-load"]) == ["failed", "success", "success"], states
    assert states["prepare.shop"] == states["confirmed"] == ["success"]
    mapped.check()


def test_a_checkpoint_with_one_branch_is_delivered_without_loads(mapped: Mapped) -> None:
    mapped.put(10)
    _, states = mapped.run()
    assert {state for found in states.values() for state in found} == {"success"}, states
    assert len(states["prepare.shop-load"]) == 1
    assert mapped.database.sql("SELECT COUNT(*), COUNT(DISTINCT id) FROM mapped") == [(mapped.rows, mapped.rows)]
