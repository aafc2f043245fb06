"""Streaming queries that a job starts by itself: refused, since their rows belong to no checkpoint.

Such a query has a checkpoint location and a sink of its own. Nothing fences it, and it ends with the driver at any
place. So a call that starts one raises an error while code of the job runs. Nothing is published by then.

Nor may a job stop the query of its pipeline: Spark calls that a good end, so the rest would count as read.
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
_pipelines: set[str] = set()
"""The pipelines with a query, which has the pipeline's name."""
_own = threading.local()
"""Whether this thread stops a query for this package."""


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
            stop(query)
    if started:
        raise _Guard(job, "transform", None).error()


@contextmanager
def refusing_stops(pipeline: str) -> Iterator[None]:
    """Raise JobError inside for a call that stops the query of the pipeline, unless it is `stop` of this module."""
    _patch()
    _pipelines.add(pipeline)
    try:
        yield
    finally:
        _pipelines.discard(pipeline)


def stop(query: Any) -> None:
    """Stop a query."""
    _own.stops = True
    try:
        query.stop()
    finally:
        _own.stops = False


def running(spark: SparkSession) -> set[str]:
    """The ids of the queries that run."""
    return {query.id for query in spark.streams.active}


def _patch() -> None:
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    with _LOCK:
        if not hasattr(StreamingQuery.stop, "__airflow_ft__"):
            queries: Any = StreamingQuery
            queries.stop = _unless_ours(StreamingQuery.stop)
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


def _unless_ours(original: Callable[[Any], None]) -> Callable[[Any], None]:
    @functools.wraps(original)
    def stop(self: Any) -> None:
        if _pipelines and not getattr(_own, "stops", False) and self.name in _pipelines:
            raise JobError(
                "the job stops the streaming query of its pipeline.",
                code="query_in_job",
                remedy="Remove that call. To end a stream, run `airflow ft stop`.",
            )
        original(self)

    stop.__airflow_ft__ = True  # type: ignore[attr-defined]
    return stop
