"""kill -9 at each step of `airflow_ft.deliver`: the same call again completes the work, and no row is there twice."""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from airflow_ft.pipeline import settings
from airflow_ft.protocol import steps
from airflow_ft.protocol.errors import ConfigurationError
from airflow_ft.sinks.sqlite.participant import SqliteParticipant
from airflow_ft.store.decision_log import DecisionLog
from airflow_ft.wal import incoming
from airflow_ft.wal.writer import SegmentFolder
from tests.pipeline.test_deliver import ROWS, Shop, logged, shop
from tests.raising import raises

__all__ = ["shop"]
pytestmark = [pytest.mark.slow, pytest.mark.sampled(among="slow checks")]
PLACES: list[tuple[Any, str]] = [
    (DecisionLog, "begin_stage"),
    (DecisionLog, "trigger"),
    (incoming, "write_rows"),
    (SegmentFolder, "seal"),
    (DecisionLog, "publish"),
    (DecisionLog, "end_stage"),
    (steps, "prepare_step"),
    (SqliteParticipant, "commit"),
    (steps, "confirm_step"),
]

TRIGGERED = ("trigger", "write_rows", "seal")
"""Then the decision log knows the position, but its rows are not published."""


def die_after(holder: Any, name: str, times: int = 1) -> None:
    do: Callable[..., Any] = getattr(holder, name)
    left = itertools.count(times - 1, -1)

    def wrapped(*given: Any, **named: Any) -> Any:
        found = do(*given, **named)
        if not next(left):
            os.kill(os.getpid(), signal.SIGKILL)
        return found

    setattr(holder, name, wrapped)


def killed(shop: Shop, position: object, holder: Any, name: str, rows: pa.Table = ROWS, times: int = 1) -> None:
    """A process that calls it and dies there, at the n-th time."""
    pid = os.fork()
    if pid == 0:
        try:
            die_after(holder, name, times)
            shop.deliver(rows, position)
        finally:
            os._exit(1)
    _, status = os.waitpid(pid, 0)
    assert os.WIFSIGNALED(status), f"it did not die after {name}"


@pytest.mark.parametrize("place", PLACES[:2], ids=lambda place: place[1])
def test_the_next_call_waits_once(shop: Shop, monkeypatch: pytest.MonkeyPatch, place: tuple[Any, str]) -> None:
    """The dead process held the turn and an epoch, and both waits look at the same lease."""
    monkeypatch.setattr(settings, "lease_seconds", lambda: 0.5)
    killed(shop, 1, *place)
    with logged() as lines:
        shop.deliver(ROWS, 1)
    assert any(" works on the pipeline" in line for line in lines), "it waits for its turn"
    assert not [line for line in lines if "counts as dead" in line]
    assert shop.rows() == [(1, "a"), (2, "b")]


def test_the_same_call_again_completes_it(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "lease_seconds", lambda: 0.3)
    published = [name for _, name in PLACES].index("publish")
    for position, (holder, name) in enumerate(PLACES):
        killed(shop, position, holder, name)
        if name in TRIGGERED:
            with raises(ConfigurationError, "position_skipped", skipped=position):
                shop.deliver(ROWS, position + 1)
        found = shop.deliver(ROWS, position)
        assert found["repeated"] is (position >= published), name
        assert found["rows"] == (0 if name == "confirm_step" else 2), name
        assert [id for id, _ in shop.rows()] == [1] * (position + 1) + [2] * (position + 1), name
