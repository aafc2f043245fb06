"""What the offsets of a micro-batch say of its size."""

import pytest

from airflow_ft.sources import FileSource, KafkaSource, Source
from airflow_ft.spark.driver.slices import is_at_most

KAFKA = KafkaSource(topics=["a"], conn_id="kafka")


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        ([{"a": {"0": 5, "1": 5}}], [{"a": {"0": 7, "1": 8}}], True),
        ([{"a": {"0": 5, "1": 5}}], [{"a": {"0": 7, "1": 9}}], False),
        ([{"a": {"0": 5}}], [{"a": {"0": 5, "1": 6}}], False),  # a new partition, which may begin anywhere
        ([{"a": {"0": 50, "1": 0}}], [{"a": {"0": 5, "1": 6}}], False),  # a partition that was cut short
        ([], [{"a": {"0": 5}}], True),
        ([], [{"a": {"0": 6}}], False),
    ],
)
def test_kafkas_offsets_bound_the_rows(start: list[object], end: list[object], expected: bool) -> None:
    assert is_at_most(5, {"orders": KAFKA}, start, end) is expected


@pytest.mark.parametrize("other", [None, FileSource(path="/in", format="csv", schema="id LONG")])
def test_sources_without_offsets_have_no_known_bound(other: Source | None) -> None:
    start, end = [{"a": {"0": 5}}, None], [{"a": {"0": 5}}, {"logOffset": 1}]
    assert not is_at_most(5, {"orders": KAFKA, "other": other}, start, end)


def test_the_rows_of_all_sources_count_together() -> None:
    start, end = [{"a": {"0": 0}}, {"a": {"0": 0}}], [{"a": {"0": 3}}, {"a": {"0": 3}}]
    assert not is_at_most(5, {"orders": KAFKA, "again": KAFKA}, start, end)
    assert is_at_most(6, {"orders": KAFKA, "again": KAFKA}, start, end)
