"""Values from a Kafka topic into a MySQL table, as a stream: a checkpoint every ten seconds, each value exactly once.

The job raises at the value 15. Nothing of that checkpoint becomes visible, and what was confirmed before stays. The
stream restarts three times, then the task fails. Trigger a run with `{"bad": 0}` to go on: every value is in the table
once. `airflow ft stop t-test` ends a stream, and the next run goes on where it stopped.

It needs the Airflow connections `mysql_default` and `kafka_default`, the topic `t_test`, and the table in `t_test.sql`
beside this file. The PySpark code is in `jobs/t_test.py`. For one value a second:

    for i in $(seq 20); do echo $i; sleep 1; done | kafka-console-producer.sh --bootstrap-server ... --topic t_test
"""

from datetime import timedelta

from airflow.sdk import DAG, Param

from airflow_ft import CheckpointedPipeline, FixedDelay, KafkaSource, MySqlSink

with DAG(
    "t_test",
    schedule=None,
    catchup=False,
    max_active_runs=1,
    params={
        "bad": Param(15, type="integer", description="the job raises at this value; 0: at none"),
        "interval": Param(10, type="number", minimum=0, description="seconds between two checkpoints"),
    },
    tags=["airflow-ft", "example"],
    doc_md=__doc__,
):
    CheckpointedPipeline(
        pipeline="t-test",
        job="airflow_ft.example_dags.jobs.t_test",
        job_args={"bad": "{{ params.bad }}"},
        sources={"values": KafkaSource(topics=["t_test"])},
        sinks={"values": MySqlSink(table="t_test")},
        checkpointing={"interval": "{{ params.interval }}"},
        restart=FixedDelay(attempts=3, delay=timedelta(seconds=2)),
        streaming=True,
    )
