"""A pipeline under another name into the table of the first one: refused before Spark starts, or declared by both."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import airflow_ft as ft
from airflow_ft.protocol.errors import UnfitTargetError
from airflow_ft.store import open_store
from tests.integration.test_rejected import Shop
from tests.raising import raises

pytestmark = [pytest.mark.sampled(among="Spark drivers"), pytest.mark.airflow, pytest.mark.spark, pytest.mark.slow]


def sinks(**more: Any) -> dict[str, Any]:
    return {name: ft.SqliteSink(table=name, conn_id="shop", **more) for name in ("orders", "rejected")}


def test_a_copy_of_a_pipeline_does_not_fill_its_tables_once_more(shop_folder: Path) -> None:
    shop = Shop(shop_folder)
    shop.add('{"id": 1}', '{"id": 2}')
    shop.run()
    with raises(UnfitTargetError, "target_shared", pipeline="shop-copy") as raised:
        shop.run(pipeline="shop-copy", restart=ft.NoRestart())
    assert "'shop'" in raised.error.headline and "Nothing was computed yet" in raised.error.remedy
    with closing(open_store(f"sqlite:///{shop_folder / 'ft.db'}")) as store:
        assert store.checkpoints("shop-copy", 10) == []
    assert any("'shop'" in each.text for each in ft.dry_run(shop.spec(pipeline="shop-copy")).problems)
    shop.run(sinks=sinks(shared=True))  # nothing is new: it only declares it
    assert shop.run(pipeline="shop-copy", sinks=sinks(shared=True))["rows"] == 2
    assert shop.rows("SELECT id FROM orders ORDER BY id") == [(1,), (1,), (2,), (2,)]
