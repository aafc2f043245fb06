"""PostgreSQL: what `airflow ft doctor`, `setup` and `verify` tell."""

from __future__ import annotations

import datetime as dt
from contextlib import closing
from dataclasses import replace
from decimal import Decimal
from typing import Any

import psycopg2
import pyarrow as pa
import pytest

from airflow_ft.protocol.doctor import Check, Verdict
from airflow_ft.protocol.errors import SinkAccessError
from airflow_ft.protocol.verify import Delivered, SinkReport
from airflow_ft.sinks.base.prepared import PROBE_NUMBER
from airflow_ft.sinks.postgres import doctor, setup, verify
from airflow_ft.sinks.postgres.gid import new_gid
from airflow_ft.sinks.postgres.session import Session
from airflow_ft.testing.world import OURS, World
from airflow_ft.wal import open_wal
from tests.raising import raises
from tests.sinks.postgres.conftest import Make
from tests.sinks.postgres.servers.test_local import ORDERS, drop_user, limited
from tests.sinks.postgres.world import QUICK, table_of
from tools.servers import Postgres

pytestmark = pytest.mark.server
OK, WARNING, PROBLEM = Verdict.OK, Verdict.WARNING, Verdict.PROBLEM


def examined(world: World, *plans: object, installation: str | None = OURS) -> dict[str, Check]:
    return {check.name: check for check in examined_all(world, *plans, installation=installation)}


def examined_all(world: World, *plans: object, installation: str | None = OURS) -> list[Check]:
    rows = [open_wal().open(segment) for plan in plans for segment in plan.segments]  # type: ignore[attr-defined]
    planned, connection = world.participant_plan(), table_of(world).connection
    return doctor.examine(world.pipeline, planned, connection, rows, installation)


@pytest.mark.parametrize("strategy", ["local", "prepared"])
def test_the_doctor_says_what_is_well_and_leaves_nothing(make: Make, strategy: str) -> None:
    world = make(ORDERS, strategy=strategy)
    found = examined(world)
    assert {name: check.verdict for name, check in found.items()} == {
        "connect": OK, "durability": OK, "ledger": OK, "table public.orders": OK, "rows for public.orders": OK,
        **({"prepared transactions": OK} if strategy == "prepared" else {}),
    }  # fmt: skip
    assert "in schema public" in found["ledger"].text
    assert table_of(world).sql("SELECT to_regclass('airflow_ft_head'), (SELECT count(*) FROM pg_prepared_xacts"
                               " WHERE database = current_database())") == [(None, 0)]  # fmt: skip
    plan = world.plan()
    world.deliver(plan)
    found = examined(world, plan)
    assert {check.verdict for check in found.values()} == {OK} and "with all privileges" in found["ledger"].text


def test_the_doctor_judges_a_table_before_the_first_rows(make: Make) -> None:
    world = make("CREATE UNLOGGED TABLE orders (id bigint, text text)")
    found = examined(world)["table public.orders"]
    assert found.verdict is PROBLEM and "unlogged" in found.text
    table_of(world).sql("ALTER TABLE orders SET LOGGED")
    limited(world, "SELECT ON orders")
    try:
        found = examined(world)["table public.orders"]
        assert found.verdict is PROBLEM and found.code == "privilege_missing"
    finally:
        drop_user(world)
    keyed = make(strategy="upsert", key_columns=["id"], version_column="version", change_column="op")
    texts = [check.text for check in examined_all(keyed) if check.verdict is PROBLEM]
    assert [any(word in text for text in texts) for word in ("key_columns (id)", "version_column")] == [True, True]


def test_the_doctor_says_what_would_go_wrong(make: Make) -> None:
    world = make(ORDERS)
    plan = world.plan()
    table = table_of(world)
    table.sql("ALTER TABLE orders DROP COLUMN text; CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS"
              " $$ BEGIN RETURN new; END $$;"
              " CREATE TRIGGER looks BEFORE INSERT ON orders FOR EACH ROW EXECUTE FUNCTION f()")  # fmt: skip
    found = examined(world, plan)
    assert found["rows for public.orders"].verdict is PROBLEM and "'text'" in found["rows for public.orders"].text
    assert found["table public.orders"].verdict is WARNING and "looks" in found["table public.orders"].text
    table.sql("DROP TABLE orders")
    assert examined(world)["table orders"].verdict is PROBLEM
    table.connection = replace(table.connection, password="wrong")
    assert {name: check.verdict for name, check in examined(world).items()} == {"connect": PROBLEM}


@pytest.mark.parametrize("fails", ["listed", "end_prepared"])
def test_a_doctor_that_fails_leaves_nothing_prepared(make: Make, monkeypatch: pytest.MonkeyPatch, fails: str) -> None:
    world = make(ORDERS, strategy="prepared")
    step, asked = getattr(doctor, fails), []

    def failing(*args: Any) -> Any:
        asked.append(args)
        if len(asked) == 1:
            raise psycopg2.OperationalError("the answer was lost")
        return step(*args)

    monkeypatch.setattr(doctor, fails, failing)
    assert examined(world)["prepared transactions"].verdict is Verdict.PROBLEM
    assert table_of(world).prepared(world) == []


def test_branches_that_never_find_room_are_told(make: Make) -> None:
    world = make(ORDERS, strategy="prepared", branches=32)
    assert examined(world)["branches"].verdict is Verdict.WARNING
    assert "branches" not in examined(make("", strategy="prepared", branches=2))


def test_prepare_rolls_back_what_a_doctor_has_left_prepared(make: Make) -> None:
    world = make(ORDERS, strategy="prepared")
    plan = world.plan()
    fence = world.fence(0, 0)
    gid = new_gid(fence, "shop", PROBE_NUMBER, "0001")
    table_of(world).sql(f"BEGIN; SELECT txid_current(); PREPARE TRANSACTION {gid.sql}")
    world.deliver(plan)
    assert table_of(world).prepared(world) == [] and world.target.ids() == world.ids_of(1)


@pytest.mark.parametrize("strategy", ["local", "prepared"])
def test_what_setup_tells_is_all_that_a_user_needs(make: Make, strategy: str) -> None:
    world = make(
        "CREATE SCHEMA shop; CREATE SCHEMA audit; CREATE TABLE shop.orders (id bigint, text text)",
        table="shop.orders",
        ledger_schema="audit",
        strategy=strategy,
    )
    limited(world)
    try:
        plan = world.plan()
        with raises(SinkAccessError, "privilege_missing", sqlstate="42501"):
            world.prepare(plan)
        ledger = examined(world)["ledger"]
        assert ledger.verdict is PROBLEM and "airflow ft setup" in ledger.remedy
        with raises(SinkAccessError, "privilege_missing", participant="shop"):
            setup.create(world.pipeline, world.participant_plan(), table_of(world).connection)
        output = "\n".join(setup.describe(world.pipeline, world.participant_plan(), table_of(world).connection))
        assert ("max_prepared_transactions" in output) is (strategy == "prepared")
        for _ in range(2):  # it may be run again
            table_of(world).sql(output)
        world.deliver(plan)
        assert table_of(world).sql("SELECT count(*) FROM shop.orders") == [(40,)]
        assert {check.verdict for check in examined(world, plan).values()} == {OK}
    finally:
        drop_user(world)


def test_setup_creates_missing_schemas(make: Make) -> None:
    world = make(
        "CREATE SCHEMA shop; CREATE TABLE shop.orders (id bigint, text text)",
        table="shop.orders",
        ledger_schema="audit",
    )
    ledger = examined(world)["ledger"]
    assert (ledger.verdict, ledger.code) == (PROBLEM, "ledger_not_created") and "CREATE SCHEMA" in ledger.remedy
    plan = world.plan()
    with raises(SinkAccessError, "ledger_not_created", schema="audit"):
        world.prepare(plan)
    table_of(world).sql("\n".join(setup.describe(world.pipeline, world.participant_plan(), table_of(world).connection)))
    world.deliver(plan)


def test_setup_makes_the_ledger_once(make: Make) -> None:
    world = make(ORDERS)
    given = (world.pipeline, world.participant_plan(), table_of(world).connection)
    assert setup.create(*given) == "airflow_ft_head and airflow_ft_ledger in schema public"
    assert setup.create(*given) == ""
    output = "\n".join(setup.describe(*given))
    assert 'GRANT INSERT ON "orders"' in output and "search path" in output
    world.deliver(world.plan())


def test_verify_finds_a_loss_a_double_and_a_change(make: Make) -> None:
    world = make(f"{ORDERS}; ALTER TABLE orders ADD at timestamptz DEFAULT now()")
    plan = world.plan()
    delivered = [Delivered(plan, world.deliver(plan), None)]
    table = table_of(world)

    def report() -> SinkReport:
        planned = world.participant_plan()
        [found] = verify.verify(delivered, planned, table.connection, open_wal())
        return found

    assert report().is_exact and (report().expected, report().other, report().target) == (40, 0, "orders")
    table.sql("INSERT INTO orders VALUES (900, 'of somebody else'), (901, NULL)")
    assert report().is_exact and report().other == 2
    table.sql("INSERT INTO orders (id, text) SELECT id, text FROM orders WHERE id = 44")
    assert (report().is_complete, report().is_exact, report().repeated) == (True, False, 1)
    table.sql("DELETE FROM orders WHERE id = 50; UPDATE orders SET text = 'changed' WHERE id = 51")
    found = report()
    assert (found.missing, found.other) == (2, 3)
    [difference] = found.differences
    assert (difference.number, difference.rows, sorted(difference.samples)) == (1, 2, ["50, row 50", "51, row 51"])
    table.sql("ALTER TABLE orders DROP COLUMN text")
    assert "'text'" in report().error
    table.sql("DROP TABLE orders")
    assert "table orders" in report().error and not report().is_complete


def test_verify_compares_several_checkpoints_and_rows_set_aside(make: Make) -> None:
    world = make("CREATE TABLE orders (id bigint CHECK (id <> 85), text text)")
    delivered = []
    for number in (1, 2):
        plan = world.plan()
        proof = world.commit(plan, world.prepare(plan), set_aside=number == 2)
        world.predecessor = number
        delivered.append(Delivered(plan, proof, None))
    table_of(world).sql("DELETE FROM orders WHERE id IN (41, 90)")
    [found] = verify.verify(delivered, world.participant_plan(), table_of(world).connection, open_wal())
    assert (found.expected, found.set_aside, found.missing, found.other) == (79, 1, 2, 0)
    assert [(each.number, each.rows) for each in found.differences] == [(1, 1), (2, 1)]


def test_verify_compares_what_the_types_make_of_values(make: Make) -> None:
    world = make(
        "CREATE TABLE orders (id bigint, amount numeric(20,4), one real, at timestamptz, code char(5), doc jsonb,"
        " raw json, several text[], data bytea)"
    )
    noon = dt.datetime(2024, 5, 31, 12, tzinfo=dt.UTC)
    rows = pa.table(
        {
            "id": [1, 2],
            "amount": pa.array([Decimal("1.10"), None], pa.decimal128(10, 2)),
            "one": pa.array([0.1, float("nan")], pa.float32()),
            "at": pa.array([noon, None], pa.timestamp("us", "UTC")),
            "code": ["a", ""],
            "doc": ['{"b":1, "a":2}', None],
            "raw": ['{"b":1}', None],
            "several": [["x", None], []],
            "data": [b"\0", b""],
        }
    )
    plan = world.plan(rows)
    delivered = [Delivered(plan, world.deliver(plan), None)]
    [found] = verify.verify(delivered, world.participant_plan(), table_of(world).connection, open_wal())
    assert found.is_exact and (found.expected, found.other) == (2, 0)


def test_who_may_not_compare_is_told_the_privileges(make: Make) -> None:
    world = make(ORDERS)
    plan = world.plan()
    delivered = [Delivered(plan, world.deliver(plan), None)]
    limited(world, "INSERT ON orders")
    try:
        [metadata] = verify.verify(delivered, world.participant_plan(), table_of(world).connection, open_wal())
        user, database = table_of(world).connection.login, table_of(world).connection.schema
        assert (metadata.error_code, metadata.target) == ("privilege_missing", "orders")
        for grant in (f'GRANT SELECT ON "orders" TO "{user}"', f'GRANT TEMPORARY ON DATABASE "{database}" TO "{user}"'):
            assert grant in metadata.error
    finally:
        drop_user(world)


def test_a_server_that_does_not_answer_is_given_up(make: Make) -> None:
    world = make(ORDERS)
    table = table_of(world)
    server = table.database.server
    assert isinstance(server, Postgres)
    with closing(Session(table.connection, replace(QUICK, answer=0.3, margin=0.3))) as session:
        server.pause()
        try:
            with pytest.raises((psycopg2.OperationalError, psycopg2.InterfaceError)):
                session.rows("SELECT 1")
        finally:
            server.resume()
