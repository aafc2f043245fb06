"""A trial that sends nothing: only where the server would take each row for certain."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from airflow_ft.core.errors import DeclinedError
from airflow_ft.sinks.postgres.catalog import Column
from airflow_ft.sinks.postgres.certain import fills, takes
from airflow_ft.sinks.postgres.session import Session
from tests.raising import raises
from tests.sinks.postgres.conftest import Make
from tests.sinks.postgres.test_refusals import changes
from tests.sinks.postgres.world import table_of

UPSERT: dict[str, Any] = {"strategy": "upsert", "key_columns": ["id"], "version_column": "version"}


def column(type: str, modifier: int = -1, *, must: bool = False, sort: str = "b") -> Column:
    return Column("v", type, sort, "", modifier, type, must, False, False, True, type)


YEAR_10000 = 253_402_300_800_000_000
VALUES: list[tuple[pa.Array, Column, bool]] = [
    (pa.array([1, None]), column("int8"), True),
    (pa.array([1, None]), column("int8", must=True), False),
    (pa.array([2**15 - 1]), column("int2"), True),
    (pa.array([2**15]), column("int2"), False),
    (pa.array([2**63], pa.uint64()), column("int8"), False),
    (pa.array([2**63], pa.uint64()), column("numeric"), True),
    (pa.array([1]), column("numeric", (3 << 16 | 1) + 4), False),
    (pa.array([Decimal("99.9")], pa.decimal128(3, 1)), column("numeric", (3 << 16 | 1) + 4), True),
    (pa.array([Decimal("100.0")], pa.decimal128(4, 1)), column("numeric", (3 << 16 | 1) + 4), False),
    (pa.array([Decimal("1.25")], pa.decimal128(4, 2)), column("numeric", (9 << 16 | 1) + 4), False),
    (pa.array([0.1]), column("float8"), True),
    (pa.array(["a", None, ""]), column("text"), True),
    (pa.array(["a\0"]), column("text"), False),
    (pa.array([b"\xff"]).view(pa.string()), column("text"), False),
    (pa.array(["äbc"]), column("varchar", 7), True),
    (pa.array(["abcd"]), column("varchar", 7), False),
    (pa.array(["abc "]), column("varchar", 7), False),
    (pa.array(["a"]), column("bpchar", 7), False),
    (pa.array(["a"]), column("mood", sort="e"), False),
    (pa.array(["{}"]), column("json"), False),
    (pa.array([b"a"]), column("bytea"), True),
    (pa.array([YEAR_10000 - 1], pa.timestamp("us", "UTC")), column("timestamptz"), True),
    (pa.array([YEAR_10000 + 86_400_000_000], pa.timestamp("us", "UTC")), column("timestamptz"), False),
    (pa.array([1500], pa.timestamp("ms")), column("timestamp", 0), False),
    (pa.array([2**31 - 1], pa.int32()).cast(pa.date32()), column("date"), False),
    (pa.array([None], pa.string()), column("text"), True),
]


@pytest.mark.parametrize("case", range(len(VALUES)))
def test_what_is_taken_for_certain(case: int) -> None:
    values, into, expected = VALUES[case]
    rows = pa.RecordBatch.from_arrays([values], ["v"])
    assert (takes(rows, [into]) and fills(rows, [into])) is expected


PLAIN = "CREATE TABLE orders (id bigint PRIMARY KEY, text varchar(9), version bigint NOT NULL DEFAULT 0)"
OTHERS = {
    "a check": "ALTER TABLE orders ADD CHECK (id > 0)",
    "another key": "CREATE UNIQUE INDEX ON orders (text)",
    "an index of texts": "CREATE INDEX ON orders (text)",
    "an expression": "CREATE INDEX ON orders ((100 / id))",
    "a foreign key": "CREATE TABLE other (id bigint REFERENCES orders)",
    "a trigger": "CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN new; END $$;"
    " CREATE TRIGGER t BEFORE INSERT ON orders FOR EACH ROW EXECUTE FUNCTION f()",
    "a rule": "CREATE RULE r AS ON DELETE TO orders DO ALSO NOTIFY orders",
    "a default": "ALTER TABLE orders ADD more int DEFAULT 1",
    "a domain": "CREATE DOMAIN d AS text CHECK (VALUE <> 'no'); ALTER TABLE orders ADD more d",
    "a child": "CREATE TABLE child () INHERITS (orders)",
    "a policy": "ALTER TABLE orders ENABLE ROW LEVEL SECURITY",
    "a publication": "CREATE PUBLICATION p FOR TABLE orders WHERE (id > 0)",
}


@pytest.mark.server
@pytest.mark.rotating
def test_a_trial_sends_rows_unless_the_table_is_plain(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    world = make(PLAIN, **UPSERT, change_column="op")
    sent: list[str] = []
    copy = Session.copy

    def counted(session: Session, sql: str, data: bytes | memoryview) -> int:
        sent.append(sql)
        return copy(session, sql, data)

    monkeypatch.setattr(Session, "copy", counted)
    rows = changes(("c", 1, "a"), ("u", 1, "b"), ("d", 2, None))
    world.prepare(world.plan(rows))
    assert sent == []
    for what, ddl in OTHERS.items():
        table_of(world).sql(f"DROP TABLE orders CASCADE; {PLAIN}")
        table_of(world).sql(f"DROP FUNCTION IF EXISTS f; DROP DOMAIN IF EXISTS d; DROP PUBLICATION IF EXISTS p; {ddl}")
        sent.clear()
        world.prepare(world.plan(rows))
        assert len(sent) == 1, what
    table_of(world).sql(f"DROP TABLE orders CASCADE; {PLAIN}")
    with raises(DeclinedError, "value_unfit", table="public.orders", row_number=2):
        world.prepare(world.plan(changes(("c", 1, "a"), ("c", 3, "longer than nine"))))
    sent.clear()
    for wrong in (changes(("c", 1, "a"), ("d", None, "a")), changes(("c", 1, None), ("maybe", 2, "b"))):  # type: ignore[arg-type]
        with raises(
            DeclinedError, "null_refused" if None in wrong["id"].to_pylist() else "change_kind_unknown", row_number=2
        ):
            world.prepare(world.plan(wrong))
    table_of(world).sql("ALTER TABLE orders ALTER text SET NOT NULL")
    with raises(DeclinedError, "null_refused", sqlstate="23502"):
        world.prepare(world.plan(changes(("c", 1, None))))
    sent.clear()
    world.prepare(world.plan(rows))
    assert sent == []
    world.deliver(world.plan(rows))
    assert table_of(world).sql("SELECT id, text FROM orders") == [(1, "b")]
