"""Whoever looks is told that a stream is held back exactly when its driver may trigger nothing."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from airflow_ft.protocol.backpressure import Wait, capacity, held_back, retained_batches
from airflow_ft.protocol.config import CheckpointConfig
from airflow_ft.protocol.lag import Lag, Unit
from airflow_ft.protocol.reasons import WaitReason
from airflow_ft.store.sqlite import SqliteStore
from tests.store.scene import PIPELINE, RUN, Scene


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    with SqliteStore(tmp_path / "ft.db") as opened:
        yield opened


def stream(store: SqliteStore, streaming: bool = True, **config: Any) -> Scene:
    """One checkpoint of a stream that is at work, and of which nobody has told how far it is behind."""
    scene = Scene(store)
    scene.take()
    store.enter_turn(PIPELINE, RUN, None)
    checkpointing = CheckpointConfig(**config).to_json()
    made_with = {"streaming": streaming, "checkpointing": checkpointing, "sources": {"orders": {"kind": "kafka"}}}
    scene.stage(made_with=made_with, continues=True)
    return scene


def test_a_full_queue_holds_back_a_stream_since_the_newest_stage(store: SqliteStore) -> None:
    scene = stream(store, max_concurrent=2)
    assert held_back(store, PIPELINE) is None, "one more may be triggered"
    [second] = scene.stage(continues=True)
    since = scene.checkpoint(second).staged_at
    assert since is not None and held_back(store, PIPELINE) == Wait(WaitReason.TOO_MANY_QUEUED, since)
    assert str(held_back(store, PIPELINE)) == f"TOO_MANY_QUEUED since {since:%Y-%m-%d %H:%M:%S}"
    store.record_lags(PIPELINE, scene.epoch, second, [Lag("orders", Unit.RECORDS, 0)])
    assert held_back(store, PIPELINE) is None, "it has read everything"
    store.record_lags(PIPELINE, scene.epoch, second, [Lag("orders", Unit.RECORDS, 7)])
    assert held_back(store, PIPELINE) is not None
    store.leave_turn(PIPELINE, RUN)
    assert held_back(store, PIPELINE) is None, "no process works"
    store.enter_turn(PIPELINE, RUN, None)
    scene.complete(1)
    assert held_back(store, PIPELINE) is None, "there is room"


def test_a_stream_waits_for_its_pause_since_it_has_confirmed(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = stream(store, min_pause=timedelta(minutes=1))
    since = scene.complete(1).completed_at
    assert since is not None and held_back(store, PIPELINE) == Wait(WaitReason.MIN_PAUSE, since)
    monkeypatch.setattr(store, "now", lambda: since + timedelta(minutes=1))
    assert held_back(store, PIPELINE) is None
    monkeypatch.setattr(store, "now", lambda: since - timedelta(days=2))
    assert held_back(store, PIPELINE) is None, "nobody waits until a clock that was put back is there again"


def test_a_stream_waits_while_a_checkpoint_is_kept_for_a_person(store: SqliteStore) -> None:
    scene = stream(store)
    second = scene.trigger()
    scene.prepare(1)
    scene.quarantine(1)
    assert held_back(store, PIPELINE) is None, "one is computed still"
    scene.publish(second)
    found = held_back(store, PIPELINE)
    assert found is not None and found.reason is WaitReason.NOT_ACTIVE
    scene.release(1)
    assert held_back(store, PIPELINE) is None


def test_a_scheduled_run_is_never_held_back(store: SqliteStore) -> None:
    scene = stream(store, streaming=False)
    scene.stage(9)
    assert held_back(store, PIPELINE) is None


def test_as_many_wait_as_spark_keeps_state_for(store: SqliteStore) -> None:
    unaligned = CheckpointConfig(unaligned=True)
    stream(store, unaligned=True).stage(3, continues=True)
    assert capacity(store, PIPELINE, unaligned, 7) == 1
    assert isinstance(capacity(store, PIPELINE, unaligned, 6), Wait)
    assert [retained_batches(unaligned, streaming=True), retained_batches(unaligned, streaming=False)] == [1000, 1000]
    aligned = [retained_batches(CheckpointConfig(max_concurrent=n), streaming=True) for n in (4, 80, 10**10)]
    assert aligned == [100, 160, 1000], "Spark takes no more than its int can say"
