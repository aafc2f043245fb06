"""Facts about the nodes of Spark's analysed plan that only the JVM knows."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from airflow_ft.jobs.uids import PARSED, READ, kind_of, tag_of
from airflow_ft.spark.driver.plan_texts import type_text
from airflow_ft.spark.state.meaning import FIELDS
from airflow_ft.spark.state.settings import ENCODING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

MOST_NODES = 5_000
"""Larger plans are not read: their meaning is unknown."""


_NEVER_MORE = frozenset(
    {
        "Deduplicate",
        "DeduplicateWithinWatermark",
        "EventTimeWatermark",
        "Filter",
        "Project",
        "Repartition",
        "RepartitionByExpression",
        "StreamingRelationV2",
        "SubqueryAlias",
    }
)
"""Nodes of an analysed plan whose result has at most as many rows as they read. Generators are nodes of their own."""
_MOST_COMMAND = 1_000_000
"""Bytes. Spark sends a larger function by another way."""

log = logging.getLogger("airflow_ft.spark")


def never_adds_rows(frame: DataFrame) -> bool:
    """Return whether a query gives at most as many rows as it reads, as its plan shows."""
    try:
        return all(kind(node) in _NEVER_MORE for node in nodes_of(frame._jdf.queryExecution().analyzed()))
    except ValueError:
        return False


@dataclass(slots=True)
class Facts:
    """Facts about a node.

    kind: Spark's name of its stateful operator, None if it has none. source: the declared source that a leaf reads.
    parsed: the column that `parse_json` has read here. is_read: a file source ends here. more: further aspects of its
    meaning.
    """

    kind: str | None = None
    source: str | None = None
    parsed: str | None = None
    is_read: bool = False
    delay: str = ""
    more: dict[str, list[str]] = field(default_factory=dict)


def kind(of: Any) -> str:
    """Return the name of a JVM object's class, without its package."""
    return str(of.getClass().getSimpleName())


def items(sequence: Any) -> list[Any]:
    """Return the items of a sequence of Scala."""
    return [sequence.apply(index) for index in range(sequence.size())]


def nodes_of(node: Any) -> Iterator[Any]:
    """All nodes of a plan of the JVM, parents first, as `toJSON` has them."""
    waiting, found = [node], 0
    while waiting:
        node = waiting.pop()
        found += 1
        if found > MOST_NODES:
            raise ValueError(f"the plan has more than {MOST_NODES:,} nodes")
        yield node
        waiting += reversed(items(node.children()))


def facts_of(frame: DataFrame, node: Any, source_of: Callable[[Any], str | None]) -> Facts:
    """Return the facts about a node; `source_of`: see `plan_meaning.memory_of`."""
    parsed, is_read = tag_of(frame, node, PARSED) or None, bool(tag_of(frame, node, READ))
    found = Facts(kind=kind_of(node), parsed=parsed, is_read=is_read)
    name = kind(node)
    if not node.children().size():
        found.source = source_of(node)
    elif name == "EventTimeWatermark":
        found.delay = str(node.delay().toString())
    elif found.kind is not None and name.startswith("TransformWithState"):
        found.more = {"time mode": [str(node.timeMode())], "output mode": [str(node.outputMode())]}
        if name != "TransformWithState":  # that of Scala
            found.more |= aspects_of_processor(frame, node)
    elif found.kind is not None and name.startswith("FlatMapGroups"):
        found.more = {"output mode": [str(node.outputMode())], "time-out": [str(node.timeout())]}
    return found


def aspects_of_processor(frame: DataFrame, node: Any) -> dict[str, list[str]]:
    """Return the class of a node's Python StatefulProcessor, and the fields of its state variables in their order, by
    aspect; as many as are known.

    Spark's plan has it as a pickled function. A copy is taken out of that, and its `init` is called with a handle that
    notes which variables it asks for. Spark itself does so, too, before a query begins.
    """
    from pyspark import cloudpickle

    found: dict[str, list[str]] = {}
    try:
        command = node.functionExpr().func().command()
        if command.size() > _MOST_COMMAND:
            return found
        function, *_ = cloudpickle.loads(bytes(int(each) & 0xFF for each in command.mkString(",").split(",")))
        processor = function.__self__._stateful_processor
        found["processor"] = [type(processor).__qualname__]
        if frame.sparkSession.conf.get(ENCODING, "unsaferow") != "avro":  # which goes by names
            handle = _Handle()
            processor.init(handle)
            found |= handle.fields
    except Exception as error:  # the code of users
        log.info("the state variables of the StatefulProcessor are unknown: %s: %s", type(error).__name__, error)
    return found


class _Handle:
    """Notes what `init` asks for. Names are Spark's. Everything else does nothing."""

    def __init__(self) -> None:
        self.fields: dict[str, list[str]] = {}

    def getValueState(self, stateName: str, schema: Any, ttlDurationMs: int | None = None) -> Any:
        return self._note(stateName, schema)

    def getListState(self, stateName: str, schema: Any, ttlDurationMs: int | None = None) -> Any:
        return self._note(stateName, schema)

    def getMapState(
        self, stateName: str, userKeySchema: Any, valueSchema: Any, ttlDurationMs: int | None = None
    ) -> Any:
        self._note(f"{stateName} (key)", userKeySchema)
        return self._note(stateName, valueSchema)

    def __getattr__(self, name: str) -> Any:
        return lambda *given, **more: None

    def _note(self, name: str, schema: Any) -> Any:
        from pyspark.sql import types as T

        struct = T.StructType.fromDDL(schema) if isinstance(schema, str) else schema
        self.fields[f"{FIELDS}{name}"] = list(_fields(struct.jsonValue()))
        return _Handle()


def _fields(struct: Any, within: str = "") -> Iterator[str]:
    for each in struct["fields"]:
        if isinstance(each["type"], dict) and each["type"].get("type") == "struct":
            yield from _fields(each["type"], f"{within}{each['name']}.")
        else:
            yield f"{within}{each['name']} {type_text(each['type'])}"
