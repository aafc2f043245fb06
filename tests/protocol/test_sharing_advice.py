"""What the refusal of a table that another pipeline fills advises."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from airflow_ft import MySqlSink, PostgresSink
from airflow_ft.protocol import sharing
from airflow_ft.protocol.pipelines import Filling
from airflow_ft.sinks.shared import Opener
from airflow_ft.testing.world import SINK
from tests.protocol.test_sharing import DELIVERED, MINE, OTHER, delivery_of


@pytest.mark.parametrize("kind", [MySqlSink, PostgresSink])
@pytest.mark.parametrize("upserts", [True, False])
def test_no_upsert_is_advised_to_share(kind: Any, upserts: bool) -> None:
    """Such a sink refuses shared=True."""
    by_key = {"strategy": "upsert", "key_columns": ["id"], "version_column": "version"}
    [plan] = delivery_of(kind(table="orders", **(by_key if upserts else {}))).participants
    [target] = sharing._targets(plan, Opener(lambda name: replace(DELIVERED, conn_id=name)))
    remedy = sharing._refused(MINE, {SINK: target}, Filling(OTHER, "ACTIVE", 7, (plan,)), staged=False).remedy
    advised = "set shared=True" in remedy, f"`airflow ft retire {OTHER}`" in remedy
    assert advised == (not upserts, not upserts)
