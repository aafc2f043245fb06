"""Columns whose default is a zero date, which tables have from servers that were not strict."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_ft.protocol.errors import UnfitTargetError
from airflow_ft.protocol.verify import Delivered
from airflow_ft.sinks.mysql.session import Session
from airflow_ft.sinks.mysql.verify import verify
from airflow_ft.wal import open_wal
from tests.integration.test_mysql_upsert import KEYS, TABLE
from tests.raising import raises
from tests.sinks.mysql.world import MySqlWorld, make_world, orders
from tools.servers import Database

STRATEGIES: dict[str, dict[str, Any]] = {"local": {}, "upsert": {**KEYS, "change_column": None}}


def world_of(database: Database, root: Path, added: str) -> MySqlWorld:
    world = make_world(database, root, orders=TABLE)
    with closing(Session(world.connection(), world.limits)) as session:
        session.run("SET SESSION sql_mode = ''")
        session.run(f"ALTER TABLE orders ADD updated {added}")
    return world


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("null", ["NULL", "NOT NULL"])
def test_an_omitted_zero_date_is_refused_by_mariadb(
    mariadb_database: Database, tmp_path: Path, strategy: str, null: str
) -> None:
    world = world_of(mariadb_database, tmp_path, f"TIMESTAMP {null} DEFAULT '0000-00-00 00:00:00'")
    plan = world.use(strategy, **STRATEGIES[strategy]).plan(orders=orders(1, 3))
    with raises(UnfitTargetError, "column_required", sink="orders", column="updated") as caught:
        world.participant(plan).prepare(plan, world.fence())
    world.sql(caught.value.remedy.split("Run ")[1].split(", or")[0])
    world.deliver(plan)
    assert world.count() == 3


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("column", ["DATE NOT NULL DEFAULT '2020-00-00'", "TIMESTAMP NULL DEFAULT '0000-00-00'"])
def test_a_column_with_a_zero_default_takes_dates(
    any_mysql_database: Database, tmp_path: Path, strategy: str, column: str
) -> None:
    world = world_of(any_mysql_database, tmp_path, column)
    rows = orders(1, 3).append_column("updated", pa.array([1, 20000, 3], pa.date32()))
    plan = world.use(strategy, **STRATEGIES[strategy]).plan(orders=rows)
    world.deliver(plan)
    [report] = verify([Delivered(plan, None, None)], plan.participants[0], world.connection(), open_wal())
    assert report.is_complete and report.expected == 3


def test_a_zero_date_can_be_in_the_key(any_mysql_database: Database, tmp_path: Path) -> None:
    key = "DROP PRIMARY KEY, ADD PRIMARY KEY (id, updated)"
    world = world_of(any_mysql_database, tmp_path, f"TIMESTAMP NOT NULL DEFAULT '0000-00-00 00:00:00', {key}")
    world.use("upsert", key_columns=("id", "updated"), version_column="version")
    plan = world.plan(orders=orders(1, 3).append_column("updated", pa.array([1, 20000, 3], pa.date32())))
    world.deliver(plan)
    [report] = verify([Delivered(plan, None, None)], plan.participants[0], world.connection(), open_wal())
    assert report.is_complete and report.expected == 3
