"""Names for the stateful operators of a job, as Flink's `uid`: a changed job finds the state of each by its name.

    from airflow_ft.jobs.uids import uid

    def transform(spark, sources):
        distinct = uid(sources["orders"].dropDuplicates(["id"]), "distinct-orders")
        return uid(distinct.groupBy("customer").count(), "orders-by-customer")

Spark knows operators by their place in the plan alone. With names, one may be added, left out or moved, and the others
keep their state (docs/savepoints.md). A name is put on the node of the plan, beside Spark's own tags.

Which operators have state, and in which order Spark numbers them, is read from the analysed plan, before anything is
computed: from the sink to the sources, left before right. `airflow_ft.spark.state.evolution` compares that with what
Spark has written down.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_ft.protocol.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_TAG = "airflow_ft.uid"
PARSED = "airflow_ft.parsed"
"""Tag of the last node of `airflow_ft.jobs.parsing.parse_json`: the name of the column that it has read."""
READ = "airflow_ft.read"
"""Tag of the last node of `airflow_ft.jobs.exact.files.load`: its columns are those of the source."""
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,100}")
_KINDS = {
    "Aggregate": "stateStoreSave",
    "Deduplicate": "dedupe",
    "DeduplicateWithinWatermark": "dedupeWithinWatermark",
    "Distinct": "stateStoreSave",
    "FlatMapGroupsInPandasWithState": "applyInPandasWithState",
    "FlatMapGroupsWithState": "flatMapGroupsWithState",
    "GlobalLimit": "globalLimit",
    "Join": "symmetricHashJoin",
    "TransformWithState": "transformWithStateExec",
}
_IN_PYTHON = "TransformWithStateInPySpark"
_SESSION = "sessionWindowStateStoreSaveExec"


@dataclass(frozen=True, slots=True)
class Identity:
    """Identity of an operator. `kind`: Spark's name of its kind. `uid`: the job's name of it ("": none)."""

    kind: str
    uid: str = ""


def uid(frame: DataFrame, name: str) -> DataFrame:
    """Name the last stateful operator of `frame`, and return the frame.

    Steps without state (select, filter) may follow the operator. Raises ConfigurationError for an invalid name, and for
    a frame that has no stateful operator or whose operator already has a name.
    """
    if not isinstance(name, str) or _NAME.fullmatch(name) is None:
        raise ConfigurationError(
            f"{name!r} is not a valid uid for a stateful operator.",
            code="uid_invalid",
            remedy="Give 1 to 100 letters, digits, '.', '_' or '-'.",
            uid=str(name),
        )
    node: Any = frame._jdf.queryExecution().analyzed()
    while node.nodeName() == "SubqueryAlias" or kind_of(node) is None:
        children = node.children()
        if children.size() != 1:
            raise ConfigurationError(
                f"the DataFrame for the uid {name!r} does not end with a stateful operator.",
                code="uid_invalid",
                remedy="Call uid(...) on the result of groupBy(...).agg, dropDuplicates, join (of two streams),"
                " applyInPandasWithState or transformWithState.",
                uid=name,
            )
        node = children.apply(0)
    if before := tag_of(frame, node, _TAG):
        raise ConfigurationError(
            f"the operator for the uid {name!r} already has the uid {before!r}.",
            code="uid_invalid",
            remedy="Call uid(...) once, directly on the operator's DataFrame.",
            uid=name,
            before=before,
        )
    node.setTagValue(_tag(frame, _TAG), name)
    return frame


def plan_of(frame: DataFrame) -> tuple[Identity, ...]:
    """The stateful operators of a job's plan, in Spark's order; ConfigurationError for a uid that is used twice."""
    found = tuple(_operators(frame, frame._jdf.queryExecution().analyzed()))
    twice = [name for name, count in Counter(each.uid for each in found if each.uid).items() if count > 1]
    if twice:
        raise ConfigurationError(
            f"two stateful operators of the job have the uid {twice[0]!r}.",
            code="uid_invalid",
            remedy="Give each its own uid: airflow-ft finds state by it. A DataFrame that is used twice has its"
            " operators twice.",
            uid=twice[0],
        )
    return found


def _operators(frame: DataFrame, node: Any) -> Iterator[Identity]:
    if not node.isStreaming():
        return
    kind = kind_of(node)
    if kind is not None:
        yield Identity(kind, tag_of(frame, node, _TAG))
    for child in _each(node.children()):
        yield from _operators(frame, child)


def kind_of(node: Any) -> str | None:
    """Spark's name of a node's stateful operator; None: it has no state."""
    if not node.isStreaming():
        return None
    name = node.getClass().getSimpleName()
    if name == _IN_PYTHON:
        rows = "ROW" in node.userFacingDataType().toString().upper()
        return f"transformWithStateIn{'PySpark' if rows else 'Pandas'}Exec"
    if name == "Join" and not (node.left().isStreaming() and node.right().isStreaming()):
        return None
    if name == "Aggregate" and any(_is_session(key) for key in _each(node.groupingExpressions())):
        return _SESSION
    return _KINDS.get(name)


def _is_session(key: Any) -> bool:
    """Return whether a key of an aggregation is a session window, by the mark that Spark's planner looks for."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]

    try:
        return bool(key.metadata().contains("spark.sessionWindow"))
    except Py4JError:  # an expression without a name has no metadata
        return False


def _each(found: Any) -> Iterator[Any]:
    return (found.apply(index) for index in range(found.size()))


def tag_of(frame: DataFrame, node: Any, name: str) -> str:
    """Return the value of a tag of a node; "": it has none."""
    found = node.getTagValue(_tag(frame, name))
    return str(found.get()) if found.isDefined() else ""


def tag(frame: DataFrame, name: str, value: str) -> DataFrame:
    """Tag the last node of the frame's plan, and return the frame."""
    frame._jdf.queryExecution().analyzed().setTagValue(_tag(frame, name), value)
    return frame


def _tag(frame: DataFrame, name: str) -> Any:
    jvm: Any = frame.sparkSession._jvm
    return jvm.org.apache.spark.sql.catalyst.trees.TreeNodeTag(name)
