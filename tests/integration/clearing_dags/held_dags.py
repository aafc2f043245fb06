"""DAGs for tests/integration/test_airflow_clearing.py: tasks wait while a file is there, or die of one."""

import os
import signal
import time
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, task

import airflow_ft as ft
from airflow_ft.protocol import steps

HERE = Path(os.environ["AIRFLOW_HOME"])

# A task process parses this file, and then runs its task.
prepare_step = steps.prepare_step


def dying_prepare(context: steps.Context, *given: Any) -> Any:
    """kill -9 before the step; no retry follows."""
    if (HERE / f"{context.pipeline}-dies").exists():
        os.kill(os.getpid(), signal.SIGKILL)
    return prepare_step(context, *given)


steps.prepare_step = dying_prepare


def wait(name: str) -> None:
    """Wait while the file is there."""
    while (HERE / name).exists():
        time.sleep(0.2)


for dag_id, runs in (("one", 1), ("two", 2)):
    with DAG(dag_id, schedule=None, catchup=False, max_active_runs=runs, default_args={"retries": 0}):

        @task
        def gate(name: str) -> None:
            """Before the pipeline, so that `recover` has not looked for the turn yet."""
            wait(f"{name}-gate")

        @task
        def compute(folder: str, name: str, run_id: str | None = None) -> None:
            """One row for each sink, with the run's id."""
            import pyarrow as pa
            import pyarrow.parquet as pq

            wait(f"{name}-compute")
            for sink in ("rows", "copies"):
                (Path(folder) / sink).mkdir(exist_ok=True)
                pq.write_table(pa.table({"run": [run_id]}), f"{folder}/{sink}/row.parquet")

        pipeline = ft.CheckpointedPipeline(
            pipeline=dag_id,
            position="{{ run_id }}",
            sinks={
                "rows": ft.SqliteSink(table=dag_id, conn_id="shop"),
                "copies": ft.FilesSink(folder=str(HERE / "lake" / dag_id), name="copies"),
            },
        )
        gate(dag_id) >> pipeline
        with pipeline:
            compute(pipeline.folder, dag_id) >> pipeline.stage
