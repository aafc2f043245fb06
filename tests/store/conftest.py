"""The store under test here is SQLite; tests/integration runs the same classes against PostgreSQL."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from airflow_ft.protocol.model import Checkpoint
from airflow_ft.store import open_store, postgres
from airflow_ft.store.decision_log import DecisionLog
from airflow_ft.store.writing import PipelineWrite
from tests.store.scene import Scene


@pytest.fixture
def store_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/store/ft.db"


@pytest.fixture
def store(store_url: str) -> Iterator[DecisionLog]:
    store = open_store(store_url)
    yield store
    store.close()


@pytest.fixture
def scene(store: DecisionLog) -> Scene:
    return Scene(store)


@pytest.fixture
def move_clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[timedelta], None]:
    """Set the decision log's clock, of either database, this far ahead of the machine's."""
    clock = time.time_ns

    def move(ahead: timedelta) -> None:
        microseconds = ahead // timedelta(microseconds=1)
        now = f"(extract(epoch FROM clock_timestamp()) * 1000000 + {microseconds})::bigint AS now"
        monkeypatch.setattr(time, "time_ns", lambda: clock() + microseconds * 1000)
        monkeypatch.setattr(postgres, "_NOW", now)
        monkeypatch.setattr(postgres, "_CLOCK", f"SELECT {now}")

    return move


@pytest.fixture(autouse=True)
def what_was_read_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """In each test: a checkpoint that a write remembers, and has changed, is the one that the database has."""

    def compared(write: PipelineWrite, number: int, found: Callable[..., Checkpoint] = PipelineWrite.checkpoint) -> Any:
        remembered = found(write, number)
        write._seen.pop(number)
        assert remembered == found(write, number)
        return remembered

    monkeypatch.setattr(PipelineWrite, "checkpoint", compared)
