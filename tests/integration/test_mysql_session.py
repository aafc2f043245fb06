"""Servers whose settings are not the usual ones: rows arrive once and as they are, or a setting is refused by name."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pymysql
import pytest

from airflow_ft.protocol.errors import AirflowFtError, SinkAccessError, SinkUnavailableError
from airflow_ft.sinks.mysql import xa_preflight
from airflow_ft.sinks.mysql.session import Session
from tests.integration.test_mysql_xa import prepared
from tests.raising import raises
from tests.sinks.mysql.world import MySqlWorld, make_world, orders, vote_for
from tools.servers import Database, MariaDb, MySql

ODD = {
    "autocommit": "0",
    "sql_mode": "'ANSI_QUOTES,NO_BACKSLASH_ESCAPES'",
    "time_zone": "'+05:00'",
    "completion_type": "1",
    "sql_select_limit": "1",
    "sql_safe_updates": "1",
    "sql_auto_is_null": "1",
    "sql_notes": "0",
    "character_set_client": "latin1",
    "character_set_results": "latin1",
    "collation_connection": "latin1_swedish_ci",
    "lock_wait_timeout": "1",
}
OWN = {
    MariaDb: {"tx_isolation": "'SERIALIZABLE'", "tx_read_only": "1", "max_statement_time": "0.05",
              "check_constraint_checks": "0", "old_mode": "'NO_DUP_KEY_WARNINGS_WITH_IGNORE'",
              "idle_transaction_timeout": "1", "note_verbosity": "'explain'"},
    MySql: {"transaction_isolation": "'SERIALIZABLE'", "transaction_read_only": "1", "max_execution_time": "1"},
}  # fmt: skip


def user_of(world: MySqlWorld) -> MySqlWorld:
    """`init_connect` does not run for privileged users, so the world connects as another one."""
    grants = "ALL PRIVILEGES ON *.*" if isinstance(world.server, MariaDb) else f"ALL ON `{world.database}`.*"
    world.sql("CREATE USER 'plain'@'%' IDENTIFIED BY 'plain'")
    if isinstance(world.server, MySql):
        world.sql("GRANT XA_RECOVER_ADMIN ON *.* TO 'plain'@'%'")
    else:
        grants = f"ALL ON `{world.database}`.*"
    world.sql(f"GRANT {grants} TO 'plain'@'%'")
    return world


@pytest.mark.sampled(among="servers of their own")
@pytest.mark.parametrize("kind", [MariaDb, MySql])
@pytest.mark.parametrize("by", ["global", "init_connect"])
def test_settings_that_are_odd_for_everybody_change_nothing(
    own_server: Callable[..., Any], tmp_path: Path, kind: type[Any], by: str
) -> None:
    with Database.fresh(own_server(kind)) as database:
        world = user_of(make_world(database, tmp_path, orders="id BIGINT PRIMARY KEY, name VARCHAR(100)"))
        odd = ODD | OWN[kind]
        if by == "init_connect":
            text = ", ".join(f"SESSION {name}={value}" for name, value in odd.items()).replace("'", "''")
            world.sql(f"SET GLOBAL init_connect = 'SET {text}'")
        else:
            world.sql("SET " + ", ".join(f"GLOBAL {name}={value}" for name, value in odd.items()))
            world.sql("SET GLOBAL max_error_count = 0")
        connection = {"login": "plain", "password": "plain"}
        for attempt, strategy in enumerate(("local", "xa"), 1):
            world.use(strategy)
            plan = world.plan(orders=orders(world.number * 10, 3))
            participant = world.participant(plan, **connection)
            vote = vote_for(participant.prepare(plan, world.fence(1, attempt)), attempt)
            assert participant.commit(plan, world.fence(1, attempt), vote).counts == {"orders": 3}
            world.predecessor = plan.number
        assert prepared(world) == []
        with closing(Session(world.connection(**connection), world.limits)) as session:
            assert session.value("SELECT COUNT(*) FROM orders") == 6
        for name in odd:
            if name.endswith("read_only"):
                world.sql(f"SET GLOBAL {name} = 0")


def test_a_password_of_any_characters_lets_the_user_in(any_mysql_database: Database, tmp_path: Path) -> None:
    world = make_world(any_mysql_database, tmp_path)
    user = f"p{world.database[-8:]}"
    world.sql(f"CREATE USER '{user}'@'%' IDENTIFIED BY 'pässwörd-密码'")
    with closing(Session(world.connection(login=user, password="pässwörd-密码", schema=""), world.limits)) as session:
        assert session.value("SELECT 1") == 1
    with pytest.raises(pymysql.err.OperationalError) as refused:
        Session(world.connection(login=user, password="pässwörd-密", schema=""), world.limits)
    assert "密" not in repr(refused.value)
    world.sql(f"DROP USER '{user}'@'%'")


def test_a_vanished_server_is_noticed_in_five_minutes(any_mysql_database: Database, tmp_path: Path) -> None:
    world = make_world(any_mysql_database, tmp_path)
    with closing(Session(world.connection(), world.limits)) as session:
        session.run("DO 1")
        own: socket.socket = session._connection._sock
        assert own.gettimeout() == world.limits.answer
        assert own.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 300_000
        keepalive = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
        assert [own.getsockopt(socket.IPPROTO_TCP, each) for each in keepalive] == [30, 10, 3]


@pytest.mark.parametrize("begin", [Session.begin, lambda session: session.require_settings()])
def test_a_transaction_with_other_settings_is_refused_by_name(
    any_mysql_database: Database, tmp_path: Path, begin: Callable[[Session], None]
) -> None:
    world = make_world(any_mysql_database, tmp_path)
    with closing(Session(world.connection(), world.limits)) as session:
        begin(session)
    with closing(Session(world.connection(), world.limits)) as session:
        session.run("SET SESSION sql_mode = ''")  # as another connection of a pool would have it
        with raises(SinkAccessError, "server_unsupported", setting="sql_mode", value=""):
            begin(session)


@pytest.mark.parametrize(
    ("error", "kind", "code"),
    [
        (pymysql.err.OperationalError(1399, "XAER_RMFAIL"), SinkUnavailableError, "sink_unavailable"),
        (SinkAccessError("no", code="server_unsupported"), SinkAccessError, "server_unsupported"),
    ],
)
def test_a_preflight_that_fails_leaves_no_prepared_branch(
    any_mysql_database: Database,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    kind: type[AirflowFtError],
    code: str,
) -> None:
    world = make_world(any_mysql_database, tmp_path).use("xa")
    plan = world.plan(orders=orders(1, 3))

    def failing(*_: Any) -> bool:
        assert len(prepared(world)) == 1
        raise error

    monkeypatch.setattr(xa_preflight, "_end_from_here", failing)
    with raises(kind, code):
        world.participant(plan).prepare(plan, world.fence())
    assert prepared(world) == []
