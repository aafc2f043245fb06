"""A pipeline as a DAG declares it, for tests that run nothing of it."""

from __future__ import annotations

from typing import Any

from airflow_ft import FileSource, MySqlSink, PipelineSpec

SINKS = {"orders": MySqlSink(table="t", conn_id="shop")}
SOURCES = {"files": FileSource(path="/data", schema="id bigint")}


def spec(pipeline: str = "orders", **changes: Any) -> PipelineSpec:
    return PipelineSpec(**{"pipeline": pipeline, "job": "jobs.orders", "sources": SOURCES, "sinks": SINKS, **changes})
