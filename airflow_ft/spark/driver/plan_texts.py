"""Expressions of Spark's plans as texts that stay the same from run to run: without ids, nullability and settings."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from decimal import Decimal
from itertools import product
from typing import Any

from airflow_ft.spark.driver.plan_columns import Node
from airflow_ft.spark.state.meaning import constant, readable, without_varying

Texts = tuple[str, ...]
"""Alternatives for one column, in order: one for each branch of the unions that it comes through."""

TRANSPARENT = {"Alias", "KnownNullable", "KnownNotNull", "TempResolvedColumn", "PreciseTimestampConversion"}
"""Expressions that have the meaning of their child."""
SEEDED = {"Rand": 0, "Randn": 0, "RandStr": 1, "Uniform": 2}
"""Functions whose last argument is a seed, which is another one in each run: how many come before."""
_TIMES = {"date", "timestamp", "timestamp_ntz"}
_TIME = re.compile(r"(?<![0-9])[0-9]{4}-[0-9]{2}-[0-9]{2}(?![0-9])")
_MOST_DIGITS = 50
_MOST_ALTERNATIVES = 32
_MOST_CHARACTERS = 1_000
_SIGNS = {
    "Add": "+",
    "And": "and",
    "BitwiseAnd": "&",
    "BitwiseOr": "|",
    "Divide": "/",
    "EqualNullSafe": "<=>",
    "EqualTo": "=",
    "GreaterThan": ">",
    "GreaterThanOrEqual": ">=",
    "LessThan": "<",
    "LessThanOrEqual": "<=",
    "Multiply": "*",
    "Or": "or",
    "Remainder": "%",
    "Subtract": "-",
}
_NOISE = {"class", "num-children", "name", "exprId", "qualifier", "resultId", "jvmId", "timeZoneId", "zoneId"}
_NOISE |= {"evalMode", "failOnError", "ansiEnabled", "nonInheritableMetadataKeys", "metadata", "nullable", "mode"}
_NOISE |= {"udfDeterministic", "nullOnOverflow", "isInternal", "variantAllowDuplicateKeys", "aggregateFunction"}


def all_below(node: Node) -> Iterator[Node]:
    """A node and all below it, parents first."""
    waiting = [node]
    while waiting:
        node = waiting.pop()
        yield node
        waiting += reversed(node.children)


def combined(parts: Sequence[Texts]) -> Iterator[tuple[str, ...]]:
    """Yield each combination of the alternatives of several columns."""
    count = 1
    for part in parts:
        count *= len(part)
    if count > _MOST_ALTERNATIVES:
        parts = [(" or ".join(part),) for part in parts]
    return product(*parts)


def alternatives(found: Iterator[str]) -> Texts:
    """Return texts in order and once. Long ones get a digest, and many become one."""
    each = sorted({text if len(text) <= _MOST_CHARACTERS else _shortened(text) for text in found})
    return tuple(each) if len(each) <= _MOST_ALTERNATIVES else (_shortened(" or ".join(each)),)


def _shortened(text: str) -> str:
    same = without_varying(text)
    digest = hashlib.sha256(same.encode()).hexdigest()[:16]
    return f"{readable(same)[:200]}... (SHA-256 {digest})"


def literal(data: Mapping[str, Any], given: Collection[str]) -> str:
    """Return a constant. `given`: what the run has given to the job, as `plain` writes it."""
    kind, value = data.get("dataType"), data.get("value")
    if kind == "binary":  # Java shows its address
        return "bytes"
    text = str(value)
    varies = kind in _TIMES or plain(text) in given or (kind == "string" and _TIME.search(text) is not None)
    return constant(repr(value) if kind == "string" else text, varies=varies)


def plain(text: str) -> str:
    """Return one spelling of a number; other text as it is."""
    try:
        return f"{Decimal(text).normalize():f}" if len(text) <= _MOST_DIGITS else text
    except ArithmeticError:
        return text


def zone(expression: Node) -> str:
    """Return the time zone in which an expression is computed; "": none has a part in it."""
    data = expression.data
    of = {"Cast": all_below(expression), "JsonToStructs": [expression], "CsvToStructs": [expression]}
    if expression.kind in of and not any(
        "timestamp" in _quoted(each.data.get(key)) for each in of[expression.kind] for key in ("dataType", "schema")
    ):
        return ""
    return str(data.get("timeZoneId") or "")


def _quoted(kind: Any) -> set[str]:
    return set(json.dumps(kind).split('"'))


def written(kind: str, data: Mapping[str, Any], parts: Sequence[str], zone: str = "") -> str:
    """Return an expression of a class with these settings, over the texts of its children."""
    if kind in _SIGNS and len(parts) == 2:
        return f"({parts[0]} {_SIGNS[kind]} {parts[1]})"
    if kind == "Cast":
        return f"cast({parts[0]} as {type_text(data.get('dataType'))}{f' in {zone}' if zone else ''})"
    if kind == "AggregateExpression":
        distinct = "distinct " if data.get("isDistinct") else ""
        return f"{distinct}{parts[0]}" + "".join(f" where {each}" for each in parts[1:])
    name = str(data.get("name") or data.get("udfName") or kind) if kind.endswith(("UDF", "UDAF")) else kind.lower()
    settings = [
        f"{key}={value}"
        for key, value in data.items()
        if key not in (*_NOISE, "dataType") and (value is True or isinstance(value, str | float))
    ]
    if zone:
        settings.append(f"zone={zone}")
    return f"{name}({', '.join([*parts, *settings])})"


def is_window(expression: Node) -> bool:
    """Return whether it is the struct into which Spark has made a time or session window."""
    while expression.kind in ("Alias", "KnownNullable", "KnownNotNull"):
        expression = expression.children[0]
    if expression.kind != "CreateNamedStruct":
        return False
    names = [each.data.get("value") for each in expression.children[::2]]
    return names == ["start", "end"] and any(e.kind == "PreciseTimestampConversion" for e in all_below(expression))


def duration(literal: Mapping[str, Any]) -> str:
    """Return a literal of a window's arithmetic, which counts microseconds."""
    value = str(literal.get("value"))
    return f"{int(value) / 1e6:g} s" if literal.get("dataType") in ("long", "integer") else value


def type_text(data: Any) -> str:
    """Return a type of Spark's JSON."""
    return data if isinstance(data, str) else json.dumps(data, sort_keys=True)
