"""A table that is altered between vote and delivery: rows arrive as they are, or wait."""

from __future__ import annotations

import datetime
from decimal import Decimal
from typing import Any

import psycopg2
import pyarrow as pa
import pytest

from airflow_ft.protocol.errors import SinkAccessError, StoreBehindSinkError, UnfitTargetError
from airflow_ft.protocol.verify import Delivered, SinkReport
from airflow_ft.sinks.postgres import verify
from airflow_ft.sinks.postgres.ledger import ddl_of
from airflow_ft.sinks.postgres.session import Session
from airflow_ft.testing.world import SINK, World
from airflow_ft.wal import open_wal
from tests.density import stride
from tests.raising import raises
from tests.sinks.postgres.conftest import Make
from tests.sinks.postgres.deaths import AtStatement
from tests.sinks.postgres.servers.test_local import drop_user, limited
from tests.sinks.postgres.world import quick, table_of

pytestmark = [pytest.mark.server, pytest.mark.sampled]

UPSERT: dict[str, Any] = {"strategy": "upsert", "key_columns": ["id"], "version_column": "version"}
STRATEGIES: dict[str, dict[str, Any]] = {"local": {}, "upsert": UPSERT, "lost": {"strategy": "prepared"}}
NOON = datetime.datetime(2024, 2, 29, 12, tzinfo=datetime.UTC)
ALTERED: dict[str, tuple[str, pa.Array, str]] = {
    "double precision to real": ("double precision", pa.array([0.1]), "real"),
    "bigint to double precision": ("bigint", pa.array([2**53 + 1]), "double precision"),
    "timestamptz to date": ("timestamptz", pa.array([NOON], pa.timestamp("us", "UTC")), "date USING v::date"),
    "text to numeric": ("text", pa.array(["1.25"]), "numeric(5,1) USING v::numeric"),
    "interval without its seconds": ("interval", pa.array(["1 day 2 hours"]), "interval day"),
    "numeric to integer": ("numeric(9,2)", pa.array([Decimal("1.50")]), "integer"),
    "text to name": ("text", pa.array(["a" * 80]), "name USING v::name"),
    "text to a domain over real": ("text", pa.array(["0.1"]), "single USING v::single"),
}


FLOATS = "CREATE TABLE orders (id bigint PRIMARY KEY, v float8, version bigint NOT NULL DEFAULT 0)"


def decided(world: World, rows: pa.Table, *, settings: str) -> Any:
    """A function that delivers these rows, which are voted upon."""
    plan = world.plan(rows)
    vote = world.prepare(plan)
    if settings == "lost":  # the prepared transaction holds its lock until a person ends it
        for gid in table_of(world).prepared(world):
            table_of(world).sql(f"ROLLBACK PREPARED {gid.sql}")
    return plan, vote


def report(world: World, *delivered: Delivered) -> SinkReport:
    [found] = verify.verify(list(delivered), world.participant_plan(), table_of(world).connection, open_wal())
    return found


@pytest.mark.parametrize("settings", STRATEGIES)
def test_a_column_that_no_longer_fits_has_the_rows_wait(make: Make, settings: str) -> None:
    columns = ", ".join(f'"{what}" {before}' for what, (before, _, _) in ALTERED.items())
    world = make(
        "CREATE DOMAIN single AS real;"
        f" CREATE TABLE orders (id bigint PRIMARY KEY, {columns}, version bigint NOT NULL DEFAULT 0)",
        **STRATEGIES[settings],
    )
    rows = pa.table({"id": [1], **{what: values for what, (_, values, _) in ALTERED.items()}})
    plan, vote = decided(world, rows, settings=settings)
    for what, (before, _, after) in ALTERED.items():
        quoted = f'"{what}"'
        table_of(world).sql(f"ALTER TABLE orders ALTER {quoted} TYPE {after.replace('v::', f'{quoted}::')}")
        for set_aside in (False, True):
            with raises(UnfitTargetError, "column_unfit", sink=SINK, column=what, changed_since="prepare"):
                world.commit(plan, vote, set_aside=set_aside)
            assert world.target.ids() == []
        table_of(world).sql(f"ALTER TABLE orders DROP {quoted}; ALTER TABLE orders ADD {quoted} {before}")
    proof = world.commit(plan, vote)
    assert report(world, Delivered(plan, proof, None)).is_exact


BY_ID = (
    "CREATE TABLE orders (id bigint PRIMARY KEY, text text, version bigint) PARTITION BY RANGE (id);"
    " CREATE TABLE low PARTITION OF orders FOR VALUES FROM (MINVALUE) TO (100)"
)
FOREIGN = (
    "CREATE FOREIGN DATA WRAPPER remote; CREATE SERVER elsewhere FOREIGN DATA WRAPPER remote;"
    " ALTER TABLE orders DROP CONSTRAINT orders_pkey;"
    " CREATE FOREIGN TABLE far PARTITION OF orders DEFAULT SERVER elsewhere"
)
PLAIN = "CREATE TABLE orders (id bigint PRIMARY KEY, text text, version bigint)"
CHANGES: dict[str, list[tuple[str, str, str]]] = {
    PLAIN: [
        ("column_missing", "ALTER TABLE orders RENAME text TO texts", "ALTER TABLE orders RENAME texts TO text"),
        (
            "table_unsupported",
            "ALTER TABLE orders RENAME TO old; CREATE VIEW orders AS SELECT * FROM old",
            "DROP VIEW orders; ALTER TABLE old RENAME TO orders",
        ),
        (
            "column_generated",
            "ALTER TABLE orders DROP text; ALTER TABLE orders ADD text text GENERATED ALWAYS AS ('a') STORED",
            "ALTER TABLE orders DROP text; ALTER TABLE orders ADD text text",
        ),
        ("column_required", "ALTER TABLE orders ADD must int NOT NULL", "ALTER TABLE orders DROP must"),
        ("table_unlogged", "ALTER TABLE orders SET UNLOGGED", "ALTER TABLE orders SET LOGGED"),
    ],
    BY_ID: [
        ("table_unlogged", "CREATE UNLOGGED TABLE lost PARTITION OF orders DEFAULT", "DROP TABLE lost"),
        (
            "table_unsupported",
            FOREIGN,
            "DROP FOREIGN TABLE far; DROP SERVER elsewhere; ALTER TABLE orders ADD PRIMARY KEY (id)",
        ),
    ],
}


@pytest.mark.parametrize("settings", STRATEGIES)
@pytest.mark.parametrize("before", CHANGES)
def test_a_table_that_no_longer_fits_has_the_rows_wait(make: Make, before: str, settings: str) -> None:
    world = make(before, **STRATEGIES[settings])
    plan, vote = decided(world, world.table(1, 3), settings=settings)
    for code, change, back in CHANGES[before]:
        table_of(world).sql(change)
        with raises(UnfitTargetError, code, sink=SINK):
            world.commit(plan, vote)
        table_of(world).sql(back)
        assert world.target.ids() == []
    world.commit(plan, vote)
    assert world.target.ids() == [1, 2, 3]


def test_rows_wait_while_the_table_name_leads_to_another_table(make: Make) -> None:
    world = make(f"CREATE SCHEMA other; {PLAIN}")
    plan, vote = decided(world, world.table(1, 3), settings="local")
    database = table_of(world).database.name
    table_of(world).sql(
        f"CREATE TABLE other.orders (id bigint, text text); ALTER DATABASE {database} SET search_path = other, public"
    )
    with raises(StoreBehindSinkError, "ledger_lost"):  # the ledger was found by the search path too
        world.commit(plan, vote)
    assert table_of(world).sql("SELECT count(*) FROM other.orders") == [(0,)]
    table_of(world).sql(f"ALTER DATABASE {database} RESET search_path")
    world.commit(plan, vote)
    assert world.target.ids() == [1, 2, 3]


def test_a_replaced_table_is_reported_if_the_ledger_has_a_schema(make: Make) -> None:
    world = make(f"CREATE SCHEMA other; {PLAIN}", ledger_schema="public")
    plan, vote = decided(world, world.table(1, 3), settings="local")
    database = table_of(world).database.name
    table_of(world).sql(
        f"CREATE TABLE other.orders (id bigint, text text); ALTER DATABASE {database} SET search_path = other, public"
    )
    with raises(UnfitTargetError, "table_replaced", sink=SINK, table='"public"."orders"', now='"other"."orders"'):
        world.commit(plan, vote)
    assert table_of(world).sql("SELECT count(*) FROM other.orders") == [(0,)]


def test_rows_wait_if_the_key_collation_changed_after_the_vote(make: Make) -> None:
    world = make("CREATE TABLE orders (id text PRIMARY KEY, text text, version bigint)", **UPSERT)
    table_of(world).sql("CREATE COLLATION folded (provider = icu, locale = 'und-u-ks-level2', deterministic = false)")
    plan, vote = decided(world, pa.table({"id": ["a", "A"], "text": ["x", "y"]}), settings="upsert")
    table_of(world).sql("ALTER TABLE orders ALTER id TYPE text COLLATE folded")
    with raises(UnfitTargetError, "key_changed", sink=SINK, table='"public"."orders"'):
        world.commit(plan, vote)
    table_of(world).sql("ALTER TABLE orders ALTER id TYPE varchar(90) COLLATE pg_catalog.default")
    world.commit(plan, vote)
    assert table_of(world).sql("SELECT count(*) FROM orders") == [(2,)]


@pytest.mark.parametrize("wider", ["text", "varchar(90)"])
def test_a_table_that_takes_more_than_at_the_vote_takes_the_rows(make: Make, wider: str) -> None:
    world = make("CREATE TABLE orders (id int PRIMARY KEY, text varchar(9), version bigint)", **UPSERT)
    rows = pa.table({"id": pa.array([1], pa.int32()), "text": ["a"]})
    plan, vote = decided(world, rows, settings="upsert")
    table_of(world).sql(f"ALTER TABLE orders ALTER id TYPE bigint, ALTER text TYPE {wider}, ADD more text")
    world.commit(plan, vote)
    assert world.target.ids() == [1]


@pytest.mark.parametrize("settings", ["local", "upsert"])
def test_no_table_is_altered_between_the_judgement_and_the_rows(
    make: Make, monkeypatch: pytest.MonkeyPatch, settings: str
) -> None:
    """Another client alters it before each statement of a delivery: the client waits in vain, or the rows wait."""
    world = make(FLOATS, **STRATEGIES[settings])
    at, altered, kept_out = 1, 0, 0
    while True:
        plan, vote = decided(world, pa.table({"id": [at], "v": [0.1]}), settings=settings)

        def alter() -> None:
            nonlocal altered, kept_out
            try:
                table_of(world).sql("SET lock_timeout = 50; ALTER TABLE orders ALTER v TYPE real")
                altered += 1
            except psycopg2.errors.LockNotAvailable:
                kept_out += 1

        statement = AtStatement(at, True, alter)
        with monkeypatch.context() as patch:
            statement.install(patch)
            try:
                quick(world, plan.participants[0]).commit(plan, world.fence(1, world.attempt()), vote)
            except UnfitTargetError:
                assert at not in world.target.ids()
        table_of(world).sql("DELETE FROM orders WHERE v <> 0.1::float8; ALTER TABLE orders ALTER v TYPE float8")
        quick(world, plan.participants[0]).commit(plan, world.fence(1, world.attempt()), vote)
        assert table_of(world).sql("SELECT v = 0.1::float8 FROM orders WHERE id = %s", at) == [(True,)]
        world.predecessor = plan.number
        if not statement.struck:
            break
        at += stride(3)
    assert altered and kept_out


@pytest.mark.parametrize("settings", STRATEGIES)
def test_a_schema_renamed_into_place_during_a_send_gets_no_rows(
    make: Make, monkeypatch: pytest.MonkeyPatch, settings: str
) -> None:
    """RENAME of a schema waits for no lock of its tables."""
    world = make(PLAIN, table="shop.orders", ledger_schema="public", **STRATEGIES[settings])
    sql = table_of(world).sql
    sql("CREATE SCHEMA shop; ALTER TABLE orders SET SCHEMA shop; CREATE SCHEMA next")
    sql("CREATE TABLE next.orders (LIKE shop.orders INCLUDING ALL)")
    plan, vote = decided(world, world.table(1, 3), settings=settings)
    copy = Session.copy

    def renamed(session: Session, *args: Any) -> int:
        sql("ALTER SCHEMA shop RENAME TO old; ALTER SCHEMA next RENAME TO shop")
        return copy(session, *args)

    with monkeypatch.context() as patch:
        patch.setattr(Session, "copy", renamed)
        with raises(UnfitTargetError, "table_replaced", sink=SINK, table="shop.orders"):
            world.commit(plan, vote)
    assert sql("SELECT (SELECT count(*) FROM old.orders) + (SELECT count(*) FROM shop.orders)") == [(0,)]
    world.commit(plan, vote)
    assert sql("SELECT count(*) FROM shop.orders") == [(3,)]


@pytest.mark.parametrize("change", ["ALTER TABLE orders DROP text", "DROP TABLE orders"])
def test_rows_wait_if_the_table_changes_before_it_is_locked(
    make: Make, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    world = make(PLAIN)
    plan, vote = decided(world, world.table(1, 3), settings="local")
    rows = Session.rows

    def altered(session: Session, sql: str, *args: Any) -> Any:
        if sql.startswith("EXPLAIN"):
            table_of(world).sql(change)
        return rows(session, sql, *args)

    with monkeypatch.context() as patch:
        patch.setattr(Session, "rows", altered)
        with raises(UnfitTargetError, "table_changed", sink=SINK, table="public.orders"):
            world.commit(plan, vote)


@pytest.mark.parametrize("settings", STRATEGIES)
def test_a_partition_attached_while_rows_are_sent_is_checked(
    make: Make, monkeypatch: pytest.MonkeyPatch, settings: str
) -> None:
    world = make(BY_ID, **STRATEGIES[settings])
    plan, vote = decided(world, world.table(1, 3), settings=settings)
    copy = Session.copy

    def attached(session: Session, *args: Any) -> int:
        table_of(world).sql("CREATE UNLOGGED TABLE IF NOT EXISTS lost PARTITION OF orders DEFAULT")
        return copy(session, *args)

    with monkeypatch.context() as patch:
        patch.setattr(Session, "copy", attached)
        with raises(UnfitTargetError, "table_unlogged", sink=SINK, table="public.lost"):
            world.commit(plan, vote)
    table_of(world).sql("ALTER TABLE lost SET LOGGED")
    world.commit(plan, vote)
    assert world.target.ids() == [1, 2, 3]


def test_a_user_who_may_write_some_columns_only_delivers(make: Make) -> None:
    world = make("CREATE TABLE orders (id bigint, text text, more text)")
    table_of(world).sql(";".join(ddl_of("public")))
    tables = "airflow_ft_head, airflow_ft_ledger"
    limited(world, "INSERT (id, text) ON orders", f"SELECT, INSERT, UPDATE, DELETE ON {tables}")
    try:
        world.deliver(world.plan())
    finally:
        drop_user(world)
    assert world.target.ids() == world.ids_of(1)


def test_rows_wait_if_row_security_is_enabled_after_the_vote(make: Make) -> None:
    world = make(PLAIN, **UPSERT)
    table_of(world).sql(";".join(ddl_of("public")))
    tables = "orders, airflow_ft_head, airflow_ft_ledger"
    limited(world, f"SELECT, INSERT, UPDATE, DELETE ON {tables}")
    try:
        plan, vote = decided(world, world.table(1, 3), settings="upsert")
        table_of(world).sql("ALTER TABLE orders ENABLE ROW LEVEL SECURITY; CREATE POLICY none ON orders USING (id > 2)")
        with raises(SinkAccessError, "row_security_active", sqlstate="42501"):
            world.commit(plan, vote)
        table_of(world).sql("ALTER TABLE orders DISABLE ROW LEVEL SECURITY")
        world.commit(plan, vote)
    finally:
        drop_user(world)
    assert world.target.ids() == [1, 2, 3]


def test_verify_reports_columns_altered_after_the_delivery(make: Make) -> None:
    world = make(FLOATS)
    plan = world.plan(pa.table({"id": [1], "v": [0.1]}))
    proof = world.deliver(plan)
    assert report(world, Delivered(plan, proof, None)).is_exact
    table_of(world).sql("ALTER TABLE orders ALTER v TYPE real")
    found = report(world, Delivered(plan, proof, None))
    assert not found.is_exact and "'v'" in found.error and "real" in found.error
