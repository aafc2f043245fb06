"""The extra Airflow tasks of a pipeline's group, with as many tasks that do nothing, in a real Airflow.

A third DAG says what is left when its tasks do no more than import the libraries that a delivery needs, and connect.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterator
from contextlib import ExitStack
from functools import cached_property
from typing import Any

from benchmarks.bench import DATABASE, Bench, say
from benchmarks.measuring import Claim, Comparison, Contender, MeasurementError
from tools.demo.airflow import END_STATES, Airflow

RUN_SECONDS = 600
DAG_IDS = ("ours", "empty", "connecting")
DAGS = """
import json
import os
from pathlib import Path

from airflow.providers.standard.operators.python import PythonOperator
from airflow.sdk import DAG

from airflow_ft import CheckpointedPipeline, FileSource, KafkaSink, MySqlSink

HOME = Path(os.environ["AIRFLOW_HOME"])


def nothing():
    pass


def connect(of):
    from airflow.sdk import BaseHook

    if of.endswith("recover") or of.endswith("confirmed"):
        import sqlite3  # the decision log
        return
    import pyarrow.parquet
    if "shop" in of:
        import pymysql
        shop = BaseHook.get_connection("shop")
        pymysql.connect(host=shop.host, port=shop.port, user=shop.login, password=shop.password).close()
    else:
        from confluent_kafka.admin import AdminClient
        AdminClient(BaseHook.get_connection("bus").extra_dejson).list_topics(timeout=10)



with DAG("ours", schedule=None) as ours:
    CheckpointedPipeline(
        pipeline=HOME.name,
        job="benchmarks.job:Twice",
        sources={"rows": FileSource(path=str(HOME / "rows"), schema="id bigint, note string")},
        sinks={
            "notes": MySqlSink(table="notes", conn_id="shop"),
            "copies": KafkaSink(topic="copies", conn_id="bus"),
        },
    )

for name in ("empty", "connecting"):
    with DAG(name, schedule=None):
        tasks = {}
        for task in ours.tasks:
            work = {"python_callable": nothing}
            if name == "connecting" and not task.task_id.endswith("stage"):
                work = {"python_callable": connect, "op_args": [task.task_id]}
            tasks[task.task_id] = PythonOperator(task_id=task.task_id.replace(".", "-"), **work)
        for task in ours.tasks:
            for before in task.upstream_task_ids:
                tasks[before] >> tasks[task.task_id]
"""


def tasks(bench: Bench) -> Iterator[Comparison]:
    """All tasks of a group but the one that runs Spark, with the time that Airflow takes between them."""
    for preload in (False, True):
        world, how = _World(bench, preload=preload), ", with `preload`" if preload else ""
        claims = [
            Claim(f"the group's tasks without Spark's, against empty ones{how}", "ours", ("empty",), 1 / 1.1),
            Claim(f"the same, against tasks that import and connect{how}", "ours", ("connecting",), None),
            Claim(f"tasks that import and connect, against empty ones{how}", "connecting", ("empty",), None),
        ]
        title = f"the tasks of a group but `stage`, of a run of one row{how}"
        contenders = [world.contender(name) for name in DAG_IDS]
        bench.stack.callback(world.close)
        yield Comparison(f"tasks{'/preload' if preload else ''}", title, contenders, claims)
        world.close()  # it was measured: nothing else is to run beside an Airflow


class _World:
    """Airflow with three DAGs of the same shape."""

    def __init__(self, bench: Bench, *, preload: bool) -> None:
        self._bench, self._preload = bench, preload
        self._stack = ExitStack()
        self._files = itertools.count()

    @cached_property
    def _airflow(self) -> Airflow:
        bench, server = self._bench, self._bench.servers.mariadb
        say("starting Airflow")
        if not self._preload:  # the first one
            server.sql("CREATE TABLE notes (id BIGINT, note VARCHAR(60))", DATABASE)
            bench.servers.kafka.create_topic("copies")
        home = bench.folder / f"airflow-tasks{'-preload' if self._preload else ''}"
        (home / "rows").mkdir(parents=True)
        shop: dict[str, Any] = {"conn_type": "mysql", "host": server.host, "port": server.port, "schema": DATABASE}
        shop |= {"login": server.user, "password": server.password, "extra": {"ssl_mode": "DISABLED"}}
        bus = {"conn_type": "kafka", "extra": {"bootstrap.servers": bench.servers.kafka.bootstrap}}
        spark = json.dumps({"spark.master": "local[1]", "spark.driver.memory": "512m"})
        settings = {"airflow_ft__spark_conf": spark, "airflow_ft__preload": str(self._preload)}
        airflow = Airflow(home, {"shop": shop, "bus": bus}, settings)
        airflow.dags.mkdir()
        (airflow.dags / "dags.py").write_text(DAGS)
        self._stack.callback(airflow.stop)
        airflow.start()
        for name in DAG_IDS:
            airflow.wait_until_ready(name)
        return airflow

    def close(self) -> None:
        """Stops the Airflow."""
        self._stack.close()

    def contender(self, name: str) -> Contender:
        """A run of that DAG."""

        def run() -> float:
            airflow, number = self._airflow, next(self._files)
            line = json.dumps({"id": number, "note": "a row"})
            (airflow.home / "rows" / f"{number}.json").write_text(line + "\n")
            run_id = airflow.trigger(name)
            deadline = time.monotonic() + RUN_SECONDS
            while (state := airflow.run_state(name, run_id)) not in END_STATES:
                if time.monotonic() > deadline:
                    raise MeasurementError(f"a run of the DAG {name} does not end; see {airflow.log}")
                time.sleep(0.5)
            if state != "success":
                logs = [airflow.task_log(name, run_id, task) for task in airflow.tasks(name, run_id)]
                raise MeasurementError(f"a run of the DAG {name} failed: {[airflow.last_error(log) for log in logs]}")
            whole, each = airflow.seconds(name, run_id)
            return whole - sum(seconds for task, seconds in each.items() if task.endswith("stage"))

        return Contender(name, run)
