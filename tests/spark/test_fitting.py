"""The task's answer to the driver's question whether the sinks take the job's columns."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_ft.protocol.errors import AirflowFtError
from airflow_ft.sinks.hive.columns import schema_problems
from airflow_ft.sinks.hive.spec import HiveSink
from airflow_ft.spark.fitting import ANSWER, QUESTION, Answers
from tests.waiting import wait_for


def answer(folder: Path, **kinds: str) -> list[tuple[str, str]]:
    """Code and column of what Hive says of these types, one sink each."""

    def judge(schemas: Mapping[str, pa.Schema]) -> Sequence[AirflowFtError]:
        sink = HiveSink(table="metastore.shop.orders")
        return [problem for name, schema in schemas.items() for problem in schema_problems(sink, schema, None, name)]

    def schema(kind: str) -> dict[str, Any]:
        return {"type": "struct", "fields": [{"name": "c", "type": kind, "nullable": True, "metadata": {}}]}

    (folder / QUESTION).write_text(json.dumps({sink: schema(kind) for sink, kind in kinds.items()}))
    with Answers(folder, judge) as answers:
        answers.look()
        wait_for((folder / ANSWER).exists, 10, "an answer")
    found = json.loads((folder / ANSWER).read_text())
    return [(each["code"], each["sink"]) for each in found]


def test_time_is_judged_before_anything_is_computed(tmp_path: Path) -> None:
    assert answer(tmp_path, day="date", clock="time(6)") == [("type_unsupported", "clock")]


def test_a_sink_that_is_not_judged_causes_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert answer(tmp_path, new="a type of tomorrow", clock="time(6)") == [("type_unsupported", "clock")]
    [said] = caplog.messages
    assert said.startswith("COLUMNS_NOT_JUDGED") and "'new'" in said
