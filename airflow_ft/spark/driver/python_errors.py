"""What the user's Python raised, out of what Spark makes of it: exception, file and line, in one line."""

from __future__ import annotations

import re
import sys
import traceback
from collections.abc import Iterable
from dataclasses import dataclass
from types import TracebackType

_TRACEBACK = "Traceback (most recent call last):"
_FRAME = re.compile(r'^ +File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<name>.+)$')
_FOREIGN = ("/pyspark/", "/py4j/", "pyspark.zip/", "/airflow_ft/spark/", "/cloudpickle/", "/importlib/", "<frozen ")
_LIBRARIES = ("/site-packages/", "/dist-packages/", f"/lib/python{sys.version_info.major}.")
_MODULE = re.compile(r"ModuleNotFoundError: No module named '(?P<name>[\w.]+)'")
_STREAM_ACTION = re.compile(r"Queries with streaming sources must be executed with|STREAMING_QUERY_MUST_BE_STARTED")


@dataclass(frozen=True, slots=True)
class UserError:
    """`what` is "ZeroDivisionError: division by zero (/jobs/orders.py, line 7, in share)"."""

    what: str
    remedy: str = ""


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
            "AnalysisException: transform asks for rows of a stream (collect, count, show ...), which has none"
            f" before it runs{place(error.__traceback__)}",
            "do that in split(batch), or read sources.static(name), which is what the source holds now.",
        )
    if isinstance(error, ModuleNotFoundError):
        return UserError(f"{type(error).__name__}: {error}{place(error.__traceback__)}", _searched(error.name or ""))
    if "Pickl" in type(error).__name__:
        return UserError(
            f"{type(error).__name__}: {error}{place(error.__traceback__)}",
            "a function that runs in Spark's workers is sent to them with what it uses: make clients, locks and open"
            " files inside of it, and leave the SparkSession and DataFrames to the driver (join them instead).",
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
    return UserError(f"{what}{_place(frames)}", _searched(missing["name"]) if missing else "")


def _searched(name: str) -> str:
    own = (sys.prefix, sys.base_prefix, sys.exec_prefix)
    folders = [entry for entry in sys.path if entry and not entry.startswith(own) and "/spark-" not in entry]
    return (
        f"install {name.partition('.')[0]!r} where Airflow's workers run, or put it beside the DAG; searched were the"
        f" packages of {sys.executable} and {', '.join(folders) or 'no other folder'}."
    )
