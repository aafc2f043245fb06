"""Every preflight of a Kafka participant, in words: no producer is initialised, no token written, no topic created."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from functools import partial

from confluent_kafka import KafkaException
from confluent_kafka.admin import ConfigResource, ResourceType

from airflow_ft.clients.kafka.client import KafkaClients, KafkaSettings
from airflow_ft.clients.kafka.grants import Grant
from airflow_ft.clients.kafka.topics import TopicLimits, cluster_id, describe
from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.doctor import Check, Examination
from airflow_ft.protocol.errors import SinkAccessError
from airflow_ft.protocol.model import ParticipantPlan
from airflow_ft.protocol.write_ahead_log import SegmentReader
from airflow_ft.sinks.base.requirements import Requirement
from airflow_ft.sinks.kafka.kafka_python import client_settings
from airflow_ft.sinks.kafka.permissions import ids_of, is_granted, needed, not_granted
from airflow_ft.sinks.kafka.requirements import token_topic, topic
from airflow_ft.sinks.kafka.spec import KafkaSink, has_second_client
from airflow_ft.sinks.kafka.token import METADATA_LIMIT
from airflow_ft.sinks.kafka.vote import SegmentRows, check_rows, client_limits, short_lived

_SLOW = 5e6  # bytes of the log a second: less than what slow brokers take
_WEEK_MINUTES = 7 * 24 * 60
_INSTALL_HELD = (
    'Run `pip install "airflow-ft[held]"` wherever the DAG is parsed and its tasks run, or use strategy="transaction".'
)


def examine(
    pipeline: str,
    plan: ParticipantPlan,
    connection: ConnectionInfo,
    rows: Sequence[SegmentReader],
    installation: str | None = None,
) -> list[Check]:
    """The checks of one cluster. `rows` are published segments, to be judged as `prepare` would."""
    exam = Examination(f"connection {plan.name}")
    settings = exam.attempt("settings", lambda: KafkaSettings.from_connection(connection))
    if settings is None:
        return exam.checks
    if plan.strategy == "held" and not has_second_client():
        exam.problem("held transactions", "strategy 'held' needs kafka-python, which is not installed", _INSTALL_HELD)
        return exam.checks
    clients = KafkaClients(settings)
    sinks = KafkaSink.all_of(plan)
    names = sorted({sink.topic for sink in sinks.values()})
    if not exam.passes("connect", "the brokers answer", lambda: cluster_id(clients)):
        return exam.checks
    grants = needed(pipeline, plan.name, settings.token_topic, names)
    if plan.keeps_markers:
        name = settings.token_topic
        Requirement("token topic", lambda: token_topic(clients, name, describe(clients, [name])[name])).report(exam)
    limits: dict[str, TopicLimits] = {}
    for each, sink in sinks.items():
        found = exam.attempt(f"topic {sink.topic}", partial(describe, clients, [sink.topic]))
        if found is None:
            continue
        there = found[sink.topic]
        if Requirement(f"topic {sink.topic}", partial(topic, clients, sink, there), each).report(exam) and there:
            limits[sink.topic] = there
    slots = max((sink.slots for sink in sinks.values()), default=1)
    if plan.keeps_markers:
        _permissions(exam, clients, plan.strategy, ids_of(pipeline, plan.name, slots), grants)
        exam.attempt("broker", lambda: _broker(exam, clients))
        held = [sink.transaction_timeout for sink in sinks.values() if sink.transaction_timeout is not None]
        longest = max(held).total_seconds() if held else settings.transaction_timeout / 1000
        _duration(exam, clients, longest, [reader for reader in rows if set(reader.sinks()) & set(sinks)])
    if plan.strategy == "held":
        _holding(exam, clients, sinks)
    if len(limits) == len(names):
        _rows(exam, clients, sinks, limits, rows)
    return exam.checks


def _permissions(
    exam: Examination, clients: KafkaClients, strategy: str, ids: Sequence[str], grants: Sequence[Grant]
) -> None:
    """Check whether this user may write its transactional ids, and the groups of the same names."""
    name = "permissions"
    try:
        client_settings(clients.settings)
        why_not = "" if has_second_client() else "is not installed (airflow-ft[held])"
    except SinkAccessError:
        why_not = "does not know this connection's kind of security"
    if why_not:
        if strategy != "held":  # `held` reports it there
            exam.warn(
                name,
                "it is not known whether this user may write its transactional ids: the client that asks (kafka-python)"
                f" {why_not}",
                f"Grant it: {'; '.join(grant.command() for grant in grants if grant.is_prefix)}.",
            )
        return
    from airflow_ft.sinks.kafka.authorization import Permissions

    with closing(Permissions(clients)) as permissions:

        def ask(grant: Grant) -> None:
            if not is_granted(permissions, grant, ids):
                raise not_granted(grant)

        for grant in (grant for grant in grants if grant.is_prefix):
            exam.passes(name, f"this user may use {grant.resource} {grant.name}*", partial(ask, grant))


def _broker(exam: Examination, clients: KafkaClients) -> None:
    found = _broker_settings(clients)
    if found is None:
        exam.warn(
            "broker settings",
            "this user may not read them (DESCRIBE_CONFIGS on the cluster)",
            "Check transaction.max.timeout.ms, offsets.retention.minutes and offset.metadata.max.bytes of the brokers.",
        )
        return
    wanted = clients.settings.transaction_timeout
    longest = int(found.get("transaction.max.timeout.ms", wanted))
    if wanted > longest:
        exam.problem(
            "transaction time-out",
            f"the producer asks for {wanted} ms, the broker allows {longest} (transaction.max.timeout.ms)",
            "Lower transaction.timeout.ms in the connection's extra, or raise the broker's maximum.",
        )
    else:
        exam.ok("transaction time-out", f"{wanted} ms of at most {longest}")
    minutes = int(found.get("offsets.retention.minutes", _WEEK_MINUTES))
    text = f"Kafka deletes tokens {minutes / 1440:g} days after the last commit (offsets.retention.minutes)"
    if minutes < _WEEK_MINUTES:
        exam.warn(
            "token retention", text, "Raise it above the longest pause of the pipeline, or let recovery run daily."
        )
    else:
        exam.ok("token retention", text)
    room = int(found.get("offset.metadata.max.bytes", METADATA_LIMIT + 1))
    if room <= METADATA_LIMIT:
        exam.problem(
            "token size", f"offset.metadata.max.bytes is {room}", f"Raise it to {METADATA_LIMIT + 1} on the brokers."
        )


def _duration(exam: Examination, clients: KafkaClients, longest: float, rows: Sequence[SegmentReader]) -> None:
    """Return whether a transaction may be too long for its time-out, in seconds; the brokers end it then."""
    remedy = (
        "Raise transaction.timeout.ms in the connection's extra (with 'held': KafkaSink(transaction_timeout=...)), and"
        " the brokers' transaction.max.timeout.ms where it is lower."
    )
    size = max((reader.segment.bytes for reader in rows), default=0)
    if longest < clients.timeout:
        exam.warn(
            "transaction time-out",
            f"{longest:g} s (transaction.timeout.ms) is less than the {clients.timeout:g} s for which a broker may be"
            " silent (airflow_ft_timeout): the brokers end a transaction that waits so long, and it begins again",
            remedy,
        )
    elif size > longest * _SLOW:
        exam.warn(
            "transaction time-out",
            f"a checkpoint of {size / 1e6:,.0f} MB has {longest:g} s (transaction.timeout.ms) to be sent",
            remedy,
        )


def _holding(exam: Examination, clients: KafkaClients, sinks: Mapping[str, KafkaSink]) -> None:
    from airflow_ft.sinks.kafka.held import holding
    from airflow_ft.sinks.kafka.transaction_coordinator import TransactionCoordinator

    with closing(TransactionCoordinator(clients)) as coordinator:
        settings = exam.attempt("held transactions", lambda: holding(clients, coordinator, sinks.values()))
    if settings is not None:
        milliseconds = settings.get("transaction.timeout.ms")
        how_long = "without a time-out" if milliseconds is None else f"for up to {milliseconds} ms"
        exam.ok("held transactions", f"the brokers hold a transaction {how_long}, and another process can end it")


def _broker_settings(clients: KafkaClients) -> Mapping[str, str] | None:
    """The settings of one broker; None when they may not be read."""
    try:
        metadata = clients.admin().list_topics(timeout=clients.timeout)
        broker = ConfigResource(ResourceType.BROKER, str(min(metadata.brokers)))
        future = clients.admin().describe_configs([broker], request_timeout=clients.timeout)[broker]
        return {name: entry.value for name, entry in future.result(2 * clients.timeout).items() if entry.value}
    except KafkaException as error:
        if "AUTHORIZATION" in error.args[0].name():
            return None
        raise clients.error(error.args[0], "reading the broker's settings") from error


def _rows(
    exam: Examination,
    clients: KafkaClients,
    sinks: Mapping[str, KafkaSink],
    limits: Mapping[str, TopicLimits],
    rows: Sequence[SegmentReader],
) -> None:
    largest = client_limits(clients, limits)["message.max.bytes"]
    for name, sink in sinks.items():
        judged = [reader for reader in rows if name in reader.sinks()]
        for reader in judged:
            part = SegmentRows(name, sink, reader)
            exam.passes(
                f"rows for {sink.topic}",
                f"the topic would accept the rows of checkpoint {reader.segment.number}",
                partial(check_rows, part, limits[sink.topic], largest),
            )
            for text in short_lived(part, limits[sink.topic]).values():
                exam.warn(f"rows for {sink.topic}", text, "Raise retention.ms of the topic, or remove timestamp=.")
        if not judged:
            exam.ok(f"rows for {sink.topic}", "none is published, so none was checked")
