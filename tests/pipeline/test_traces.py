"""A checkpoint that has ended leaves spans with the times of the decision log, below the task's own."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from airflow_ft.pipeline import traces
from airflow_ft.pipeline.metrics import Counters
from airflow_ft.protocol.errors import StoreUnavailableError
from airflow_ft.protocol.lease import Worker, take_epoch
from airflow_ft.protocol.meter import MOST_EVENTS
from airflow_ft.protocol.model import Checkpoint
from airflow_ft.protocol.pipelines import Event
from airflow_ft.store.sqlite import SqliteStore
from tests.protocol.systems import Metered
from tests.store.scene import PIPELINE, Scene, a_position, a_segment

DOCS = Path(__file__).resolve().parents[2] / "docs"
TRACES = (DOCS / "observability.md").read_text().partition("## Traces")[2].partition("\n## ")[0]
PAGE = set(re.findall(r"^\| `([\w.]+)` \|", TRACES, re.MULTILINE))
"""The spans that the page lists."""


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    """What is exported; the process has no provider of its own, as where Airflow does not trace."""
    provider, exporter = TracerProvider(), InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    yield exporter
    provider.shutdown()


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    with SqliteStore(tmp_path / "ft.db") as store:
        store.meter = Counters()
        yield Scene(store)


def paths(exporter: InMemorySpanExporter) -> list[tuple[str, ReadableSpan]]:
    """Spans with the names on the way from the root, and the participant where there is one, in the order of time."""
    found = {span.context.span_id: span for span in exporter.get_finished_spans() if span.context}

    def path(span: ReadableSpan) -> str:
        who = (span.attributes or {}).get("airflow_ft.participant")
        name = span.name.removeprefix("airflow_ft.") + (f" {who}" if who else "")
        above = found.get(span.parent.span_id) if span.parent else None
        return f"{path(above)}/{name}" if above else name

    return sorted(((path(span), span) for span in found.values()), key=lambda each: (each[1].start_time, each[0]))


def seconds(span: ReadableSpan, since: datetime) -> tuple[float, float]:
    began = since.timestamp()
    return round((span.start_time or 0) / 1e9 - began, 3), round((span.end_time or 0) / 1e9 - began, 3)


def attributes(span: ReadableSpan) -> dict[str, object]:
    return {name.removeprefix("airflow_ft."): value for name, value in (span.attributes or {}).items()}


def failure(span: ReadableSpan) -> str | None:
    return span.status.description if span.status.status_code is StatusCode.ERROR else None


TIMES = {"STAGED": "staged_at", "PREPARED": "prepared_at", "COMMITTING": "decided_at", "COMPLETED": "completed_at"}


def spread_out(scene: Scene, number: int) -> tuple[Checkpoint, list[Event]]:
    """As the log has it, with a second between one event and the next; the newest is the first."""
    checkpoint, events = scene.checkpoint(number), scene.store.events(PIPELINE, number)
    began = checkpoint.triggered_at
    spread = [replace(event, at=began + timedelta(seconds=len(events) - 1 - i)) for i, event in enumerate(events)]
    times: dict[str, Any] = {TIMES[each.kind]: each.at for each in spread if each.kind in TIMES}
    return replace(checkpoint, **times), spread


def deliver(scene: Scene, number: int) -> None:
    """As the coordinator does: each step has an attempt of its own, and the carrier commits before the decision."""
    scene.prepare(number)
    scene.attempt(number, "db")
    scene.decide(number)
    scene.prove(number, "db")
    scene.attempt(number, "log")
    scene.attempt(number, "log")
    scene.prove(number, "log")


def test_whoever_completes_a_checkpoint_tells_it_below_its_task(scene: Scene, spans: InMemorySpanExporter) -> None:
    [number] = scene.stage()
    with trace.get_tracer("task").start_as_current_span("commit"):
        deliver(scene, number)
    found = paths(spans)
    assert sorted(path for path, _ in found) == [
        "commit",
        "commit/checkpoint",
        "commit/checkpoint/commit",
        "commit/checkpoint/commit/sink.commit log",
        "commit/checkpoint/commit/sink.commit log",
        "commit/checkpoint/decide",
        "commit/checkpoint/decide/sink.commit db",
        "commit/checkpoint/prepare",
        "commit/checkpoint/prepare/sink.prepare db",
        "commit/checkpoint/prepare/sink.prepare log",
        "commit/checkpoint/stage",
    ]
    [whole] = [span for path, span in found if path == "commit/checkpoint"]
    assert attributes(whole) == {"pipeline": PIPELINE, "checkpoint": number, "rows": 11, "log_bytes": 4_100_000}
    assert spans.get_finished_spans()[-1].name == "commit", "nothing is told later"


def test_spans_carry_the_times_of_the_decision_log(scene: Scene, spans: InMemorySpanExporter) -> None:
    """An attempt without an outcome counts as failed."""
    scene.store.meter = Metered()
    [number] = scene.stage()
    deliver(scene, number)
    checkpoint, events = spread_out(scene, number)
    traces.ended(checkpoint, events)
    timed = [(path, *seconds(span, checkpoint.triggered_at), failure(span)) for path, span in paths(spans)]
    assert timed == [
        ("checkpoint", 0, 14, None),
        ("checkpoint/stage", 0, 1, None),
        ("checkpoint/prepare", 1, 7, None),
        ("checkpoint/prepare/sink.prepare db", 3, 4, None),
        ("checkpoint/prepare/sink.prepare log", 5, 6, None),
        ("checkpoint/decide", 7, 9, None),
        ("checkpoint/decide/sink.commit db", 8, 10, None),
        ("checkpoint/commit", 9, 14, None),
        ("checkpoint/commit/sink.commit log", 11, 12, "another attempt has followed"),
        ("checkpoint/commit/sink.commit log", 12, 13, None),
    ]
    newest = paths(spans)[-1][1]
    attempt = scene.checkpoint(number).votes["log"].attempt
    assert attributes(newest) == {"participant": "log", "sinks": ("log",), "attempt": attempt, "rows": 10}


def test_what_the_driver_has_measured_is_below_the_stage(scene: Scene, spans: InMemorySpanExporter) -> None:
    scene.store.meter = Metered()
    [before] = scene.stage(continues=True)
    number = scene.trigger()
    parts = {"compute": 0.25, "seal": 0.5}
    scene.store.publish(PIPELINE, 1, number, before, a_segment(number), a_position(2), {}, parts=parts)
    scene.complete(before)
    deliver(scene, number)
    checkpoint, events = spread_out(scene, number)
    traces.ended(checkpoint, events)
    assert {span.name.removeprefix("airflow_ft.") for _, span in paths(spans)} == PAGE
    timed = {path: seconds(span, checkpoint.triggered_at) for path, span in paths(spans) if "stage/" in path}
    assert timed == {
        "checkpoint/stage/compute": (0, 0.25),
        "checkpoint/stage/seal": (0.25, 0.75),
        "checkpoint/stage/publish": (0.75, 1),
    }


def test_an_aborted_checkpoint_says_why_and_where(scene: Scene, spans: InMemorySpanExporter) -> None:
    first, second, third = scene.stage(3, continues=True)
    scene.prepare(first)
    scene.abort(first)  # PREPARED
    scene.plan(second)
    scene.attempt(second, "db")
    scene.abort(second)  # STAGED
    fourth = scene.trigger()
    take_epoch(scene.store, PIPELINE, Worker().lease(), "test", lease_seconds=0.0)  # what is TRIGGERED is FENCED
    found = {span.attributes["airflow_ft.checkpoint"]: span for path, span in paths(spans) if path == "checkpoint"}  # type: ignore[index]
    assert {number: attributes(span)["reason"] for number, span in found.items()} == {
        first: "DECLINED",
        second: "DECLINED",
        fourth: "FENCED",
    }
    failed: dict[str, list[str]] = {}
    for path, span in paths(spans):
        if (why := failure(span)) is not None:
            failed.setdefault(path, []).append(why.partition(":")[0])
    assert failed == {
        "checkpoint": ["DECLINED", "DECLINED", "FENCED"],
        "checkpoint/decide": ["DECLINED"],
        "checkpoint/prepare": ["DECLINED"],
        "checkpoint/prepare/sink.prepare db": ["DECLINED"],
        "checkpoint/stage": ["FENCED"],
    }
    assert "DECLINED: too long" in [failure(span) for _, span in paths(spans)]
    assert all(span.end_time and span.start_time and span.end_time >= span.start_time for _, span in paths(spans))
    assert third not in found


def test_without_votes_each_commit_is_a_span(scene: Scene, spans: InMemorySpanExporter) -> None:
    [number] = scene.stage()
    scene.plan_at_least_once(number)
    for name in ("db", "log"):
        scene.attempt(number, name)
        scene.prove(number, name)
    assert sorted(path for path, _ in paths(spans)) == [
        "checkpoint",
        "checkpoint/commit",
        "checkpoint/commit/sink.commit db",
        "checkpoint/commit/sink.commit log",
        "checkpoint/decide",
        "checkpoint/stage",
    ]


def test_nothing_is_looked_up_where_nothing_is_traced(scene: Scene) -> None:
    assert not Counters().traces
    scene.store.meter = silent = Metered()
    numbers = scene.stage(2)
    scene.complete(numbers[0])
    scene.store.meter = meter = Metered(traces=True)
    scene.complete(numbers[1])
    calls = [each for each in meter.calls if each[0] == "ended"]
    expected = scene.store.events(PIPELINE, numbers[1], MOST_EVENTS)
    completed = next(index for index, event in enumerate(expected) if event.kind == "COMPLETED")
    assert calls == [("ended", replace(calls[0][1], finalised=False), expected[completed:])]
    assert calls[0][1].number == numbers[1] and calls[0][1].is_confirmed
    assert "ended" not in [each[0] for each in silent.calls]


def test_a_trace_that_cannot_be_read_fails_nothing(scene: Scene, spans: InMemorySpanExporter) -> None:
    numbers = scene.stage(2)
    scene.prepare(numbers[0])
    database: Any = scene.store._database  # type: ignore[attr-defined]
    read = database.read

    def away(sql: str, *values: object) -> Any:
        if "FROM event" in sql:
            raise StoreUnavailableError("it is away.")
        return read(sql, *values)

    database.read = away
    assert scene.abort(numbers[0]).state == "ABORTED"
    assert spans.get_finished_spans() == ()


def test_a_trace_that_cannot_be_sent_fails_nothing(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(SpanProcessor):
        def on_end(self, span: ReadableSpan) -> None:
            raise LookupError("no collector")

    provider = TracerProvider()
    provider.add_span_processor(Broken())
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    [number] = scene.stage()
    assert scene.complete(number).is_confirmed
    assert f"checkpoint {number} is not traced: LookupError: no collector" in caplog.text


def test_a_provider_of_traces_that_cannot_be_had_fails_nothing(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", None)
    monkeypatch.setenv("OTEL_PYTHON_TRACER_PROVIDER", "nowhere")
    assert not Counters().traces
    [number] = scene.stage()
    assert scene.complete(number).is_confirmed
