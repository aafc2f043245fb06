"""Flink's keys: what is taken, what is refused with the reason, what is warned of; and that the page says the same."""

from __future__ import annotations

import logging
import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from airflow_ft.core.config import CheckpointConfig
from airflow_ft.core.errors import ConfigurationError
from airflow_ft.core.flink import KEYS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "from-flink.md"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("10 min", timedelta(minutes=10)),
        ("90s", timedelta(seconds=90)),
        ("600000", timedelta(minutes=10)),
        (600000, timedelta(minutes=10)),
        ("1500 ms", timedelta(seconds=1.5)),
        ("2 Hours", timedelta(hours=2)),
        ("1d", timedelta(days=1)),
        ("5 millis", None),
        ("soon", "give a duration"),
        ("-1 s", "give a duration"),
        ("1.5 s", "give a duration"),
        ("3 parsecs", "give a duration"),
        (None, "give a duration"),
    ],
)
def test_durations_are_read_as_flink_reads_them(text: Any, expected: Any) -> None:
    settings = {"execution.checkpointing.timeout": text}
    if isinstance(expected, timedelta):
        assert CheckpointConfig.from_flink(settings) == CheckpointConfig(timeout=expected)
    else:  # no duration, or one under the least
        with pytest.raises(ConfigurationError, match=expected or "at least 1 s"):
            CheckpointConfig.from_flink(settings)


def test_what_is_taken_counts_as_given() -> None:
    config = CheckpointConfig.from_flink({"state.checkpoints.num-retained": "7"})
    assert config.to_json() == {"num_retained": 7}
    assert CheckpointConfig.from_flink({}).to_json() == {}


def test_every_key_that_would_promise_more_is_named_with_its_reason() -> None:
    with pytest.raises(ConfigurationError) as caught:
        CheckpointConfig.from_flink(
            {
                "execution.checkpointing.interval": "10s",
                "execution.checkpointing.mode": "AT_LEAST_ONCE",
                "execution.checkpointing.timeout": "10min",
                "execution.checkpointing.speed": "fast",
                "restart-strategy.type": "none",
            }
        )
    for words in ("interval='10s': a pipeline is cut by", "mode='AT_LEAST_ONCE'", "speed: Flink has no", "restart-str"):
        assert words in str(caught.value)
    assert "timeout" not in str(caught.value)


def test_a_value_that_is_what_is_done_anyway_is_no_mistake(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    CheckpointConfig.from_flink(
        {
            "execution.checkpointing.mode": "exactly_once",
            "execution.checkpointing.unaligned.enabled": False,
            "execution.checkpointing.min-pause": 0,
            "execution.checkpointing.tolerable-failed-checkpoints": 0,
        }
    )
    assert not caplog.records
    CheckpointConfig.from_flink({"execution.checkpointing.dir": "s3://x"})
    assert ["execution.checkpointing.dir has no effect" in record.getMessage() for record in caplog.records] == [True]


def test_the_page_names_each_key() -> None:
    table = PAGE.read_text().partition("| key | here | status |")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`.+?) \| (.+?) \|", table, re.MULTILINE)
    shown = {key: text for keys, text in rows for key in re.findall(r"`([\w.-]+)`", keys)}
    kinds = {"_Refused": "refused", "_Idle": "no effect", "_Taken": "`CheckpointConfig."}
    for key, meaning in KEYS.items():
        assert shown.pop(key, "").startswith(kinds[type(meaning).__name__]), key
    assert not shown
