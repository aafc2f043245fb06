"""A table that is altered between the vote and the delivery: nothing is converted in silence, and the rows wait."""

from __future__ import annotations

from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pymysql
import pytest

from airflow_ft.protocol.errors import UnfitTargetError
from airflow_ft.protocol.model import Plan
from airflow_ft.protocol.set_aside import of_proof
from airflow_ft.protocol.verify import Delivered, SinkReport
from airflow_ft.protocol.votes import Proof
from airflow_ft.sinks.mysql import judging
from airflow_ft.sinks.mysql.load import Loader
from airflow_ft.sinks.mysql.session import Session
from airflow_ft.sinks.mysql.verify import verify
from airflow_ft.wal import open_wal
from tests.integration.test_mysql_xa import prepared
from tests.sinks.mysql.world import MySqlWorld, make_world, orders, vote_for
from tools.servers import Database

KEYS = {"key_columns": ["id"], "version_column": "version"}
COLUMNS = "id BIGINT PRIMARY KEY, d DOUBLE, n DECIMAL(12,2), t VARCHAR(20), s SMALLINT, at DATETIME(6)"
COLUMNS += ", version BIGINT DEFAULT 0"
CHANGES = {
    "double to float": ("d", "MODIFY d FLOAT", "MODIFY d DOUBLE"),
    "double to int": ("d", "MODIFY d INT", "MODIFY d DOUBLE"),
    "decimal to bigint": ("n", "MODIFY n BIGINT", "MODIFY n DECIMAL(12,2)"),
    "fewer digits": ("n", "MODIFY n DECIMAL(12,1)", "MODIFY n DECIMAL(12,2)"),
    "varchar to char": ("t", "MODIFY t CHAR(20)", "MODIFY t VARCHAR(20)"),
    "shorter": ("t", "MODIFY t VARCHAR(2)", "MODIFY t VARCHAR(20)"),
    "other characters": (
        "t",
        "MODIFY t VARCHAR(20) CHARACTER SET latin1",
        "MODIFY t VARCHAR(20) CHARACTER SET utf8mb4",
    ),
    "no sign": ("s", "MODIFY s SMALLINT UNSIGNED", "MODIFY s SMALLINT"),
    "no fraction": ("at", "MODIFY at DATETIME", "MODIFY at DATETIME(6)"),
    "computed": ("s", "DROP COLUMN s, ADD COLUMN s SMALLINT AS (1) STORED", "DROP COLUMN s, ADD COLUMN s SMALLINT"),
    "no such column": ("d", "DROP COLUMN d", "ADD COLUMN d DOUBLE"),
    "one more that is needed": ("new", "ADD COLUMN new INT NOT NULL", "DROP COLUMN new"),
}


def rows() -> pa.Table:
    return pa.table(
        {
            "id": pa.array([1, 2], pa.int64()),
            "d": pa.array([0.1, 2.5], pa.float64()),
            "n": pa.array([Decimal("2.55"), None], pa.decimal128(12, 2)),
            "t": ["blank ", "ż"],
            "s": pa.array([1, -1], pa.int16()),
            "at": pa.array([1_700_000_000_123_456, None], pa.timestamp("us")),
        }
    )


def voted(database: Database, root: Path, strategy: str) -> tuple[MySqlWorld, Any, Any, Any]:
    world = make_world(database, root, orders=COLUMNS)
    world.use(strategy, **(KEYS if strategy == "upsert" else {}))
    plan = world.plan(orders=rows())
    notes = world.participant(plan).prepare(plan, world.fence())
    return world, plan, world.participant(plan), vote_for(notes)


def verified(world: MySqlWorld, plan: Plan, proof: Proof) -> SinkReport:
    [report] = verify([Delivered(plan, proof, None)], plan.participants[0], world.connection(), open_wal())
    return report


@pytest.mark.sampled
@pytest.mark.parametrize("strategy", ["local", "upsert"])
@pytest.mark.parametrize("name", CHANGES)
def test_an_altered_table_receives_no_rows_until_it_fits_again(
    any_mysql_database: Database, tmp_path: Path, strategy: str, name: str
) -> None:
    column, change, back = CHANGES[name]
    world, plan, participant, vote = voted(any_mysql_database, tmp_path, strategy)
    world.sql(f"ALTER TABLE orders {change}")
    with pytest.raises(UnfitTargetError) as unfit:
        participant.commit(plan, world.fence(1, 2), vote)
    assert (unfit.value.sink, unfit.value.column) == ("orders", column)
    assert world.count() == 0 and world.markers() == []

    world.sql(f"ALTER TABLE orders {back}")
    proof = participant.commit(plan, world.fence(1, 3), vote)
    assert proof.counts == {"orders": 2}
    assert world.sql("SELECT d, n, t, s FROM orders ORDER BY id") == [(0.1, Decimal("2.55"), "blank ", 1),
                                                                      (2.5, None, "ż", -1)]  # fmt: skip


def test_rows_are_delivered_to_an_altered_table_that_still_fits(any_mysql_database: Database, tmp_path: Path) -> None:
    world, plan, participant, vote = voted(any_mysql_database, tmp_path, "local")
    world.sql("ALTER TABLE orders MODIFY t VARCHAR(200), ADD COLUMN more INT FIRST, MODIFY n DECIMAL(20,4)")
    assert participant.commit(plan, world.fence(1, 2), vote).counts == {"orders": 2}


def test_a_settled_number_is_proven_whatever_became_of_the_table(any_mysql_database: Database, tmp_path: Path) -> None:
    world, plan, participant, vote = voted(any_mysql_database, tmp_path, "local")
    proof = participant.commit(plan, world.fence(1, 2), vote)
    world.sql("ALTER TABLE orders ADD COLUMN more INT NOT NULL")
    report = verified(world, plan, proof)
    assert report.is_exact and report.expected == 2
    world.sql("ALTER TABLE orders MODIFY d FLOAT")
    assert participant.commit(plan, world.fence(1, 3), vote) == proof
    assert ".d" in verified(world, plan, proof).error  # it was converted, and so would be a copy of the log's rows
    world.sql("ALTER TABLE orders MODIFY d DOUBLE")
    assert verified(world, plan, proof).missing == 1


@pytest.mark.parametrize("strategy", ["local", "upsert"])
def test_a_table_cannot_be_altered_while_rows_are_sent(
    any_mysql_database: Database, tmp_path: Path, strategy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows are checked in prepare, and not again in commit if the table is unchanged."""
    world, plan, participant, vote = voted(any_mysql_database, tmp_path, strategy)
    monkeypatch.setattr(judging, "check_rows", lambda *_: pytest.fail("the rows were read once more"))
    refused = []
    send = Loader.send

    def altered(self: Loader, *args: Any) -> int:
        with closing(Session(world.connection(), world.limits)) as other:
            other.run("SET SESSION lock_wait_timeout = 1")
            try:
                other.run("ALTER TABLE orders MODIFY d FLOAT")
            except pymysql.err.MySQLError as error:
                refused.append(error.args[0])
        return send(self, *args)

    monkeypatch.setattr(Loader, "send", altered)
    assert participant.commit(plan, world.fence(1, 2), vote).counts == {"orders": 2}
    assert refused and set(refused) == {1205}


@pytest.mark.parametrize("strategy", ["local", "upsert"])
def test_rows_that_do_not_fit_any_more_can_be_set_aside(
    any_mysql_database: Database, tmp_path: Path, strategy: str
) -> None:
    world, plan, participant, vote = voted(any_mysql_database, tmp_path, strategy)
    world.sql("ALTER TABLE orders MODIFY t CHAR(20)")
    proof = participant.commit(plan, world.fence(1, 2), vote, set_aside=True)
    assert (proof.counts, of_proof(proof)["orders"].rows) == ({"orders": 1}, 1)
    assert world.sql("SELECT id, t FROM orders") == [(2, "ż")]


def test_a_redelivery_waits_while_an_altered_table_does_not_fit(any_mysql_database: Database, tmp_path: Path) -> None:
    world, plan, participant, vote = voted(any_mysql_database, tmp_path, "xa")
    for name in prepared(world):
        world.server.sql(f"XA ROLLBACK {name}")
    world.sql("ALTER TABLE orders MODIFY d FLOAT")
    with pytest.raises(UnfitTargetError):
        participant.commit(plan, world.fence(1, 2), vote)
    assert world.count() == 0
    world.sql("ALTER TABLE orders MODIFY d DOUBLE")
    assert participant.commit(plan, world.fence(1, 3), vote).counts == {"orders": 2}


def test_a_table_altered_during_prepare_is_checked_again(
    any_mysql_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make_world(any_mysql_database, tmp_path, orders=COLUMNS).use("xa")
    plan = world.plan(orders=rows())
    participant: Any = world.participant(plan)
    hold = participant._hold

    def altered(*args: Any) -> None:
        world.sql("ALTER TABLE orders MODIFY d FLOAT")
        hold(*args)

    monkeypatch.setattr(participant, "_hold", altered)
    with pytest.raises(UnfitTargetError):
        participant.prepare(plan, world.fence())
    world.sql("ALTER TABLE orders MODIFY d DOUBLE")  # no branch is left that would hold it up


@pytest.mark.parametrize(
    "change",
    ["RENAME TABLE orders TO o; CREATE VIEW orders AS SELECT * FROM o", "ALTER TABLE orders ENGINE=MyISAM",
     "DROP TABLE orders"],
)  # fmt: skip
def test_what_is_no_innodb_table_any_more_takes_nothing(
    any_mysql_database: Database, tmp_path: Path, change: str
) -> None:
    world = make_world(any_mysql_database, tmp_path)
    plan = world.plan(orders=orders(1, 3))
    vote = vote_for(world.participant(plan).prepare(plan, world.fence()))
    for statement in change.split("; "):
        world.sql(statement)
    with pytest.raises(UnfitTargetError):
        world.participant(plan).commit(plan, world.fence(1, 2), vote)
    assert world.markers() == []
