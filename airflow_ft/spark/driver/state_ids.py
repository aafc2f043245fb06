"""Let a commit of Spark name the state that belongs to the rows of the micro-batch (I1), in format 2 of state.

There each computation of a task gives its state a new id. If a partition has several ids, Spark commits the first,
although the rows come from the last computation. The causes:

- An executor is lost before any task has fetched its rows. Another one then computes the rows and their state again.
- To divide rows by ranges, Spark computes them once more, to sample them.
- A cross join computes each partition once for each partition of its other side.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from airflow_ft.spark.driver.executors import ExecutorLostError
from airflow_ft.spark.driver.plan_facts import items, kind
from airflow_ft.spark.state.settings import FORMAT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_has_ids: dict[str, bool] = {}
"""By class of a node of an executed plan: whether it keeps state."""


def keep_last_ids(spark: SparkSession, query: Any) -> None:
    """Call it for `query` when the rows of its micro-batch are written, before Spark commits it.

    Raises:
        ExecutorLostError: a partition was computed twice, so its state may not belong to the rows.
    """
    if spark.conf.get(FORMAT, "1") != "2":
        return
    for node, is_repeated in _stateful(query._jsq.streamingQuery().lastExecution().executedPlan()):
        accumulator = node.checkpointInfoAccumulator()
        if accumulator.value().size() <= len(node.getStateStoreCheckpointInfo()):
            continue
        if not is_repeated:
            raise ExecutorLostError(
                "Spark has computed a part of the state twice in this micro-batch, as after the loss of an"
                " executor. It would commit the first state, which may not match the rows.",
                remedy="Look in the cluster's log for executors that ended (memory, a removed node), and for failed"
                " fetches between them.",
            )
        last = {info.partitionId(): info for info in accumulator.value()}
        accumulator.reset()
        for info in last.values():
            accumulator.add(info)


def _stateful(node: Any, is_repeated: bool = False) -> Iterator[tuple[Any, bool]]:
    """Yield the nodes that keep state, each with whether Spark computes its rows several times."""
    name = kind(node)
    if name == "ShuffleExchangeExec":
        is_repeated = kind(node.outputPartitioning()) == "RangePartitioning"
    elif name == "CartesianProductExec":
        is_repeated = True
    if name not in _has_ids:
        _has_ids[name] = "checkpointInfoAccumulator" in dir(node)
    if _has_ids[name]:
        yield node, is_repeated
    for child in items(node.children()):
        yield from _stateful(child, is_repeated)
