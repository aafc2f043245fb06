"""Set up a Kafka participant before its first delivery: commands for an administrator, or the created token topic."""

from __future__ import annotations

from collections.abc import Iterator

from airflow_ft.clients.kafka.client import KafkaClients, KafkaSettings
from airflow_ft.clients.kafka.grants import USER, create_topic
from airflow_ft.clients.kafka.topics import create_token_topic
from airflow_ft.clients.kafka.topics import describe as describe_topics
from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.model import ParticipantPlan
from airflow_ft.sinks.kafka.permissions import helpful, needed
from airflow_ft.sinks.kafka.spec import KafkaSink


def describe(pipeline: str, plan: ParticipantPlan, connection: ConnectionInfo) -> Iterator[str]:
    """Commands of Kafka's own tools, to be reviewed and run. Nothing is asked of the brokers."""
    settings = KafkaSettings.from_connection(connection)
    topics = sorted({str(given["topic"]) for given in plan.sinks.values()})
    user = str(settings.common.get("sasl.username") or USER)
    yield f"# connection {plan.name}: run this as a user who may create topics and manage access lists."
    yield create_topic(settings.token_topic, "--partitions 1")
    yield "# The topics for the records must exist. Choose partitions and replicas."
    for topic in topics:
        yield create_topic(topic)
    for grant in needed(pipeline, plan.name, settings.token_topic, topics):
        yield grant.command(user)
    yield "# Optional permissions:"
    shown = user if user.isprintable() else USER  # a line break would end the comment
    for grant in helpful(settings.token_topic, topics):
        yield f"# {grant.command(shown)}   # {grant.use}"


def create(pipeline: str, plan: ParticipantPlan, connection: ConnectionInfo) -> str:
    """Makes the topic of tokens with the connection's own user, as its first prepare would; "" when it was there.

    SinkAccessError: that user may not.
    """
    KafkaSink.all_of(plan)  # refuses what it does not know
    clients = KafkaClients(KafkaSettings.from_connection(connection))
    name = clients.settings.token_topic
    if describe_topics(clients, [name])[name] is not None:
        return ""
    create_token_topic(clients)
    return f"topic {name}"
