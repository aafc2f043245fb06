"""The invariants as a stranger can check them: pure functions over what was read outside.

Each returns sentences, none when the invariant holds. That rows are neither lost nor duplicated, that both sinks hold
the same computation of a row (I1) and each late flight is in both (I3) is the judge's part (`tools.demo.judge`).
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from tests.chaos.decision_log import Checkpoint, Event
from tests.chaos.outside import Head, Marker, Record, Token
from tools.demo.data import COLUMNS

_RANK = {"TRIGGERED": 0, "STAGED": 1, "PREPARED": 2, "COMMITTING": 3, "COMPLETED": 4}


def plan_digest(segments: Iterable[tuple[int, str]]) -> str:
    """What marker and token must hold of a plan: computed here anew from the stored plan."""
    text = json.dumps([[number, digest] for number, digest in segments], separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def event_problems(events: Sequence[Event]) -> list[str]:
    """I1, I5: numbers go forward through their states, are published once, and no older epoch writes after a newer."""
    problems = []
    for before, after in pairwise(events):
        if after.epoch < before.epoch:
            problems.append(f"I5: event {after.id} ({after.kind}) of epoch {after.epoch} follows epoch {before.epoch}")
    states: defaultdict[int, list[str]] = defaultdict(list)
    for event in events:
        if event.kind in _RANK or event.kind == "ABORTED":
            states[event.number].append(event.kind)
    for number, kinds in states.items():
        again = [kind for kind, count in Counter(kinds).items() if count > 1]
        if again:
            problems.append(f"I1: checkpoint {number} became {', '.join(again)} more than once")
        ranks = [_RANK[kind] for kind in kinds if kind in _RANK]
        if ranks != sorted(ranks):
            problems.append(f"I1: checkpoint {number} went backward: {', '.join(kinds)}")
        if "COMMITTING" in kinds and "ABORTED" in kinds:
            problems.append(f"I3: checkpoint {number} was decided and aborted: {', '.join(kinds)}")
    return problems


def log_problems(checkpoints: Sequence[Checkpoint], source: str) -> list[str]:
    """I2, I10: every published segment is in exactly one delivery, and the segments' inputs form one chain."""
    problems = []
    delivering: defaultdict[int, list[int]] = defaultdict(list)
    for checkpoint in checkpoints:
        if checkpoint.state == "COMPLETED":
            for number, _ in checkpoint.segments:
                delivering[number].append(checkpoint.number)
    chain: Mapping[str, Any] | None = None
    for checkpoint in checkpoints:
        if not checkpoint.published or checkpoint.rewound:
            if delivering.get(checkpoint.number):
                problems.append(f"I2: checkpoint {checkpoint.number} was never published or was rewound, yet delivered")
            continue
        found = delivering.get(checkpoint.number, [])
        if found != [checkpoint.delivered_by]:
            problems.append(
                f"I2: the rows of checkpoint {checkpoint.number} are said to be delivered by {checkpoint.delivered_by},"
                f" and are in the completed plans {found}"
            )
        place = checkpoint.positions.get(source) or {}
        if place.get("start") != chain:
            problems.append(f"I10: checkpoint {checkpoint.number} begins at {place.get('start')}, not at {chain}")
        chain = place.get("end")
    return problems


def marker_problems(markers: Sequence[Marker]) -> list[str]:
    """I4, I5: a number has one marker; by number, those of commits are ascending in time and in epoch.

    Tombstones are written newest first, so they have no such order.
    """
    numbers = Counter(marker.number for marker in markers)
    problems = [f"I2: number {number} has {count} markers" for number, count in numbers.items() if count > 1]
    committed = sorted((m for m in markers if m.kind == "committed"), key=lambda marker: marker.number)
    for before, after in pairwise(committed):
        if after.at < before.at:
            problems.append(f"I4: number {after.number} was committed at {after.at}, before number {before.number}")
        if after.epoch < before.epoch:
            problems.append(
                f"I5: the marker of {after.number} is by epoch {after.epoch}, that of {before.number} by {before.epoch}"
            )
    return problems


def changed_markers(before: Iterable[Marker], now: Iterable[Marker], head: Head) -> list[str]:
    """I6: a marker never changes, and goes only when the head's floor covers it."""
    present = {marker.number: marker for marker in now}
    problems = []
    for marker in before:
        found = present.get(marker.number)
        if found is None and marker.number > head.floor:
            problems.append(f"I6: the marker of {marker.number} has vanished, the floor is {head.floor}")
        if found is not None and found != marker:
            problems.append(f"I6: the marker of {marker.number} has changed from {marker} to {found}")
    return problems


def head_problems(before: Head | None, now: Head, token_before: Token | None, token: Token) -> list[str]:
    """I5: what a sink remembers never goes back."""
    problems = []
    if before is not None:
        for name, old, new in (
            ("rank", (before.epoch, before.attempt), (now.epoch, now.attempt)),
            ("last delivered number", before.last_delivered, now.last_delivered),
            ("floor", before.floor, now.floor),
        ):
            if new < old:  # type: ignore[operator]
                problems.append(f"I5: the {name} of MySQL's head went from {old} back to {new}")
    if token_before is not None:
        if (token.epoch, token.attempt) < (token_before.epoch, token_before.attempt):
            problems.append(f"I5: Kafka's token went back from {token_before} to {token}")
        if token.number < token_before.number:
            problems.append(f"I4: Kafka's token went from {token_before.number} back to {token.number}")
    return problems


def proof_problems(
    checkpoints: Sequence[Checkpoint], markers: Mapping[int, Marker], head: Head, token: Token, sink: str
) -> list[str]:
    """I6, I3: the store's COMPLETED and the sinks' own markers say the same, with the same digest and counts."""
    problems = []
    rows = {checkpoint.number: checkpoint.rows.get(sink, 0) for checkpoint in checkpoints}
    completed = {c.number: c for c in checkpoints if c.state == "COMPLETED"}
    history = dict(token.history)
    for number, checkpoint in completed.items():
        digest = plan_digest(checkpoint.segments)
        marker = markers.get(number)
        if marker is None:
            problems.append(f"I6: checkpoint {number} is COMPLETED, and no marker of it was ever seen in MySQL")
        elif (marker.kind, marker.digest) != ("committed", digest):
            problems.append(
                f"I6: checkpoint {number} is COMPLETED, its marker says {marker.kind} with digest {marker.digest[:8]},"
                f" the plan's is {digest[:8]}"
            )
        elif marker.rows != sum(rows.get(segment, 0) for segment, _ in checkpoint.segments):
            problems.append(f"I6: the marker of {number} counts {marker.rows} rows, its segments have others")
        if token.number < number:
            problems.append(f"I6: checkpoint {number} is COMPLETED, Kafka's token stands at {token.number}")
        if number in history and history[number] != digest:
            problems.append(f"I6: Kafka's token knows {number} with another digest")
    for number, marker in markers.items():
        if marker.kind == "committed" and number not in completed:
            state = next((c.state for c in checkpoints if c.number == number), "unknown to the store")
            problems.append(f"I3: number {number} is committed in MySQL, and {state}")
    newest = max(completed, default=0)
    if completed and (head.last_delivered, token.number) != (newest, newest):
        problems.append(
            f"I3: the newest completed number is {newest}, MySQL's head says {head.last_delivered}, Kafka's token"
            f" {token.number}"
        )
    return problems


def order_problems(
    source: Iterable[Record], delivered: Sequence[Record], checkpoints: Sequence[Checkpoint], topic: str
) -> list[str]:
    """I4: in each partition of the sink's topic, records of an earlier delivery come first.

    Which delivery a flight belongs to is told by where it lies in the source's topic.
    """
    ranges: list[tuple[int, Mapping[str, int], Mapping[str, int]]] = []
    for checkpoint in checkpoints:
        place = checkpoint.positions.get(topic)
        if checkpoint.published and not checkpoint.rewound and checkpoint.delivered_by is not None and place:
            ranges.append((checkpoint.delivered_by, (place["start"] or {}).get(topic, {}), place["end"][topic]))

    def delivery(record: Record) -> int:
        for number, start, end in ranges:
            if start.get(str(record.partition), 0) <= record.offset < end.get(str(record.partition), 0):
                return number
        return 0

    deliveries: defaultdict[tuple[Any, ...], set[int]] = defaultdict(set)
    for record in source:
        deliveries[_flight(record.value)].add(delivery(record))
    problems = []
    newest: dict[int, tuple[int, int]] = {}
    for record in sorted(delivered, key=lambda record: (record.partition, record.offset)):
        found = deliveries.get(_flight(record.value), {0})
        if len(found) > 1:
            continue  # equal flights in several deliveries: which of them this is cannot be told
        (number,) = found
        if number == 0:
            problems.append(f"I2: partition {record.partition}, offset {record.offset} holds a flight of no delivery")
            continue
        last, offset = newest.get(record.partition, (0, -1))
        if number < last:
            problems.append(
                f"I4: in partition {record.partition} offset {record.offset} is of delivery {number}, and offset"
                f" {offset} before it of {last}"
            )
        else:
            newest[record.partition] = (number, record.offset)
    return problems


def _flight(value: bytes) -> tuple[Any, ...]:
    data = json.loads(value)
    return tuple(data[name] for name in COLUMNS if name != "time_hour")  # written differently; told by the others
