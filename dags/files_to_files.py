"""Files from a folder into Parquet and CSV files in other folders - exactly once, without any server.

As `files_to_mysql`: each run reads the CSV files that have appeared in the folder since the last one. Its rows become
visible in one step, as a folder of their own; nothing half is ever listed. It needs no Airflow connection.

The folders are parameters of the run. Files must appear in the first one complete: write them elsewhere and rename
them. The PySpark code is in `jobs/order_files.py`.
"""

import logging
from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, Param, task

from airflow_ft import CheckpointConfig, CheckpointedPipeline, FileSource, FilesSink

log = logging.getLogger(__name__)

with DAG(
    "files_to_files",
    schedule=None,
    catchup=False,
    params={
        "folder": Param("/data/orders", type="string", description="where the CSV files appear"),
        "lake": Param("/data/lake", type="string", description="where the tables are; it has to stay the same"),
    },
    tags=["airflow-ft", "example"],
    doc_md=__doc__,
):
    orders = CheckpointedPipeline(
        pipeline="files-to-files",
        job="airflow_ft.example_dags.jobs.order_files",
        sources={
            "orders": FileSource(
                path="{{ params.folder }}",
                format="csv",
                schema="id bigint, customer string, ordered_at timestamp, amount decimal(12,2), broken string",
                options={"header": "true", "mode": "PERMISSIVE", "columnNameOfCorruptRecord": "broken"},
                max_files_per_trigger=100,
            )
        },
        sinks={
            "orders": FilesSink(folder="{{ params.lake }}/orders", name="orders"),
            "rejected": FilesSink(folder="{{ params.lake }}/rejected", name="rejected", format="csv"),
        },
        checkpointing=CheckpointConfig(timeout=timedelta(minutes=30)),
    )

    @task
    def report(confirmed: dict[str, Any]) -> None:
        """Runs on confirmed data only; a real DAG would compute from the folders here."""
        log.info("%s rows are in the folders, each exactly once", confirmed["rows"])

    report(orders.output)
