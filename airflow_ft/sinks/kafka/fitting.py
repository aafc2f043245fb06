"""Whether the topics of one cluster would take rows of given schemas; see `airflow_ft.sinks.fitting`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pyarrow as pa

from airflow_ft.clients.kafka.client import KafkaClients, KafkaSettings
from airflow_ft.clients.kafka.topics import TopicLimits, check_topic, describe
from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.errors import AirflowFtError, SinkAccessError, SinkUnavailableError
from airflow_ft.protocol.model import ParticipantPlan
from airflow_ft.sinks.fitting import ASK_SECONDS
from airflow_ft.sinks.kafka import records
from airflow_ft.sinks.kafka.spec import KafkaSink
from airflow_ft.sinks.kafka.vote import check_times, keyless


def schema_problems(
    plan: ParticipantPlan, connection: ConnectionInfo, schemas: Mapping[str, pa.Schema]
) -> Sequence[AirflowFtError]:
    """Return what speaks against each sink's schema. Describes the topics, and creates none.

    Raises:
        SinkUnavailableError, SinkAccessError: the brokers cannot be asked now.
    """
    sinks = {name: KafkaSink.from_settings(plan.name, plan.strategy, plan.sinks[name]) for name in schemas}
    found: list[AirflowFtError] = []
    for name, sink in sinks.items():  # that needs no broker
        found += [problem.located(sink=name) for problem in records.schema_problems(sink, schemas[name])]
    try:
        settings = KafkaSettings.from_connection(connection)
        clients = KafkaClients(replace(settings, timeout=min(settings.timeout, ASK_SECONDS)))
        topics = describe(clients, {sink.topic for sink in sinks.values()})
        for name, sink in sinks.items():
            found += [problem.located(sink=name) for problem in _of_topic(sink, topics[sink.topic], clients)]
    except (SinkUnavailableError, SinkAccessError):
        if not found:
            raise
    return found


def _of_topic(sink: KafkaSink, limits: TopicLimits | None, clients: KafkaClients) -> Sequence[AirflowFtError]:
    try:
        check_topic(sink.topic, limits, clients)
        if limits is not None:
            check_times(sink, limits)
    except SinkAccessError as error:
        return [error]
    if limits is not None and limits.compacted and sink.key is None:
        return [keyless(sink)]
    return []
