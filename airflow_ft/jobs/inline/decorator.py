"""The decorator `airflow_ft.job`."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterator
from inspect import getattr_static, isasyncgenfunction, isclass, iscoroutinefunction, isfunction, signature
from types import FrameType
from typing import Any, TypeVar

from airflow_ft.jobs.inline.file import SourceFile, source_file
from airflow_ft.jobs.inline.names import Definition, bound_in, is_named
from airflow_ft.jobs.inline.taking import ELSEWHERE, Taking
from airflow_ft.protocol.arguments import shown
from airflow_ft.protocol.errors import ConfigurationError
from airflow_ft.protocol.inline_job import InlineJob, declare

Defined = TypeVar("Defined", bound=Callable[..., Any])

_LAMBDA = "<lambda>"


def job(definition: Defined) -> Defined:
    """Lets a pipeline's job be written in the DAG file::

        @ft.job
        def transform(spark, sources):
            return sources["orders"].where("amount > 0")

        ft.CheckpointedPipeline(pipeline="orders", job=transform, ...)

    A function is the job's `transform`; a class has `transform(self, spark, sources)` and, if there are several sinks,
    `split(self, batch)`. Its source goes to Spark's driver, which never imports the DAG file. With it go those of the
    file's imports, functions, classes and literal constants that it names.

    Returns the function or class, which can be called as before. ConfigurationError: it cannot be taken out of its
    file, or names what cannot; the message says which name, where, and what to do.
    """
    frame = sys._getframe(1)
    declare(definition, _taken(definition, frame))
    return definition


def _taken(definition: Any, frame: FrameType) -> InlineJob:
    name = _checked(definition)
    path = definition.__code__.co_filename if isfunction(definition) else frame.f_code.co_filename
    line = definition.__code__.co_firstlineno if isfunction(definition) else frame.f_lineno
    file = source_file(path, frame.f_globals)
    if file is None:
        raise ConfigurationError(
            f"the source of the job {name} cannot be read: {path} is not a readable file.",
            code="job_source_missing",
            remedy='Write the job into a file, or name a module: job="package.module".',
            job=name,
            path=path,
        )
    node, around = _definition(file, name, line)
    taking = Taking(name, file, frame.f_globals, job)
    if (method := _lacking(definition, file.definition(node).text)) is not None:
        raise taking.refused(
            method,
            "Write `def transform(spark, sources):`; in a class, `def transform(self, spark, sources):`.",
            "job_invalid",
        )
    names = {**frame.f_globals, **frame.f_locals}
    if others := [each for each in node.decorator_list if not is_named(each, names, job)]:
        raise taking.refused(
            f"has a second decorator, {ast.unparse(others[0])} (line {others[0].lineno}).",
            f"Remove {ast.unparse(others[0])}, or call it inside the function.",
            "job_invalid",
            decorator=ast.unparse(others[0]),
            line=others[0].lineno,
        )
    return taking.take(definition, node, around)


def _checked(definition: Any) -> str:
    """Its name; ConfigurationError for what is neither a function nor a class of its own."""
    name, what = getattr(definition, "__name__", ""), ""
    if isfunction(definition) and hasattr(definition, "__wrapped__"):  # by functools.wraps
        raise ConfigurationError(
            f"the job {name} has another decorator below @job.",
            code="job_invalid",
            remedy="Remove that decorator, or call it inside the function.",
            job=name,
        )
    if not isfunction(definition) and not isclass(definition):
        what = f"@job decorates {shown(definition)}, which is neither a function nor a class."
    elif name == _LAMBDA:
        what = "@job decorates a lambda."
    elif iscoroutinefunction(definition) or isasyncgenfunction(definition):
        what = f"the job {name} is an async function."
    elif (outer := definition.__qualname__.rpartition(".")[0]) and not outer.endswith("<locals>"):
        what = f"the job {name} is defined inside the class {outer.rpartition('.')[2]}."
    if what:
        raise ConfigurationError(
            what,
            code="job_invalid",
            remedy="Write `def transform(spark, sources):`, or a class with transform and split, below @job.",
            job=name,
        )
    return str(name)


def _lacking(definition: Any, text: str) -> str | None:
    """Return what keeps it from being called as transform(spark, sources), as far as that shows here."""
    function, given = definition, 2
    if isclass(definition):
        function, given = getattr_static(definition, "transform", None), 3
        if function is None and "transform" not in text:
            return "has no method transform(self, spark, sources)."
        if isinstance(function, staticmethod):
            function, given = function.__func__, 2
    if not isfunction(function):
        return None
    # The arguments of a job (job_args) go to the constructor of a class, and to a function as keywords.
    fits = signature(function).bind if isclass(definition) else signature(function).bind_partial
    try:
        fits(*[None] * given)
    except TypeError:
        return f"takes ({', '.join(signature(function).parameters)}), but is called with (spark, sources)."
    return None


def _definition(file: SourceFile, name: str, line: int) -> tuple[Definition, set[str]]:
    """Return the definition that begins around this line, and the local variables of the enclosing functions."""
    for node, around in _definitions(file.tree, frozenset()):
        first = min((each.lineno for each in node.decorator_list), default=node.lineno)
        if node.name == name and first <= line <= node.lineno:
            return node, set(around)
    raise ConfigurationError(
        f"the job {name} is not at line {line} of {file.path}: the file has changed since it was imported.",
        code="job_source_missing",
        remedy=f"Import {file.path} again. Or {ELSEWHERE}.",
        job=name,
        path=file.path,
        line=line,
    )


def _definitions(node: ast.AST, around: frozenset[str]) -> Iterator[tuple[Definition, frozenset[str]]]:
    for child in ast.iter_child_nodes(node):
        inside = around
        if isinstance(child, Definition):
            yield child, around
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            inside = around | bound_in(child)
        yield from _definitions(child, inside)
