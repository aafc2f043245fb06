"""Gauges about a pipeline, by way of Airflow's own metrics (`[metrics]` in airflow.cfg); works within tasks.

The pipeline is part of the name, since plain StatsD has no tags: `airflow_ft.undelivered_age.<pipeline>`.
"""

from __future__ import annotations

from airflow_ft.core.sweep import Health


def emit(health: Health) -> None:
    """Sends the gauges; ages are seconds. Whatever goes wrong with metrics is Airflow's to log, and fails nothing."""
    from airflow.sdk.observability import stats

    gauges = {
        "undecided_age": health.undecided.total_seconds(),
        "undelivered_age": health.undelivered.total_seconds(),
        "in_doubt": float(health.in_doubt),
        "needs_attention": 1.0 if health.needs else 0.0,
    }
    if health.since_confirmed is not None:
        gauges["since_confirmed"] = health.since_confirmed.total_seconds()
    for name, value in gauges.items():
        stats.gauge(f"airflow_ft.{name}.{health.pipeline}", value)
