"""A job of the DAG file, made again from its source: in a module of its own, and the DAG file is not imported.

Its tracebacks name the DAG file and the lines of it. Functions go to Spark's Python workers by value, since there is
no module for them to import.
"""

from __future__ import annotations

import ast
import linecache
import sys
import threading
from types import CodeType, ModuleType
from typing import Any

from airflow_ft.protocol.inline_job import InlineJob, Part
from airflow_ft.spark.attribution import current

MODULE = "airflow_ft_job"
"""The job's `__name__` in the driver; with the pipeline's behind it where several streams share the driver."""
_LOCK = threading.Lock()
_lines: dict[str, list[str]] = {}
"""By file: the lines that were shipped, of all jobs of this process."""


def load(job: InlineJob) -> Any:
    """Create and return the function or class, new on each call; raises what its imports raise."""
    from pyspark import cloudpickle

    name = "_".join(filter(None, (MODULE, current())))
    module = ModuleType(name)
    module.__file__ = job.file
    sys.modules[name] = module  # dataclasses and type hints look for it there
    cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    _cache_lines(job)
    for part in job.parts:
        code = _compiled(part, job)
        exec(code, module.__dict__)  # nosec B102 # the author's own job, in Spark's driver
    return getattr(module, job.name)


def _compiled(part: Part, job: InlineJob) -> CodeType:
    text, before = part.text, part.line - 1
    if text[:1].isspace():  # it is inside a function or a block
        text, before = f"if True:\n{text}", before - 1
    tree = ast.increment_lineno(ast.parse(text, job.file), before)
    flags = annotations.compiler_flag if job.postponed else 0
    code: CodeType = compile(tree, job.file, "exec", flags=flags, dont_inherit=True)
    return code


def _cache_lines(job: InlineJob) -> None:
    """Tracebacks show the lines as they were shipped, even if the file has changed, or is not here.

    Lines that another job of the same file has brought stay.
    """
    with _LOCK:
        lines = list(_lines.get(job.file, ()))
        for part in job.parts:
            text = [f"{line}\n" for line in part.text.splitlines()]
            lines += ["\n"] * (part.line - 1 + len(text) - len(lines))
            lines[part.line - 1 : part.line - 1 + len(text)] = text
        _lines[job.file] = lines
        linecache.cache[job.file] = (sum(map(len, lines)), None, lines, job.file)
