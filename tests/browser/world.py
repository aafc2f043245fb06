"""A decision log written by hand: a pipeline in each state, one with all that a pipeline has, and 1,000 more."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from airflow_ft.protocol.failure import Failure
from airflow_ft.protocol.lag import Lag, Unit
from airflow_ft.protocol.model import RunKey, StateSizes
from airflow_ft.protocol.noting import warn
from airflow_ft.protocol.pipelines import HaltReason
from airflow_ft.protocol.warning import PipelineWarning
from airflow_ft.spark.savepoints.metadata import METADATA
from airflow_ft.spark.savepoints.taking import take
from airflow_ft.store import open_store
from airflow_ft.wal.local import local_path
from tests.browser import flights
from tests.state.scene import Pipeline
from tests.store.scene import PIPELINE, RUN, Scene

HALTED, QUARANTINED, IN_DOUBT = "payments", "refunds", "invoices"
FAILED, NOT_RUNNING, LATE, WAITING, RUNNING = "receipts", "visits", "parcels", "returns", "clicks"
URGENT = {
    HALTED: "HALTED",
    QUARANTINED: "QUARANTINED",
    IN_DOUBT: "IN DOUBT",
    FAILED: "FAILED",
    NOT_RUNNING: "NOT RUNNING",
    LATE: "LATE",
    WAITING: "WAITING",
    RUNNING: "RUNNING",
}
"""The list begins with these, in this order; all others are IDLE."""
ALONE = "shipments"
ALONE_RUN = RunKey("alone", "run-1")
"""The only pipeline of its DAG, and the run that has made its checkpoints."""
MANY = 1000
TOTAL = MANY + len(URGENT) + 3
MADE_WITH = {
    LATE: {"late_after": 1e-6},
    RUNNING: {"streaming": True, "late_after": 86_400},
    NOT_RUNNING: {"streaming": True},
}
BROKEN = Failure(
    "JobError", "job_failed", "the job raised a KeyError.", "correct it.", task_id="receipts.stage", try_number=2
)
REFUSED = Failure("UnfitTargetError", "", "the table has no column note.", "add the column.")
GREW = PipelineWarning("SOURCE_FILE_GREW", "orders", "a.json has grown since it was read.", "write a new file.")
LAG = [Lag("orders", Unit.RECORDS, 1200)]
READING = [Lag("clicks", Unit.RECORDS, 8_000, 100.0, 2_000, 10_000), Lag("pages", Unit.FILES, 1)]
"""What `PIPELINE` is behind, as of its last two checkpoints, and what `RUNNING` has read."""
SIZES = StateSizes(2_000, 3_000_000, 4)
"""Of the state of `PIPELINE`; checkpoint n has changed n times as much."""
CHECKPOINTS = 25
"""Confirmed checkpoints of the pipeline `PIPELINE`, more than a page shows; number n knows the key "a" n times."""
SPEC = {
    "pipeline": PIPELINE,
    "job": "jobs.orders",
    "job_args": {"least": 100},
    "streaming": False,
    "sources": {"orders": {"kind": "kafka", "topics": ["orders.new"], "conn_id": "bus"}},
    "sinks": {
        "orders": {"kind": "mysql", "conn_id": "db", "strategy": "local", "promise": "ATOMIC", "table": "shop.orders"},
        "alerts": {"kind": "kafka", "conn_id": "log", "strategy": "transaction", "promise": "REDO", "topic": "alerts"},
    },
    "checkpointing": {"timeout": 600},
    "spark_conf": {"spark.driver.memory": "1g"},
    "configured": ["checkpointing.timeout"],
    "dead_letters": {"sink": "alerts", "max_rows": 50, "max_share": 0.2},
}
STAGE = "orders.stage"
"""The task that has staged them."""


class World:
    """The decision log in `folder`, with the locations of Spark and the savepoints of `PIPELINE`."""

    def __init__(self, folder: Path) -> None:
        self.url = f"sqlite:///{folder}/ft.db"
        self.savepoints = folder / "savepoints"
        self.store = open_store(self.url)
        self._write_urgent(folder)
        alone = Scene(self.store, ALONE)
        alone.stage(run=ALONE_RUN)
        alone.complete(1)
        for number in range(MANY):
            self.store.register(f"many-{number:04}")
        self._write_orders(folder)
        flights.write(self.store, folder / "ft.db")

    def close(self) -> None:
        self.store.close()

    def _write_urgent(self, folder: Path) -> None:
        scenes = {name: Scene(self.store, name) for name in URGENT}
        for name, scene in scenes.items():
            scene.stage(2, made_with=MADE_WITH.get(name))
        self.store.halt(HALTED, HaltReason.TOKEN_LOST, "the transaction of checkpoint 2 is gone")
        for name in (QUARANTINED, IN_DOUBT):
            scenes[name].prepare(1)
            scenes[name].decide(1)
        scenes[QUARANTINED].quarantine(1, "db refuses the row with id 7.")
        self.store.record_problem(IN_DOUBT, scenes[IN_DOUBT].epoch, 1, "db", REFUSED)
        self.store.record_failure(FAILED, RUN, BROKEN)
        scenes[WAITING].abort(1)
        self.store.enter_turn(RUNNING, RUN, None)
        self.store.record_lags(RUNNING, scenes[RUNNING].epoch, 0, READING)
        with closing(sqlite3.connect(folder / "ft.db")) as database, database:
            database.execute("UPDATE source_lag SET at = at - 7200000000 WHERE source = 'pages'")  # two hours ago
            database.execute("UPDATE lease SET lease_time = 86400000000")  # the tests renew none
        self.store.renew_lease(RUNNING, scenes[RUNNING].epoch, "worker", "checkpoint 2: db has taken 5 of 8 rows")

    def _write_orders(self, folder: Path) -> None:
        scene = Pipeline(self.store, PIPELINE)
        scene.at(folder / "wal")
        scene.take()
        self.store.begin_stage(PIPELINE, scene.epoch, RUN, f"{RUN.dag_id}/{RUN.run_id}/{STAGE}", SPEC)
        for number in range(1, CHECKPOINTS + 1):
            scene.confirmed({"a": number})
            self.store.record_state_sizes(PIPELINE, scene.epoch, number, replace(SIZES, changes=SIZES.changes * number))
            if number > CHECKPOINTS - 2:
                self.store.record_lags(PIPELINE, scene.epoch, number, LAG)
        warn(self.store, PIPELINE, GREW)
        self.whole, self.cut = (
            local_path(take(self.store, PIPELINE, str(self.savepoints), "a test")[0]) for _ in range(2)
        )
        (self.cut / METADATA).write_bytes(b"{")
