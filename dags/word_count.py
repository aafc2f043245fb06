"""Words from one Kafka topic, their counts into another, as a stream with a checkpoint every second.

Each record of `word_counts` has a word as its key and says how often it had come by then: `{"count": 3}`. A word's
counts increase, none is repeated, and the last one is the true one, however often the job fails or is killed. Readers
need `isolation.level=read_committed`. To see that, trigger it with `{"failing": 0.05}`: each count then fails the job
with that probability, and the stream restarts a second later from the newest checkpoint. `airflow ft stop word-count`
ends it.

It needs the Airflow connection `kafka_default` and the topics `lines` and `word_counts`. The PySpark code is in
`jobs/word_count.py`.
"""

from datetime import timedelta

from airflow.sdk import DAG, Param

from airflow_ft import CheckpointConfig, CheckpointedPipeline, FixedDelay, KafkaSink, KafkaSource

with DAG(
    "word_count",
    schedule=None,
    catchup=False,
    max_active_runs=1,
    params={"failing": Param(0, type="number", minimum=0, maximum=1, description="how probably a count fails the job")},
    tags=["airflow-ft", "example"],
    doc_md=__doc__,
):
    CheckpointedPipeline(
        pipeline="word-count",
        job="airflow_ft.example_dags.jobs.word_count",
        job_args={"failing": "{{ params.failing }}"},
        sources={"lines": KafkaSource(topics=["lines"])},
        sinks={"counts": KafkaSink(topic="word_counts", key="word")},
        checkpointing=CheckpointConfig(interval=timedelta(seconds=1)),
        restart=FixedDelay(attempts=1000, delay=timedelta(seconds=1)),
        streaming=True,
    )
