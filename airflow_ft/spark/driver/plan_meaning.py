"""The meaning of a job's stateful operators, read from Spark's analysed plan, before anything is computed.

Columns are followed through projections, joins, unions and windows to the columns of the declared sources. So another
column under the same name is seen, and another alias for the same column is not. Filters are not part of it, nor is the
code of Python functions: those go by their names. Ids of expressions and nullability are left out. Constants that a run
may have given are marked: dates and times, and what equals an argument of the job. What
`airflow_ft.jobs.parsing.parse_json` returns is one function of its input, however it computes it.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_ft.spark.driver.plan_columns import (
    DECIDING,
    OUTPUTS,
    PASSING,
    Node,
    column_id,
    expressions,
    join_type,
    simple_name,
    tree,
)
from airflow_ft.spark.driver.plan_facts import Facts, facts_of, nodes_of
from airflow_ft.spark.driver.plan_texts import (
    SEEDED,
    TRANSPARENT,
    Texts,
    all_below,
    alternatives,
    combined,
    duration,
    is_window,
    literal,
    plain,
    type_text,
    written,
    zone,
)
from airflow_ft.spark.state.meaning import ROWS, WATERMARK, Meaning, Memory

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_CONSTANT = ["a constant"]
_OF_A_RUN = {"string", "date", "timestamp", "timestamp_ntz"}
_KEYS = {
    "Aggregate": "groupingExpressions",
    "Deduplicate": "keys",
    "DeduplicateWithinWatermark": "keys",
    "FlatMapGroupsInPandasWithState": "groupingAttributes",
    "FlatMapGroupsWithState": "groupingAttributes",
    "TransformWithState": "groupingAttributes",
}
log = logging.getLogger("airflow_ft.spark")


@dataclass(slots=True)
class _Column:
    id: Any
    name: str
    texts: Texts


def memory_of(
    frame: DataFrame, source_of: Callable[[Any], str | None], arguments: Mapping[str, Any] | None = None
) -> Memory | None:
    """Return the meaning of the operators of a job's plan, in Spark's order; None when the plan cannot be read.

    `source_of` names the declared source that a leaf of a plan (of the JVM) reads. `arguments`: of the job, in this
    run.
    """
    try:
        plan = frame._jdf.queryExecution().analyzed()
        facts = [facts_of(frame, node, source_of) for node in nodes_of(plan)]
        if not any(each.kind for each in facts):
            return Memory(frame.sparkSession.version, ())
        operators = tuple(meanings(json.loads(plan.toJSON()), facts, frozenset(_leaves(arguments))))
    except Exception as error:  # a plan of a form that is not known here
        log.warning(
            "the meaning of the job's state is unknown, so it is not compared: %s: %s", type(error).__name__, error
        )
        return None
    return Memory(frame.sparkSession.version, operators)


def meanings(
    plan: Sequence[Mapping[str, Any]], facts: Sequence[Facts], given: Collection[str] = ()
) -> Iterator[Meaning]:
    """Yield the meaning of each stateful operator of a plan as JSON (`TreeNode.toJSON`), in the plan's order.

    `given`: texts and numbers that the run has given to the job.
    """
    reading = _Reading(tree(plan), facts, given)
    for index, node in enumerate(reading.nodes):
        if facts[index].kind is not None:
            yield reading.meaning(node)


def _leaves(value: Any) -> Iterator[str]:
    """All texts and numbers in plain data."""
    if isinstance(value, Mapping | list | tuple):
        for each in value.values() if isinstance(value, Mapping) else value:
            yield from _leaves(each)
    elif value not in (None, "") and not isinstance(value, bool):
        yield plain(str(value))


class _Reading:
    """One plan: the columns of each node, and which of them the nodes above use."""

    def __init__(self, root: Node, facts: Sequence[Facts], given: Collection[str]) -> None:
        self._given = given
        self.nodes = list(all_below(root))
        self._facts = dict(zip(map(id, self.nodes), facts, strict=True))
        self._out: dict[int, list[_Column]] = {}
        self._used: dict[int, set[Any]] = {}
        self._constants: set[Any] = set()  # columns of one value, which a run may have been given
        self._structs: dict[Any, dict[str, Texts]] = {}  # columns that are structs: their fields
        self._defined: dict[Any, list[_Column]] = {}  # common table expressions, by their ids
        for node in reversed(self.nodes):  # children first; a table expression before what refers to it
            if node.kind == "CTERelationDef":
                self._defined[node.data["id"]] = self._output(node)
        self._output(root)
        self._use(root, {each.id for each in self._output(root)})

    def meaning(self, node: Node) -> Meaning:
        """Return what a stateful operator keeps."""
        facts = self._facts[id(node)]
        known = self._known(node)
        found: dict[str, list[list[str]]] = {}
        if node.kind == "Distinct":
            found["keys"] = self._keys(self._output(node.children[0]))
        elif node.kind in _KEYS:
            keys = expressions(node.data.get(_KEYS[node.kind]))
            found["keys"] = [_CONSTANT if self._is_constant(e) else list(self._texts(e, known)) for e in keys]
        elif "groupingAttributesLen" in node.data:
            found["keys"] = self._keys(self._output(node.children[0])[: node.data["groupingAttributesLen"]])
        if node.kind == "Aggregate":
            found["functions"] = list(self._functions(node, known))
        elif node.kind == "Join":
            found["join"] = [[join_type(node)]]
            found["condition"] = [list(self._texts(each, known)) for each in expressions(node.data.get("condition"))]
            for side, child in zip(("the left", "the right"), node.children, strict=True):
                used = self._used[id(child)]
                found[ROWS + side] = [list(each.texts) for each in self._output(child) if each.id in used]
        elif node.kind == "GlobalLimit":
            found["limit"] = [list(self._texts(each, known)) for each in expressions(node.data.get("limitExpr"))]
        elif node.kind == "FlatMapGroupsInPandasWithState":
            found["function"] = [[_function(node)]]
            found["state"] = [
                [f"{each['name']} {type_text(each['type'])}"] for each in _fields(node.data.get("stateType"))
            ]
        found |= {aspect: [[text] for text in texts] for aspect, texts in facts.more.items()}
        if marks := sorted(self._watermarks(node)):
            found[WATERMARK] = [[each] for each in marks]
        return found

    def _keys(self, columns: Sequence[_Column]) -> list[list[str]]:
        return [_CONSTANT if each.id in self._constants else list(each.texts) for each in columns]

    def _functions(self, node: Node, known: Mapping[Any, Texts]) -> Iterator[list[str]]:
        """Aggregate functions in the order in which Spark lays out their buffers."""
        seen = set()
        for expression in expressions(node.data.get("aggregateExpressions")):
            for each in all_below(expression):
                if each.kind == "AggregateExpression" and (found := self._texts(each, known)) not in seen:
                    seen.add(found)
                    yield list(found)

    def _watermarks(self, node: Node) -> set[str]:
        found = set()
        for each in all_below(node):
            if each.kind == "EventTimeWatermark":
                for expression in expressions(each.data.get("eventTime")):
                    columns = " or ".join(self._texts(expression, self._known(each)))
                    found.add(f"{columns} with a delay of {self._facts[id(each)].delay}")
        return found

    # --- columns ---------------------------------------------------------------------------------------------

    def _known(self, node: Node) -> dict[Any, Texts]:
        return {each.id: each.texts for child in node.children for each in self._output(child)}

    def _output(self, node: Node) -> list[_Column]:
        if (found := self._out.get(id(node))) is None:
            found = self._out[id(node)] = self._parsed(node, self._computed(node))
        return found

    def _computed(self, node: Node) -> list[_Column]:
        if node.kind == "CTERelationRef":
            of, columns = self._defined.get(node.data["cteId"], []), _listed(node)
            return [_Column(c.id, c.name, o.texts) for c, o in zip(columns, of, strict=False)] or columns
        if not node.children:
            source = self._facts[id(node)].source
            return [_Column(c.id, c.name, (f"{source}.{c.name}" if source else c.name,)) for c in _listed(node)]
        below = [self._output(child) for child in node.children]
        known = self._known(node)
        match node.kind:
            case "Project":
                return self._named(node, "projectList", known)
            case "Aggregate":
                return self._named(node, "aggregateExpressions", known)
            case "Window":
                return [*below[0], *self._named(node, "windowExpressions", known)]
            case "Join":
                semi = join_type(node).startswith(("LeftSemi", "LeftAnti"))
                return list(below[0]) if semi else [each for columns in below for each in columns]
            case "Union":
                united = list(zip(*below, strict=False))
                self._constants -= {c[0].id for c in united if not all(e.id in self._constants for e in c)}
                return [_Column(c[0].id, c[0].name, alternatives(t for e in c for t in e.texts)) for c in united]
            case "Expand":
                return self._expanded(node, known)
            case "Generate":
                made = [t for each in expressions(node.data.get("generator")) for t in self._texts(each, known)]
                listed = _listed(node, "generatorOutput")
                more = [_Column(c.id, c.name, alternatives(f"{t}.{c.name}" for t in made)) for c in listed]
                return [*below[0], *more]
            case "WithCTE":
                return below[-1]
        output = next((name for name in OUTPUTS if name in node.data), None)
        if node.kind in PASSING or node.kind in DECIDING or output is None:
            return below[0]
        function = _function(node) or node.kind
        return [_Column(c.id, c.name, known.get(c.id) or (f"{function}().{c.name}",)) for c in _listed(node, output)]

    def _named(self, node: Node, name: str, known: Mapping[Any, Texts]) -> list[_Column]:
        made = [each for each in expressions(node.data.get(name)) if "exprId" in each.data]
        for each in made:
            if self._is_constant(each):
                self._constants.add(column_id(each.data))
            if each.kind == "Alias" and (found := self._fields_of(each, known)):
                self._structs[column_id(each.data)] = found
        return [_Column(column_id(each.data), each.data["name"], self._named_texts(each, known)) for each in made]

    def _named_texts(self, expression: Node, known: Mapping[Any, Texts]) -> Texts:
        """Text and times that are the same in all rows are likely to be of the run, and numbers of the job."""
        types = {str(each.data.get("dataType")) for each in all_below(expression) if each.kind == "Literal"}
        if types and types <= _OF_A_RUN and self._is_constant(expression):
            return tuple(_CONSTANT)
        return self._texts(expression, known)

    def _is_constant(self, expression: Node) -> bool:
        """Return whether it has one value in a run, such as its date. As a key it has no meaning in the state."""
        for each in all_below(expression):
            if each.kind == "AttributeReference":
                if column_id(each.data) not in self._constants:
                    return False
            elif each.kind not in ("Alias", "Cast", "Literal"):
                return False
        return True

    def _expanded(self, node: Node, known: Mapping[Any, Texts]) -> list[_Column]:
        """Sliding windows: a row is repeated for each window that it is in."""
        rows = [[tree(each) for each in row] for row in node.data.get("projections", ())]
        found = []
        for index, column in enumerate(_listed(node)):
            each = [row[index] for row in rows if index < len(row)]
            if any(map(is_window, each)):
                texts: Texts = (self._window(each, known),)
            else:
                texts = alternatives(text for one in each for text in self._texts(one, known))
            found.append(_Column(column.id, column.name, texts))
        return found

    def _parsed(self, node: Node, found: list[_Column]) -> list[_Column]:
        """Return the columns of `parse_json` or of a file source, if this node is the last of its plan."""
        if self._facts[id(node)].is_read:
            sources = [name for each in all_below(node) if (name := self._facts[id(each)].source)]
            return [_Column(c.id, c.name, (".".join([*sources[:1], c.name]),)) for c in found]
        parsed = self._facts[id(node)].parsed
        if parsed is None:
            return found
        known = {text for each in self._known(node).values() for text in each}
        source: Texts = (parsed,)
        for each in all_below(node):
            below = [c for child in each.children for c in self._output(child)]
            if given := next((c.texts for c in below if c.name.lower() == parsed.lower()), None):
                source = given
                break
        return [
            column
            if set(column.texts) <= known
            else _Column(column.id, column.name, tuple(f"parse_json({text}).{column.name}" for text in source))
            for column in found
        ]

    # --- expressions -----------------------------------------------------------------------------------------

    def _texts(self, expression: Node, known: Mapping[Any, Texts]) -> Texts:
        kind, data, children = expression.kind, expression.data, expression.children
        if kind == "AttributeReference":
            return known.get(column_id(data)) or (data["name"],)
        if kind == "Literal":
            return (literal(data, self._given),)
        if kind in TRANSPARENT and len(children) == 1:
            return self._texts(children[0], known)
        if kind == "GetStructField" and len(children) == 1:
            return self._field(expression, known)
        if kind == "GetArrayStructFields":
            return alternatives(f"{text}[].{data['field']['name']}" for text in self._texts(children[0], known))
        if is_window(expression):
            return (self._window([expression], known),)
        parts = [self._texts(child, known) for child in children[: SEEDED.get(kind, len(children))]]
        return alternatives(written(kind, data, each, zone(expression)) for each in combined(parts))

    def _field(self, expression: Node, known: Mapping[Any, Texts]) -> Texts:
        """By its name: a struct may get further fields."""
        child, name = expression.children[0], expression.data.get("name") or str(expression.data.get("ordinal"))
        found = self._fields_of(child, known).get(name)
        return found or alternatives(f"{text}.{name}" for text in self._texts(child, known))

    def _fields_of(self, expression: Node, known: Mapping[Any, Texts]) -> dict[str, Texts]:
        """Return the fields of a struct that the job itself has built."""
        while expression.kind in TRANSPARENT:
            expression = expression.children[0]
        if expression.kind == "AttributeReference":
            return self._structs.get(column_id(expression.data), {})
        if expression.kind != "CreateNamedStruct" or is_window(expression):
            return {}
        pairs = zip(expression.children[::2], expression.children[1::2], strict=True)
        return {str(key.data.get("value")): self._texts(value, known) for key, value in pairs}

    def _window(self, made: Sequence[Node], known: Mapping[Any, Texts]) -> str:
        """A time or session window: Spark has replaced it by arithmetic, which differs from version to version."""
        columns: dict[str, None] = {}
        literals: dict[str, None] = {}
        session = False
        for each in (node for one in made for node in all_below(one)):
            if each.kind == "AttributeReference":
                columns[" or ".join(self._texts(each, known))] = None
            elif each.kind == "Literal" and each.data.get("value") not in ("start", "end"):
                literals[duration(each.data)] = None  # its length, slide and start; the gap of a session
            session |= each.kind in ("TimestampAddInterval", "TimeAdd")
        name = "session_window" if session else "window"
        return f"{name}({', '.join(columns)}: {', '.join(sorted(literals))})"

    # --- what is used above a node ---------------------------------------------------------------------------

    def _use(self, root: Node, wanted: set[Any]) -> None:
        waiting = [(root, wanted)]
        while waiting:
            node, wanted = waiting.pop()
            if node.kind == "CTERelationDef":
                wanted = {each.id for each in self._output(node)}
            self._used[id(node)] = wanted
            if node.kind == "Union":
                at = [index for index, each in enumerate(self._output(node)) if each.id in wanted]
                for child in node.children:
                    columns = self._output(child)
                    waiting.append((child, {columns[index].id for index in at if index < len(columns)}))
                continue
            if node.kind == "Project":
                made = [e for e in expressions(node.data.get("projectList")) if column_id(e.data) in wanted]
                below = {column_id(each.data) for e in made for each in all_below(e) if "exprId" in each.data}
            else:
                below = wanted | set(_references(node.data))
            waiting += [(child, below) for child in node.children]


def _references(data: Any) -> Iterator[Any]:
    """The ids of all columns that a part of a plan names."""
    if isinstance(data, Mapping):
        if simple_name(str(data.get("class", ""))) == "AttributeReference":
            yield column_id(data)
        for value in data.values():
            yield from _references(value)
    elif isinstance(data, list):
        for value in data:
            yield from _references(value)


def _listed(node: Node, name: str = "output") -> list[_Column]:
    found = [each.data for each in expressions(node.data.get(name))]
    return [_Column(column_id(each), each["name"], (each["name"],)) for each in found]


def _function(node: Node) -> str:
    """The name of the Python function that a node calls; "": there is none."""
    for name in ("functionExpr", "func", "function"):
        for each in expressions(node.data.get(name)):
            if each.kind == "PythonUDF":
                return str(each.data["name"])
    return ""


def _fields(data: Any) -> list[Mapping[str, Any]]:
    return list(data.get("fields", ())) if isinstance(data, Mapping) else []
