"""What the Kafka tests share: plans over real segments of the log, and an own reader of topics."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, TopicPartition

from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.model import CheckpointingMode, Fence, ParticipantPlan, Plan, Segment
from airflow_ft.protocol.votes import Vote
from airflow_ft.sinks.kafka import KafkaSink
from airflow_ft.sinks.kafka.cluster import KafkaParticipant
from airflow_ft.sinks.kafka.participant import open_participant
from airflow_ft.wal import open_wal
from airflow_ft.wal.writer import SegmentFolder, write_segment

CONN_ID = "kafka_default"
_NO_LEADER_YET = (
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError._UNKNOWN_PARTITION,
)


@dataclass
class World:
    """One pipeline that delivers to one cluster; numbers and attempts are given out as the store would."""

    root: Path
    bootstrap: str
    sinks: Mapping[str, KafkaSink]
    pipeline: str = field(default_factory=lambda: f"p{uuid.uuid4().hex[:8]}")
    installation: str = field(default_factory=lambda: str(uuid.uuid4()))
    extra: dict[str, Any] = field(default_factory=dict)
    epoch: int = 1
    attempt: int = 0
    votes: dict[int, Vote] = field(default_factory=dict)
    mode: CheckpointingMode = CheckpointingMode.EXACTLY_ONCE

    @property
    def connection(self) -> ConnectionInfo:
        extra = {"bootstrap.servers": self.bootstrap, "airflow_ft_timeout": 60, **self.extra}
        return ConnectionInfo(CONN_ID, "kafka", extra=extra)

    def fence(self, epoch: int | None = None, attempt: int | None = None) -> Fence:
        """A new attempt of the current epoch, unless told otherwise."""
        if attempt is None:
            self.attempt += 1
            attempt = self.attempt
        return Fence(self.pipeline, self.installation, self.epoch if epoch is None else epoch, attempt)

    def segment(self, number: int, tables: Mapping[str, pa.Table]) -> Segment:
        folder = SegmentFolder(str(self.root / "wal"), self.pipeline, 1, len(list(self.root.glob("wal/*/*"))), number)
        return write_segment(folder, number, tables)

    def plan(self, number: int, *segments: Segment, predecessor: int | None = None) -> Plan:
        first = next(iter(self.sinks.values()))
        participant = ParticipantPlan(
            name=CONN_ID,
            kind="kafka",
            strategy=first.strategy,
            promise=first.promise if self.mode is CheckpointingMode.EXACTLY_ONCE else first.at_least_once(),
            predecessor=number - 1 if predecessor is None else predecessor,
            sinks={name: sink.settings() for name, sink in self.sinks.items()},
        )
        return Plan.from_json(
            Plan(self.pipeline, self.installation, number, segments, (participant,), None, (), self.mode).to_json()
        )  # as the store gives it back

    def checkpoint(self, number: int, rows: int, sink: str = "alerts", predecessor: int | None = None) -> Plan:
        """A plan whose rows of one sink are `{"id": number * 1_000_000 + i}`."""
        return self.plan(number, self.segment(number, {sink: ids(number, rows)}), predecessor=predecessor)

    def open(self, plan: Plan, wal: Any = None, **extra: Any) -> KafkaParticipant:
        connection = self.connection
        connection = ConnectionInfo(CONN_ID, "kafka", extra={**connection.extra, **extra})
        return open_participant(plan.participants[0], connection, wal or open_wal())

    def prepare(self, plan: Plan, delivered: int = 0) -> Mapping[str, Any]:
        """Prepares, and keeps the vote for `commit` as the store would."""
        participant = self.open(plan)
        fence = replace(self.fence(), delivered=delivered)
        try:
            notes = participant.prepare(plan, fence)
        finally:
            participant.close()
        self.vote(plan, fence, notes)
        return notes

    def vote(self, plan: Plan, fence: Fence, notes: Mapping[str, Any]) -> Vote:
        """The vote of a prepare, after a way through the store's JSON."""
        vote = Vote(CONN_ID, fence.attempt, fence.attempt, None, json.loads(json.dumps(notes)))
        self.votes[plan.number] = vote
        return vote

    def commit(self, plan: Plan) -> Any:
        participant = self.open(plan)
        try:
            return participant.commit(plan, self.fence(), self.votes.get(plan.number))
        finally:
            participant.close()

    def abort(self, plan: Plan) -> Any:
        participant = self.open(plan)
        try:
            return participant.abort(plan, self.fence(), {"why": "test"})
        finally:
            participant.close()

    def deliver(self, number: int, rows: int) -> Plan:
        plan = self.checkpoint(number, rows)
        self.prepare(plan)
        self.commit(plan)
        return plan


def token_numbers(participant: KafkaParticipant, pipeline: str) -> list[int | None]:
    """The number of each slot's token; None: it is gone, or was never written."""
    tokens = [slot.read_token() for slot in participant._tokens.slots(pipeline)]
    return [token.number if token is not None else None for token in tokens]


def ids(number: int, rows: int) -> pa.Table:
    return pa.table({"id": pa.array(range(number * 1_000_000, number * 1_000_000 + rows), pa.int64())})


def read(bootstrap: str, topic: str, isolation: str = "read_committed", seconds: float = 30) -> list[Message]:
    """All records of a topic up to the present end of each partition under `isolation`."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": f"reader-{uuid.uuid4().hex}",
            "isolation.level": isolation,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 10,  # by default a broker waits half a second before it says that this is the end
            "log_level": 0,
        }
    )
    try:
        partitions = list(consumer.list_topics(topic, 30).topics[topic].partitions)
        waiting = set()
        for partition in partitions:
            low, high = _watermarks(consumer, TopicPartition(topic, partition))
            if high > low:
                waiting.add(partition)
        consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in partitions])
        found: list[Message] = []
        while waiting:
            message = consumer.poll(seconds)
            assert message is not None, f"no answer while reading {topic}, partitions {waiting}"
            error = message.error()
            if error is not None:
                assert error.name() == "_PARTITION_EOF", error
                waiting.discard(message.partition())
            else:
                found.append(message)
        return found
    finally:
        consumer.close()


def _watermarks(consumer: Consumer, place: TopicPartition, seconds: float = 30) -> tuple[int, int]:
    """The ends of a partition, whose leader may not know yet that it leads: a topic that was never written."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return consumer.get_watermark_offsets(place, seconds)
        except KafkaException as error:
            if error.args[0].code() not in _NO_LEADER_YET or time.monotonic() > deadline:
                raise
            time.sleep(0.02)


def read_ids(bootstrap: str, topic: str) -> list[int]:
    """The ids of all committed records, sorted: duplicates stay visible."""
    return sorted(value(message)["id"] for message in read(bootstrap, topic))


def value(message: Message) -> Any:
    """The JSON value of a record."""
    return json.loads(message.value() or b"")


def expected_ids(*numbers_and_rows: tuple[int, int]) -> list[int]:
    return [number * 1_000_000 + i for number, rows in numbers_and_rows for i in range(rows)]
