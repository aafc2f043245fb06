"""Origin of a DataFrame's columns, from Spark's analysed plan as JSON (`TreeNode.toJSON`).

The plan is a list of nodes in the order of their parents; expressions are lists of the same kind within them. Each
column of a node has an id (`exprId`), by which the expressions above it name it. What a node's output is follows from
its kind; a node that is not known here, and does not say its output itself, makes the lineage unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from airflow_ft.jobs.exact import NAME_OF_FILES
from airflow_ft.protocol.column_lineage import ColumnLineage, How, Input, Inputs

MOST_WORK = 50_000
"""Most inputs that are combined, over all columns of all nodes."""

_NONE: Inputs = frozenset()
PASSING = {
    "CTERelationDef",
    "CollectMetrics",
    "Distinct",
    "EventTimeWatermark",
    "GlobalLimit",
    "LocalLimit",
    "Offset",
    "RebalancePartitions",
    "Repartition",
    "RepartitionByExpression",
    "ResolvedHint",
    "Sample",
    "SubqueryAlias",
    "Tail",
    "UpdateEventTimeWatermarkColumn",
    "View",
}
"""Nodes whose output is that of their child, with no column that decides on rows."""
DECIDING = {
    "Deduplicate": ("keys", How.FILTER),
    "DeduplicateWithinWatermark": ("keys", How.FILTER),
    "Filter": ("condition", How.FILTER),
    "Sort": ("order", How.SORT),
}
"""Nodes whose output is that of their child, and whose expressions decide on rows, or their order."""
OUTPUTS = ("output", "outAttrs", "outputAttrs")
"""What nodes call the columns that they make, if they list them."""

Leaf = Callable[[int, int, str], Inputs]
"""(index of the plan's leaf, index of its column, the column's name) -> the inputs of the column."""


class UnknownPlanError(Exception):
    """The plan has something that is not known here, or too much of what is."""


@dataclass(frozen=True, slots=True)
class _Column:
    id: Any
    name: str
    inputs: Inputs


@dataclass(frozen=True, slots=True)
class _Output:
    """The columns of a node in their order, and what decides on its rows."""

    columns: Sequence[_Column]
    rows: Inputs = _NONE

    @property
    def known(self) -> dict[Any, Inputs]:
        """By id."""
        return {column.id: column.inputs for column in self.columns}


@dataclass(slots=True)
class Node:
    """A node of a plan or of an expression, as JSON."""

    data: Mapping[str, Any]
    children: list[Node] = field(default_factory=list)

    @property
    def kind(self) -> str:
        """The class's name."""
        return simple_name(self.data["class"])


def lineage_of(plan: Sequence[Mapping[str, Any]], leaf: Leaf) -> ColumnLineage:
    """Return the lineage of a plan's columns by name.

    Raises:
        UnknownPlanError: the plan has an unknown node.
    """
    reading = _Reading(leaf)
    found = reading.output(tree(plan))
    return ColumnLineage({column.name: column.inputs for column in found.columns}, found.rows)


class _Reading:
    """One plan."""

    def __init__(self, leaf: Leaf) -> None:
        self._leaf, self._leaves, self._work = leaf, 0, 0
        self._named: dict[Any, _Output] = {}  # common table expressions, by their ids
        self._records: set[Any] = set()  # columns that hold whole records of files (`spark.exact.files`)

    def output(self, node: Node) -> _Output:
        if not node.children and node.kind != "CTERelationRef":
            return self._of_leaf(node)
        below = [self.output(child) for child in node.children]
        rows = self._sum(each.rows for each in below)
        known = {id: inputs for each in below for id, inputs in each.known.items()}
        match node.kind:
            case "Project":
                return _Output(self._named_columns(node, "projectList", known), rows)
            case "Aggregate":
                rows = self._sum((rows, self._uses(node, "groupingExpressions", known, How.GROUP_BY)))
                return _Output(self._named_columns(node, "aggregateExpressions", known), rows)
            case "Window":
                return _Output([*below[0].columns, *self._named_columns(node, "windowExpressions", known)], rows)
            case "Join":
                return self._joined(node, below, known, rows)
            case "Generate":
                made = self._uses(node, "generator", known, How.TRANSFORMATION)
                if any(self._is_record(each) for each in expressions(node.data["generator"])):
                    self._records |= {column.id for column in _listed(node, "generatorOutput", made)}
                return _Output([*below[0].columns, *_listed(node, "generatorOutput", made)], rows)
            case "Union":
                return self._united(below, rows)
            case "WithCTE":
                return _Output(below[-1].columns, below[-1].rows)
            case "CTERelationRef":
                self._leaves += 1
                return self._of_name(node)
        if (deciding := DECIDING.get(node.kind)) is not None:
            rows = self._sum((rows, self._uses(node, deciding[0], known, deciding[1])))
        elif node.kind not in PASSING:
            return self._opaque(node, below, known, rows)
        found = _Output(below[0].columns, rows)
        if node.kind == "CTERelationDef":
            self._named[node.data["id"]] = found
        return found

    def _of_leaf(self, node: Node) -> _Output:
        index = self._leaves
        self._leaves += 1
        columns = _listed(node, "output", _NONE) if "output" in node.data else []
        if not columns and node.kind != "OneRowRelation":
            raise UnknownPlanError(node.kind)
        made = [_Column(each.id, each.name, self._leaf(index, at, each.name)) for at, each in enumerate(columns)]
        return _Output(made)

    def _of_name(self, node: Node) -> _Output:
        of, columns = self._named.get(node.data["cteId"]), _listed(node, "output", _NONE)
        if of is None or len(of.columns) != len(columns):
            raise UnknownPlanError(node.kind)
        inputs = [each.inputs for each in of.columns]
        return _Output([_Column(e.id, e.name, i) for e, i in zip(columns, inputs, strict=True)], of.rows)

    def _joined(self, node: Node, below: Sequence[_Output], known: Mapping[Any, Inputs], rows: Inputs) -> _Output:
        on = self._uses(node, "condition", known, How.JOIN)
        kind = join_type(node)
        if kind.startswith(("LeftSemi", "LeftAnti")):
            columns = list(below[0].columns)
        elif kind.startswith("Existence"):
            raise UnknownPlanError(kind)
        else:
            columns = [column for each in below for column in each.columns]
        return _Output(columns, self._sum((rows, on)))

    def _united(self, below: Sequence[_Output], rows: Inputs) -> _Output:
        columns = zip(*(each.columns for each in below), strict=True)
        return _Output([_Column(s[0].id, s[0].name, self._sum(e.inputs for e in s)) for s in columns], rows)

    def _opaque(self, node: Node, below: Sequence[_Output], known: Mapping[Any, Inputs], rows: Inputs) -> _Output:
        """A Python function over whole frames, mostly: all that it is given is a part of each column that it makes."""
        name = next((name for name in OUTPUTS if name in node.data), None)
        if name is None:
            raise UnknownPlanError(node.kind)
        given = self._sum(column.inputs for each in below for column in each.columns)
        made = self._after(given, How.TRANSFORMATION)
        columns = _listed(node, name, made)
        for _ in columns:
            self._count(made)
        return _Output([_Column(e.id, e.name, known.get(e.id, made)) for e in columns], rows)

    def _named_columns(self, node: Node, field_name: str, known: Mapping[Any, Inputs]) -> list[_Column]:
        found = []
        for each in expressions(node.data.get(field_name)):
            if "exprId" not in each.data:
                raise UnknownPlanError(each.kind)
            if self._is_record(each):
                self._records.add(column_id(each.data))
            found.append(_Column(column_id(each.data), each.data["name"], self._inputs(each, known)))
        return found

    def _uses(self, node: Node, field_name: str, known: Mapping[Any, Inputs], how: How) -> Inputs:
        used = self._sum(self._inputs(each, known) for each in expressions(node.data.get(field_name)))
        return self._after(used, how)

    def _is_record(self, expression: Node) -> bool:
        if expression.kind in ("Alias", "Explode"):
            return self._is_record(expression.children[0])
        if expression.kind == "AttributeReference":
            return column_id(expression.data) in self._records
        return bool(expression.kind == "ScalaUDF" and expression.data["udfName"] == NAME_OF_FILES)

    def _of_record(self, expression: Node, known: Mapping[Any, Inputs]) -> Inputs | None:
        """Return, for a field of a record, the column of that name of its source; None for other expressions."""
        path: list[str] = []
        while expression.kind == "GetStructField":
            path.insert(0, expression.data.get("name") or "")  # `struct.*` has none
            expression = expression.children[0]
        if not path or expression.kind != "AttributeReference" or column_id(expression.data) not in self._records:
            return None
        sources = {each.source for each in known.get(column_id(expression.data), _NONE)}
        return self._count(frozenset(Input(source, path[1]) for source in sources) if len(path) > 1 else _NONE)

    def _inputs(self, expression: Node, known: Mapping[Any, Inputs]) -> Inputs:
        """Return what an expression is made of."""
        if (field := self._of_record(expression, known)) is not None:
            return field
        kind, children = expression.kind, expression.children
        if kind == "AttributeReference":
            # An outer one, of a subquery, is not known here.
            return self._count(known.get(column_id(expression.data), _NONE))
        given = [self._inputs(child, known) for child in children]
        if kind == "Alias":
            return given[0]
        direct, others, how, other = list(range(len(given))), [], How.TRANSFORMATION, How.CONDITIONAL
        if kind == "If":
            direct, others = [1, 2], [0]
        elif kind == "CaseWhen":
            others = list(range(0, len(given) - 1, 2))
            direct = [index for index in direct if index not in others]
        elif kind == "AggregateExpression":
            direct, others, how = [0], list(range(1, len(given))), How.AGGREGATION
        elif kind == "WindowExpression":
            direct, others, other = [0], [1], How.WINDOW
        return self._sum(
            (
                *(self._after(given[index], how) for index in direct),
                *(self._after(given[index], other) for index in others),
            )
        )

    def _after(self, inputs: Inputs, how: How) -> Inputs:
        return self._count(frozenset(each.then(how) for each in inputs))

    def _sum(self, parts: Iterable[Inputs]) -> Inputs:
        return self._count(_NONE.union(*parts))

    def _count(self, inputs: Inputs) -> Inputs:
        self._work += len(inputs)
        if self._work > MOST_WORK:
            raise UnknownPlanError("too many columns")
        return inputs


def expressions(data: Any) -> Iterator[Node]:
    """Yield the expressions of a node's field: one, or a list of them."""
    if data:
        for each in data if isinstance(data[0], list) else [data]:
            yield tree(each)


def _listed(node: Node, name: str, inputs: Inputs) -> list[_Column]:
    """Return the columns that a node itself lists."""
    found = [each.data for each in expressions(node.data[name])]
    return [_Column(column_id(each), each["name"], inputs) for each in found]


def tree(nodes: Sequence[Mapping[str, Any]]) -> Node:
    """Return the tree of a list in which each node comes before its children."""
    root: Node | None = None
    waiting: list[tuple[Node, int]] = []  # and how many children each still lacks
    for data in nodes:
        node = Node(data)
        while waiting and waiting[-1][1] == len(waiting[-1][0].children):
            waiting.pop()
        if waiting:
            waiting[-1][0].children.append(node)
        root = root or node
        waiting.append((node, data["num-children"]))
    if root is None:
        raise UnknownPlanError("an empty plan")
    return root


def column_id(data: Mapping[str, Any]) -> Any:
    """Return the id of a column, which is unique in a session."""
    return data["exprId"]["id"]


def join_type(node: Node) -> str:
    """Return the name of Spark's class for the kind of a join."""
    how = node.data["joinType"]
    return simple_name(how.get("object") or how.get("product-class") or "") if isinstance(how, dict) else str(how)


def simple_name(name: str) -> str:
    """Return the name of a Java class without its package."""
    return name.rstrip("$").rpartition(".")[2].rpartition("$")[2]
