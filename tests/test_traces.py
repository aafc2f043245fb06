"""A completed checkpoint leaves spans with the times of the decision log, below the task's own."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from airflow_ft import traces
from airflow_ft.core.model import CheckpointState
from airflow_ft.core.timing import Timing
from airflow_ft.metrics import Counters

BEGAN = datetime(2026, 1, 1, tzinfo=UTC)


def timing(*after: float | None) -> Timing:
    times = [None if each is None else BEGAN + timedelta(seconds=each) for each in after]
    return Timing(7, CheckpointState.COMPLETED, None, 11, 4100, BEGAN, *times)


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    """What is exported; the process has no provider of its own, as where Airflow does not trace."""
    provider, exporter = TracerProvider(), InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
    yield exporter
    provider.shutdown()


def test_a_checkpoint_and_its_steps_are_spans_of_the_tasks_trace(spans: InMemorySpanExporter) -> None:
    with trace.get_tracer("task").start_as_current_span("worker.commit") as task:
        Counters().completed("shop", timing(2, 3, 3.5, 6))
    *steps, whole, _ = spans.get_finished_spans()
    assert whole.name == "airflow_ft.checkpoint"
    assert whole.parent is not None and whole.parent.span_id == task.get_span_context().span_id
    assert whole.attributes == {
        "airflow_ft.pipeline": "shop",
        "airflow_ft.checkpoint": 7,
        "airflow_ft.rows": 11,
        "airflow_ft.log_bytes": 4100,
    }
    began = int(BEGAN.timestamp()) * 10**9
    told = {each.name: ((each.start_time or 0) - began, (each.end_time or 0) - began) for each in (*steps, whole)}
    assert told == {
        "airflow_ft.stage": (0, 2 * 10**9),
        "airflow_ft.prepare": (2 * 10**9, 3 * 10**9),
        "airflow_ft.decide": (3 * 10**9, 3_500_000_000),
        "airflow_ft.commit": (3_500_000_000, 6 * 10**9),
        "airflow_ft.checkpoint": (0, 6 * 10**9),
    }
    assert {each.parent and each.parent.span_id for each in steps} == {whole.get_span_context().span_id}


def test_a_step_that_left_no_time_is_a_part_of_the_one_behind_it(spans: InMemorySpanExporter) -> None:
    traces.completed("shop", timing(2, None, None, 6))
    assert [each.name for each in spans.get_finished_spans()] == [
        "airflow_ft.stage",
        "airflow_ft.commit",
        "airflow_ft.checkpoint",
    ]
