"""Requirements on a cluster and its topics, and their checks; see `airflow_ft.sinks.base.requirements`."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial

import pyarrow as pa

from airflow_ft.clients.kafka.client import KafkaClients, KafkaSettings
from airflow_ft.clients.kafka.topics import TopicLimits, check_topic, describe, missing_topic
from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.errors import AirflowFtError, SinkAccessError, SinkUnavailableError
from airflow_ft.protocol.model import ParticipantPlan
from airflow_ft.protocol.numbers import count_text
from airflow_ft.sinks.base.requirements import ASK_SECONDS, Finding, Requirement
from airflow_ft.sinks.kafka import records
from airflow_ft.sinks.kafka.permissions import ids_of, is_granted, may_create, needed, not_granted
from airflow_ft.sinks.kafka.spec import KafkaSink, has_second_client
from airflow_ft.sinks.kafka.vote import check_times, keyless


def required(pipeline: str, plan: ParticipantPlan, connection: ConnectionInfo) -> Generator[Requirement]:
    """Yield what the cluster must have before `prepare`: topics that can be written. Describes them alone.

    Raises:
        SinkUnavailableError, SinkAccessError: the brokers cannot be asked now.
    """
    clients, sinks = _asking(connection), KafkaSink.all_of(plan)
    token = {clients.settings.token_topic} if plan.keeps_markers else set()
    topics = describe(clients, {sink.topic for sink in sinks.values()} | token)
    for name in token:
        yield Requirement("token topic", partial(token_topic, clients, name, topics[name]))
    for name, sink in sinks.items():
        yield Requirement(f"topic {sink.topic}", partial(topic, clients, sink, topics[sink.topic]), name)
    if plan.keeps_markers:
        yield Requirement("permissions", partial(_permissions, pipeline, plan, clients))


def _asking(connection: ConnectionInfo) -> KafkaClients:
    settings = KafkaSettings.from_connection(connection)
    return KafkaClients(replace(settings, timeout=min(settings.timeout, ASK_SECONDS)))


def token_topic(clients: KafkaClients, name: str, there: TopicLimits | None) -> Finding:
    """Return the finding on the topic that tokens refer to. The first `prepare` creates it, where it may."""
    if there is None:
        if not may_create(clients, name):
            raise SinkAccessError(
                f"topic {name!r} does not exist, and this user may not create it.",
                code="topic_missing",
                remedy=missing_topic(name, clients.conn_id, 1).remedy,
                topic=name,
            )
        return Finding(f"{name} does not exist yet; the first prepare creates it (one partition, always empty)")
    if not there.readable:
        raise SinkAccessError(
            f"this user may not read topic {name!r}, so it cannot write tokens.",
            code="privilege_missing",
            remedy="Grant READ: kafka-acls.sh --bootstrap-server <broker:9092> --add --allow-principal <user>"
            f" --operation Read --topic {name}",
            topic=name,
        )
    return Finding(name)


def topic(clients: KafkaClients, sink: KafkaSink, limits: TopicLimits | None) -> Finding:
    """Return the finding on a sink's topic: can it be written now and durably, with the times of the sink?"""
    notes = check_topic(sink.topic, limits, clients)
    assert limits is not None  # check_topic raises
    check_times(sink, limits)
    text = f"{count_text(limits.partitions, 'partition')}, up to {limits.max_message_bytes:,} bytes a batch"
    return Finding(
        text, warnings=[(note, "Replicate the topic, and let this user describe it.") for note in notes.values()]
    )


def _permissions(pipeline: str, plan: ParticipantPlan, clients: KafkaClients) -> Finding:
    """Check one transactional id and its group, if the connection logs in and kafka-python is installed."""
    if clients.settings.common.get("security.protocol", "PLAINTEXT").upper() == "PLAINTEXT" or not has_second_client():
        return Finding()
    grants = [each for each in needed(pipeline, plan.name, clients.settings.token_topic, ()) if each.is_prefix]
    with suppress(AirflowFtError):  # then it cannot be judged now
        from airflow_ft.sinks.kafka.authorization import Permissions

        with closing(Permissions(clients)) as permissions:
            ids = ids_of(pipeline, plan.name, 1)
            return Finding(problems=[not_granted(each) for each in grants if not is_granted(permissions, each, ids)])
    return Finding()


def schema_problems(
    plan: ParticipantPlan, connection: ConnectionInfo, schemas: Mapping[str, pa.Schema]
) -> Sequence[AirflowFtError]:
    """Return what speaks against each sink's schema. Describes the topics, and creates none.

    Raises:
        SinkUnavailableError, SinkAccessError: the brokers cannot be asked now.
    """
    sinks = KafkaSink.all_of(plan)
    found: list[AirflowFtError] = []
    for name, schema in schemas.items():  # that needs no broker
        found += [problem.located(sink=name) for problem in records.schema_problems(sinks[name], schema)]
    try:
        clients = _asking(connection)
        topics = describe(clients, {sinks[name].topic for name in schemas})
        for name in schemas:
            limits = topics[sinks[name].topic]
            found += [problem.located(sink=name) for problem in _of_topic(sinks[name], limits, clients)]
    except (SinkUnavailableError, SinkAccessError):
        if not found:
            raise
    return found


def _of_topic(sink: KafkaSink, limits: TopicLimits | None, clients: KafkaClients) -> Sequence[AirflowFtError]:
    try:
        check_topic(sink.topic, limits, clients)
        assert limits is not None  # check_topic raises
        check_times(sink, limits)
    except SinkAccessError as error:
        return [error]
    return [keyless(sink)] if limits.compacted and sink.key is None else []
