"""Queryable state: what the operators of a pipeline know of a key, while it runs (docs/state.md).

    from airflow_ft import state

    with state.open("orders") as orders:
        orders.get(0, "customer-17")

- `handle`: what `open` gives. `bounds`: its limits. `positions`: which checkpoint is looked at.
- `catalog`, `schemas`, `layout`: the states of an operator, and how their keys and values lie in Spark's files.
- `versions`, `snapshots`, `records`, `streams`, `rows`, `hashing`: those files.
- `feed`, `export`: what changed between two checkpoints; Arrow, files, Spark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow_ft.state.handle import State
    from airflow_ft.store.decision_log import DecisionLog


def open(pipeline: str, *, store: DecisionLog | str | None = None, at: int | None = None) -> State:
    """The pipeline's state as of its newest confirmed checkpoint, or of `at`; a context manager.

    store: the decision log, open (it stays so), or as `[airflow_ft] store` names one; None: the configured one. at: the
    number of a checkpoint that is retained. ConfigurationError when there is no such pipeline or checkpoint.
    """
    from airflow_ft.state import positions
    from airflow_ft.state.handle import State

    opened = None
    if store is None or isinstance(store, str):
        from airflow_ft.pipeline.decision_log import open_configured_store

        store = opened = open_configured_store(store)
    log = store

    def find(number: int | None) -> positions.Position:
        return positions.confirmed(log, pipeline, number)

    try:
        return State(pipeline, find, at=at, close=opened.close if opened else _nothing)
    except BaseException:
        if opened:
            opened.close()
        raise


def open_savepoint(path: str) -> State:
    """The state in a savepoint's folder (URI or absolute path), wherever it lies."""
    from airflow_ft.clients.buckets import resolve_by_default
    from airflow_ft.pipeline.connections import task_connections
    from airflow_ft.state import positions
    from airflow_ft.state.handle import State

    resolve_by_default(task_connections)
    position = positions.of_savepoint(path)

    def find(number: int | None) -> positions.Position:
        return positions.only(position, number)

    return State(position.spark.pipeline, find)


def _nothing() -> None:
    """The caller closes what is its own."""
