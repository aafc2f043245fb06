"""Files from a folder into a SQLite file - exactly once, without any server.

As `files_to_mysql`: each run reads the CSV files that have appeared in the folder since the last one, and loads them in
one transaction. Both tables show all of a file's rows, or none; the first run makes them.

It needs the Airflow connection `sqlite_default`, whose host is the SQLite file, by its whole path on a local disk:

    airflow connections add sqlite_default --conn-type sqlite --conn-host /data/orders.db

The folder is a parameter of the run. Files must appear in it complete: write them elsewhere and rename them. The
PySpark code is the class `Orders` here, whose source goes to Spark's driver; that never imports this file.
"""

import logging
from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, Param, task

from airflow_ft import CheckpointConfig, CheckpointedPipeline, FileSource, SqliteSink, job

log = logging.getLogger(__name__)

FILE = "file"


@job
class Orders:
    """Readable lines are orders, the others are kept with the name of their file."""

    def transform(self, spark, sources):
        """All lines that are new, with the file that each came from."""
        from pyspark.sql.functions import col

        return sources["orders"].withColumn(FILE, col("_metadata.file_name"))

    def split(self, batch):
        """The rows of each table; both see the same materialised batch."""
        return {
            "orders": batch.where("broken IS NULL").select("id", "customer", "ordered_at", "amount", FILE),
            "rejected": batch.where("broken IS NOT NULL").selectExpr("broken AS line", FILE),
        }


with DAG(
    "files_to_sqlite",
    schedule=None,
    catchup=False,
    params={"folder": Param("/data/orders", type="string", description="where the CSV files appear")},
    tags=["airflow-ft", "example"],
    doc_md=__doc__,
):
    orders = CheckpointedPipeline(
        pipeline="files-to-sqlite",
        job=Orders,
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
            "orders": SqliteSink(table="orders"),
            "rejected": SqliteSink(table="rejected_orders"),
        },
        checkpointing=CheckpointConfig(timeout=timedelta(minutes=30)),
    )

    @task
    def report(confirmed: dict[str, Any]) -> None:
        """Runs on confirmed data only; a real DAG would compute from the tables here."""
        log.info("%s rows are in the tables, each exactly once", confirmed["rows"])

    report(orders.output)
