"""Topics (ids, partitions, limits) and time-outs, as the brokers report them; creation of the token topic."""

from __future__ import annotations

import concurrent.futures
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicCollection, Uuid
from confluent_kafka.admin import AclOperation, ConfigResource, NewTopic, ResourceType

from airflow_ft.clients.kafka.client import KafkaClients
from airflow_ft.protocol.errors import SinkAccessError, SinkUnavailableError
from airflow_ft.protocol.numbers import count_text

AGAIN_SECONDS = 1.0
_FOREVER = 2**63 - 1
_NO_ID = str(Uuid(0, 0))


@dataclass(frozen=True, slots=True)
class TopicLimits:
    """Limits of a topic for records. `assumed`: its settings may not be read, these are the broker's defaults.

    `max_message_bytes` limits a record batch. Times are milliseconds around the broker's clock. `writable` and
    `readable` are False only when the broker says so. `retention_ms`: how long after their timestamp records are kept;
    None: without limit.
    """

    name: str
    partitions: int
    replication: int
    in_sync: int
    leaderless: int
    writable: bool
    readable: bool = True
    max_message_bytes: int = 1_048_588
    compacted: bool = False
    log_append_time: bool = False
    before_max_ms: int = _FOREVER
    after_max_ms: int = 3_600_000
    min_in_sync: int = 1
    retention_ms: int | None = None
    assumed: bool = False


def describe(clients: KafkaClients, names: Iterable[str]) -> Mapping[str, TopicLimits | None]:
    """Limits by topic; None for a topic that does not exist.

    Raises:
        SinkUnavailableError, SinkAccessError: the brokers do not answer, or refuse.
    """
    found: dict[str, TopicLimits | None] = {}
    for name, topic in _described(clients, names, operations=True):
        if topic is None:
            found[name] = None
            continue
        operations = topic.authorized_operations
        found[name] = TopicLimits(
            name=name,
            partitions=len(topic.partitions),
            replication=min(len(p.replicas) for p in topic.partitions),
            in_sync=min(len(p.isr) for p in topic.partitions),
            leaderless=sum(p.leader is None for p in topic.partitions),
            writable=not operations or AclOperation.WRITE in operations,
            readable=not operations or AclOperation.READ in operations,
        )
    existing = [limits for limits in found.values() if limits is not None]
    return {**found, **_with_settings(clients, existing)}


def topic_ids(clients: KafkaClients, names: Iterable[str]) -> Mapping[str, str | None]:
    """Return the ids that distinguish topics of one name over time (KIP-516); None for a missing topic.

    "": the brokers give topics no ids. Equal ids before and after a send prove that it went into that topic.

    Raises:
        SinkUnavailableError, SinkAccessError: the brokers do not answer, or refuse.
    """
    described = _described(clients, names, operations=False)
    ids = {name: None if topic is None else str(topic.topic_id) for name, topic in described}
    return {name: "" if found == _NO_ID else found for name, found in ids.items()}


def settled_ids(clients: KafkaClients, before: Mapping[str, str]) -> Mapping[str, str | None]:
    """As `topic_ids`, but checks a topic again a second later if it seems missing, or replaced since `before`.

    One of several brokers may lag, and know an older topic, or none yet.
    """
    now = topic_ids(clients, before)
    if doubted := {*other_topics(before, now), *(name for name, found in now.items() if found is None)}:
        time.sleep(AGAIN_SECONDS)
        now = {**now, **topic_ids(clients, doubted)}
    return now


def other_topics(before: Mapping[str, str], now: Mapping[str, str | None]) -> list[str]:
    """Return the topics that were recreated since: by their ids, where both are known."""
    return sorted(name for name, old in before.items() if old and (found := now.get(name)) and found != old)


def _described(clients: KafkaClients, names: Iterable[str], *, operations: bool) -> Iterator[tuple[str, Any]]:
    wanted = sorted(set(names))
    if not wanted:
        return
    futures = clients.admin().describe_topics(
        TopicCollection(wanted), include_authorized_operations=operations, request_timeout=clients.timeout
    )
    for name in wanted:
        try:
            yield name, answer(clients, futures[name])
        except KafkaException as failure:
            if failure.args[0].code() not in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC):
                raise clients.error(failure.args[0], f"describing topic {name!r}") from failure
            yield name, None


def _with_settings(clients: KafkaClients, topics: Iterable[TopicLimits]) -> Mapping[str, TopicLimits]:
    resources = {ConfigResource(ResourceType.TOPIC, limits.name): limits for limits in topics}
    if not resources:
        return {}
    futures = clients.admin().describe_configs(list(resources), request_timeout=clients.timeout)
    described = {}
    for resource, future in futures.items():
        limits = resources[resource]
        try:
            settings = {name: entry.value for name, entry in answer(clients, future).items()}
        except KafkaException as failure:
            if failure.args[0].code() != KafkaError.TOPIC_AUTHORIZATION_FAILED:
                raise clients.error(failure.args[0], f"reading the settings of topic {limits.name!r}") from failure
            described[limits.name] = replace(limits, assumed=True)
            continue
        # Brokers of other makers leave settings out that they do not have.
        policy, retention = settings.get("cleanup.policy") or "delete", int(settings.get("retention.ms") or -1)
        described[limits.name] = replace(
            limits,
            retention_ms=retention if "delete" in policy and retention >= 0 else None,
            max_message_bytes=int(settings.get("max.message.bytes") or limits.max_message_bytes),
            compacted="compact" in policy,
            log_append_time=settings.get("message.timestamp.type") == "LogAppendTime",
            min_in_sync=int(settings.get("min.insync.replicas") or limits.min_in_sync),
            # Since Kafka 3.6; before, one setting bounded both sides and was unlimited by default.
            before_max_ms=int(settings.get("message.timestamp.before.max.ms") or _FOREVER),
            after_max_ms=int(settings.get("message.timestamp.after.max.ms") or _FOREVER),
        )
    return described


def cluster_id(clients: KafkaClients) -> str:
    """Return the id that brokers keep as long as their cluster exists (KIP-78); "": they give none.

    Raises:
        SinkUnavailableError, SinkAccessError: the brokers do not answer, or refuse.
    """
    try:
        # Not by a topic: some brokers create each topic that they are asked for.
        found = answer(clients, clients.admin().describe_cluster(request_timeout=clients.timeout)).cluster_id
    except KafkaException as failure:
        raise clients.error(failure.args[0], "reading the id of the cluster") from failure
    return found or ""


def longest_transaction(clients: KafkaClients) -> int | None:
    """The smallest transaction.max.timeout.ms of all brokers; None: they may not be read, or have no such setting."""
    doing = "reading the brokers' transaction.max.timeout.ms"
    try:
        # Not by a topic: some brokers create each topic that they are asked for.
        brokers = answer(clients, clients.admin().describe_cluster(request_timeout=clients.timeout)).nodes
    except KafkaException as failure:
        raise clients.error(failure.args[0], doing) from failure
    resources = [ConfigResource(ResourceType.BROKER, broker.id_string) for broker in brokers]
    longest = []
    for future in clients.admin().describe_configs(resources, request_timeout=clients.timeout).values():
        try:
            found = answer(clients, future).get("transaction.max.timeout.ms")
        except KafkaException as failure:
            if failure.args[0].code() != KafkaError.CLUSTER_AUTHORIZATION_FAILED:
                raise clients.error(failure.args[0], doing) from failure
            return None
        if found is not None and found.value:
            longest.append(int(found.value))
    return min(longest) if longest else None


def missing_topic(name: str, conn_id: str, partitions: int | None = None) -> SinkAccessError:
    """The error for a topic that does not exist, with the command that creates it."""
    number = partitions if partitions is not None else "<partitions>"
    return SinkAccessError(
        f"topic {name!r} does not exist, or this user may not see it.",
        code="topic_missing",
        remedy=f"Create it: kafka-topics.sh --bootstrap-server <broker:9092> --create --topic {name}"
        f" --partitions {number}. `airflow ft setup PIPELINE --dag FILE --print` prints this for all topics.",
        participant=conn_id,
        topic=name,
    )


def check_topic(name: str, limits: TopicLimits | None, clients: KafkaClients) -> Mapping[str, str]:
    """Return whether the topic can be written now and durably; returns notes for people.

    Raises:
        SinkAccessError: it is not there, or writing is not allowed.
        SinkUnavailableError: partitions without a leader or with too few replicas in sync.
    """
    if limits is None:
        raise missing_topic(name, clients.conn_id)
    if not limits.writable:
        raise SinkAccessError(
            f"this user may not write to topic {name!r}.",
            code="privilege_missing",
            remedy="Grant WRITE: kafka-acls.sh --bootstrap-server <broker:9092> --add --allow-principal <user>"
            f" --operation Write --topic {name}",
            participant=clients.conn_id,
            topic=name,
        )
    if limits.leaderless or limits.in_sync < limits.min_in_sync:
        raise SinkUnavailableError(
            f"topic {name!r}: {count_text(limits.leaderless, 'partition has', 'partitions have')} no leader. The"
            f" weakest partition has {count_text(limits.in_sync, 'replica')}"
            f" in sync, and min.insync.replicas demands {limits.min_in_sync}.",
            code="partitions_unavailable",
            remedy="Start the missing brokers, then retry.",
            participant=clients.conn_id,
            topic=name,
        )
    notes = {}
    if limits.assumed:
        notes[f"{name}.settings"] = (
            "this user may not read the settings of the topic (DESCRIBE_CONFIGS), so Kafka's defaults are assumed"
        )
    if limits.replication == 1 or limits.min_in_sync < 2:
        notes[f"{name}.durability"] = (
            f"replication {limits.replication}, min.insync.replicas {limits.min_in_sync}: an acknowledged record can"
            " be lost with one broker"
        )
    return notes


def create_token_topic(clients: KafkaClients) -> None:
    """Create the topic that group offsets refer to: one partition, always empty, the brokers' replication.

    Accepts a topic that another process creates at the same time.

    Raises:
        SinkAccessError: not allowed; the message has the command for those who are.
    """
    name = clients.settings.token_topic
    deadline = time.monotonic() + clients.timeout
    futures = clients.admin().create_topics(
        [NewTopic(name, num_partitions=1)], request_timeout=clients.timeout, operation_timeout=clients.timeout
    )
    try:
        answer(clients, futures[name])
    except KafkaException as failure:
        error = failure.args[0]
        if error.code() in (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED):
            raise missing_topic(name, clients.conn_id, 1) from failure
        if error.code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise clients.error(error, f"creating the token topic {name!r}") from failure
    # The controller has answered; the brokers learn of the topic a moment later.
    while (topic := describe(clients, [name])[name]) is None or topic.leaderless:
        if time.monotonic() > deadline:
            raise clients.error(KafkaError(KafkaError._TIMED_OUT), f"waiting for the new token topic {name!r}")
        time.sleep(0.01)


def answer(clients: KafkaClients, future: concurrent.futures.Future[Any]) -> Any:
    """The outcome of an administration request. Librdkafka bounds it; twice that bound is a lost reply."""
    try:
        return future.result(2 * clients.timeout + 5)
    except concurrent.futures.TimeoutError as error:
        raise clients.error(KafkaError(KafkaError._TIMED_OUT), "waiting for an administration request") from error
