"""The judging itself: every kind of violation is found, and what is right is not called wrong."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from tests.chaos import checks
from tests.chaos.decision_log import Checkpoint, Event
from tests.chaos.outside import Head, Marker, Record, Token
from tools.demo.data import COLUMNS

NOON = datetime(2026, 1, 1, 12)


def event(id: int, number: int, kind: str, epoch: int = 1) -> Event:
    return Event(id, number, epoch, kind, "", {})


def checkpoint(number: int, start: int, end: int, state: str = "COMPLETED", by: int | None = None) -> Checkpoint:
    """Of two segments: 1 and 2 are delivered by 2."""
    return Checkpoint(
        number=number,
        state=state,
        run="r",
        rows={"flights": 10, "delays": 1},
        published=True,
        rewound=False,
        delivered_by=by or number,
        finalised=True,
        positions={
            "flights": {
                "start": {"flights": {"0": start}} if start else None,
                "end": {"flights": {"0": end}},
            }
        },
        segments=[(1, "a"), (2, "b")] if state == "COMPLETED" else [],
    )


CHECKPOINTS = [checkpoint(1, 0, 10, "SUBSUMED", by=2), checkpoint(2, 10, 20)]
DIGEST = checks.plan_digest([(1, "a"), (2, "b")])
MARKER = Marker(2, "committed", 1, 4, DIGEST, 20, NOON)
HEAD = Head(epoch=1, attempt=4, last_delivered=2, floor=0)
TOKEN = Token(number=2, epoch=1, attempt=5, history=((2, DIGEST),))
LIFE = ("TRIGGERED", "STAGED", "PREPARED", "COMMITTING", "COMPLETED")


def flight(partition: int, offset: int, carrier: str) -> Record:
    return Record(partition, offset, json.dumps({**dict.fromkeys(COLUMNS), "carrier": carrier}).encode())


def test_the_digest_is_that_of_the_package() -> None:
    from airflow_ft.protocol.model import Segment, plan_digest

    segments = (Segment(1, "a", "somewhere", {}, 0), Segment(2, "b", "else", {}, 0))
    assert plan_digest(segments) == DIGEST


def test_an_ordinary_life_is_no_violation() -> None:
    events = [event(i, 1, kind) for i, kind in enumerate(LIFE)]
    assert checks.event_problems([*events, event(9, 2, "TRIGGERED", 2), event(10, 2, "ABORTED", 3)]) == []


@pytest.mark.parametrize(
    ("kinds", "what"),
    [
        (("TRIGGERED", "STAGED", "STAGED"), "I1"),
        (("TRIGGERED", "PREPARED", "STAGED"), "I1"),
        ((*LIFE[:4], "ABORTED"), "I3"),
    ],
)
def test_a_life_that_goes_backward_is_found(kinds: tuple[str, ...], what: str) -> None:
    (problem,) = checks.event_problems([event(i, 1, kind) for i, kind in enumerate(kinds)])
    assert problem.startswith(what)


def test_an_event_of_an_older_epoch_is_found() -> None:
    (problem,) = checks.event_problems([event(1, 0, "EPOCH", 3), event(2, 1, "VOTED", 2)])
    assert problem.startswith("I5")


def test_a_right_log_is_no_violation() -> None:
    aborted = replace(checkpoint(3, 20, 30, "ABORTED"), published=False, delivered_by=None)
    rewound = replace(checkpoint(4, 20, 30, "ABORTED"), rewound=True, delivered_by=None)
    again = replace(checkpoint(5, 20, 30), segments=[(5, "c")])
    assert checks.log_problems([*CHECKPOINTS, aborted, rewound, again], "flights") == []


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"segments": [(2, "b")]}, "I2"),  # the rows of 1 are in no plan
        ({"positions": {"flights": {"start": {"flights": {"0": 11}}, "end": None}}}, "I10"),
        ({"rewound": True}, "I2"),
    ],
)
def test_segments_that_are_overlooked_or_left_out_are_found(change: dict[str, Any], what: str) -> None:
    problems = checks.log_problems([CHECKPOINTS[0], replace(CHECKPOINTS[1], **change)], "flights")
    assert problems
    assert problems[0].startswith(what)


def test_a_segment_in_two_deliveries_is_found() -> None:
    twice = replace(checkpoint(3, 20, 30), segments=[(2, "b"), (3, "c")])
    problems = checks.log_problems([*CHECKPOINTS, twice], "flights")
    assert any(problem.startswith("I2") for problem in problems)


def test_markers_in_order_are_no_violation() -> None:
    later = replace(MARKER, number=3, epoch=2, at=NOON + timedelta(seconds=1))
    tombstone = replace(MARKER, number=4, kind="aborted", epoch=1)
    assert checks.marker_problems([MARKER, later, tombstone]) == []


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"number": 3, "at": NOON - timedelta(seconds=1)}, "I4"),
        ({"number": 3, "epoch": 0}, "I5"),
        ({}, "I2"),
    ],
)
def test_markers_out_of_order_are_found(change: dict[str, Any], what: str) -> None:
    (problem,) = checks.marker_problems([MARKER, replace(MARKER, **change)])
    assert problem.startswith(what)


def test_a_marker_goes_only_below_the_floor_and_never_changes() -> None:
    assert checks.changed_markers([MARKER], [MARKER], HEAD) == []
    assert checks.changed_markers([MARKER], [], replace(HEAD, floor=2)) == []
    assert checks.changed_markers([MARKER], [], HEAD)
    assert checks.changed_markers([MARKER], [replace(MARKER, kind="aborted")], HEAD)


@pytest.mark.parametrize(
    ("head", "token"),
    [
        ({"epoch": 0}, {}),
        ({"attempt": 3}, {}),
        ({"last_delivered": 1}, {}),
        ({"floor": -1}, {}),
        ({}, {"number": 1}),
        ({}, {"epoch": 0}),
    ],
)
def test_what_goes_back_is_found(head: dict[str, Any], token: dict[str, Any]) -> None:
    assert checks.head_problems(HEAD, HEAD, TOKEN, TOKEN) == []
    assert checks.head_problems(None, HEAD, None, TOKEN) == []
    assert checks.head_problems(HEAD, replace(HEAD, **head), TOKEN, replace(TOKEN, **token))


def proof(marker: Marker | None = MARKER, head: Head = HEAD, token: Token = TOKEN, state: str = "") -> list[str]:
    found = [CHECKPOINTS[0], replace(CHECKPOINTS[1], state=state) if state else CHECKPOINTS[1]]
    return checks.proof_problems(found, {marker.number: marker} if marker else {}, head, token, "flights")


def test_store_and_sinks_that_agree_are_no_violation() -> None:
    assert proof() == []
    assert (
        proof(marker=None, head=replace(HEAD, last_delivered=0), token=replace(TOKEN, number=0), state="STAGED") == []
    )


def test_every_disagreement_of_store_and_sinks_is_found() -> None:
    assert proof(marker=None)
    assert proof(marker=replace(MARKER, digest="0" * 64))
    assert proof(marker=replace(MARKER, kind="aborted"))
    assert proof(marker=replace(MARKER, rows=19))
    assert proof(token=replace(TOKEN, number=1))
    assert proof(token=replace(TOKEN, history=((2, "0" * 64),)))
    assert proof(head=replace(HEAD, last_delivered=1))
    assert proof(state="COMMITTING")  # in MySQL, and not in Kafka


def test_deliveries_out_of_order_in_a_partition_are_found() -> None:
    two = [replace(CHECKPOINTS[0], delivered_by=1), CHECKPOINTS[1]]
    source = [flight(0, 5, "AA"), flight(0, 15, "BB")]
    right = [flight(1, 0, "AA"), flight(1, 1, "BB")]
    wrong = [flight(1, 0, "BB"), flight(1, 1, "AA")]
    assert checks.order_problems(source, right, two, "flights") == []
    (problem,) = checks.order_problems(source, wrong, two, "flights")
    assert problem.startswith("I4")
    assert checks.order_problems(source, [flight(1, 0, "CC")], two, "flights")[0].startswith("I2")
    assert checks.order_problems(source, wrong, CHECKPOINTS, "flights") == []  # both in one delivery
