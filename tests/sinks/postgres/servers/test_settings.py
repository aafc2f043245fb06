"""Settings of a session that exactness depends on: each transaction sets its own, also after other clients."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any

import psycopg2
import pyarrow as pa
import pytest

from airflow_ft.clients.postgres import Settings
from airflow_ft.protocol.errors import SinkAccessError
from airflow_ft.protocol.model import Segment
from airflow_ft.protocol.verify import Delivered
from airflow_ft.protocol.write_ahead_log import WalFile
from airflow_ft.sinks.postgres import verify
from airflow_ft.sinks.postgres.ledger import ddl_of
from airflow_ft.sinks.postgres.session import Session
from airflow_ft.wal import open_wal
from airflow_ft.wal.reader import ParquetSegment, ParquetWal
from tests.raising import raises
from tests.sinks.postgres.conftest import Make
from tests.sinks.postgres.servers.test_local import drop_user, limited
from tests.sinks.postgres.world import QUICK, quick, table_of

pytestmark = [pytest.mark.server, pytest.mark.sampled]

ORDERS = (
    "CREATE TABLE orders (id bigint PRIMARY KEY, floats float8, texts text[], at timestamptz, day date, bytes bytea,"
    " span interval, xml xml, version bigint NOT NULL DEFAULT 0)"
)
HOSTILE = {
    "array_nulls": "off",
    "extra_float_digits": "-15",
    "datestyle": "'SQL, DMY'",
    "intervalstyle": "'sql_standard'",
    "timezone": "'Asia/Kathmandu'",
    "bytea_output": "'escape'",
    "standard_conforming_strings": "off",
    "xmloption": "'document'",
    "transform_null_equals": "on",
    "synchronous_commit": "off",
    "session_replication_role": "'replica'",
    "default_transaction_isolation": "'serializable'",
    "row_security": "on",
    "lock_timeout": "1",
    "idle_in_transaction_session_timeout": "0",
}
SQL = "; ".join(f"SET {name} = {value}" for name, value in HOSTILE.items())
STRATEGIES: dict[str, dict[str, Any]] = {
    "local": {},
    "prepared": {"strategy": "prepared"},
    "upsert": {"strategy": "upsert", "key_columns": ["id"], "version_column": "version"},
}


def rows() -> pa.Table:
    return pa.table(
        {
            "id": [1, 2],
            "floats": [0.1 + 0.2, 0.3],
            "texts": [["a", None], ["NULL", ""]],
            "at": pa.array([1_700_000_000_123_456, 0], pa.timestamp("us", "UTC")),
            "day": pa.array([19_000, 11_017], pa.date32()),
            "bytes": [b"\\x00'", b"\x00\xff"],
            "span": ["-1 days +02:03:04", "1 year"],
            "xml": ["<a/><b/>", "text"],
        }
    )


CHECKED = (
    "SELECT floats = 0.1::float8 + 0.2::float8, texts = ARRAY['a', NULL], at = to_timestamp(1700000000) + '123456 us',"
    " day = '2022-01-08'::date, bytes = decode('5c78303027', 'hex'), span = '-1 days +02:03:04'::interval, xml::text"
    " FROM orders WHERE id = 1"
)


def hostile_clients(patch: pytest.MonkeyPatch) -> None:
    """Act as a pooler of transactions: before each transaction, others have set something in the same backend."""
    for name in ("run", "rows"):
        method = getattr(Session, name)

        def call(session: Session, *args: Any, method: Callable[..., Any] = method) -> Any:
            if session.is_free:
                with session._connection.cursor() as cursor:
                    cursor.execute(f"{SQL}; SET search_path = elsewhere, public")
            return method(session, *args)

        patch.setattr(Session, name, call)


@pytest.mark.parametrize("by", ["the database", "options", "other clients"])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_rows_are_exact_and_so_is_verify_whatever_is_set(
    make: Make, monkeypatch: pytest.MonkeyPatch, strategy: str, by: str
) -> None:
    world = make(
        f"{ORDERS}; CREATE SCHEMA elsewhere; CREATE TABLE elsewhere.orders AS TABLE orders", **STRATEGIES[strategy]
    )
    table = table_of(world)
    if by == "the database":
        table.sql("; ".join(f"ALTER DATABASE {table.database.name} SET {n} = {v}" for n, v in HOSTILE.items()))
    elif by == "options":
        options = " ".join(
            f"-c {name}={value.strip(chr(39)).replace(' ', chr(92) + ' ')}" for name, value in HOSTILE.items()
        )
        table.connection = replace(table.connection, extra={"options": options})
    else:
        hostile_clients(monkeypatch)
    plan = world.plan(rows())
    proof = world.deliver(plan)
    truth = "RESET ALL; SET extra_float_digits = 1; SET standard_conforming_strings = on; "
    assert table.sql(truth + CHECKED) == [(True,) * 6 + ("<a/><b/>",)]

    def report() -> Any:
        delivered = [Delivered(plan, proof, None)]
        return verify.verify(delivered, world.participant_plan(), table.connection, open_wal())[0]

    assert report().is_exact
    table.sql("SET session_replication_role = 'origin'; UPDATE orders SET floats = floats + 1e-16 WHERE id = 1")
    assert report().missing == 1
    table.sql(f"{truth} UPDATE orders SET floats = 0.1::float8 + 0.2::float8, texts = ARRAY['a', 'NULL'] WHERE id = 1")
    assert report().missing == 1


def test_what_is_prepared_is_committed_as_durably_as_all_else(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    world = make(ORDERS, strategy="prepared")
    table_of(world).sql(f"ALTER DATABASE {table_of(world).database.name} SET synchronous_commit = off")
    plan = world.plan(rows())
    vote = world.prepare(plan)
    run, shown = Session.run, []

    def looking(session: Session, sql: str, args: Any = None) -> Any:
        found = run(session, sql, args)
        if sql.startswith("COMMIT PREPARED"):
            with session._connection.cursor() as cursor:
                cursor.execute("SHOW synchronous_commit")
                shown.append(cursor.fetchone())
        return found

    monkeypatch.setattr(Session, "run", looking)
    world.commit(plan, vote)
    assert shown == [("on",)]


def test_a_role_that_skips_keys_and_triggers_is_refused_by_name(make: Make) -> None:
    world = make(ORDERS)
    table_of(world).sql(";".join(ddl_of("public")))
    limited(world, "SELECT, INSERT, UPDATE, DELETE ON orders, airflow_ft_head, airflow_ft_ledger")
    user = table_of(world).connection.login
    table_of(world).sql(f"ALTER ROLE {user} SET session_replication_role = replica")
    try:
        with raises(SinkAccessError, "server_setting_unsafe", setting="session_replication_role"):
            world.deliver(world.plan(rows()))
        table_of(world).sql(f"ALTER ROLE {user} RESET session_replication_role")
        world.deliver(world.plan(rows()))
    finally:
        drop_user(world)


def test_a_session_leaves_the_backend_as_it_was(make: Make) -> None:
    """Behind a pooler of transactions the next client gets the same backend."""
    world = make(ORDERS)
    with closing(Session(table_of(world).connection, QUICK)) as session:
        everything = "SELECT name, setting FROM pg_settings WHERE name <> 'application_name' ORDER BY 1"

        def shown() -> Any:
            with session._connection.cursor() as cursor:
                cursor.execute(everything)
                return cursor.fetchall()

        before = shown()
        session.rows("SELECT 1")
        session.run("CREATE TABLE t (id bigint)")
        session.begin()
        assert session.value("SHOW array_nulls") == "on" and session.value("SHOW lock_timeout") == "300ms"
        session.run("INSERT INTO t VALUES (1)")
        session.end()
        with pytest.raises(psycopg2.Error):
            session.rows("SELECT nothing")
        assert shown() == before


@pytest.mark.parametrize(("milliseconds", "shown"), [(0, "0"), (300, "300ms"), (90_000, "90s"), (21_600_000, "6h")])
def test_times_are_compared_as_the_server_shows_them(make: Make, milliseconds: int, shown: str) -> None:
    settings = Settings(milliseconds, 1, 1)
    database = table_of(make()).database.name
    found = table_of(make()).database.server.sql(settings.begin, database)
    assert settings.refused(found[0]) == "" and shown in found[0]


def test_a_session_may_wait_for_others_of_its_kind(make: Make) -> None:
    connection = replace(table_of(make()).connection, extra={"options": "-c idle_session_timeout=60000"})
    with closing(Session(connection, QUICK)) as session:
        assert session.value("SHOW idle_session_timeout") == "0"


@pytest.mark.parametrize("sets_aside", [False, True], ids=["all", "set aside"])
@pytest.mark.parametrize("settings", STRATEGIES.values(), ids=STRATEGIES)
def test_a_slow_log_does_not_end_the_session(
    make: Make, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], sets_aside: bool
) -> None:
    """The log checks a whole file before its first row. Until then the transaction is idle."""
    check = "CHECK (id > 0)" if sets_aside else ""  # without it, a vote of upsert only reads the rows
    world = make(f"CREATE TABLE orders (id bigint PRIMARY KEY {check}, text text, version bigint)", **settings)
    world.deliver(world.plan(world.table(9, 1)))
    plan, batches = world.plan(world.table(0, 9)), ParquetSegment.batches

    def slow(segment: ParquetSegment, sink: str, file: WalFile) -> Iterator[pa.RecordBatch]:
        time.sleep(1)
        yield from batches(segment, sink, file)

    monkeypatch.setattr(ParquetSegment, "batches", slow)
    participant, vote = quick(world, idle=0.4), world.vote_without_prepare(plan)
    fence = world.fence(1, vote.attempt)
    if not sets_aside:
        vote = replace(vote, notes=participant.prepare(plan, fence))
    participant.commit(plan, fence, vote, set_aside=sets_aside)
    assert table_of(world).ids() == [*range(1 if sets_aside else 0, 10)]


@pytest.mark.parametrize("sets_aside", [False, True], ids=["all", "set aside"])
@pytest.mark.parametrize("settings", STRATEGIES.values(), ids=STRATEGIES)
def test_many_segments_do_not_end_the_session(
    make: Make, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], sets_aside: bool
) -> None:
    """Opening each of them may be a request to a remote store."""
    check = "CHECK (id > 0)" if sets_aside else ""
    world = make(f"CREATE TABLE orders (id bigint PRIMARY KEY {check}, text text, version bigint)", **settings)
    world.deliver(world.plan(world.table(20, 1)))
    world.number += 1
    segments = [world.segment(world.number, world.table(each, 1)) for each in range(20)]
    plan, opening = world.plan_of(world.number, *segments), ParquetWal.open

    def slow(wal: ParquetWal, segment: Segment) -> ParquetSegment:
        time.sleep(0.05)
        return opening(wal, segment)

    monkeypatch.setattr(ParquetWal, "open", slow)
    participant, vote = quick(world, idle=0.4, tries=1), world.vote_without_prepare(plan)
    fence = world.fence(1, vote.attempt)
    if not sets_aside:
        vote = replace(vote, notes=participant.prepare(plan, fence))
    participant.commit(plan, fence, vote, set_aside=sets_aside)
    assert table_of(world).ids() == [*range(1 if sets_aside else 0, 21)]


def test_many_batches_do_not_end_the_session_of_a_vote(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """A vote of upsert reads all rows of a plain table, and sends none of them."""
    world = make("CREATE TABLE orders (id bigint PRIMARY KEY, text text, version bigint)", **STRATEGIES["upsert"])
    plan, batches = world.plan(world.table(0, 20)), ParquetSegment.batches

    def slow(segment: ParquetSegment, sink: str, file: WalFile) -> Iterator[pa.RecordBatch]:
        for batch in batches(segment, sink, file):
            for row in range(batch.num_rows):
                time.sleep(0.05)
                yield batch.slice(row, 1)

    monkeypatch.setattr(ParquetSegment, "batches", slow)
    quick(world, idle=0.4, tries=1).prepare(plan, world.fence())
