"""A real Cassandra: what is required of it, what is refused, and what `verify` finds."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from datetime import UTC, date, datetime
from itertools import chain, repeat
from pathlib import Path
from socket import socket
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from cassandra import WriteTimeout, WriteType
from cassandra.cluster import Session
from cassandra.connection import DefaultEndPoint
from cassandra.policies import SimpleConvictionPolicy
from cassandra.pool import Host

from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.errors import AirflowFtError, SinkAccessError, SinkUnavailableError, UnfitTargetError
from airflow_ft.protocol.verify import Delivered
from airflow_ft.sinks import doctor
from airflow_ft.sinks.base.requirements import lacks
from airflow_ft.sinks.cassandra import participant, proposal, requirements, server, setup
from airflow_ft.sinks.cassandra.requests import Requests
from airflow_ft.sinks.cassandra.server import opened
from airflow_ft.sinks.cassandra.spec import CassandraSink
from airflow_ft.sinks.cassandra.verify import verify
from airflow_ft.testing.world import World
from airflow_ft.wal import open_wal
from tests.conformance.test_cassandra import KEYSPACE, tables
from tests.raising import raises
from tests.sinks.keyed import check_last_rows, check_verify
from tests.waiting import wait_for
from tools.servers import Cassandra

pytestmark = [pytest.mark.server, pytest.mark.slow, pytest.mark.sampled(among="Cassandra"), pytest.mark.timeout(300)]


class Clock(SimpleNamespace):
    """The module `time` with some functions replaced, for one module."""

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)


@pytest.fixture
def world(cassandra_server: Cassandra, tmp_path: Path) -> Iterator[World]:
    with tables(cassandra_server) as target, closing(World(target, tmp_path)) as found:
        yield found


def lacking(world: World, connection: ConnectionInfo | None = None) -> list[AirflowFtError]:
    """As `airflow_ft.sinks.ready` asks."""
    plan, connection = world.plan(), connection or world.target.connection
    try:
        return lacks(requirements.required(plan.pipeline, plan.participants[0], connection))
    except AirflowFtError as error:
        return [error]


def table(world: World, name: str, columns: str, more: str = "") -> CassandraSink:
    db: Session = world.target.db  # type: ignore[attr-defined]
    db.execute(f"DROP TABLE IF EXISTS {KEYSPACE}.{name}")
    db.execute(f"CREATE TABLE {KEYSPACE}.{name} ({columns}) {more}")
    world.target.sink = CassandraSink(table=name, conn_id="ring")  # type: ignore[assignment]
    return world.target.sink  # type: ignore[return-value]


def rows(world: World, query: str) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in world.target.db.execute(query))  # type: ignore[attr-defined]


def deliver(world: World, **columns: Sequence[Any] | pa.Array) -> Delivered:
    plan = world.plan(pa.table(columns))
    return Delivered(plan, world.deliver(plan), None)


def test_a_cluster_that_may_forget_is_refused(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    target: Any = world.target
    assert not lacking(world)
    target.db.execute(f"ALTER KEYSPACE {KEYSPACE} WITH durable_writes = false")
    monkeypatch.setattr(server, "_SAFE_SYNC", ("batch",))  # the server's own setting is read when it starts
    try:
        [problem] = lacking(world)
        wrong = {"commitlog_sync": "group", f"durable_writes of {KEYSPACE}": "false"}
        assert (problem.code, problem.fields["settings"]) == ("server_setting_unsafe", wrong)
        plan = world.plan()
        with raises(UnfitTargetError, "server_setting_unsafe"):
            world.prepare(plan)
        found = doctor.examine(plan.pipeline, plan.participants[0], target.connection, [])
        assert [each.verdict.name for each in found] == ["PROBLEM", "OK"]
        target.sink = replace(target.sink, allow_unsafe_durability=True)
        assert not lacking(world)
    finally:
        target.db.execute(f"ALTER KEYSPACE {KEYSPACE} WITH durable_writes = true")


def add_node(session: Session, name: str, port: int) -> Host:
    """Add a node of another datacenter, as far as the driver knows."""
    host = Host(DefaultEndPoint(name, port), SimpleConvictionPolicy)
    host.set_location_info("elsewhere", "rack")
    host, _ = session.cluster.metadata.add_or_return_host(host)
    return host


@contextmanager
def silent_nodes(session: Session, port: int, count: int) -> Iterator[list[Host]]:
    """Add nodes behind a firewall that drops packets."""
    names = [f"127.0.0.{last}" for last in range(101, 101 + count)]
    with ExitStack() as stack:
        for name in names:
            full = stack.enter_context(socket())
            full.bind((name, port))
            full.listen(0)
            for _ in range(3):
                waiting = stack.enter_context(socket())
                waiting.setblocking(False)
                waiting.connect_ex((name, port))
        yield [add_node(session, name, port) for name in names]


def test_nodes_that_cannot_be_reached_are_not_asked(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    target: Any = world.target
    monkeypatch.setattr(server, "_CONNECT_SECONDS", 0.5)
    with opened(target.connection) as session, silent_nodes(session, target.server.port, 6) as hosts:
        session.cluster.connect_timeout = 5
        server.check_nodes(session, "ring", [KEYSPACE], unsafe=False)
        assert any(host.is_up is None for host in hosts), "the driver still tries to connect"


def test_many_silent_nodes_take_one_connect_timeout(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    target: Any = world.target
    monkeypatch.setattr(server, "_CONNECT_SECONDS", 2)
    with opened(target.connection) as session, silent_nodes(session, target.server.port, 12) as hosts:
        server.check_nodes(session, "ring", [KEYSPACE], unsafe=False)  # waits 4 s at most
        assert [host.is_up for host in hosts] == [False] * 12


def test_all_nodes_that_are_up_are_asked(world: World) -> None:
    target: Any = world.target
    with opened(target.connection) as session:

        def check() -> None:
            server.check_nodes(session, "ring", [KEYSPACE], unsafe=False)

        far = add_node(session, "localhost", target.server.port)
        check()
        assert far in session.get_pool_state()
        silent = add_node(session, "127.0.0.99", target.server.port)
        silent.set_up()
        with raises(UnfitTargetError, "server_setting_unsafe", settings={"commitlog_sync": "unknown"}) as caught:
            check()
        assert caught.error and "system_views.settings" in caught.error.remedy
        silent.set_down()
        check()


@pytest.mark.parametrize(
    ("change", "kind", "code"),
    [
        ({"password": "planted-Secret-4"}, SinkAccessError, "login_refused"),
        ({"login": ""}, SinkAccessError, "login_refused"),
        ({"port": 1}, SinkUnavailableError, "server_unreachable"),
        ({"host": "no-such-host.invalid"}, SinkUnavailableError, "server_unreachable"),
        ({"schema": ""}, SinkAccessError, "connection_invalid"),
        ({"schema": "nowhere"}, SinkAccessError, "database_missing"),
        ({"extra": {"datacenter": "nowhere"}}, SinkAccessError, "connection_invalid"),
        ({"extra": {"ssl_options": {"ca_certs": "/nowhere.pem"}}}, SinkAccessError, "connection_invalid"),
        ({"conn_type": "mysql"}, SinkAccessError, "connection_invalid"),
    ],
    ids=str,
)
def test_a_wrong_connection_is_told_and_shows_no_secret(
    world: World, change: dict[str, Any], kind: type[Exception], code: str
) -> None:
    [problem] = lacking(world, replace(world.target.connection, **change))
    assert type(problem) is kind and problem.code == code
    assert "planted" not in f"{problem} {vars(problem)}" and problem.remedy


def test_a_keyspace_that_is_missing_is_reported_once(world: World) -> None:
    target: Any = world.target
    target.sink = CassandraSink(table="nowhere.orders", conn_id="ring")
    [problem] = lacking(world)
    assert (problem.code, problem.fields["keyspaces"]) == ("database_missing", ["nowhere"])
    try:
        target.db.execute(problem.remedy.split("`")[1].replace("3}", "1}"))
        [problem] = lacking(world)
        assert problem.code == "table_missing"
        plan, schema = world.participant_plan(), world.table(0).schema
        [statement] = proposal.propose(plan, target.connection, {"rows": schema})
        target.db.execute(statement)
        assert requirements.schema_problems(plan, target.connection, {"rows": schema}) == [] == lacking(world)
    finally:
        target.db.execute("DROP KEYSPACE IF EXISTS nowhere")


def test_the_printed_statements_suffice(world: World) -> None:
    """A role with these permissions alone delivers, verifies, and may not write other tables."""
    target: Any = world.target
    connection = replace(target.connection, login="loader", password="only-F0r-tests")
    target.db.execute("CREATE ROLE IF NOT EXISTS loader WITH PASSWORD = 'only-F0r-tests' AND LOGIN = true")
    for line in setup.describe("p", world.participant_plan(), connection):
        if not line.startswith("--"):
            target.db.execute(line.removesuffix(";"))
    try:
        assert setup.create("p", world.participant_plan(), connection) == ""
        target.connection = connection
        plan = world.plan()
        delivered = Delivered(plan, world.deliver(plan), None)
        [report] = verify([delivered], plan.participants[0], connection, open_wal())
        assert report.is_exact and report.expected == 40
        with raises(SinkAccessError, "privilege_missing"), opened(connection) as session:
            session.execute(f"INSERT INTO {KEYSPACE}.keyed (id) VALUES (1)")
        target.db.execute(f"REVOKE MODIFY ON TABLE {KEYSPACE}.orders FROM loader")
        # The node reads permissions again after half a second.
        wait_for(lambda: _is_refused(connection), 30, "the node notices the revoked permission")
        with raises(SinkAccessError, "privilege_missing"):
            world.deliver(world.plan())
    finally:
        target.db.execute("DROP ROLE loader")


def test_a_missing_permission_is_found_before_the_decision(world: World) -> None:
    """MODIFY is needed, SELECT only by `verify`. Permissions on the keyspace count."""
    target: Any = world.target
    world.deliver(world.plan())  # creates the sink's own table
    target.db.execute(f"CREATE TABLE IF NOT EXISTS {KEYSPACE}.two (a text, id int, c int, PRIMARY KEY ((a, id), c))")
    target.db.execute("CREATE ROLE IF NOT EXISTS picker WITH PASSWORD = 'only-F0r-tests' AND LOGIN = true")
    target.connection = replace(target.connection, login="picker", password="only-F0r-tests")
    try:
        for each in ("system_views.settings", f"{KEYSPACE}.airflow_ft"):
            target.db.execute(f"GRANT SELECT ON TABLE {each} TO picker")
        for name, permission in (("orders", "SELECT"), ("two", "SELECT"), ("airflow_ft", "MODIFY")):
            target.db.execute(f"GRANT {permission} ON TABLE {KEYSPACE}.{name} TO picker")
        wait_for(lambda: len(lacking(world)) == 1, 30, "the node notices the granted permissions")
        [problem] = lacking(world)
        assert (problem.code, problem.fields["table"]) == ("privilege_missing", f"{KEYSPACE}.orders")
        with raises(SinkAccessError, "privilege_missing"):
            world.prepare(world.plan())
        orders, target.sink = target.sink, CassandraSink(table="two", conn_id="ring")
        assert [each.code for each in lacking(world)] == ["privilege_missing"]
        target.sink = orders
        target.db.execute(problem.remedy.split("`")[1])
        target.db.execute(f"REVOKE SELECT ON TABLE {KEYSPACE}.orders FROM picker")
        wait_for(lambda: not lacking(world), 30, "the node notices the granted permission")
        wait_for(lambda: "WARNING" in _verdicts(world), 30, "the node notices the revoked permission")
        assert "PROBLEM" not in _verdicts(world)
        world.deliver(world.plan())
        target.db.execute(f"REVOKE MODIFY ON TABLE {KEYSPACE}.airflow_ft FROM picker")
        wait_for(lambda: bool(lacking(world)), 30, "the node notices the revoked permission")
        assert [each.fields["table"] for each in lacking(world)] == [f"{KEYSPACE}.airflow_ft"]
        target.db.execute(f"GRANT MODIFY ON KEYSPACE {KEYSPACE} TO picker")
        wait_for(lambda: not lacking(world), 30, "the node notices the granted permission")
    finally:
        target.db.execute("DROP ROLE picker")


def test_a_table_of_its_own_needs_the_right_to_create(world: World) -> None:
    """An administrator grants that right, or creates the table."""
    target: Any = world.target
    target.db.execute("CREATE ROLE IF NOT EXISTS maker WITH PASSWORD = 'only-F0r-tests' AND LOGIN = true")
    replication = "{'class': 'SimpleStrategy', 'replication_factor': 1}"
    target.sink = replace(target.sink, table=f"{KEYSPACE}.orders")
    connection = target.connection = replace(target.connection, login="maker", password="only-F0r-tests", schema="bare")
    try:
        for each in ("SELECT ON TABLE system_views.settings", f"MODIFY ON TABLE {KEYSPACE}.orders"):
            target.db.execute(f"GRANT {each} TO maker")
        target.db.execute(f"CREATE KEYSPACE IF NOT EXISTS bare WITH replication = {replication}")
        wait_for(lambda: len(lacking(world)) == 1, 30, "the node notices the granted permissions")
        [problem] = lacking(world)
        assert (problem.code, problem.fields["table"]) == ("privilege_missing", "bare.airflow_ft")
        create, _, grant = problem.remedy.split("`")[1::2]
        target.db.execute(grant)
        wait_for(lambda: not lacking(world), 30, "the node notices the granted permission")
        assert not target.db.execute("SELECT table_name FROM system_schema.tables WHERE keyspace_name = 'bare'").all()
        world.deliver(world.plan())
        target.db.execute("DROP TABLE bare.airflow_ft")
        target.db.execute(grant.replace("GRANT", "REVOKE").replace(" TO ", " FROM "))
        target.db.execute(create)
        for permission in ("SELECT", "MODIFY"):
            target.db.execute(f"GRANT {permission} ON TABLE bare.airflow_ft TO maker")
        wait_for(lambda: not lacking(world), 30, "the node notices the granted permissions")
        (world.folder / "other").mkdir()
        other = World(target, world.folder / "other")
        other.deliver(other.plan())
    finally:
        target.connection = replace(connection, login=target.server.user, password=target.server.password)
        target.db.execute("DROP KEYSPACE IF EXISTS bare")
        target.db.execute("DROP ROLE maker")


@pytest.mark.parametrize("kind", ["SimpleStrategy", "NetworkTopologyStrategy"])
def test_more_replicas_than_nodes_are_refused(world: World, kind: str) -> None:
    target: Any = world.target
    world.deliver(world.plan())  # creates the sink's own table
    plan = world.plan()
    vote = world.prepare(plan)
    replication = f"{{'class': '{kind}', 'replication_factor': 3}}"
    target.db.execute(f"ALTER KEYSPACE {KEYSPACE} WITH replication = {replication}")
    try:
        [problem] = lacking(world)
        assert (problem.code, problem.fields["keyspace"]) == ("replicas_behind", KEYSPACE)
        assert problem.fields["nodes"] == {"datacenter1": 1}
        with raises(SinkUnavailableError, "server_unreachable") as caught:
            world.commit(plan, vote)
        assert caught.error and "airflow ft doctor" in caught.error.remedy
        target.db.execute(problem.remedy.split("`")[1])
        assert not lacking(world)
        world.commit(plan, vote)
    finally:
        simple = "{'class': 'SimpleStrategy', 'replication_factor': 1}"
        target.db.execute(f"ALTER KEYSPACE {KEYSPACE} WITH replication = {simple}")


def test_the_vote_needs_as_many_nodes_as_the_rows(world: World) -> None:
    """The sink's own keyspace has one replica, that of the table has more than there are nodes."""
    target: Any = world.target
    replication = "{'class': 'NetworkTopologyStrategy', 'replication_factor': 3}"
    target.db.execute(f"CREATE KEYSPACE IF NOT EXISTS far WITH replication = {replication}")
    try:
        target.db.execute("CREATE TABLE IF NOT EXISTS far.orders (id bigint PRIMARY KEY, text text, at timestamp)")
        target.sink = CassandraSink(table="far.orders", conn_id="ring")
        with raises(UnfitTargetError, "replicas_behind", keyspace="far"):
            world.prepare(world.plan())
        [problem] = lacking(world)
        target.db.execute(problem.remedy.split("`")[1])
        world.deliver(world.plan())
    finally:
        target.db.execute("DROP KEYSPACE far")


def _verdicts(world: World) -> list[str]:
    plan = world.plan()
    found = doctor.examine(plan.pipeline, plan.participants[0], world.target.connection, [])
    return [each.verdict.name for each in found]


def _is_refused(connection: ConnectionInfo) -> bool:
    try:
        with opened(connection) as session:
            session.execute(f"DELETE FROM {KEYSPACE}.orders WHERE id = -1")
    except SinkAccessError:
        return True
    return False


@pytest.mark.parametrize(
    ("columns", "code"),
    [
        ("id bigint PRIMARY KEY, n counter", "table_unsupported"),
        ("id bigint, place int, text text static, PRIMARY KEY (id, place)", "table_unsupported"),
        ("id bigint PRIMARY KEY, text list<text>", "type_unsupported"),
        ("id double PRIMARY KEY, text text", "key_unfit"),
        ("id int PRIMARY KEY, text text", "column_unfit"),
        ('"ID" bigint PRIMARY KEY, text text', "column_required"),
    ],
)
def test_a_table_that_does_not_fit_is_refused_before_computing(world: World, columns: str, code: str) -> None:
    table(world, "odd", columns)
    plan = world.plan()
    problems = lacking(world) or requirements.schema_problems(
        plan.participants[0], world.target.connection, {"rows": world.table(0).schema}
    )
    assert code in [each.code for each in problems]
    with pytest.raises(AirflowFtError):
        world.prepare(plan)


def test_all_columns_of_a_key_are_compared(world: World) -> None:
    table(
        world, "keys", "name text, day date, at timestamp, id uuid, raw blob, flag boolean, PRIMARY KEY ((name, day),"
        " at, id, raw, flag)"
    )  # fmt: skip
    at = pa.array([datetime(9999, 12, 31, 23, 59, 59, 999_000, UTC), datetime(1, 1, 1, tzinfo=UTC)])
    delivered = deliver(
        world, name=["", "a"], day=[date(1, 1, 1), date(2024, 2, 29)], at=at.cast(pa.timestamp("us", "UTC")),
        id=["00000000-0000-0000-0000-00000000000A"] * 2, raw=pa.array([b"\0", b""]), flag=[True, False],
    )  # fmt: skip
    assert len(rows(world, f"SELECT name FROM {KEYSPACE}.keys")) == 2
    [report] = verify([delivered], delivered.plan.participants[0], world.target.connection, open_wal())
    assert report.is_exact and report.expected == 2
    world.target.db.execute(f"DELETE FROM {KEYSPACE}.keys WHERE name = 'a' AND day = '2024-02-29'")  # type: ignore[attr-defined]
    [report] = verify([delivered], delivered.plan.participants[0], world.target.connection, open_wal())
    assert report.missing == 1


def test_null_replaces_a_value_and_other_columns_stay(world: World) -> None:
    table(world, "wide", "id bigint PRIMARY KEY, a text, b text")
    world.target.db.execute(f"INSERT INTO {KEYSPACE}.wide (id, a, b) VALUES (1, 'x', 'x')")  # type: ignore[attr-defined]
    deliver(world, id=[1], a=pa.array([None], pa.string()))
    assert rows(world, f"SELECT * FROM {KEYSPACE}.wide") == [(1, None, "x")]


def test_a_delete_has_its_timestamp_and_hides_no_later_write(world: World) -> None:
    """It is one place before the insert, so its timestamp is one less. See apache/cassandra-spark-connector#1359."""
    target: Any = world.target
    deliver(world, id=[1, 2], text=["a", "a"])
    target.sink = replace(target.sink, change_column="op")
    deliver(world, op=["delete", "insert"], id=[1, 2], text=[None, "b"])
    [(stamp,)] = rows(world, f"SELECT WRITETIME(text) FROM {KEYSPACE}.orders WHERE id = 2")
    for at, seen in ((stamp - 1, []), (stamp, [("other",)])):
        target.db.execute(f"INSERT INTO {KEYSPACE}.orders (id, text) VALUES (1, 'other') USING TIMESTAMP {at}")
        assert rows(world, f"SELECT text FROM {KEYSPACE}.orders WHERE id = 1") == seen


def test_rows_expire_at_a_time_that_a_retry_does_not_move(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = table(world, "brief", "id bigint PRIMARY KEY, text text")
    world.target.sink = replace(sink, ttl_seconds=1_000)
    delivered = deliver(world, id=[1], text=["a"])
    [(living,)] = rows(world, f"SELECT TTL(text) FROM {KEYSPACE}.brief")
    assert 900 < living <= 1_000
    [report] = verify([delivered], delivered.plan.participants[0], world.target.connection, open_wal())
    assert report.error
    world.target.sink = sink  # a later checkpoint does not expire
    later_one = replace(deliver(world, id=[3], text=["c"]), before=delivered.proof)
    [report] = verify([delivered, later_one], later_one.plan.participants[0], world.target.connection, open_wal())
    assert report.error
    world.target.sink = replace(sink, ttl_seconds=1_000)
    plan = world.plan(pa.table({"id": [2], "text": ["b"]}))
    vote = world.prepare(plan)
    later = chain([0], repeat(600_000_000))  # its stamp was given out 10 minutes ago
    monkeypatch.setattr(participant, "time_of", lambda session: server.time_of(session) + next(later))
    world.commit(plan, vote)
    [(living,)] = rows(world, f"SELECT TTL(text) FROM {KEYSPACE}.brief WHERE id = 2")
    assert living <= 410


def test_stamps_do_not_overlap_when_the_clock_stands_still(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time_ns() // 1_000
    monkeypatch.setattr(participant, "time_of", lambda session: now)
    deliver(world, id=[1] * 500, text=[f"first {n}" for n in range(500)])
    deliver(world, id=[1], text=["second"])
    assert rows(world, f"SELECT id, text FROM {KEYSPACE}.orders") == [(1, "second")]


def test_stamps_follow_the_clock_of_cassandra(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    target: Any = world.target
    with monkeypatch.context() as wrong:
        tomorrow = time.time() + 86_400
        wrong.setattr(participant, "time", Clock(time=lambda: tomorrow, time_ns=lambda: int(tomorrow * 1e9)))
        deliver(world, id=[1], text=["delivered"])
    target.db.execute(f"UPDATE {KEYSPACE}.orders SET text = 'other' WHERE id = 1")
    assert rows(world, f"SELECT text FROM {KEYSPACE}.orders") == [("other",)]
    plan = world.plan(pa.table({"id": [1], "text": ["later"]}))
    vote = world.prepare(plan)
    with monkeypatch.context() as late:
        late.setattr(participant, "time_of", lambda session: server.time_of(session) - 120_000_000)
        with raises(SinkUnavailableError, "clock_behind"):
            world.commit(plan, vote)
    world.commit(plan, vote)
    assert rows(world, f"SELECT text FROM {KEYSPACE}.orders") == [("later",)]


def test_writes_without_an_answer_are_repeated(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both came, but nobody knows: rows with their timestamps, and a document that is read again."""
    send, execute = Requests._send, Session.execute
    lost = {"rows": 2, "document": 2}

    def is_lost(what: str) -> bool:
        lost[what] -= 1
        return lost[what] >= 0

    def without_answers(self: Requests, statement: Any, tried: int) -> None:
        send(self, statement, tried)
        if is_lost("rows"):
            self._failed.append((WriteTimeout("lost", write_type=WriteType.SIMPLE), statement, tried))

    def without_answer(self: Session, query: Any, *of: Any, **more: Any) -> Any:
        done = execute(self, query, *of, **more)
        if " IF " in str(query) and is_lost("document"):
            raise WriteTimeout("lost", write_type=WriteType.SIMPLE)
        return done

    monkeypatch.setattr(Requests, "_send", without_answers)
    monkeypatch.setattr(Session, "execute", without_answer)
    world.deliver(world.plan())
    world.deliver(world.plan())
    world.shows(world.ids_of(1, 2))
    assert max(lost.values()) < 0


def test_no_row_waits_for_a_full_batch(world: World) -> None:
    check_last_rows(world)


def test_verify_counts_keys_and_knows_what_it_cannot_know(world: World) -> None:
    target: Any = world.target
    target.sink = replace(target.sink, table="keyed", change_column="op")

    def name_in_full() -> None:
        target.sink = replace(target.sink, table=f"{KEYSPACE}.keyed")  # the same one

    def disturb() -> None:
        for statement in (
            f"UPDATE {KEYSPACE}.keyed SET text = 'changed' WHERE id = 3",
            f"DELETE FROM {KEYSPACE}.keyed WHERE id = 4",
            f"INSERT INTO {KEYSPACE}.keyed (id, text) VALUES (2, 'back')",
        ):
            target.db.execute(statement)

    assert check_verify(world, verify, disturb, name_in_full).target == f"{KEYSPACE}.keyed"


def test_a_killed_server_has_what_it_acknowledged(world: World) -> None:
    target: Any = world.target
    world.deliver(world.plan())
    target.server.kill()
    plan = world.plan()
    with raises(SinkUnavailableError, "server_unreachable"):
        world.prepare(plan)
    target.server.start()
    world.deliver(plan)
    with opened(target.connection) as target.db:
        world.shows(world.ids_of(1, 2))


@pytest.mark.airflow
def test_a_connection_is_tested_as_a_sink_opens_it(
    cassandra_server: Cassandra, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow.models.connection import Connection

    def tested(**more: Any) -> tuple[bool, str]:
        given: Mapping[str, Any] = {
            "conn_type": "cassandra", "host": cassandra_server.host, "port": cassandra_server.port,
            "schema": KEYSPACE, "login": cassandra_server.user, "password": cassandra_server.password,
        }  # fmt: skip
        connection = Connection(conn_id="tried", **{**given, **more})
        monkeypatch.setenv("AIRFLOW_CONN_TRIED", connection.as_json())
        return connection.test_connection()

    found, text = tested()
    assert found and text.startswith("Cassandra 5") and text.endswith("as cassandra"), text
    found, text = tested(password="planted-Secret-4")
    assert not found and "refuses the login" in text and "planted" not in text
