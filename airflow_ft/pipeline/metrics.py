"""Gauges, counters and timers about a pipeline, by way of Airflow's own metrics (`[metrics]` in airflow.cfg).

Each is sent twice, as Airflow 3 sends its own. For OpenTelemetry and DogStatsD it has tags (`airflow_ft.rows`,
pipeline=orders). Plain StatsD has no tags, so their values are in the name (`airflow_ft.rows.orders`).
docs/observability.md lists them. Errors of metrics are logged, by Airflow or here, and fail nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

from airflow_ft.pipeline import traces
from airflow_ft.protocol.delivery_progress import Taken
from airflow_ft.protocol.lag import Unit
from airflow_ft.protocol.meter import Meter
from airflow_ft.protocol.model import Checkpoint
from airflow_ft.protocol.pipelines import Event
from airflow_ft.protocol.reasons import Reason, WaitReason
from airflow_ft.protocol.sweep import Health
from airflow_ft.protocol.timing import Step, Timing

PREFIX = "airflow_ft"

log = logging.getLogger(__name__)


class Kind(StrEnum):
    """Kind of a metric in a backend."""

    COUNTER = "counter"
    GAUGE = "gauge"
    TIMER = "timer"


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric. `unit` is its unit; `tags` are those beside the pipeline, in the order of the name."""

    kind: Kind
    unit: str
    tags: tuple[str, ...] = ()


METRICS: Mapping[str, Metric] = {
    "failed": Metric(Kind.COUNTER, "checkpoints", ("reason",)),
    "confirmed": Metric(Kind.COUNTER, "checkpoints"),
    "rows": Metric(Kind.COUNTER, "rows"),
    "log_bytes": Metric(Kind.COUNTER, "bytes"),
    "dead_letters": Metric(Kind.COUNTER, "rows", ("sink",)),
    "waited_ms": Metric(Kind.COUNTER, "milliseconds", ("reason",)),
    "checkpoint_duration": Metric(Kind.TIMER, "milliseconds"),
    **{f"{step}_duration": Metric(Kind.TIMER, "milliseconds") for step in Step},
    "halted": Metric(Kind.GAUGE, "0 or 1"),
    "quarantined": Metric(Kind.GAUGE, "checkpoints"),
    "late": Metric(Kind.GAUGE, "0 or 1"),
    "run_failed": Metric(Kind.GAUGE, "0 or 1"),
    "not_running": Metric(Kind.GAUGE, "0 or 1"),
    "needs_attention": Metric(Kind.GAUGE, "0 or 1"),
    "in_doubt": Metric(Kind.GAUGE, "checkpoints"),
    "undelivered": Metric(Kind.GAUGE, "checkpoints"),
    "undelivered_bytes": Metric(Kind.GAUGE, "bytes"),
    "undelivered_age": Metric(Kind.GAUGE, "seconds"),
    "undecided_age": Metric(Kind.GAUGE, "seconds"),
    "since_confirmed": Metric(Kind.GAUGE, "seconds"),
    "records_lag": Metric(Kind.GAUGE, "records", ("source",)),
    "files_lag": Metric(Kind.GAUGE, "files", ("source",)),
    "taken_rows": Metric(Kind.GAUGE, "rows", ("sink",)),
    "rows_to_take": Metric(Kind.GAUGE, "rows", ("sink",)),
    "state_changes_bytes": Metric(Kind.GAUGE, "bytes"),
    "state_snapshot_bytes": Metric(Kind.GAUGE, "bytes"),
    "state_replayed": Metric(Kind.GAUGE, "micro-batches"),
}
"""All that is sent, by name."""


def emit(health: Health) -> None:
    """Send the gauges of a pipeline's health. Works within tasks."""
    gauges: dict[str, float] = {
        "undecided_age": health.undecided.total_seconds(),
        "undelivered_age": health.undelivered.total_seconds(),
        "undelivered": health.waiting,
        "undelivered_bytes": health.waiting_bytes,
        "in_doubt": health.in_doubt,
        "halted": health.halted,
        "quarantined": health.quarantined,
        "late": health.late is not None,
        "run_failed": health.failed,
        "not_running": health.not_running,
        "needs_attention": bool(health.needs),
    }
    if health.since_confirmed is not None:
        gauges["since_confirmed"] = health.since_confirmed.total_seconds()
    for name, value in gauges.items():
        _send(name, float(value), health.pipeline)


class Counters(Meter):
    """Counters of what this process does to checkpoints, gauges of the state's size, and traces."""

    @property
    def traces(self) -> bool:
        """Return whether Airflow traces."""
        return traces.is_on()

    def ended(self, checkpoint: Checkpoint, events: Sequence[Event]) -> None:
        """The spans of a checkpoint."""
        traces.ended(checkpoint, events)

    def failed(self, pipeline: str, reason: Reason) -> None:
        """One more."""
        _send("failed", 1, pipeline, reason)

    def confirmed(self, pipeline: str, count: int) -> None:
        """Add newly confirmed checkpoints to the counter."""
        _send("confirmed", count, pipeline)

    def completed(self, pipeline: str, timing: Timing) -> None:
        """Timers of each step and the whole; rows and their bytes, as counters."""
        for step, seconds in timing.steps.items():
            _send(f"{step}_duration", 1000 * seconds, pipeline)
        if timing.seconds is not None:
            _send("checkpoint_duration", 1000 * timing.seconds, pipeline)
        _send("rows", timing.rows, pipeline)
        _send("log_bytes", timing.bytes, pipeline)

    def dead_letters(self, pipeline: str, sink: str, rows: int) -> None:
        """Add newly staged dead letters to the counter."""
        _send("dead_letters", rows, pipeline, sink)

    def waited(self, pipeline: str, reason: WaitReason, seconds: float) -> None:
        """In milliseconds, since counters are whole numbers."""
        _send("waited_ms", round(1000 * seconds), pipeline, reason)

    def state(self, pipeline: str, changes: int, snapshot: int, replayed: int) -> None:
        """Gauges of the newest micro-batch."""
        sizes = {"state_changes_bytes": changes, "state_snapshot_bytes": snapshot, "state_replayed": replayed}
        for name, value in sizes.items():
            _send(name, value, pipeline)

    def taken(self, pipeline: str, taken: Taken) -> None:
        """Send the gauges of a long delivery into a sink: rows taken, and rows to take."""
        for name, value in {"taken_rows": taken.rows, "rows_to_take": taken.of}.items():
            _send(name, value, pipeline, taken.sink)

    def lag(self, pipeline: str, source: str, unit: Unit, behind: int) -> None:
        """A gauge of each source: `records_lag` of Kafka, `files_lag` of folders."""
        _send(f"{unit}_lag", behind, pipeline, source)


def _send(name: str, value: float, pipeline: str, *tags: str) -> None:
    """Raises nothing: what is measured is done by then, and must not look like a failure."""
    metric = METRICS[name]
    labels = dict(zip(("pipeline", *metric.tags), (pipeline, *map(str, tags)), strict=True))
    plain = ".".join((PREFIX, name, *labels.values()))
    try:
        for sent_as, given in ((plain, None), (f"{PREFIX}.{name}", labels)):
            _send_as(sent_as, metric.kind, value, given)
        _logged.clear()
    except Exception as error:  # a custom client failed, or none can be created
        if (why := f"{type(error).__name__}: {error}") not in _logged:
            log.warning("metrics are not sent: %s", why)
            _logged.add(why)


_logged: set[str] = set()
"""Why metrics are not sent, as was said; there are several of each checkpoint."""


def _send_as(name: str, kind: Kind, value: float, tags: dict[str, str] | None) -> None:
    from airflow.sdk.observability import stats

    if kind is Kind.COUNTER:
        stats.incr(name, int(value), tags=tags)
    elif kind is Kind.TIMER:
        stats.timing(name, timedelta(milliseconds=value), tags=tags)
    else:
        stats.gauge(name, float(value), tags=tags)
