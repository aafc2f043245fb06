"""A checkpoint as spans of OpenTelemetry, where Airflow traces (`[traces] otel_on`): the whole, and its parts below it.

The process that sees the checkpoint completed or aborted makes them from the decision log. So a trace also shows the
work of Spark's driver and of tasks that died, and a waiting task holds no span open. docs/observability.md lists them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from airflow_ft.protocol.model import Checkpoint
from airflow_ft.protocol.pipelines import Event
from airflow_ft.protocol.timing import Step, Timing
from airflow_ft.store.events import EventKind

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer

log = logging.getLogger(__name__)

PREFIX = "airflow_ft"


@dataclass(frozen=True, slots=True)
class _Span:
    """`failed`: why; "": it went well."""

    name: str
    began: datetime
    ended: datetime
    attributes: Mapping[str, Any] = field(default_factory=dict)
    failed: str = ""
    parts: Sequence[_Span] = ()


def is_on() -> bool:
    """Return whether spans of this process go anywhere."""
    from opentelemetry import trace

    try:
        provider = trace.get_tracer_provider()
    except Exception:  # OTEL_PYTHON_TRACER_PROVIDER names none that can be had, which OpenTelemetry has logged
        return False
    return not isinstance(provider, (trace.ProxyTracerProvider, trace.NoOpTracerProvider))


def ended(checkpoint: Checkpoint, events: Sequence[Event]) -> None:
    """Record a COMPLETED or ABORTED checkpoint below the task's span, or as a separate trace without one; `events` are
    its own, the newest first.

    Streams, whose task has no end, and plain processes use separate traces. Only logs errors, as warnings.
    """
    from opentelemetry import trace

    try:
        if (span := _checkpoint(checkpoint, events[::-1])) is not None:
            _record(trace.get_tracer(PREFIX), span)
    except Exception as error:  # of a processor of spans, too: the checkpoint has ended all the same
        log.warning("checkpoint %d is not traced: %s: %s", checkpoint.number, type(error).__name__, error)


def _record(tracer: Tracer, span: _Span, context: Any = None) -> None:
    from opentelemetry import trace

    made = tracer.start_span(
        f"{PREFIX}.{span.name}",
        context=context,
        start_time=_nanoseconds(span.began),
        attributes={f"{PREFIX}.{name}": value for name, value in span.attributes.items()},
    )
    if span.failed:
        made.set_status(trace.Status(trace.StatusCode.ERROR, span.failed))
    within = trace.set_span_in_context(made)
    for part in span.parts:
        _record(tracer, part, within)
    made.end(_nanoseconds(span.ended))


def _checkpoint(checkpoint: Checkpoint, events: Sequence[Event]) -> _Span | None:
    timing = Timing.of(checkpoint)
    aborted = next((event.at for event in reversed(events) if event.kind == EventKind.ABORTED), None)
    end = timing.completed_at or aborted
    if end is None:
        return None
    attributes: dict[str, Any] = {
        "pipeline": checkpoint.pipeline,
        "checkpoint": timing.number,
        "rows": timing.rows,
        "log_bytes": timing.bytes,
    }
    failed = ""
    if aborted is not None:
        attributes["reason"] = str(checkpoint.reason)
        failed = f"{checkpoint.reason}: {checkpoint.message}"
    steps = list(_steps(timing, end, failed, [*_parts(timing, events), *_attempts(checkpoint, events, end, failed)]))
    return _Span("checkpoint", timing.triggered_at, end, attributes, failed, steps)


def _steps(timing: Timing, end: datetime, failed: str, below: Sequence[_Span]) -> Iterator[_Span]:
    """Each with what began in it; where it was aborted, the one that it was in has failed."""
    times = [(str(step), at) for step, at in timing.ends.items()]
    if failed:
        times.append((str(list(Step)[len(times)]), end))
    since = timing.triggered_at
    for index, (name, until) in enumerate(times):
        is_last = index == len(times) - 1
        began_here = [span for span in below if since <= span.began and (span.began < until or is_last)]
        yield _Span(name, since, until, {}, failed if is_last else "", began_here)
        since = until


def _parts(timing: Timing, events: Sequence[Event]) -> Iterator[_Span]:
    """Yield the parts of the stage: those that the driver measured, and publication, which is the rest."""
    staged = next((event for event in events if event.kind == EventKind.STAGED), None)
    if staged is None or not (parts := staged.detail.get("parts")):
        return
    since = timing.triggered_at
    for name, seconds in parts.items():
        until = min(since + timedelta(seconds=seconds), staged.at)
        yield _Span(name, since, until)
        since = until
    yield _Span("publish", since, staged.at)


def _attempts(checkpoint: Checkpoint, events: Sequence[Event], end: datetime, failed: str) -> Iterator[_Span]:
    """Yield what each participant was asked to do, try by try: one that nothing has come of has failed."""
    decided = next((event.at for event in events if event.kind == EventKind.COMMITTING), None)
    for name in sorted({event.detail["participant"] for event in events if event.kind == EventKind.ATTEMPT}):
        own = [event for event in events if event.detail.get("participant") == name]
        own = [event for event in own if event.kind in (EventKind.ATTEMPT, EventKind.VOTED, EventKind.PROVEN)]
        has_voted = False
        for event, later in pairwise([*own, None]):
            assert event is not None
            has_voted = has_voted or event.kind == EventKind.VOTED
            if event.kind != EventKind.ATTEMPT:
                continue
            attributes: dict[str, Any] = {"participant": name, "attempt": event.detail["attempt"]}
            if checkpoint.plan is not None:
                attributes["sinks"] = list(checkpoint.plan.participant(name).sinks)
            went_well = later is not None and later.kind != EventKind.ATTEMPT
            if went_well and later is not None:
                what = "commit" if later.kind == EventKind.PROVEN else "prepare"
                if later.kind == EventKind.PROVEN:
                    attributes["rows"] = sum(later.detail.get("counts", {}).values())
            else:
                what = "commit" if has_voted or (decided is not None and event.at >= decided) else "prepare"
            why = "" if went_well else (failed if later is None and failed else "another attempt has followed")
            yield _Span(f"sink.{what}", event.at, end if later is None else later.at, attributes, why)


def _nanoseconds(at: datetime) -> int:
    return int(at.timestamp() * 1_000_000) * 1000
