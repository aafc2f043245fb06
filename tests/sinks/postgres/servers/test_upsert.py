"""`upsert`: the last change of a key wins, an older checkpoint never does, and what does not fit is told."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from airflow_ft.protocol.errors import (
    AirflowFtError,
    DeclinedError,
    FencedError,
    HaltError,
    SinkAccessError,
    SinkUnavailableError,
    UnfitTargetError,
)
from airflow_ft.protocol.verify import Delivered, SinkReport
from airflow_ft.sinks.postgres import proposal, requirements, verify
from airflow_ft.sinks.postgres.session import Session
from airflow_ft.sinks.postgres.spec import PostgresSink
from airflow_ft.testing.world import SINK, World
from airflow_ft.wal import open_wal
from tests.density import stride
from tests.raising import raises
from tests.sinks.postgres.conftest import Make
from tests.sinks.postgres.deaths import AtStatement, Death
from tests.sinks.postgres.servers.test_local import drop_user, limited
from tests.sinks.postgres.world import quick, table_of

pytestmark = [pytest.mark.server, pytest.mark.sampled]

ORDERS = "CREATE TABLE orders (id bigint PRIMARY KEY, text text NOT NULL, version bigint NOT NULL DEFAULT 0)"
UPSERT: dict[str, Any] = {"strategy": "upsert", "key_columns": ["id"], "version_column": "version"}
CHANGES = {**UPSERT, "change_column": "op"}


def changes(*rows: tuple[str, int | None, str | None]) -> pa.Table:
    ops, ids, texts = zip(*rows, strict=True)
    return pa.table(
        {"op": pa.array(ops, pa.string()), "id": pa.array(ids, pa.int64()), "text": pa.array(texts, pa.string())}
    )


def found(world: World) -> list[tuple[Any, ...]]:
    return table_of(world).sql("SELECT * FROM orders ORDER BY id")


def test_the_last_change_of_a_key_wins_in_the_order_of_the_log(make: Make) -> None:
    world = make(ORDERS, **CHANGES)
    proof = world.deliver(
        world.plan(changes(("c", 1, "a"), ("u", 1, "b"), ("c", 2, "a"), ("d", 2, None), ("c", 3, "a"), ("-D", 4, None),
                           ("d", 5, None), ("INSERT", 5, "again")))
    )  # fmt: skip
    assert proof.counts[SINK] == 8 and found(world) == [(1, "b", 1), (3, "a", 1), (5, "again", 1)]
    parts = [
        world.segment(2, changes(("d", 1, None), ("+U", 3, "b"))),
        world.segment(3, changes(("r", 1, "back"), ("delete", 5, None))),
    ]
    world.deliver(world.plan_of(3, *parts))
    assert found(world) == [(1, "back", 3), (3, "b", 3)]


@pytest.mark.parametrize("other", ["more columns", "another order", "another type", "no nulls"])
def test_segments_of_different_schemas_keep_the_order_of_the_log(make: Make, other: str) -> None:
    world = make(f"{ORDERS}; ALTER TABLE orders ADD more text", **CHANGES)
    middle = changes(("u", 1, "middle"), ("u", 2, "y"))
    schema = middle.schema
    changed: dict[str, pa.Table] = {
        "more columns": middle.append_column("more", pa.array([None, None], pa.string())),
        "another order": middle.select(["text", "id", "op"]),
        "another type": middle.cast(schema.set(1, schema.field("id").with_type(pa.int32()))),
        "no nulls": middle.cast(pa.schema([field.with_nullable(False) for field in schema])),
    }
    parts = [
        changes(("c", 1, "oldest"), ("c", 2, "x")),
        changed[other],
        changes(("u", 1, "NEWEST"), ("d", 2, None)),
    ]
    proof = world.deliver(world.plan_of(1, *(world.segment(number, rows) for number, rows in enumerate(parts, 1))))
    assert proof.counts[SINK] == 6 and found(world) == [(1, "NEWEST", 1, None)]


def test_rows_of_a_higher_version_and_of_others_are_left_alone(make: Make) -> None:
    world = make(ORDERS, **CHANGES)
    world.deliver(world.plan(changes(("d", 1, None))))
    table_of(world).sql(
        "INSERT INTO orders VALUES (1, 'newer', 7), (2, 'newer', 7), (3, 'of nobody', 0), (9, 'of others', 0)"
    )
    world.deliver(world.plan(changes(("u", 1, "older"), ("d", 2, None), ("u", 3, "ours"))))
    assert found(world) == [(1, "newer", 7), (2, "newer", 7), (3, "ours", 2), (9, "of others", 0)]


def test_versions_of_another_pipeline_are_refused_at_the_start(make: Make) -> None:
    """Changes of these rows would have no effect, and nothing would say so."""
    world = make(f"{ORDERS}; INSERT INTO orders VALUES (1, 'theirs', 7)", **CHANGES)
    plan = world.plan(changes(("u", 1, "ours")))
    with raises(UnfitTargetError, "versions_ahead", sink=SINK, column="version"):
        world.prepare(plan)
    table_of(world).sql("UPDATE orders SET version = 0")
    world.commit(plan, world.prepare(plan))
    assert found(world) == [(1, "ours", 1)]


@pytest.mark.parametrize("before", [{"table": "other", **UPSERT}, {"strategy": "local"}], ids=["table", "strategy"])
def test_versions_ahead_are_refused_in_another_table(make: Make, before: dict[str, Any]) -> None:
    world = make(f"{ORDERS}; CREATE TABLE other (LIKE orders INCLUDING ALL)", **CHANGES)
    table_of(world).sql("INSERT INTO orders VALUES (1, 'theirs', 7)")
    sink = PostgresSink(**{"table": "orders", "conn_id": "shop", **before})
    world.deliver(world.plan_into(sink, pa.table({"id": [2], "text": ["b"]})))
    plan = world.plan(changes(("u", 1, "ours")))
    with raises(UnfitTargetError, "versions_ahead", sink=SINK, column="version"):
        world.prepare(plan)


def test_versions_that_take_too_long_name_an_index(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    world = make(ORDERS, **CHANGES)
    value = Session.value

    def slowly(db: Session, sql: str, *args: Any) -> Any:
        asks = "SELECT EXISTS (SELECT FROM" in sql and '"version"' in sql
        return value(db, "SET statement_timeout = 200; SELECT pg_sleep(5)") if asks else value(db, sql, *args)

    monkeypatch.setattr(Session, "value", slowly)
    plan = world.plan(changes(("u", 1, "ours")))
    with raises(UnfitTargetError, "versions_unread", sink=SINK, column="version") as refused:
        world.prepare(plan)
    assert refused.error and '("version").' in refused.error.remedy


def test_an_older_checkpoint_revives_nothing(make: Make) -> None:
    world = make(ORDERS, **CHANGES)
    first = world.plan(changes(("c", 1, "a")))
    vote = world.prepare(first)
    world.commit(first, vote)
    world.predecessor = 1
    world.deliver(world.plan(changes(("d", 1, None))))
    world.participant(first).forget(world.fence(1, 1), 1)
    with suppress(HaltError):
        world.commit(first, vote)
    assert found(world) == []


def test_keys_of_several_columns_compare_as_the_table_does(make: Make) -> None:
    world = make(
        "CREATE EXTENSION citext; CREATE TABLE orders (shop citext, id bigint, text text, version bigint,"
        " UNIQUE (id, shop)); ALTER TABLE orders ALTER shop SET NOT NULL, ALTER id SET NOT NULL",
        **{**UPSERT, "key_columns": ["shop", "id"]},
    )
    world.deliver(world.plan(pa.table({"shop": ["a", "A", "b"], "id": [1, 1, 1], "text": ["x", "y", "z"]})))
    assert table_of(world).sql("SELECT shop::text, id, text FROM orders ORDER BY 1") == [("A", 1, "y"), ("b", 1, "z")]


@pytest.mark.parametrize(
    "settings", [{"strategy": "local"}, {"strategy": "prepared"}, CHANGES], ids=lambda s: s["strategy"]
)
@pytest.mark.parametrize("decides", [True, False])
def test_a_segment_without_rows_for_the_sink_is_skipped(make: Make, settings: dict[str, Any], decides: bool) -> None:
    world = make(ORDERS, **settings)
    world.commit_point = decides
    rows = changes(("c", 1, "a"), ("c", 2, "b")) if "change_column" in settings else world.table(1, 2)
    table, connection = table_of(world), table_of(world).connection
    delivered = []
    for number, segments in enumerate(
        (
            [world.nothing(1)],
            [world.nothing(2), world.segment(3, rows), world.nothing(4)],
        ),
        1,
    ):
        plan = world.plan_of(number, *segments)
        assert requirements.schema_problems(plan.participants[0], connection, {SINK: pa.schema([])}) == []
        proof = world.deliver(plan)
        assert proof.counts == {SINK: 0 if number == 1 else 2}
        delivered.append(Delivered(plan, proof, None))
        [report] = verify.verify(delivered, world.participant_plan(), connection, open_wal())
        assert report.is_exact and not report.error and report.expected == sum(proof.counts.values())
    assert table.ids() == [1, 2]


@pytest.mark.parametrize(
    ("rows", "code", "fields"),
    [
        (
            changes(("c", 1, "a"), ("d", None, None)),
            "null_refused",
            {"table": "public.orders", "row_number": 2, "sqlstate": "23502"},
        ),
        (changes(("c", 1, "a"), ("maybe", 2, "b")), "change_kind_unknown", {"table": "public.orders", "row_number": 2}),
        (changes(("c", 1, "a"), ("c", 2, None)), "null_refused", {"sqlstate": "23502"}),
        (
            pa.table({"op": ["c"], "text": ["a"]}),
            "several_problems",
            {"codes": ["job_column_missing", "column_required"]},
        ),
        (pa.table({"op": ["c"], "id": [1], "text": ["a"], "version": [1]}), "column_reserved", {"column": "version"}),
        (pa.table({"op": [1], "id": [1], "text": ["a"]}), "column_unfit", {"column": "op"}),
    ],
)
def test_unfit_changes_are_declined_by_prepare(make: Make, rows: pa.Table, code: str, fields: dict[str, Any]) -> None:
    world = make(ORDERS, **CHANGES)
    with raises(DeclinedError, code, sink=SINK, **fields) as caught:
        world.prepare(world.plan(rows))
    assert caught.error is not None and caught.error.remedy and found(world) == []


def test_rows_without_the_change_column_are_declined_by_prepare(make: Make) -> None:
    world = make(ORDERS, **CHANGES)
    with raises(DeclinedError, "job_column_missing", sink=SINK, column="op", argument="change_column"):
        world.prepare(world.plan(pa.table({"id": [1], "text": ["a"]})))
    assert found(world) == []


@pytest.mark.parametrize(
    ("ddl", "code"),
    [
        ("CREATE TABLE orders (id bigint NOT NULL, text text, version bigint)", "key_unfit"),
        ("CREATE TABLE orders (id bigint UNIQUE, text text, version bigint)", "key_unfit"),
        ("CREATE TABLE orders (id bigint NOT NULL UNIQUE DEFERRABLE, text text, version bigint)", "key_unfit"),
        (
            "CREATE TABLE orders (id bigint NOT NULL, text text, version bigint);"
            "CREATE UNIQUE INDEX ON orders (id) WHERE id > 5",
            "key_unfit",
        ),
        ("CREATE TABLE orders (id bigint, text text, version bigint, PRIMARY KEY (id, text))", "key_unfit"),
        ("CREATE TABLE orders (id bigint PRIMARY KEY, text text)", "column_missing"),
        ("CREATE TABLE orders (id bigint PRIMARY KEY, text text, version int)", "column_unfit"),
    ],
)
def test_a_table_without_a_usable_key_or_version_is_refused(make: Make, ddl: str, code: str) -> None:
    world = make(ddl, **UPSERT)
    with raises(UnfitTargetError, code, sink=SINK, table="public.orders") as caught:
        world.prepare(world.plan())
    assert caught.error is not None and "ALTER TABLE" in caught.error.remedy


def test_a_deferrable_constraint_beside_the_key_is_refused(make: Make) -> None:
    world = make(f"{ORDERS}; ALTER TABLE orders ADD UNIQUE (id) DEFERRABLE", **UPSERT)
    with raises(UnfitTargetError, "key_unfit", sink=SINK, key_columns=["id"]):
        world.prepare(world.plan())
    table_of(world).sql("ALTER TABLE orders DROP CONSTRAINT orders_id_key")
    world.deliver(world.plan())


def test_names_with_percent_signs_are_delivered(make: Make) -> None:
    create = ORDERS.replace("orders", '"o%rders"').replace("version", '"v%s"')
    world = make(create, **{**CHANGES, "table": '"o%rders"', "version_column": "v%s"})
    world.deliver(world.plan(changes(("c", 1, "a"), ("d", 2, None))))
    assert table_of(world).sql('SELECT * FROM "o%rders"') == [(1, "a", 1)]


@pytest.mark.parametrize("default", [" DEFAULT 0", ""])
def test_a_version_column_in_other_case_is_the_tables(make: Make, default: str) -> None:
    world = make(ORDERS.replace(" DEFAULT 0", default), **{**CHANGES, "version_column": "VERSION"})
    assert _problems(world) == []
    world.deliver(world.plan(changes(("c", 1, "a"), ("c", 2, "b"))))
    world.predecessor = 1
    world.deliver(world.plan(changes(("u", 1, "c"), ("d", 2, None))))
    assert found(world) == [(1, "c", 2)]


def test_a_column_name_that_the_server_cuts_is_refused(make: Make) -> None:
    world, long = make("CREATE TABLE orders (id bigint)"), "é" * 32
    where, plan = table_of(world).connection, world.participant_plan()
    fits, tight = (pa.schema([("id", pa.int64()), (name, pa.string())]) for name in (long[:31], long))
    [statement] = proposal.propose(plan, where, {SINK: tight})
    assert f"-- {long!r}: " in statement and f'"{long}"' not in statement
    [refused] = requirements.schema_problems(plan, where, {SINK: tight})
    assert isinstance(refused, DeclinedError) and refused.code == "name_invalid" and refused.column == long
    [missing] = requirements.schema_problems(plan, where, {SINK: fits})
    assert missing.code == "column_missing"


def _problems(world: World) -> Sequence[AirflowFtError]:
    schemas = {SINK: changes(("c", 1, "a")).schema}
    return requirements.schema_problems(world.participant_plan(), table_of(world).connection, schemas)


def test_a_misspelled_key_is_told_with_the_closest_column(make: Make) -> None:
    world = make(ORDERS, **{**UPSERT, "key_columns": ["idd"]})
    with raises(UnfitTargetError, "column_missing", sink=SINK, column="idd", argument="key_columns") as caught:
        world.prepare(world.plan())
    assert caught.error is not None and "'id'" in caught.error.remedy and "id" in caught.error.fields["columns"]
    assert "PRIMARY KEY" not in caught.error.remedy, "the table has no such column"


@pytest.mark.parametrize("folded", ["index", "column"])
def test_a_key_that_an_index_compares_otherwise_is_refused(make: Make, folded: str) -> None:
    ignoring = {each: "COLLATE folded" if each == folded else 'COLLATE "C"' for each in ("index", "column")}
    world = make(
        "CREATE COLLATION folded (provider = icu, locale = 'und-u-ks-level2', deterministic = false);"
        f" CREATE TABLE orders (id text {ignoring['column']} NOT NULL, text text, version bigint);"
        f" CREATE UNIQUE INDEX ON orders (id {ignoring['index']})",
        **UPSERT,
    )
    with raises(UnfitTargetError, "key_unfit", sink=SINK, key_columns=["id"]) as caught:
        world.prepare(world.plan(pa.table({"id": ["a"], "text": ["x"]})))
    assert caught.error is not None and "COLLATE" in caught.error.remedy


def test_another_unique_key_refuses_instead_of_overwriting(make: Make) -> None:
    world = make(f"{ORDERS}; ALTER TABLE orders ADD UNIQUE (text)", **UPSERT)
    with raises(DeclinedError, "row_refused", sink=SINK, sqlstate="23505"):
        world.prepare(world.plan(pa.table({"id": [1, 2], "text": ["a", "a"]})))
    assert found(world) == []


def trigger(on: str, when: str, action: str = "RETURN NULL") -> str:
    return (
        f"CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {action}; END $$;"
        f" CREATE TRIGGER t {on} FOR EACH ROW WHEN ({when}) EXECUTE FUNCTION f()"
    )


LEAVING_OUT: dict[str, tuple[str, int]] = {
    "an insert, by a trigger": (trigger("BEFORE INSERT ON orders", "new.id > 1"), 2),
    "an update, by a trigger": (trigger("BEFORE UPDATE ON orders", "new.id = 1"), 1),
    "a delete, by a trigger": (trigger("BEFORE DELETE ON orders", "old.id = 9"), 1),
    "a delete, by a rule": ("CREATE RULE r AS ON DELETE TO orders DO INSTEAD NOTHING", 1),
    "an insert, by a trigger of a partition": (
        "ALTER TABLE orders RENAME TO one; CREATE TABLE orders (LIKE one INCLUDING ALL) PARTITION BY RANGE (id);"
        f"ALTER TABLE orders ATTACH PARTITION one DEFAULT; {trigger('BEFORE INSERT ON one', 'new.id = 3')}",
        1,
    ),
}


@pytest.mark.parametrize("what", LEAVING_OUT)
def test_changes_that_are_left_out_without_a_word_are_noticed(make: Make, what: str) -> None:
    ddl, count = LEAVING_OUT[what]
    world = make(f"{ORDERS}; INSERT INTO orders VALUES (1, 'old', 0), (9, 'old', 0)", **CHANGES)
    before = found(world)
    decided = world.plan(changes(("u", 1, "new"), ("c", 2, "x"), ("u", 2, "new"), ("c", 3, "new"), ("d", 9, None)))
    vote = world.prepare(decided)
    table_of(world).sql(ddl)
    for late in (False, True):
        with raises(DeclinedError, "row_refused", sink=SINK, table="public.orders", keys=count) as caught:
            world.commit(decided, vote) if late else world.prepare(decided)
        assert caught.error is not None and caught.error.remedy and found(world) == before
    table_of(world).sql("DROP RULE r ON orders" if "rule" in what else "DROP FUNCTION f CASCADE")
    world.commit(decided, vote)
    assert found(world) == [(1, "new", 1), (2, "new", 1), (3, "new", 1)]


def test_rows_of_a_higher_version_are_no_loss_beside_a_trigger(make: Make) -> None:
    leaves = trigger("BEFORE INSERT OR UPDATE OR DELETE ON orders", "true", "RETURN coalesce(new, old)")
    world = make(ORDERS, **CHANGES)
    world.deliver(world.plan(changes(("d", 1, None))))
    table_of(world).sql(f"INSERT INTO orders VALUES (1, 'newer', 7), (2, 'newer', 7); {leaves}")
    world.deliver(world.plan(changes(("u", 1, "older"), ("d", 2, None), ("c", 3, "ours"), ("d", 4, None))))
    assert found(world) == [(1, "newer", 7), (2, "newer", 7), (3, "ours", 2)]


def test_privileges_that_are_lacking_are_told(make: Make) -> None:
    world = make(ORDERS, **CHANGES)
    limited(world, "INSERT ON orders")
    try:
        table_of(world).sql(f"GRANT CREATE ON SCHEMA public TO {table_of(world).connection.login}")
        lacking = ["SELECT", "UPDATE", "DELETE"]
        with raises(SinkAccessError, "privilege_missing", table="public.orders", privileges=lacking):
            world.prepare(world.plan(changes(("c", 1, "a"))))
        table_of(world).sql(f"GRANT ALL ON orders TO {table_of(world).connection.login}")
        world.deliver(world.plan(changes(("c", 1, "a"))))
    finally:
        drop_user(world)


@pytest.mark.parametrize("action", ["die", "stand still"])
def test_a_death_or_a_zombie_at_any_statement_is_made_good(
    make: Make, monkeypatch: pytest.MonkeyPatch, action: str
) -> None:
    world = make(ORDERS, **CHANGES)
    at, struck = 1, 0
    while True:
        plan = world.plan(changes(("u", 1, f"of {at}"), ("c", at + 10, "new"), ("d", at + 9, None)))
        vote = world.prepare(plan)
        old = world.fence(1, world.attempt())

        def successor(plan: Any = plan, vote: Any = vote) -> None:
            quick(world, plan.participants[0]).commit(plan, world.fence(1, world.attempt()), vote)

        actions_now: dict[str, Callable[[], None]] = {"stand still": successor}
        statement = AtStatement(at, True, **({"action": actions_now[action]} if action in actions_now else {}))
        # whom the successor cut off may have too little time left to see its fence
        with monkeypatch.context() as patch, suppress(Death, FencedError, SinkUnavailableError):
            statement.install(patch)
            quick(world, plan.participants[0]).commit(plan, old, vote)
        successor()
        world.predecessor = plan.number
        assert [row[1] for row in found(world) if row[0] == 1] == [f"of {at}"], statement.struck
        assert (at + 10, "new", plan.number) in found(world)
        if not statement.struck:
            break
        struck, at = struck + 1, at + stride(3)
    assert struck > 4


def test_verify_compares_by_key(make: Make) -> None:
    world = make(ORDERS, **CHANGES)
    delivered = []
    for rows in (
        changes(("c", 1, "a"), ("c", 2, "a"), ("c", 3, "a"), ("c", 4, "a")),
        changes(("u", 2, "b"), ("d", 3, None)),
    ):
        plan = world.plan(rows)
        delivered.append(Delivered(plan, world.deliver(plan), None))
    table = table_of(world)

    def report(*which: Delivered) -> SinkReport:
        [metadata] = verify.verify(which or delivered, world.participant_plan(), table.connection, open_wal())
        return metadata

    assert report().is_exact and not report().notes
    first = report(delivered[0])
    assert first.is_exact and first.notes[0].startswith("not compared: 2 keys ")
    table.sql("INSERT INTO orders VALUES (3, 'revived', 1), (9, 'of others', 0)")
    table.sql("UPDATE orders SET text = 'changed' WHERE id = 2; DELETE FROM orders WHERE id = 4")
    metadata = report()
    assert (metadata.missing, [(each.number, each.rows) for each in metadata.differences]) == (3, [(1, 1), (2, 2)])
    assert metadata.differences[0].samples == ("4, a",)


def test_a_row_that_a_later_number_may_delete_is_unknown(make: Make) -> None:
    """The sink got its `change_column` after the number that is compared."""
    world = make(ORDERS, **CHANGES)
    table = table_of(world)
    first = world.plan_into(replace(world.target.sink, change_column=None), world.table(1, 2))
    world.deliver(first)
    world.predecessor = first.number
    second = world.plan(changes(("d", 1, None)))
    world.deliver(second)
    [plan] = second.participants
    stock = replace(plan, sinks={name: {**given, "table": "stock"} for name, given in plan.sinks.items()})
    for others, missing in (((), 1), ((stock,), 1), ((plan,), 0)):
        delivered = [Delivered(first, None, None, others)]
        [report] = verify.verify(delivered, first.participants[0], table.connection, open_wal())
        assert (report.missing, len(report.notes)) == (missing, 1 - missing)


def test_changes_have_time_for_each_of_their_rows(make: Make) -> None:
    """A decided checkpoint cannot be aborted, so a limit of its one statement would hold it forever."""
    world = make(
        f"{ORDERS}; CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN PERFORM pg_sleep(0.1); RETURN new; END $$;"
        " CREATE TRIGGER slow BEFORE INSERT ON orders FOR EACH ROW EXECUTE FUNCTION slow()",
        **UPSERT,
    )
    plan = world.plan(world.table(0, 15))
    vote = world.prepare(plan)
    with raises(SinkUnavailableError, "sink_unavailable", sqlstate="57014") as caught:
        quick(world, answer=0.5).commit(plan, world.fence(1, world.attempt()), vote)
    assert "statement timeout" in caught.error.what and "speed it up" in caught.error.remedy
    quick(world, answer=0.5, row=1).commit(plan, world.fence(1, world.attempt()), vote)
    assert table_of(world).ids() == [*range(15)]
