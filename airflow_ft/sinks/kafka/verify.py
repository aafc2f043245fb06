"""Compare the log's rows with committed records in the topics, between the offsets that the proofs name.

The rows are encoded again as they were sent. Digests of key, value, headers (and of partition and timestamp, where all
rows set them) are compared as multisets on disk (`airflow_ft.sinks.multiset`), so memory is bounded by a batch.
Records of others between the offsets are counted, and are no difference. If a token could not hold all offsets, a
partition is read up to its current end. Records that retention or compaction removed count as missing, with a note.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from airflow_ft.clients.kafka.client import KafkaClients, KafkaSettings
from airflow_ft.clients.kafka.topics import TopicLimits, describe, other_topics, topic_ids
from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.errors import SinkUnavailableError
from airflow_ft.protocol.model import ParticipantPlan
from airflow_ft.protocol.numbers import count_text
from airflow_ft.protocol.verify import SAMPLES, Delivered, Difference, SinkReport
from airflow_ft.protocol.votes import Proof
from airflow_ft.protocol.write_ahead_log import WalFile, WalReader
from airflow_ft.sinks.kafka.content import PlanContent
from airflow_ft.sinks.kafka.permissions import id_prefix
from airflow_ft.sinks.kafka.records import RecordEncoder, Records
from airflow_ft.sinks.kafka.spec import KafkaSink
from airflow_ft.sinks.kafka.vote import SegmentRows
from airflow_ft.sinks.multiset import Multiset
from airflow_ft.sinks.set_aside import DeliveredLog

_BATCH = 10_000
_PATIENCE = 0.1  # seconds
Window = Mapping[int, tuple[int, int | None]]  # by partition: first offset, and the one after the last
_Sent = tuple[Delivered, str, KafkaSink]  # a delivery to one of its sinks, as its plan describes it


@dataclass(frozen=True, slots=True)
class _Look:
    """Parts of a record that are compared, beside key, value and headers."""

    with_time: bool
    with_partition: bool


def verify(
    delivered: Sequence[Delivered], plan: ParticipantPlan, connection: ConnectionInfo, wal: WalReader
) -> list[SinkReport]:
    """Return one report for each topic, also if its plans and sinks were renamed.

    SinkUnavailableError, SinkAccessError, WalCorruptError: nothing could be compared.
    """
    clients = KafkaClients(KafkaSettings.from_connection(connection))
    log = DeliveredLog.of(wal, delivered)
    sent: dict[str, list[_Sent]] = {}
    for each in delivered:
        own = each.plan.participant(plan.name)
        for name, given in own.sinks.items():
            sink = KafkaSink.from_settings(own.name, own.strategy, given)
            sent.setdefault(sink.topic, []).append((each, name, sink))
    topics = describe(clients, set(sent))
    ids = topic_ids(clients, topics)
    return [
        _verify(of_topic, plan.name, name, _Topic(topics[name], ids[name] or ""), clients, log)
        for name, of_topic in sent.items()
    ]


@dataclass(frozen=True, slots=True)
class _Topic:
    """A topic as it is now; None: it does not exist. `id` is "" where the brokers give none."""

    limits: TopicLimits | None
    id: str

    def is_other(self, proof: Proof | None, name: str) -> bool:
        """Return whether the delivery went into another topic of that name, which was deleted since."""
        before = proof.detail.get("topics", {}).get(name, "") if proof is not None else ""
        return bool(other_topics({name: before}, {name: self.id}))


def _verify(
    sent: Sequence[_Sent],
    participant: str,
    name: str,
    known: _Topic,
    clients: KafkaClients,
    log: DeliveredLog,
) -> SinkReport:
    topic = known.limits
    delivered = list({each.plan.number: each for each, _, _ in sent}.values())
    report = SinkReport.begun(participant, (sink for _, sink, _ in sent), name, delivered)
    if topic is None:
        return replace(report, error="the topic does not exist")
    # What only some records have set was chosen by Kafka for the others, and cannot be compared.
    look = _Look(
        with_time=not topic.log_append_time and _all_set("timestamp", sent, participant, log),
        with_partition=_all_set("partition", sent, participant, log),
    )
    with closing(Multiset()) as rows:
        parts: list[tuple[int, SegmentRows, WalFile]] = []
        for each, sink_name, sink in sent:
            for part, _ in PlanContent(participant, {sink_name: sink}, log).rows(each.plan):
                for file in part.reader.files(sink_name):
                    for records in _records(part, file):
                        rows.expect(len(parts), _digests(records, look))
                    parts.append((each.plan.number, part, file))
        window, notes = _window(delivered, known, topic)
        newest = max((each.plan for each in delivered), key=lambda plan: plan.number)
        group = f"{id_prefix(newest.pipeline, participant)}verify"  # the right to the tokens includes it
        removed = _read(clients, group, name, window, rows, look)
        if removed:
            notes.append(f"retention has deleted {count_text(removed, 'offset')}, whose records count as missing")
        if topic.compacted and rows.missing:
            notes.append("the topic is compacted: records replaced by a newer one of their key count as missing")
        if rows.repeated and (whole := _read_whole(delivered, window)):
            notes.append(
                f"partition {', '.join(map(str, whole[:8]))} was read from its beginning, because no proof of an"
                " earlier checkpoint names it: equal rows of earlier checkpoints count as repeated"
            )
        differences = tuple(
            Difference(parts[i][0], parts[i][2].path, count, _samples(rows, *parts[i][1:], look))
            for i, count in rows.missing_by_part().items()
        )
        return replace(
            report,
            missing=rows.missing,
            repeated=rows.repeated,
            other=rows.other,
            differences=differences,
            notes=tuple(notes),
        )


def _all_set(role: str, sent: Sequence[_Sent], participant: str, log: WalReader) -> bool:
    """Return whether every row says that part of its record: each sink has a column for it, which is never NULL."""
    for each, name, sink in sent:
        if (column := sink.roles.get(role)) is None:
            return False
        for part, _ in PlanContent(participant, {name: sink}, log).rows(each.plan):
            found = part.reader.statistics(name).get(column)
            if found is not None and found.nulls:
                return False
    return True


def _records(part: SegmentRows, file: WalFile) -> Iterator[Records]:
    encoder = RecordEncoder(part.sink, part.reader.schema(part.name))
    for batch in part.reader.batches(part.name, file):
        yield from encoder.encode(batch)


def _digests(records: Records, look: _Look) -> list[bytes]:
    """One for each record; a part that the sink does not set is left out of both sides."""
    found = []
    for i, value in enumerate(records.values):
        key = records.keys[i] if records.keys is not None else None
        headers = records.headers[i] if records.headers is not None else None
        partition = records.partitions[i] if look.with_partition and records.partitions is not None else None
        at = records.timestamps[i] if look.with_time and records.timestamps is not None else None
        found.append(_digest(key, value, headers, partition, at))
    return found


def _digest(
    key: bytes | None, value: bytes | None, headers: Any, partition: int | None, timestamp: int | None
) -> bytes:
    digest = hashlib.blake2b(digest_size=20)
    pairs = [item for name, content in headers or () for item in (str(name).encode(), content)]
    plain = [None if number is None else str(number).encode() for number in (partition, timestamp)]
    for part in (key, value, *plain, *pairs):
        # Each with its length, so that no two records have the same text.
        digest.update(b"-" if part is None else b"%d:" % len(part) + bytes(part))
    return digest.digest()


def _samples(rows: Multiset, part: SegmentRows, file: WalFile, look: _Look) -> tuple[str, ...]:
    found: list[str] = []
    for records in _records(part, file):
        for index in rows.lacking(_digests(records, look)):
            key = records.keys[index] if records.keys is not None else None
            text = f"key {_short(key)}, value {_short(records.values[index])}"
            found.append(text)
            if len(found) == SAMPLES:
                return tuple(found)
    return tuple(found)


def _short(value: bytes | None) -> str:
    text = "null" if value is None else value.decode("utf-8", "backslashreplace")
    return text if len(text) <= 80 else f"{text[:77]}..."


def _window(delivered: Sequence[Delivered], known: _Topic, topic: TopicLimits) -> tuple[Window, list[str]]:
    """From behind the predecessor's last record (0: not known) to the last one of these numbers (None: not known).

    Offsets of a topic that was deleted say nothing of the one that was recreated.
    """
    last: dict[int, int] = {}
    unknown = False
    gone = [each.plan.number for each in delivered if known.is_other(each.proof, topic.name)]
    for each in delivered:
        if each.plan.number not in gone:
            ends = _ends(each.proof, topic.name)
            unknown = unknown or (not ends and any(segment.total_rows for segment in each.plan.segments))
            for partition, end in ends.items():
                last[partition] = max(last.get(partition, 0), end + 1)
    first = _begins(min(delivered, key=lambda each: each.plan.number), known, topic)
    partitions = range(topic.partitions)
    window = {p: (first.get(p, 0), None if unknown else last.get(p, 0)) for p in partitions}
    notes = ["the proofs do not name all offsets: read to the topic's end"] if unknown else []
    if gone:
        numbers = f"checkpoint {gone[0]}" if len(gone) == 1 else f"checkpoints {gone[0]} to {gone[-1]}"
        notes.append(f"{numbers} went into a topic that was deleted since, and recreated: these rows count as missing")
    return window, notes


def _begins(oldest: Delivered, known: _Topic, topic: TopicLimits) -> dict[int, int]:
    """Return the offset behind the newest earlier delivery into each partition, as far as proofs name it.

    A proof that does not name all offsets may hide a partition, so the search ends there.
    """
    begins: dict[int, int] = {}
    for proof in chain(() if oldest.before is None else (oldest.before,), oldest.earlier()):
        if known.is_other(proof, topic.name):
            break
        for partition, end in _ends(proof, topic.name).items():
            begins.setdefault(partition, end + 1)
        named = sum(end["records"] for topics in _partitions(proof).values() for end in topics.values())
        if named != sum(proof.counts.values()) or len(begins) >= topic.partitions:
            break
    return begins


def _read_whole(delivered: Sequence[Delivered], window: Window) -> list[int]:
    """Return the partitions that are read from their beginning, though earlier checkpoints may be in them."""
    compared = {each.plan.number for each in delivered}
    is_later = any(each.before is not None and each.before.number not in compared for each in delivered)
    return [partition for partition, (begin, end) in window.items() if is_later and begin == 0 and end != 0]


def _ends(proof: Proof | None, topic: str) -> Mapping[int, int]:
    """The offset of the last record by partition; empty when it is not known, or nothing was sent."""
    partitions = _partitions(proof).get(topic, {}) if proof is not None else {}
    return {int(partition): int(end["last_offset"]) for partition, end in partitions.items()}


def _partitions(proof: Proof) -> Mapping[str, Mapping[str, Mapping[str, int]]]:
    found: Mapping[str, Mapping[str, Mapping[str, int]]] = proof.detail.get("partitions", {})
    return found


def _read(clients: KafkaClients, group: str, topic: str, window: Window, rows: Multiset, look: _Look) -> int:
    """Hands all committed records of the window over; returns how many of its offsets the brokers have removed."""
    removed = 0
    config = {
        "group.id": group,  # assigned by hand and never committed: no group comes to be
        "isolation.level": "read_committed",
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "fetch.wait.max.ms": 10,  # by default a broker waits half a second before it says that this is the end
    }
    with closing(clients._make(Consumer, config)) as consumer:
        waiting: dict[int, int] = {}
        starts = []
        for partition, (first, last) in window.items():
            low, high = _watermarks(clients, consumer, topic, partition)
            end = high if last is None else last
            removed += max(0, min(low, end) - first) if first else 0
            begin = max(low, first)
            if begin < min(end, high):
                waiting[partition] = end
                starts.append(TopicPartition(topic, partition, begin))
        if starts:
            consumer.assign(starts)
        answered_at = time.monotonic()
        while waiting:
            # It returns when the batch is full or the time is over, so this is also what the last batch costs.
            messages = [each for each in consumer.consume(_BATCH, _PATIENCE) if not _is_of_group(each)]
            if messages:
                answered_at = time.monotonic()
            elif time.monotonic() - answered_at > clients.timeout:
                raise SinkUnavailableError(
                    f"the brokers sent nothing of topic {topic!r} for {clients.timeout:g} s.",
                    code="server_unreachable",
                    remedy="Retry when the brokers answer.",
                    topic=topic,
                )
            digests = []
            for message in messages:
                partition, offset = _place(clients, topic, message)
                end = waiting.get(partition, 0)
                if offset is not None and offset < end:
                    digests.append(_digest_of(message, look))
                if offset is None or offset + 1 >= end:  # the end of what is committed, or of the window
                    waiting.pop(partition, None)
            rows.found(digests)
    return removed


def _is_of_group(message: Message) -> bool:
    """Return whether librdkafka only reports that this user may not use the group, which nothing here needs."""
    error = message.error()
    return error is not None and error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED


def _place(clients: KafkaClients, topic: str, message: Message) -> tuple[int, int | None]:
    """Partition and offset; no offset at the end of a partition."""
    error, partition = message.error(), message.partition()
    if error is not None and error.code() != KafkaError._PARTITION_EOF:
        raise clients.error(error, f"reading topic {topic!r}")
    assert partition is not None  # librdkafka names it on records and on their end
    return partition, message.offset() if error is None else None


def _digest_of(message: Message, look: _Look) -> bytes:
    at = message.timestamp()[1] if look.with_time else None
    partition = message.partition() if look.with_partition else None
    return _digest(message.key(), message.value(), message.headers(), partition, at)


def _watermarks(clients: KafkaClients, consumer: Consumer, topic: str, partition: int) -> tuple[int, int]:
    try:
        low, high = consumer.get_watermark_offsets(TopicPartition(topic, partition), clients.timeout)
    except KafkaException as error:
        raise clients.error(error.args[0], f"reading the ends of {topic}[{partition}]") from error
    return int(low), int(high)
