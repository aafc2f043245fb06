"""A delivery without transactions. No broker."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest

from airflow_ft import KafkaSink
from airflow_ft.clients.kafka.client import KafkaClients, KafkaSettings
from airflow_ft.clients.kafka.topics import TopicLimits
from airflow_ft.protocol.errors import UnfitTargetError
from airflow_ft.protocol.model import CheckpointingMode, Fence, ParticipantPlan, Plan
from airflow_ft.sinks.kafka import cluster
from airflow_ft.sinks.kafka.plain import PlainParticipant
from airflow_ft.wal import open_wal
from airflow_ft.wal.writer import SegmentFolder, write_segment
from tests.raising import raises


def test_no_row_is_sent_whose_time_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a person lets refused rows be set aside: readers see at once what is sent."""
    table = pa.table({"id": [1], "at": [1_732_580_000_000]})
    segment = write_segment(SegmentFolder(str(tmp_path), "p", 1, 1, 1), 1, {"rows": table})
    sink = KafkaSink(topic="orders", timestamp="at")
    mine = ParticipantPlan("cluster", "kafka", "transaction", sink.at_least_once(), 0, {"rows": sink.settings()})
    plan = Plan("p", "i", 1, (segment,), (mine,), None, (), CheckpointingMode.AT_LEAST_ONCE)
    topic = TopicLimits("orders", 1, 1, 1, 0, True, log_append_time=True)
    monkeypatch.setattr(cluster, "describe", lambda *_: {"orders": topic})
    clients = KafkaClients(KafkaSettings(conn_id="cluster", common={}, producer={}))
    with (
        closing(PlainParticipant(mine, clients, open_wal())) as participant,
        raises(UnfitTargetError, "topic_setting_unfit", sink="rows"),
    ):
        participant.commit(plan, Fence("p", "i", 1, 1), set_aside=True)
