"""The parts of the deliveries' chaos by themselves: what is drawn, where it strikes, what the judge calls wrong."""

from __future__ import annotations

import socket
import sys
import threading
import time
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest

from airflow_ft.testing.relay import Fate, Proxy
from tests.chaos.__main__ import split
from tests.chaos.deliveries import clock
from tests.chaos.deliveries.faults import FAULTS, Draw, choose, deck
from tests.chaos.deliveries.hot_keys import CHUNK, Order, after, changes, states
from tests.chaos.deliveries.judge import compare
from tests.chaos.deliveries.points import Point, Points, statement_name
from tests.chaos.deliveries.report import Report, Struck
from tests.chaos.deliveries.targets import BY_DEFAULT, STORES, TARGETS, targets_of
from tests.chaos.deliveries.watch import Watch
from tools.servers.processes import free_port

TRACE = [
    Point(when, name, nth)
    for nth in (1, 2)
    for name in ("store.publish", "mariadb-xa.prepare", "mariadb-xa: XA PREPARE", "kafka-held.commit")
    for when in ("before", "after")
]


# --- what is drawn ---------------------------------------------------------------------------------------------------


def test_a_seed_repeats_faults_sinks_and_moments() -> None:
    def drawn(seed: int) -> list[str]:
        return [f"{draw} {choose(draw, seed, 0, TRACE)}" for draw in deck(seed, 80)]

    assert drawn(7) == drawn(7)
    assert drawn(7) != drawn(8)


def test_a_longer_run_begins_like_a_shorter_one() -> None:
    assert deck(7, 80)[:30] == deck(7, 30)


def test_every_fitting_fault_is_drawn_before_any_is_repeated() -> None:
    cards = deck(3, 400)
    fitting = {name for name, each in FAULTS.items() if any(each.fits(t, s) for t in BY_DEFAULT for s in STORES)}
    assert {draw.fault.name for draw in cards[: len(fitting)]} == fitting
    assert {draw.target.name for draw in cards} == {target.name for target in BY_DEFAULT}
    assert all(draw.fault.fits(draw.target, draw.store) for draw in cards)


def test_a_system_has_targets_of_its_own() -> None:
    cards = deck(3, 100, targets=targets_of("iceberg"))
    assert {draw.target.name for draw in cards} == {"iceberg commit", "sqlcatalog commit"}
    assert {"kill -9 of Iceberg's catalog", "zombie at a point"} <= {draw.fault.name for draw in cards}


def test_another_try_at_a_fault_has_another_moment() -> None:
    draw = Draw(1, FAULTS["kill -9 at a point"], TARGETS["xa + held"], "sqlite")
    assert len({str(choose(draw, 7, repeat, TRACE)) for repeat in range(10)}) > 2


def test_a_lost_reply_strikes_at_a_call_to_that_server() -> None:
    draw = Draw(1, FAULTS["lost reply of Kafka"], TARGETS["xa + held"], "sqlite")
    for repeat in range(10):
        point = choose(draw, 7, repeat, TRACE).point
        assert point is not None
        assert (point.when, point.name) == ("before", "kafka-held.commit")


def test_one_of_twenty_faults_is_of_a_whole_pipeline() -> None:
    assert split(500, None, None) == (475, 25)
    assert split(500, None, 3) == (497, 3)
    assert split(3, "pipelines", None) == (0, 3)
    assert split(3, "deliveries", None) == (3, 0)


# --- where it strikes ------------------------------------------------------------------------------------------------


def test_a_fault_strikes_once_at_the_nth_call() -> None:
    struck: list[Point] = []
    points = Points(Point("after", "store.vote", 2), struck.append)
    for name in ("store.vote", "store.plan", "store.vote", "store.vote"):
        points.around(name, lambda: None)
    assert struck == [Point("after", "store.vote", 2)]
    assert len(points.trace) == 8


def test_a_call_that_fails_has_no_point_after_it() -> None:
    points = Points(None, lambda _: None)
    with suppress(ZeroDivisionError):
        points.around("store.vote", lambda: 1 / 0)
    assert points.trace == [Point("before", "store.vote", 1)]


def test_statements_are_named_without_their_values() -> None:
    assert statement_name("XA PREPARE 'aft.12.1','ab',1") == "XA PREPARE"
    assert statement_name("INSERT INTO `d`.`airflow_ft_ledger` VALUES (1)") == "INSERT INTO ledger"


def test_the_clock_jumps_and_the_monotonic_one_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow_ft.sinks.kafka import tokens

    for name in ("time", "time_ns"):
        monkeypatch.setattr(time, name, getattr(time, name))  # put back in the end
    for name, module in list(sys.modules.items()):
        if name.startswith("airflow_ft") and getattr(module, "datetime", None) is datetime:
            monkeypatch.setattr(module, "datetime", datetime)
    before, true, monotonic = time.time(), datetime.now(UTC), time.monotonic()
    clock.jump(7200)
    assert time.time() - before == pytest.approx(7200, abs=600)
    assert tokens.now() - true > timedelta(hours=1)
    assert isinstance(true, vars(tokens)["datetime"])
    assert time.monotonic() - monotonic < 600


@contextmanager
def echo() -> Iterator[tuple[int, list[bytes]]]:
    """A server that answers each request with itself, and what it was asked."""
    received: list[bytes] = []

    def serve(client: socket.socket) -> None:
        with client:
            while chunk := client.recv(100):
                received.append(chunk)
                client.sendall(chunk)

    def accept() -> None:
        with suppress(OSError):
            while client := listener.accept()[0]:
                threading.Thread(target=serve, args=(client,), daemon=True).start()

    listener = socket.create_server(("127.0.0.1", 0))
    with listener:
        threading.Thread(target=accept, daemon=True).start()
        yield listener.getsockname()[1], received
        listener.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize(("fate", "arrived"), [(Fate.LOSE_REPLY, True), (Fate.LOSE_REQUEST, False)])
def test_the_proxy_loses_one_request_or_its_reply_and_cuts(fate: Fate, arrived: bool) -> None:
    port = free_port()
    with echo() as (target, received), Proxy(port, target) as proxy:
        with socket.create_connection(("127.0.0.1", port), timeout=60) as client:
            proxy.arm(fate, skip=1, pattern=b"s")
            client.sendall(b"first, s")
            assert client.recv(100) == b"first, s"
            client.sendall(b"other")
            assert client.recv(100) == b"other"
            before = proxy.struck
            client.sendall(b"second")
            assert client.recv(100) == b""
        assert (before, proxy.struck) == (False, True)
        assert (b"second" in received) is arrived
        with socket.create_connection(("127.0.0.1", port), timeout=60) as client:
            client.sendall(b"third")
            assert client.recv(100) == b"third"


def test_the_proxy_separates_requests_that_arrive_together() -> None:
    """Each request begins with its length. Two arrive at once, and the end of the third later."""
    port = free_port()
    with echo() as (target, received), Proxy(port, target, length=lambda sent: sent[0]) as proxy:
        with socket.create_connection(("127.0.0.1", port), timeout=60) as client:
            proxy.arm(Fate.LOSE_REQUEST, skip=2)
            client.sendall(b"\4one\4two\6th")
            answers = b""
            while len(answers) < 8:
                answers += client.recv(100)
            assert not proxy.struck
            client.sendall(b"ree")
            assert client.recv(100) == b"" and proxy.struck
        assert answers == b"".join(received) == b"\4one\4two"


def test_the_proxy_outlives_its_server() -> None:
    port = free_port()
    with Proxy(port, free_port()):
        for _ in range(2):
            with socket.create_connection(("127.0.0.1", port), timeout=60) as client:
                assert client.recv(100) == b""


# --- what the judge calls wrong --------------------------------------------------------------------------------------

ROWS = [(0, 5), (1, 5), (CHUNK, 6)]
IDS = [id for id, _ in ROWS]


def test_the_same_rows_in_every_sink_are_exact() -> None:
    assert compare(IDS, {"a": ROWS, "b": list(reversed(ROWS))}).exact


@pytest.mark.parametrize(
    ("change", "lost", "duplicated", "what"),
    [
        (lambda rows: rows[1:], 1, 0, "I2: sink b lacks 1 rows"),
        (lambda rows: [*rows, rows[0]], 0, 1, "I2: sink b has 1 rows too many"),
        (lambda rows: [*rows, (99, 5)], 0, 1, "I2: sink b has 1 rows too many"),
        (lambda rows: [(0, 7), *rows[1:]], 0, 0, "I1: 1 rows of sink b are of another computation"),
        (lambda rows: rows[:2], 1, 0, "I3: chunks [1] are in some sinks only"),
    ],
)
def test_the_judge_finds_each_kind_of_deviation_in_a_sink(
    change: Callable[[list[tuple[int, int]]], list[tuple[int, int]]], lost: int, duplicated: int, what: str
) -> None:
    verdict = compare(IDS, {"a": ROWS, "b": change(ROWS)})
    assert (verdict.lost, verdict.duplicated) == (lost, duplicated)
    assert any(problem.startswith(what) for problem in verdict.problems), verdict.problems


def test_keys_that_change_may_only_move_forward() -> None:
    order = Order({**states(range(2, 4), after(2))})
    assert not any(order.problems({**after(chunks)}) for chunks in (2, 3, 3, 4))
    assert order.problems({**after(2)})
    order = Order({"key": [None, 3, None, 5]})
    assert [order.problems({"key": draw}) for draw in (None, 3, 5)] == [[], [], []]
    assert order.problems({"key": None}) == ["I2: key went to None from 5"]
    assert changes(3) == changes(3) != changes(4)


def test_a_watch_finds_what_is_seen_for_a_moment_only() -> None:
    seen = iter([ConnectionError(), {"key": 3}, ConnectionError(), {"key": None}, *[{"key": 5}] * 10_000])
    moment = threading.Event()

    def look() -> Mapping[Hashable, object]:
        found = next(seen)
        if isinstance(found, ConnectionError):
            raise found
        if found == {"key": 5}:
            moment.set()
        return found

    with Watch(look, Order({"key": [None, 3, 5]})) as watch:
        while not moment.is_set() and not watch.problems:
            moment.wait(0.01)
    assert watch.problems == ["I2: key went to None from 3"]
    assert watch.looks > 2


def test_a_report_is_exact_only_when_all_was_done_and_judged() -> None:
    one = Struck(1, "clock jump", "xa + xa", "sqlite", "before store.plan", "1 STAGED", True, "exact", 0.5)
    missed = replace(one, counted=False, state="")
    right = Report(1, 1, struck=[missed, one], judged=True)
    assert right.exact
    assert "EXACT: nothing lost" in str(right)
    sums = right.data()["by_sink"]["xa + xa"]
    assert (sums["hit"], sums["not counted"], sums["exact"], sums["worst"]) == (1, 1, 1, 0.5)
    for spoiled in (
        replace(right, judged=False),
        replace(right, wanted=2),
        replace(right, violations=["I2: lost"]),
        replace(right, interrupted=True),
        replace(right, struck=[one, replace(one, outcome="duplicated")]),
    ):
        assert not spoiled.exact
        assert "NOT EXACT" in str(spoiled)


def test_points_inside_calls_are_as_likely_as_points_between() -> None:
    draw = Draw(1, FAULTS["kill -9 at a point"], TARGETS["xa + held"], "sqlite")
    many = [*TRACE, *(Point("before", "mariadb-xa: SELECT", nth) for nth in range(1, 200))]
    inside = sum(bool((p := choose(draw, 7, repeat, many).point) and p.is_inside) for repeat in range(200))
    assert 70 < inside < 130


def test_where_something_is_written_down_is_struck_most_often() -> None:
    draw = Draw(1, FAULTS["kill -9 at a point"], TARGETS["xa + held"], "sqlite")
    reads = [Point("before", "store.checkpoint", nth) for nth in range(1, 50)]
    struck = [choose(draw, 7, repeat, [*TRACE, *reads]).point for repeat in range(200)]
    assert sum(point is not None and "checkpoint" not in point.name for point in struck) > 120


def test_numbers_of_a_deck_are_consecutive() -> None:
    assert all(after.number == before.number + 1 for before, after in pairwise(deck(5, 60)))
