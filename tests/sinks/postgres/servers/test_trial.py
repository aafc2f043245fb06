"""A trial sends rows unless the table is plain."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_ft.protocol.errors import DeclinedError
from airflow_ft.sinks.postgres.session import Session
from tests.raising import raises
from tests.sinks.postgres.conftest import Make
from tests.sinks.postgres.servers.test_refusals import changes
from tests.sinks.postgres.world import table_of

UPSERT: dict[str, Any] = {"strategy": "upsert", "key_columns": ["id"], "version_column": "version"}
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


@pytest.mark.sampled
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
    for wrong, code in (
        (changes(("c", 1, "a"), ("d", None, "a")), "null_refused"),  # type: ignore[arg-type]
        (changes(("c", 1, None), ("maybe", 2, "b")), "change_kind_unknown"),
    ):
        with raises(DeclinedError, code, row_number=2):
            world.prepare(world.plan(wrong))
    table_of(world).sql("ALTER TABLE orders ALTER text SET NOT NULL")
    with raises(DeclinedError, "null_refused", sqlstate="23502"):
        world.prepare(world.plan(changes(("c", 1, None))))
    sent.clear()
    world.prepare(world.plan(rows))
    assert sent == []
    world.deliver(world.plan(rows))
    assert table_of(world).sql("SELECT id, text FROM orders") == [(1, "b")]
