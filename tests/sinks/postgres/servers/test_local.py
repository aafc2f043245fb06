"""`local`: what is refused and in which words, who waits for whom, and what a death at any statement leaves."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_ft.protocol.doctor import Verdict
from airflow_ft.protocol.errors import (
    AirflowFtError,
    DeclinedError,
    FencedError,
    SinkAccessError,
    SinkUnavailableError,
    StoreBehindSinkError,
    UnfitTargetError,
)
from airflow_ft.protocol.set_aside import of_proof
from airflow_ft.protocol.votes import Outcome
from airflow_ft.sinks.base.memory import Head
from airflow_ft.sinks.postgres import doctor, requirements
from airflow_ft.sinks.postgres.gid import label_of
from airflow_ft.sinks.postgres.ledger import Ledger
from airflow_ft.sinks.postgres.session import Session
from airflow_ft.testing.world import SINK, World
from airflow_ft.wal import open_wal
from tests.density import stride
from tests.raising import raises
from tests.sinks.postgres.conftest import Make
from tests.sinks.postgres.deaths import AtStatement, Death
from tests.sinks.postgres.world import QUICK, Table, quick, table_of
from tools.servers import Postgres

pytestmark = [pytest.mark.server, pytest.mark.sampled]

ORDERS = "CREATE TABLE orders (id bigint, text text)"


def refused(world: World, code: str, kind: type[AirflowFtError] = UnfitTargetError, **fields: Any) -> AirflowFtError:
    """Both `prepare` and the check before Spark computes anything refuse the table."""
    plan = world.plan()
    with raises(kind, code, sink=SINK, **fields) as caught:
        quick(world).prepare(plan, world.fence(1, world.attempt()))
    assert caught.error is not None and caught.error.remedy
    schema = {SINK: world.table(0, 0).schema}
    asked = requirements.schema_problems(plan.participants[0], table_of(world).connection, schema)
    assert [each.code for each in asked] == caught.error.fields.get("codes", [code])
    assert asked[0].what in caught.error.what
    return caught.error


# --- tables ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ddl", "code", "column", "remedy"),
    [
        ("", "table_missing", "", "airflow ft setup"),
        ('CREATE TABLE "Orders" (id bigint, text text)', "table_missing", "", "lower case"),
        ("CREATE VIEW orders AS SELECT 1::bigint AS id, ''::text AS text", "table_unsupported", "", "table="),
        ("CREATE UNLOGGED TABLE orders (id bigint, text text)", "table_unlogged", "", "SET LOGGED"),
        ("CREATE TABLE orders (id bigint)", "column_missing", "text", 'ADD COLUMN "text" text'),
        (
            "CREATE TABLE orders (id bigint, text text GENERATED ALWAYS AS ('a') STORED)",
            "column_generated",
            "text",
            "BY DEFAULT",
        ),
        (
            "CREATE TABLE orders (id bigint GENERATED ALWAYS AS IDENTITY, text text)",
            "column_generated",
            "id",
            "BY DEFAULT",
        ),
        ("CREATE TABLE orders (id bigint, text text, must int NOT NULL)", "column_required", "must", "SET DEFAULT"),
    ],
)
def test_a_table_that_does_not_fit_is_told_with_what_helps(
    make: Make, ddl: str, code: str, column: str, remedy: str
) -> None:
    assert remedy in refused(make(ddl), code, column=column).remedy


BY_ID = (
    "CREATE TABLE orders (id bigint PRIMARY KEY, text text, version bigint) PARTITION BY RANGE (id);"
    " CREATE TABLE low PARTITION OF orders FOR VALUES FROM (MINVALUE) TO (0);"
    " CREATE TABLE high PARTITION OF orders FOR VALUES FROM (0) TO (MAXVALUE) PARTITION BY RANGE (id);"
)
ELSEWHERE = "CREATE FOREIGN DATA WRAPPER remote; CREATE SERVER elsewhere FOREIGN DATA WRAPPER remote;"
UPSERT = {"strategy": "upsert", "key_columns": ["id"], "version_column": "version"}


@pytest.mark.parametrize(
    ("partition", "code", "remedy"),
    [
        (
            f'{ELSEWHERE} CREATE FOREIGN TABLE "Far" PARTITION OF high DEFAULT SERVER elsewhere',
            "table_unsupported",
            'DETACH PARTITION public."Far"',
        ),
        (
            'CREATE UNLOGGED TABLE "Lost" PARTITION OF high DEFAULT',
            "table_unlogged",
            'ALTER TABLE public."Lost" SET LOGGED',
        ),
    ],
    ids=["foreign", "unlogged"],
)
@pytest.mark.parametrize("settings", [{}, {"strategy": "prepared"}, UPSERT], ids=["local", "prepared", "upsert"])
def test_a_foreign_or_unlogged_partition_is_refused_at_any_depth(
    make: Make, settings: dict[str, Any], partition: str, code: str, remedy: str
) -> None:
    # A foreign table can have no unique index, nor be below a table that has one.
    ddl = BY_ID if "FOREIGN" not in partition else BY_ID.replace(" PRIMARY KEY", "")
    world = make(f"{ddl} {partition}", **settings)
    refusal = refused(world, code)
    assert remedy in refusal.remedy and "table public.orders" in refusal.headline
    found = doctor.examine(
        world.pipeline,
        world.participant_plan(),
        table_of(world).connection,
        [open_wal().open(segment) for segment in world.plan().segments],
    )
    assert any(check.verdict is Verdict.PROBLEM and refusal.what in check.text for check in found), found


def test_an_unlogged_partition_is_filled_if_that_is_allowed(make: Make) -> None:
    world = make(f"{BY_ID} CREATE UNLOGGED TABLE lost PARTITION OF high DEFAULT", allow_unsafe_durability=True)
    world.deliver(world.plan())
    assert world.target.ids() == world.ids_of(1)


def test_child_tables_of_a_plain_table_are_ignored(make: Make) -> None:
    world = make(
        f"{ORDERS}; CREATE UNLOGGED TABLE child () INHERITS (orders);"
        f" {ELSEWHERE} CREATE FOREIGN TABLE far () INHERITS (orders) SERVER elsewhere"
    )
    world.deliver(world.plan())
    assert table_of(world).sql("SELECT count(*) FROM ONLY orders") == [(40,)]


def test_partitions_are_looked_at_without_a_lock(make: Make) -> None:
    world = make(f"{BY_ID} CREATE TABLE rest PARTITION OF high DEFAULT", strategy="prepared")
    world.prepare(world.plan())
    table_of(world).sql("SET lock_timeout = 100; ALTER TABLE low SET (fillfactor = 90); TRUNCATE low")


def test_everything_that_does_not_fit_is_told_at_once(make: Make) -> None:
    refusal = refused(make("CREATE TABLE orders (id text, must int NOT NULL)"), "several_problems")
    assert refusal.fields["codes"] == ["column_unfit", "column_missing", "column_required"]


def test_a_partitioned_table_in_an_oddly_named_schema_is_filled(make: Make) -> None:
    world = make(
        'CREATE SCHEMA "my.shop";'
        'CREATE TABLE "my.shop"."or""der 100%s?" (id bigint, text text) PARTITION BY LIST (id);'
        'CREATE TABLE "my.shop".rest PARTITION OF "my.shop"."or""der 100%s?" DEFAULT',
        table='"my.shop"."or""der 100%s?"',
        ledger_schema="my.shop",
    )
    world.deliver(world.plan())
    world.deliver(world.plan())
    assert table_of(world).sql('SELECT count(*) FROM "my.shop".rest') == [(80,)]
    assert table_of(world).sql('SELECT last_delivered FROM "my.shop".airflow_ft_head') == [(2,)]


def test_columns_match_as_postgresql_reads_unquoted_names(make: Make) -> None:
    world = make("CREATE TABLE orders (key bigserial, orderid bigint, \"Text\" text, by text NOT NULL DEFAULT 'me')")
    world.deliver(world.plan(pa.table({"orderId": [5, 6], "Text": ["a", "b"]})))
    assert table_of(world).sql("SELECT * FROM orders") == [(1, 5, "a", "me"), (2, 6, "b", "me")]
    both = world.plan(pa.table({"orderId": [5], "orderid": [6]}))
    with raises(UnfitTargetError, "column_ambiguous", sink=SINK, column="orderid"):
        world.prepare(both)


def test_a_table_that_goes_after_the_decision_is_waited_for(make: Make) -> None:
    world = make(ORDERS)
    plan = world.plan()
    vote = world.prepare(plan)
    table_of(world).sql("ALTER TABLE orders RENAME text TO texts")
    with raises(UnfitTargetError, "column_missing", column="text", table="public.orders"):
        world.commit(plan, vote)
    table_of(world).sql("ALTER TABLE orders RENAME texts TO text")
    world.commit(plan, vote)
    assert world.target.ids() == world.ids_of(1)


# --- rows --------------------------------------------------------------------------------------------------------


FUNCTION = (
    f"{ORDERS}; CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {{}}; RETURN new; END $$;"
    " CREATE TRIGGER t BEFORE INSERT ON orders FOR EACH ROW EXECUTE FUNCTION f()"
)
REFUSING: dict[str, tuple[str, int | None, str | None, list[int]]] = {
    "a key": (
        "CREATE TABLE orders (id bigint PRIMARY KEY, text text)",
        3,
        "23505",
        [1, 2, 3],
    ),
    "a check": (
        "CREATE TABLE orders (id bigint CHECK (id < 3), text text)",
        4,
        "23514",
        [1, 2, 2],
    ),
    "a key that is looked at by COMMIT": (
        "CREATE TABLE orders (id bigint UNIQUE DEFERRABLE INITIALLY DEFERRED, text text)",
        None,
        "23505",
        [1, 2, 3],
    ),
    "a foreign key": (
        "CREATE TABLE other (id bigint PRIMARY KEY); INSERT INTO other VALUES (1), (2);"
        " CREATE TABLE orders (id bigint REFERENCES other, text text)",
        None,
        "23503",
        [1, 2, 2],
    ),
    "no partition": (
        "CREATE TABLE orders (id bigint, text text) PARTITION BY LIST (id);"
        " CREATE TABLE two PARTITION OF orders FOR VALUES IN (1, 2)",
        4,
        "23514",
        [1, 2, 2],
    ),
    "a trigger that leaves out": (
        FUNCTION.format("IF new.id = 3 THEN RETURN NULL; END IF"),
        None,
        None,
        [1, 2, 2],
    ),
    "a trigger that raises": (
        FUNCTION.format("IF new.id = 1 THEN RAISE 'not this'; END IF"),
        1,
        "P0001",
        [2, 2, 3],
    ),
    "an index": (f"{ORDERS}; CREATE INDEX ON orders (text)", 2, "54000", [1, 2, 3]),
}


@pytest.mark.parametrize("what", REFUSING)
@pytest.mark.parametrize("decides", [True, False])
def test_refused_rows_stop_the_decision_and_can_be_set_aside(make: Make, what: str, decides: bool) -> None:
    ddl, row, sqlstate, taken = REFUSING[what]
    world = make(ddl)
    world.commit_point = decides
    incompressible = "".join(chr(0x4E00 + (each * 7919) % 20000) for each in range(6000))
    texts = ["a", incompressible if what == "an index" else "b", "c", "d"]
    plan = world.plan(pa.table({"id": [1, 2, 2, 3], "text": texts}))
    with raises(DeclinedError, "row_refused", sink=SINK, row_number=row, sqlstate=sqlstate) as caught:
        vote = world.prepare(plan)
        assert decides, "nobody could refuse them later"
        world.commit(plan, vote)
    text = str(caught.error)
    assert incompressible not in text and ("a key" not in what or "(id)=(2)" in text)
    assert world.target.ids() == []
    proof = world.commit(plan, world.vote_without_prepare(plan), set_aside=True)
    assert world.target.ids() == taken and proof.counts[SINK] == len(taken)
    assert of_proof(proof)[SINK].rows == 4 - len(taken)


AT_THE_END = (
    "CREATE TABLE other (id bigint UNIQUE DEFERRABLE INITIALLY DEFERRED); INSERT INTO other VALUES (1);"
    " CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS"
    " $$ BEGIN SET CONSTRAINTS ALL DEFERRED; INSERT INTO other VALUES (1); RETURN new; END $$;"
    " CREATE CONSTRAINT TRIGGER t AFTER INSERT ON orders DEFERRABLE INITIALLY DEFERRED"
    " FOR EACH ROW EXECUTE FUNCTION f()"
)
"""It defers a constraint once more when it is looked at before COMMIT, so that COMMIT itself refuses rows."""


@pytest.mark.parametrize("strategy", ["local", "prepared", "upsert"])
def test_rows_refused_at_the_end_of_a_transaction_are_declined(make: Make, strategy: str) -> None:
    settings = UPSERT if strategy == "upsert" else {"strategy": strategy}
    ddl = "CREATE TABLE orders (id bigint PRIMARY KEY, text text, version bigint)"
    world = make(f"{ddl}; {AT_THE_END}", **settings)
    plan = world.plan()
    with raises(DeclinedError, "row_refused", sink=SINK, sqlstate="23505") as caught:
        vote = world.prepare(plan)
        assert strategy != "prepared"
        world.commit(plan, vote)
    assert caught.error is not None and caught.error.remedy and world.target.ids() == []
    assert table_of(world).prepared(world) == []
    table_of(world).sql("DROP FUNCTION f CASCADE")
    world.deliver(plan)
    assert world.target.ids() == world.ids_of(1)


QUOTING: dict[str, tuple[str, dict[str, Any], type[AirflowFtError]]] = {
    "a check": ("CHECK (id > 1)", {}, DeclinedError),
    "a check, prepared": ("CHECK (id > 1)", {"strategy": "prepared"}, DeclinedError),
    "a check, by key": ("CHECK (id > 1)", UPSERT, DeclinedError),
    "no memory while a row is copied": ("", {}, SinkUnavailableError),
}


@pytest.mark.parametrize("what", QUOTING)
def test_of_a_row_no_traceback_shows_more_than_its_key(make: Make, what: str) -> None:
    check, settings, kind = QUOTING[what]
    # Arrays go as CSV, of which the server quotes whole lines.
    world = make(
        f"CREATE TABLE orders (id bigint PRIMARY KEY {check}, text text, more text[], version bigint)", **settings
    )
    world.commit_point = False
    if kind is SinkUnavailableError:
        table_of(world).sql(
            "CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS"
            " $$ BEGIN RAISE 'full' USING ERRCODE = '53200'; END $$;"
            " CREATE TRIGGER t BEFORE INSERT ON orders FOR EACH ROW EXECUTE FUNCTION f()"
        )
    plan = world.plan(pa.table({"id": [1], "text": ["the secret"], "more": [["the secret"]]}))
    with pytest.raises(kind) as caught:
        world.prepare(plan)
    shown = "".join(traceback.format_exception(caught.value))
    assert "Fix: " in shown and "secret" not in shown


def test_many_refused_rows_are_found_among_many_that_are_not(make: Make) -> None:
    world = make("CREATE TABLE orders (id bigint CHECK (id % 100 <> 7), text text)")
    plan = world.plan(world.table(0, 3000))
    proof = world.commit(plan, replace(world.prepare(plan)), set_aside=True)
    assert world.target.ids() == [each for each in range(3000) if each % 100 != 7]
    assert of_proof(proof)[SINK].places[1] == (1, "rows/part-00000.parquet", 107, 108)


# --- who waits for whom --------------------------------------------------------------------------------------------


def test_a_stranger_that_locks_the_head_is_reported_after_a_wait(make: Make) -> None:
    world = make(ORDERS)
    plan = world.plan()
    vote = world.prepare(plan)
    with closing(table_of(world).database.connect()) as other, other.cursor() as cursor:
        cursor.execute("BEGIN; SELECT 1 FROM airflow_ft_head FOR UPDATE")
        with raises(SinkUnavailableError, "lock_timeout", sqlstate="55P03") as caught:
            quick(world, head_wait=0.5).commit(plan, world.fence(1, 9), vote)
        assert caught.error is not None and "pg_stat_activity" in caught.error.remedy
        cursor.execute("ROLLBACK")
    world.commit(plan, vote, 10)
    assert world.target.ids() == world.ids_of(1)


@pytest.mark.parametrize("newer", [False, True])
def test_only_a_newer_attempt_ends_a_stalled_session(make: Make, newer: bool) -> None:
    world = make(ORDERS)
    plan = world.plan()
    vote = world.prepare(plan)
    fence = world.fence(1, 11 if newer else 8)
    with closing(Session(table_of(world).connection, QUICK, label_of(fence, "shop"))) as session:
        session.begin()
        session.rows("SELECT 1 FROM airflow_ft_head FOR UPDATE")
        if newer:
            with raises(SinkUnavailableError, "lock_timeout", sqlstate="55P03"):
                quick(world, head_wait=0.5).commit(plan, world.fence(1, 9), vote)
            session.run("UPDATE airflow_ft_head SET attempt = 11")
            session.end()
            with pytest.raises(FencedError):
                quick(world).commit(plan, world.fence(1, 9), vote)
            assert world.target.ids() == []
        else:
            quick(world).commit(plan, world.fence(1, 9), vote)
            assert world.target.ids() == world.ids_of(1)


def test_several_that_make_the_ledger_at_once_do(make: Make) -> None:
    world = make(ORDERS)
    plan = world.plan()
    errors: list[BaseException] = []
    start = threading.Barrier(6)

    def prepare(attempt: int) -> None:
        participant = quick(world)
        start.wait()
        try:
            participant.prepare(plan, world.fence(1, attempt))
        except FencedError:
            pass
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=prepare, args=(attempt,)) for attempt in range(1, 7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert table_of(world).sql("SELECT epoch, attempt FROM airflow_ft_head") == [(1, 6)]


def test_the_place_of_a_head_is_locked_before_it_is_made(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Attempt 1 makes the head after attempt 3 has found none, and 6 raises it after 3 has read what 1 has made."""
    world = make(ORDERS)
    plan = world.plan()
    others: list[threading.Thread] = []
    heads: list[object] = []

    def prepare(attempt: int) -> None:
        with suppress(FencedError):
            quick(world).prepare(plan, world.fence(1, attempt))

    def meanwhile(attempt: int) -> None:
        others.append(threading.Thread(target=prepare, args=(attempt,)))
        others[-1].start()
        others[-1].join(1)  # it waits for the lock

    def newest(ledger: Ledger, former: Callable[[Ledger], int] = Ledger.newest) -> int:
        if threading.current_thread() is threading.main_thread() and not others:
            meanwhile(1)
        return former(ledger)

    def head(ledger: Ledger, former: Callable[[Ledger], Head | None] = Ledger.head) -> Head | None:
        found = former(ledger)
        if threading.current_thread() is threading.main_thread():
            heads.append(found)
            if len(heads) == 2:  # what it finds after it has made one, or found one
                meanwhile(6)
        return found

    prepare(9)  # makes the tables
    table_of(world).sql("DELETE FROM airflow_ft_head")
    monkeypatch.setattr(Ledger, "newest", newest)
    monkeypatch.setattr(Ledger, "head", head)
    prepare(3)
    for thread in others:
        thread.join()
    assert len(others) == 2
    assert table_of(world).sql("SELECT epoch, attempt FROM airflow_ft_head") == [(1, 6)]


# --- deaths --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
@pytest.mark.parametrize("action", ["prepare", "commit", "abort"])
def test_a_death_at_any_statement_leaves_all_rows_or_none(
    make: Make, monkeypatch: pytest.MonkeyPatch, action: str, before: bool
) -> None:
    world = make(ORDERS)
    expected: list[int] = []
    at, died = 1, 0
    while True:
        plan = world.plan()
        vote = world.prepare(plan) if action != "prepare" else world.vote_without_prepare(plan)
        statement = AtStatement(at, before)
        with monkeypatch.context() as patch, suppress(Death):
            statement.install(patch)
            if action == "abort":
                world.participant(plan).abort(plan, world.fence(1, world.attempt()), {})
            elif action == "commit":
                world.commit(plan, vote)
            else:
                vote = world.prepare(plan)
        both = sorted([*expected, *world.ids_of(plan.number)])
        assert world.target.ids() in ((expected, both) if action == "commit" else (expected,)), statement.struck
        if action == "abort":
            for _ in range(2):
                proof = world.participant(plan).abort(plan, world.fence(1, world.attempt()), {})
                assert proof.outcome is Outcome.ABORTED, statement.struck
        else:
            world.commit(plan, world.prepare(plan))
            world.predecessor, expected = plan.number, both
        assert world.target.ids() == expected, statement.struck
        if not statement.struck:
            break
        died, at = died + 1, at + stride(4)
    assert died > 2


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
def test_a_zombie_that_pauses_at_any_statement_changes_nothing(
    make: Make, monkeypatch: pytest.MonkeyPatch, before: bool
) -> None:
    world = make(ORDERS)
    at, struck = 1, 0
    while True:
        plan = world.plan()
        vote = world.prepare(plan)
        old = world.fence(1, world.attempt())

        def successor(plan: Any = plan, vote: Any = vote) -> None:
            fence = world.fence(1, world.attempt())
            quick(world, plan.participants[0]).commit(plan, fence, vote)

        statement = AtStatement(at, before, successor)
        with monkeypatch.context() as patch, suppress(FencedError):
            statement.install(patch)
            quick(world, plan.participants[0]).commit(plan, old, vote)
        world.predecessor = plan.number
        assert world.target.ids() == world.ids_of(*range(1, plan.number + 1)), statement.struck
        if not statement.struck:
            break
        struck, at = struck + 1, at + stride(4)
    assert struck > 3


@pytest.mark.slow
@pytest.mark.parametrize("action", ["prepare", "commit", "abort"])
def test_an_older_attempt_never_lowers_the_head(make: Make, monkeypatch: pytest.MonkeyPatch, action: str) -> None:
    """It stands still between any two of its statements while a newer attempt raises the head."""
    world = make(ORDERS)
    world.deliver(world.plan())
    at = 1
    while True:
        plan = world.plan()
        vote = world.vote_without_prepare(plan)
        old, newer = world.fence(1, world.attempt()), world.fence(1, world.attempt())
        statement = AtStatement(at, True, lambda plan=plan, newer=newer: quick(world).prepare(plan, newer))  # type: ignore[misc]
        with monkeypatch.context() as patch, suppress(FencedError):
            statement.install(patch)
            participant = quick(world)
            if action == "prepare":
                participant.prepare(plan, old)
            elif action == "commit":
                participant.commit(plan, old, vote)
            else:
                participant.abort(plan, old, {})
        if not statement.struck:
            break
        assert table_of(world).sql("SELECT attempt FROM airflow_ft_head") == [(newer.attempt,)], statement.struck
        if table_of(world).sql("SELECT 1 FROM airflow_ft_ledger WHERE number = %s AND kind = 'committed'", plan.number):
            world.predecessor = plan.number
        at += 1
    assert at > 5


def test_a_commit_whose_answer_is_lost_is_found_by_its_marker(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    world = make(ORDERS)
    plan = world.plan()
    vote = world.prepare(plan)
    run, lost = Session.run, []

    def lose(session: Session, sql: str, args: Any = None) -> Any:
        found = run(session, sql, args)
        if sql == "COMMIT" and not lost:
            lost.append(sql)
            session.close()
            return run(session, "SELECT 1")
        return found

    monkeypatch.setattr(Session, "run", lose)
    assert world.commit(plan, vote).outcome is Outcome.COMMITTED
    assert lost and world.target.ids() == world.ids_of(1)


# --- the server ----------------------------------------------------------------------------------------------------


def test_steps_share_a_connection_and_replace_a_lost_one(make: Make) -> None:
    world = make(ORDERS)
    table = table_of(world)
    plan = world.plan()
    participant = world.participant(plan)
    participant.prepare(plan, world.fence(1, 1))
    ours = "FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'aft.%'"
    [(pid,)] = table.sql(f"SELECT pid {ours}")
    participant.commit(plan, world.fence(1, 2))
    assert table.sql(f"SELECT pid, state {ours}") == [(pid, "idle")]
    table.sql(f"SELECT pg_terminate_backend(pid) {ours}")
    assert participant.commit(plan, world.fence(1, 3)).outcome is Outcome.COMMITTED
    participant.close()
    assert participant.head(world.pipeline) is not None, "it may be used again"
    participant.close()
    assert world.target.ids() == world.ids_of(1)


def test_a_server_that_is_away_is_tried_again(make: Make) -> None:
    world = make(ORDERS)
    plan = world.plan()
    vote = world.prepare(plan)
    server = table_of(world).database.server
    assert isinstance(server, Postgres)
    server.kill()
    with raises(SinkUnavailableError, "server_unreachable", participant="shop") as caught:
        quick(world, tries=2).commit(plan, world.fence(1, 9), vote)
    text = str(caught.error)
    assert "connection 'shop'" in text and server.password not in text
    server.start()
    world.commit(plan, vote, 10)
    assert world.target.ids() == world.ids_of(1)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"password": "not the one"}, "password authentication failed"),
        ({"login": "nobody"}, "authentication failed"),
        ({"extra": {"sslmode": "no mode"}}, "invalid sslmode"),
        ({"extra": {"sslmode": "require"}}, "does not support SSL"),
    ],
)
def test_who_is_not_let_in_is_told_why_and_no_secret_is_shown(make: Make, wrong: dict[str, Any], words: str) -> None:
    world = make(ORDERS)
    table = table_of(world)
    table.connection = replace(table.connection, **wrong)
    with raises(SinkAccessError, "login_refused", participant="shop") as caught:
        quick(world).prepare(world.plan(), world.fence(1, 1))
    assert caught.error is not None and words in caught.error.headline
    shown = f"{caught.error} {caught.error.__cause__} {caught.error.__context__}"
    assert "not the one" not in shown and (not table.connection.password or table.connection.password not in shown)


def test_a_missing_database_is_named(make: Make) -> None:
    world = make(ORDERS)
    table = table_of(world)
    table.connection = replace(table.connection, schema="nowhere")
    with raises(SinkAccessError, "database_missing", participant="shop") as caught:
        quick(world).prepare(world.plan(), world.fence(1, 1))
    assert caught.error is not None and 'database "nowhere" does not exist' in caught.error.headline


def limited(world: World, *grants: str) -> None:
    """From here on the connection's user is one who may do nothing else than these."""
    table, name = table_of(world), f"u_{table_of(world).database.name}"
    table.sql(f"CREATE ROLE {name} LOGIN PASSWORD 'only this'")
    for grant in ("REVOKE CREATE ON SCHEMA public FROM PUBLIC", *(f"GRANT {each} TO {name}" for each in grants)):
        table.sql(grant)
    table.connection = replace(table.connection, login=name, password="only this")


def drop_user(world: World) -> None:
    table = table_of(world)
    table.sql(f"DROP OWNED BY {table.connection.login}")
    table.sql(f"DROP ROLE {table.connection.login}")


def test_a_reached_connection_limit_is_reported_with_a_remedy(make: Make) -> None:
    world = make(ORDERS)
    name = table_of(world).database.name
    limited(world, "INSERT ON orders")
    user = table_of(world).connection.login
    try:
        for what in (f"ROLE {user}", f"DATABASE {name}"):
            table_of(world).sql(f"ALTER {what} CONNECTION LIMIT 0")
            with raises(SinkUnavailableError, "limit_reached") as caught:
                world.prepare(world.plan())
            assert caught.error and "CONNECTION LIMIT" in caught.error.remedy
            table_of(world).sql(f"ALTER {what} CONNECTION LIMIT -1")
    finally:
        drop_user(world)


def test_who_may_not_make_the_ledger_is_given_the_statements(make: Make) -> None:
    world = make(ORDERS)
    limited(world, "INSERT ON orders")
    try:
        plan = world.plan()
        with raises(SinkAccessError, "ledger_not_created", schema="public") as caught:
            world.prepare(plan)
        assert caught.error is not None and "permission denied" in caught.error.headline
        ddl = caught.error.remedy.partition("\n")[2]
        table_of(world).sql(ddl)
        missing = ["SELECT", "INSERT", "UPDATE", "DELETE"]
        with raises(SinkAccessError, "privilege_missing", table='"public"."airflow_ft_head"', privileges=missing):
            world.prepare(plan)
        user = table_of(world).connection.login
        table_of(world).sql(f"GRANT SELECT, INSERT, UPDATE, DELETE ON airflow_ft_head, airflow_ft_ledger TO {user}")
        world.deliver(plan)
        assert world.target.ids() == world.ids_of(1)
        table_of(world).sql(f"REVOKE INSERT ON orders FROM {user}; GRANT INSERT (id) ON orders TO {user}")
        refused(world, "privilege_missing", SinkAccessError, column="text", privileges=["INSERT"])
        table_of(world).sql(f"GRANT ALL ON orders TO {user}; ALTER TABLE orders ENABLE ROW LEVEL SECURITY")
        refused(world, "row_security_active", SinkAccessError, table="public.orders")
    finally:
        drop_user(world)


def test_a_server_that_takes_no_writes_is_refused(make: Make) -> None:
    world = make(ORDERS)
    table_of(world).sql(f"ALTER DATABASE {table_of(world).database.name} SET default_transaction_read_only = on")
    with raises(SinkAccessError, "server_read_only", setting="default_transaction_read_only"):
        world.prepare(world.plan())


def test_a_server_that_may_lose_commits_is_refused_by_default(own_server: Any, tmp_path: Path) -> None:
    from tools.servers import Database

    server = own_server(Postgres, fsync="off", max_prepared_transactions=0)
    with Database.fresh(server) as database:
        world = World(Table(database), tmp_path)
        with raises(SinkAccessError, "server_setting_unsafe", settings=["fsync"]) as caught:
            world.prepare(world.plan())
        assert caught.error is not None and "ALTER SYSTEM SET fsync = on" in caught.error.remedy
        world = World(Table(database, strategy="prepared"), tmp_path)
        with raises(SinkAccessError, "limit_reached", setting="max_prepared_transactions") as caught:
            world.prepare(world.plan())
        assert caught.error is not None and "SET max_prepared_transactions = 20" in caught.error.remedy
        world = World(Table(database, ORDERS, allow_unsafe_durability=True), tmp_path)
        vote = world.prepare(plan := world.plan())
        assert "fsync" in vote.notes["warnings"][0]
        world.commit(plan, vote)
        assert world.target.ids() == world.ids_of(world.number)


@pytest.mark.parametrize("lost", ["DROP TABLE airflow_ft_head", "DELETE FROM airflow_ft_head"])
def test_a_ledger_that_is_lost_halts(make: Make, lost: str) -> None:
    world = make(ORDERS)
    world.deliver(world.plan())
    table_of(world).sql(lost)
    plan = world.plan()
    head = world.participant(plan).head(world.pipeline)
    assert head is None or head.lost
    with raises(StoreBehindSinkError, "ledger_lost"):
        world.commit(plan, world.vote_without_prepare(plan))
    first = world.plan_of(1, *plan.segments)
    with raises(StoreBehindSinkError, "ledger_lost"):
        world.prepare(replace(first, participants=(replace(first.participants[0], predecessor=0),)))


def test_an_unlogged_ledger_is_refused(make: Make) -> None:
    world = make(ORDERS)
    world.deliver(world.plan())
    table_of(world).sql("ALTER TABLE airflow_ft_ledger SET UNLOGGED")
    with raises(SinkAccessError, "table_unlogged", table='"public"."airflow_ft_ledger"') as caught:
        world.prepare(world.plan())
    assert caught.error is not None and "SET LOGGED" in caught.error.remedy
