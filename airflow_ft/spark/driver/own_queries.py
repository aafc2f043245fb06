"""Streaming queries that a job starts by itself: refused, since their rows belong to no checkpoint.

Such a query has a checkpoint location and a sink of its own. Nothing fences it, and it ends with the driver at any
place. So a call that starts one raises an error while code of the job runs. Nothing is published by then.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from airflow_ft.protocol.errors import JobError
from airflow_ft.spark.attribution import current

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_STARTS = ("start", "toTable")
_LOCK = threading.Lock()
_guards: list[_Guard] = []


class _Guard:
    def __init__(self, job: str, where: str, thread: int | None) -> None:
        self.job, self.where, self.thread, self.stream = job, where, thread, current()
        self.met = False

    def error(self) -> JobError:
        return JobError(
            f"job {self.job}: {self.where} starts a streaming query of its own (writeStream). Its rows would not belong"
            " to a checkpoint.",
            code="query_in_job",
            remedy="Return the DataFrame, and declare a sink of the pipeline for it. For several sinks, divide the rows"
            " in split(batch).",
            job=self.job,
            function=self.where,
        )


@contextmanager
def refusing_queries(job: str, where: str, *, any_thread: bool = False) -> Iterator[None]:
    """JobError when a query is started inside, also if the job handles that error.

    `any_thread`: by any thread that works for the stream; otherwise by the calling one, as the driver may start its own
    beside it.
    """
    _patch()
    guard = _Guard(job, where, None if any_thread else threading.get_ident())
    _guards.append(guard)
    try:
        yield
    except BaseException as error:
        if guard.met:
            raise guard.error() from error
        raise
    finally:
        _guards.remove(guard)
    if guard.met:
        raise guard.error()


def refuse_running(spark: SparkSession, job: str, before: set[str]) -> None:
    """JobError, and their end, when queries run that did not before: started by other ways than Python's."""
    started = [query for query in spark.streams.active if query.id not in before]
    for query in started:
        with suppress(Exception):  # it is about to end, or does not; the driver ends after it
            query.stop()
    if started:
        raise _Guard(job, "transform", None).error()


def running(spark: SparkSession) -> set[str]:
    """The ids of the queries that run."""
    return {query.id for query in spark.streams.active}


def _patch() -> None:
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    with _LOCK:
        for name in _STARTS:
            original = getattr(DataStreamWriter, name)
            if not hasattr(original, "__airflow_ft__"):
                setattr(DataStreamWriter, name, _guarded(original))


def _guarded(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def start(*arguments: Any, **keywords: Any) -> Any:
        for guard in list(_guards):
            if guard.thread in (None, threading.get_ident()) and guard.stream == current():
                guard.met = True
                raise guard.error()
        return original(*arguments, **keywords)

    start.__airflow_ft__ = True  # type: ignore[attr-defined]
    return start
