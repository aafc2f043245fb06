"""What a topic holds for a reader of committed records, read with librdkafka and nothing of airflow_ft."""

from __future__ import annotations

import time

from confluent_kafka import Consumer, TopicPartition

from benchmarks.data import Content, record_checksum
from benchmarks.measuring import MeasurementError

_PATIENCE = 60.0  # seconds without a record or an end


def topic_content(bootstrap: str, topic: str) -> Content:
    """Counts and sums up all records, from the first to the end."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "bench",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    try:
        partitions = list(consumer.list_topics(topic, timeout=30).topics[topic].partitions)
        consumer.assign([TopicPartition(topic, partition, 0) for partition in partitions])
        rows = checksum = 0
        ended: set[int | None] = set()
        deadline = time.monotonic() + _PATIENCE
        while len(ended) < len(partitions):
            if time.monotonic() > deadline:
                raise MeasurementError(f"the end of topic {topic} is not reached: nothing comes after {rows:,} records")
            messages = consumer.consume(10_000, 0.1)  # it waits so long when fewer are left
            if messages:
                deadline = time.monotonic() + _PATIENCE
            for message in messages:
                if message.error() is not None:  # the end of a partition
                    ended.add(message.partition())
                else:
                    rows += 1
                    checksum += record_checksum(_bytes(message.key()), _bytes(message.value()))
        return Content(rows, checksum)
    finally:
        consumer.close()


def _bytes(value: str | bytes | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value
