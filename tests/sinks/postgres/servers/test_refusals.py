"""A row that is refused under any code is named, and a person can set it aside."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest

from airflow_ft.protocol.errors import DeclinedError, SinkAccessError, SinkUnavailableError
from airflow_ft.protocol.set_aside import of_proof
from airflow_ft.sinks.postgres.ledger import ddl_of
from airflow_ft.testing.world import SINK, World
from tests.raising import raises
from tests.sinks.postgres.conftest import Make
from tests.sinks.postgres.servers.test_local import drop_user, limited
from tests.sinks.postgres.world import quick, table_of

pytestmark = [pytest.mark.server, pytest.mark.sampled]

UPSERT: dict[str, Any] = {"strategy": "upsert", "key_columns": ["id"], "version_column": "version"}
CHANGES = {**UPSERT, "change_column": "op"}
PLAIN = "CREATE TABLE orders (id bigint PRIMARY KEY, text {}, version bigint NOT NULL DEFAULT 0)"
WRONG: dict[str, tuple[str, str]] = {
    "42601, of a tree": ("ltree", "a..b"),
    "42601, of a query": ("tsquery", "a &"),
    "XX000 or 42601, of a store": ("hstore", "a=>"),
}
STATEMENTS = {
    "P0002": "PERFORM 1; DECLARE n int; BEGIN SELECT 1 INTO STRICT n WHERE false; END",
    "P0003": "DECLARE n int; BEGIN SELECT g INTO STRICT n FROM generate_series(1, 2) g; END",
    "P0004": "ASSERT false, 'not this'",
    "20000": "CASE new.id WHEN 0 THEN NULL; END CASE",
    "21000": "PERFORM (SELECT g FROM generate_series(1, 2) g)",
    "42501": "RAISE 'not this' USING ERRCODE = '42501'",
    "40001": "RAISE 'not this' USING ERRCODE = '40001'",
    "40P01": "RAISE 'not this' USING ERRCODE = '40P01'",
    "55P03": "RAISE 'not this' USING ERRCODE = '55P03'",
    "57014": "RAISE 'not this' USING ERRCODE = '57014'",
    "42P01": "PERFORM 1 FROM not_there",
    "AB123": "RAISE 'not this' USING ERRCODE = 'AB123'",
    "XX000": "RAISE 'not this' USING ERRCODE = 'XX000'",
}


def trigger(action: str, when: str = "BEFORE INSERT") -> str:
    return (
        f"CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN IF new.id = 2 THEN {action}; END IF;"
        f" RETURN new; END $$; CREATE TRIGGER t {when} ON orders FOR EACH ROW EXECUTE FUNCTION f()"
    )


def set_aside(world: World, plan: Any, expected: list[int]) -> None:
    proof = world.commit(plan, world.vote_without_prepare(plan), set_aside=True)
    assert world.target.ids() == expected and proof.counts[SINK] == len(expected)
    assert of_proof(proof)[SINK].places == ((plan.number, "rows/part-00000.parquet", 1, 2),)


@pytest.mark.parametrize("settings", [{}, UPSERT], ids=["local", "upsert"])
@pytest.mark.parametrize("what", WRONG)
def test_a_value_that_an_extension_refuses_is_refused_as_a_row(make: Make, what: str, settings: dict[str, Any]) -> None:
    kind, wrong = WRONG[what]
    extension = f"CREATE EXTENSION {kind};" if kind in ("ltree", "hstore") else ""
    world = make(f"{extension} {PLAIN.format(kind)}", **settings)
    world.commit_point = False
    plan = world.plan(pa.table({"id": [1, 2, 3], "text": [None, wrong, None]}))
    with raises(DeclinedError, "row_refused", sink=SINK, row_number=2):
        world.prepare(plan)
    set_aside(world, plan, [1, 3])


@pytest.mark.parametrize("settings", [{}, UPSERT], ids=["local", "upsert"])
@pytest.mark.parametrize("when", ["BEFORE INSERT", "AFTER INSERT"])
def test_a_row_that_a_trigger_refuses_by_any_code_is_refused(make: Make, when: str, settings: dict[str, Any]) -> None:
    world = make(PLAIN.format("text"), **settings)
    world.commit_point = False
    for code, action in STATEMENTS.items():
        table_of(world).sql(f"DROP FUNCTION IF EXISTS f CASCADE; {trigger(action, when)}")
        plan = world.plan(world.table(1, 3))
        with raises(DeclinedError, "row_refused", sink=SINK, sqlstate=code):
            world.prepare(plan)
    set_aside(world, plan, [1, 3])


def test_a_key_that_no_index_holds_is_set_aside(make: Make) -> None:
    world = make("CREATE TABLE orders (id text PRIMARY KEY, text text, version bigint NOT NULL DEFAULT 0)", **UPSERT)
    world.commit_point = False
    world.deliver(world.plan(pa.table({"id": ["x"], "text": ["old"]})))
    world.predecessor = 1
    letters = random.Random(1)
    large = "".join(chr(letters.randrange(0x4E00, 0x9FFF)) for _ in range(5_000))  # does not compress
    plan = world.plan(pa.table({"id": ["x", large, "x"], "text": ["a", "b", "c"]}))
    proof = world.commit(plan, world.vote_without_prepare(plan), set_aside=True)
    assert of_proof(proof)[SINK].places == ((plan.number, "rows/part-00000.parquet", 1, 2),)
    assert table_of(world).sql("SELECT id, text FROM orders") == [("x", "c")]


INTO_AUDIT = "INSERT INTO audit VALUES (new.id)"


@pytest.mark.parametrize("settings", [{}, UPSERT], ids=["local", "upsert"])
@pytest.mark.parametrize("when", ["BEFORE INSERT", "AFTER INSERT"])
def test_a_privilege_that_a_trigger_lacks_is_no_row_s_fault(make: Make, when: str, settings: dict[str, Any]) -> None:
    world = make(f"{PLAIN.format('text')}; CREATE TABLE audit (id bigint)", **settings)
    world.commit_point = False
    table_of(world).sql(";".join(ddl_of("public")))
    limited(world, "SELECT, INSERT, UPDATE, DELETE ON orders, airflow_ft_head, airflow_ft_ledger")
    user = table_of(world).connection.login
    try:
        table_of(world).sql(trigger(INTO_AUDIT, when).replace("new.id = 2", "true"))
        plan = world.plan(world.table(1, 3))
        with raises(SinkAccessError, "privilege_missing", sqlstate="42501") as caught:
            world.prepare(plan)
        assert caught.error is not None and "audit" in caught.error.headline and "trigger" in caught.error.remedy
        with raises(SinkAccessError, "trigger_failed", sink=SINK) as caught:
            world.commit(plan, world.vote_without_prepare(plan), set_aside=True)
        assert caught.error is not None and "audit" in caught.error.headline and world.target.ids() == []
        table_of(world).sql(f"DROP FUNCTION f CASCADE; {trigger(INTO_AUDIT, when)}")
        set_aside(world, plan, [1, 3])  # only some rows need it
        table_of(world).sql(f"GRANT INSERT ON audit TO {user}")
        world.predecessor = plan.number
        world.deliver(world.plan(pa.table({"id": [2], "text": ["a"]})))
        assert world.target.ids() == [1, 2, 3]
    finally:
        drop_user(world)


@pytest.mark.parametrize("settings", [{}, UPSERT], ids=["local", "upsert"])
def test_what_a_trigger_lacks_for_each_row_sets_none_aside(make: Make, settings: dict[str, Any]) -> None:
    world = make(f"{PLAIN.format('text')}; {trigger(INTO_AUDIT).replace('new.id = 2', 'true')}", **settings)
    world.commit_point = False
    plan = world.plan(world.table(1, 3))
    with raises(DeclinedError, "row_refused", sqlstate="42P01"):
        world.prepare(plan)
    with raises(SinkAccessError, "trigger_failed", sink=SINK, table="public.orders"):
        world.commit(plan, world.vote_without_prepare(plan), set_aside=True)
    table_of(world).sql("CREATE TABLE audit (id bigint)")
    world.commit(plan, world.vote_without_prepare(plan), set_aside=True)
    assert world.target.ids() == [1, 2, 3]


def test_what_no_row_can_cause_is_tried_again(make: Make) -> None:
    world = make(PLAIN.format("text"))
    world.commit_point = False
    for code in ("08006", "53100", "57P01", "25P04", "HV00N"):
        table_of(world).sql(f"DROP FUNCTION IF EXISTS f CASCADE; {trigger(f'RAISE $a$no$a$ USING ERRCODE = {code!r}')}")
        with pytest.raises(SinkUnavailableError) as caught:
            quick(world, tries=1).prepare(world.plan(world.table(1, 3)), world.fence(1, world.attempt()))
        assert caught.value.fields["sqlstate"] == code
    plan = world.plan(world.table(1, 3))
    table_of(world).sql("DROP FUNCTION f CASCADE")
    holder = table_of(world).database.server.connect(table_of(world).database.name)
    try:
        holder.autocommit = False  # type: ignore[method-assign]
        with holder.cursor() as cursor:
            cursor.execute("INSERT INTO orders VALUES (2, 'of others')")
        with raises(SinkUnavailableError, "lock_timeout", sqlstate="55P03"):  # its key waits, at a row of COPY
            quick(world, head_wait=0.5).prepare(plan, world.fence(1, world.attempt()))
    finally:
        holder.close()


# --- changes by key ------------------------------------------------------------------------------------------------


def changes(*rows: tuple[str, int, str | None]) -> pa.Table:
    ops, ids, texts = zip(*rows, strict=True)
    return pa.table({"op": ops, "id": ids, "text": pa.array(texts, pa.string())})


def test_after_a_refused_change_the_change_before_it_counts(make: Make) -> None:
    world = make(
        f"{PLAIN.format('text CHECK (text <> $$no$$)')}; CREATE TABLE other (id bigint REFERENCES orders);"
        " INSERT INTO orders VALUES (7, 'used', 0), (8, 'old', 0); INSERT INTO other VALUES (7)",
        **CHANGES,
    )
    rows = [("c", 1, "a"), ("c", 2, "a"), ("u", 2, "b"), ("u", 2, "no"), ("u", 2, "no"), ("c", 3, "no"),
            ("d", 7, None), ("d", 8, None), ("maybe", 9, "x"), ("c", 4, "d")]  # fmt: skip
    plan = world.plan(changes(*rows))
    with raises(DeclinedError, "change_kind_unknown", sink=SINK, row_number=9) as caught:
        world.prepare(plan)
    assert caught.error is not None and "'maybe'" in caught.error.headline
    proof = world.commit(plan, world.vote_without_prepare(plan), set_aside=True)
    found = table_of(world).sql("SELECT * FROM orders ORDER BY id")
    assert found == [(1, "a", 1), (2, "b", 1), (4, "d", 1), (7, "used", 0)]
    aside = of_proof(proof)[SINK]
    assert aside.places == ((1, "rows/part-00000.parquet", 3, 7), (1, "rows/part-00000.parquet", 8, 9))
    assert proof.counts[SINK] == 5 and aside.rows == 5


def test_a_key_with_a_percent_sign_in_its_name_is_set_aside_too(make: Make) -> None:
    world = make(
        'CREATE TABLE orders ("a%s" bigint PRIMARY KEY, text text CHECK (text <> $$no$$), version bigint)',
        **{**UPSERT, "key_columns": ["a%s"]},
    )
    plan = world.plan(pa.table({"a%s": [1, 1, 2], "text": ["a", "no", "no"]}))
    with raises(DeclinedError, "row_refused", sqlstate="23514"):
        world.prepare(plan)
    world.commit(plan, world.vote_without_prepare(plan), set_aside=True)
    assert table_of(world).sql('SELECT "a%s", text FROM orders') == [(1, "a")]


def test_of_many_changes_those_that_are_refused_are_found(make: Make) -> None:
    world = make(PLAIN.format("text CHECK (id % 400 <> 7)"), **UPSERT)
    plan = world.plan(world.table(0, 2000))
    with raises(DeclinedError, "row_refused", sqlstate="23514"):
        world.prepare(plan)
    proof = world.commit(plan, world.vote_without_prepare(plan), set_aside=True)
    assert world.target.ids() == [each for each in range(2000) if each % 400 != 7]
    assert [place[2] for place in of_proof(proof)[SINK].places] == [7, 407, 807, 1207, 1607]


@pytest.mark.parametrize("domain", ["text NOT NULL", "text CHECK (VALUE IS NOT NULL AND VALUE <> 'no')"])
def test_a_delete_is_not_judged_by_the_domains_of_other_columns(make: Make, domain: str) -> None:
    world = make(
        f"CREATE DOMAIN base AS {domain}; CREATE DOMAIN filled AS base;"
        f" {PLAIN.format('filled')}; INSERT INTO orders VALUES (1, 'a', 0)",
        **CHANGES,
    )
    world.deliver(world.plan(changes(("d", 1, None), ("c", 2, "b"))))
    assert world.target.ids() == [2]
    with raises(DeclinedError, "null_refused" if "NOT NULL" in domain.split("CHECK")[0] else "row_refused", sink=SINK):
        world.prepare(world.plan(changes(("c", 3, None))))
