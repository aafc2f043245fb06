"""docs/from-spark.md: what it reads of a query's checkpoint location is where a pipeline may begin."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from airflow_ft import KafkaSource
from airflow_ft.spark.state.location_files import COMMITS, OFFSETS, Entry, add_entry

PAGE = Path(__file__).parents[2] / "docs" / "from-spark.md"


def query_status(location: Path) -> Any:
    code = next(
        text for text in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL) if "def query_status" in text
    )
    names: dict[str, Any] = {}
    exec(code, names)
    return names["query_status"](location)


def batch(location: Path, number: int, *sources: str, committed: bool = True) -> None:
    add_entry(str(location), OFFSETS, number, Entry("v1", {"batchWatermarkMs": 0, "conf": {}}, sources))
    (location / OFFSETS / f".{number}.crc").write_bytes(b"crc")
    (location / COMMITS).mkdir(exist_ok=True)
    if committed:
        add_entry(str(location), COMMITS, number, Entry("v1", {"nextBatchWatermarkMs": 0}))


def test_a_pipeline_may_begin_where_a_query_last_committed(tmp_path: Path) -> None:
    batch(tmp_path, 9, '{"orders":{"0":5,"1":7}}', '{"a":{"0":1}}')
    batch(tmp_path, 10, '{"orders":{"1":9,"0":5}}', '{"a":{"0":2},"b":{"0":0}}')
    orders, others = query_status(tmp_path)
    assert KafkaSource(topics=["orders"], starting_offsets=orders).starting_offsets == {"orders": {0: 5, 1: 9}}
    assert KafkaSource(topics=["a", "b"], starting_offsets=others).starting_offsets == {"a": {0: 2}, "b": {0: 0}}


@pytest.mark.parametrize("first", [True, False])
def test_a_batch_that_was_begun_alone_is_no_place_to_begin(tmp_path: Path, first: bool) -> None:
    if not first:
        batch(tmp_path, 0, '{"orders":{"0":5}}')
    batch(tmp_path, int(not first), '{"orders":{"0":6}}', committed=False)
    with pytest.raises(SystemExit) as ended:
        query_status(tmp_path)
    assert ended.value.code not in (None, 0)
