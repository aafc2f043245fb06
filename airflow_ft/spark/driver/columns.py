"""Lineage of each sink's columns, read from the plans of the job's DataFrames and stored in the manifest.

It is read once an attempt, with the first micro-batch that has rows for a sink. No guarantee depends on it, so an error
costs only the lineage.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from airflow_ft.protocol.column_lineage import ColumnLineage, Input, Inputs
from airflow_ft.spark.driver.plan_columns import UnknownPlanError, lineage_of
from airflow_ft.spark.driver.plan_facts import items, kind

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

MOST_NODES, MOST_COLUMNS = 300, 5_000
"""Limits of a plan, in nodes and in columns over all nodes. A larger one has no lineage: it takes time and memory."""
MOST_INPUTS = 1_000
"""Most inputs of a sink's columns that are stored, because every manifest repeats them."""

log = logging.getLogger("airflow_ft.spark")


class SinkColumns:
    """Lineage of one job's columns. `source_of` names the source that a leaf of a plan (of the JVM) reads."""

    def __init__(self, frame: DataFrame, source_of: Callable[[Any], str | None]) -> None:
        """`frame`: what `transform` has returned."""
        self._frame, self._source_of = frame, source_of
        self._known: dict[str, dict[str, Any] | None] = {}
        self._of_frame: ColumnLineage | None = None
        self._failed = False

    def lineage(self, batch: DataFrame, frames: Mapping[str, DataFrame]) -> dict[str, Any]:
        """Return the known lineage by sink, as plain data. `frames`: the job's DataFrames of the micro-batch."""
        for sink in frames:
            if sink in self._known or self._failed:
                continue
            self._known[sink] = None
            try:
                self._known[sink] = _bounded(self._lineage(batch, frames[sink])).to_json()
            except UnknownPlanError as error:
                log.info("lineage has no columns for sink %s (%s)", sink, error)
            except Exception as error:  # nothing of a plan is worth a job
                self._failed = True
                log.warning("lineage has no columns: %s: %s", type(error).__name__, error)
        return {sink: found for sink, found in self._known.items() if found is not None and sink in frames}

    def _lineage(self, batch: DataFrame, frame: DataFrame) -> ColumnLineage:
        if self._of_frame is None:
            self._of_frame = self._read(self._frame, lambda _: None)
        whole = self._of_frame
        if frame is batch:
            return whole
        rdd, columns = _plan(batch).rdd(), list(whole.columns.values())
        found = self._read(frame, lambda leaf: columns if kind(leaf) == "LogicalRDD" and leaf.rdd() == rdd else None)
        return ColumnLineage(found.columns, found.rows | whole.rows)

    def _read(self, frame: DataFrame, below: Callable[[Any], list[Inputs] | None]) -> ColumnLineage:
        """`below`: what the columns of a leaf are made of, if that is known."""
        plan = _plan(frame)
        leaves = _leaves(plan)
        given = [below(leaf) for leaf in leaves]
        sources = [self._source_of(leaf) for leaf in leaves]

        def leaf_column(leaf: int, index: int, name: str) -> Inputs:
            if (columns := given[leaf]) is not None:
                return columns[index]
            source = sources[leaf]
            return frozenset() if source is None else frozenset((Input(source, name),))

        return lineage_of(json.loads(plan.toJSON()), leaf_column)


def _bounded(found: ColumnLineage) -> ColumnLineage:
    if found.size > MOST_INPUTS:
        raise UnknownPlanError(f"it has {found.size:,} inputs; the limit is {MOST_INPUTS:,}")
    return found


def _plan(frame: DataFrame) -> Any:
    return frame._jdf.queryExecution().analyzed()


def _leaves(plan: Any) -> list[Any]:
    """Return what has no children, in the plan's order; UnknownPlanError when it is too large to be read."""
    found, waiting, nodes, columns = [], [plan], 0, 0
    while waiting:
        node = waiting.pop()
        children = items(node.children())
        nodes, columns = nodes + 1, columns + node.output().size()
        if nodes > MOST_NODES or columns > MOST_COLUMNS:
            raise UnknownPlanError("the plan is too large")
        if not children:
            found.append(node)
        waiting += reversed(children)
    return found
