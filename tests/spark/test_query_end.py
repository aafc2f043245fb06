"""A query that is ended: what it has begun is published, and a micro-batch that begins meanwhile is no failure.

And what a micro-batch says of how far its sources are read.
"""

from __future__ import annotations

import threading
from contextlib import nullcontext, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_ft import SocketSource
from airflow_ft.protocol.errors import StageError, StoreUnavailableError
from airflow_ft.spark.driver import moments, query
from airflow_ft.spark.driver.ending import Ended, Ending
from airflow_ft.spark.driver.moments import Moment
from airflow_ft.spark.driver.query import Query
from airflow_ft.spark.driver.sockets import Sockets
from tests.raising import raises

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


class SparksQuery:
    """Fails as soon as a micro-batch has raised, as Spark's does."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.stopped = False

    def awaitTermination(self, seconds: float | None = None) -> bool:
        if self.error is not None:
            raise self.error
        return False

    def stop(self) -> None:
        self.stopped = True


def ending(during: Any) -> tuple[Query, SparksQuery]:
    """A query whose last micro-batch is published in the third look; `during` happens in the first."""
    made, sparks = object.__new__(Query), SparksQuery()
    looks = iter((True, False, False))

    def settled(_: float) -> bool:
        first = next(looks, None)
        if first:
            during(made, sparks)
        return first is None

    made.publisher = SimpleNamespace(settled=settled, settle=lambda: None, last_batch=6, last_number=1, carry=None)  # type: ignore[assignment]
    made._state = SimpleNamespace(report_if_due=lambda *_: None)  # type: ignore[assignment]
    made._capacity = SimpleNamespace(take=lambda *_: None)  # type: ignore[assignment]
    made._why = Ending(None, Path())  # type: ignore[arg-type]
    made._busy, made._queries, made._refused, made._ending = threading.Lock(), 1, False, False
    return made, sparks


def test_a_micro_batch_that_begins_meanwhile_is_no_failure() -> None:
    def begins(made: Query, sparks: SparksQuery) -> None:
        try:
            made._on_batch(1, None, 7)  # type: ignore[arg-type]
        except Ended as error:
            sparks.error = error

    made, sparks = ending(begins)
    made._end(sparks)  # type: ignore[arg-type]
    assert isinstance(sparks.error, Ended) and sparks.stopped


def test_a_failure_of_the_query_itself_is_raised() -> None:
    def fails(made: Query, sparks: SparksQuery) -> None:
        with suppress(Ended):
            made._on_batch(0, None, 7)  # type: ignore[arg-type]
        sparks.error = ValueError("of Spark")

    made, sparks = ending(fails)
    with pytest.raises(ValueError):
        made._end(sparks)  # type: ignore[arg-type]


def test_an_outage_between_micro_batches_is_why_a_query_ends() -> None:
    """A micro-batch that waits meanwhile would fail because the query is stopped, and count as the job's failure."""

    def fails() -> None:
        raise StoreUnavailableError("the log is away.")

    made, sparks = ending(lambda *_: None)
    made.publisher.carry = fails  # type: ignore[method-assign]
    with pytest.raises(StoreUnavailableError) as caught:
        made._look(None, sparks)  # type: ignore[arg-type]
    with pytest.raises(Ended):
        made._on_batch(1, None, 7)  # type: ignore[arg-type]
    assert made._why.first is caught.value


def test_the_jvm_hears_of_every_exception() -> None:
    """py4j answers the JVM after an Exception only; otherwise it waits until the checkpoint expires."""
    why = Ending(None, Path())  # type: ignore[arg-type]
    with pytest.raises(RuntimeError), why.remembering():
        raise KeyboardInterrupt
    assert isinstance(why.first, KeyboardInterrupt)


class StoppedQuery:
    """Ends without an error when another thread stops it, as Spark's does."""

    def __init__(self) -> None:
        self.over = threading.Event()

    def awaitTermination(self, seconds: float | None = None) -> bool:
        return self.over.wait(seconds)


@pytest.mark.parametrize("waits", ["for Spark", "for a publication"])
def test_a_query_that_is_stopped_at_once_has_not_read_all(waits: str) -> None:
    """I9: a stream of a group that was ended in its backlog."""
    made, _ = ending(lambda *_: None)
    sparks: Any = StoppedQuery()
    made._one_query, made._store = False, SimpleNamespace(now=lambda: "now")  # type: ignore[assignment]
    made._request = SimpleNamespace(streaming=True)  # type: ignore[assignment]
    made._timers, made._location = SimpleNamespace(ending=nullcontext), None  # type: ignore[assignment]
    made._running = lambda *_, **__: nullcontext(sparks)  # type: ignore[assignment,method-assign]
    made.publisher.settled = lambda _: False  # type: ignore[method-assign]
    made._why.failed(StageError("the stream was ended at once."))
    sparks.over.set()
    with pytest.raises(StageError):
        made.drain(lambda: False) if waits == "for Spark" else made._end(sparks)


@pytest.mark.parametrize(("was_slice", "says"), [(False, "now"), (True, None)])
def test_the_rest_of_a_slice_does_not_say_that_all_is_read(was_slice: bool, says: str | None) -> None:
    """Spark takes it from its earlier listing of files, so files that came since may be missing (I9)."""
    said: list[Any] = []
    made: Any = object.__new__(Query)
    made._durable, made._looked_at_state = SimpleNamespace(freeze=lambda: None), True
    made._location = SimpleNamespace(offsets=lambda _: [])
    made._timers, made._store = SimpleNamespace(forced=None, any=False), SimpleNamespace(now=lambda: "later")
    made._cut, made._was_slice = "now", was_slice
    made._stage = lambda *given: said.append(given[-1])
    made._compute(None, 7)
    assert said == [says] and made._cut.at == "later"


@pytest.mark.parametrize("put_back", [0, 40])
def test_a_backlog_says_less_once_the_logs_clock_was_put_back(monkeypatch: pytest.MonkeyPatch, put_back: int) -> None:
    """A row that arrives during the backlog may get an earlier time than its beginning (I9)."""
    monkeypatch.setattr(moments, "time", SimpleNamespace(monotonic=lambda: 7.0))
    made: Any = object.__new__(Query)
    began, said = datetime(2026, 1, 1, 12, tzinfo=UTC), []

    def over(_: Any) -> bool:
        made._store.now = lambda: began - timedelta(seconds=put_back)
        return True

    made._one_query, made._request = False, SimpleNamespace(streaming=True, pipeline="p", epoch=1, run="r")
    made._store = SimpleNamespace(now=lambda: began, read_all=lambda *given: said.append(given[-1]))
    made._timers, made._location, made._on_batch = SimpleNamespace(ending=nullcontext), None, None
    made._running, made._has_ended = lambda *_, **__: nullcontext(), over
    made.publisher, made._durable = SimpleNamespace(settle=lambda: None), lambda: None
    made.drain(lambda: False)
    assert said == [began - timedelta(seconds=put_back)]


def looking(after: Moment) -> Any:
    """A query with a cut of 5 s. Spark has found nothing new since `after`."""
    made: Any = object.__new__(Query)
    made._busy, made._settle, made._ending = threading.Lock(), lambda _: None, False
    made.publisher = SimpleNamespace(carry=lambda: None, last_batch=6)
    made._store, made._why = SimpleNamespace(now=lambda: NOON), Ending(None, Path())  # type: ignore[arg-type]
    made._sockets, made._cut = SimpleNamespace(look=lambda _: None, require_open=lambda _: None), Moment(NOON, 5.0, 5.0)
    made.idle = SimpleNamespace(read_as_of=lambda: after, is_due=lambda: False)
    return made


def test_the_newest_cut_counts_once_the_logs_clock_was_put_back() -> None:
    after = Moment(NOON - timedelta(seconds=40), 6.0, 6.0)
    made = looking(after)
    made._look(made.idle, None)
    assert made._cut is after


@pytest.mark.parametrize(("read", "is_over"), [(4.0, False), (6.0, True)])
def test_a_closed_socket_is_seen_though_the_clock_is_set(
    monkeypatch: pytest.MonkeyPatch, read: float, is_over: bool
) -> None:
    monkeypatch.setattr(query, "time", SimpleNamespace(monotonic=lambda: 5.0))
    threads = SimpleNamespace(getAllStackTraces=lambda: SimpleNamespace(keySet=lambda: "[main]"))
    java = SimpleNamespace(lang=SimpleNamespace(Thread=threads))
    spark: Any = SimpleNamespace(_jvm=SimpleNamespace(java=java))
    step = timedelta(seconds=-40 if is_over else 40)
    made = looking(Moment(NOON + step, read, read))
    made._sockets = Sockets(spark, {"lines": SocketSource(host="localhost", port=9999)})
    with raises(StageError, "socket_closed", source="lines") if is_over else nullcontext():
        made._look(made.idle, None)
