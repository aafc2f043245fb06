"""The decision log is deleted while something is half done, and a new one takes the sinks over (`airflow ft adopt`)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from airflow_ft.protocol.adoption import adopt, look
from airflow_ft.protocol.errors import (
    ConfigurationError,
    FencedError,
    ForeignOwnerError,
    StateConflictError,
    StoreBehindSinkError,
)
from airflow_ft.protocol.model import AfterAbort, CheckpointState, RunKey
from airflow_ft.protocol.orphans import OrphanKind, PreparedEnding
from airflow_ft.protocol.pipelines import HaltReason, PipelineStatus
from airflow_ft.protocol.resolution import Resolver
from airflow_ft.sinks.base import slices
from airflow_ft.sinks.mysql import orphans
from airflow_ft.sinks.mysql.server import ServerParticipant
from airflow_ft.sinks.mysql.spec import MySqlSink
from airflow_ft.sinks.mysql.xa import XaParticipant
from airflow_ft.store import open_store
from tests.integration.real_world import RealWorld, expected
from tests.integration.test_mysql_xa import prepared
from tests.raising import raises
from tools.servers import Database

S = CheckpointState
COMMIT, ROLLBACK = PreparedEnding.COMMIT, PreparedEnding.ROLLBACK


@pytest.fixture(autouse=True)
def small_branches(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that few rows are divided too."""
    monkeypatch.setattr(slices, "MIN_ROWS", 2)


@dataclass
class LosingWorld(RealWorld):
    """Its log can be lost: the next one begins in another file, and stages in another folder."""

    strategy: str = "local"
    logs: list[Any] = field(default_factory=list)

    @property
    def sinks(self) -> dict[str, Any]:
        branches = {"branches": 3} if self.strategy == "xa" else {}
        return {"rows": MySqlSink(table="orders", conn_id="shop", strategy=self.strategy, **branches)}

    def lose_the_log(self) -> None:
        self.store.close()
        folder = self.root.parent / f"log-{len(self.logs)}"
        self.store = open_store(f"sqlite:///{folder}.db")
        self.logs.append(self.store)
        self.root = Path(f"{folder}-wal")
        self.run = RunKey("dag", f"run-of-log-{len(self.logs)}")

    def sql(self, statement: str) -> list[tuple[Any, ...]]:
        return self.server.sql(statement, self.database.name)

    def halted_by_the_sink(self) -> None:
        """The new log's first run meets what the old one has left."""
        self.stage(1)
        with raises(ForeignOwnerError, "foreign_owner") as refused:
            self.prepare()
        assert "`airflow ft adopt" in refused.error.remedy

    def adopt(self, ending: PreparedEnding | None = None, *, accept_partial: bool = False) -> Any:
        return adopt(self.store, self.pipeline, self.participants, "ada", ending=ending, accept_partial=accept_partial)


@pytest.fixture
def world(tmp_path: Path, any_mysql_database: Database) -> Iterator[LosingWorld]:
    any_mysql_database.sql("CREATE TABLE orders (id BIGINT, name VARCHAR(100)) ENGINE=InnoDB")
    world = LosingWorld(open_store(f"sqlite:///{tmp_path}/ft.db"), tmp_path / "wal", any_mysql_database)
    yield world
    world.server.end_prepared()
    world.store.close()


class Died(Exception):
    """The process ends here."""


def deliver_one_branch_of(world: LosingWorld, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commit of a checkpoint dies when the first of its branches is visible, and the server loses the others."""
    end = XaParticipant._end_branch

    def one_only(*args: Any) -> Any:
        end(*args)
        raise Died

    world.stage(1)
    world.prepare()
    with monkeypatch.context() as patched:
        patched.setattr(XaParticipant, "_end_branch", one_only)
        with pytest.raises(Died):
            world.commit("shop")
    world.server.end_prepared()
    assert world.store.checkpoint(world.pipeline, number).state is S.COMMITTING


def test_a_partly_visible_checkpoint_is_adopted_only_on_request(
    world: LosingWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.strategy = "xa"
    world.stage(1)
    world.deliver()
    deliver_one_branch_of(world, 2, monkeypatch)
    there = world.ids()
    assert len(there) == 26
    world.lose_the_log()
    world.halted_by_the_sink()

    estate = look(world.store, world.pipeline, world.participants)["shop"]
    assert estate.number == 2 and estate.head is not None and estate.head.number == 1
    [orphan] = estate.orphans
    assert (orphan.number, orphan.branch, orphan.kind) == (2, "0001", OrphanKind.COMMITTED)
    assert "6 rows into rows" in orphan.text

    with pytest.raises(ConfigurationError) as refused:
        world.adopt()
    assert "--accept-partial" in refused.value.remedy
    assert world.store.pipeline(world.pipeline).status is PipelineStatus.HALTED
    assert world.sql("SELECT last_delivered FROM airflow_ft_head") == [(1,)], "nothing was changed"

    world.adopt(accept_partial=True)
    world.deliver()
    newest = world.store.latest_confirmed(world.pipeline)
    assert newest is not None and newest.number == 3, "its number is not given out again"
    assert sorted(world.ids()) == sorted(there + expected([1])), "rows of the new log's segment, beside what was there"


def test_one_adoption_is_enough_where_a_tombstone_was_left(world: LosingWorld) -> None:
    world.stage(1)
    world.deliver()
    world.stage(1)
    world.prepare()
    resolver(world).abort(2, AfterAbort.CARRIED)
    assert world.sql("SELECT kind FROM airflow_ft_ledger ORDER BY number") == [("committed",), ("aborted",)]
    world.lose_the_log()
    world.halted_by_the_sink()
    world.adopt()
    world.deliver()
    assert world.ids() == sorted([*expected([1]), *expected([1])])


def prepare_and_lose(world: LosingWorld) -> list[str]:
    world.strategy = "xa"
    world.stage(1)
    world.deliver()
    world.stage(1)
    world.prepare()
    world.lose_the_log()
    world.halted_by_the_sink()
    left = prepared(world)  # type: ignore[arg-type]
    assert len(left) == 3
    return left


@pytest.mark.parametrize("strategy", ["local", "xa"])
def test_a_lost_head_is_adopted_like_one_that_is_there(world: LosingWorld, strategy: str) -> None:
    world.strategy = strategy
    for _ in range(2):
        world.stage(1)
        world.deliver()
    world.stage(1)
    world.prepare()
    world.sql("DELETE FROM airflow_ft_head")
    world.lose_the_log()
    world.stage(1)
    with raises(StoreBehindSinkError, "ledger_lost"):
        world.prepare()
    estate = look(world.store, world.pipeline, world.participants)["shop"]
    assert estate.head is not None and (estate.head.number, estate.head.lost) == (2, True)
    assert [r.number for r in estate.orphans] == ([3, 3, 3] if strategy == "xa" else []), "and nothing of 1 and 2"
    world.adopt(ROLLBACK)
    world.deliver()
    assert world.ids() == sorted([*expected([1, 2]), *expected([1])])
    assert prepared(world) == []  # type: ignore[arg-type]


@pytest.mark.parametrize("strategy", ["local", "xa"])
def test_an_older_head_is_adopted_with_its_markers(world: LosingWorld, strategy: str) -> None:
    world.strategy = strategy
    for _ in range(2):
        world.stage(1)
        world.deliver()
    world.sql("UPDATE airflow_ft_head SET last_delivered = 1")
    world.lose_the_log()
    world.halted_by_the_sink()
    estate = look(world.store, world.pipeline, world.participants)["shop"]
    assert (estate.number, estate.orphans) == (2, ())
    world.adopt()
    world.deliver()
    assert world.ids() == sorted([*expected([1, 2]), *expected([1])])


@pytest.mark.parametrize("ending", [COMMIT, ROLLBACK])
def test_prepared_branches_of_a_lost_log_end_as_a_person_says(world: LosingWorld, ending: PreparedEnding) -> None:
    left = prepare_and_lose(world)
    found = look(world.store, world.pipeline, world.participants)["shop"].orphans
    assert [(r.number, r.branch, r.kind) for r in found] == [(2, f"000{i}", OrphanKind.PREPARED) for i in (1, 2, 3)]
    assert sorted(r.commit for r in found) == [f"XA COMMIT {name}" for name in left]
    assert sorted(r.roll_back for r in found) == [f"XA ROLLBACK {name}" for name in left]

    with pytest.raises(ConfigurationError) as refused:
        world.adopt()
    text = f"{refused.value}"
    assert "--prepared commit" in text and "--prepared rollback" in text
    assert prepared(world) == left  # type: ignore[arg-type]

    if ending is COMMIT:
        with pytest.raises(ConfigurationError) as refused:
            world.adopt(ending)
        assert "checkpoint 2" in refused.value.headline
        assert prepared(world) == left  # type: ignore[arg-type]
    world.adopt(ending, accept_partial=ending is COMMIT)
    assert prepared(world) == []  # type: ignore[arg-type]
    old = expected([1, 2]) if ending is COMMIT else expected([1])
    assert world.ids() == old
    world.deliver()
    assert world.ids() == sorted([*old, *expected([1])])


@pytest.mark.parametrize("dies_at", range(1, 9))
def test_an_adoption_that_dies_at_any_call_is_repeated(
    world: LosingWorld, monkeypatch: pytest.MonkeyPatch, dies_at: int
) -> None:
    """Before and after each call that changes the log or a sink."""
    prepare_and_lose(world)
    calls = [0]

    def mortal(original: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            calls[0] += 1
            if calls[0] == dies_at:
                raise Died
            result = original(*args, **kwargs)
            calls[0] += 1
            if calls[0] == dies_at:
                raise Died
            return result

        return call

    with monkeypatch.context() as patched:
        for owner, name in (
            (type(world.store), "adopt"),
            (ServerParticipant, "end_orphans"),
            (ServerParticipant, "adopt"),
            (type(world.store), "resume"),
        ):
            patched.setattr(owner, name, mortal(getattr(owner, name)))
        with pytest.raises(Died):
            world.adopt(ROLLBACK)
    if world.store.pipeline(world.pipeline).status is PipelineStatus.HALTED:
        world.adopt(ROLLBACK)
    world.deliver()
    assert world.ids() == sorted([*expected([1]), *expected([1])])
    assert prepared(world) == []  # type: ignore[arg-type]


def test_an_adoption_that_dies_between_two_branches_is_repeated(
    world: LosingWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare_and_lose(world)
    original, ended = orphans.end_branch, []

    def once(*args: Any, **kwargs: Any) -> Any:
        if ended:
            raise Died
        ended.append(args)
        return original(*args, **kwargs)

    with monkeypatch.context() as patched:
        patched.setattr(orphans, "end_branch", once)
        with pytest.raises(Died):
            world.adopt(COMMIT, accept_partial=True)
    assert len(prepared(world)) == 2  # type: ignore[arg-type]
    # One is committed by now, so that the rest goes with it.
    world.adopt(COMMIT)
    world.deliver()
    assert world.ids() == sorted([*expected([1, 2]), *expected([1])])


def as_adopted_before(world: LosingWorld) -> None:
    """What `adopt` did when it looked at heads alone: it went on with the very number that was left half done."""
    before = world.store.pipeline(world.pipeline).epoch
    epoch = world.store.adopt(world.pipeline, 9, {"shop": 1}, "an older version", expected=before)
    world.sql(f"UPDATE airflow_ft_head SET installation = '{world.store.installation}', epoch = {epoch}, attempt = 0")
    world.store.resume(world.pipeline, "an older version")


def test_blocking_branches_are_named_at_once_and_ended_by_adopt(world: LosingWorld) -> None:
    """Not a lock time-out, try after try."""
    prepare_and_lose(world)
    as_adopted_before(world)
    with raises(ForeignOwnerError, "prepared_foreign") as refused:
        world.deliver()
    assert "3 prepared branches" in refused.error.headline and "checkpoint 2" in refused.error.headline
    assert world.store.pipeline(world.pipeline).halt_reason is HaltReason.FOREIGN_OWNER
    halted = world.store.pipeline(world.pipeline).halt.message
    assert not any(name.split("'")[3].rsplit(".", 1)[1] in halted for name in prepared(world))  # type: ignore[arg-type]
    world.adopt(ROLLBACK)
    world.deliver()
    assert world.ids() == sorted([*expected([1]), *expected([1])])


def test_of_two_adoptions_at_the_same_moment_one_is_refused(
    world: LosingWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare_and_lose(world)
    as_adopted_before(world)
    with raises(ForeignOwnerError, "prepared_foreign"):
        world.deliver()
    end = ServerParticipant.end_orphans

    def late(*args: Any, **kwargs: Any) -> None:
        monkeypatch.setattr(ServerParticipant, "end_orphans", end)
        world.adopt(ROLLBACK)
        end(*args, **kwargs)

    monkeypatch.setattr(ServerParticipant, "end_orphans", late)
    with raises(FencedError, "fenced"):
        world.adopt(ROLLBACK)
    world.deliver()
    assert world.ids() == sorted([*expected([1]), *expected([1])])


@pytest.mark.parametrize("ended", range(3))
def test_two_adoptions_end_all_branches_alike(world: LosingWorld, monkeypatch: pytest.MonkeyPatch, ended: int) -> None:
    """The second one comes when the first one has ended some."""
    prepare_and_lose(world)
    end, calls = orphans.end_branch, [0]

    def interrupted(*args: Any, **kwargs: Any) -> Any:
        if calls[0] == ended:
            with raises(ConfigurationError, "ending_differs", ending="commit"):
                world.adopt(ROLLBACK, accept_partial=True)
        calls[0] += 1
        return end(*args, **kwargs)

    monkeypatch.setattr(orphans, "end_branch", interrupted)
    world.adopt(COMMIT, accept_partial=True)
    assert (calls[0], world.ids()) == (3, expected([1, 2]))


def test_what_two_logs_have_delivered_is_not_adopted_over(world: LosingWorld) -> None:
    """The first log is found again, with a checkpoint under way, after a second one took the sinks over."""
    world.stage(1)
    world.deliver()
    world.stage(1)
    world.prepare()
    url, root, run = world.store.url, world.root, world.run
    world.lose_the_log()
    world.halted_by_the_sink()
    world.adopt()
    world.deliver()
    world.store.close()
    world.store, world.root, world.run = open_store(url), root, run
    with pytest.raises(ForeignOwnerError):
        world.commit("shop")
    with pytest.raises(StateConflictError) as refused:
        world.adopt()
    assert "PREPARED" in refused.value.headline and "shop" in refused.value.headline


def resolver(world: RealWorld) -> Resolver:
    from airflow_ft.protocol.lease import Worker

    return Resolver(world.store, world.pipeline, world.participants, "a test by ada", Worker(), 0.1)
