"""Which parts of a record are compared with the log. No broker."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from airflow_ft import KafkaSink
from airflow_ft.clients.kafka.topics import TopicLimits
from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.model import ParticipantPlan, Plan
from airflow_ft.protocol.verify import Delivered
from airflow_ft.protocol.votes import Outcome, Proof
from airflow_ft.sinks.kafka import verify
from airflow_ft.wal import open_wal
from airflow_ft.wal.writer import SegmentFolder, write_segment

SINK = KafkaSink(topic="orders", value="v", partition="p", timestamp="t")
NOW = 1_732_580_000_000


def missing(
    folder: Path, patched: pytest.MonkeyPatch, rows: pa.Table, records: Sequence[tuple[bytes, int, int]]
) -> int:
    """How many of these rows are missing where the topic has these records (value, partition, time)."""
    segment = write_segment(SegmentFolder(str(folder), "p", 1, 1, 1), 1, {"rows": rows})
    mine = ParticipantPlan("cluster", "kafka", "transaction", SINK.promise, 0, {"rows": SINK.settings()})
    messages = [
        SimpleNamespace(
            key=lambda: None,
            value=lambda record=record: record[0],
            headers=lambda: None,
            partition=lambda record=record: record[1],
            timestamp=lambda record=record: (1, record[2]),
        )
        for record in records
    ]

    def read(clients: Any, group: str, topic: str, window: Any, found: Any, look: Any) -> int:
        found.found([verify._digest_of(message, look) for message in messages])
        return 0

    patched.setattr(verify, "describe", lambda *_: {"orders": TopicLimits("orders", 4, 1, 1, 0, True)})
    patched.setattr(verify, "topic_ids", lambda *_: {"orders": ""})
    patched.setattr(verify, "_read", read)
    connection = ConnectionInfo("cluster", "kafka", extra={"bootstrap.servers": "localhost"})
    delivered = [Delivered(Plan("p", "i", 1, (segment,), (mine,), None, ()), None, None)]
    [report] = verify.verify(delivered, mine, connection, open_wal())
    return report.missing


def table(partitions: Sequence[int | None], times: Sequence[int | None]) -> pa.Table:
    return pa.table({"v": [b"1", b"2"], "p": pa.array(partitions, pa.int32()), "t": pa.array(times, pa.int64())})


@pytest.mark.parametrize(
    ("partitions", "times", "found"),
    [
        ((0, 1), (NOW, NOW), 0),
        ((0, None), (NOW, None), 0),
        ((0, 2), (NOW, None), 1),
        ((0, None), (NOW, NOW + 1), 1),
    ],
    ids=["as it is", "both chosen by Kafka", "another partition", "another time"],
)
def test_what_kafka_chose_is_no_difference(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    partitions: Sequence[int | None],
    times: Sequence[int | None],
    found: int,
) -> None:
    """NULL counted as partition -1 and as the time 0: an intact record was missing, and `insert it` doubled it."""
    records = [(b"1", 0, NOW), (b"2", 1, NOW)]
    assert missing(tmp_path, monkeypatch, table(partitions, times), records) == found


def test_a_partition_is_read_behind_the_newest_earlier_record() -> None:
    def proof(number: int, *partitions: int, rows: int | None = None) -> Proof:
        ends = {str(partition): {"records": 1, "last_offset": number} for partition in partitions}
        counts = {"orders": len(partitions) if rows is None else rows}
        return Proof("cluster", number, Outcome.COMMITTED, "d", 1, counts, {"partitions": {"orders": ends}})

    topic = TopicLimits("orders", 2, 1, 1, 0, True)
    plan = Plan("p", "i", 9, (), (), None, ())
    for earlier, begin in (
        ((proof(8, 1),), 9),
        ((proof(8, 0), proof(7), proof(6, 1), proof(5, 1)), 7),
        ((proof(8, 0), proof(7, 0)), 0),
        ((proof(8, 0), proof(7, 0, rows=2), proof(6, 1)), 0),  # the other record may be in partition 1
    ):
        delivered = [Delivered(plan, proof(9, 1), earlier[0], earlier=lambda found=earlier: found[1:])]  # type: ignore[misc]
        window, _ = verify._window(delivered, verify._Topic(topic, ""), topic)
        assert window[1] == (begin, 10) and verify._read_whole(delivered, window) == [1] * (begin == 0)
