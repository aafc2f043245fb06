"""Flights as a stream: the same job as `flights`, cut every second, for as long as nobody stops it.

The task `flights.stream` follows the topic. Each checkpoint appears in the table *and* in the topic, or in neither,
exactly once, about a second after its flights have come in. `airflow ft stop flights` stops it after the checkpoint
under way, and so does pausing the DAG; the next run goes on from there. With `airflow ft stop flights --savepoint` it
leaves a savepoint; Airflow's trigger form takes its path, for a run that is to go on from that.

It needs what `flights` needs, and `make demo STREAM=1` runs it.
"""

from datetime import timedelta

from airflow.sdk import DAG

from airflow_ft import (
    CheckpointConfig,
    CheckpointedPipeline,
    FromSavepoint,
    KafkaSink,
    KafkaSource,
    MySqlSink,
    savepoint_params,
)

with DAG(
    "flights_stream",
    schedule=None,
    catchup=False,
    max_active_runs=1,
    params=savepoint_params(),  # fields of the trigger form
    default_args={"retry_delay": timedelta(seconds=2)},  # for the demonstration's sake
    tags=["airflow-ft", "example"],
    doc_md=__doc__,
):
    CheckpointedPipeline(
        pipeline="flights",
        job="airflow_ft.example_dags.jobs.flights",
        sources={"flights": KafkaSource(topics=["flights"])},
        sinks={
            "flights": MySqlSink(table="flights"),
            "delays": KafkaSink(topic="delays", key="key"),
        },
        streaming=True,
        checkpointing=CheckpointConfig(interval=timedelta(seconds=1)),
        from_savepoint=FromSavepoint.from_params(),
    )
