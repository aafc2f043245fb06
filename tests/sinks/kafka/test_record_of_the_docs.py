"""The record that docs/kafka.md shows is what the sink sends."""

import re
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa

from airflow_ft import KafkaSink
from airflow_ft.sinks.kafka.records import RecordEncoder

PAGE = Path(__file__).parents[3] / "docs" / "kafka.md"


def test_the_record_of_the_page_is_what_a_row_becomes() -> None:
    rows = pa.table(
        {
            "customer": ["ann"],
            "id": pa.array([17], pa.int64()),
            "amount": pa.array([Decimal("12.50")], pa.decimal128(12, 2)),
            "ratio": [1.0],
            "at": pa.array([datetime(2026, 11, 24, 12, 0, 0, 250, tzinfo=UTC)], pa.timestamp("us", "UTC")),
            "day": [date(2026, 11, 24)],
            "tags": [["a", None]],
            "note": pa.array([None], pa.string()),
            "raw": [b"\x00\xff"],
        }
    )
    encoder = RecordEncoder(KafkaSink(topic="orders", key="customer"), rows.schema)
    [records] = [records for batch in rows.to_batches() for records in encoder.encode(batch)]
    [shown] = re.findall(r"```json\n(.*?)\n```", PAGE.read_text())
    assert (records.keys, records.values) == ([b"ann"], [shown.encode()])
