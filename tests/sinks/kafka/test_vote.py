"""What is judged of rows before a topic gets any. No broker."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_ft import KafkaSink
from airflow_ft.clients.kafka.topics import TopicLimits
from airflow_ft.protocol.errors import DeclinedError, UnfitTargetError
from airflow_ft.sinks.kafka.vote import SegmentRows, check_rows, refused_rows, short_lived
from airflow_ft.wal import open_wal
from airflow_ft.wal.writer import SegmentFolder, write_segment
from tests.raising import raises

LIMITS = TopicLimits("orders", partitions=1, replication=1, in_sync=1, leaderless=0, writable=True)
MOST = 1_000_000
NOW = 1_732_580_000_000


def rows_of(folder: Path, table: pa.Table) -> SegmentRows:
    segment = write_segment(SegmentFolder(str(folder), "p", 1, 1, 1), 1, {"rows": table})
    return SegmentRows("rows", KafkaSink(topic="orders"), open_wal().open(segment))


@pytest.mark.parametrize(
    "values",
    [
        pa.array([0, 20_000_000, 1], pa.date32()),
        pa.array([0, -800_000, 1], pa.date32()),
        pa.array([0, 1_732_580_000_000 * 1_000_000, 1], pa.timestamp("us", "UTC")),
        pa.array([[0], [20_000_000], []], pa.list_(pa.date32())),
        pa.array([{"at": 0}, {"at": 2**62}, None], pa.struct([("at", pa.timestamp("us"))])),
    ],
    ids=lambda values: str(values.type),
)
def test_a_year_outside_1_to_9999_is_refused_before_a_decision(tmp_path: Path, values: Any) -> None:
    """Milliseconds that were taken for seconds, say. The topic got `<value out of range: ...>`, and verify agreed."""
    rows = rows_of(tmp_path, pa.table({"id": [1, 2, 3], "at": values}))
    with pytest.raises(DeclinedError) as caught:
        check_rows(rows, LIMITS, MOST)
    assert caught.value.column == "at"
    [file] = rows.reader.files("rows")
    [(index, row, why)] = refused_rows(rows, file, LIMITS, MOST)
    assert (index, row["id"].to_pylist()) == (1, [2]) and "outside of the years 1 to 9999" in why


@pytest.mark.parametrize("values", [pa.array([-719_162, 2_932_896, None], pa.date32()), pa.array([[0], [], None])])
def test_others_are_taken(tmp_path: Path, values: Any) -> None:
    rows = rows_of(tmp_path, pa.table({"id": [1, 2, 3], "at": values}))
    check_rows(rows, LIMITS, MOST)
    [file] = rows.reader.files("rows")
    assert list(refused_rows(rows, file, LIMITS, MOST)) == []


def test_timestamps_that_the_brokers_would_replace_are_refused(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, pa.table({"id": [1], "at": [1_732_580_000_000]}))
    rows = replace(rows, sink=KafkaSink(topic="orders", timestamp="at"))
    check_rows(rows, LIMITS, MOST)
    brokers_time = TopicLimits("orders", 1, 1, 1, 0, True, log_append_time=True)
    setting = "message.timestamp.type"
    with raises(UnfitTargetError, "topic_setting_unfit", sink="rows", column="at", setting=setting):
        check_rows(rows, brokers_time, MOST)


def test_rows_that_a_topic_would_soon_delete_cause_a_warning(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, pa.table({"id": [1, 2], "at": [1_732_580_000_000, None]}))
    week = replace(LIMITS, retention_ms=604_800_000)
    assert short_lived(rows, week) == {}
    rows = replace(rows, sink=KafkaSink(topic="orders", timestamp="at"))
    [(name, warning)] = short_lived(rows, week).items()
    assert name == "orders.retention" and "604800000" in warning
    assert short_lived(rows, LIMITS) == short_lived(rows, replace(week, retention_ms=10**15)) == {}


def test_rows_refused_for_several_reasons_keep_their_order(tmp_path: Path) -> None:
    table = pa.table({"id": [1, 2, 3, 4], "x": [0.5, float("nan"), 1.5, 2.5], "text": ["", "", "a" * 2000, ""]})
    rows = rows_of(tmp_path, table)
    [file] = rows.reader.files("rows")
    assert [(index, why[:12]) for index, _, why in refused_rows(rows, file, LIMITS, 1000)] == [
        (1, "column 'x': "),
        (2, "its record w"),
    ]


HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


@pytest.mark.parametrize(
    ("role", "values"),
    [
        ("headers", pa.array([[("a", b"x")], None, [("b", b"y"), (None, b"z")], []], HEADERS)),
        ("headers", pa.array([[("a", b"x")], None, [None], []], HEADERS)),
        ("headers", pa.array([[("a", b"x")], None, [("a", b"x"), ("a\0b", b"y")], []], HEADERS)),
        ("partition", pa.array([0, None, -7, 0], pa.int32())),
        ("partition", pa.array([0, None, -1, 0], pa.int64())),
        ("timestamp", pa.array([NOW, None, -5, NOW], pa.int64())),
        ("timestamp", pa.array([NOW, None, 0, NOW], pa.timestamp("ms", "UTC"))),
        ("timestamp", pa.array([NOW, None, 2**58, NOW], pa.int64()).cast(pa.timestamp("us", "UTC"))),
    ],
    ids=["a header without a key", "a null header", "NUL", "-7", "-1", "before 1970", "1970 itself", "after 9999"],
)
def test_a_value_that_is_no_part_of_a_record_is_refused(tmp_path: Path, role: str, values: Any) -> None:
    """And found again among decided rows: NULL in the same column is no such value."""
    rows = rows_of(tmp_path, pa.table({"id": [1, 2, 3, 4], "part": values}))
    sink: dict[str, Any] = {role: "part"}
    rows = replace(rows, sink=KafkaSink(topic="orders", **sink))
    with pytest.raises(DeclinedError) as caught:
        check_rows(rows, LIMITS, MOST)
    assert caught.value.column == "part"
    [file] = rows.reader.files("rows")
    [(index, row, why)] = refused_rows(rows, file, LIMITS, MOST)
    assert (index, row["id"].to_pylist()) == (2, [3]) and "'part'" in why
