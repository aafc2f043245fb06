"""What the sinks hold, read by own SQL and own consumers: nothing of the package under test is used."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

SECONDS = 120.0
TOKENS = "airflow_ft.tokens"
KAFKA = "kafka_default"


@dataclass(frozen=True)
class Marker:
    """A row of the ledger in MySQL."""

    number: int
    kind: str
    epoch: int
    attempt: int
    digest: str
    rows: int
    at: datetime


@dataclass(frozen=True)
class Head:
    """The pipeline's row in MySQL that shuts older owners out."""

    epoch: int
    attempt: int
    last_delivered: int
    floor: int


@dataclass(frozen=True)
class Token:
    """Kafka's marker: the offset and metadata of the transactional id's group. `history`: (number, digest)."""

    number: int
    epoch: int
    attempt: int
    history: Sequence[tuple[int, str]] = field(default=())


@dataclass(frozen=True)
class Record:
    """A record as a read_committed consumer sees it."""

    partition: int
    offset: int
    value: bytes


class Outside:
    """MySQL and Kafka of one pipeline. `mysql` are the arguments of pymysql.connect."""

    def __init__(self, mysql: Mapping[str, Any], bootstrap: str, pipeline: str) -> None:
        self._mysql, self._bootstrap, self._pipeline = mysql, bootstrap, pipeline

    def flights(self) -> int:
        """Rows in the table."""
        return int(self._sql("SELECT COUNT(*) FROM flights")[0][0])

    def markers(self) -> list[Marker]:
        """The ledger, ascending."""
        rows = self._sql(
            "SELECT number, kind, epoch, attempt, digest, counts, at, branch FROM airflow_ft_ledger"
            " WHERE pipeline = %s ORDER BY number",
            self._pipeline,
        )
        return [Marker(*row[:5], sum(json.loads(row[5]).values()), row[6]) for row in rows]

    def head(self) -> Head:
        """The head; IndexError when there is none."""
        rows = self._sql(
            "SELECT epoch, attempt, last_delivered, floor FROM airflow_ft_head WHERE pipeline = %s", self._pipeline
        )
        return Head(*rows[0])

    def token(self) -> Token:
        """The token of the pipeline's one transactional id; LookupError when there is none."""
        from confluent_kafka import OFFSET_INVALID, Consumer, TopicPartition

        group = f"airflow_ft.{self._pipeline}.{KAFKA}.0"
        consumer = Consumer(self._settings(group))
        try:
            found = consumer.committed([TopicPartition(TOKENS, 0)], timeout=SECONDS)[0]
        finally:
            consumer.close()
        if found.offset == OFFSET_INVALID:
            raise LookupError(f"there is no token in group {group}")
        data = json.loads(found.metadata or "{}")
        history = [(entry[0], entry[1]) for entry in data["history"]]
        return Token(found.offset, data["epoch"], data["attempt"], history)

    def records(self, topic: str) -> list[Record]:
        """What a read_committed consumer sees, each partition from its start to its end; TimeoutError after 120 s.

        The end is what the broker calls so: records behind an open transaction are waited for.
        """
        from confluent_kafka import Consumer, KafkaException, TopicPartition

        consumer = Consumer(self._settings("chaos"))
        try:
            partitions = sorted(consumer.list_topics(topic, timeout=30).topics[topic].partitions)
            ends = {p: consumer.get_watermark_offsets(TopicPartition(topic, p), timeout=30)[1] for p in partitions}
            consumer.assign([TopicPartition(topic, p, 0) for p in partitions])
            records: list[Record] = []
            deadline = time.monotonic() + SECONDS
            while True:
                for message in consumer.consume(1000, timeout=0.1):
                    if message.error() is not None:
                        raise KafkaException(message.error())
                    records.append(Record(message.partition() or 0, message.offset() or 0, message.value() or b""))
                at = {
                    p.partition: max(p.offset, 0) for p in consumer.position([TopicPartition(topic, p) for p in ends])
                }
                if all(at[p] >= end for p, end in ends.items()):
                    return records
                if time.monotonic() > deadline:
                    raise TimeoutError(f"{topic}: read_committed readers stand at {at}, the ends are {ends}")
        finally:
            consumer.close()

    def _settings(self, group: str) -> dict[str, Any]:
        return {
            "bootstrap.servers": self._bootstrap,
            "group.id": group,
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "log_level": 0,
        }

    def _sql(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        import pymysql

        with pymysql.connect(**self._mysql) as connection, connection.cursor() as cursor:
            cursor.execute(statement, values or None)
            return list(cursor.fetchall())
