"""Cache of the brokers' answers about a cluster's topics, for checkpoints that follow each other closely.

Asked at each checkpoint it costs round trips, and memory that never comes back: confluent_kafka 2.16 never frees the id
of a topic that it has described (docs/traps.md).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from airflow_ft.clients.kafka.client import KafkaClients
from airflow_ft.clients.kafka.topics import TopicLimits, describe, topic_ids

LOOK_AGAIN_SECONDS = 10.0
"""Greatest age of the limits of topics by which rows are judged. The brokers check each batch anyway."""


class KnownTopics:
    """Topics as they were seen last."""

    def __init__(self, clients: KafkaClients) -> None:
        self._clients = clients
        self._limits: dict[str, TopicLimits] = {}
        self._limits_until = 0.0
        self._ids: dict[str, str] = {}

    def limits(self, names: Sequence[str]) -> Mapping[str, TopicLimits | None]:
        """As `describe`, from the cache unless too old. Missing topics are looked up each time."""
        now, known = time.monotonic(), self._limits  # the slots of a participant ask side by side
        if now < self._limits_until and known.keys() >= set(names):
            return {name: known[name] for name in names}
        found = describe(self._clients, names)
        self._limits = {name: limits for name, limits in found.items() if limits is not None}
        self._limits_until = now + LOOK_AGAIN_SECONDS
        return found

    def ids(self, names: Sequence[str]) -> Mapping[str, str | None]:
        """As `topic_ids`, of any time before now: a topic that has the same id later is the same one all along."""
        known = self._ids
        if known.keys() >= set(names):
            return {name: known[name] for name in names}
        found = topic_ids(self._clients, names)
        self._ids = {name: id for name, id in found.items() if id is not None}
        return found

    @contextmanager
    def trusted(self) -> Iterator[None]:
        """Forget all topics when an exception leaves this context, since outdated knowledge may have caused it."""
        try:
            yield
        except BaseException:
            self._limits, self._ids = {}, {}
            raise
