"""How long checkpoints take, and many of them in short."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from airflow_ft.protocol.model import CheckpointState, StateSizes
from airflow_ft.protocol.timing import Delivered, Spread, Step, Timing, rate, summary

BEGAN = datetime(2026, 1, 1, tzinfo=UTC)


def timing(number: int, *after: float | None, rows: int = 10) -> Timing:
    """Triggered `number` seconds after the beginning; staged, prepared, decided and completed so long after that."""
    triggered = BEGAN + timedelta(seconds=number)
    staged, prepared, decided, completed = (
        None if each is None else triggered + timedelta(seconds=each) for each in (*after, *[None] * 4)[:4]
    )
    state = CheckpointState.TRIGGERED if completed is None else CheckpointState.COMPLETED
    return Timing(number, state, None, rows, 100, triggered, staged, prepared, decided, completed)


def test_a_step_lasts_until_the_next_begins() -> None:
    assert timing(1, 2, 3, 3.5, 6).steps == {Step.STAGE: 2, Step.PREPARE: 1, Step.DECIDE: 0.5, Step.COMMIT: 2.5}
    assert timing(1, 2, 3, 3.5, 6).seconds == 6
    assert timing(1, 2).steps == {Step.STAGE: 2} and timing(1, 2).seconds is None


def test_a_step_without_a_time_is_a_part_of_the_one_behind_it() -> None:
    found = timing(1, 2, None, 3, 4)
    assert found.steps == {Step.STAGE: 2, Step.DECIDE: 1, Step.COMMIT: 1}
    assert sum(found.steps.values()) == found.seconds


def test_percentiles_of_a_hundred_values() -> None:
    found = Spread.of([float(value) for value in range(1, 102)])
    assert found == Spread(minimum=1, mean=51, maximum=101, p50=51, p95=96, p99=100)
    assert Spread.of([7.0]) == Spread(7, 7, 7, 7, 7, 7) and Spread.of([]) is None


def test_only_what_is_completed_is_in_the_summary() -> None:
    found = dict(summary([timing(3, 1), timing(2, 1, 2, 3, 8, rows=30), timing(1, 1, 2, 3, 4)]))
    assert list(found) == ["seconds", *Step, "rows", "bytes"]
    assert (found["seconds"].minimum, found["seconds"].maximum) == (4, 8)
    assert found["rows"].mean == 20 and found["commit"].maximum == 5
    assert not dict(summary([timing(1, 1)]))


def test_the_state_summary_covers_only_measured_checkpoints() -> None:
    sizes = {3: StateSizes(5, 0, 1), 1: StateSizes(15, 400, 0)}
    found = dict(summary([timing(n, 1, 2, 3, 4)._replace(state_sizes=sizes.get(n)) for n in (3, 2, 1)]))
    assert list(found) == ["seconds", *Step, "rows", "bytes", "state_changes", "state_snapshot"]
    changes, snapshot = found["state_changes"], found["state_snapshot"]
    assert (changes.minimum, changes.mean, changes.maximum) == (5, 10, 15)
    assert (snapshot.minimum, snapshot.maximum) == (400, 400), "0 is none"


def delivered(second: int, rows: int = 10) -> Delivered:
    return Delivered(second, rows, BEGAN + timedelta(seconds=second))


@pytest.mark.parametrize("completed", [[], [delivered(1)], [delivered(1), delivered(1)]])
def test_too_few_checkpoints_have_no_rate(completed: list[Delivered]) -> None:
    assert rate(completed) is None


def test_the_rate_leaves_out_the_rows_of_the_oldest() -> None:
    assert rate([delivered(5, 8), delivered(3, 12), delivered(1, 99)]) == 5
