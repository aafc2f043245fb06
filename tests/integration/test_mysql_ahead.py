"""Statements that are sent before the one before them is answered: what must not happen when that one fails."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pymysql
import pytest

from airflow_ft.protocol.errors import DeclinedError
from airflow_ft.sinks.mysql.failures import DEADLOCK
from airflow_ft.sinks.mysql.load import Loader
from airflow_ft.sinks.mysql.parameters import Parameters, parameters
from airflow_ft.sinks.mysql.session import Changes, Session, Statement
from airflow_ft.testing.relay import Relay, cut
from tests.raising import raises
from tests.sinks.mysql.world import MySqlWorld, make_world, orders
from tests.waiting import wait_for
from tools.servers import Database
from tools.servers.processes import free_port


@pytest.fixture
def world(any_mysql_database: Database, tmp_path: Path) -> MySqlWorld:
    """Rows go by many small INSERTs."""
    made = make_world(
        any_mysql_database, tmp_path, orders="id BIGINT PRIMARY KEY, name VARCHAR(100), amount DECIMAL(10,1)"
    )
    made.use_way("insert")
    made.limits = replace(made.limits, insert_bytes=256)
    return made


@pytest.fixture
def session(world: MySqlWorld) -> Iterator[Session]:
    with closing(Session(world.connection(), world.limits)) as opened:
        yield opened


def inserts(*numbers: int) -> list[Changes]:
    return [Changes(f"INSERT INTO orders (id, name) VALUES ({number}, 'x')".encode(), 1) for number in numbers]


def priced(odd: int) -> pa.Table:
    """A hundred rows of whole amounts, but for one: the table rounds, and the server says so."""
    amounts = [Decimal("1.25" if number == odd else "1.00") for number in range(1, 101)]
    return orders(1, 100).append_column("amount", pa.array(amounts, pa.decimal128(10, 2)))


@pytest.mark.parametrize("strategy", ["local", "xa"])
@pytest.mark.parametrize("odd", [57, 100])
def test_a_warning_is_explained_although_more_rows_are_under_way(
    world: MySqlWorld, strategy: str, odd: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.use(strategy)
    plan = world.plan(orders=priced(odd))
    with monkeypatch.context() as patch:
        patch.setattr("airflow_ft.sinks.mysql.judging.check_rows", lambda *_: None)  # the vote would find it
        with raises(DeclinedError, "value_unfit", errno=1265, warnings=1, column="amount") as caught:
            world.deliver(plan)
    assert caught.error and caught.error.row.startswith(f"{odd} of ")
    assert world.count() == 0 and not any(kind == "committed" for _, kind, *_ in world.markers())
    world.sql("ALTER TABLE orders MODIFY amount DECIMAL(10,2)")
    world.deliver(plan, attempt=2)
    assert world.count() == 100


def test_of_a_refused_row_the_place_in_the_file_is_told(world: MySqlWorld) -> None:
    world.sql("INSERT INTO orders (id, name) VALUES (77, 'mine')")
    with raises(DeclinedError, "row_refused", errno=1062) as caught:
        world.deliver(world.plan(orders=orders(1, 100)))
    assert caught.error and caught.error.row.startswith("77 of ")
    assert world.count() == 1


def test_what_was_sent_behind_a_failure_has_been_answered(session: Session, world: MySqlWorld) -> None:
    session.begin()
    answers = session.send(inserts(1, 1, 2, 3), ahead=True)
    next(answers)
    with pytest.raises(pymysql.err.IntegrityError):
        next(answers)
    assert not session.is_ahead
    assert session.row("SELECT COUNT(*) FROM orders") == (2,)  # 1, and 2 which had been sent: to be rolled back
    session.close()
    assert world.count() == 0


def test_a_session_closed_with_rows_in_flight_leaves_no_rows(session: Session, world: MySqlWorld) -> None:
    session.begin()
    answers = session.send(inserts(*range(50)), ahead=True)
    next(answers)
    assert session.is_ahead
    session.close()
    assert world.count() == 0


@pytest.mark.parametrize("begin", ["BEGIN", "XA START 'ahead'"])
def test_behind_a_deadlock_nothing_is_committed(session: Session, world: MySqlWorld, begin: str) -> None:
    """It ends the whole transaction; what is under way then must not become one of its own."""
    world.sql("INSERT INTO orders (id, name) VALUES (1, 'x'), (2, 'x')")
    with closing(Session(world.connection(), world.limits)) as other:
        other.run("SET innodb_lock_wait_timeout = 120")
        other.begin()
        for number in range(200, 400):  # it has changed more: the victim is the other one
            other.run("INSERT INTO orders (id, name) VALUES (%s, 'x')", (number,))
        other.run("UPDATE orders SET name = 'o' WHERE id = 1")
        session.begin() if begin == "BEGIN" else session.run(begin)
        session.run("UPDATE orders SET name = 's' WHERE id = 2")
        session.post(Changes(b"UPDATE orders SET name = 's' WHERE id = 1", 1))
        session.post(inserts(100)[0])
        # A list that is read again within 0.1 s is the same list: who looks without a pause never sees a change.
        waiting = "SELECT 1 FROM information_schema.INNODB_TRX WHERE trx_state = 'LOCK WAIT'"
        wait_for(lambda: world.sql(waiting), 60, "it waits for a lock", pause=0.2)
        other.run("UPDATE orders SET name = 'o' WHERE id = 2")
        with pytest.raises(pymysql.err.OperationalError) as raised:
            session.answer()
        assert raised.value.args[0] == DEADLOCK
        assert not session.is_ahead
        assert world.sql("SELECT name FROM orders WHERE id = 100") == []
        session.close()
        other.commit()
    assert world.sql("SELECT COUNT(*), MIN(name), MAX(name) FROM orders WHERE id < 200") == [(2, "o", "o")]


def test_a_server_error_takes_precedence_over_a_send_error(session: Session) -> None:
    def requests() -> Iterator[Changes]:
        yield from inserts(1, 1)
        raise ValueError("this one cannot be sent")

    session.begin()
    answers = session.send(requests(), ahead=True)
    next(answers)
    with pytest.raises(pymysql.err.IntegrityError):
        next(answers)


def test_nothing_else_is_asked_while_a_statement_is_under_way(session: Session) -> None:
    session.begin()
    session.post(inserts(1)[0])
    for action in (session.commit, session.begin, lambda: session.row("SELECT 1"), lambda: session.run("SELECT 1")):
        with pytest.raises(RuntimeError):
            action()
    session.answer()
    session.commit()


class Lockstep(Relay):
    """A proxy that ends a connection whose client sends a command before the one before it is answered."""

    ended = 0

    def relay(self, client: socket.socket, server: socket.socket) -> None:
        waiting, rows = threading.Event(), threading.Event()
        threading.Thread(target=self._replies, args=(client, server, waiting, rows), daemon=True).start()
        with suppress(OSError), client.makefile("rb") as requests:
            while len(head := requests.read(4)) == 4:
                body = requests.read(int.from_bytes(head[:3], "little"))
                if head[3] == 0 and body[0] != 0x19:  # a command; COM_STMT_CLOSE has no answer
                    if waiting.is_set():
                        self.ended += 1
                        break
                    waiting.set()
                    (rows.set if body[0] == 0x17 else rows.clear)()  # COM_STMT_EXECUTE
                server.sendall(head + body)
        cut(client, server)

    def _replies(
        self, client: socket.socket, server: socket.socket, waiting: threading.Event, rows: threading.Event
    ) -> None:
        with suppress(OSError):
            while chunk := server.recv(1 << 16):
                # What is sent ahead has come by then; rows are, and the first time is enough.
                time.sleep(0.2 if rows.is_set() and not self.ended else 0.005)
                waiting.clear()
                client.sendall(chunk)
        cut(client, server)


@pytest.mark.parametrize("strategy", ["local", "xa"])
def test_a_proxy_that_rejects_pipelining_gets_single_statements(world: MySqlWorld, strategy: str) -> None:
    world.use(strategy)
    world.extra |= {"ssl_mode": "DISABLED"}
    port = free_port()
    with Lockstep(port, world.server.port) as proxy:
        world.port = port
        world.deliver(world.plan(orders=orders(1, 100)))
        assert proxy.ended == 1
        world.extra["pipelining"] = False
        world.deliver(world.plan(orders=orders(101, 100)))
        assert proxy.ended == 1
    assert world.count() == 200


def test_one_at_a_time_nothing_is_ahead(session: Session) -> None:
    session.begin()
    for _ in session.send(inserts(1, 2, 3), ahead=False):
        assert not session.is_ahead


def test_otherwise_the_next_rows_are(world: MySqlWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    ahead: list[bool] = []
    check = Loader._check
    monkeypatch.setattr(
        Loader, "_check", lambda loader, *args: ahead.append(loader._session.is_ahead) or check(loader, *args)
    )
    world.deliver(world.plan(orders=orders(1, 100)))
    assert sum(ahead) >= len(ahead) - 5  # not where a statement of another size had to be prepared
    assert world.count() == 100


def test_rows_are_encoded_while_those_before_them_are_sent(world: MySqlWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    world.limits = replace(world.limits, slice_bytes=10_000)
    begun = threading.Condition()
    ends = [0]  # behind each slice that is encoded
    answered = 0

    def encode(piece: pa.RecordBatch, *args: Any) -> Iterator[Parameters]:
        with begun:
            ends.append(ends[-1] + piece.num_rows)
            begun.notify_all()
        return parameters(piece, *args)

    def count(loader: Loader, statement: Statement, rows: int, *args: Any) -> None:
        nonlocal answered
        answered += rows
        with begun:  # the slice behind that of the row, if it was not the last
            assert begun.wait_for(lambda: ends[-1] == 1000 or ends[-2] >= answered, 120)
        check(loader, statement, rows, *args)

    check = Loader._check
    monkeypatch.setattr("airflow_ft.sinks.mysql.load.parameters", encode)
    monkeypatch.setattr(Loader, "_check", count)
    world.deliver(world.plan(orders=orders(1, 1000)))
    assert len(ends) > 3 and world.count() == answered == 1000
