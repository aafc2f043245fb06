"""What speaks against columns, asked of real servers: nothing is written there, and who is away is passed over."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.errors import AirflowFtError, ConfigurationError, DeclinedError, UnfitTargetError
from airflow_ft.protocol.planning import plan_delivery
from airflow_ft.sinks.base.requirements import lacks
from airflow_ft.sinks.fitting import schema_problems
from airflow_ft.sinks.kafka.doctor import examine
from airflow_ft.sinks.kafka.requirements import required
from airflow_ft.sinks.kafka.spec import KafkaSink
from airflow_ft.sinks.mysql.spec import MySqlSink
from tests.conftest import TopicFactory
from tools.servers import Database, Kafka
from tools.servers.processes import free_port

ROWS = pa.schema([("id", pa.int64()), ("name", pa.string()), ("op", pa.string())])
UPSERT: Mapping[str, Any] = {"strategy": "upsert", "key_columns": ["id"], "version_column": "version"}


def of_table(database: Database, table: str, **settings: Any) -> list[AirflowFtError]:
    server: Any = database.server
    shop = ConnectionInfo("shop", "mysql", server.host, server.port, server.user, server.password, database.name)
    database.sql(f"CREATE TABLE orders ({table}) ENGINE=InnoDB")
    plan = plan_delivery({"orders": MySqlSink(table="orders", conn_id="shop", **settings)})
    return schema_problems(plan.participants, lambda _: shop, {"orders": ROWS})


MYSQL: dict[str, tuple[str, Mapping[str, Any], list[tuple[type[AirflowFtError], str, str]]]] = {
    # name: columns of the table, settings, what is found: class, column, code
    "fits": ("id BIGINT, name TEXT, op TEXT, more INT", {}, []),
    "values are not judged": ("id TINYINT NOT NULL, name VARCHAR(1), op CHAR(1)", {}, []),
    "everything": (
        "id DATE, must INT NOT NULL, op INT AS (must)",
        {},
        [
            (UnfitTargetError, "name", "column_missing"),
            (UnfitTargetError, "must", "column_required"),
            (UnfitTargetError, "id", "column_unfit"),
            (UnfitTargetError, "op", "column_generated"),
        ],
    ),
    "upsert": ("id BIGINT PRIMARY KEY, name TEXT, op TEXT, version BIGINT", UPSERT, []),
    "upsert with deletes": (
        "id BIGINT PRIMARY KEY, name TEXT, op TEXT, version BIGINT",
        {**UPSERT, "change_column": "kind"},
        [(DeclinedError, "kind", "job_column_missing")],
    ),
    "upsert without a key": (
        "id BIGINT, name TEXT, version BIGINT",
        UPSERT,
        [(UnfitTargetError, "", "key_unfit"), (UnfitTargetError, "op", "column_missing")],
    ),
    "upsert by a misspelled key": (
        "id BIGINT PRIMARY KEY, name TEXT, op TEXT, version BIGINT",
        {**UPSERT, "key_columns": ["idd"]},
        [(UnfitTargetError, "idd", "column_missing"), (DeclinedError, "idd", "job_column_missing")],
    ),
}


@pytest.mark.parametrize("name", MYSQL)
def test_a_table_is_compared_with_columns(any_mysql_database: Database, name: str) -> None:
    table, settings, wanted = MYSQL[name]
    found = of_table(any_mysql_database, table, **settings)
    assert [(type(problem), problem.column) for problem in found] == [(kind, column) for kind, column, _ in wanted]
    for problem, (_, _, code) in zip(found, wanted, strict=True):
        assert problem.code == code and problem.remedy
        assert (problem.participant, problem.sink) == ("shop", "orders")
        assert ("'id'" in problem.remedy) is (problem.column == "idd"), "the closest name"
    assert any_mysql_database.sql("SHOW TABLES") == [("orders",)], "neither ledger nor head"


def test_a_locked_table_does_not_hold_up_the_check_of_columns(any_mysql_database: Database) -> None:
    """Whoever holds it, rows are staged; and whether the server can tell its columns meanwhile is its own matter."""
    any_mysql_database.sql("CREATE TABLE other (id INT) ENGINE=InnoDB")
    import pymysql

    server: Any = any_mysql_database.server
    with pymysql.connect(
        host=server.host, port=server.port, user=server.user, password=server.password, database=any_mysql_database.name
    ) as holder:
        any_mysql_database.sql("CREATE TABLE orders (id BIGINT, name TEXT, op TEXT) ENGINE=InnoDB")
        holder.cursor().execute("LOCK TABLES orders WRITE")
        shop = ConnectionInfo(
            "shop", "mysql", server.host, server.port, server.user, server.password, any_mysql_database.name
        )
        plan = plan_delivery({"orders": MySqlSink(table="orders", conn_id="shop")})
        assert schema_problems(plan.participants, lambda _: shop, {"orders": ROWS}) == []


def test_a_topic_is_compared_with_columns(kafka: Kafka, topic_factory: TopicFactory) -> None:
    compacted = topic_factory(1, {"cleanup.policy": "compact"})
    sinks: Mapping[str, Any] = {
        "fits": KafkaSink(topic=topic_factory(1), conn_id="bus", key="id"),
        "keyless": KafkaSink(topic=compacted, conn_id="bus"),
        "wrong": KafkaSink(topic=compacted, conn_id="bus", key="nokey", timestamp="name"),
        "nowhere": KafkaSink(topic="t-nowhere", conn_id="bus"),
        "optional": KafkaSink(topic="t-nowhere-else", conn_id="bus"),
    }
    bus = ConnectionInfo("bus", "kafka", extra={"bootstrap.servers": kafka.bootstrap})
    schemas = dict.fromkeys([name for name in sinks if name != "optional"], ROWS)
    found = schema_problems(plan_delivery(sinks).participants, lambda _: bus, schemas)
    assert sorted((problem.sink, type(problem).__name__, problem.column) for problem in found) == [
        ("keyless", "UnfitTargetError", ""),
        ("nowhere", "SinkAccessError", ""),
        ("wrong", "DeclinedError", "name"),
        ("wrong", "DeclinedError", "nokey"),
    ]
    assert not {"t-nowhere", "t-nowhere-else"} & set(kafka.admin().list_topics(timeout=30).topics)


def test_a_topic_that_replaces_mapped_timestamps_is_refused(kafka: Kafka, topic_factory: TopicFactory) -> None:
    """The brokers put their own time in the place of the column's."""
    topic = topic_factory(1, {"message.timestamp.type": "LogAppendTime"})
    sinks: Mapping[str, Any] = {
        "times": KafkaSink(topic=topic, conn_id="bus", timestamp="id"),
        "others": KafkaSink(topic=topic, conn_id="bus"),
    }
    bus = ConnectionInfo("bus", "kafka", extra={"bootstrap.servers": kafka.bootstrap})
    [plan] = plan_delivery(sinks).participants
    for found in (schema_problems([plan], lambda _: bus, dict.fromkeys(sinks, ROWS)), lacks(required("p", plan, bus))):
        assert [(type(problem), problem.sink, problem.column) for problem in found] == [
            (UnfitTargetError, "times", "id")
        ]
        assert f"--topic {topic} --add-config message.timestamp.type=CreateTime" in found[0].remedy
    checks = examine("p", plan, bus, ())
    assert [check.name for check in checks if "LogAppendTime" in check.text] == [f"topic {topic}"]


def test_a_system_that_cannot_be_asked_does_not_hide_the_others(
    mariadb_database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    mariadb_database.sql("CREATE TABLE orders (id BIGINT) ENGINE=InnoDB")
    server: Any = mariadb_database.server
    shop = ConnectionInfo("shop", "mysql", server.host, server.port, server.user, server.password, "")
    away = ConnectionInfo("bus", "kafka", extra={"bootstrap.servers": "127.0.0.1:1", "airflow_ft_timeout": 1})

    def connections(conn_id: str) -> ConnectionInfo:
        if conn_id == "undefined":
            raise ConfigurationError("no such connection.", participant=conn_id)
        if conn_id == "down":
            return ConnectionInfo("down", "mysql", "127.0.0.1", free_port(), "a", "b", "c")
        return shop if conn_id == "shop" else away

    sinks: Mapping[str, Any] = {
        "rows": MySqlSink(table=f"{mariadb_database.name}.orders", conn_id="shop"),
        "down": MySqlSink(table="orders", conn_id="down"),
        "undefined": MySqlSink(table="orders", conn_id="undefined"),
        "copies": KafkaSink(topic="t", conn_id="bus"),
    }
    found = schema_problems(plan_delivery(sinks).participants, connections, dict.fromkeys(sinks, ROWS))
    assert {(problem.sink, problem.column) for problem in found} == {("rows", "name"), ("rows", "op")}
    for name in ("down", "undefined", "bus"):
        assert any(f"connection {name} cannot be asked now" in line for line in caplog.messages), name


def test_wrong_kafka_sink_settings_are_found_without_a_broker(tmp_path: Path) -> None:
    sinks: Mapping[str, Any] = {"copies": KafkaSink(topic="t", conn_id="bus", key="nokey")}
    unreachable = {"bootstrap.servers": f"127.0.0.1:{free_port()}", "airflow_ft_timeout": 1}
    bus = ConnectionInfo("bus", "kafka", extra=unreachable)
    (problem,) = schema_problems(plan_delivery(sinks).participants, lambda _: bus, {"copies": ROWS})
    assert isinstance(problem, DeclinedError) and problem.column == "nokey"
