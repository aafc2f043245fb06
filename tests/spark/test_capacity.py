"""No more is staged than can be rewound, and what is delivered meanwhile makes room."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from airflow_ft.protocol.backpressure import Wait
from airflow_ft.protocol.config import CheckpointConfig
from airflow_ft.protocol.model import AfterAbort
from airflow_ft.protocol.reasons import WaitReason
from airflow_ft.spark.driver import capacity
from airflow_ft.spark.driver.capacity import Capacity, QueueIsFull
from airflow_ft.spark.request import StageRequest
from airflow_ft.spark.task.launcher import WAITED
from airflow_ft.store.sqlite import SqliteStore
from tests.store.scene import PIPELINE, RUN, Scene


def test_what_waits_fills_it_and_what_is_delivered_makes_room(tmp_path: Path) -> None:
    with SqliteStore(tmp_path / "ft.db") as store:
        scene = Scene(store)
        scene.take()
        request = StageRequest(
            pipeline=PIPELINE,
            run=RUN,
            epoch=1,
            attempt=1,
            store_url="",
            wal_root="/wal",
            job="jobs.p",
            sinks=("s",),
            retained_batches=6,
        )
        left = Capacity(store, request)
        numbers: list[int] = []

        def stage_one() -> None:
            left.take()
            numbers.append(scene.trigger())
            scene.publish(numbers[-1])

        for _ in range(4):
            stage_one()
        with pytest.raises(QueueIsFull) as full:
            stage_one()
        assert full.value.waiting == 4
        with pytest.raises(QueueIsFull):
            Capacity(store, request).take()
        for number in numbers[:3]:
            scene.complete(number)
        for _ in range(3):
            stage_one()
        with pytest.raises(QueueIsFull):
            stage_one()
        for number in numbers[3:]:
            scene.complete(number)
        for _ in range(40):  # a stream whose sinks keep up goes on for ever
            stage_one()
            scene.complete(numbers[-1])


class Stream:
    """A stream that may trigger when `Capacity` lets it."""

    def __init__(self, store: SqliteStore, **config: Any) -> None:
        self.scene = Scene(store)
        self.scene.take()
        self.capacity = Capacity(
            store,
            StageRequest(
                pipeline=PIPELINE,
                run=RUN,
                epoch=1,
                attempt=1,
                store_url="",
                wal_root="/wal",
                job="jobs.p",
                sinks=("s",),
                streaming=True,
                checkpointing=CheckpointConfig(**config),
            ),
        )

    def stage_one(self) -> int:
        assert self.capacity.try_take() is None
        number = self.scene.trigger()
        self.scene.publish(number)
        return number


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    with SqliteStore(tmp_path / "ft.db") as opened:
        yield opened


def test_a_stream_waits_while_as_many_as_may_be_are_under_way(store: SqliteStore) -> None:
    stream = Stream(store, max_concurrent=2)
    first, _ = stream.stage_one(), stream.stage_one()
    assert stream.capacity.try_take() is WaitReason.TOO_MANY_QUEUED
    stream.scene.complete(first)
    stream.stage_one()
    assert stream.capacity.try_take() is WaitReason.TOO_MANY_QUEUED


def test_an_unaligned_stream_does_not_wait_for_its_sinks(store: SqliteStore) -> None:
    stream = Stream(store, unaligned=True)
    for _ in range(5):  # none of them is delivered
        stream.stage_one()
    assert store.undelivered(PIPELINE) == 5


def test_an_unaligned_stream_waits_for_sinks_up_to_its_timeout(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the store's clock, from the trigger on; and no longer than until they are there."""
    patience = timedelta(seconds=30)
    stream = Stream(store, unaligned=True, aligned_timeout=patience)
    begun = store.checkpoint(PIPELINE, stream.stage_one()).triggered_at
    clock = begun + patience - timedelta(microseconds=1)
    monkeypatch.setattr(store, "now", lambda: clock)
    assert stream.capacity.try_take() is WaitReason.TOO_MANY_QUEUED
    clock = begun + patience
    second = stream.stage_one()
    clock = store.checkpoint(PIPELINE, second).triggered_at
    assert stream.capacity.try_take() is WaitReason.TOO_MANY_QUEUED
    clock += patience
    third = stream.stage_one()
    clock = store.checkpoint(PIPELINE, third).triggered_at
    assert stream.capacity.try_take() is WaitReason.TOO_MANY_QUEUED
    stream.scene.complete(third, [1, second, third])
    stream.stage_one()


def test_a_stream_waits_for_its_pause(store: SqliteStore) -> None:
    stream = Stream(store, min_pause=timedelta(hours=1))
    stream.scene.complete(stream.stage_one())
    assert stream.capacity.try_take() is WaitReason.MIN_PAUSE


def test_a_stream_waits_while_a_checkpoint_is_kept_for_a_person(store: SqliteStore) -> None:
    stream = Stream(store, max_concurrent=3)
    number = stream.stage_one()
    stream.scene.prepare(number)
    stream.scene.quarantine(number)
    stream.capacity = Capacity(store, stream.capacity._request)
    assert stream.capacity.try_take() is WaitReason.NOT_ACTIVE
    stream.scene.release(number)
    stream.stage_one()


def test_aborted_rows_are_carried_over_while_a_stream_waits(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I7: it fills the room, and only the stream's own driver may publish a number that carries it."""
    monkeypatch.setattr(capacity, "_CARRIED_EACH", 0.01)
    stream = Stream(store, unaligned=True)
    stream.capacity._request = replace(stream.capacity._request, retained_batches=3)
    lost = stream.stage_one()
    stream.scene.abort(lost, AfterAbort.CARRIED)
    assert stream.capacity.try_take() is WaitReason.TOO_MANY_QUEUED
    stream.capacity.take(carry=lambda: stream.scene.complete(stream.scene.carry(), [lost]))
    assert store.undelivered(PIPELINE) == 0


def test_a_wait_is_told_with_its_reason_and_counted(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "airflow_ft.spark.driver.capacity")
    for each in ("_LOG_EACH", "_COUNTED_EACH"):
        monkeypatch.setattr(capacity, each, 0.05)
    stream = Stream(store, max_concurrent=1)
    stream.stage_one()

    def is_over() -> bool:
        return any(message.startswith("no checkpoint is triggered for") for message in caplog.messages)

    stream.capacity.take(is_over)
    [messages] = [message for message in caplog.messages if message.startswith("no checkpoint")]
    assert all(part in messages for part in ("(TOO_MANY_QUEUED)", "1 wait for delivery", "airflow ft in-doubt"))
    counted = [message for message in caplog.messages if message.startswith("not triggered for")]
    assert counted and all(WAITED.match(message) for message in counted)


class Clock:
    """A clock that only the code under test moves."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.mark.parametrize(("seconds", "least", "most"), [(0.001, 400, 500), (0.05, 15, 20), (3.0, 2, 3)])
def test_looks_that_take_long_are_made_less_often(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float, least: int, most: int
) -> None:
    clock, looks = Clock(), list[float]()
    with SqliteStore(tmp_path / "ft.db") as store:
        stream = Stream(store)
        since = store.now()

        def look(*_: Any) -> Wait:
            looks.append(clock.now)
            clock.now += seconds
            return Wait(WaitReason.TOO_MANY_QUEUED, since)

        monkeypatch.setattr(capacity, "time", clock)
        monkeypatch.setattr(capacity, "capacity", look)
        stream.capacity.take(lambda: clock.now >= 10)
    assert least <= len(looks) <= most
    assert all(later - sooner <= seconds + 1.001 for sooner, later in pairwise(looks))
