"""Takes a job out of its file: the function or class, and what of the file it names, by source; or says why not.

What is taken: imports, functions and classes without decorators, and constants that are made of literals. All of them
at the top level of the file, or in a `with` there. Whatever else a job names would be another thing, or nothing, in
Spark's driver, so it is refused when the DAG is parsed.
"""

from __future__ import annotations

import ast
import builtins
from typing import Any

from airflow_ft.jobs.inline.file import Binding, SourceFile, constant_names
from airflow_ft.jobs.inline.names import Definition, annotated, bound, is_named, line_of, needed
from airflow_ft.protocol.errors import ConfigurationError
from airflow_ft.protocol.inline_job import InlineJob, Part

_OF_A_MODULE = frozenset(("__name__", "__file__", "__doc__"))
_PLAIN = (type(None), bool, int, float, complex, str, bytes, tuple, list, dict, set, frozenset)
ELSEWHERE = 'import or create it inside the job, pass it by job_args, or name a module: job="jobs.orders"'


class Taking:
    """Takes one job out of a file. `module`: what the file has bound by now. `ours`: the decorator of jobs."""

    def __init__(self, name: str, file: SourceFile, module: dict[str, Any], ours: object) -> None:
        self._name, self._file, self._module, self._ours = name, file, module, ours
        self._parts: dict[Part, None] = {}
        self._known: set[str] = set()
        self._values: dict[str, Any] = {}  # what the driver gets for constants

    def take(self, definition: object, node: Definition, around: set[str]) -> InlineJob:
        """Return the job; `node` is its definition in the file, `around` the local variables of the enclosing
        functions.

        Raises:
            ConfigurationError: the job uses something that cannot be taken along.
        """
        file = self._file
        names = needed(node, postponed=file.postponed) - {node.name}
        if closed := sorted(names & around):
            raise self.refused(
                f"uses {', '.join(closed)} of the function around it (line {line_of(closed[0], node)}).",
                f"Write the job at the top level of the file. For {closed[0]}, {ELSEWHERE}.",
                names=closed,
                line=line_of(closed[0], node),
            )
        self._known.add(node.name)
        if isinstance(node, ast.ClassDef) and len(file.bindings.get(node.name, ())) == 1:
            self._require_own(node)
        self._take_names(node, names)
        parts = sorted(self._parts, key=lambda part: part.line)
        own = file.definition(node)
        divides = isinstance(node, ast.ClassDef) and (hasattr(definition, "split") or "split" in own.text)
        return InlineJob(self._name, file.path, (*parts, own), file.postponed, divides)

    def refused(self, what: str, remedy: str, code: str = "job_not_portable", **fields: Any) -> ConfigurationError:
        """Return the error that says what is wrong with the job."""
        return ConfigurationError(
            f"the job {self._name} ({self._file.path}) {what}",
            code=code,
            remedy=remedy,
            job=self._name,
            path=self._file.path,
            **fields,
        )

    def _require_own(self, node: ast.ClassDef) -> None:
        """Refuse a job class that its file changes later: the driver would get it as it was written."""
        if (line := self._file.changed.get(node.name)) is not None:
            raise self.refused(
                f"is changed in line {line}, and the driver would not see that.",
                f"Write that into the class {node.name}.",
                name=node.name,
                line=line,
            )

    def _take_names(self, node: ast.stmt, names: set[str]) -> None:
        for name in sorted(names):
            self._take(name, node)
        for name in sorted(annotated(node) - names):  # they may never be evaluated
            found = self._file.bindings.get(name, [])
            if found and all(_is_absolute(each) for each in found):
                self._take(name, node)

    def _take(self, name: str, user: ast.stmt) -> None:
        if name in self._known:
            return
        found = self._file.bindings.get(name, [])
        if not found:
            self._require_builtin(name, user)
        elif all(each.alias for each in found):
            for each in found:
                self._take_import(name, each, user)
            if type(self._module.get(name)) in _PLAIN:
                self._require_unchanged([name], found[-1].node, user)
        elif len(found) > 1:
            raise self._unfit(name, user, "which the file defines more than once", found[-1].node)
        else:
            self._known.add(name)  # first, since functions may name one another
            self._take_statement(name, found[0], user)
        self._known.add(name)

    def _take_import(self, name: str, binding: Binding, user: ast.stmt) -> None:
        node, alias = binding.node, binding.alias
        assert alias is not None
        if not _is_absolute(binding):
            raise self._unfit(name, user, "which comes from a relative import", node)
        if isinstance(node, ast.ImportFrom) and node.module == "__future__":
            return
        one = ast.ImportFrom(node.module, [alias], 0) if isinstance(node, ast.ImportFrom) else ast.Import(names=[alias])
        self._parts[Part(node.lineno, ast.unparse(one))] = None

    def _take_statement(self, name: str, binding: Binding, user: ast.stmt) -> None:
        node = binding.node
        if not binding.is_certain or isinstance(node, ast.AsyncFunctionDef):
            raise self._unfit(name, user, f"which is {_kind(node)}", node)
        self._require_unchanged([name, *bound([node])], node, user)
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            others = [each for each in node.decorator_list if not is_named(each, self._module, self._ours)]
            if others:
                raise self._unfit(name, user, f"which has the decorator {ast.unparse(others[0])}", node)
            self._parts[self._file.definition(node)] = None
            self._take_names(node, needed(node, postponed=self._file.postponed) - {name})
            return
        assert isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None
        for each in constant_names(node) or ():
            self._take(each, node)
        self._require_same(name, node.value, user, node)
        self._parts[self._file.constant(node)] = None

    def _require_unchanged(self, names: list[str], node: ast.stmt, user: ast.stmt) -> None:
        """Refuse the first name if the file changes its object in place. The others name the same object."""
        for each in names:
            if (line := self._file.changed.get(each)) is not None:
                raise self._unfit(names[0], user, f"which line {line} changes", node)

    def _require_same(self, name: str, value: ast.expr, user: ast.stmt, node: ast.stmt) -> None:
        """Refuse a constant whose value in the file is not the one that the driver computes from its source."""
        known = {**self._module, **self._values}
        used = [known.get(each, self) for each in constant_names(node) or ()]
        if not all(type(each) in _PLAIN for each in used):  # operators of other types may have effects
            return
        code = compile(ast.Expression(value), self._file.path, "eval")
        written = self._values[name] = eval(code, known)  # noqa: S307 # literals and operators of the author's own
        if not _is_same(written, self._module.get(name, written)):
            raise self._unfit(name, user, "whose value has changed since its definition", node)

    def _require_builtin(self, name: str, user: ast.stmt) -> None:
        if name in _OF_A_MODULE:
            return
        if hasattr(builtins, name):
            builtin = getattr(builtins, name)
            if self._module.get(name, builtin) is builtin:  # the file does not shadow it
                return
        if name in self._file.for_types:
            why = "which is imported only for type checkers"
        elif self._file.stars:
            why = f"which may come from `from {self._file.stars[0]} import *`"
        else:
            why = "which the file does not define at the top level"
        raise self._unfit(name, user, why)

    def _unfit(self, name: str, user: ast.stmt, why: str, node: ast.stmt | None = None) -> ConfigurationError:
        where = f"; line {node.lineno}" if node is not None else ""
        line = line_of(name, user)
        remedy = f"For {name}: {ELSEWHERE}."
        defined = node.lineno if node is not None else 0
        what = f"uses {name} (line {line}), {why}{where}."
        return self.refused(what, remedy, name=name, line=line, defined=defined)


def _is_same(one: object, other: object) -> bool:
    """Return whether two values have the same types and values throughout, in the same order."""
    if one is other or (one != one and other != other):  # NaN
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, dict) and isinstance(other, dict):
        one, other = list(one.items()), list(other.items())
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(_is_same, one, other))
    return type(one) in _PLAIN and one == other


def _is_absolute(binding: Binding) -> bool:
    return binding.alias is not None and not getattr(binding.node, "level", 0)


def _kind(node: ast.stmt) -> str:
    if isinstance(node, ast.AsyncFunctionDef):
        return "an async function"
    if isinstance(node, ast.Assign | ast.AnnAssign):
        lambdas = isinstance(node.value, ast.Lambda)
        return "a lambda" if lambdas else "not a constant made of literals"
    return f"defined by a statement that cannot be copied ({type(node).__name__.lower()})"
