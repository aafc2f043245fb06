"""The strategy `local` against real servers: markers, fencing, refusals, contradictions."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pymysql
import pytest

from airflow_ft.protocol.errors import (
    DeclinedError,
    FencedError,
    ForeignOwnerError,
    SinkAccessError,
    SinkUnavailableError,
    StoreBehindSinkError,
)
from airflow_ft.protocol.model import Plan, canonical_json
from airflow_ft.protocol.votes import Outcome
from airflow_ft.sinks.mysql.fencing import announce, guarded_head, new_nonce
from airflow_ft.sinks.mysql.ledger import Ledger
from airflow_ft.sinks.mysql.session import Session
from airflow_ft.sinks.mysql.spec import MySqlSink
from tests.raising import raises
from tests.sinks.mysql.world import MySqlWorld, make_world, orders, vote_for
from tools.servers import Database


@pytest.fixture
def world(any_mysql_database: Database, tmp_path: Path) -> MySqlWorld:
    return make_world(any_mysql_database, tmp_path)


def test_rows_and_marker_become_visible_together(world: MySqlWorld) -> None:
    plan = world.plan(orders=orders(1, 3))
    participant = world.participant(plan)

    notes = participant.prepare(plan, world.fence())
    assert world.count() == 0
    assert notes["path"] == world.way
    assert notes["tables"]["orders"]["rows"] == 3
    assert participant.proof(plan) is None

    proof = participant.commit(plan, world.fence(1, 2))
    assert world.count() == 3
    assert (proof.outcome, proof.digest, proof.epoch, proof.counts) == (
        Outcome.COMMITTED, plan.digest, 1, {"orders": 3},
    )  # fmt: skip
    assert participant.proof(plan) == proof
    assert world.markers() == [(1, "committed", 1, 2, 3)]


def test_a_repeated_commit_has_no_second_effect(world: MySqlWorld) -> None:
    plan = world.plan(orders=orders(1, 3))
    world.deliver(plan)
    proof = world.participant(plan).proof(plan)

    assert world.participant(plan).commit(plan, world.fence(2, 9)) == proof
    assert world.participant(plan).prepare(plan, world.fence(2, 10))["settled"] == "committed"
    assert world.count() == 3


def test_several_tables_and_segments_are_one_transaction(any_mysql_database: Database, tmp_path: Path) -> None:
    world = make_world(any_mysql_database, tmp_path, orders="id BIGINT, name TEXT", refunds="id BIGINT PRIMARY KEY")
    carried = world.segment(1, {"orders": orders(1, 2), "refunds": pa.table({"id": [1]})})
    own = world.segment(2, {"orders": orders(3, 2), "refunds": pa.table({"id": [1]})})
    plan = world.plan_of(2, carried, own)
    participant = world.participant(plan)
    participant.prepare(plan, world.fence())

    with pytest.raises(DeclinedError) as declined:
        participant.commit(plan, world.fence())
    assert (world.count("orders"), world.count("refunds"), world.markers()) == (0, 0, [])
    assert declined.value.sink == "refunds"

    plan = world.plan_of(3, carried, world.segment(3, {"orders": orders(3, 2), "refunds": pa.table({"id": [2]})}))
    proof = world.participant(plan).commit(plan, world.fence())
    assert proof.counts == {"orders": 4, "refunds": 2}
    assert (world.count("orders"), world.count("refunds")) == (4, 2)


def test_refused_rows_leave_nothing_and_name_the_row(any_mysql_database: Database, tmp_path: Path) -> None:
    world = make_world(any_mysql_database, tmp_path, orders="id BIGINT PRIMARY KEY, name VARCHAR(100)")
    plan = world.plan(orders=pa.concat_tables([orders(1, 5), orders(3, 1)]))
    participant = world.participant(plan)
    participant.prepare(plan, world.fence())
    with raises(DeclinedError, "row_refused", errno=1062, checkpoint=1, participant="shop") as declined:
        participant.commit(plan, world.fence())
    assert declined.error and "'3'" in declined.error.headline
    assert world.count() == 0 and world.markers() == []
    assert participant.proof(plan) is None


def test_a_late_commit_meets_the_tombstone(world: MySqlWorld) -> None:
    plan = world.plan(orders=orders(1, 3))
    participant = world.participant(plan)
    participant.prepare(plan, world.fence())
    detail = {"reason": "DECLINED", "message": "no"}
    tombstone = participant.abort(plan, world.fence(1, 2), detail)
    assert (tombstone.outcome, tombstone.detail, tombstone.digest) == (Outcome.ABORTED, detail, plan.digest)

    late = world.participant(plan).commit(plan, world.fence(1, 3))
    assert late == tombstone == participant.proof(plan)
    assert participant.abort(plan, world.fence(1, 4), {"reason": "USER"}) == tombstone
    assert world.count() == 0


def test_an_abort_meets_the_committed_marker(world: MySqlWorld) -> None:
    plan = world.plan(orders=orders(1, 3))
    world.deliver(plan)
    assert world.participant(plan).abort(plan, world.fence(5, 5), {}).outcome is Outcome.COMMITTED
    assert world.count() == 3


def test_the_number_after_an_aborted_one_carries_its_rows(world: MySqlWorld) -> None:
    first = world.plan(orders=orders(1, 3))
    participant = world.participant(first)
    participant.prepare(first, world.fence())
    participant.abort(first, world.fence(1, 2), {})
    second = world.plan_of(2, *first.segments, world.segment(2, {"orders": orders(4, 2)}))
    world.deliver(second, 1, 3)
    assert world.count() == 5
    assert [row[:2] for row in world.markers()] == [(1, "aborted"), (2, "committed")]


@pytest.mark.parametrize("method", ["prepare", "commit", "abort"])
@pytest.mark.parametrize("older", [(2, 3), (1, 99)])
def test_an_older_attempt_changes_nothing(world: MySqlWorld, method: str, older: tuple[int, int]) -> None:
    plan = world.plan(orders=orders(1, 3))
    world.participant(plan).prepare(plan, world.fence(2, 4))
    participant = world.participant(plan)
    arguments: tuple[Any, ...] = ({},) if method == "abort" else ()
    with pytest.raises(FencedError) as fenced:
        getattr(participant, method)(plan, world.fence(*older), *arguments)
    assert fenced.value.head_epoch == 2
    assert world.count() == 0 and world.markers() == []
    assert world.sql("SELECT epoch, attempt FROM airflow_ft_head") == [(2, 4)]


@pytest.mark.parametrize("method", ["prepare", "commit", "abort", "proof"])
def test_another_decision_log_is_refused(world: MySqlWorld, method: str) -> None:
    plan = world.plan(orders=orders(1, 3))
    world.deliver(plan)
    world.installation = "99999999-2222-4333-8444-555555555555"
    foreign = replace(plan, installation=world.installation)
    participant = world.participant(foreign)
    arguments: dict[str, tuple[Any, ...]] = {
        "prepare": (world.fence(9, 9),),
        "commit": (world.fence(9, 9),),
        "abort": (world.fence(9, 9), {}),
    }
    with raises(ForeignOwnerError, "foreign_owner", installation=plan.installation):
        getattr(participant, method)(foreign, *arguments.get(method, ()))
    assert world.count() == 3
    with pytest.raises(ForeignOwnerError):
        participant.forget(world.fence(9, 9), 1)


def test_adopting_a_sink_shuts_out_its_old_installation(world: MySqlWorld) -> None:
    old = world.plan(orders=orders(1, 3))
    world.deliver(old)
    before, fence = world.installation, world.fence(1, 9)
    world.installation = "99999999-2222-4333-8444-555555555555"
    new = replace(world.plan(orders=orders(4, 2)), installation=world.installation)
    participant = world.participant(new)
    head = participant.head(new.pipeline)
    assert head is not None
    assert (head.installation, head.number) == (before, old.number)
    participant.adopt(world.fence(7, 0), old.number)
    participant.prepare(new, world.fence(7, 1))
    participant.commit(new, world.fence(7, 2))
    assert world.count() == 5
    with pytest.raises(ForeignOwnerError):
        world.participant(old).commit(old, fence)
    assert world.count() == 5


@pytest.mark.parametrize("method", ["prepare", "commit", "abort", "proof"])
def test_a_marker_of_other_rows_contradicts_the_decision_log(world: MySqlWorld, method: str) -> None:
    world.deliver(world.plan(orders=orders(1, 3)))
    world.number, world.predecessor = 0, 0  # the store was restored from a backup and gives out number 1 again
    again = world.plan(orders=orders(100, 3))
    participant = world.participant(again)
    fence = world.fence(1, 9)
    with raises(StoreBehindSinkError, "digest_mismatch", number=1):
        getattr(participant, method)(*{"abort": (again, fence, {}), "proof": (again,)}.get(method, (again, fence)))
    assert world.count() == 3


@pytest.mark.parametrize("method", ["prepare", "commit", "abort"])
def test_a_sink_ahead_of_the_plan_contradicts_the_store(world: MySqlWorld, method: str) -> None:
    world.deliver(world.plan(orders=orders(1, 3)))
    world.deliver(world.plan(orders=orders(4, 3)))
    world.predecessor = 1
    behind = world.plan(orders=orders(9, 1))
    with raises(StoreBehindSinkError, "store_behind_sink", found=2, expected=1, checkpoint=3):
        getattr(world.participant(behind), method)(behind, world.fence(1, 9), *([{}] if method == "abort" else []))
    assert world.count() == 6


def test_a_sink_that_forgot_a_delivery_stops_only_the_commit(world: MySqlWorld) -> None:
    world.deliver(world.plan(orders=orders(1, 3)))
    world.predecessor = 2  # planned behind number 2, which is not delivered here
    third = world.plan_of(3, world.segment(3, {"orders": orders(9, 1)}))
    world.participant(third).prepare(third, world.fence(1, 2))
    with raises(StoreBehindSinkError, "store_behind_sink", found=1, expected=2):
        world.participant(third).commit(third, world.fence(1, 3))
    assert world.participant(third).abort(third, world.fence(1, 4), {}).outcome is Outcome.ABORTED
    assert world.count() == 3


@pytest.mark.parametrize("lost", ["airflow_ft_head", "both"])
def test_a_lost_head_is_not_a_new_pipeline(world: MySqlWorld, lost: str) -> None:
    world.deliver(world.plan(orders=orders(1, 3)))
    world.sql("DELETE FROM airflow_ft_head")
    if lost == "both":
        world.sql("DELETE FROM airflow_ft_ledger")
    second = world.plan(orders=orders(9, 1))
    with raises(StoreBehindSinkError, "ledger_lost"):
        world.participant(second).prepare(second, world.fence(1, 9))
    with raises(StoreBehindSinkError, "ledger_lost"):
        world.participant(second).commit(second, world.fence(1, 9))
    if lost == "airflow_ft_head":
        world.predecessor = 0
        third = world.plan(orders=orders(9, 1))
        with raises(StoreBehindSinkError, "ledger_lost", found=1):
            world.participant(third).prepare(third, world.fence(1, 9))


def test_a_sink_without_a_ledger_remembers_what_a_person_says(any_mysql_database: Database, tmp_path: Path) -> None:
    world = make_world(any_mysql_database, tmp_path)
    first = world.plan(orders=orders(1, 3))
    participant = world.participant(first)
    participant.commit(first, world.fence(), vote_for(participant.prepare(first, world.fence())))
    world.predecessor = first.number
    plan = world.plan(orders=orders(4, 3))
    participant = world.participant(plan)
    vote = vote_for(participant.prepare(plan, world.fence(1, 2)), 2)
    world.sql("DROP TABLE airflow_ft_head")
    world.sql("DROP TABLE airflow_ft_ledger")
    with raises(StoreBehindSinkError, "ledger_lost"):
        participant.commit(plan, world.fence(1, 3), vote)
    participant.adopt(world.fence(2, 0), first.number)
    assert participant.commit(plan, world.fence(2, 4), vote).counts == {"orders": 3}


def test_the_floor_outlives_the_marker(world: MySqlWorld) -> None:
    first = world.plan(orders=orders(1, 3))
    world.deliver(first)
    for number in range(2, 6):
        world.deliver(world.plan(orders=orders(10 * number, 1)))
    world.participant(first).forget(world.fence(1, 0), 3)
    world.participant(first).forget(world.fence(1, 0), 2)  # never goes down
    assert [row[0] for row in world.markers()] == [4, 5]
    assert world.sql("SELECT floor, epoch, attempt FROM airflow_ft_head") == [(3, 1, 1)]
    with raises(StoreBehindSinkError, "store_behind_sink", floor=3):
        world.participant(first).commit(first, world.fence(1, 99))
    with raises(StoreBehindSinkError, "store_behind_sink", floor=3):
        world.participant(first).abort(first, world.fence(1, 99), {})
    assert world.count() == 7
    with pytest.raises(FencedError):
        world.participant(first).forget(world.fence(0, 0), 5)


def test_a_segment_without_rows_still_leaves_a_marker(world: MySqlWorld) -> None:
    plan = world.plan(orders=orders(1, 0))
    world.deliver(plan)
    proof = world.participant(plan).proof(plan)
    assert proof is not None and proof.counts == {"orders": 0}


def test_a_lock_of_a_stranger_is_waited_for_and_means_nothing(world: MySqlWorld) -> None:
    world.limits = replace(world.limits, head_wait=0.5)
    plan = world.plan(orders=orders(1, 3))
    world.participant(plan).prepare(plan, world.fence())
    with world.server.connect(world.database, autocommit=False) as stranger:
        stranger.cursor().execute("SELECT * FROM airflow_ft_head FOR UPDATE")
        with raises(SinkUnavailableError, "lock_timeout", seconds=0.5):
            world.participant(plan).commit(plan, world.fence())
        stranger.ping()  # nobody killed it
        assert world.participant(plan).proof(plan) is None
    assert world.participant(plan).commit(plan, world.fence()).outcome is Outcome.COMMITTED
    assert world.count() == 3


def test_a_lock_time_out_is_reported_without_user_locks(world: MySqlWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    world.limits = replace(world.limits, head_wait=0.5)
    plan = world.plan(orders=orders(1, 3))
    world.participant(plan).prepare(plan, world.fence())
    rows = Session.rows

    def forbidden(session: Session, sql: str, *args: Any) -> Any:
        if "GET_LOCK" in sql:
            raise pymysql.err.NotSupportedError(1235, "no user-level locks here")
        return rows(session, sql, *args)

    monkeypatch.setattr(Session, "rows", forbidden)
    with world.server.connect(world.database, autocommit=False) as stranger:
        stranger.cursor().execute("SELECT * FROM airflow_ft_head FOR UPDATE")
        with raises(SinkUnavailableError, "lock_timeout", seconds=0.5) as raised:
            world.participant(plan).commit(plan, world.fence())
    assert raised.error is not None and "proxy" not in raised.error.remedy


def test_no_session_is_killed_behind_a_proxy(world: MySqlWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy gives its sessions numbers of its own, and takes KILL to mean those."""
    world.limits = replace(world.limits, head_wait=0.5)
    world.deliver(world.plan(orders=orders(1, 3)))
    plan = world.plan(orders=orders(4, 3))
    ledger, nonce = Ledger(world.database, world.pipeline, "shop"), new_nonce()
    monkeypatch.setattr(Session, "id", property(lambda session: session._connection.thread_id() + 1_000_000))
    with closing(Session(world.connection(), world.limits)) as older:
        announce(older, ledger, world.fence(1, 2), nonce, world.limits)
        older.begin()
        guarded_head(older, ledger, world.fence(1, 2), nonce)
        with raises(SinkUnavailableError, "lock_timeout", seconds=0.5) as raised:
            world.participant(plan).prepare(plan, world.fence(1, 3))
        assert raised.error is not None and "proxy" in raised.error.remedy
        older.commit()


def test_rows_locked_by_others_are_tried_again_later(any_mysql_database: Database, tmp_path: Path) -> None:
    world = make_world(any_mysql_database, tmp_path, orders="id BIGINT PRIMARY KEY, name VARCHAR(100)")
    world.limits = replace(world.limits, tries=2)
    plan = world.plan(orders=orders(1, 3))
    world.participant(plan).prepare(plan, world.fence())
    with world.server.connect(world.database, autocommit=False) as stranger:
        stranger.cursor().execute("INSERT INTO orders VALUES (2, 'somebody else')")
        with raises(SinkUnavailableError, "lock_timeout", errno=1205):
            world.participant(plan).commit(plan, world.fence())
        assert world.count() == 0
        stranger.rollback()
    world.participant(plan).commit(plan, world.fence())
    assert world.count() == 3


def test_an_unprivileged_first_prepare_prints_the_ddl(world: MySqlWorld) -> None:
    world.sql("CREATE OR REPLACE USER limited@'%' IDENTIFIED BY 'secret-word'") if "mariadb" in world.server.name else (
        world.sql("DROP USER IF EXISTS limited@'%'"), world.sql("CREATE USER limited@'%' IDENTIFIED BY 'secret-word'"),
    )  # fmt: skip
    world.sql(f"GRANT SELECT, INSERT ON {world.database}.orders TO limited@'%'")
    plan = world.plan(orders=orders(1, 3))
    limited = world.participant(plan, login="limited", password="secret-word")
    with raises(SinkAccessError, "ledger_not_created", schema=world.database) as refused:
        limited.prepare(plan, world.fence())
    assert refused.error is not None
    for statement in refused.error.fields["statements"]:
        assert statement in refused.error.remedy
        world.sql(statement)
    with raises(SinkAccessError, "ledger_not_created") as refused:  # it may not see them
        limited.prepare(plan, world.fence())
    assert refused.error and "GRANT SELECT, INSERT, UPDATE, DELETE" in refused.error.remedy
    for table in ("airflow_ft_ledger", "airflow_ft_head"):
        world.sql(f"GRANT SELECT, INSERT, UPDATE, DELETE ON {world.database}.{table} TO limited@'%'")
    limited.prepare(plan, world.fence())
    world.sql(f"REVOKE INSERT ON {world.database}.orders FROM limited@'%'")
    grant = f"GRANT INSERT on `{world.database}`.`orders`"
    with raises(SinkAccessError, "privilege_missing", sink="orders", grant=grant):
        limited.prepare(plan, world.fence())
    with raises(SinkAccessError, "login_refused", errno=1045) as wrong:
        world.participant(plan, login="limited", password="wrong-word").prepare(plan, world.fence())
    assert "wrong-word" not in repr(wrong.value)


def test_a_server_that_is_not_there_is_unavailable(world: MySqlWorld) -> None:
    plan = world.plan(orders=orders(1, 3))
    with raises(SinkUnavailableError, "server_unreachable", errno=2003):
        world.participant(plan, port=1).prepare(plan, world.fence())


def test_the_ledger_may_lie_in_a_schema_of_its_own(world: MySqlWorld) -> None:
    other = f"{world.database}_ledger"
    world.sql(f"CREATE DATABASE {other}")
    try:
        world.sinks = {"orders": MySqlSink(table=f"{world.database}.orders", conn_id="shop", ledger_schema=other)}
        plan = world.plan(orders=orders(1, 3))
        participant = world.participant(plan, schema="")
        participant.prepare(plan, world.fence())
        participant.commit(plan, world.fence())
        assert world.sql(f"SELECT number FROM {other}.airflow_ft_ledger") == [(1,)]
        assert world.count() == 3
    finally:
        world.sql(f"DROP DATABASE {other}")


def test_two_pipelines_do_not_meet(world: MySqlWorld) -> None:
    world.deliver(world.plan(orders=orders(1, 3)))
    world.pipeline, world.number, world.predecessor = "orders-2", 0, 0
    world.deliver(world.plan(orders=orders(1, 3)))
    assert world.count() == 6


def test_tls_is_used_where_the_server_offers_it(mysql_database: Database, tmp_path: Path) -> None:
    world = make_world(mysql_database, tmp_path)
    for extra, encrypted in (({}, True), ({"ssl_mode": "DISABLED"}, False)):
        world.extra = extra
        with closing(Session(world.connection(), world.limits)) as session:
            assert bool(session.rows("SHOW STATUS LIKE 'Ssl_cipher'")[0][1]) is encrypted


@pytest.mark.parametrize("strategy", ["local", "xa", "upsert"])
def test_sinks_are_filled_in_declared_order_for_foreign_keys(
    any_mysql_database: Database, tmp_path: Path, strategy: str
) -> None:
    world = make_world(
        any_mysql_database,
        tmp_path,
        orders="id BIGINT PRIMARY KEY, name VARCHAR(100), version BIGINT DEFAULT 0",
        items="id BIGINT PRIMARY KEY, `of` BIGINT, version BIGINT DEFAULT 0, FOREIGN KEY (`of`) REFERENCES orders (id)",
    )
    keys: dict[str, Any] = {"key_columns": ["id"], "version_column": "version"} if strategy == "upsert" else {}
    world.use(strategy, **keys)
    items = pa.table({"id": [1, 2], "of": [1, 4]})
    segments = [
        world.segment(1, {"items": items, "orders": orders(1, 3)}),  # the order of the log does not count
        world.segment(2, {"items": items.slice(0, 0), "orders": orders(4, 1)}),
    ]
    plan = Plan.from_json(json.loads(canonical_json(world.plan_of(2, *segments).to_json())))  # as it is stored
    participant = world.participant(plan)
    vote = vote_for(participant.prepare(plan, world.fence()))
    assert participant.commit(plan, world.fence(), vote).counts == {"orders": 4, "items": 2}
