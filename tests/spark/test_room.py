"""No more is staged than can be rewound, and what is delivered meanwhile makes room."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_ft.spark.request import StageRequest
from airflow_ft.spark.room import QueueIsFull, Room
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
        room = Room(store, request)
        numbers: list[int] = []

        def stage_one() -> None:
            room.take()
            numbers.append(scene.trigger())
            scene.publish(numbers[-1])

        for _ in range(4):
            stage_one()
        with pytest.raises(QueueIsFull) as full:
            stage_one()
        assert full.value.waiting == 4
        with pytest.raises(QueueIsFull):
            Room(store, request).take()
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
