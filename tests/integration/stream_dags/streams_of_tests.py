"""DAGs for tests/integration/test_airflow_stream.py."""

from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.sdk import DAG, task

from airflow_ft import (
    CheckpointConfig,
    CheckpointedPipeline,
    CheckpointSensor,
    ExternalizedRetention,
    FixedDelay,
    FromSavepoint,
    KafkaSink,
    KafkaSource,
    MySqlSink,
    PipelineSpec,
    StopStreamOperator,
    StreamGroupOperator,
    TriggerSavepointOperator,
    savepoint_params,
)

with DAG("copy", schedule=None, catchup=False, max_active_runs=2, default_args={"retry_delay": 1}):
    copy = CheckpointedPipeline(
        pipeline="copy",
        job="jobs_of_streams:Copy",
        sources={"numbers": KafkaSource(topics=["numbers"])},
        sinks={"numbers": MySqlSink(table="numbers"), "copies": KafkaSink(topic="copies")},
        checkpointing=CheckpointConfig(interval=timedelta(seconds=1)),
        restart=FixedDelay(attempts=5, delay=timedelta(seconds=1)),
        keep_session=timedelta(minutes=2),  # most of the tests start it
        streaming=True,
    )

    @task
    def report(confirmed: dict[str, Any]) -> Any:
        return confirmed["latest"]

    report(copy.output)

with DAG("gate", schedule=None, catchup=False, params={"as_of": ""}):
    CheckpointSensor(
        task_id="gate", pipeline="copy", as_of="{{ params.as_of }}", poke_interval=1, timeout=300, deferrable=True
    )

with DAG("counting", schedule=None, catchup=False, params={"deaths": ""}, default_args={"retry_delay": 1}):
    CheckpointedPipeline(
        pipeline="counting",
        job="jobs_of_streams:Counting",
        job_args={"deaths": "{{ params.deaths }}"},
        sources={"lines": KafkaSource(topics=["words"])},
        sinks={"counts": KafkaSink(topic="counts", key="word")},
        checkpointing=CheckpointConfig(interval=timedelta(seconds=1)),
        restart=FixedDelay(attempts=20, delay=timedelta(seconds=1)),
        streaming=True,
    )

with DAG(
    "always",
    schedule="@continuous",
    start_date=datetime(2020, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
    default_args={"retry_delay": 1},
):
    CheckpointedPipeline(
        pipeline="always",
        job="jobs_of_streams:Numbers",
        sources={"numbers": KafkaSource(topics=["always"])},
        sinks={"copies": KafkaSink(topic="always_copies")},
        checkpointing=CheckpointConfig(
            interval=timedelta(seconds=1), externalized_retention=ExternalizedRetention.DELETE_ON_CANCELLATION
        ),
        keep_session=timedelta(minutes=2),
        streaming=True,
    )


def small(name: str) -> PipelineSpec:
    return PipelineSpec(
        pipeline=name,
        job="jobs_of_streams:Numbers",
        sources={"numbers": KafkaSource(topics=[name])},
        sinks={"numbers": MySqlSink(table=name)},
        checkpointing=CheckpointConfig(interval=timedelta(seconds=1)),
        streaming=True,
    )


with DAG("small", schedule=None, catchup=False, max_active_runs=2, default_args={"retry_delay": 1}):
    StreamGroupOperator(task_id="streams", streams=[small("small_a"), small("small_b")])

windows = PipelineSpec(
    pipeline="windows",
    job="jobs_of_streams:Windows",
    sources={"numbers": KafkaSource(topics=["windows"])},
    sinks={
        "numbers": MySqlSink(table="windows", strategy="upsert", key_columns=["n"], version_column="v"),
        "copies": KafkaSink(topic="windows_copies"),
    },
    checkpointing=CheckpointConfig(interval=timedelta(seconds=1)),
    from_savepoint=FromSavepoint.from_params(),
    streaming=True,
)

with DAG(
    "windows",
    schedule=None,
    catchup=False,
    max_active_runs=2,
    params=savepoint_params(),
    default_args={"retry_delay": 1},
):
    StreamGroupOperator(task_id="streams", streams=[windows, small("beside")])

with DAG("take", schedule=None, catchup=False):
    TriggerSavepointOperator(task_id="take", pipeline="windows")

with DAG("drain", schedule=None, catchup=False):
    StopStreamOperator(task_id="drain", pipeline="windows", drain=True)
