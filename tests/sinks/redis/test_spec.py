"""What a DAG author writes for Redis, and which rows it refuses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import redis

from airflow_ft import CassandraSink, RedisSink
from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.errors import ConfigurationError, StorageUnavailableError, UnfitTargetError
from airflow_ft.protocol.planning import plan_delivery
from airflow_ft.sinks.base.keyed import Chunk
from airflow_ft.sinks.redis import setup
from airflow_ft.sinks.redis.rows import entries, schema_problems, unfit
from airflow_ft.sinks.redis.server import _settings, failure, opened, wanted_replicas
from tests.raising import raises

DAY_10000 = 2_932_897
"""10000-01-01, in days since 1970."""
CUSTOMER = {"x": pa.array(["a", "a:b", "", None]), "y": pa.array(["b:c", "c", ":", "d"]), "n": [1, 2, 3, 4]}


@pytest.mark.parametrize(
    "given",
    [
        {"key": "orders"},
        {"key": "airflow_ft:{id}"},
        {"key": "{x}{y}"},
        {"key": "{x}:{x}"},
        {"key": "{}"},
        {"key": "{id:>9}"},
        {"key": "{id"},
        {"value": "list"},
        {"strategy": "local"},
        {"ttl_seconds": -1},
        {"wait_replicas": -1},
        {"version_field": 'a"'},
        {"conn_id": " "},
    ],
    ids=str,
)
def test_what_cannot_work_is_refused_at_once(given: dict[str, Any]) -> None:
    argument = next(iter(given))
    with raises(ConfigurationError, "argument_invalid", argument=argument):
        RedisSink(**{"key": "orders:{id}", **given})


def test_a_plan_keeps_its_settings() -> None:
    sink = RedisSink(key="o:{id}", conn_id="cache", value="json", strategy="atomic", ttl_seconds=60, shared=True)
    assert RedisSink.from_settings("cache", "atomic", sink.settings()) == sink
    with raises(ConfigurationError, "template_not_rendered"):
        RedisSink(key="o:{{ ds }}:{id}").settings()


def test_keys_that_could_be_equal_are_refused() -> None:
    sink = RedisSink(key="{x}:{y}")
    rows = pa.record_batch(CUSTOMER)
    assert set(unfit(sink, rows, np.zeros(4, np.bool_))) == {1}
    found = entries(sink, Chunk(0, "rows", rows.slice(0, 3), np.zeros(3, np.bool_), {1: "refused"}), 7)
    assert (found.keys[0], found.keys[2], found.kinds) == ("a:b:c", "::", [0, 2, 0])


def test_a_text_that_overlaps_with_what_follows_is_refused() -> None:
    rows = pa.record_batch({"x": ["a", ""], "y": ["b", "ab"], "n": [1, 2]})
    assert set(unfit(RedisSink(key="{x}aa{y}"), rows, np.zeros(2, np.bool_))) == {0}


def test_the_sign_of_a_whole_number_ends_no_number() -> None:
    numbers = pa.array([1, -1, 12, -1], pa.int64())
    rows = pa.record_batch({"x": numbers.dictionary_encode(), "y": numbers, "n": ["-", "a-", "a", ""]})
    sink = RedisSink(key="{x}-{y}-{n}")
    assert not unfit(sink, rows, np.zeros(4, np.bool_))
    found = entries(sink, Chunk(0, "rows", rows, np.zeros(4, np.bool_), {}), 7)
    assert found.keys == ["1-1--", "-1--1-a-", "12-12-a", "-1--1-"]
    assert set(unfit(RedisSink(key="{x}2{y}:{n}"), rows, np.zeros(4, np.bool_))) == {2}
    assert set(unfit(RedisSink(key="{n}-{x}:{y}"), rows, np.zeros(4, np.bool_))) == {0, 1}


def test_a_date_without_a_text_in_the_key_refuses_only_its_row() -> None:
    days = pa.array([0, DAY_10000], pa.int32()).cast(pa.date32())
    rows, sink = pa.record_batch({"day": days, "n": [1, 2]}), RedisSink(key="{day}:{n}", value="json")
    for deletes in (np.zeros(2, np.bool_), np.ones(2, np.bool_)):
        refused = unfit(sink, rows, deletes)
        assert set(refused) == {1} and "day" in refused[1]
        found = entries(sink, Chunk(0, "rows", rows, deletes, refused), 7)
        assert found.keys[0] == "1970-01-01:1" and found.kinds[1] == 2


def test_keys_of_the_sink_itself_are_refused() -> None:
    rows = pa.record_batch({"x": ["airflow_ft", "other"], "y": ["p", "q"], "n": [1, 2]})
    assert set(unfit(RedisSink(key="{x}:{y}"), rows, np.zeros(2, np.bool_))) == {0}


def test_a_misspelled_column_is_told_with_the_closest_one() -> None:
    schema = pa.schema({"Page_Id": pa.string(), "n": pa.int64()})
    [problem] = schema_problems(RedisSink(key="page:{page_id}"), schema, "rows")
    assert (problem.code, problem.column, problem.fields["argument"]) == ("job_column_missing", "page_id", "key")
    assert problem.fields["columns"] == ["Page_Id", "n"] and "'Page_Id'" in problem.remedy


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("page:{{page}}", "page:{page}"),
        ("{{ page }}", "{page}"),
        ("p:{{page}}:{{ day }}", "p:{page}:{day}"),
    ],
)
def test_columns_in_double_braces_are_refused(key: str, meant: str) -> None:
    with raises(ConfigurationError, "argument_invalid", argument="key", value=key) as caught:
        RedisSink(key=key)
    assert caught.error is not None and repr(meant) in caught.error.remedy


@pytest.mark.parametrize("sink", [RedisSink, CassandraSink])
def test_a_blank_name_is_refused(sink: Any) -> None:
    more = {"key": "{id}"} if sink is RedisSink else {"table": "t"}
    with raises(ConfigurationError, "argument_invalid", argument="change_column", of=sink.__name__):
        sink(change_column=" ", **more)


@pytest.mark.parametrize(
    "key", ["{{ params.key }}", "{{ ds }}:{id}", "{{ env }}:{id}", "{{ var.value.key }}", "{% x %}"]
)
def test_jinja_in_a_key_is_left_for_a_run(key: str) -> None:
    assert RedisSink(key=key).key == key


@pytest.mark.parametrize(
    ("sink", "code"),
    [
        (RedisSink(key="o:{no}"), "job_column_missing"),
        (RedisSink(key="o:{x}", change_column="no"), "job_column_missing"),
        (RedisSink(key="o:{ratio}"), "type_unsupported"),
        (RedisSink(key="o:{price}"), "type_unsupported"),
        (RedisSink(key="o:{x}", value="string"), "column_unfit"),
        (RedisSink(key="o:{x}", version_field="n"), "column_reserved"),
    ],
    ids=str,
)
def test_columns_that_do_not_fit_are_named(sink: RedisSink, code: str) -> None:
    schema = pa.schema({"x": pa.string(), "n": pa.int64(), "ratio": pa.float64(), "price": pa.decimal128(10, 2)})
    [problem] = schema_problems(sink, schema, "rows")
    assert problem.code == code and problem.sink == "rows" and problem.remedy
    assert isinstance(problem, UnfitTargetError) or code == "job_column_missing"


def test_printed_settings_outlive_a_restart_of_the_server() -> None:
    """Redis ignores the AOF at its start if only the running server knew of it."""
    [planned] = plan_delivery({"rows": RedisSink(key="orders:{id}")}).participants
    lines = list(setup.describe("orders", planned, ConnectionInfo("redis_default", "redis")))
    assert lines[-1] == "CONFIG REWRITE" and any("ACL SAVE" in each for each in lines if each.startswith("#"))


def test_a_log_that_is_away_is_not_reported_as_redis() -> None:
    with (
        raises(StorageUnavailableError, "storage_unavailable", path="hdfs://nn/wal"),
        opened(ConnectionInfo("cache", "redis")),
    ):
        raise StorageUnavailableError("the log is away.", remedy="Start the NameNode.", path="hdfs://nn/wal")


class OldRedis(redis.Redis):
    """Takes one name at a time, as Redis does before 7.0."""

    def config_get(self, pattern: Any = "*", *others: Any, **_: Any) -> Any:
        if others:
            raise redis.ResponseError("Unknown subcommand or wrong number of arguments for 'GET'. Try CONFIG HELP.")
        return {pattern: "always"}


def test_the_settings_of_a_redis_before_7_0_are_read() -> None:
    assert _settings(OldRedis())["appendfsync"] == "always"


@pytest.mark.parametrize(
    "words",
    [
        "The user executing the script can't run this command or subcommand script: 5ff0, on @user_script:72.",
        "ACL failure in script: User loader has no permissions to run the 'hset' command script: 5ff0",  # Valkey
    ],
)
def test_a_right_that_a_script_lacks_is_missing_for_all_servers(words: str) -> None:
    assert failure(redis.ResponseError(words), "cache:6379/0").code == "privilege_missing"


def test_the_sink_that_waits_for_most_replicas_counts() -> None:
    sinks = [RedisSink(key=f"{each}:{{id}}", wait_replicas=each) for each in (1, 2, 0)]
    assert wanted_replicas(sinks) == 2 and wanted_replicas([]) == 0
