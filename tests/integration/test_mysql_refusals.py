"""Rows that triggers refuse under any number: declined and named, or set aside; never retried for ever."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from airflow_ft.protocol.doctor import Verdict
from airflow_ft.protocol.errors import DeclinedError, SinkAccessError, SinkUnavailableError
from airflow_ft.protocol.model import Plan
from airflow_ft.protocol.set_aside import of_proof
from airflow_ft.sinks.mysql.doctor import examine
from airflow_ft.sinks.mysql.session import Session
from tests.raising import raises
from tests.sinks.mysql.world import MySqlWorld, each_way, make_world, orders, vote_for
from tests.waiting import wait_for
from tools.servers import Database

BODIES = {
    "1172": "SELECT id INTO @x FROM two",
    "1242": "SET @x = (SELECT id FROM two)",
    "1305": "CALL nowhere()",
    "1339": "CASE NEW.id WHEN 0 THEN SET @x = 1; END CASE",
    "1442": "UPDATE orders SET name = 'x'",
    "1365": "SET NEW.name = 1 / 0",
    "own state": "SIGNAL SQLSTATE '12345' SET MESSAGE_TEXT = 'no'",
    "own number": "SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO = 20000, MESSAGE_TEXT = 'no'",
} | {
    f"signals {code}": f"SIGNAL SQLSTATE '{state}' SET MYSQL_ERRNO = {code}, MESSAGE_TEXT = 'not this one'"
    for code, state in ((1205, "HY000"), (1213, "40001"), (1040, "08004"), (1317, "70100"), (1142, "42000"),
                        (1146, "42S02"), (2013, "HY000"), (1053, "08S01"), (1226, "42000"))
}  # fmt: skip


def refusing(world: MySqlWorld, body: str) -> None:
    world.sql("DROP TRIGGER IF EXISTS refuse")
    world.sql(
        f"CREATE TRIGGER refuse BEFORE INSERT ON orders FOR EACH ROW BEGIN IF NEW.id % 10 = 7 THEN {body}; END IF; END"
    )


@each_way
def test_a_trigger_error_of_any_number_declines_the_row(any_mysql_database: Database, tmp_path: Path, way: str) -> None:
    world = make_world(any_mysql_database, tmp_path)
    world.use_way(way)
    world.sql("CREATE TABLE two (id INT) ENGINE=InnoDB")
    world.sql("INSERT INTO two VALUES (1), (2)")
    for attempt, (name, body) in enumerate(BODIES.items(), 1):
        refusing(world, body)
        plan = world.plan(orders=orders(1, 9))
        participant = world.participant(plan)
        vote = vote_for(participant.prepare(plan, world.fence(1, attempt)), attempt)
        with pytest.raises(DeclinedError) as declined:
            participant.commit(plan, world.fence(1, attempt), vote)
        assert (declined.value.sink, declined.value.row.partition(" ")[0]) == ("orders", "7"), name
        assert world.count() == 0


@each_way
@pytest.mark.parametrize("strategy", ["local", "upsert"])
def test_a_trigger_error_of_any_number_lets_a_row_be_set_aside(
    any_mysql_database: Database, tmp_path: Path, way: str, strategy: str
) -> None:
    world = make_world(
        any_mysql_database, tmp_path, orders="id BIGINT PRIMARY KEY, name VARCHAR(100), version BIGINT DEFAULT 0"
    )
    world.use_way(way)
    keys: dict[str, Any] = {"key_columns": ["id"], "version_column": "version"} if strategy == "upsert" else {}
    world.use(strategy, **keys)
    world.sql("CREATE TABLE two (id INT) ENGINE=InnoDB")
    world.sql("INSERT INTO two VALUES (1), (2)")
    names = [name for name in BODIES if strategy == "local" or name in ("1172", "own state", "signals 1213")]
    for attempt, name in enumerate(names, 1):
        refusing(world, BODIES[name])
        plan = world.plan(orders=orders(attempt * 10, 9))
        participant = world.participant(plan)
        vote = vote_for(participant.prepare(plan, world.fence(1, attempt)), attempt)
        proof = participant.commit(plan, world.fence(1, attempt), vote, set_aside=True)
        assert (proof.counts, of_proof(proof)["orders"].rows) == ({"orders": 8}, 1), name
        world.predecessor = plan.number


def test_no_row_is_set_aside_for_what_a_trigger_lacks(any_mysql_database: Database, tmp_path: Path) -> None:
    world = make_world(any_mysql_database, tmp_path)
    world.sql("CREATE TRIGGER refuse BEFORE INSERT ON orders FOR EACH ROW INSERT INTO nowhere VALUES (NEW.id)")
    plan = world.plan(orders=orders(1, 9))
    participant = world.participant(plan)
    vote = vote_for(participant.prepare(plan, world.fence()))
    with raises(SinkAccessError, "trigger_failed", sink="orders"):
        participant.commit(plan, world.fence(1, 2), vote, set_aside=True)
    world.sql("CREATE TABLE nowhere (id BIGINT) ENGINE=InnoDB")
    proof = participant.commit(plan, world.fence(1, 3), vote, set_aside=True)
    assert (proof.counts, of_proof(proof)) == ({"orders": 9}, {})


def test_a_duplicate_is_found_though_the_server_names_no_row(any_mysql_database: Database, tmp_path: Path) -> None:
    world = make_world(any_mysql_database, tmp_path, orders="id BIGINT PRIMARY KEY, name VARCHAR(100)")
    world.sql("INSERT INTO orders VALUES (1234, 'there')")
    for attempt, strategy in enumerate(("local", "xa"), 1):
        world.use(strategy)
        plan = world.plan(orders=orders(1, 3000))
        participant = world.participant(plan)
        with pytest.raises(DeclinedError) as declined:
            vote = vote_for(participant.prepare(plan, world.fence(1, attempt)), attempt)
            participant.commit(plan, world.fence(1, attempt), vote)
        assert declined.value.row.startswith("1234 of "), strategy


def test_what_is_no_fault_of_the_rows_is_tried_again(any_mysql_database: Database, tmp_path: Path) -> None:
    world = make_world(any_mysql_database, tmp_path, orders="id BIGINT PRIMARY KEY, name VARCHAR(100)")
    plan = world.plan(orders=orders(1, 3))
    vote = vote_for(world.participant(plan).prepare(plan, world.fence()))
    with world.server.connect(world.database, autocommit=False) as other:
        other.cursor().execute("INSERT INTO orders VALUES (2, 'locked')")
        with pytest.raises(SinkUnavailableError):
            world.participant(plan).commit(plan, world.fence(1, 2), vote)
        other.rollback()
    user = f"r{world.database[-8:]}"
    world.sql(f"CREATE USER '{user}'@'%' IDENTIFIED BY 'x'")
    world.sql(f"GRANT ALL ON `{world.database}`.airflow_ft_head TO '{user}'@'%'")
    world.sql(f"GRANT ALL ON `{world.database}`.airflow_ft_ledger TO '{user}'@'%'")
    world.sql(f"GRANT INSERT (id) ON `{world.database}`.orders TO '{user}'@'%'")
    with pytest.raises(SinkAccessError):
        world.participant(plan, login=user, password="x").commit(plan, world.fence(1, 3), vote)
    world.sql(f"GRANT INSERT (name) ON `{world.database}`.orders TO '{user}'@'%'")
    proof = world.participant(plan, login=user, password="x").commit(plan, world.fence(1, 4), vote)
    assert proof.counts == {"orders": 3}
    world.sql(f"DROP USER '{user}'@'%'")


def used_up(world: MySqlWorld, plan: Plan, user: str) -> str:
    with pytest.raises(SinkAccessError) as refused:
        for attempt in (1, 2):
            world.participant(plan, login=user, password="x").prepare(plan, world.fence(1, attempt))
    return refused.value.remedy


def test_a_used_up_limit_of_the_account_is_named_with_its_remedy(any_mysql_database: Database, tmp_path: Path) -> None:
    world = make_world(any_mysql_database, tmp_path)
    user = f"u{world.database[-8:]}"
    world.sql(f"CREATE USER '{user}'@'%' IDENTIFIED BY 'x'")
    world.sql(f"GRANT ALL ON `{world.database}`.* TO '{user}'@'%'")
    left = f"SELECT 1 FROM information_schema.processlist WHERE user = '{user}'"
    for clause in ("MAX_QUERIES_PER_HOUR", "MAX_UPDATES_PER_HOUR", "MAX_CONNECTIONS_PER_HOUR", "MAX_USER_CONNECTIONS"):
        world.sql(f"ALTER USER '{user}'@'%' WITH MAX_QUERIES_PER_HOUR 0 MAX_UPDATES_PER_HOUR 0"
                  " MAX_CONNECTIONS_PER_HOUR 0 MAX_USER_CONNECTIONS 0")  # fmt: skip
        world.sql(f"ALTER USER '{user}'@'%' WITH {clause} 1")
        plan = world.plan(orders=orders(1, 3))
        if clause == "MAX_USER_CONNECTIONS":
            with closing(Session(world.connection(login=user, password="x"), world.limits)):
                assert clause in used_up(world, plan, user)
            wait_for(lambda: not world.sql(left), 30, "the sessions have ended")
            checks = examine("orders", plan.participants[0], world.connection(login=user, password="x"), [])
            assert [check.verdict for check in checks if "MAX_USER_CONNECTIONS 1" in check.text] == [Verdict.PROBLEM]
        else:
            assert clause in used_up(world, plan, user)
    world.sql(f"DROP USER '{user}'@'%'")
