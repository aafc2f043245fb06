"""Check whether readers can see delivered records, and whether these can still be there."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import OffsetSpec

from airflow_ft.clients.kafka.client import KafkaClients
from airflow_ft.clients.kafka.topics import answer, describe, missing_topic, other_topics, settled_ids
from airflow_ft.protocol.errors import AirflowFtError, SinkUnavailableError, TokenLostError
from airflow_ft.sinks.kafka.token import Ends


def require_same_topics(clients: KafkaClients, before: Mapping[str, str]) -> None:
    """Check that rows delivered into topics of these ids can still exist.

    Raises:
        TokenLostError: a topic was recreated since, so the records are gone with the old one.
        SinkAccessError: a topic does not exist.
    """
    now = settled_ids(clients, before)
    if others := other_topics(before, now):
        raise _records_lost(
            clients,
            "; ".join(
                f"the rows were delivered into topic {name!r} with id {before[name]}, which was deleted. The present"
                f" topic {name!r} has id {now[name]}"
                for name in others
            )
            + ".",
            "topic_recreated",
        )
    for name, found in now.items():
        if found is None:
            raise missing_topic(name, clients.conn_id)


def await_readable(clients: KafkaClients, ends: Ends | None, topics: Iterable[str]) -> None:
    """Waits until read_committed readers can see the records that end at `ends`.

    EndTxn answers before the transaction markers are written, so a read right after a commit can miss records. With
    `ends` None (too many to be kept in the token) the present ends of all partitions of `topics` are awaited.

    Raises:
        TokenLostError: a partition is shorter than what was acknowledged, so the records are not there.
        SinkUnavailableError: an open transaction of another producer before these records, or brokers that are slow.
    """
    deadline, pause = time.monotonic() + clients.timeout, 0.002
    if ends is None:
        described = describe(clients, topics)
        everything = [
            (name, partition)
            for name, limits in described.items()
            for partition in range(limits.partitions if limits else 0)
        ]
        uncommitted = IsolationLevel.READ_UNCOMMITTED
        while len(waiting := _end_offsets(clients, everything, uncommitted)) < len(everything):
            if time.monotonic() > deadline:
                raise clients.error(KafkaError(KafkaError._TIMED_OUT), "waiting for the leaders of all partitions")
            time.sleep(0.1)
    else:
        waiting = {(topic, p): end.last + 1 for topic, by in ends.items() for p, end in by.items()}
    while waiting:
        stable = _end_offsets(clients, waiting, IsolationLevel.READ_COMMITTED)
        waiting = {place: end for place, end in waiting.items() if stable.get(place, -1) < end}
        if waiting and time.monotonic() > deadline:
            raise _not_readable(clients, waiting)
        if waiting:
            time.sleep(pause)
            pause = min(2 * pause, 0.25)


def _not_readable(clients: KafkaClients, waiting: Mapping[tuple[str, int], int]) -> AirflowFtError:
    # Only asked at the end of the wait: a new leader's high watermark may lag for a moment.
    lengths = _end_offsets(clients, waiting, IsolationLevel.READ_UNCOMMITTED)
    if unknown := ", ".join(_name(place) for place in waiting if place not in lengths):
        return clients.error(KafkaError(KafkaError._TIMED_OUT), f"reading the end of {unknown}")
    stalled = [_name(place) for place, end in waiting.items() if lengths[place] >= end]
    if stalled:
        return SinkUnavailableError(
            f"the records are delivered, but read_committed readers of {', '.join(stalled)} cannot see them yet: an"
            " open transaction of another producer precedes them.",
            code="transaction_open",
            remedy="Retry when that transaction has ended. Nothing is sent twice. If it outlasts its time-out, end it:"
            " `kafka-transactions.sh find-hanging` lists it, and `abort` with its topic, partition and start offset"
            " ends it.",
            participant=clients.conn_id,
            partitions=stalled,
        )
    return _records_lost(
        clients,
        "; ".join(
            f"{_name(place)} ends at {lengths[place]}, before the acknowledged end {end}"
            for place, end in waiting.items()
        )
        + ": the topic was recreated, or its cluster has lost records.",
    )


def _records_lost(clients: KafkaClients, what: str, code: str = "records_lost") -> TokenLostError:
    return TokenLostError(
        what,
        code=code,
        remedy="Find out what the topic holds. To send the rows of this checkpoint again, delete the token of each slot"
        f" whose rows are gone (kafka-consumer-groups.sh --delete-offsets --topic {clients.settings.token_topic}"
        f" --group airflow_ft.<pipeline>.{clients.conn_id}.<slot>), then run `airflow ft in-doubt --redeliver`.",
        participant=clients.conn_id,
    )


def _name(place: tuple[str, int]) -> str:
    return f"{place[0]}[{place[1]}]"


def _end_offsets(
    clients: KafkaClients, places: Collection[tuple[str, int]], isolation: IsolationLevel
) -> dict[tuple[str, int], int]:
    if not places:
        return {}
    request = {TopicPartition(*place): OffsetSpec.latest() for place in places}
    futures = clients.admin().list_offsets(request, isolation_level=isolation, request_timeout=clients.timeout)
    found = {}
    for partition, future in futures.items():
        place = (partition.topic, partition.partition)
        try:
            found[place] = int(answer(clients, future).offset)
        except KafkaException as failure:
            error = failure.args[0]
            if error.code() in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_PARTITION):
                found[place] = 0  # a topic that was deleted since is as short as can be
            elif error.code() in _PASSING:
                clients.renew_admin()
            else:
                raise clients.error(error, f"reading the end of {_name(place)}") from failure
    return found


# A partition without a leader for a moment: its offset is simply not known yet.
_PASSING = frozenset(
    {
        KafkaError._NOENT,  # librdkafka: its metadata name no leader,
        KafkaError._TIMED_OUT,  # or named none in time, as may happen of a topic that was recreated a moment ago
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.OFFSET_NOT_AVAILABLE,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.UNKNOWN_LEADER_EPOCH,
    }
)
