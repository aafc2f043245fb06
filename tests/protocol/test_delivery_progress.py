"""How far a delivery has come goes with the lease's renewals, and into metrics, while it is fresh."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from airflow_ft.protocol import lease
from airflow_ft.protocol.delivery_progress import FRESH_SECONDS, DeliveryProgress, Taken
from airflow_ft.protocol.lease import Worker, new_epoch
from airflow_ft.store.sqlite import SqliteStore
from tests.protocol.systems import Metered
from tests.store.scene import PIPELINE, Scene
from tests.waiting import wait_for

ORDERS, COPIES = Taken(PIPELINE, 7, "shop", "orders", 3_400_000, 10_000_000), Taken(PIPELINE, 7, "log", "copies", 5, 10)


def test_what_was_told_last_counts_for_half_a_minute() -> None:
    now = [0.0]
    headway = DeliveryProgress(lambda: now[0])
    assert headway.now(PIPELINE) == []
    headway.report(Taken(PIPELINE, 7, "shop", "orders", 1, 10))
    headway.report(ORDERS)
    headway.report(Taken("another", 3, "shop", "bills", 1, 10))
    now[0] = 20.0
    headway.report(COPIES)
    assert headway.now(PIPELINE) == [COPIES, ORDERS]
    now[0] = FRESH_SECONDS + 1
    assert headway.now(PIPELINE) == [COPIES]


def test_a_lease_tells_how_far_its_holder_has_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    headway = DeliveryProgress()
    monkeypatch.setattr(lease, "DELIVERY_PROGRESS", headway)
    with SqliteStore(tmp_path / "ft.db") as store:
        Scene(store)
        store.meter = meter = Metered()
        with new_epoch(store, PIPELINE, Worker("dag/commit_shop"), "test", lease_seconds=0.3):
            [mine] = store.leases(PIPELINE)
            assert mine.doing == ""
            headway.report(ORDERS)
            text = "checkpoint 7: shop has taken 3,400,000 of 10,000,000 rows of orders"
            wait_for(lambda: store.leases(PIPELINE)[0].doing == text, 20, "it is renewed")
        assert ("taken", PIPELINE, ORDERS) in meter.calls
        assert meter.calls[-1] == ("taken", PIPELINE, replace(ORDERS, rows=0, of=0)), "it is over"


def test_a_lease_is_renewed_though_metrics_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    headway = DeliveryProgress()
    headway.report(ORDERS)
    monkeypatch.setattr(lease, "DELIVERY_PROGRESS", headway)
    with SqliteStore(tmp_path / "ft.db") as store:
        Scene(store)
        store.meter = Metered()
        monkeypatch.setattr(store.meter, "taken", fails)
        with new_epoch(store, PIPELINE, Worker("dag/commit_shop"), "test", lease_seconds=0.3) as (_, keeper):
            wait_for(lambda: store.leases(PIPELINE)[0].counter > 2, 20, "it is renewed on")
            keeper.check()


def fails(*_: object) -> None:
    raise ImportError("no metrics here")
