"""The models of the servers do what real servers do: the same scripts over both, answer by answer.

MySQL and MariaDB are asked by the product's own statements (`Ledger`, `Session`), Kafka by the product's own clients.
"""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from typing import Any, cast

import pymysql
import pytest
from confluent_kafka import OFFSET_BEGINNING, OFFSET_INVALID, Consumer, KafkaError, KafkaException, TopicPartition

from airflow_ft.clients.kafka.client import KafkaClients, KafkaSettings
from airflow_ft.clients.kafka.errors import is_fenced
from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.model import Fence, Plan, Segment
from airflow_ft.protocol.votes import Outcome
from airflow_ft.sinks.base.memory import new_head
from airflow_ft.sinks.kafka.transaction import ProducerIdentity, _Statistics
from airflow_ft.sinks.kafka.transaction_coordinator import TransactionCoordinator
from airflow_ft.sinks.mysql.failures import Meaning, meaning
from airflow_ft.sinks.mysql.ledger import Ledger
from airflow_ft.sinks.mysql.limits import Limits
from airflow_ft.sinks.mysql.session import Session
from airflow_ft.sinks.mysql.xid import Xid, recover
from tests.simulation.kafka_broker import KafkaCluster, ModelClients
from tests.simulation.kafka_coordinator import ModelAdmin
from tests.simulation.kernel import Blocked, Kernel
from tests.simulation.mysql_server import MySqlServer
from tests.simulation.mysql_session import ModelSession
from tools.servers import Database, Kafka, MariaDb

Step = tuple[Any, ...]
QUICK = Limits(lock_wait=1)
INSTALLATION = "11111111-2222-4333-8444-555555555555"

# (who, what, arguments): A, B and C are sessions.
MYSQL_SCRIPTS: dict[str, list[Step]] = {
    "a_head_takes_newer_ranks_only": [
        ("A", "announce", 1, 1), ("A", "head"), ("A", "create", 1, 1), ("A", "create", 9, 9), ("A", "head"),
        ("A", "announce", 1, 1), ("B", "announce", 2, 3), ("A", "announce", 1, 9), ("A", "announce", 2, 2),
        ("A", "begin"), ("A", "lock"), ("B", "announce", 2, 3), ("A", "commit"), ("B", "announce", 2, 4), ("C", "head"),
    ],
    "a_locked_head_cannot_be_raised_and_shows_what_was_committed": [
        ("A", "create", 1, 1), ("A", "begin"), ("A", "lock"), ("A", "deliver", 7), ("B", "head"),
        ("B", "announce", 2, 1), ("B", "head"), ("A", "head"), ("A", "commit"), ("B", "announce", 2, 1), ("B", "head"),
    ],
    "an_uncommitted_marker_is_invisible_and_keeps_its_place": [
        ("A", "create", 1, 1), ("A", "begin"), ("A", "insert", 1), ("B", "marker", 1), ("B", "begin"),
        ("B", "insert", 1), ("B", "insert", 2), ("A", "commit"), ("B", "insert", 1), ("B", "marker", 1),
        ("B", "commit"), ("A", "marker", 2),
    ],
    "a_lock_wait_time_out_leaves_the_transaction_open": [
        ("A", "begin"), ("A", "insert", 1), ("B", "begin"), ("B", "insert", 2), ("B", "insert", 1), ("B", "commit"),
        ("C", "marker", 2), ("C", "marker", 1), ("A", "close"), ("C", "marker", 1), ("C", "insert", 1),
    ],
    "what_a_closed_session_had_open_is_rolled_back": [
        ("A", "create", 1, 1), ("A", "begin"), ("A", "lock"), ("A", "insert", 1), ("A", "fill", 1), ("A", "deliver", 1),
        ("A", "close"), ("B", "head"), ("B", "marker", 1), ("B", "announce", 1, 2), ("B", "newest"),
    ],
    "a_killed_session_commits_nothing": [
        ("A", "create", 1, 1), ("A", "name", "a"), ("A", "begin"), ("A", "lock"), ("A", "insert", 1),
        ("B", "announce", 2, 1), ("B", "kill", "a"), ("B", "announce", 2, 1), ("A", "commit"), ("B", "marker", 1),
        ("B", "kill", "a"), ("C", "name", "a"),
    ],
    "a_user_level_lock_has_one_holder": [
        ("A", "name", "a"), ("B", "name", "a"), ("A", "close"), ("B", "name", "a"), ("C", "holder", "a"),
        ("C", "holder", "nobody"),
    ],
    "pruning_takes_markers_up_to_the_floor": [
        ("A", "create", 1, 1), ("A", "insert", 1), ("A", "insert", 2), ("A", "insert", 3), ("A", "begin"),
        ("A", "lock"), ("A", "floor", 2), ("A", "prune", 2), ("A", "floor", 1), ("A", "commit"), ("A", "head"),
        ("A", "newest"), ("A", "marker", 1), ("A", "fill", 1), ("A", "fill", 3),
    ],
    "after_a_commit_the_next_statement_opens_a_transaction": [
        ("A", "begin"), ("A", "insert", 1), ("A", "commit"), ("A", "insert", 2), ("B", "marker", 1), ("B", "marker", 2),
        ("B", "insert", 2), ("A", "commit"), ("B", "marker", 2),
    ],
    "a_savepoint_takes_back_what_came_after_it_and_keeps_its_place": [
        ("A", "begin"), ("A", "insert", 1), ("A", "savepoint"), ("A", "insert", 2), ("A", "rollback_to"),
        ("A", "insert", 3), ("A", "savepoint"), ("A", "insert", 4), ("A", "release"), ("A", "rollback_to"),
        ("A", "commit"), ("B", "marker", 1), ("B", "marker", 2), ("B", "marker", 3), ("B", "marker", 4),
        ("B", "savepoint"), ("B", "rollback_to"), ("B", "begin"), ("B", "insert", 5), ("B", "insert", 1),
        ("B", "savepoint"), ("B", "insert", 1), ("B", "rollback_to"), ("B", "commit"), ("A", "marker", 5),
    ],
    "a_prepared_branch_outlives_its_connection_and_is_invisible": [
        ("A", "xa", "START", 1), ("A", "insert", 1), ("B", "marker", 1), ("A", "xa", "END", 1),
        ("A", "xa", "PREPARE", 1), ("B", "recover"), ("B", "marker", 1), ("A", "close"), ("B", "recover"),
        ("B", "marker", 1), ("B", "xa", "COMMIT", 1), ("B", "marker", 1), ("B", "recover"), ("B", "xa", "COMMIT", 1),
        ("B", "xa", "ROLLBACK", 1),
    ],
    "active_and_idle_branches_end_with_their_connection": [
        ("A", "xa", "START", 1), ("A", "insert", 1), ("A", "close"), ("B", "xa", "START", 2), ("B", "insert", 1),
        ("B", "xa", "END", 2), ("B", "close"), ("C", "recover"), ("C", "marker", 1), ("C", "xa", "COMMIT", 1),
        ("C", "xa", "START", 1), ("C", "insert", 1), ("C", "xa", "END", 1), ("C", "xa", "ROLLBACK", 1),
        ("C", "marker", 1), ("C", "insert", 1), ("B", "marker", 1),
    ],
    "a_branch_is_ended_by_others_when_its_connection_has_gone": [
        ("A", "name", "a"), ("A", "xa", "START", 1), ("A", "insert", 1), ("A", "xa", "END", 1),
        ("A", "xa", "PREPARE", 1), ("B", "xa", "ROLLBACK", 1), ("B", "recover"), ("B", "kill", "a"),
        ("B", "xa", "ROLLBACK", 1), ("B", "recover"), ("B", "marker", 1), ("B", "insert", 1), ("B", "marker", 1),
    ],
    "a_killed_session_takes_its_branch_along_unless_it_is_prepared": [
        ("A", "name", "a"), ("A", "xa", "START", 1), ("A", "insert", 1), ("B", "insert", 1), ("B", "kill", "a"),
        ("B", "recover"), ("B", "insert", 1), ("A", "marker", 1), ("A", "xa", "START", 2), ("A", "insert", 2),
        ("A", "xa", "END", 2), ("A", "xa", "PREPARE", 2), ("C", "insert", 2), ("A", "close"), ("C", "insert", 2),
        ("C", "xa", "COMMIT", 2), ("C", "insert", 2), ("C", "marker", 2),
    ],
    "steps_out_of_order_are_refused": [
        ("A", "xa", "END", 1), ("A", "xa", "PREPARE", 1), ("A", "xa", "START", 1), ("B", "xa", "START", 1),
        ("A", "xa", "PREPARE", 1), ("A", "begin"), ("A", "commit"), ("A", "insert", 1), ("A", "xa", "START", 2),
        ("A", "xa", "COMMIT", 1), ("B", "xa", "COMMIT", 1), ("A", "xa", "END", 1), ("A", "insert", 2),
        ("A", "marker", 1), ("A", "xa", "END", 1), ("A", "xa", "COMMIT", 1), ("B", "xa", "ROLLBACK", 1),
        ("A", "xa", "PREPARE", 1), ("B", "xa", "START", 1), ("A", "close"), ("B", "xa", "COMMIT", 1),
    ],
    "nobody_ends_a_branch_inside_a_transaction": [
        ("A", "xa", "START", 1), ("A", "insert", 1), ("A", "xa", "END", 1), ("A", "xa", "PREPARE", 1), ("A", "close"),
        ("B", "begin"), ("B", "insert", 2), ("B", "xa", "COMMIT", 1), ("B", "xa", "START", 2), ("B", "commit"),
        ("B", "xa", "COMMIT", 1), ("B", "marker", 1),
    ],
    "a_lock_wait_time_out_does_not_end_a_branch": [
        ("A", "insert", 1), ("A", "begin"), ("A", "insert", 2), ("B", "xa", "START", 1), ("B", "insert", 3),
        ("B", "insert", 2), ("B", "insert", 1), ("B", "xa", "END", 1), ("B", "xa", "PREPARE", 1), ("B", "close"),
        ("C", "xa", "COMMIT", 1), ("C", "marker", 3), ("C", "marker", 2),
    ],
    "a_shared_head_in_a_branch_and_who_may_raise_it": [
        ("A", "create", 1, 1), ("A", "xa", "START", 1), ("A", "share"), ("A", "insert", 1), ("B", "announce", 2, 1),
        ("A", "xa", "END", 1), ("A", "xa", "PREPARE", 1), ("A", "close"), ("B", "announce", 2, 1), ("B", "head"),
        ("B", "xa", "COMMIT", 1), ("B", "announce", 2, 2), ("B", "head"),
    ],
    "a_shared_head_is_shared_and_not_raised": [
        ("A", "create", 1, 1), ("A", "begin"), ("A", "share"), ("B", "begin"), ("B", "share"), ("C", "announce", 2, 1),
        ("C", "head"), ("A", "deliver", 1), ("B", "commit"), ("A", "deliver", 1), ("C", "announce", 2, 1),
        ("A", "commit"), ("C", "announce", 2, 1), ("C", "head"),
    ],
}  # fmt: skip


def random_branches(seed: int, steps: int = 45) -> list[Step]:
    """Branches in any order: begun, prepared, ended by oneself and by others, their connections closed."""
    dice = random.Random(seed)
    script: list[Step] = [("A", "create", 1, 1)]
    for _ in range(steps):
        who, xid = dice.choice("ABC"), dice.randint(1, 2)
        verb = dice.choice(["START", "END", "PREPARE", "COMMIT", "ROLLBACK"])
        if verb == "START" and dice.random() < 0.7:  # a whole branch
            script += [(who, "xa", "START", xid), (who, "insert", xid), (who, "xa", "END", xid)]
            script += [(who, "xa", "PREPARE", xid)] if dice.random() < 0.8 else []
            continue
        script.append(
            (
                who,
                *dice.choice(
                    [
                        ("xa", verb, xid), ("xa", verb, xid), ("xa", verb, xid), ("recover",), ("close",), ("close",),
                        ("insert", xid), ("marker", xid), ("begin",), ("commit",), ("announce", 1, dice.randint(1, 3)),
                    ]
                ),
            )
        )  # fmt: skip
    return script


def random_script(seed: int, steps: int = 45) -> list[Step]:
    """Anything in any order, as three processes might."""
    dice = random.Random(seed)
    script: list[Step] = [("A", "create", 1, 1)]
    for _ in range(steps):
        number = dice.randint(1, 3)
        script.append(
            (
                dice.choice("ABC"),
                *dice.choice(
                    [
                        ("begin",), ("begin",), ("commit",), ("commit",), ("close",), ("head",), ("lock",), ("newest",),
                        ("announce", dice.randint(1, 3), dice.randint(1, 3)), ("insert", number), ("insert", number),
                        ("marker", number), ("fill", number), ("deliver", number), ("floor", number),
                        ("prune", number),
                    ]
                ),
            )
        )  # fmt: skip
    return script


class MySqlScript:
    """Plays a script with sessions that `connect` opens; `gone` tells when the server has noticed a closed one."""

    def __init__(self, connect: Callable[[], Any], gone: Callable[[int], bool] = lambda _: True) -> None:
        self._connect = connect
        self._gone = gone
        self._sessions: dict[str, Any] = {}
        self._ids: dict[int, str] = {}
        self._ledger = Ledger("shop", "orders", "db")
        self._owner = uuid.uuid4().hex

    def play(self, script: Sequence[Step]) -> list[object]:
        try:
            return [(step, self._answer(*step)) for step in script]
        finally:
            for session in self._sessions.values():
                session.close()
            self._end_branches()

    def _await_end(self, session: int) -> object:
        deadline = time.monotonic() + 120
        while not self._gone(session):
            assert time.monotonic() < deadline, "the server keeps a session that has ended"
            time.sleep(0.005)
        return None

    def _end_branches(self) -> None:
        """Leaves nothing behind that would keep its locks; waits for the sessions that were closed just now."""
        deadline = time.monotonic() + 120
        with closing(self._connect()) as session:
            while left := recover(session).of(self._owner):
                assert time.monotonic() < deadline, f"{left} cannot be ended"
                for branch in left:
                    with suppress(pymysql.err.MySQLError):
                        session.run(f"XA ROLLBACK {branch.sql}")
                time.sleep(0.005)

    def _answer(self, who: str, what: str, *args: Any) -> object:
        if who not in self._sessions:
            self._sessions[who] = self._connect()
            self._ids[self._sessions[who].id] = who
        try:
            return self._perform(who, self._sessions[who], what, *args)
        except Blocked as blocked:
            return blocked.in_vain.args[0]
        except pymysql.err.MySQLError as error:
            if meaning(error) is Meaning.LOST:
                self._sessions.pop(who).close()
                return "lost"
            return error.args[0]

    def _perform(self, who: str, session: Any, what: str, *args: Any) -> object:
        ledger = self._ledger.on(session)
        match what:
            case "announce":
                return ledger.announce(fence(*args), f"{args[0]}{args[1]}".ljust(32, "0"))
            case "create":
                ledger.create_head(new_head(fence(*args)))
                return None
            case "head" | "lock" | "share":
                return ledger.head(lock=what == "lock", shared=what == "share")
            case "xa":
                session.run(f"XA {args[0]} {xid(self._owner, args[1]).sql}")
                return None
            case "savepoint" | "release" | "rollback_to":
                verb = {"savepoint": "", "release": "RELEASE ", "rollback_to": "ROLLBACK TO "}[what]
                session.run(f"{verb}SAVEPOINT airflow_ft_part")
                return None
            case "recover":
                return sorted(found.number for found in recover(session).of(self._owner))
            case "insert":
                ledger.write_marker(plan(args[0]), fence(1, 1), Outcome.COMMITTED, {}, {})
                return None
            case "fill":
                return ledger.fill_marker(args[0], {"rows": 1}, {"told": True})
            case "marker":
                marker = ledger.marker(args[0])
                return marker and (marker.outcome, marker.digest, dict(marker.counts), dict(marker.detail))
            case "deliver":
                return ledger.deliver_head(args[0])
            case "floor":  # behind the head's lock, as in the product: UPDATE keeps no lock of a row that it leaves
                ledger.head(lock=True)
                return ledger.raise_floor(args[0])
            case "prune":
                return ledger.prune(*args)
            case "newest":
                return ledger.newest()
            case "name":
                return session.row("SELECT GET_LOCK(%s, 0)", args)
            case "holder":
                return self._ids.get(session.row("SELECT IS_USED_LOCK(%s)", args)[0])
            case "kill":
                victim = next((number for number, name in self._ids.items() if name == args[0].upper()), 0)
                session.run(f"KILL CONNECTION {victim}")
                return self._await_end(victim)
            case "close":
                self._sessions.pop(who).close()
                return self._await_end(session.id)
            case _:
                return getattr(session, what)()


def fence(epoch: int, attempt: int) -> Fence:
    return Fence("orders", INSTALLATION, epoch, attempt)


def xid(owner: str, number: int) -> Xid:
    return Xid(owner, number, 1, 1, "0001", f"{number:024x}")


def plan(number: int) -> Plan:
    segment = Segment(number, f"{number:064x}", f"file:///{number}", {"rows": 1}, 1)
    return Plan("orders", INSTALLATION, number, (segment,), (), None)


def model_session(is_mariadb: bool) -> Callable[[], ModelSession]:
    server = MySqlServer(Kernel(lambda *_: None), "db", is_mariadb=is_mariadb)
    return lambda: ModelSession(server, QUICK)


RANDOM = {f"seed {seed}": random_script(seed) for seed in range(3)} | {
    f"branches, seed {seed}": random_branches(seed) for seed in range(4)
}


@pytest.mark.sampled
@pytest.mark.parametrize("name", [*MYSQL_SCRIPTS, *RANDOM])
def test_mysql_does_what_its_model_does(any_mysql_database: Database, name: str) -> None:
    script = (MYSQL_SCRIPTS | RANDOM)[name]
    server: Any = any_mysql_database.server
    info = ConnectionInfo(
        "db", "mysql", server.host, server.port, server.user, server.password, any_mysql_database.name
    )
    for statement in Ledger(any_mysql_database.name, "orders", "db").ddl():
        any_mysql_database.sql(statement)
    listed = "SELECT 1 FROM information_schema.processlist WHERE id = %s"
    real = MySqlScript(lambda: Session(info, QUICK), lambda number: not any_mysql_database.sql(listed, (number,)))
    real._ledger = Ledger(any_mysql_database.name, "orders", "db")
    model = MySqlScript(model_session(isinstance(server, MariaDb)))
    assert model.play(script) == real.play(script)


# (who, what, arguments): P and Q are producers of one transactional id.
KAFKA_SCRIPTS: dict[str, list[Step]] = {
    "records_and_offset_become_visible_together": [
        ("P", "init"), ("P", "begin"), ("P", "send", "one"), ("P", "offset", 1), ("R", "read"), ("P", "commit"),
        ("R", "committed"), ("R", "read"),
    ],
    "initialising_fences_the_other_and_aborts_what_it_left_open": [
        ("P", "init"), ("P", "begin"), ("P", "send", "one"), ("P", "offset", 1), ("Q", "init"), ("R", "committed"),
        ("P", "commit"), ("R", "committed"), ("Q", "begin"), ("Q", "send", "two"), ("Q", "offset", 1), ("Q", "commit"),
        ("R", "committed"), ("R", "read"),
    ],
    "a_fenced_producer_cannot_write_the_token": [
        ("P", "init"), ("P", "begin"), ("P", "offset", 1), ("P", "commit"), ("Q", "init"), ("P", "begin"),
        ("P", "offset", 2), ("R", "committed"), ("Q", "begin"), ("Q", "offset", 3), ("Q", "commit"), ("R", "committed"),
    ],
    "an_aborted_transaction_leaves_nothing": [
        ("P", "init"), ("P", "begin"), ("P", "send", "one"), ("P", "offset", 1), ("P", "abort"), ("R", "committed"),
        ("P", "begin"), ("P", "send", "two"), ("P", "offset", 2), ("P", "commit"), ("R", "committed"), ("R", "read"),
    ],
    "an_offset_is_pending_while_its_transaction_is_open": [
        ("P", "init"), ("P", "begin"), ("P", "offset", 1), ("P", "commit"), ("P", "begin"), ("P", "offset", 2),
        ("R", "committed"), ("R", "unstable"), ("P", "commit"), ("R", "committed"),
    ],
    "a_transaction_is_committed_by_whoever_knows_its_producer": [
        ("P", "init"), ("P", "begin"), ("P", "send", "one"), ("P", "offset", 1), ("P", "identity", "first"),
        ("C", "describe"), ("R", "committed"), ("C", "end", "first", True), ("R", "committed"), ("R", "read"),
        ("C", "describe"), ("C", "end", "first", True), ("C", "end", "first", False), ("R", "committed"),
    ],
    "who_was_ended_by_another_is_shut_out": [
        ("P", "init"), ("P", "begin"), ("P", "send", "one"), ("P", "offset", 1), ("P", "identity", "first"),
        ("C", "end", "first", True), ("P", "offset", 2), ("R", "committed"), ("R", "read"),
    ],
    "an_aborted_transaction_is_gone": [
        ("P", "init"), ("P", "begin"), ("P", "send", "one"), ("P", "offset", 1), ("P", "identity", "first"),
        ("C", "end", "first", False), ("C", "describe"), ("C", "end", "first", True), ("C", "end", "first", False),
        ("R", "committed"), ("R", "read"),
    ],
    "an_identity_names_no_later_transaction": [
        ("P", "init"), ("P", "begin"), ("P", "send", "one"), ("P", "offset", 1), ("P", "identity", "first"),
        ("Q", "init"), ("C", "describe"), ("C", "end", "first", True), ("Q", "begin"), ("Q", "send", "two"),
        ("Q", "offset", 2), ("Q", "identity", "second"), ("C", "end", "first", True), ("C", "end", "first", False),
        ("C", "describe"), ("C", "end", "second", True), ("R", "committed"), ("R", "read"), ("C", "end", "first", True),
    ],
    "what_its_own_producer_has_committed_is_gone": [
        ("P", "init"), ("P", "begin"), ("P", "send", "one"), ("P", "offset", 1), ("P", "identity", "first"),
        ("P", "commit"), ("C", "end", "first", True), ("R", "committed"), ("R", "read"),
    ],
    "nothing_is_known_of_an_id_that_was_never_used": [("C", "describe"), ("C", "unknown")],
}  # fmt: skip


class KafkaScript:
    """Plays a script with clients; `read` gives the records that a read_committed reader sees."""

    def __init__(self, clients: KafkaClients, topic: str, token_topic: str, read: Callable[[], list[str]]) -> None:
        self._clients = clients
        self._topic = topic
        self._token = token_topic
        self._read = read
        self._group = f"airflow_ft.{uuid.uuid4().hex}"
        self._producers: dict[str, Any] = {}
        self._tellers: dict[str, Any] = {}
        self._identities: dict[str, ProducerIdentity] = {}
        self._coordinator = TransactionCoordinator(clients)

    def play(self, script: Sequence[Step], expected: Sequence[Any] = ()) -> list[Any]:
        answers: list[Any] = []
        for place, step in enumerate(script):
            if step[1] == "read" and expected:
                answers.append((step, await_records(self._read, expected[place][1])))
            else:
                answers.append((step, self._answer(*step)))
        return answers

    def _answer(self, who: str, what: str, *args: Any) -> object:
        try:
            return self._perform(who, what, *args)
        except Blocked:
            return "pending"
        except KafkaException as error:
            if who == "R":
                return "pending"
            return "fenced" if is_fenced(error.args[0]) else str(error)

    def _perform(self, who: str, what: str, *args: Any) -> object:
        if what == "read":
            return self._read()
        if what in ("committed", "unstable"):
            isolation = "read_committed" if what == "committed" else "read_uncommitted"
            consumer: Any = self._clients.consumer(self._group, isolation)
            try:
                found = consumer.committed([TopicPartition(self._token, 0)], 3.0)[0]
            finally:
                consumer.close()
            return None if found.offset == OFFSET_INVALID else (found.offset, found.metadata)
        if who == "C":
            return self._coordinate(what, *args)
        if what == "init":
            teller = self._tellers[who] = _Statistics()
            settings = {"statistics.interval.ms": 100, "stats_cb": teller}
            self._producers[who] = self._clients.producer(self._group, {}, settings)
        producer = self._producers[who]
        match what:
            case "init":
                producer.init_transactions(20.0)
            case "begin":
                producer.begin_transaction()
            case "send":
                failed: list[object] = []
                producer.produce(
                    self._topic, args[0], None, on_delivery=lambda error, _: failed.append(error) if error else None
                )
                producer.flush(20.0)
                return "failed" if failed else "acknowledged"
            case "offset":
                reader: Any = self._clients.consumer(self._group)
                try:
                    position = TopicPartition(self._token, 0, args[0], metadata=f"token {args[0]}")
                    producer.send_offsets_to_transaction([position], reader.consumer_group_metadata(), 20.0)
                finally:
                    reader.close()
            case "commit":
                producer.commit_transaction(20.0)
            case "abort":
                producer.abort_transaction(20.0)
            case "identity":
                deadline = time.monotonic() + 120
                while (identity := self._tellers[who].identity) is None:
                    producer.poll(0.05)
                    assert time.monotonic() < deadline, "librdkafka does not tell who the producer is"
                self._identities[args[0]] = identity
        return None

    def _coordinate(self, what: str, *args: Any) -> object:
        match what:
            case "end":
                return self._coordinator.end(self._group, self._identities[args[0]], commit=args[1])
            case "unknown":
                return self._coordinator.end(self._group, ProducerIdentity(987654, 0), commit=True)
            case _:
                deadline = time.monotonic() + 120
                while (found := self._coordinator.describe(self._group)) is not None and "Prepare" in found.state:
                    assert time.monotonic() < deadline, "the markers are never written"
                if found is None:
                    return None
                who = [name for name, known in self._identities.items() if known == found.producer]
                return (found.state, who, sorted({topic for topic, _ in found.partitions} & {self._topic}) != [])


@pytest.mark.sampled
@pytest.mark.parametrize("name", list(KAFKA_SCRIPTS))
def test_kafka_does_what_its_model_does(kafka: Kafka, topic_factory: Callable[..., str], name: str) -> None:
    cluster = KafkaCluster(Kernel(lambda *_: None), "log")
    model = KafkaScript(
        ModelClients(cluster), "t", "tokens", lambda: [str(item) for item in cluster.visible.get("t", [])]
    )
    model._coordinator._client = cast(Any, ModelAdmin(cluster))
    info = ConnectionInfo("log", "kafka", extra={"bootstrap.servers": kafka.bootstrap, "airflow_ft_timeout": 20})
    clients = KafkaClients(KafkaSettings.from_connection(info))
    topic, token_topic = topic_factory(1), topic_factory(1)
    real = KafkaScript(clients, topic, token_topic, lambda: read_committed(kafka.bootstrap, topic))
    expected = model.play(KAFKA_SCRIPTS[name])
    assert real.play(KAFKA_SCRIPTS[name], expected) == expected


def read_committed(bootstrap: str, topic: str) -> list[str]:
    """What a read_committed reader finds up to the end."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": f"reader-{uuid.uuid4().hex}",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 10,
        }
    )
    try:
        consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
        found: list[str] = []
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            message = consumer.poll(1.0)
            if message is None:
                continue
            if (error := message.error()) is not None:
                assert error.code() == KafkaError._PARTITION_EOF, error
                return found
            found.append((message.value() or b"").decode())
        raise AssertionError("the reader did not come to an end")
    finally:
        consumer.close()


def await_records(read: Callable[[], list[str]], expected: list[str]) -> list[str]:
    """EndTxn answers before the records can be read: so they are waited for, and whatever is too many is found."""
    deadline = time.monotonic() + 15
    while (found := read()) != expected and time.monotonic() < deadline:
        pass
    return found
