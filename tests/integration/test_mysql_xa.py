"""The strategy `xa` against real servers: prepared, decided, committed from elsewhere, rolled back, lost, come back."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pymysql
import pytest

from airflow_ft.protocol.doctor import Check, Verdict
from airflow_ft.protocol.errors import (
    AbortedHeuristicCommitError,
    DeclinedError,
    FencedError,
    ForeignOwnerError,
    SinkAccessError,
    SinkUnavailableError,
    StoreBehindSinkError,
    TerminalError,
)
from airflow_ft.protocol.orphans import PreparedEnding
from airflow_ft.protocol.votes import Outcome
from airflow_ft.sinks.base import slices
from airflow_ft.sinks.mysql import xa, xa_preflight
from airflow_ft.sinks.mysql.doctor import examine
from airflow_ft.sinks.mysql.ledger import Ledger
from airflow_ft.sinks.mysql.session import Session
from airflow_ft.sinks.mysql.xid import recover
from airflow_ft.wal import open_wal
from tests.integration.proxy import Proxy
from tests.raising import raises
from tests.sinks.mysql.world import INSTALLATION, THE_ROWS, MySqlWorld, each_way, make_world, orders, vote_for
from tools.servers import Database

ROWS = 9_000


@pytest.fixture(autouse=True)
def small_branches(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that few rows are divided too."""
    monkeypatch.setattr(slices, "MIN_ROWS", 2)


@pytest.fixture
def world(any_mysql_database: Database, tmp_path: Path) -> Iterator[MySqlWorld]:
    world = make_world(any_mysql_database, tmp_path).use("xa", branches=3)
    yield world
    world.server.end_prepared()


@each_way
@pytest.mark.parametrize("refused", ["value", "key"])
def test_a_row_that_a_branch_refuses_is_named_by_its_file(
    any_mysql_database: Database, tmp_path: Path, way: str, refused: str
) -> None:
    table = "id BIGINT PRIMARY KEY, n INT, e TINYINT AS (n) STORED"
    world = make_world(any_mysql_database, tmp_path, orders=table).use("xa", branches=2)
    world.use_way(way)
    world.limits = replace(world.limits, insert_bytes=500)
    numbers = [1] * 100
    if refused == "key":  # the server names no row
        world.sql("INSERT INTO orders (id, n) VALUES (76, 1)")
    else:
        numbers[76] = 300
    plan = world.plan(orders=pa.table({"id": range(100), "n": pa.array(numbers, pa.int32())}))
    with pytest.raises(DeclinedError) as declined:
        world.participant(plan).prepare(plan, world.fence())
    assert declined.value.row.startswith("77 of "), declined.value


def prepared(world: MySqlWorld) -> list[str]:
    """The prepared branches of the server, as XA statements name them: read by SQL alone."""
    names = []
    mysql = world.server.name == "mysql"
    for row in world.server.sql("XA RECOVER CONVERT XID" if mysql else "XA RECOVER"):
        data = bytes.fromhex(row[3][2:]) if mysql else row[3]
        if data.isascii():
            names.append(f"'{data[: row[1]].decode()}','{data[row[1] :].decode()}',{row[0]}")
    return sorted(names)


def commit(world: MySqlWorld, plan: Any, notes: Any, attempt: int, voted: int = 1, epoch: int = 1) -> Any:
    return world.participant(plan).commit(plan, world.fence(epoch, attempt), vote_for(notes, voted))


def leave_marker(world: MySqlWorld, number: int, kind: str, branch: str = "") -> None:
    """A former owner has marked a number, or a branch of it."""
    columns = "epoch, attempt, digest, counts, detail, at"
    world.sql(
        f"INSERT INTO airflow_ft_ledger SELECT pipeline, participant, {number}, branch, 'former owner', '{kind}',"
        f" {columns} FROM airflow_ft_ledger WHERE branch = '{branch}'"
    )


def test_prepared_rows_are_durable_but_invisible_until_committed(world: MySqlWorld) -> None:
    plan = world.plan(orders=orders(1, 10))
    participant = world.participant(plan)
    notes = participant.prepare(plan, world.fence())

    assert len(prepared(world)) == 3
    assert notes["branches"] == {"0001": {"orders": 3}, "0002": {"orders": 3}, "0003": {"orders": 4}}
    assert (world.count(), world.markers(), participant.proof(plan)) == (0, [], None)

    proof = commit(world, plan, notes, 2)
    assert (proof.outcome, proof.counts, proof.digest) == (Outcome.COMMITTED, {"orders": 10}, plan.digest)
    assert participant.proof(plan) == proof
    assert world.count() == 10 and prepared(world) == []
    assert world.sql("SELECT last_delivered FROM airflow_ft_head") == [(1,)]
    assert [row[:2] for row in world.markers()] == [(1, "committed")] * 4


def test_the_notes_hide_branch_names_from_unprivileged_users(world: MySqlWorld) -> None:
    plan = world.plan(orders=orders(1, 10))
    notes = str(world.participant(plan).prepare(plan, world.fence()))
    for name in prepared(world):
        nonce = name.split("'")[3].rsplit(".", 1)[1]
        assert len(nonce) == 24 and nonce not in notes
        assert all(len(part) <= 64 and part.isascii() for part in name.split("'")[1:4:2])


def test_a_repeated_commit_has_no_second_effect(world: MySqlWorld) -> None:
    plan = world.plan(orders=orders(1, 10))
    notes = world.participant(plan).prepare(plan, world.fence())
    proof = commit(world, plan, notes, 2)
    assert commit(world, plan, notes, 3) == proof
    assert world.participant(plan).prepare(plan, world.fence(2, 4))["settled"] == "committed"
    assert world.count() == 10


def test_a_checkpoint_without_rows_has_a_branch_and_a_proof(world: MySqlWorld) -> None:
    plan = world.plan(orders=orders(1, 0))
    notes = world.participant(plan).prepare(plan, world.fence())
    assert len(prepared(world)) == 1
    assert commit(world, plan, notes, 2).counts == {"orders": 0}


def test_several_tables_and_segments_are_divided_by_rows(any_mysql_database: Database, tmp_path: Path) -> None:
    world = make_world(any_mysql_database, tmp_path, orders="id BIGINT, name TEXT", refunds="id BIGINT").use("xa")
    carried = world.segment(1, {"orders": orders(1, 5), "refunds": pa.table({"id": [1]})})
    plan = world.plan_of(2, carried, world.segment(2, {"orders": orders(6, 5), "refunds": pa.table({"id": [2, 3]})}))
    notes = world.participant(plan).prepare(plan, world.fence())
    assert {label: sum(rows.values()) for label, rows in notes["branches"].items()} == {"0001": 6, "0002": 7}
    assert commit(world, plan, notes, 2).counts == {"orders": 10, "refunds": 3}
    assert world.sql("SELECT id FROM orders ORDER BY id") == [(i,) for i in range(1, 11)]
    assert world.sql("SELECT id FROM refunds ORDER BY id") == [(1,), (2,), (3,)]


def test_a_checkpoint_is_prepared_while_its_predecessor_waits(world: MySqlWorld) -> None:
    """On MySQL a prepared branch that had read the head FOR SHARE would forbid this for ever."""
    first = world.plan(orders=orders(1, 10))
    first_notes = world.participant(first).prepare(first, world.fence(1, 1))
    world.predecessor = 1
    second = world.plan(orders=orders(11, 10))
    second_notes = world.participant(second).prepare(second, world.fence(1, 2))
    assert len(prepared(world)) == 6

    with pytest.raises(StoreBehindSinkError):  # I4: never before its predecessor
        commit(world, second, second_notes, 3, voted=2)
    assert len(prepared(world)) == 6 and world.count() == 0
    commit(world, first, first_notes, 4)
    commit(world, second, second_notes, 5, voted=2)
    assert world.count() == 20


def test_pruning_passes_what_later_numbers_have_prepared(world: MySqlWorld) -> None:
    for number in (1, 2):
        world.deliver(world.plan(orders=orders(number, 10)), 1, number)
    plan = world.plan(orders=orders(31, 10))
    notes = world.participant(plan).prepare(plan, world.fence(1, 3))
    world.participant(plan).forget(world.fence(1, 0), 1)
    assert {row[0] for row in world.markers()} == {2}
    commit(world, plan, notes, 4, voted=3)


# --- undecided -------------------------------------------------------------------------------------------------------


def test_waiting_checkpoints_cost_a_commit_no_extra_statements(
    world: MySqlWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Recovery finishes a long queue one number after the other: each looks at all the others that are prepared."""
    plans, votes = [], []
    for number in range(1, 7):
        plans.append(world.plan(orders=orders(10 * number, 4)))
        votes.append(world.participant(plans[-1]).prepare(plans[-1], world.fence(1, number)))
        world.predecessor = number
    statements: list[str] = []
    for name in ("run", "rows"):
        original = getattr(Session, name)

        def recorded(self: Session, sql: str, *args: Any, _original: Any = original) -> Any:
            statements.append(sql)
            return _original(self, sql, *args)

        monkeypatch.setattr(Session, name, recorded)
    counts = []
    for number, (plan, notes) in enumerate(zip(plans, votes, strict=True), start=1):
        statements.clear()
        commit(world, plan, notes, 10 + number, voted=number)
        counts.append(len(statements))
    assert counts[0] == counts[-2] == counts[-1] + 1  # the last one finds no other number listed
    assert prepared(world) == [] and world.count() == 24


def test_a_new_attempt_rolls_back_what_an_older_one_has_prepared(world: MySqlWorld) -> None:
    plan = world.plan(orders=orders(1, 10))
    world.participant(plan).prepare(plan, world.fence(1, 1))
    before = prepared(world)
    notes = world.participant(plan).prepare(plan, world.fence(1, 2))
    assert len(prepared(world)) == 3 and not set(before) & set(prepared(world))
    commit(world, plan, notes, 3, voted=2)
    assert world.count() == 10


def test_an_older_attempt_touches_nothing_of_a_newer_one(world: MySqlWorld) -> None:
    plan = world.plan(orders=orders(1, 10))
    notes = world.participant(plan).prepare(plan, world.fence(2, 5))
    before = prepared(world)
    for rank in ((2, 4), (1, 99)):
        with pytest.raises(FencedError):
            world.participant(plan).prepare(plan, world.fence(*rank))
        with pytest.raises(FencedError):
            world.participant(plan).abort(plan, world.fence(*rank), {})
    assert prepared(world) == before
    commit(world, plan, notes, 6, voted=5, epoch=2)


def test_a_late_sweep_leaves_a_newer_attempts_branches_alone(
    world: MySqlWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R8: the older one had looked at the head, and lists the branches when the newer one has prepared its own."""
    plan = world.plan(orders=orders(1, 10))
    notes: dict[str, Any] = {}

    def list_late(session: Session) -> Any:
        if not notes:
            monkeypatch.setattr(xa, "recover", recover)
            notes.update(world.participant(plan).prepare(plan, world.fence(1, 3)))
        return recover(session)

    monkeypatch.setattr(xa, "recover", list_late)
    with pytest.raises(FencedError):
        world.participant(plan).prepare(plan, world.fence(1, 2))
    assert len(prepared(world)) == 3
    assert "redelivered" not in commit(world, plan, notes, 4, voted=3).detail
    assert world.count() == 10


def test_a_late_attempt_after_an_abort_meets_the_abort_markers(world: MySqlWorld) -> None:
    plan = world.plan(orders=orders(1, 10))
    world.participant(plan).prepare(plan, world.fence())
    proof = world.participant(plan).abort(plan, world.fence(1, 2), {"reason": "USER"})
    assert proof.outcome is Outcome.ABORTED and prepared(world) == [] and world.count() == 0
    assert world.participant(plan).abort(plan, world.fence(1, 3), {"reason": "OTHER"}) == proof

    assert world.participant(plan).prepare(plan, world.fence(1, 4))["settled"] == "aborted"
    assert [row[:2] for row in world.markers()] == [(1, "aborted")] * 4
    assert prepared(world) == []


def test_an_abort_before_any_prepare_still_leaves_abort_markers(world: MySqlWorld) -> None:
    """Its attempt had begun and got no further, while another sink refused the rows (found by the simulator)."""
    plan = world.plan(orders=orders(1, 10))
    proof = world.participant(plan).abort(plan, world.fence(1, 2), {"reason": "DECLINED"})
    assert proof.outcome is Outcome.ABORTED
    with pytest.raises(FencedError):
        world.participant(plan).prepare(plan, world.fence(1, 1))
    assert world.participant(plan).prepare(plan, world.fence(1, 3))["settled"] == "aborted"
    assert prepared(world) == []


def test_an_abort_meets_a_branch_that_is_committed_meanwhile(
    world: MySqlWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was prepared after the abort had listed the branches."""
    plan = world.plan(orders=orders(1, 10))
    world.participant(plan).prepare(plan, world.fence())
    monkeypatch.setattr(xa.XaParticipant, "_clear_the_way", lambda *_: None)
    write = Ledger.write_marker

    def commit_first(self: Ledger, *given: Any) -> None:
        world.server.sql(f"XA COMMIT {prepared(world)[0]}")
        write(self, *given)

    with monkeypatch.context() as patch, raises(AbortedHeuristicCommitError, "heuristic_commit_aborted"):
        patch.setattr(Ledger, "write_marker", commit_first)
        world.participant(plan).abort(plan, world.fence(1, 2), {"reason": "USER"})
    assert [row[:2] for row in world.markers()] == [(1, "committed")], "no tombstone beside visible rows"


def test_an_abort_meets_the_marker_of_another_decision_log(world: MySqlWorld) -> None:
    world.deliver(world.plan(orders=orders(1, 10)))
    leave_marker(world, 2, "committed", "0001")
    plan = world.plan(orders=orders(11, 10))
    with raises(ForeignOwnerError, "foreign_owner", installation="former owner"):
        world.participant(plan).abort(plan, world.fence(1, 2), {"reason": "USER"})


def test_what_belongs_to_others_is_left_alone(world: MySqlWorld) -> None:
    plan = world.plan(orders=orders(1, 10))
    world.participant(plan).prepare(plan, world.fence())
    before = prepared(world)
    with world.server.connect(world.database) as other, other.cursor() as cursor:
        cursor.execute("XA START X'ff00fe','aft.'")
        cursor.execute("INSERT INTO orders VALUES (99, 'theirs')")
        cursor.execute("XA END X'ff00fe','aft.'")
        cursor.execute("XA PREPARE X'ff00fe','aft.'")
    try:
        world.pipeline, world.number, world.predecessor = "refunds", 0, 0
        theirs = world.plan(orders=orders(1, 4))
        world.participant(theirs).prepare(theirs, world.fence(9, 9))
        world.participant(theirs).abort(theirs, world.fence(9, 10), {})
    finally:
        world.server.sql("XA ROLLBACK X'ff00fe','aft.'")  # fails unless it is still there
    assert prepared(world) == before


def test_refused_rows_leave_nothing_prepared(any_mysql_database: Database, tmp_path: Path) -> None:
    world = make_world(any_mysql_database, tmp_path, orders="id BIGINT PRIMARY KEY, name TEXT").use("xa", branches=2)
    plan = world.plan(orders=pa.concat_tables([orders(1, 5), orders(5, 1)]))
    with raises(DeclinedError, "row_refused", errno=1062) as declined:
        world.participant(plan).prepare(plan, world.fence())
    assert declined.error and "'5'" in declined.error.headline
    assert prepared(world) == [] and world.markers() == []


def test_branches_that_lock_each_others_keys_fail_with_a_remedy(any_mysql_database: Database, tmp_path: Path) -> None:
    world = make_world(any_mysql_database, tmp_path, orders="id BIGINT PRIMARY KEY, name TEXT").use("xa", branches=2)
    world.limits = replace(world.limits, tries=1)
    plan = world.plan(orders=pa.concat_tables([orders(1, 5), orders(1, 5)]))
    with raises(SinkUnavailableError, "lock_timeout") as refused:
        world.participant(plan).prepare(plan, world.fence())
    assert refused.error and "branches=1" in refused.error.remedy
    assert prepared(world) == []


def test_a_commit_without_a_vote_is_refused(world: MySqlWorld) -> None:
    plan = world.plan(orders=orders(1, 10))
    world.participant(plan).prepare(plan, world.fence())
    with raises(TerminalError, "vote_missing"):
        world.participant(plan).commit(plan, world.fence(1, 2))


# --- decided ---------------------------------------------------------------------------------------------------------


def test_a_branch_rolled_back_by_hand_is_delivered_from_the_log(world: MySqlWorld) -> None:
    plan = world.plan(orders=orders(1, 10))
    notes = world.participant(plan).prepare(plan, world.fence())
    world.server.sql(f"XA ROLLBACK {prepared(world)[1]}")
    proof = commit(world, plan, notes, 2)
    assert proof.detail["redelivered"] == ["0002"]
    assert world.sql("SELECT id FROM orders ORDER BY id") == [(i,) for i in range(1, 11)]


def test_a_second_redelivery_sends_only_the_missing_branch(world: MySqlWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    world.limits = replace(world.limits, tries=1)
    plan = world.plan(orders=orders(1, 10))
    notes = world.participant(plan).prepare(plan, world.fence())
    for name in prepared(world):
        world.server.sql(f"XA ROLLBACK {name}")
    fill = Session.run

    def run(session: Session, sql: str, args: Any = None) -> Any:
        if args and "INSERT INTO" in sql and "0002" in args:
            raise pymysql.err.OperationalError(1317, "Query execution was interrupted")
        return fill(session, sql, args)

    with monkeypatch.context() as patched:
        patched.setattr(Session, "run", run)
        with pytest.raises(SinkUnavailableError):
            commit(world, plan, notes, 2)
    assert world.participant(plan).proof(plan) is None  # I6: a part is no proof
    world.predecessor = 1
    following = world.plan(orders=orders(11, 10))
    later = world.participant(following).prepare(following, world.fence(1, 3))
    with pytest.raises(StoreBehindSinkError):  # I4: it waits until the whole is there
        commit(world, following, later, 4, voted=3)

    proof = commit(world, plan, notes, 5)
    assert proof.counts == {"orders": 10} and proof.detail["redelivered"] == ["0002"]
    standing = "SELECT branch, attempt FROM airflow_ft_ledger WHERE number = 1 ORDER BY branch"
    assert world.sql(standing) == [("", 5), ("0001", 2), ("0002", 5), ("0003", 2)]
    assert world.sql("SELECT id FROM orders ORDER BY id") == [(i,) for i in range(1, 11)]


@pytest.mark.parametrize("kind", ["lost request", "lost reply"])
@pytest.mark.parametrize("statement", [b"LOCK IN SHARE MODE", b"INSERT INTO", THE_ROWS, b"\x03COMMIT"])
def test_markers_settle_a_lost_request_or_reply_in_a_redelivery(world: MySqlWorld, kind: str, statement: bytes) -> None:
    plan = world.plan(orders=orders(1, 10))
    notes = world.participant(plan).prepare(plan, world.fence())
    for name in prepared(world):
        world.server.sql(f"XA ROLLBACK {name}")
    with Proxy(world.server.port) as proxy:
        world.port, world.extra = proxy.port, {"ssl_mode": "DISABLED"}
        proxy.cut(kind, world.request(statement))
        proof = commit(world, plan, notes, 2)
        assert proxy.cuts == 1
    assert proof.counts == {"orders": 10}
    assert world.sql("SELECT id FROM orders ORDER BY id") == [(i,) for i in range(1, 11)]


def test_a_branch_that_somebody_committed_is_not_delivered_again(world: MySqlWorld) -> None:
    plan = world.plan(orders=orders(1, 10))
    notes = world.participant(plan).prepare(plan, world.fence())
    world.server.sql(f"XA COMMIT {prepared(world)[0]}")
    proof = commit(world, plan, notes, 2)
    assert "redelivered" not in proof.detail
    assert world.sql("SELECT id FROM orders ORDER BY id") == [(i,) for i in range(1, 11)]


def test_a_commit_rolls_back_what_the_decision_did_not_count(world: MySqlWorld) -> None:
    """A stray prepared branch of an attempt that never voted would lock out others for ever."""
    plan = world.plan(orders=orders(1, 10))
    notes = world.participant(plan).prepare(plan, world.fence(1, 1))
    stray = prepared(world)[0].replace("1.1.0001", "1.2.0009")
    with world.server.connect(world.database) as other, other.cursor() as cursor:
        cursor.execute(f"XA START {stray}")
        cursor.execute("INSERT INTO orders VALUES (99, 'stray')")
        cursor.execute(f"XA END {stray}")
        cursor.execute(f"XA PREPARE {stray}")
    commit(world, plan, notes, 3)
    assert prepared(world) == [] and world.count() == 10


def test_a_settled_branch_that_reappears_is_committed_again(world: MySqlWorld) -> None:
    """As a server does that forgets an acknowledged XA COMMIT (or is restored): the number is COMPLETED long ago."""
    plan = world.plan(orders=orders(1, 10))
    notes = world.participant(plan).prepare(plan, world.fence(1, 1))
    name = prepared(world)[0]
    commit(world, plan, notes, 2)
    with world.server.connect(world.database) as other, other.cursor() as cursor:
        cursor.execute("DELETE FROM airflow_ft_ledger WHERE branch = '0001'")
        cursor.execute("DELETE FROM orders WHERE id <= 3")
        cursor.execute(f"XA START {name}")
        cursor.execute("INSERT INTO orders VALUES (1, 'order 1'), (2, 'order 2'), (3, 'order 3')")
        cursor.execute(f"XA END {name}")
        cursor.execute(f"XA PREPARE {name}")
    world.predecessor = 1
    following = world.plan(orders=orders(11, 10))
    world.participant(following).prepare(following, world.fence(1, 3))
    assert world.sql("SELECT id FROM orders ORDER BY id") == [(i,) for i in range(1, 11)]


def test_a_forgotten_number_leaves_no_branch(world: MySqlWorld) -> None:
    """The server was restored as it was before it committed 2, and a person has adopted it; 3 waits for its turn."""
    world.deliver(world.plan(orders=orders(1, 10)))
    forgotten = world.plan(orders=orders(11, 10))
    world.participant(forgotten).prepare(forgotten, world.fence(1, 2))
    world.predecessor = 2
    plan = world.plan(orders=orders(21, 10))
    participant = world.participant(plan)
    notes = participant.prepare(plan, world.fence(1, 3))
    participant.adopt(world.fence(2, 0), 2)
    commit(world, plan, notes, 4, voted=3, epoch=2)
    assert prepared(world) == []
    assert world.sql("SELECT id FROM orders ORDER BY id") == [(i,) for i in (*range(1, 11), *range(21, 31))]
    participant.forget(world.fence(2, 0), 2)
    assert {row[0] for row in world.markers()} == {3}


def test_a_forgotten_numbers_branches_do_not_block_its_rows(any_mysql_database: Database, tmp_path: Path) -> None:
    world = make_world(any_mysql_database, tmp_path, orders="id BIGINT PRIMARY KEY, name VARCHAR(100)")
    world.use("xa", branches=3)
    world.limits = replace(world.limits, tries=2)
    world.deliver(world.plan(orders=orders(1, 10)))
    forgotten = world.plan(orders=orders(11, 10))
    world.participant(forgotten).prepare(forgotten, world.fence(1, 2))
    world.predecessor = 2
    plan = world.plan(orders=orders(11, 10))
    participant = world.participant(plan)
    participant.adopt(world.fence(2, 0), 2)
    notes = participant.prepare(plan, world.fence(2, 3))
    commit(world, plan, notes, 4, voted=3, epoch=2)
    assert prepared(world) == [] and world.count() == 20


def test_a_former_owners_marks_go_while_own_rows_are_prepared(world: MySqlWorld) -> None:
    world.deliver(world.plan(orders=orders(1, 10)))
    leave_marker(world, 3, "aborted")
    plan = world.plan(orders=orders(11, 10))
    notes = world.participant(plan).prepare(plan, world.fence(1, 2))
    world.participant(plan).end_orphans(world.fence(2, 0), None, make_way=True)
    assert {row[0] for row in world.markers()} == {1}
    commit(world, plan, notes, 3, voted=2, epoch=2)
    assert world.count() == 20


@pytest.mark.parametrize("owner", [INSTALLATION, "another decision log"])
def test_a_late_adoption_leaves_branches_to_its_successor(world: MySqlWorld, owner: str) -> None:
    """Two persons adopt at the same moment, or a second decision log takes the sink over meanwhile."""
    world.installation = "former owner"
    world.deliver(world.plan(orders=orders(1, 10)))
    leave_marker(world, 9, "aborted")
    plan = world.plan(orders=orders(11, 10))
    world.participant(plan).prepare(plan, world.fence(1, 2))
    world.installation = INSTALLATION
    world.sql(f"UPDATE airflow_ft_head SET installation = '{owner}', epoch = 3")
    before = prepared(world), world.markers()
    kind, code = (FencedError, "fenced") if owner == INSTALLATION else (ForeignOwnerError, "foreign_owner")
    with raises(kind, code):
        world.participant(plan).end_orphans(world.fence(2, 0), PreparedEnding.COMMIT, make_way=True)
    assert (prepared(world), world.markers()) == before and len(before[0]) == 3


# --- preflight -------------------------------------------------------------------------------------------------------


def test_the_preflight_leaves_nothing(world: MySqlWorld) -> None:
    plan = world.plan(orders=orders(1, 10))
    notes = world.participant(plan).prepare(plan, world.fence())
    assert next(iter(notes["xa"].values())) > 0
    assert world.sql("SELECT COUNT(*) FROM airflow_ft_ledger WHERE number = 0") == [(0,)]


def examined(world: MySqlWorld, plan: Any, installation: str | None) -> list[Check]:
    rows = [open_wal().open(plan.segments[0])]
    return examine("orders", plan.participants[0], world.connection(), rows, installation)


def test_the_doctor_prepares_a_branch_too_and_leaves_nothing(world: MySqlWorld) -> None:
    plan = world.plan(orders=orders(1, 10))
    world.participant(plan).prepare(plan, world.fence())
    before = prepared(world), world.sql("SELECT * FROM airflow_ft_ledger"), world.sql("SELECT * FROM airflow_ft_head")
    checks = examined(world, plan, world.installation)
    assert all(check.verdict is Verdict.OK for check in checks), checks
    [check] = [check for check in checks if check.name == "prepared branches"]
    assert re.search(r"rolled it back, in [\d.]+ ms$", check.text)
    after = prepared(world), world.sql("SELECT * FROM airflow_ft_ledger"), world.sql("SELECT * FROM airflow_ft_head")
    assert after == before and len(prepared(world)) == 3


@pytest.mark.parametrize("ended", [1, 99])
def test_the_doctor_retries_if_its_prepared_branch_vanishes(
    world: MySqlWorld, monkeypatch: pytest.MonkeyPatch, ended: int
) -> None:
    """A `prepare` at work rolls back whatever older ranks have left, the doctor's branch among it."""
    plan = world.plan(orders=orders(1, 10))
    world.participant(plan).prepare(plan, world.fence())
    theirs = prepared(world)
    rounds: list[int] = []

    def late(session: Session) -> Any:
        mine = [name for name in prepared(world) if name not in theirs]
        if mine:
            rounds.append(len(mine))
            if len(rounds) <= ended:
                world.server.sql(f"XA ROLLBACK {mine[0]}")
        return recover(session)

    monkeypatch.setattr(xa_preflight, "recover", late)
    [check] = [check for check in examined(world, plan, world.installation) if check.name == "prepared branches"]
    assert (check.verdict, len(rounds)) == ((Verdict.OK, 2) if ended == 1 else (Verdict.PROBLEM, 3))
    assert prepared(world) == theirs


def test_prepare_rolls_back_the_branch_that_a_dead_doctor_left(
    world: MySqlWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = world.plan(orders=orders(1, 10))
    world.participant(plan).prepare(plan, world.fence())
    monkeypatch.setattr(xa_preflight, "_end_from_here", lambda *_: True)  # it dies there
    examined(world, plan, world.installation)
    assert len(prepared(world)) == 4
    monkeypatch.undo()
    notes = world.participant(plan).prepare(plan, world.fence(1, 2))
    assert len(prepared(world)) == len(notes["branches"])


def test_without_the_decision_log_the_doctor_prepares_nothing(world: MySqlWorld) -> None:
    plan = world.plan(orders=orders(1, 10))
    world.participant(plan).prepare(plan, world.fence())
    [check] = [check for check in examined(world, plan, None) if check.name == "prepared branches"]
    assert check.verdict is Verdict.OK and "the decision log" in check.text


def test_branches_of_other_programs_are_refused_only_on_mysql(world: MySqlWorld) -> None:
    plan = world.plan(orders=orders(1, 10))
    with world.server.connect(world.database) as other, other.cursor() as cursor:
        cursor.execute("XA START 'theirs','1',4711")
        cursor.execute("INSERT INTO orders VALUES (99, 'theirs')")
        cursor.execute("XA END 'theirs','1',4711")
        cursor.execute("XA PREPARE 'theirs','1',4711")
    try:
        if world.server.name == "mysql":
            with raises(SinkAccessError, "prepared_foreign", format_ids={4711: 1}):
                world.participant(plan).prepare(plan, world.fence())
        else:
            world.participant(plan).prepare(plan, world.fence())
    finally:
        world.server.sql("XA ROLLBACK 'theirs','1',4711")


def test_a_user_without_the_right_to_list_branches_is_refused(world: MySqlWorld) -> None:
    name = f"u{world.database[-8:]}"
    world.server.sql(f"CREATE USER '{name}'@'%' IDENTIFIED BY 'planted-Secret-1'")
    try:
        world.server.sql(f"GRANT SELECT, INSERT, UPDATE, DELETE, CREATE ON `{world.database}`.* TO '{name}'@'%'")
        plan = world.plan(orders=orders(1, 10))
        participant = world.participant(plan, login=name, password="planted-Secret-1")
        if world.server.name == "mysql":
            with raises(SinkAccessError, "privilege_missing", grant="GRANT XA_RECOVER_ADMIN ON *.*") as refused:
                participant.prepare(plan, world.fence())
            assert "planted" not in repr(refused.error)
            world.server.sql(f"GRANT XA_RECOVER_ADMIN ON *.* TO '{name}'@'%'")
        notes = participant.prepare(plan, world.fence())
        participant.commit(plan, world.fence(1, 2), vote_for(notes))
        assert world.count() == 10
    finally:
        world.server.sql(f"DROP USER '{name}'@'%'")
