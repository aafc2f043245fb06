"""Which names a piece of Python takes from the module around it, and which ones it binds. By `symtable` and `ast`."""

from __future__ import annotations

import ast
import copy
import sys
from collections.abc import Iterable, Iterator, Mapping
from symtable import SymbolTable, symtable
from types import MappingProxyType
from typing import Any

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef

_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_CHANGING = {*dir(list), *dir(set), *dir(dict)} - {*dir(tuple), *dir(frozenset), *dir(MappingProxyType)}
"""Methods that change a list, a set or a dictionary."""


def needed(node: ast.stmt, *, postponed: bool) -> set[str]:
    """The names that a statement takes from its module when it is executed, or called; decorators do not count.

    postponed: whether its annotations are never evaluated (`from __future__ import annotations`).
    """
    plain = _Plain(postponed=postponed or sys.version_info >= (3, 14)).visit(copy.deepcopy(node))
    return set(_globals(symtable(ast.unparse(plain), "<job>", "exec")))


def annotated(node: ast.stmt) -> set[str]:
    """The names in its annotations, whether or not anybody evaluates them."""
    return {
        name.id
        for each in ast.walk(node)
        for annotation in (getattr(each, "annotation", None), getattr(each, "returns", None))
        if isinstance(annotation, ast.expr)
        for name in ast.walk(annotation)
        if isinstance(name, ast.Name)
    }


def line_of(name: str, node: ast.stmt) -> int:
    """Return where a statement names it first."""
    lines = [each.lineno for each in ast.walk(node) if isinstance(each, ast.Name) and each.id == name]
    return min(lines, default=node.lineno)


def bound(statements: Iterable[ast.AST]) -> Iterator[str]:
    """The names that statements bind in their own scope, wherever in them."""
    for node in statements:
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            yield node.id
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield from (name_of(alias) for alias in node.names)
        elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name:
            yield node.name
        elif isinstance(node, ast.MatchMapping) and node.rest:
            yield node.rest
        if isinstance(node, Definition):
            yield node.name
        if not isinstance(node, (*_SCOPES, *_COMPREHENSIONS)):
            yield from bound(ast.iter_child_nodes(node))


def changed(statements: Iterable[ast.AST]) -> Iterator[tuple[str, int]]:
    """The names whose objects statements change in place, with the line: `a[0] = 1`, `a.b = 1`, `a.append(1)`.

    Bodies of functions do not count.
    """
    for node in statements:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        found: ast.expr | None = None
        if isinstance(node, ast.Subscript | ast.Attribute) and not isinstance(node.ctx, ast.Load):
            found = node.value
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _CHANGING:
            found = node.func.value
        while isinstance(found, ast.Subscript | ast.Attribute):
            found = found.value
        if isinstance(found, ast.Name):
            yield found.id, found.lineno
        yield from changed(ast.iter_child_nodes(node))


def bound_in(function: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    """The local variables of a function: its arguments, and what it binds."""
    given = function.args
    arguments = [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg]
    return {each.arg for each in arguments if each} | set(bound(function.body))


def is_named(expression: ast.expr, names: Mapping[str, Any], thing: object) -> bool:
    """Return whether an expression such as `ft.job` is the name of this very thing."""
    first, *rest = ast.unparse(expression).split(".")
    found = names.get(first)
    for part in rest:
        found = getattr(found, part, None)
    return found is thing


def name_of(alias: ast.alias) -> str:
    """The name that an import binds."""
    return alias.asname or alias.name.partition(".")[0]


def _globals(table: SymbolTable) -> Iterator[str]:
    for symbol in table.get_symbols():
        if table.get_type() == "module":
            if symbol.is_referenced() and not symbol.is_assigned():
                yield symbol.get_name()
        elif symbol.is_global():
            yield symbol.get_name()
    for child in table.get_children():
        yield from _globals(child)


class _Plain(ast.NodeTransformer):
    """Leaves out the decorators of a definition itself, and annotations that are not evaluated."""

    def __init__(self, *, postponed: bool) -> None:
        self._postponed, self._in_function, self._is_outermost = postponed, False, True

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        return self._definition(node, in_function=True)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        return self._definition(node, in_function=True)

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        return self._definition(node, in_function=False)

    def visit_arg(self, node: ast.arg) -> ast.AST:
        if self._postponed:
            node.annotation = None
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        if self._postponed or self._in_function:  # those of local variables never are
            node.annotation = ast.Constant(None)
        return self.generic_visit(node)

    def _definition(self, node: Definition, *, in_function: bool) -> ast.AST:
        if self._is_outermost:
            node.decorator_list = []
        if self._postponed and not isinstance(node, ast.ClassDef):
            node.returns = None
        before = self._in_function
        self._in_function, self._is_outermost = in_function, False
        self.generic_visit(node)
        self._in_function = before
        return node
