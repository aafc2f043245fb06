"""What a Kafka user must be allowed, as commands for who manages the access lists; whether a topic may be created."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import NewTopic

from airflow_ft.clients.kafka.client import KafkaClients


@dataclass(frozen=True, slots=True)
class Grant:
    """Operations on one resource. `is_prefix`: on all whose names begin so. `use` says what they are for."""

    resource: str  # as kafka-acls.sh names its options: "topic", "group", "transactional-id", "cluster"
    name: str
    operations: tuple[str, ...]
    use: str
    is_prefix: bool = False

    @property
    def command(self) -> str:
        """For whoever manages the access lists."""
        where = f"--{self.resource}" + (f" {self.name}" if self.name else "")
        pattern = " --resource-pattern-type prefixed" if self.is_prefix else ""
        operations = " ".join(f"--operation {operation}" for operation in self.operations)
        return (
            f"kafka-acls.sh --bootstrap-server <broker:9092> --add --allow-principal User:<user> {operations}"
            f" {where}{pattern}"
        )


def needed(pipeline: str, conn_id: str, token_topic: str, topics: Iterable[str]) -> Sequence[Grant]:
    """Return the permissions that a pipeline needs on one cluster with any strategy."""
    ids = f"airflow_ft.{pipeline}.{conn_id}."
    return (
        Grant("transactional-id", ids, ("Write", "Describe"), "its transactions", is_prefix=True),
        Grant("group", ids, ("Read", "Describe"), "its tokens", is_prefix=True),
        Grant("topic", token_topic, ("Read", "Describe"), "its tokens"),
        *(Grant("topic", name, ("Write", "Describe"), "its records") for name in topics),
    )


def helpful(token_topic: str, topics: Iterable[str]) -> Sequence[Grant]:
    """What it can do without: to make the topic of tokens, and to read limits instead of assuming Kafka's defaults."""
    return (
        Grant("topic", token_topic, ("Create",), "creating it, unless an administrator does"),
        *(Grant("topic", name, ("DescribeConfigs",), "reading its limits") for name in topics),
        Grant("cluster", "", ("DescribeConfigs",), "reading the brokers' time-outs"),
    )


def may_create(clients: KafkaClients, topic: str) -> bool:
    """Return whether this user may create the topic; it is only validated."""
    futures = clients.admin().create_topics(
        [NewTopic(topic, num_partitions=1)], validate_only=True, request_timeout=clients.timeout
    )
    try:
        futures[topic].result(2 * clients.timeout + 5)
    except KafkaException as failure:
        error = failure.args[0]
        if error.code() in (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED):
            return False
        if error.code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise clients.error(error, f"asking whether topic {topic!r} may be created") from failure
    return True
