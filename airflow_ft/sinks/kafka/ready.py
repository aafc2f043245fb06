"""Whether a cluster could be delivered into now, as far as that shows without rows; see `airflow_ft.sinks.ready`."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import replace

from airflow_ft.clients.kafka.client import KafkaClients, KafkaSettings
from airflow_ft.clients.kafka.topics import TopicLimits, check_topic, describe, missing_topic
from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.errors import AirflowFtError, SinkAccessError
from airflow_ft.protocol.model import ParticipantPlan
from airflow_ft.sinks.fitting import ASK_SECONDS
from airflow_ft.sinks.kafka.kafka_python import client_settings
from airflow_ft.sinks.kafka.permissions import ids_of, is_granted, may_create, needed, not_granted
from airflow_ft.sinks.kafka.spec import KafkaSink, has_second_client
from airflow_ft.sinks.kafka.vote import check_times


def lacks(pipeline: str, plan: ParticipantPlan, connection: ConnectionInfo) -> Sequence[AirflowFtError]:
    """Return what `prepare` would refuse: topics that are not there, or cannot be written now. Describes them alone."""
    settings = KafkaSettings.from_connection(connection)
    clients = KafkaClients(replace(settings, timeout=min(settings.timeout, ASK_SECONDS)))
    sinks = {name: KafkaSink.from_settings(plan.name, plan.strategy, given) for name, given in plan.sinks.items()}
    token = {settings.token_topic} if plan.keeps_markers else set()
    topics = describe(clients, {sink.topic for sink in sinks.values()} | token)
    found: list[AirflowFtError] = []
    for name in token:
        found += _of_token_topic(name, topics[name], clients)
    for name, sink in sinks.items():
        try:
            check_topic(sink.topic, limits := topics[sink.topic], clients)
            assert limits is not None  # check_topic raises
            check_times(sink, limits)
        except AirflowFtError as error:
            found.append(error.located(sink=name))
    if plan.keeps_markers:
        found += _of_ids(pipeline, plan, clients)
    return found


def _of_ids(pipeline: str, plan: ParticipantPlan, clients: KafkaClients) -> Sequence[AirflowFtError]:
    """Check one transactional id and its group, if the connection logs in and kafka-python is installed."""
    if clients.settings.common.get("security.protocol", "PLAINTEXT").upper() == "PLAINTEXT" or not has_second_client():
        return []
    grants = [each for each in needed(pipeline, plan.name, clients.settings.token_topic, ()) if each.is_prefix]
    with suppress(AirflowFtError):  # then it cannot be judged now
        client_settings(clients.settings)
        from airflow_ft.sinks.kafka.authorization import Permissions

        with closing(Permissions(clients)) as permissions:
            ids = ids_of(pipeline, plan.name, 1)
            return [not_granted(grant) for grant in grants if not is_granted(permissions, grant, ids)]
    return []


def _of_token_topic(name: str, there: TopicLimits | None, clients: KafkaClients) -> Sequence[AirflowFtError]:
    """The first prepare makes it, where it may."""
    if there is None:
        return [] if may_create(clients, name) else [missing_topic(name, clients.conn_id, 1)]
    if there.readable:
        return []
    return [
        SinkAccessError(
            f"this user may not read topic {name!r}, so it cannot write tokens.",
            code="privilege_missing",
            remedy="Grant READ: kafka-acls.sh --bootstrap-server <broker:9092> --add --allow-principal <user>"
            f" --operation Read --topic {name}",
            topic=name,
        )
    ]
