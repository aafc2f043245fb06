"""The example `aligned_shop` in a real Airflow: what a step behind a barrier reads is one cut of both pipelines.

One Airflow serves the module; the tests use it one after the other.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from airflow_ft.protocol.model import Checkpoint
from airflow_ft.spark.session.session_leases import kept
from tests.integration.airflow_world import AirflowWorld
from tests.waiting import wait_for

pytestmark = [
    pytest.mark.sampled(among="Airflow"),
    pytest.mark.airflow,
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.timeout(900),
]

EXAMPLE = Path(__file__).parents[2] / "dags" / "aligned_shop.py"
SECONDS = 240.0
PIPELINES = ["shop-orders", "shop-payments"]

IMPATIENT = """
from datetime import timedelta
from airflow.sdk import DAG
from airflow_ft import BarrierSensor

with DAG("impatient", schedule=None, catchup=False, params={"barrier": ""}):
    BarrierSensor(
        task_id="passed", pipelines=["shop-orders", "shop-payments"], barrier="{{ params.barrier }}",
        alignment="unaligned", patience=timedelta(seconds=3), poke_interval=1, deferrable=True,
    )
"""


class Shop:
    """The Airflow, and the files that its pipelines read."""

    def __init__(self, airflow: AirflowWorld) -> None:
        self.airflow = airflow
        self.lake = str(airflow.home / "lake")
        self.amounts: dict[str, int] = dict.fromkeys(("orders", "payments"), 0)
        self._files = 0

    def put(self, name: str, amount: int, age: float = 0.0) -> None:
        """A file with one row of that amount, which entered the folder so many seconds ago."""
        self._files += 1
        self.amounts[name] += amount
        hidden = self.airflow.home / f"{self._files}.tmp"
        hidden.write_text(f"id,amount\n{self._files},{amount}\n")
        at = time.time() - age
        os.utime(hidden, (at, at))
        hidden.rename(self.airflow.home / name / f"{self._files}.csv")

    def load(self, name: str) -> Checkpoint:
        """Runs the pipeline; returns its newest checkpoint, which is confirmed."""
        conf = {"folder": str(self.airflow.home / name), "lake": self.lake}
        _, states = self.airflow.run(f"shop_{name}", conf)
        assert set(states.values()) == {"success"}, states
        newest = self.airflow.checkpoints(f"shop-{name}")[-1]
        assert newest.is_confirmed
        assert self.in_the_table(name) == self.amounts[name], "all that was put is in the table, once"
        return newest

    def in_the_table(self, name: str) -> int:
        """The sum of the table, whatever came when."""
        with closing(sqlite3.connect(self.airflow.home / "shop.db")) as shop:
            return sum(int(float(amount)) for (amount,) in shop.execute(f"SELECT amount FROM aligned_{name}"))

    def task(self, dag_id: str, run_id: str, task_id: str) -> dict[str, Any]:
        """A task instance, as the REST API tells it."""
        found: dict[str, Any] = self.airflow.get(f"/api/v2/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}")
        return found

    def deferred(self, dag_id: str, run_id: str, task_id: str) -> None:
        """Waits until the sensor waits in the triggerer."""
        wait_for(
            lambda: self.airflow.states(dag_id, run_id).get(task_id) == "deferred", SECONDS, f"{task_id} is deferred"
        )


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    home = tmp_path_factory.mktemp("airflow")
    for name in ("dags", "orders", "payments"):
        (home / name).mkdir()
    text = EXAMPLE.read_text()
    for old, new, times in (
        ('schedule="@hourly"', 'schedule="* * * * *"', 1),  # the first run begins at once, and not with the next hour
        ("poke_interval=5", "poke_interval=1", 2),
    ):
        assert text.count(old) == times
        text = text.replace(old, new)
    (home / "dags" / "aligned_shop.py").write_text(text)
    (home / "dags" / "impatient.py").write_text(IMPATIENT)
    airflow = AirflowWorld(
        home,
        {"sqlite_default": {"conn_type": "sqlite", "host": str(home / "shop.db")}},
        {"airflow_ft__preload": "True", "airflow_ft__keep_session": "120"},
    )
    airflow.start()
    try:
        for dag_id in ("shop_closing", "impatient"):
            airflow.wait_until_ready(dag_id)
        with airflow.store() as store:
            for pipeline in PIPELINES:
                store.register(pipeline)
        yield Shop(airflow)
    finally:
        airflow.stop()
        for one in kept():
            if one.pipeline in PIPELINES:
                one.end()


def test_a_scheduled_step_reads_both_pipelines_at_interval_end(shop: Shop) -> None:
    airflow = shop.airflow
    for name, amount in (("orders", 100), ("payments", 7)):
        shop.put(name, amount, age=3600)
    airflow.pause("shop_revenue", False)

    def run() -> str | None:
        runs = airflow.get("/api/v2/dags/shop_revenue/dagRuns")["dag_runs"]
        return runs[0]["dag_run_id"] if runs else None

    run_id = wait_for(run, SECONDS, "the schedule begins a run")
    end = datetime.fromisoformat(airflow.get(f"/api/v2/dags/shop_revenue/dagRuns/{run_id}")["data_interval_end"])
    shop.deferred("shop_revenue", run_id, "passed")
    for name in ("orders", "payments"):
        shop.put(name, 20)  # of after the barrier, though the same checkpoint delivers them
    shop.load("orders")
    assert airflow.states("shop_revenue", run_id)["passed"] == "deferred", "one of two has confirmed"
    last = shop.load("payments")
    states = airflow.finish("shop_revenue", run_id)
    airflow.pause("shop_revenue")
    assert states == {"passed": "success", "read_tables": "success"}

    cut = airflow.xcom("shop_revenue", run_id, "passed")
    assert [datetime.fromisoformat(cut[name]["barrier"]) for name in PIPELINES] == [end, end]
    assert all(found["covered"] for found in cut.values())
    opened = datetime.fromisoformat(shop.task("shop_revenue", run_id, "passed")["end_date"])
    assert last.completed_at and opened > last.completed_at, "not before the slower one has confirmed"
    before = {name: str(shop.amounts[name] - 20) + ".00" for name in shop.amounts}
    assert airflow.xcom("shop_revenue", run_id, "read_tables") == before


def test_a_lost_late_or_repeated_barrier_does_not_change_the_cut(shop: Shop) -> None:
    airflow = shop.airflow
    airflow.pause("shop_closing")
    run_id = f"lost__{time.time_ns()}"
    body = {"dag_run_id": run_id, "logical_date": None, "conf": {"lake": shop.lake}}
    airflow._request("POST", "/api/v2/dags/shop_closing/dagRuns", json=body).raise_for_status()
    airflow.mark("shop_closing", run_id, "inject", "success")  # lost: it has never been injected
    airflow.pause("shop_closing", False)
    shop.deferred("shop_closing", run_id, "closed")
    for name in ("orders", "payments"):
        shop.put(name, 1000)
    first = shop.load("orders").number
    assert airflow.states("shop_closing", run_id)["closed"] == "deferred", "it does not open by itself"
    log = airflow.log_text("shop_closing", run_id, "closed")
    assert all(f"{pipeline} lacks the barrier: it was never injected there" in log for pipeline in PIPELINES)

    def inject() -> dict[str, str]:
        """Clears the task that injects, alone; what it returns."""
        tries = shop.task("shop_closing", run_id, "inject")["try_number"]
        airflow.clear("shop_closing", run_id, ["inject"])

        def done() -> bool:
            found = shop.task("shop_closing", run_id, "inject")
            return bool(found["state"] == "success" and found["try_number"] > tries)

        wait_for(done, SECONDS, "the barrier is injected")
        return dict(airflow.xcom("shop_closing", run_id, "inject"))

    moments = inject()  # late, but there
    assert list(moments) == PIPELINES and len(set(moments.values())) == 1
    shop.put("orders", 200)
    covering = shop.load("orders").number
    assert covering > first, "what was read before the barrier does not cover it"
    cut_of_orders = shop.amounts["orders"]
    assert inject() == moments, "repeated: the first one counts"

    impatient, states = airflow.run("impatient", {"barrier": f"closing-{run_id}"})
    assert states == {"passed": "success"}
    early = airflow.xcom("impatient", impatient, "passed")
    assert {name: early[name]["covered"] for name in PIPELINES} == {"shop-orders": True, "shop-payments": False}
    assert early["shop-orders"]["number"] == covering
    output = airflow.log_text("impatient", impatient, "passed")
    assert "open after 0:00:03, although shop-payments" in output
    assert airflow.states("shop_closing", run_id)["closed"] == "deferred", "the aligned one waits for both"

    shop.put("orders", 5000)
    ahead = shop.load("orders").number
    shop.put("payments", 30)
    last = shop.load("payments").number
    assert airflow.finish("shop_closing", run_id) == dict.fromkeys(("inject", "closed", "read_files"), "success")
    cut = airflow.xcom("shop_closing", run_id, "closed")
    assert {name: (found["number"], found["barrier"]) for name, found in cut.items()} == {
        "shop-orders": (covering, moments["shop-orders"]),
        "shop-payments": (last, moments["shop-payments"]),
    }
    assert ahead > covering, "of the pipeline that is ahead more is visible"
    expected = {"orders": f"{cut_of_orders}.00", "payments": f"{shop.amounts['payments']}.00"}
    assert airflow.xcom("shop_closing", run_id, "read_files") == expected
    assert shop.in_the_table("orders") == cut_of_orders + 5000
