"""Gauges and counters about a pipeline, by way of Airflow's own metrics (`[metrics]` in airflow.cfg).

The pipeline is part of the name, since plain StatsD has no tags: `airflow_ft.undelivered_age.<pipeline>`,
`airflow_ft.failed.<pipeline>.<reason>`. Whatever goes wrong with metrics is Airflow's to log, and fails nothing.
"""

from __future__ import annotations

from datetime import timedelta

from airflow_ft.core.headway import Taken
from airflow_ft.core.reasons import AbortReason, WaitReason
from airflow_ft.core.sweep import Health
from airflow_ft.core.timing import Timing


def emit(health: Health) -> None:
    """Sends the gauges; ages are seconds. Works within tasks."""
    gauges = {
        "undecided_age": health.undecided.total_seconds(),
        "undelivered_age": health.undelivered.total_seconds(),
        "in_doubt": float(health.in_doubt),
        "needs_attention": 1.0 if health.needs else 0.0,
    }
    if health.since_confirmed is not None:
        gauges["since_confirmed"] = health.since_confirmed.total_seconds()
    for name, value in gauges.items():
        _gauge(f"airflow_ft.{name}.{health.pipeline}", value)


class Counters:
    """A `Meter`: what this process does to checkpoints, as counters, and how large the state is."""

    def failed(self, pipeline: str, reason: AbortReason) -> None:
        """One more."""
        _count(f"airflow_ft.failed.{pipeline}.{reason}", 1)

    def confirmed(self, pipeline: str, count: int) -> None:
        """So many more."""
        _count(f"airflow_ft.confirmed.{pipeline}", count)

    def completed(self, pipeline: str, timing: Timing) -> None:
        """Timers of each step and the whole; rows and their bytes, as counters."""
        for step, seconds in timing.steps.items():
            _timing(f"airflow_ft.{step}_duration.{pipeline}", seconds)
        if timing.seconds is not None:
            _timing(f"airflow_ft.checkpoint_duration.{pipeline}", timing.seconds)
        _count(f"airflow_ft.rows.{pipeline}", timing.rows)
        _count(f"airflow_ft.log_bytes.{pipeline}", timing.bytes)

    def waited(self, pipeline: str, reason: WaitReason, seconds: float) -> None:
        """In milliseconds, since counters are whole numbers."""
        _count(f"airflow_ft.waited_ms.{pipeline}.{reason}", round(1000 * seconds))

    def state(self, pipeline: str, changes: int, snapshot: int, replayed: int) -> None:
        """Gauges of the newest micro-batch."""
        sizes = {"state_changes_bytes": changes, "state_snapshot_bytes": snapshot, "state_replayed": replayed}
        for name, value in sizes.items():
            _gauge(f"airflow_ft.{name}.{pipeline}", float(value))

    def taken(self, pipeline: str, taken: Taken) -> None:
        """Gauges of a sink whose delivery takes long: rows that are taken, of so many."""
        for name, value in {"taken_rows": taken.rows, "rows_to_take": taken.of}.items():
            _gauge(f"airflow_ft.{name}.{pipeline}.{taken.sink}", float(value))


def _count(name: str, count: int) -> None:
    from airflow.sdk.observability import stats

    stats.incr(name, count)


def _timing(name: str, seconds: float) -> None:
    from airflow.sdk.observability import stats

    stats.timing(name, timedelta(seconds=seconds))


def _gauge(name: str, value: float) -> None:
    from airflow.sdk.observability import stats

    stats.gauge(name, value)
