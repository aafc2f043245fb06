"""Flights from a Kafka topic into several systems at once: one checkpoint, one decision, all or none.

The same job as `flights`. Every flight goes into a MySQL table and, as a copy, into a PostgreSQL table, a folder of
Parquet files and a Delta table; the late ones go into a Kafka topic. Each row is in all of them, or in none, exactly
once, whichever of the processes dies on the way.

It needs what `flights` needs, the connection `postgres_default`, the table in `flights_postgres.sql` beside this file,
and Delta's client (`pip install 'airflow-ft[delta]'`). `make demo SINKS=postgres,files,delta` runs it.
"""

from datetime import timedelta

from airflow.sdk import DAG

from airflow_ft import (
    CheckpointConfig,
    CheckpointedPipeline,
    DeltaSink,
    FilesSink,
    KafkaSink,
    KafkaSource,
    MySqlSink,
    PostgresSink,
)

COPIES = {
    "postgres": PostgresSink(table="flights"),
    "files": FilesSink(folder="/data/lake/files", name="files"),
    "delta": DeltaSink(table="/data/lake/delta", name="delta"),
}

with DAG(
    "flights_everywhere",
    schedule=None,
    catchup=False,
    default_args={"retry_delay": timedelta(seconds=2)},  # for the demonstration's sake
    tags=["airflow-ft", "example"],
    doc_md=__doc__,
):
    CheckpointedPipeline(
        pipeline="flights",
        job="airflow_ft.example_dags.jobs.flights_everywhere:Flights",
        job_args={"copies": list(COPIES)},
        sources={"flights": KafkaSource(topics=["flights"], max_offsets_per_trigger=42_100)},
        sinks={
            "flights": MySqlSink(table="flights"),
            "delays": KafkaSink(topic="delays", key="key"),
            **COPIES,
        },
        checkpointing=CheckpointConfig(max_delivery_rows=100_000),
    )
