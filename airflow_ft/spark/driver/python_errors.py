"""Extract the error of the user's Python from Spark's error: exception, file and line, in one line."""

from __future__ import annotations

import re
import sys
import traceback
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from airflow_ft.spark.session.home import added_folders

_TRACEBACK = "Traceback (most recent call last):"
_FRAME = re.compile(r'^ +File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<name>.+)$')
_FOREIGN = ("/pyspark/", "/py4j/", "pyspark.zip/", "/airflow_ft/spark/", "/cloudpickle/", "/importlib/", "<frozen ")
_LIBRARIES = ("/site-packages/", "/dist-packages/", f"/lib/python{sys.version_info.major}.")
_MODULE = re.compile(r"ModuleNotFoundError: No module named '(?P<name>[\w.]+)'")
_STREAM_ACTION = re.compile(r"Queries with streaming sources must be executed with|STREAMING_QUERY_MUST_BE_STARTED")


@dataclass(frozen=True, slots=True)
class UserError:
    """`what` is "ZeroDivisionError: division by zero", of any length; `where` is " (/jobs/a.py, line 7, in share)"."""

    what: str
    where: str = ""
    remedy: str = ""
    code: str = "job_failed"
    fields: Mapping[str, Any] = field(default_factory=dict)


def of_worker(messages: Iterable[str]) -> UserError | None:
    """Return what a Python worker of Spark raised: from the first message that holds its traceback."""
    for message in messages:
        if _TRACEBACK in message and (found := _read(message.rsplit(_TRACEBACK, 1)[1])):
            return found
    return None


def of_driver(error: BaseException) -> UserError | None:
    """A mistake that is explained better than by its own words; None for any other."""
    if _STREAM_ACTION.search(str(error)):
        return UserError(
            "AnalysisException: transform asks for rows of a stream (collect, count, show ...), which has no rows"
            " before it runs",
            place(error.__traceback__),
            "Do that in split(batch). Or use sources.static(name): it reads the rows that the source has now.",
            "action_on_stream",
        )
    if isinstance(error, ModuleNotFoundError):
        return _missing_module(f"{type(error).__name__}: {error}", place(error.__traceback__), error.name or "")
    if "Pickl" in type(error).__name__:
        return UserError(
            f"{type(error).__name__}: {error}",
            place(error.__traceback__),
            "Create clients, locks and open files inside the function: Spark sends it to its workers with everything"
            " that it uses. Use the SparkSession and DataFrames only in the driver, and join them.",
            "function_not_serializable",
        )
    return None


def place(trace: TracebackType | None) -> str:
    """Return where the user's code was, such as " (file, line 7, in share)"; "" when it was nowhere."""
    frames = [(frame.filename, str(frame.lineno), frame.name) for frame in traceback.extract_tb(trace)]
    return _place(frames)


def _place(frames: list[tuple[str, str, str]]) -> str:
    own = [frame for frame in frames if not any(part in frame[0] for part in _FOREIGN)]
    written = [frame for frame in own if not any(part in frame[0] for part in _LIBRARIES)]
    for file, line, name in (written or own)[-1:]:
        return f" ({file}, line {line}, in {name})"
    return ""


def _read(text: str) -> UserError | None:
    """The rest of a traceback: frames with their source lines, then the exception at the margin."""
    frames: list[tuple[str, str, str]] = []
    said: list[str] = []
    for line in text.strip("\n").splitlines():
        if found := _FRAME.match(line):
            frames.append((found["file"], found["line"], found["name"]))
        elif line.startswith((" SQLSTATE:", "\tat ", "JVM stacktrace:")):
            break
        elif said or (line and not line[0].isspace()):
            said.append(line)
    if not said:
        return None
    what = " ".join(part.strip() for part in said if part.strip())
    missing = _MODULE.search(what)
    where = _place(frames)
    return _missing_module(what, where, missing["name"]) if missing else UserError(what, where)


def _missing_module(what: str, where: str, name: str) -> UserError:
    folders = [entry for entry in added_folders(sys.path) if entry and "/spark-" not in entry]
    remedy = (
        f"Install {name.partition('.')[0]!r} where Airflow's workers run, or put it beside the DAG. Python searched the"
        f" packages of {sys.executable} and {', '.join(folders) or 'no other folder'}."
    )
    return UserError(what, where, remedy, "module_missing", {"module": name})
