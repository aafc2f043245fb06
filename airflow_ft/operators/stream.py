"""`StreamingPipelineOperator`: a stream in one long task."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowException, AirflowRuntimeError

from airflow_ft.operators.emitting import declare_outlets, emit
from airflow_ft.operators.recover import recover_or_wait, rewinding
from airflow_ft.operators.reporting import report_lineage
from airflow_ft.operators.stage import StageOperator
from airflow_ft.pipeline import steps as pipeline_steps
from airflow_ft.pipeline.connections import task_connections
from airflow_ft.pipeline.resolved import resolve
from airflow_ft.pipeline.retries import OF_A_STREAM
from airflow_ft.pipeline.runs import is_paused
from airflow_ft.protocol import steps
from airflow_ft.protocol.errors import ConfigurationError

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator, Context

    from airflow_ft.pipeline.spec import PipelineSpec
    from airflow_ft.store.decision_log import DecisionLog

_LOOK_SECONDS = 10.0
KILLED = "someone marked, cleared or killed the task; Spark is stopped"


class StreamingPipelineOperator(StageOperator):
    """Run a stream: trigger a checkpoint every `CheckpointConfig.interval`, and deliver it while the next one is
    computed, until the stream is stopped.

    It first settles checkpoints of earlier runs. After an exception of the job, a dead driver or unavailable servers
    it restarts in this task, by the pipeline's `restart`. When that is exhausted, the task fails for good. Airflow's
    `retries` are for workers that die, and a longer outage of the decision log. With `standby=True` a second driver
    waits, and takes over from a dead one.

    On a request (`airflow ft stop`), or when a user pauses its DAG, it stops after the current checkpoint, delivers
    staged rows and succeeds. When the task is marked or cleared, it ends at once, and unpublished rows are computed
    again. A new run, or the same one cleared, continues there. With `CheckpointingMode.AT_MOST_ONCE` either starts at
    the sources' current positions.

    Args:
        spec: the pipeline, with `streaming=True`.

    Result: as that of `ConfirmOperator`, over all checkpoints confirmed in this run.
    """

    role = "stage"
    usual = OF_A_STREAM
    writes = True
    template_fields: Sequence[str] = (*StageOperator.template_fields, "restart", "rewind")
    ui_color = "#dff0fa"

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._killed = False
        if not self.spec.streaming:
            raise ConfigurationError(
                "StreamingPipelineOperator runs streams, but the specification is of a scheduled pipeline.",
                code="arguments_conflict",
                remedy="Add streaming=True to PipelineSpec, or use CheckpointedPipeline.",
                pipeline=self.spec.pipeline,
                argument="streaming",
            )
        check_time_outs(self, self.spec.pipeline)
        declare_outlets(self)

    def step(self, spec: PipelineSpec, run: steps.Context[DecisionLog], context: Context) -> Any:
        """Recovers, streams, and delivers what is left."""
        from airflow_ft.spark.task.answers import answer_stops
        from airflow_ft.spark.task.stream import finish_step, stream_step

        pipeline = resolve(spec, self.spec)
        assert pipeline.restart is not None  # it is a stream
        asked = rewinding(self, context) if spec.is_rewind else None
        recover_or_wait(self, run, spec, poll_interval=5.0, timeout=None, again=True, rewind=asked)
        overlap = pipeline_steps.delivering(pipeline, task_connections)
        report_lineage(self, run, context["ti"])
        end = stream_step(
            run,
            pipeline_steps.staging(pipeline, run, task_connections, self._remember),
            overlap,
            strategy=pipeline.restart,
            why_stop=self._why_stop(Paused(run.run.dag_id)),
            last_try=context["ti"].try_number > context["ti"].max_tries,
        )
        confirmation, outcome = finish_step(run, overlap, end)
        emit(self, context, run, confirmation.confirmed)
        answer_stops(run, outcome)
        return pipeline_steps.report_confirmed(confirmation)

    def on_kill(self) -> None:
        """Ends Spark, and does not restart it."""
        self._killed = True
        super().on_kill()

    def _why_stop(self, paused: Callable[[], str]) -> Callable[[], str]:
        def why() -> str:
            if self._killed:
                raise AirflowException(KILLED)
            return paused()

        return why


def check_time_outs(task: BaseOperator, pipeline: str) -> None:
    """Raise ConfigurationError for a time-out of Airflow that would end a task of streams."""
    found = (
        ("execution_timeout", task.execution_timeout, "Pass execution_timeout=None."),
        ("dagrun_timeout", getattr(task.get_dag(), "dagrun_timeout", None), "Remove dagrun_timeout from the DAG."),
    )
    for name, value, remedy in found:
        if value is not None:
            raise ConfigurationError(
                f"{name} is {value}, which would end the stream: it runs until it is stopped.",
                code="arguments_conflict",
                remedy=remedy,
                pipeline=pipeline,
                argument=name,
            )


class Paused:
    """Reason to stop the stream: a user has paused its DAG. Asks Airflow from time to time."""

    def __init__(self, dag_id: str) -> None:
        self._dag_id, self._asked, self._why = dag_id, 0.0, ""

    def __call__(self) -> str:
        if not self._why and time.monotonic() - self._asked > _LOOK_SECONDS:
            self._asked = time.monotonic()
            with suppress(AirflowException, AirflowRuntimeError, RuntimeError, OSError):  # its server is down: continue
                self._why = f"the DAG {self._dag_id} is paused" if is_paused(self._dag_id) else ""
        return self._why
