"""Report confirmed positions to the systems that are read: consumer groups, for lag monitors.

No guarantee depends on it: the pipeline's positions are in its checkpoints. It follows COMPLETED under the `finalised`
flag, so after a crash, or while Kafka is unavailable, the next run repeats it (R19). Of several numbers the last
counts.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import closing
from typing import TYPE_CHECKING, Any

from airflow_ft.protocol.connections import ConnectionResolver
from airflow_ft.protocol.errors import AirflowFtError, SinkUnavailableError
from airflow_ft.protocol.model import Checkpoint
from airflow_ft.protocol.numbers import count_text
from airflow_ft.sources.kafka import KafkaSource

if TYPE_CHECKING:
    from airflow_ft.sources import Source

log = logging.getLogger(__name__)

_AS_LIBRDKAFKA = str.maketrans("-_", "+/")
"""The driver has ids of topics from Java, which writes base64 as for URLs; about each second id has such a letter."""


class GroupOffsets:
    """Commits the end positions of a checkpoint to the `group_id` of each Kafka source. See `Progress`."""

    def __init__(self, sources: Mapping[str, Source], connections: ConnectionResolver) -> None:
        kafka = {name: source for name, source in sources.items() if isinstance(source, KafkaSource)}
        self._sources = {name: source for name, source in kafka.items() if source.group_id and source.commit_offsets}
        self._connections = connections
        self._logged: set[str] = set()

    def __call__(self, checkpoint: Checkpoint) -> None:
        """Report the positions of every source, also after one that failed. Wait only once for a cluster that is away.

        Raises:
            SinkUnavailableError, SinkAccessError: a cluster does not take them. The first error, with its connection.
        """
        errors: list[AirflowFtError] = []
        away: set[str] = set()
        for name, source in self._sources.items():
            place = checkpoint.positions.get(name, {})
            if place.get("end") and source.conn_id not in away:
                try:
                    self._commit(source, place["end"], place.get("topic_ids", {}))
                except AirflowFtError as error:
                    errors.append(error)
                    if isinstance(error, SinkUnavailableError):
                        away.add(source.conn_id)
        if errors:
            raise errors[0]

    def _commit(self, source: KafkaSource, ends: Mapping[str, Mapping[str, int]], ids: Mapping[str, str]) -> None:
        from confluent_kafka import KafkaException, TopicPartition

        from airflow_ft.clients.kafka.client import KafkaClients, KafkaSettings
        from airflow_ft.clients.kafka.topics import other_topics, topic_ids

        group = str(source.group_id)
        ids = {topic: found.translate(_AS_LIBRDKAFKA) for topic, found in ids.items()}
        clients = KafkaClients(KafkaSettings.from_connection(source.connection(self._connections)))
        now = topic_ids(clients, ids)
        if left := {*other_topics(ids, now), *(topic for topic, found in now.items() if found is None)}:
            log.warning("group %s: deleted topics have no offsets: %s", group, ", ".join(sorted(left)))
            ends = {topic: partitions for topic, partitions in ends.items() if topic not in left}
        offsets: list[Any] = [
            TopicPartition(topic, int(partition), offset)
            for topic, partitions in ends.items()
            for partition, offset in partitions.items()
            if offset >= 0  # Spark's -1 and -2 mean places that it has not looked up
        ]
        if not offsets:  # a commit of none would ask for those of an assignment
            return
        with closing(clients.consumer(group)) as consumer:
            try:
                # `commit` does not notice that all brokers are away. One topic, for a cluster may have thousands.
                consumer.list_topics(offsets[0].topic, timeout=clients.timeout)
                consumer.commit(offsets=offsets, asynchronous=False)
            except KafkaException as error:
                raise clients.error(error.args[0], f"committing the offsets of group {group}") from None
        level = logging.DEBUG if group in self._logged else logging.INFO  # a stream says so each few seconds, for days
        self._logged.add(group)
        partitions = count_text(len(offsets), "partition")
        log.log(level, "group %s: committed the offsets of confirmed rows (%s)", group, partitions)
