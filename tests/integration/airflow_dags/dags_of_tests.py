"""DAGs for tests/integration/test_airflow_*.py; the folders and topics come from Airflow's variables."""

import json
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from airflow.providers.openlineage.utils.selective_enable import enable_lineage
from airflow.sdk import (
    DAG,
    Asset,
    AssetWatcher,
    AsyncCallback,
    DeadlineAlert,
    DeadlineReference,
    SyncCallback,
    task,
    task_group,
)

from airflow_ft import CheckpointConfig, CheckpointedPipeline, CheckpointSensor, FileSource, KafkaSink, MySqlSink
from airflow_ft.notifications.problem import ProblemNotifier
from airflow_ft.triggers.confirmed import ConfirmedTrigger

HERE = Path(os.environ["AIRFLOW_HOME"])
WORLD = json.loads((HERE / "world.json").read_text())
SCHEMA = "id bigint, amount decimal(12,2), note string"
QUICK = {"retries": 2, "retry_delay": 1}


def folder(name: str) -> FileSource:
    return FileSource(path=str(HERE / name), schema=SCHEMA, max_files_per_trigger=1)


with DAG("orders", schedule=None, catchup=False, max_active_runs=2, default_args={"retry_delay": 1}):
    orders = CheckpointedPipeline(
        pipeline="orders",
        job="job_of_tests",
        sources={"orders": folder("orders")},
        sinks={
            "alerts": KafkaSink(topic=WORLD["topic"], key="key", conn_id="bus"),
            "orders": MySqlSink(table="orders", conn_id="shop"),
        },
        checkpointing=CheckpointConfig(max_delivery_rows=25),
        keep_session=timedelta(minutes=2),  # a dozen tests run it
    )

    @task
    def report(confirmed: dict[str, Any]) -> Any:
        return confirmed["numbers"]

    report(orders.output)

with DAG("on_orders", schedule=[Asset("airflow-ft://orders")], catchup=False):

    @task
    def seen(triggering_asset_events: Any = None) -> list[int]:
        return [event.extra["number"] for events in triggering_asset_events.values() for event in events]

    seen()

watched = AssetWatcher(name="orders", trigger=ConfirmedTrigger(pipeline="orders", poll_interval=1.0))
with DAG("on_checkpoint", schedule=[Asset("orders-confirmed", watchers=[watched])], catchup=False):

    @task
    def events_of(triggering_asset_events: Any = None) -> list[dict[str, Any]]:
        return [event.extra["payload"] for events in triggering_asset_events.values() for event in events]

    events_of()

with DAG(
    "too_slow",
    schedule=None,
    catchup=False,
    deadline=[
        DeadlineAlert(
            reference=DeadlineReference.DAGRUN_QUEUED_AT,
            interval=timedelta(seconds=1),
            callback=kind(ProblemNotifier, kwargs={"to": "notifying.notify", "pipelines": ["orders"], "late_after": 0}),
        )
        for kind in (AsyncCallback, SyncCallback)
    ],
):
    CheckpointSensor(
        task_id="never", pipeline="orders", number=1_000_000, poke_interval=5, timeout=600, deferrable=True, retries=0
    )

with DAG("waiting", schedule=None, catchup=False, params={"number": 1}):
    CheckpointSensor(
        task_id="number", pipeline="orders", number="{{ params.number }}", poke_interval=0.5, deferrable=True
    )
    CheckpointSensor(
        task_id="too_late",
        pipeline="orders",
        number=1_000_000,
        poke_interval=0.5,
        timeout=3,
        deferrable=True,
        retries=0,
    )
    CheckpointSensor(task_id="poking", pipeline="orders", number=1, poke_interval=0.5, timeout=600)

with DAG("templated", schedule=None, catchup=False, params={"table": "templated", "factor": 3}) as templated:
    CheckpointedPipeline(
        pipeline="templated",
        job="{{ 'job_of_tests' }}:ToOneTable",
        job_args={"factor": "{{ params.factor }}"},
        sources={"orders": FileSource(path=str(HERE) + "/{{ 'few' }}", schema=SCHEMA)},
        sinks={"orders": MySqlSink(table="{{ params.table }}", conn_id="shop")},
        overlap=True,
        default_args={"retries": 0},
    )

enable_lineage(templated)

with DAG("kept", schedule=None, catchup=False):
    CheckpointedPipeline(
        pipeline="kept",
        job="job_of_tests:ToOneTable",
        sources={"orders": folder("kept")},
        sinks={"orders": MySqlSink(table="kept", conn_id="shop")},
        keep_session=timedelta(minutes=10),
        default_args=QUICK,
    )

with DAG("mapped", schedule=None, catchup=False):

    @task_group
    def shops(x: Any) -> None:
        half = CheckpointedPipeline(
            pipeline="half",
            suffix=x,
            job="job_of_tests:ToOneTable",
            job_args={"factor": x},
            sources={"orders": FileSource(path=str(HERE / "few"), schema=SCHEMA)},
            sinks={"orders": MySqlSink(table="mapped", conn_id="shop", shared=True)},
            default_args=QUICK,
        )
        # Neither stands behind the group: each waits for what its own map index stages.
        CheckpointSensor(task_id="gate", pipeline="half", suffix=x, poke_interval=2, deferrable=True, **QUICK)

        @task
        def report(confirmed: dict[str, Any]) -> Any:
            return confirmed["numbers"]

        report(half.output)

    shops.expand(x=[1, 2])

with DAG("same_name", schedule=None, catchup=False):

    @task_group
    def same(x: Any) -> None:
        CheckpointedPipeline(
            pipeline="{{ 'same' }}",
            group_id="same",
            job="job_of_tests:ToOneTable",
            job_args={"factor": x},
            sources={"orders": FileSource(path=str(HERE / "few"), schema=SCHEMA)},
            sinks={"orders": MySqlSink(table="same_name", conn_id="shop")},
            default_args={"retries": 0},
        )

    same.expand(x=[1, 2])

with DAG("on_half", schedule=[Asset("airflow-ft://half-2")], catchup=False):
    CheckpointSensor(task_id="gate", pipeline="half-2", poke_interval=2, deferrable=True, **QUICK)

with DAG("by_hand", schedule=None, catchup=False):
    for mode, deferrable in (("poke", False), ("reschedule", False), ("poke", True)):
        name = "deferred" if deferrable else mode
        CheckpointSensor(
            task_id=name, pipeline="half-1", poke_interval=5, timeout=600, mode=mode, deferrable=deferrable, **QUICK
        )

# Its interval ended long ago: with a timedelta it would end when the file was parsed last, after the stage or before.
with DAG("yearly", schedule="@yearly", start_date=datetime(2020, 1, 1, tzinfo=UTC), catchup=False):
    CheckpointSensor(task_id="gate", pipeline="half-1", poke_interval=2, timeout=600, deferrable=True, **QUICK)

for name, job, conn_id in (
    ("broken_job", "job_of_tests:Broken", "shop"),
    ("failing_rows", "job_of_tests:Failing", "shop"),
    ("wrong_password", "job_of_tests:ToOneTable", "shop_wrong_password"),
    ("server_down", "job_of_tests:ToOneTable", "shop_down"),
    ("slow", "job_of_tests:Slow", "shop"),
    ("no_connection", "job_of_tests:ToOneTable", "shop_undefined"),
):
    with DAG(name, schedule=None, catchup=False):
        CheckpointedPipeline(
            pipeline=name.replace("_", "-"),
            job=job,
            sources={"orders": FileSource(path=str(HERE / "few"), schema=SCHEMA)},
            sinks={"orders": MySqlSink(table=name, conn_id=conn_id)},
            default_args={"retries": 1, "retry_delay": 1},
        )
