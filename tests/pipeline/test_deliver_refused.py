"""Rows that a sink refuses are given again. Published rows of other positions are delivered, and never given again."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

from airflow_ft.pipeline import settings
from airflow_ft.pipeline.actions import pipelines
from airflow_ft.pipeline.actions.actor import Actor
from airflow_ft.pipeline.connections import server_connections
from airflow_ft.pipeline.decision_log import participant_factory
from airflow_ft.protocol import settling as protocol_settling
from airflow_ft.protocol.coordinator import coordinating
from airflow_ft.protocol.doctor import Verdict, examine_state
from airflow_ft.protocol.errors import ConfigurationError, DeclinedError, SinkUnavailableError, StorageUnavailableError
from airflow_ft.protocol.failure import with_fix
from airflow_ft.protocol.lease import Worker
from airflow_ft.protocol.model import AfterAbort, Checkpoint, Fence, Plan
from airflow_ft.protocol.overview import Condition
from airflow_ft.protocol.position import Position
from airflow_ft.protocol.problems import problems
from airflow_ft.protocol.reasons import AbortReason, Reason
from airflow_ft.protocol.recovery import give_up_undecided
from airflow_ft.protocol.settling import Settling
from airflow_ft.protocol.sweep import health
from airflow_ft.sinks.sqlite.participant import SqliteParticipant
from airflow_ft.store import open_store
from airflow_ft.store.decision_log import DecisionLog
from airflow_ft.wal.reader import ParquetWal
from tests.pipeline.test_deliver import Shop, shop
from tests.pipeline.test_deliver_killed import killed
from tests.raising import raises

__all__ = ["shop"]

KINDS = [
    ["day1", "day2", "day3"],
    [["a"], ["b"], ["c"]],
    [1, 2, 3],
    [{"snapshot": number} for number in (1, 2, 3)],
    [{"start": f"2026-11-0{day}T00:00:00Z", "end": f"2026-11-0{day + 1}T00:00:00Z"} for day in (1, 2, 3)],
]
BAD = -1


def rows(number: int) -> pa.Table:
    return pa.table({"id": pa.array([number], pa.int64()), "what": ["x"]})


@pytest.fixture(autouse=True)
def picky(shop: Shop) -> None:
    with closing(sqlite3.connect(shop.folder / "shop.db")) as db:
        db.execute("CREATE TABLE orders (id INTEGER NOT NULL CHECK (id > 0), what TEXT)")


@contextmanager
def away() -> Iterator[None]:
    """The sink's server does not answer."""

    def refuse(*_: Any, **__: Any) -> None:
        raise SinkUnavailableError("the server is down.", code="server_unreachable", remedy="Start it.")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SqliteParticipant, "prepare", refuse)
        yield


@contextmanager
def checked() -> Iterator[None]:
    """The sink refuses bad rows before it votes."""
    prepare = SqliteParticipant.prepare

    def check(sink: SqliteParticipant, plan: Plan, fence: Fence) -> Any:
        for segment in plan.segments:
            reader = ParquetWal().open(segment)
            for file in reader.files("orders"):
                if any(BAD in batch["id"].to_pylist() for batch in reader.batches("orders", file)):
                    raise DeclinedError("no.", code="row_refused", remedy="Correct the rows.", checkpoint=plan.number)
        return prepare(sink, plan, fence)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SqliteParticipant, "prepare", check)
        yield


REFUSALS = pytest.mark.parametrize("refusing", [checked, nullcontext], ids=["in prepare", "in commit"])


def publish(shop: Shop, given: pa.Table, position: Any) -> None:
    with away(), raises(SinkUnavailableError, "server_unreachable") as refused:
        shop.deliver(given, position)
    assert "The rows are kept" in refused.value.remedy


@REFUSALS
@pytest.mark.parametrize("positions", KINDS, ids=str)
def test_a_refused_position_drops_no_rows_of_others(shop: Shop, positions: list[Any], refusing: Any) -> None:
    first, second, third = positions
    publish(shop, rows(BAD), first)
    publish(shop, rows(2), second)
    with refusing(), raises(DeclinedError, "row_refused", checkpoint=1, positions=[Position.of(first).value]):
        shop.deliver(rows(3), third)
    assert shop.rows() == []
    for later in (second, third):
        with raises(ConfigurationError, "position_skipped"):
            shop.deliver(rows(9), later)
    found = shop.deliver(rows(1), first)
    assert (found["checkpoint"], found["rows"], found["recovered_rows"], found["repeated"]) == (4, 3, 2, False)
    for later, number in ((second, 5), (third, 6)):
        again = shop.deliver(shop.folder / "gone", later)
        assert (again["checkpoint"], again["repeated"]) == (number, True)
    assert [id for id, _ in shop.rows()] == [1, 2, 3]


@REFUSALS
@pytest.mark.parametrize("positions", [KINDS[0], KINDS[-1]], ids=str)
def test_a_dead_calls_rows_survive_a_later_refusal(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, positions: list[Any], refusing: Any
) -> None:
    monkeypatch.setattr(settings, "lease_seconds", lambda: 0.3)
    first, second, third = positions
    killed(shop, first, DecisionLog, "publish", rows(1))
    with refusing(), raises(DeclinedError, "row_refused", checkpoint=2, positions=[Position.of(second).value]):
        shop.deliver(rows(BAD), second)
    again = shop.deliver(rows(9), first)
    assert (again["checkpoint"], again["repeated"]) == (1, True)
    with raises(ConfigurationError, "position_skipped", skipped=Position.of(second).value):
        shop.deliver(rows(3), third)
    assert not shop.deliver(rows(2), second)["repeated"]
    assert not shop.deliver(rows(3), third)["repeated"]
    assert [id for id, _ in shop.rows()] == [1, 2, 3]


@REFUSALS
def test_a_refusal_of_several_positions_is_tried_for_each(shop: Shop, refusing: Any) -> None:
    """Another sink: the plans give way, and the next number carries the rows of all."""
    publish(shop, rows(1), 1)
    publish(shop, rows(BAD), 2)
    publish(shop, rows(3), 3)

    def deliver(number: int, position: int) -> dict[str, Any]:
        return shop.deliver(dict.fromkeys(("orders", "large"), rows(number)), position, "orders", "large")

    with closing(sqlite3.connect(shop.folder / "shop.db")) as db:
        db.execute("CREATE TABLE large (id INTEGER, what TEXT)")
    with refusing(), raises(DeclinedError, "row_refused", checkpoint=4, positions=[1, 2, 3, 4]):
        deliver(4, 4)
    with refusing(), raises(DeclinedError, "row_refused", checkpoint=6, positions=[2]):
        deliver(9, 3)
    assert shop.rows() == [(1, "x")]
    assert not deliver(2, 2)["repeated"]
    assert [id for id, _ in shop.rows()] == [1, 2, 3, 4]
    assert [id for id, _ in shop.rows("large")] == [2, 4]


def test_a_position_that_is_refused_twice_stays_first(shop: Shop) -> None:
    publish(shop, rows(BAD), 1)
    publish(shop, rows(BAD), 2)
    for _ in range(2):
        with checked(), raises(DeclinedError, "row_refused", positions=[1]):
            shop.deliver(rows(BAD), 1)
        with raises(ConfigurationError, "position_skipped", skipped=1):
            shop.deliver(rows(2), 2)
    with checked(), raises(DeclinedError, "row_refused", positions=[2]):
        shop.deliver(rows(1), 1)
    with raises(ConfigurationError, "position_skipped", skipped=2):
        shop.deliver(rows(3), 3)
    shop.deliver(rows(2), 2)
    assert [id for id, _ in shop.rows()] == [1, 2]


@pytest.mark.slow
@pytest.mark.parametrize("step", ["trigger", "publish"])
@pytest.mark.parametrize("times", [1, 2, 3])
def test_a_call_dies_while_it_publishes_kept_rows(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, step: str, times: int
) -> None:
    monkeypatch.setattr(settings, "lease_seconds", lambda: 0.3)
    publish(shop, rows(BAD), 1)
    publish(shop, rows(2), 2)
    with pytest.raises(DeclinedError):
        shop.deliver(rows(3), 3)
    killed(shop, 1, DecisionLog, step, rows(1), times)
    if (step, times) == ("trigger", 1):
        shop.deliver(rows(1), 1)
    shop.deliver(rows(4), 4)
    assert shop.deliver(shop.folder / "gone", 2)["repeated"]
    assert [id for id, _ in shop.rows()] == [1, 2, 3, 4]


def test_a_gate_waits_for_the_refused_interval(shop: Shop) -> None:
    first, second, _ = KINDS[-1]
    with checked(), raises(DeclinedError, "row_refused", positions=[Position.of(first).value]):
        publish(shop, rows(BAD), first)
        shop.deliver(rows(2), second)
    with closing(open_store(shop.store)) as store:
        assert store.read_through("orders", datetime(2026, 11, 1, tzinfo=UTC)) is None
    shop.deliver(rows(1), first)
    with closing(open_store(shop.store)) as store:
        assert store.read_through("orders", datetime(2026, 11, 1, tzinfo=UTC)) == 3
        assert store.read_as_of("orders", 4) == datetime(2026, 11, 3, tzinfo=UTC)


def test_what_a_person_rewinds_is_given_again(shop: Shop) -> None:
    """Their author wants to change the rows."""
    for number in (1, 2):
        publish(shop, rows(8), number)
    participants = participant_factory(server_connections)
    with (
        closing(open_store(shop.store)) as store,
        coordinating(store, "orders", participants, Worker(), "a test", 0.0) as (coordinator, _),
    ):
        assert give_up_undecided(store, "orders", coordinator, "a person")
    for number in (1, 2):
        with raises(ConfigurationError, "position_skipped", skipped=number):
            shop.deliver(rows(9), number + 1)
        assert not shop.deliver(rows(number), number)["repeated"]
    assert [id for id, _ in shop.rows()] == [1, 2]


def test_rows_whose_files_are_gone_are_given_again(shop: Shop) -> None:
    publish(shop, rows(BAD), 1)
    publish(shop, rows(8), 2)
    with pytest.raises(DeclinedError):
        shop.deliver(rows(3), 3)
    with closing(open_store(shop.store)) as store:
        kept = store.checkpoint("orders", 2).segment
    assert kept is not None
    shutil.rmtree(kept.location.removeprefix("file://"))
    shop.deliver(rows(1), 1)
    with raises(ConfigurationError, "position_skipped", skipped=2):
        shop.deliver(rows(3), 3)
    assert not shop.deliver(rows(2), 2)["repeated"]
    assert [id for id, _ in shop.rows()] == [1, 2, 3]


@pytest.mark.parametrize("case", ["refused", "dead"])
def test_a_person_discards_kept_rows(shop: Shop, monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    monkeypatch.setattr(settings, "lease_seconds", lambda: 0.3)
    publish(shop, rows(BAD), 1)
    publish(shop, rows(8), 2)
    with pytest.raises(DeclinedError):
        shop.deliver(rows(8), 3)
    given = [1, 2, 3]
    if case == "dead":  # positions 1 and 2 are published again, position 3 is still kept
        killed(shop, 1, DecisionLog, "publish", rows(8), 2)
    assert len(rewind(shop)) == 1
    with closing(open_store(shop.store)) as store:
        assert store.checkpoint("orders", 1).reason is AbortReason.DECLINED, "its rows were refused, and are not kept"
    for number in given:
        with raises(ConfigurationError, "position_skipped", skipped=number):
            shop.deliver(rows(9), number + 1)
        assert not shop.deliver(rows(number), number)["repeated"]
    assert [id for id, _ in shop.rows()] == given


def test_kept_rows_are_shown_as_undelivered(shop: Shop) -> None:
    publish(shop, rows(BAD), 1)
    publish(shop, rows(8), 2)
    publish(shop, rows(8), 3)
    patience = timedelta(days=1)
    with pytest.raises(DeclinedError):
        shop.deliver(rows(8), 4)
    with closing(open_store(shop.store)) as store:
        left = store.left_positions("orders")
        assert left is not None and (left.first.number, left.count) == (1, 4)
        found = health(store, "orders", timedelta(0))
        assert found.undelivered > timedelta(0) and found.waiting == 4
        assert found.needs == with_fix(left.what, left.remedy)
        assert health(store, "orders", patience).needs == ""
        [problem] = problems(store, patience=timedelta(0), conditions=[])
        assert (problem.condition, problem.remedy) == (Condition.WAITING, left.remedy)
        [check] = [each for each in examine_state(store, "orders") if each.name == "positions"]
        assert (check.verdict, check.remedy) == (Verdict.WARNING, left.remedy)
    shop.deliver(rows(1), 1)
    with closing(open_store(shop.store)) as store:
        assert store.left_positions("orders") is None
        assert health(store, "orders", timedelta(0)).waiting == 0
        assert not [each for each in examine_state(store, "orders") if each.name == "positions"]


def rewind(shop: Shop) -> list[str]:
    """Run `airflow ft rewind`; return what it says."""
    said: list[str] = []
    connections, participants = server_connections, participant_factory(server_connections)
    by = Actor("ada", "ada", said.append, lambda _: None, connections, participants, lambda _: True, Worker(), 0.3)
    with closing(open_store(shop.store)) as store:
        pipelines.rewind(by, store, "orders")
    return said


def test_a_corrected_position_is_published_without_the_old_disk(shop: Shop) -> None:
    publish(shop, rows(BAD), 1)
    publish(shop, rows(8), 2)
    with pytest.raises(DeclinedError):
        shop.deliver(rows(3), 3)
    shutil.rmtree(shop.folder / "wal")
    assert not shop.deliver(rows(1), 1, wal="wal2")["repeated"]
    with raises(StorageUnavailableError, "wrong_disk") as away:
        shop.deliver(rows(2), 2, wal="wal2")
    assert "`airflow ft rewind orders`" in away.value.remedy
    rewind(shop)
    for number in (2, 3):
        shop.deliver(rows(number), number, wal="wal2")
    assert [id for id, _ in shop.rows()] == [1, 2, 3]


def test_an_earlier_abort_marker_decides_what_the_error_asks_for(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """A dead process wrote a marker that carries the rows: then no position must be given again."""
    abort = Settling.abort

    def carried(self: Settling, number: int, reason: Reason, message: str, after: AfterAbort) -> Checkpoint:
        return abort(self, number, reason, message, AfterAbort.CARRIED)

    monkeypatch.setattr(Settling, "abort", carried)
    with checked(), pytest.raises(DeclinedError) as refused:
        shop.deliver(rows(BAD), 1)
    assert "positions" not in refused.value.fields


def test_the_error_names_some_of_many_positions(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol_settling, "_MOST_POSITIONS", 2)
    for number in (1, 2, 3):
        publish(shop, rows(BAD), number)
    with closing(sqlite3.connect(shop.folder / "shop.db")) as db:
        db.execute("CREATE TABLE large (id INTEGER, what TEXT)")
    with checked(), raises(DeclinedError, "row_refused", positions=[1, 2]) as refused:
        shop.deliver(dict.fromkeys(("orders", "large"), rows(4)), 4, "orders", "large")
    assert "1, 2, and 2 other positions" in refused.value.what
