"""What Airflow makes of a restart strategy: the waits are those of Airflow's own scheduler."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_ft.pipeline.retries import airflow_arguments
from airflow_ft.protocol.restart import ExponentialDelay, FixedDelay, RestartStrategy

pytestmark = pytest.mark.airflow

END = datetime(2026, 1, 1, tzinfo=UTC)


def waits(strategy: RestartStrategy, task_id: str) -> list[float]:
    """The seconds that Airflow waits after each try."""
    from airflow.models.taskinstance import TaskInstance

    arguments = airflow_arguments(strategy)
    found = []
    for number in range(1, arguments["retries"] + 1):
        instance: Any = SimpleNamespace(
            dag_id="d",
            task_id=task_id,
            logical_date=END,
            try_number=number,
            end_date=END,
            task=SimpleNamespace(**arguments),
            retry_delay_override=None,
        )
        found.append((TaskInstance.next_retry_datetime(instance) - END).total_seconds())
    return found


def test_airflow_waits_as_a_fixed_delay_says() -> None:
    assert waits(FixedDelay(attempts=3, delay=timedelta(seconds=10)), "stage") == [10, 10, 10]


def test_airflow_waits_one_to_two_backoffs_within_the_limit() -> None:
    strategy = ExponentialDelay(
        initial_backoff=timedelta(seconds=10),
        max_backoff=timedelta(minutes=5),
        backoff_multiplier=1.5,
        attempts_before_reset_backoff=12,
    )
    for task_id in ("recover", "stage", "confirmed"):
        for number, wait in enumerate(waits(strategy, task_id)):
            backoff = 10 * 1.5**number
            assert min(backoff, 300) <= wait <= min(2 * (backoff + 1), 300)
    assert waits(strategy, "stage") != waits(strategy, "recover")
