"""What a topic holds for a reader of committed records, read with librdkafka and nothing of airflow_ft."""

from __future__ import annotations

import time

from confluent_kafka import Consumer, TopicPartition

from benchmarks.data import Content, record_checksum
from benchmarks.measuring import MeasurementError


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
        deadline = time.monotonic() + 300
        while len(ended) < len(partitions):
            if time.monotonic() > deadline:
                raise MeasurementError(f"the end of topic {topic} was not reached: {rows:,} records in five minutes")
            for message in consumer.consume(10_000, 0.1):  # it waits so long when fewer are left
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
