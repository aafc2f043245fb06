"""Runs that are cleared under a live scheduler while another run has, or waits for, the pipeline's turn."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.integration.airflow_world import AirflowWorld
from tests.waiting import wait_for

pytestmark = [pytest.mark.release, pytest.mark.airflow, pytest.mark.slow, pytest.mark.timeout(900)]

DAGS = Path(__file__).parent / "clearing_dags"


@pytest.fixture(scope="module")
def airflow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AirflowWorld]:
    home = tmp_path_factory.mktemp("airflow")
    shutil.copytree(DAGS, home / "dags", ignore=shutil.ignore_patterns("__pycache__"))
    with closing(sqlite3.connect(home / "shop.db")) as shop:
        for name in ("one", "two"):
            shop.execute(f"CREATE TABLE {name} (run TEXT)")
    found = AirflowWorld(home, {"shop": {"conn_type": "sqlite", "host": str(home / "shop.db")}})
    found.start()
    try:
        for name in ("one", "two"):
            found.wait_until_ready(name)
        yield found
    finally:
        found.stop()


def delivered(airflow: AirflowWorld, table: str) -> list[str]:
    with closing(sqlite3.connect(airflow.home / "shop.db")) as shop:
        return sorted(row[0] for row in shop.execute(f"SELECT run FROM {table}"))


def await_state(airflow: AirflowWorld, dag_id: str, run_id: str, task_id: str, state: str) -> None:
    wait_for(lambda: airflow.states(dag_id, run_id)[task_id] == state, 240, f"{task_id} is {state}", 0.5)


def test_a_queued_run_gives_its_turn_to_the_one_before_it(airflow: AirflowWorld) -> None:
    """With max_active_runs=1 Airflow starts the cleared run only when the other one has ended."""
    hold, gate = airflow.home / "one-compute", airflow.home / "one-gate"
    hold.touch()
    first = airflow.trigger("one")
    await_state(airflow, "one", first, "one.compute", "running")
    path = f"/api/v2/dags/one/dagRuns/{first}"
    airflow._request("PATCH", path, json={"state": "failed"}).raise_for_status()
    gate.touch()
    second = airflow.trigger("one")
    await_state(airflow, "one", second, "gate", "running")
    airflow.clear("one", first)
    assert airflow.run_state("one", first) == "queued"
    with airflow.store() as store:
        assert (turn := store.pipeline("one").turn) is not None and turn.run_id == first
    hold.unlink()
    gate.unlink()
    for run_id in (second, first):
        assert set(airflow.finish("one", run_id).values()) == {"success"}
    assert delivered(airflow, "one") == sorted([first, second])


def test_cleared_tasks_wait_for_the_run_that_has_the_turn(airflow: AirflowWorld) -> None:
    dies, hold = airflow.home / "two-dies", airflow.home / "two-compute"
    dies.touch()
    first = airflow.trigger("two")
    states = airflow.finish("two", first)
    assert states["two.prepare.shop"] == states["two.commit.shop"] == states["two.confirmed"] == "failed", states
    dies.unlink()
    hold.touch()
    second = airflow.trigger("two")
    await_state(airflow, "two", second, "two.compute", "running")
    airflow.clear("two", first, only_failed=True)
    await_state(airflow, "two", first, "two.prepare.shop", "deferred")
    hold.unlink()
    assert set(airflow.finish("two", second).values()) == {"success"}
    states = airflow.finish("two", first)
    assert {name for name, state in states.items() if state != "success"} == {"two.commit.shop", "two.commit.copies"}
    assert states["two.commit.shop"] == states["two.commit.copies"] == "skipped", "the other run has delivered its rows"
    assert delivered(airflow, "two") == sorted([first, second])
