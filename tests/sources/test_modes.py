"""Which sources a checkpointing mode can be kept with."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from airflow_ft import CustomSource, FileSource, KafkaSource, SocketSource
from airflow_ft.core.errors import ConfigurationError
from airflow_ft.core.model import CheckpointingMode
from airflow_ft.sources import Source, source_from_json
from airflow_ft.sources.modes import check_mode

SOCKET = SocketSource(host="localhost", port=9999)
LATEST = KafkaSource(topics=["t"], starting_offsets="latest")
FILES = FileSource(path="/data", schema="id bigint")
AGAIN: list[Source] = [
    KafkaSource(topics=["t"]),
    KafkaSource(topics=["t"], starting_offsets="group_offsets", group_id="g"),
    KafkaSource(topics=["t"], starting_offsets={"t": {0: 5}}),
    KafkaSource(topics=["t"], starting_offsets=dt.datetime(2026, 1, 1, tzinfo=dt.UTC)),
    FILES,
]


@pytest.mark.parametrize("mode", [CheckpointingMode.EXACTLY_ONCE, CheckpointingMode.AT_LEAST_ONCE])
def test_what_cannot_be_replayed_is_refused_where_no_row_may_be_lost(mode: CheckpointingMode) -> None:
    with pytest.raises(
        ConfigurationError, match=rf"'lines' is a socket, which cannot be replayed.*mode {mode}"
    ) as caught:
        check_mode("lines", SOCKET, mode)
    assert "CheckpointingMode.AT_MOST_ONCE" in caught.value.remedy
    for source in (LATEST, *AGAIN):
        check_mode("lines", source, mode)


@pytest.mark.parametrize("source", AGAIN, ids=str)
def test_what_each_attempt_would_read_again_is_refused_where_no_row_may_come_twice(source: Source) -> None:
    with pytest.raises(ConfigurationError, match=r"AT_MOST_ONCE.*source 'lines'.*its rows would come twice") as caught:
        check_mode("lines", source, CheckpointingMode.AT_MOST_ONCE)
    assert "CheckpointingMode.EXACTLY_ONCE" in caught.value.remedy
    assert ('starting_offsets="latest"' in caught.value.remedy) == isinstance(source, KafkaSource)


def test_what_begins_where_it_stands_is_read_at_most_once() -> None:
    for source in (SOCKET, LATEST):
        check_mode("lines", source, CheckpointingMode.AT_MOST_ONCE)


def test_a_socket_survives_json() -> None:
    source = SocketSource(host="h", port=1, include_timestamp=True)
    assert source_from_json(source.to_json()) == source and source.conn_id is None


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"host": "", "port": 1}, "needs the name or address"),
        ({"host": 5, "port": 1}, "host is 5"),
        ({"host": "h", "port": 0}, "port is 0.*from 1 to 65535"),
        ({"host": "h", "port": 65536}, "port is 65536"),
        ({"host": "h", "port": "80"}, "port is '80'"),
        ({"host": "h", "port": 80, "include_timestamp": "no"}, "include_timestamp is 'no'"),
    ],
)
def test_a_socket_that_cannot_work_is_refused(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        SocketSource(**arguments)


def test_there_is_no_static_read_of_a_socket() -> None:
    spark: Any = None
    with pytest.raises(ConfigurationError, match="has no end"):
        SOCKET.read(spark, streaming=False)


@pytest.mark.parametrize("mode", CheckpointingMode)
@pytest.mark.parametrize("replayable", [True, False])
def test_a_class_of_ones_own_is_taken_at_its_word(mode: CheckpointingMode, replayable: bool) -> None:
    source = CustomSource(data_source="jobs.lines:Lines", replayable=replayable)
    if replayable == (mode is not CheckpointingMode.AT_MOST_ONCE):
        check_mode("lines", source, mode)
        return
    words = (
        "'lines' says replayable=False.*cannot be kept" if not replayable else "'lines' would be read from its initial"
    )
    with pytest.raises(ConfigurationError, match=words):
        check_mode("lines", source, mode)


def test_a_class_of_ones_own_survives_json() -> None:
    source = CustomSource(data_source="a.b:C.D", replayable=True, options={"path": "/x"}, schema="n bigint")
    assert source_from_json(source.to_json()) == source and source.conn_id is None


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"data_source": "jobs.lines"}, "data_source of CustomSource is 'jobs.lines'"),
        ({"data_source": 5}, "data_source is 5"),
        ({"replayable": "yes"}, "replayable is 'yes'"),
        ({"options": 5}, "options is 5"),
        ({"schema": 5}, "schema is 5"),
    ],
)
def test_a_class_that_cannot_be_found_by_what_is_said_is_refused(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        CustomSource(**{"data_source": "jobs.lines:Lines", "replayable": True, **arguments})
