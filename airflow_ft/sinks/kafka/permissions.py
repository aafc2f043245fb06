"""Permissions that a Kafka user needs, as commands for an administrator; whether the user may create a topic."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import NewTopic

from airflow_ft.clients.kafka.client import KafkaClients
from airflow_ft.clients.kafka.grants import Grant
from airflow_ft.protocol.errors import SinkAccessError

if TYPE_CHECKING:
    from airflow_ft.sinks.kafka.authorization import Permissions


def not_granted(grant: Grant) -> SinkAccessError:
    """Return the error for a permission that this user lacks."""
    name = f"{grant.name}*" if grant.is_prefix else grant.name
    return SinkAccessError(
        f"this user may not use {grant.resource} {name} ({grant.use}).",
        code="privilege_missing",
        remedy=f"Run {grant.command()}.",
        resource=grant.resource,
        name=grant.name,
    )


def id_prefix(pipeline: str, conn_id: str) -> str:
    """Return how the transactional ids and groups of a pipeline begin on one cluster."""
    return f"airflow_ft.{pipeline}.{conn_id}."


def ids_of(pipeline: str, conn_id: str, slots: int) -> Sequence[str]:
    """Return a pipeline's transactional ids, one a slot. Its groups have the same names."""
    return [f"{id_prefix(pipeline, conn_id)}{number}" for number in range(slots)]


def is_granted(permissions: Permissions, grant: Grant, ids: Iterable[str]) -> bool:
    """Return whether this user may write all these transactional ids, or read all these groups, as `grant` says."""
    may = permissions.may_write if grant.resource == "transactional-id" else permissions.may_read
    return all(may(each) for each in ids)


def needed(pipeline: str, conn_id: str, token_topic: str, topics: Iterable[str]) -> Sequence[Grant]:
    """Return the permissions that a pipeline needs on one cluster with any strategy."""
    ids = id_prefix(pipeline, conn_id)
    return (
        Grant("transactional-id", ids, ("Write", "Describe"), "its transactions", is_prefix=True),
        Grant("group", ids, ("Read", "Describe"), "its tokens", is_prefix=True),
        Grant("topic", token_topic, ("Read", "Describe"), "its tokens"),
        *(Grant("topic", name, ("Write", "Describe"), "its records") for name in topics),
    )


def helpful(token_topic: str, topics: Iterable[str]) -> Sequence[Grant]:
    """Return optional permissions: to create the topic of tokens, to read limits instead of assuming Kafka's
    defaults, and to compare the topics with the log.
    """
    return (
        Grant("topic", token_topic, ("Create",), "creating it, unless an administrator does"),
        *(Grant("topic", name, ("DescribeConfigs",), "reading its limits") for name in topics),
        *(Grant("topic", name, ("Read",), "comparing it (airflow ft verify)") for name in topics),
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
