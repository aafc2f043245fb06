"""A Kafka transaction for each micro-batch of plain Spark, as a user would write it in `foreachBatch`.

Spark repeats a micro-batch of which it has not logged the end. So the number of the next batch is committed as a group
offset, in the transaction of the records, and a batch below it is left out.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_SECONDS = 60.0


class Transactions:
    """Sends each micro-batch's column `value` to a topic; `foreachBatch` calls it.

    Its producer's transactional id shuts out an earlier process, whose open transaction the brokers abort.
    """

    def __init__(self, bootstrap: str, topic: str) -> None:
        name = f"by-hand-{topic}"
        brokers = {"bootstrap.servers": bootstrap, "log_level": 0}
        self._topic = topic
        self._producer = Producer({**brokers, "transactional.id": name})
        self._producer.init_transactions(_SECONDS)
        # The group has no members: Spark's own checkpoint holds the offsets of the source.
        self._group = Consumer({**brokers, "group.id": name})
        self.next = self._read_token()  # after the initialisation, since it cannot change any more

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        """Commits the records of a micro-batch, unless they are committed. Any error ends the query."""
        if batch_id < self.next:
            return
        rows = batch.collect()
        self._producer.begin_transaction()
        for row in rows:
            self._produce(row.value)
        token = TopicPartition(self._topic, 0, batch_id + 1)
        self._producer.send_offsets_to_transaction([token], self._group.consumer_group_metadata(), _SECONDS)
        self._producer.commit_transaction(_SECONDS)  # fails if a record was not acknowledged
        self.next = batch_id + 1

    def _read_token(self) -> int:
        deadline = time.monotonic() + _SECONDS
        while True:
            try:
                (found,) = self._group.committed([TopicPartition(self._topic, 0)], _SECONDS)
                if found.error:
                    raise KafkaException(found.error)
                return max(0, found.offset)  # -1001 before the first batch
            except KafkaException:  # the group's coordinator may still be starting
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)

    def _produce(self, value: str) -> None:
        while True:
            try:
                return self._producer.produce(self._topic, value)
            except BufferError:  # the first batch may have more records than the producer's queue
                self._producer.poll(0.1)
