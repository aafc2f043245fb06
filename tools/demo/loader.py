"""Loads the flights into Kafka: one JSON object a flight, keyed by tail number; missing values are null."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from confluent_kafka import Producer

from tools.demo.data import COLUMNS, flights, values_of


class LoadError(RuntimeError):
    """Not every flight was acknowledged by the broker."""


Record = tuple[str | None, str]
"""Key and value."""


def records(limit: int | None = None, skip: int = 0) -> list[Record]:
    """The first `limit` flights (None: all) but for the first `skip`. A flight without tail number has no key."""
    frame = flights(limit).iloc[skip:]
    # Not by pandas: its first 2.2 writes whole numbers as 517.0 where a column has missing ones.
    rows = zip(*(values_of(frame, name) for name in COLUMNS), strict=True)
    values = [json.dumps(dict(zip(COLUMNS, row, strict=True)), separators=(",", ":")) for row in rows]
    return list(zip(values_of(frame, "tailnum"), values, strict=True))


def load(bootstrap: str, topic: str, limit: int | None = None, skip: int = 0) -> int:
    """Produces flights (see `records`) into an existing topic; returns how many were acknowledged.

    `skip` leaves out so many of them from the start, which an earlier call has produced.

    Raises:
        LoadError: the broker did not acknowledge every record.
    """
    found = records(limit, skip)
    send(producer(bootstrap), topic, found)
    return len(found)


def producer(bootstrap: str) -> Producer:
    """An idempotent one, so its own retries double nothing."""
    return Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "linger.ms": 50,
            "compression.type": "lz4",
            "partitioner": "murmur2_random",  # as the Java client: equal keys go where other producers send them
            "log_level": 3,  # a broker that is still loading its coordinator is no news
            "queue.buffering.max.messages": 1_000_000,
        }
    )


def send(through: Producer, topic: str, found: Sequence[Record]) -> None:
    """Produces records and waits until all are acknowledged; LoadError when they are not."""
    acknowledged = 0
    failures: list[str] = []

    def delivered(error: Any, _: Any) -> None:
        nonlocal acknowledged
        if error is None:
            acknowledged += 1
        else:
            failures.append(str(error))

    for number, (key, value) in enumerate(found):
        through.produce(topic, value=value, key=key, on_delivery=delivered)
        if number % 1000 == 0:
            through.poll(0)
    through.flush(120)
    if acknowledged != len(found):
        raise LoadError(
            f"{acknowledged:,} of {len(found):,} flights reached the topic {topic!r}"
            + (f"; the first error: {failures[0]}" if failures else "; the broker did not answer within 120 s")
        )
