"""Files from a folder into MySQL: new orders into one table, lines that cannot be read into another - exactly once.

Each run reads the CSV files that have appeared in the folder since the last one, and loads them in one transaction:
both tables show all of a file's rows, or none. A retry, a killed worker or a cleared task loads no row twice.

It needs the Airflow connection `mysql_default` and the tables in `files_to_mysql.sql` beside this file. The folder is a
parameter of the run. Files must appear in it complete: write them elsewhere and rename them. The PySpark code is in
`jobs/order_files.py`.
"""

import logging
from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, Param, task

from airflow_ft import CheckpointConfig, CheckpointedPipeline, FileSource, MySqlSink

log = logging.getLogger(__name__)

with DAG(
    "files_to_mysql",
    schedule=None,
    catchup=False,
    params={"folder": Param("/data/orders", type="string", description="where the CSV files appear")},
    tags=["airflow-ft", "example"],
    doc_md=__doc__,
):
    orders = CheckpointedPipeline(
        pipeline="files-to-mysql",
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
            "orders": MySqlSink(table="orders"),
            "rejected": MySqlSink(table="rejected_orders"),
        },
        checkpointing=CheckpointConfig(timeout=timedelta(minutes=30)),
    )

    @task
    def report(confirmed: dict[str, Any]) -> None:
        """Runs on confirmed data only; a real DAG would compute from the tables here."""
        log.info("%s rows are in the tables, each exactly once", confirmed["rows"])

    report(orders.output)
