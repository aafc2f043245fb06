"""Names that a Python file binds at its top level and that its source alone can recreate elsewhere."""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from airflow_ft.jobs.inline.names import Definition, bound, changed, name_of
from airflow_ft.protocol.inline_job import Part

# What a constant may consist of: nothing that is called, so that it has the same value wherever it is computed.
_CONSTANT = (
    ast.Constant,
    ast.Tuple,
    ast.List,
    ast.Set,
    ast.Dict,
    ast.UnaryOp,
    ast.BinOp,
    ast.JoinedStr,
    ast.FormattedValue,
    ast.Name,
    ast.expr_context,
    ast.operator,
    ast.unaryop,
)


@dataclass(frozen=True, slots=True)
class Binding:
    """A statement that binds a name; `alias` is the one of an import. `is_certain`: it is always executed, once."""

    node: ast.stmt
    alias: ast.alias | None = None
    is_certain: bool = True


@dataclass(frozen=True)
class SourceFile:
    """A file that is being imported. `for_types`: what it imports for type checkers alone. `changed`: names whose
    objects its top level changes in place, with a line that does so.
    """

    path: str
    lines: Sequence[str]
    tree: ast.Module
    bindings: dict[str, list[Binding]] = field(default_factory=dict)
    for_types: set[str] = field(default_factory=set)
    stars: list[str] = field(default_factory=list)
    changed: dict[str, int] = field(default_factory=dict)

    @property
    def postponed(self) -> bool:
        """Return whether annotations are not evaluated."""
        imports = (node for node in self.tree.body if isinstance(node, ast.ImportFrom) and node.module == "__future__")
        return any(alias.name == "annotations" for node in imports for alias in node.names)

    def definition(self, node: Definition) -> Part:
        """Return the definition without its decorators, with its original indentation, so that texts in it do not
        change.
        """
        return Part(node.lineno, "".join(self.lines[node.lineno - 1 : node.end_lineno]).rstrip("\n"))

    def constant(self, node: ast.Assign | ast.AnnAssign) -> Part:
        """Without an annotation."""
        if isinstance(node, ast.AnnAssign):
            assert node.value is not None
            return Part(node.lineno, f"{ast.unparse(node.target)} = {ast.unparse(node.value)}")
        return Part(node.lineno, ast.get_source_segment("".join(self.lines), node) or ast.unparse(node))


def source_file(path: str, module: dict[str, Any]) -> SourceFile | None:
    """The file from which this module is made; None when its source is not to be had."""
    linecache.checkcache(path)
    lines = linecache.getlines(path, module)
    return _read(path, tuple(lines)) if lines else None


@lru_cache(maxsize=2)
def _read(path: str, lines: tuple[str, ...]) -> SourceFile:
    found = SourceFile(path, lines, ast.parse("".join(lines), path))
    for name, binding in _bindings(found.tree.body, found):
        found.bindings.setdefault(name, []).append(binding)
    found.changed.update(changed(found.tree.body))
    return found


def _bindings(statements: Sequence[ast.stmt], file: SourceFile) -> Iterator[tuple[str, Binding]]:
    for node in statements:
        if isinstance(node, ast.Import | ast.ImportFrom):
            for alias in node.names:
                if alias.name == "*":
                    file.stars.append(getattr(node, "module", None) or "")
                else:
                    yield name_of(alias), Binding(node, alias)
        elif isinstance(node, ast.With):  # a DAG: what is in it is executed as what is around it
            yield from ((name, Binding(node, is_certain=False)) for item in node.items for name in bound([item]))
            yield from _bindings(node.body, file)
        elif isinstance(node, ast.If) and ast.unparse(node.test).rpartition(".")[2] == "TYPE_CHECKING":
            file.for_types.update(bound(node.body))
            yield from _bindings(node.orelse, file)
        else:
            is_certain = isinstance(node, Definition) or constant_names(node) is not None
            yield from ((name, Binding(node, is_certain=is_certain)) for name in set(bound([node])))


def constant_names(node: ast.stmt) -> list[str] | None:
    """The names of other constants that a constant is made of; None for a statement that makes no constant."""
    if isinstance(node, ast.Assign):
        simple, value = all(isinstance(target, ast.Name) for target in node.targets), node.value
    elif isinstance(node, ast.AnnAssign) and node.value is not None:
        simple, value = isinstance(node.target, ast.Name), node.value
    else:
        return None
    parts = list(ast.walk(value))
    if not simple or not all(isinstance(part, _CONSTANT) for part in parts):
        return None
    return [part.id for part in parts if isinstance(part, ast.Name)]
