"""Two pipelines, and steps that read both as of one moment - without any server.

`shop_orders` and `shop_payments` load CSV files into tables of one SQLite file, and the same rows into Parquet files.
Each runs when it likes. Two steps read them, and each must find no payment without its order:

- `shop_revenue`, every hour, waits for what was there at the end of its data interval, and reads the tables: the rows
  that came before that moment.
- `shop_closing` puts a moment of its own into both pipelines, waits for it, and reads the files: up to the checkpoint
  that `BarrierSensor` names.

Whatever the pipelines deliver meanwhile changes neither answer (docs/alignment.md).

It needs the Airflow connection `sqlite_default`, whose host is the SQLite file, by its whole path on a local disk:

    airflow connections add sqlite_default --conn-type sqlite --conn-host /data/shop.db

Folders are parameters. Files must appear complete: write them elsewhere and rename them.
"""

from contextlib import closing
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from airflow.sdk import DAG, BaseHook, Param, task

from airflow_ft import (
    BarrierSensor,
    CheckpointedPipeline,
    FileSource,
    FilesSink,
    InjectBarrierOperator,
    SqliteSink,
    job,
)

PIPELINES = ["shop-orders", "shop-payments"]
LAKE = Param("/data/lake", type="string", description="where the Parquet files are; it has to stay the same")


@job
class Entered:
    """Every row, with the time at which its file entered the folder, into both sinks."""

    def transform(self, spark, sources):
        """What is new."""
        from pyspark.sql.functions import col

        return sources["rows"].withColumn("entered", col("_metadata.file_modification_time"))

    def split(self, batch):
        """The same rows twice."""
        return {"table": batch, "files": batch}


def loading(name: str) -> None:
    """A DAG that loads what is new in the folder of that name."""
    with DAG(
        f"shop_{name}",
        schedule=None,
        catchup=False,
        params={
            "folder": Param(f"/data/{name}", type="string", description="where the CSV files appear"),
            "lake": LAKE,
        },
        tags=["airflow-ft", "example"],
        doc_md=__doc__,
    ):
        CheckpointedPipeline(
            pipeline=f"shop-{name}",
            job=Entered,
            sources={
                "rows": FileSource(
                    path="{{ params.folder }}",
                    format="csv",
                    schema="id bigint, amount decimal(12,2)",
                    options={"header": "true"},
                )
            },
            sinks={
                "table": SqliteSink(table=f"aligned_{name}"),
                "files": FilesSink(folder=f"{{{{ params.lake }}}}/{name}", name="files"),
            },
        )


loading("orders")
loading("payments")


@task
def read_tables(cut: dict[str, dict[str, Any]]) -> dict[str, str]:
    """The sums of what came before the barrier. It reads a time, so it needs no checkpoint's number."""
    import sqlite3

    sums = {}
    with closing(sqlite3.connect(BaseHook.get_connection("sqlite_default").host or "")) as shop:
        for pipeline, found in cut.items():
            before = datetime.fromisoformat(found["barrier"]).astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")
            table = pipeline.removeprefix("shop-")
            amounts = shop.execute(f"SELECT amount FROM aligned_{table} WHERE entered < ?", (before,)).fetchall()
            sums[table] = str(sum((Decimal(amount) for (amount,) in amounts), Decimal()))
    return sums


@task
def read_files(cut: dict[str, dict[str, Any]], lake: str) -> dict[str, str]:
    """The sums of the checkpoints up to the one that covers the barrier."""
    import pyarrow.compute as pc
    import pyarrow.dataset as ds

    sums = {}
    for pipeline, found in cut.items():
        name = pipeline.removeprefix("shop-")
        rows = ds.dataset(f"{lake}/{name}", partitioning="hive")
        upto = rows.to_table(["amount"], filter=pc.field("checkpoint") <= found["delivered_by"])
        sums[name] = str(sum(upto["amount"].to_pylist(), Decimal()))
    return sums


with DAG(
    "shop_revenue",
    schedule="@hourly",
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
    tags=["airflow-ft", "example"],
    doc_md=__doc__,
):
    # The barrier of a scheduled run is the end of its data interval. Nothing is to be injected.
    passed = BarrierSensor(task_id="passed", pipelines=PIPELINES, poke_interval=5, deferrable=True)
    read_tables(passed.output)

with DAG(
    "shop_closing",
    schedule=None,
    catchup=False,
    params={"lake": LAKE},
    tags=["airflow-ft", "example"],
    doc_md=__doc__,
):
    barrier = "closing-{{ run_id }}"
    inject = InjectBarrierOperator(task_id="inject", barrier=barrier, pipelines=PIPELINES, retries=3)
    closed = BarrierSensor(task_id="closed", pipelines=PIPELINES, barrier=barrier, poke_interval=5, deferrable=True)
    inject >> closed
    read_files(closed.output, "{{ params.lake }}")
