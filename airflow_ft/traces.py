"""A checkpoint as spans of OpenTelemetry, where Airflow traces (`[traces] otel_on`): the whole, and its steps below it.

They are made when the checkpoint is completed, by the task that sees it, with the times that the decision log has: so a
trace shows what was done, also by a task that died, and a task that waits holds no span open.
"""

from __future__ import annotations

from datetime import datetime

from airflow_ft.core.timing import Timing


def completed(pipeline: str, timing: Timing) -> None:
    """Records a completed checkpoint below the span of the task, or as a trace of its own where there is none.

    The latter is so in a stream, whose task goes on for as long as it likes, and in plain processes.
    """
    from opentelemetry import trace

    if timing.completed_at is None:
        return
    tracer = trace.get_tracer("airflow_ft")
    span = tracer.start_span(
        "airflow_ft.checkpoint",
        start_time=_nanoseconds(timing.triggered_at),
        attributes={
            "airflow_ft.pipeline": pipeline,
            "airflow_ft.checkpoint": timing.number,
            "airflow_ft.rows": timing.rows,
            "airflow_ft.log_bytes": timing.bytes,
        },
    )
    if span.is_recording():
        within, since = trace.set_span_in_context(span), timing.triggered_at
        for step, until in timing.ends.items():
            part = tracer.start_span(f"airflow_ft.{step}", context=within, start_time=_nanoseconds(since))
            part.end(_nanoseconds(until))
            since = until
    span.end(_nanoseconds(timing.completed_at))


def _nanoseconds(at: datetime) -> int:
    return int(at.timestamp() * 1_000_000) * 1000
