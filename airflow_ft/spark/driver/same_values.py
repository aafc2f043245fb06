"""Give all sinks of a micro-batch the same values, also those that the job's `split` computes.

The micro-batch itself is kept, but Spark runs an action for each sink, seconds apart. So the actions get one value of
`now()` and its kin. An expression may have other values at its second computation; then two sinks must not depend on
it, or a row could reach both or neither (I1).

Not seen: results that follow from the order of rows after a shuffle (`dropDuplicates`, `limit`, `first`, ties).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from airflow_ft.jobs.exact import NAME
from airflow_ft.protocol.errors import JobError
from airflow_ft.spark.driver.plan_facts import items, kind, nodes_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

log = logging.getLogger("airflow_ft.spark")

_OF_THE_PLACE = frozenset(
    {"MonotonicallyIncreasingID", "Rand", "RandStr", "Randn", "Shuffle", "SparkPartitionID", "Uuid"}
)
"""Expressions whose value follows from their seed in the plan, the partition, and the row's place in it."""
_IN_PLACE = frozenset({"Filter", "LogicalRDD", "Project", "SubqueryAlias"})
"""Nodes that keep each row in its partition, and the order of the rows there."""


def with_same_values(frames: Mapping[str, DataFrame], job: str) -> Mapping[str, DataFrame]:
    """Return the DataFrames of a split, with one value of the current time for all of them.

    Raises:
        JobError: two sinks depend on an expression that has other values each time it is computed.
    """
    if len(frames) < 2:
        return frames
    plans = {sink: frame._jdf.queryExecution().analyzed() for sink, frame in frames.items()}
    jvm: Any = next(iter(frames.values())).sparkSession.sparkContext._jvm
    changing = {sink: found for sink, plan in plans.items() if (found := _changing(jvm, plan))}
    if len(changing) > 1:
        raise JobError(
            f"job {job}: split computes {', '.join(sorted(set(changing.values())))} for each of the sinks"
            f" {', '.join(changing)}. Each gets other values, so a row could reach both or neither.",
            code="split_unfit",
            remedy="Add the column in transform. Or keep the rows in split: rows = rows.localCheckpoint().",
            job=job,
            sinks=list(changing),
        )
    current = jvm.org.apache.spark.sql.catalyst.trees.TreePattern.CURRENT_LIKE()
    timed = [sink for sink, plan in plans.items() if plan.containsPattern(current)]
    if len(timed) < 2:
        return frames
    return {**frames, **_at_one_time(jvm, {sink: frames[sink] for sink in timed}, [plans[sink] for sink in timed])}


def _at_one_time(jvm: Any, frames: Mapping[str, DataFrame], plans: list[Any]) -> dict[str, DataFrame]:
    """Compute the current time once for all plans, by the rule with which Spark does that for a single one."""
    together = jvm.java.util.ArrayList()
    for plan in plans:
        together.add(plan)
    spark = jvm.org.apache.spark
    union = spark.sql.catalyst.plans.logical.Union(spark.api.python.PythonUtils.toSeq(together), False, False)
    timed = items(spark.sql.catalyst.optimizer.ComputeCurrentTime.apply(union).children())
    return {
        sink: type(frame)(spark.sql.classic.Dataset.ofRows(frame._jdf.sparkSession(), plan), frame.sparkSession)
        for (sink, frame), plan in zip(frames.items(), timed, strict=True)
    }


def _changing(jvm: Any, plan: Any) -> str:
    """Return an expression of a plan that has other values at a second computation; "": there is none."""
    if plan.deterministic():
        return ""
    try:
        nodes = list(nodes_of(plan))
    except ValueError:
        log.warning("a plan of split is too large to look for values that change")
        return ""
    for node in nodes:
        for expression in items(node.expressions()):
            for leaf in _undetermined(_without_exact(jvm, expression)):
                if kind(leaf) not in _OF_THE_PLACE or any(kind(below) not in _IN_PLACE for below in nodes_of(node)):
                    return str(leaf.sql())
    return ""


def _without_exact(jvm: Any, expression: Any) -> Any:
    """Put NULL in the place of `parse_json`: Spark takes it for random, but its value follows from the row."""
    if expression.deterministic():
        return expression
    spark = jvm.org.apache.spark
    children = [_without_exact(jvm, child) for child in items(expression.children())]
    is_exact = kind(expression) == "ScalaUDF" and expression.udfName().contains(NAME)
    if is_exact and all(child.deterministic() for child in children):
        return spark.sql.catalyst.expressions.Literal(None, expression.dataType())
    return expression.withNewChildren(spark.api.python.PythonUtils.toSeq(children))


def _undetermined(expression: Any) -> Iterator[Any]:
    """Yield the innermost expressions that make this one have other values each time."""
    if not expression.deterministic():
        inner = [found for child in items(expression.children()) for found in _undetermined(child)]
        yield from inner or [expression]
