"""The transaction by hand that streams are compared with: each micro-batch once, also one that Spark repeats."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from benchmarks.by_hand import Transactions
from tests.integration.kafka_world import read
from tools.servers import Kafka


def _batch(*values: str) -> Any:
    return SimpleNamespace(collect=lambda: [SimpleNamespace(value=value) for value in values])


def test_a_repeated_micro_batch_is_sent_once(kafka: Kafka, topic: str) -> None:
    first = Transactions(kafka.bootstrap, topic)
    first(_batch("a", "b"), 0)
    first(_batch(), 1)
    del first  # it dies before Spark has logged the end of batch 1
    second = Transactions(kafka.bootstrap, topic)
    assert second.next == 2
    second(_batch("a", "b"), 0)
    second(_batch("c"), 2)
    values = [message.value() for message in read(kafka.bootstrap, topic)]
    assert sorted(value.decode() for value in values if value is not None) == ["a", "b", "c"]
