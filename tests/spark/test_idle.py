"""Intervals without input: what was in the sources at a time is read only if Spark looked after it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_ft.spark.driver import idle, moments
from airflow_ft.spark.driver.idle import Idle
from airflow_ft.spark.driver.moments import Moment


@dataclass
class Clocks:
    """Of a machine, whose wall clock can be set, and of the decision log."""

    passed: float = 1_000.0
    set_by: float = field(default=0.0)
    log_set_by: float = field(default=0.0)

    def monotonic(self) -> float:
        return self.passed

    def time(self) -> float:
        return 1_700_000_000.0 + self.passed + self.set_by

    def now(self) -> datetime:
        return datetime.fromtimestamp(self.passed + self.log_set_by, UTC)

    def spark_looks(self, found: Idle) -> None:
        """Spark finds nothing new in an interval that begins now."""
        found._on_event(datetime.fromtimestamp(self.time(), UTC).isoformat())


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clocks]:
    found = Clocks()
    monkeypatch.setattr(idle, "time", found)
    monkeypatch.setattr(moments, "time", found)
    yield found


def _idle(clocks: Clocks) -> Idle:
    store: Any = SimpleNamespace(now=clocks.now)
    return Idle(store)


def _seconds(found: Moment | None) -> float | None:
    return found.at.timestamp() if found is not None else None


def test_a_mark_counts_when_spark_has_looked_after_it(clocks: Clocks) -> None:
    found = _idle(clocks)
    assert found.read_as_of() is None
    clocks.passed += 1
    clocks.spark_looks(found)
    clocks.passed += 1
    assert _seconds(found.read_as_of()) == 1_000.0
    clocks.passed += 1
    assert found.read_as_of() is None, "the mark of 1,002 is later than Spark's look"


@pytest.mark.parametrize("step", [-2 * 86_400.0, -0.5, 0.5, 2 * 86_400.0])
def test_after_a_step_of_the_wall_clock_no_former_look_counts(clocks: Clocks, step: float) -> None:
    found = _idle(clocks)
    clocks.spark_looks(found)
    clocks.set_by += step
    seen = []
    for _ in range(50):
        clocks.passed += 1
        seen.append(found.read_as_of())
    assert seen == [None] * 50, "Spark has not looked since"


@pytest.mark.parametrize("step", [-2 * 86_400.0, 2 * 86_400.0])
def test_a_minute_after_a_step_marks_count_again(clocks: Clocks, step: float) -> None:
    found = _idle(clocks)
    clocks.set_by += step
    newest = None
    for _ in range(70):
        clocks.passed += 1
        clocks.spark_looks(found)
        newest = found.read_as_of() or newest
    assert newest is not None
    assert clocks.passed - newest.at.timestamp() <= 2


def test_an_unnoticed_clock_step_moves_no_mark_before_a_look(clocks: Clocks) -> None:
    found = _idle(clocks)
    clocks.spark_looks(found)
    clocks.set_by -= 0.09
    clocks.passed += 0.05
    found.read_as_of()  # by the wall clock before Spark's look
    assert found.read_as_of() is None


@pytest.mark.parametrize(
    ("passed", "put_back", "earlier"),
    [(1.0, 0.0, 0.0), (1.0, 0.05, 0.05), (1.0, 40.0, 40.0), (3600.0, 1.0, 1.0), (1.0, -40.0, 0.0)],
)
def test_a_moment_is_moved_back_with_the_clock_of_the_log(
    clocks: Clocks, passed: float, put_back: float, earlier: float
) -> None:
    """What arrives next may get an earlier time than the moment (I9). The machine's own clock shows no step."""
    store: Any = SimpleNamespace(now=clocks.now)
    moment = Moment.now(store)
    clocks.passed += passed
    clocks.log_set_by -= put_back
    assert moment.earliest(Moment.now(store)) == moment.at - timedelta(seconds=earlier)


@pytest.mark.parametrize("slow", ["first", "second"])
def test_a_step_does_not_hide_in_a_slow_answer(clocks: Clocks, slow: str) -> None:
    """The log's clock is put back by 2 s while it answers, which takes 2 s."""

    def answer() -> datetime:
        clocks.passed += 2
        clocks.log_set_by -= 2
        return clocks.now()

    quick: Any = SimpleNamespace(now=clocks.now)
    late: Any = SimpleNamespace(now=answer)
    moment = Moment.now(late if slow == "first" else quick)
    clocks.passed += 1
    now = Moment.now(quick if slow == "first" else late)
    assert moment.at - moment.earliest(now) == timedelta(seconds=2)
