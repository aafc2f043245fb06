"""The state of a Python StatefulProcessor: its class, and the fields of its state variables in their order.

Spark's plan has it as a pickled function alone. A copy is taken out of that, and its `init` is called with a handle
that notes which variables it asks for. Spark itself does so, too, before a query begins.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from airflow_ft.spark.driver.plan_texts import type_text
from airflow_ft.spark.state.meaning import FIELDS
from airflow_ft.spark.state.settings import ENCODING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_MOST_COMMAND = 1_000_000
"""Bytes. Spark sends a larger function by another way."""

log = logging.getLogger("airflow_ft.spark")


def aspects_of_processor(frame: DataFrame, node: Any) -> dict[str, list[str]]:
    """Return the texts of a node that runs a processor, by aspect; as many as are known."""
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
