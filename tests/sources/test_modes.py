"""Which sources a checkpointing mode can be kept with."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from airflow_ft import CustomSource, FileSource, KafkaSource, SocketSource
from airflow_ft.protocol.errors import ConfigurationError
from airflow_ft.protocol.model import CheckpointingMode
from airflow_ft.sources import Source, source_from_json
from airflow_ft.sources.modes import check_mode
from tests.raising import raises

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
def test_a_source_that_is_not_replayable_needs_at_most_once(mode: CheckpointingMode) -> None:
    with raises(ConfigurationError, "source_not_replayable", source="lines", mode=str(mode)) as caught:
        check_mode("lines", SOCKET, mode)
    assert caught.error is not None and "CheckpointingMode.AT_MOST_ONCE" in caught.error.remedy
    for source in (LATEST, *AGAIN):
        check_mode("lines", source, mode)


@pytest.mark.parametrize("source", AGAIN, ids=str)
def test_at_most_once_refuses_a_source_that_is_read_again(source: Source) -> None:
    with raises(ConfigurationError, "source_read_again", source="lines", mode="AT_MOST_ONCE") as caught:
        check_mode("lines", source, CheckpointingMode.AT_MOST_ONCE)
    assert caught.error is not None and "CheckpointingMode.EXACTLY_ONCE" in caught.error.remedy
    assert ('starting_offsets="latest"' in caught.error.remedy) == isinstance(source, KafkaSource)


def test_what_begins_where_it_stands_is_read_at_most_once() -> None:
    for source in (SOCKET, LATEST):
        check_mode("lines", source, CheckpointingMode.AT_MOST_ONCE)


def test_a_socket_survives_json() -> None:
    source = SocketSource(host="h", port=1, include_timestamp=True)
    assert source_from_json(source.to_json()) == source and source.conn_id is None


@pytest.mark.parametrize(
    ("arguments", "code", "argument"),
    [
        ({"host": "", "port": 1}, "argument_missing", "host"),
        ({"host": "h", "port": 0}, "argument_invalid", "port"),
        ({"host": "h", "port": 65536}, "argument_invalid", "port"),
    ],
)
def test_a_socket_that_cannot_work_is_refused(arguments: dict[str, Any], code: str, argument: str) -> None:
    with raises(ConfigurationError, code, argument=argument):
        SocketSource(**arguments)


@pytest.mark.parametrize(("argument", "value"), [("host", 5), ("port", "80"), ("include_timestamp", "no")])
def test_a_socket_with_an_argument_of_the_wrong_type_is_refused(argument: str, value: Any) -> None:
    with pytest.raises(ConfigurationError) as caught:
        SocketSource(**{"host": "h", "port": 80, argument: value})
    assert argument in caught.value.headline and repr(value) in caught.value.headline


def test_there_is_no_static_read_of_a_socket() -> None:
    spark: Any = None
    with raises(ConfigurationError, "static_read_refused"):
        SOCKET.read(spark, streaming=False)


@pytest.mark.parametrize("mode", CheckpointingMode)
@pytest.mark.parametrize("replayable", [True, False])
def test_a_class_of_ones_own_is_taken_at_its_word(mode: CheckpointingMode, replayable: bool) -> None:
    source = CustomSource(data_source="jobs.lines:Lines", replayable=replayable)
    if replayable == (mode is not CheckpointingMode.AT_MOST_ONCE):
        check_mode("lines", source, mode)
        return
    code = "source_read_again" if replayable else "source_not_replayable"
    with raises(ConfigurationError, code, source="lines", mode=str(mode)):
        check_mode("lines", source, mode)


def test_a_class_of_ones_own_survives_json() -> None:
    source = CustomSource(data_source="a.b:C.D", replayable=True, options={"path": "/x"}, schema="n bigint")
    assert source_from_json(source.to_json()) == source and source.conn_id is None


@pytest.mark.parametrize(
    ("argument", "value"),
    [("data_source", "jobs.lines"), ("data_source", 5), ("replayable", "yes"), ("options", 5), ("schema", 5)],
)
def test_a_class_that_cannot_be_found_by_what_is_said_is_refused(argument: str, value: Any) -> None:
    with pytest.raises(ConfigurationError) as caught:
        CustomSource(**{"data_source": "jobs.lines:Lines", "replayable": True, argument: value})
    assert argument in caught.value.headline and repr(value) in caught.value.headline
