"""Flights from a Kafka topic: every one into a MySQL table, the late ones into another topic - exactly once.

The group `flights` has the tasks recover, stage, prepare.*, commit.* and confirmed. `stage` reads what is new in the
topic as a Spark stream and cuts it into checkpoints; each checkpoint then appears in the table *and* in the topic, or
in neither, exactly once, whichever of the processes dies on the way. `report` starts when that is proven.

It needs two Airflow connections, `mysql_default` and `kafka_default`, the topics `flights` and `delays`, and the table
in `flights.sql` beside this file. The PySpark code is in `jobs/flights.py`. `make demo` runs all of it.
"""

import logging
from datetime import timedelta

from airflow.sdk import DAG, task

from airflow_ft import CheckpointConfig, CheckpointedPipeline, KafkaSink, KafkaSource, MySqlSink

log = logging.getLogger(__name__)

with DAG(
    "flights",
    schedule=None,
    catchup=False,
    default_args={"retry_delay": timedelta(seconds=2)},  # for the demonstration's sake
    tags=["airflow-ft", "example"],
    doc_md=__doc__,
):
    flights = CheckpointedPipeline(
        pipeline="flights",
        job="airflow_ft.example_dags.jobs.flights",
        sources={"flights": KafkaSource(topics=["flights"], max_offsets_per_trigger=42_100)},
        sinks={
            "flights": MySqlSink(table="flights"),
            "delays": KafkaSink(topic="delays", key="key"),
        },
        checkpointing=CheckpointConfig(max_delivery_rows=100_000),
    )

    @task
    def report() -> None:
        """Runs on confirmed data only; a real DAG would compute from the table here."""
        log.info("every flight that this run staged is in the table, every late one in the topic, each exactly once")

    flights >> report()
